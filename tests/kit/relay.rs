//! The real binary as a process: started with flags, environment and a configuration file,
//! watched through its log, signalled by its process id.
//!
//! Guarantees: it never outlives its handle, and its log is shown when the test fails.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal};
use tokio::process::{Child, Command};

use crate::metrics::{self, Samples};
use crate::output::Output;
use crate::{services, wait};

/// Lines of the log that are shown when the handle is dropped; a test that passes shows nothing.
const SHOWN_LINES_MAX: usize = 200;

/// The binary under test: `OUTBOX_RELAY_BIN`, else the workspace's debug build.
#[must_use]
pub fn binary() -> PathBuf {
    std::env::var_os("OUTBOX_RELAY_BIN")
        .map_or_else(|| services::target_dir().join("debug/outbox-relay"), PathBuf::from)
}

/// How to start a relay.
#[derive(Clone, Debug)]
pub struct Launch {
    arguments: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
    config: Option<String>,
    binary: PathBuf,
    quiet: bool,
}

impl Launch {
    /// Any command, for example `["migrate"]`.
    #[must_use]
    pub fn new<A: Into<OsString>>(arguments: impl IntoIterator<Item = A>) -> Self {
        let arguments = arguments.into_iter().map(Into::into).collect();
        Self { arguments, environment: Vec::new(), config: None, binary: binary(), quiet: false }
    }

    /// `run` with an admin endpoint on a free port.
    #[must_use]
    pub fn run() -> Self {
        Self::new(["run", "--admin-listen", "127.0.0.1:0"])
    }

    #[must_use]
    pub fn arg(mut self, argument: impl Into<OsString>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    #[must_use]
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.environment.push((name.into(), value.into()));
        self
    }

    /// With a wall clock that is off by this much, as `+3600s`; the steady clock is not. By Debian's libfaketime.
    ///
    /// # Errors
    /// When the library is not there.
    pub fn clock(self, offset: &str) -> Result<Self> {
        let library = format!("/usr/lib/{}-linux-gnu/faketime/libfaketime.so.1", std::env::consts::ARCH);
        anyhow::ensure!(Path::new(&library).exists(), "{library} is missing; run tests/services/install.sh postgres");
        Ok(self.env("LD_PRELOAD", library).env("FAKETIME", offset).env("FAKETIME_DONT_FAKE_MONOTONIC", "1"))
    }

    /// `DATABASE_URL`.
    #[must_use]
    pub fn database(self, url: &str) -> Self {
        self.env("DATABASE_URL", url)
    }

    /// `AMQP_URL`.
    #[must_use]
    pub fn amqp(self, url: &str) -> Self {
        self.env("AMQP_URL", url)
    }

    /// `KAFKA_BROKERS`.
    #[must_use]
    pub fn kafka(self, brokers: &str) -> Self {
        self.env("KAFKA_BROKERS", brokers)
    }

    /// The text of a configuration file, handed over by `--config`.
    #[must_use]
    pub fn config(mut self, text: &str) -> Self {
        self.config = Some(text.to_owned());
        self
    }

    /// Another binary: a mutant that breaks a rule on purpose.
    #[must_use]
    pub fn binary(mut self, path: impl Into<PathBuf>) -> Self {
        self.binary = path.into();
        self
    }

    /// Does not show the log when the handle is dropped: for a program whose output people read.
    #[must_use]
    pub fn quiet(mut self) -> Self {
        self.quiet = true;
        self
    }

    /// Starts the process. Of this process's environment it gets only what programs need.
    ///
    /// # Errors
    /// When the binary is missing or the configuration cannot be written.
    pub fn start(&self) -> Result<Relay> {
        let mut command = Command::new(&self.binary);
        command.args(&self.arguments).env_clear();
        for name in ["PATH", "HOME", "TMPDIR", "LANG", "RUST_BACKTRACE"] {
            if let Some(value) = std::env::var_os(name) {
                command.env(name, value);
            }
        }
        let config = self.config.as_deref().map(ConfigFile::write).transpose()?;
        if let Some(file) = &config {
            command.arg("--config").arg(&file.path);
        }
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().with_context(|| {
            format!("starting {}; build it with: cargo build --bin outbox-relay --features otel", self.binary.display())
        })?;
        let pid = child.id().context("the process ended before it began")?;
        let stdout = Output::follow(child.stdout.take().context("no standard output")?);
        let stderr = Output::follow(child.stderr.take().context("no standard error")?);
        Ok(Relay { child, pid, stdout, stderr, quiet: self.quiet, _config: config })
    }

    /// Starts the process, waits for its end, and returns what it said.
    ///
    /// # Errors
    /// When it does not end in time.
    pub async fn finish(&self, within: Duration) -> Result<Finished> {
        let mut relay = self.start()?;
        let code = relay.wait_exit(within).await?.code();
        Ok(Finished { code, stdout: relay.stdout.text(), stderr: relay.stderr.text() })
    }
}

/// How a command ended.
#[derive(Clone, Debug)]
pub struct Finished {
    /// `None` when a signal ended it.
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

/// A running relay.
pub struct Relay {
    child: Child,
    pid: u32,
    stdout: Output,
    stderr: Output,
    quiet: bool,
    _config: Option<ConfigFile>,
}

impl Relay {
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// All lines of standard error so far.
    #[must_use]
    pub fn log(&self) -> String {
        self.stderr.text()
    }

    /// All lines of standard output so far.
    #[must_use]
    pub fn output(&self) -> String {
        self.stdout.text()
    }

    /// Waits for a line of the log that contains `text`, also one that came before the call.
    ///
    /// # Errors
    /// When it does not come in time, or the process ends before.
    pub async fn wait_log(&self, text: &str, within: Duration) -> Result<String> {
        self.stderr.wait_line(text, within).await
    }

    /// The admin endpoint's address, from the line that announces it, in text or JSON.
    ///
    /// # Errors
    /// When the line does not come in time or has no address.
    pub async fn admin(&self) -> Result<SocketAddr> {
        let line = self.wait_log("admin endpoint listening", wait::SOON).await?;
        admin_address(&line).with_context(|| format!("no address in: {line}"))
    }

    /// Waits until `/readyz` answers 200.
    ///
    /// # Errors
    /// When it does not in time.
    pub async fn wait_ready(&self, within: Duration) -> Result<()> {
        let admin = self.admin().await?;
        let ready = || async move { Ok(metrics::get(admin, "/readyz").await?.status == 200) };
        wait::until_true("/readyz to answer 200", within, ready).await
    }

    /// Reads `/metrics`.
    ///
    /// # Errors
    /// When the endpoint does not answer.
    pub async fn metrics(&self) -> Result<Samples> {
        metrics::scrape(self.admin().await?).await
    }

    /// SIGKILL, and waits until the process is gone.
    ///
    /// # Errors
    /// When it does not die.
    pub async fn kill9(&mut self) -> Result<()> {
        self.signal(Signal::KILL)?;
        self.wait_exit(wait::SOON).await.map(|_| ())
    }

    /// Asks for a clean stop.
    ///
    /// # Errors
    /// When the process is gone.
    pub fn sigterm(&self) -> Result<()> {
        self.signal(Signal::TERM)
    }

    /// Freezes the process until [`Relay::sigcont`].
    ///
    /// # Errors
    /// When the process is gone.
    pub fn sigstop(&self) -> Result<()> {
        self.signal(Signal::STOP)
    }

    /// # Errors
    /// When the process is gone.
    pub fn sigcont(&self) -> Result<()> {
        self.signal(Signal::CONT)
    }

    /// SIGTERM, then the exit code within the deadline.
    ///
    /// # Errors
    /// When it does not end in time.
    pub async fn stop(&mut self, within: Duration) -> Result<Option<i32>> {
        self.sigterm()?;
        Ok(self.wait_exit(within).await?.code())
    }

    /// Waits for the end; afterwards all its output has been read.
    ///
    /// # Errors
    /// When it does not end in time.
    pub async fn wait_exit(&mut self, within: Duration) -> Result<ExitStatus> {
        let status = wait::bounded("the relay to exit", within, self.child.wait()).await??;
        self.stdout.wait_end(wait::SOON).await?;
        self.stderr.wait_end(wait::SOON).await?;
        Ok(status)
    }

    /// Whether the process still runs.
    ///
    /// # Errors
    /// When the system cannot tell.
    pub fn is_running(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_none())
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        // After the process was waited for, its number may belong to somebody else.
        if self.child.id().is_none() {
            bail!("the relay has ended already");
        }
        send_signal(self.pid, signal)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        if self.quiet {
            return;
        }
        let log = self.stderr.text();
        let skipped = log.lines().count().saturating_sub(SHOWN_LINES_MAX);
        eprintln!("--- log of relay {} ({skipped} earlier lines left out) ---", self.pid);
        for line in log.lines().skip(skipped) {
            eprintln!("{line}");
        }
    }
}

/// Signals a process by its id.
///
/// # Errors
/// When there is none.
pub fn send_signal(pid: u32, signal: Signal) -> Result<()> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).context("not a process id")?;
    rustix::process::kill_process(pid, signal).with_context(|| format!("sending {signal:?}"))
}

fn admin_address(line: &str) -> Option<SocketAddr> {
    let start = line.find("addr")? + "addr".len();
    let rest = line[start..].trim_start_matches(['"', ':', '=', ' ']);
    let end = rest.find(|letter: char| letter == '"' || letter == ',' || letter.is_whitespace()).unwrap_or(rest.len());
    rest[..end].parse().ok()
}

/// A configuration file that goes away with the relay.
#[derive(Debug)]
struct ConfigFile {
    path: PathBuf,
}

impl ConfigFile {
    fn write(text: &str) -> Result<Self> {
        let name = format!("outbox-relay-{}.toml", uuid::Uuid::new_v4().simple());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
        Ok(Self { path })
    }
}

impl Drop for ConfigFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_admin_address_is_found_in_text_and_json() {
        let expected = "127.0.0.1:4711".parse().ok();
        for line in [
            r#"{"level":"INFO","message":"admin endpoint listening","addr":"127.0.0.1:4711","relay_id":"x"}"#,
            "2026-01-01T00:00:00Z  INFO admin endpoint listening addr=127.0.0.1:4711 relay_id=x",
            "INFO admin endpoint listening addr=127.0.0.1:4711",
        ] {
            assert_eq!(admin_address(line), expected, "{line}");
        }
    }
}
