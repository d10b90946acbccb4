//! The relays of a campaign, each with links of its own that can be broken.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use outbox_tests::proxy::{Direction, Proxy};
use outbox_tests::relay::{Launch, Relay};

/// Lines of a relay's log that are kept after its death.
const LOG_LINES_MAX: usize = 40;
/// A clean stop has its grace, and the database may be silent.
const STOP_DEADLINE: Duration = Duration::from_secs(90);
const SOON_ENDED: Duration = Duration::from_secs(2);

/// One relay and its links.
pub struct Member {
    launch: Launch,
    /// With the crash points built in.
    crashing: Option<Launch>,
    other_version: Option<Launch>,
    relay: Option<Relay>,
    pub database: Proxy,
    pub broker: Proxy,
    pub deaths: usize,
    leaving: bool,
    last_words: String,
}

impl Member {
    pub fn new(launch: Launch, database: Proxy, broker: Proxy) -> Self {
        Self {
            launch,
            crashing: None,
            other_version: None,
            relay: None,
            database,
            broker,
            deaths: 0,
            leaving: false,
            last_words: String::new(),
        }
    }

    /// Binaries that take its place for a fault: one with crash points, and one of another version.
    #[must_use]
    pub fn with(mut self, crashing: Option<Launch>, other_version: Option<Launch>) -> Self {
        (self.crashing, self.other_version) = (crashing, other_version);
        self
    }

    /// Starts it unless it runs.
    pub fn start(&mut self) -> Result<()> {
        if self.relay.is_none() {
            self.relay = Some(self.launch.start()?);
        }
        Ok(())
    }

    /// Starts it so that it dies when it passes a point for the nth time.
    pub fn start_crashing(&mut self, point: &str) -> Result<()> {
        let launch = self.crashing.as_ref().context("OUTBOX_MUTANT_BIN is not set: no crash points")?;
        self.relay = Some(launch.clone().env("OUTBOX_CRASH_POINT", point).start()?);
        Ok(())
    }

    /// Starts it with a clock that is off; leases, delays and order go by the database's and a steady one.
    pub fn start_skewed(&mut self, clock: &str) -> Result<()> {
        self.relay = Some(self.launch.clone().clock(clock)?.start()?);
        Ok(())
    }

    pub fn start_other_version(&mut self) -> Result<()> {
        let launch = self.other_version.as_ref().context("the schedule needs --other-version")?;
        self.relay = Some(launch.start()?);
        Ok(())
    }

    pub async fn kill(&mut self) -> Result<()> {
        self.leaving = false;
        if let Some(mut relay) = self.relay.take() {
            if relay.is_running()? {
                relay.kill9().await?;
            }
            self.bury(&relay);
        }
        Ok(())
    }

    /// Asks for a clean stop, which `left` waits for: other faults may be in its way.
    pub fn leave(&mut self) -> Result<()> {
        if !self.has_died()? {
            self.relay.as_ref().context("it runs")?.sigterm()?;
            self.leaving = true;
        }
        Ok(())
    }

    /// Waits for the end of a clean stop, if one was asked for.
    pub async fn left(&mut self) -> Result<()> {
        if let Some(mut relay) = self.relay.take_if(|_| std::mem::take(&mut self.leaving)) {
            let status = relay.wait_exit(STOP_DEADLINE).await?;
            self.last_words = tail(&relay);
            ensure!(status.code() == Some(0), "a relay that was asked to stop ended with {status}");
        }
        Ok(())
    }

    /// Ends it, cleanly if that goes soon.
    pub async fn end(&mut self) -> Result<()> {
        if let Some(relay) = &mut self.relay
            && relay.is_running()?
        {
            relay.sigterm()?;
            let _ = relay.wait_exit(SOON_ENDED).await;
        }
        self.kill().await
    }

    /// Ends one that was to die at that point; whether it did. Lanes are given away in a clean stop, too.
    pub async fn end_crashing(&mut self, point: &str) -> Result<bool> {
        let mut died = self.has_died()?;
        if !died
            && point.starts_with("before_release")
            && let Some(relay) = &mut self.relay
        {
            relay.sigterm()?;
            died = relay.wait_exit(SOON_ENDED).await.is_ok_and(|status| !status.success());
        }
        self.kill().await?;
        Ok(died)
    }

    pub fn pause(&self) -> Result<()> {
        self.relay.as_ref().context("no process to pause")?.sigstop()
    }

    /// One that died meanwhile needs no waking.
    pub fn go_on(&self) {
        if let Some(relay) = &self.relay {
            let _ = relay.sigcont();
        }
    }

    /// Whether it has died by itself; then it is buried.
    pub fn has_died(&mut self) -> Result<bool> {
        let Some(mut relay) = self.relay.take() else { return Ok(true) };
        if relay.is_running()? {
            self.relay = Some(relay);
            return Ok(false);
        }
        self.bury(&relay);
        Ok(true)
    }

    fn bury(&mut self, relay: &Relay) {
        self.deaths += 1;
        self.last_words = tail(relay);
    }

    /// The end of the log, of the last process too.
    pub fn log(&self) -> String {
        let now = self.relay.as_ref().map(tail).unwrap_or_default();
        format!("{}\n-- restarted --\n{now}", self.last_words)
    }
}

fn tail(relay: &Relay) -> String {
    let log = relay.log();
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(LOG_LINES_MAX)..].join("\n")
}

/// The directions that a fault's detail names.
pub fn directions(detail: &str) -> &'static [Direction] {
    match detail {
        "requests" => &[Direction::Requests],
        "replies" => &[Direction::Replies],
        _ => &[Direction::Requests, Direction::Replies],
    }
}
