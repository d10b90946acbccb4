//! Services of one test alone, for faults that would disturb others: crashes, frozen brokers,
//! alarms. They are started by the same scripts as the shared ones, on free ports, which takes
//! seconds: prefer the shared services and a proxy where that suffices.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::Signal;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use crate::relay::send_signal;
use crate::{cleanup, services, wait};

const SCRIPT_DEADLINE: Duration = Duration::from_secs(300);

/// A service by the name that the scripts use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    Postgres,
    /// A hot standby of the set's own PostgreSQL, which must be there.
    Standby,
    /// In transaction mode before the set's own PostgreSQL, which must be there.
    Pgbouncer,
    Rabbitmq,
    Kafka,
    /// Further brokers of the set's own Kafka, which must be there.
    Kafka2,
    Kafka3,
}

impl Service {
    fn name(self) -> &'static str {
        match self {
            Self::Postgres => "postgres",
            Self::Standby => "standby",
            Self::Pgbouncer => "pgbouncer",
            Self::Rabbitmq => "rabbitmq",
            Self::Kafka => "kafka",
            Self::Kafka2 => "kafka2",
            Self::Kafka3 => "kafka3",
        }
    }
}

/// A set of services of one test; they are stopped and their data removed at its end.
pub struct OwnServices {
    folder: PathBuf,
    /// Somebody else's: they are left running.
    given: bool,
    environment: Vec<(String, String)>,
}

impl OwnServices {
    /// Starts the services on free ports.
    ///
    /// # Errors
    /// When one does not start; the message carries what the script said.
    pub async fn start(wanted: &[Service]) -> Result<Self> {
        Self::start_with(wanted, &[]).await
    }

    /// Like [`OwnServices::start`] with variables of the scripts, such as `POSTGRES_FSYNC`.
    ///
    /// # Errors
    /// As [`OwnServices::start`].
    pub async fn start_with(wanted: &[Service], environment: &[(&str, &str)]) -> Result<Self> {
        let name = format!("services.test-{}", &uuid::Uuid::new_v4().simple().to_string()[..8]);
        let own = Self {
            folder: services::target_dir().join(name),
            given: false,
            environment: environment.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
        };
        let mut arguments = vec!["--own-ports"];
        arguments.extend(wanted.iter().map(|service| service.name()));
        own.script("up.sh", &arguments).await?;
        Ok(own)
    }

    /// A running set in a folder that `tests/services/up.sh` made. It may be crashed and resumed, and is left running.
    #[must_use]
    pub fn given(folder: &Path) -> Self {
        Self { folder: folder.to_path_buf(), given: true, environment: Vec::new() }
    }

    /// Where the set and its files are; gone at its end.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Kafka's pairs of (port where the broker listens, port it advertises), for fault proxies.
    ///
    /// # Errors
    /// When Kafka was not started.
    pub fn kafka_fault_ports(&self) -> Result<Vec<(u16, u16)>> {
        services::parse_fault_ports(&self.noted("kafka.faults")?)
    }

    /// The address: a database URL, an AMQP URL, or Kafka's bootstrap servers.
    ///
    /// # Errors
    /// When the service was not started.
    pub fn address(&self, service: Service) -> Result<String> {
        self.noted(&format!("{}.url", service.name()))
    }

    /// Kafka's bootstrap servers for clients of one of the `KAFKA_LISTENERS`.
    ///
    /// # Errors
    /// When Kafka was not started with it.
    pub fn kafka_listener(&self, name: &str) -> Result<String> {
        let noted = self.noted("kafka.listeners")?;
        let mut lines = noted.lines().filter_map(|line| line.split_once(' '));
        let (_, listener) = lines.find(|(noted, _)| *noted == name).with_context(|| format!("no listener {name}"))?;
        listener.split_once(' ').map(|(_, address)| address.to_owned()).context("no address")
    }

    /// RabbitMQ's address with TLS, where `RABBITMQ_TLS` was set.
    ///
    /// # Errors
    /// When RabbitMQ was not started so.
    pub fn rabbitmq_tls_address(&self) -> Result<String> {
        self.noted("rabbitmq.tls.url")
    }

    fn noted(&self, name: &str) -> Result<String> {
        let file = self.folder.join(name);
        let text = std::fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
        Ok(text.trim_end().to_owned())
    }

    /// Crashes the service and returns once it is gone. PostgreSQL gets its immediate shutdown,
    /// which like a power cut flushes nothing and leaves recovery to the next start.
    ///
    /// # Errors
    /// When it does not end.
    pub async fn crash(&self, service: Service) -> Result<()> {
        let signal = match service {
            Service::Postgres | Service::Standby => Signal::QUIT,
            _ => Signal::KILL,
        };
        let pid = self.pid(service)?;
        send_signal(pid, signal)?;
        let gone = || async move { Ok(has_ended(pid)) };
        wait::until_true(&format!("{} to end", service.name()), wait::SOON, gone).await
    }

    /// Stops the service in order; [`OwnServices::resume`] starts it again with its data.
    ///
    /// # Errors
    /// When it does not end.
    pub async fn stop(&self, service: Service) -> Result<()> {
        self.script("down.sh", &[service.name()]).await
    }

    /// Starts a service that was stopped or crashed, on the same port with the same data.
    ///
    /// # Errors
    /// When it does not start.
    pub async fn resume(&self, service: Service) -> Result<()> {
        self.script("up.sh", &[service.name()]).await
    }

    /// Freezes the service's process until [`OwnServices::thaw`].
    ///
    /// # Errors
    /// When it does not run.
    pub fn freeze(&self, service: Service) -> Result<()> {
        send_signal(self.pid(service)?, Signal::STOP)
    }

    /// # Errors
    /// When it does not run.
    pub fn thaw(&self, service: Service) -> Result<()> {
        send_signal(self.pid(service)?, Signal::CONT)
    }

    /// Runs rabbitmqctl against this set's node, for example to raise a memory alarm.
    ///
    /// # Errors
    /// When it fails, with what it said.
    pub async fn rabbitmqctl(&self, arguments: &[&str]) -> Result<String> {
        rabbitmqctl_at(&self.folder, arguments).await
    }

    /// Runs a program of Kafka's own by its class, beside this set's broker.
    ///
    /// # Errors
    /// When it fails, with what it said.
    pub async fn kafka_tool(&self, arguments: &[&str]) -> Result<String> {
        run_tool(&self.folder.join("kafka/run"), arguments, "").await
    }

    fn pid(&self, service: Service) -> Result<u32> {
        let file = self.folder.join(format!("{}.pid", service.name()));
        let text = std::fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
        Ok(text.trim().parse()?)
    }

    async fn script(&self, name: &str, arguments: &[&str]) -> Result<()> {
        run_script(&self.folder, name, arguments, &self.environment).await
    }
}

impl Drop for OwnServices {
    fn drop(&mut self) {
        if self.given {
            return;
        }
        if !cleanup::is_wanted() {
            eprintln!("kept the services in {}", self.folder.display());
            return;
        }
        let folder = self.folder.clone();
        cleanup::run("the test's own services", async move {
            run_script(&folder, "down.sh", &["--clean"], &[]).await?;
            std::fs::remove_dir_all(&folder)?;
            Ok(())
        });
    }
}

/// Runs rabbitmqctl against the shared node: virtual hosts, users, policies; never alarms.
///
/// # Errors
/// When it fails, with what it said.
pub async fn rabbitmqctl(arguments: &[&str]) -> Result<String> {
    rabbitmqctl_at(&services::services_dir()?, arguments).await
}

/// Runs a program of Kafka's own by its class, for example
/// `["org.apache.kafka.tools.ConsoleProducer", ...]`, with a text as its input.
///
/// # Errors
/// When it fails, with what it said.
pub async fn kafka_tool(arguments: &[&str], input: &str) -> Result<String> {
    run_tool(&services::services_dir()?.join("kafka/run"), arguments, input).await
}

async fn rabbitmqctl_at(folder: &Path, arguments: &[&str]) -> Result<String> {
    run_tool(&folder.join("rabbitmq/ctl"), arguments, "").await
}

async fn run_tool(program: &Path, arguments: &[&str], input: &str) -> Result<String> {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn().with_context(|| format!("starting {}", program.display()))?;
    let mut stdin = child.stdin.take().context("no standard input")?;
    // A program that ends without reading is judged by its exit code.
    let _ = stdin.write_all(input.as_bytes()).await;
    drop(stdin);
    let output = wait::bounded("a service's tool", SCRIPT_DEADLINE, child.wait_with_output()).await??;
    if !output.status.success() {
        let (said, failed) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        bail!("{} {arguments:?} failed: {said}{failed}", program.display());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

async fn run_script(folder: &Path, name: &str, arguments: &[&str], environment: &[(String, String)]) -> Result<()> {
    let script = services::workspace_root().join("tests/services").join(name);
    let mut command = Command::new(script);
    // The shared set's ports must not leak into this one.
    for variable in ["PORT_OFFSET", "POSTGRES_PORT", "RABBITMQ_PORT", "KAFKA_PORT"] {
        command.env_remove(variable);
    }
    command.args(arguments).env("SERVICES_DIR", folder);
    command.envs(environment.iter().map(|(key, value)| (key, value)));
    // The servers inherit these, so a pipe would stay open as long as they live: use files.
    std::fs::create_dir_all(folder)?;
    let said = folder.join(format!("{name}.log"));
    let file = std::fs::File::create(&said)?;
    command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
    let status = wait::bounded(name, SCRIPT_DEADLINE, command.status()).await??;
    if !status.success() {
        bail!("{name} {arguments:?} failed:\n{}", std::fs::read_to_string(&said)?);
    }
    Ok(())
}

/// A zombie counts as ended: its parent, a script, is gone or has not looked yet. But its first thread is one already
/// while others still hold the sockets.
fn has_ended(pid: u32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
    if threads > 1 {
        return false;
    }
    let Ok(status) = std::fs::read_to_string(format!("/proc/{pid}/status")) else { return true };
    status.lines().any(|line| line.starts_with("State:") && line.contains('Z'))
}
