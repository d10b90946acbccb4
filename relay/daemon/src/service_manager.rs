//! Talks to systemd where it started the relay with `Type=notify`; does nothing elsewhere.
//!
//! Ready means that the process stands and goes on by itself, also while a database or a broker is away: whether it
//! can publish now is `/readyz`'s business, and a start that waited for a broker would be given up by systemd.
//! The watchdog hears of the send loop's own progress, as `/livez` does, and of no dependency.

use std::sync::Arc;
use std::time::Duration;

use sd_notify::NotifyState;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::health::Progress;

/// The tasks that report. Dropping it ends them, with a last word.
pub struct ServiceManager {
    tasks: Vec<JoinHandle<()>>,
}

impl ServiceManager {
    /// Says that the relay is up, and from then on that it is alive and that it stops.
    pub fn ready(progress: Arc<Progress>, stop: CancellationToken) -> Self {
        tell(&[NotifyState::Ready]);
        let mut tasks = Vec::new();
        if let Some(patience) = sd_notify::watchdog_enabled() {
            tasks.push(tokio::spawn(watchdog(progress, stop.clone(), patience / 3)));
        }
        tasks.push(tokio::spawn(async move {
            stop.cancelled().await;
            tell(&[NotifyState::Stopping]);
        }));
        Self { tasks }
    }
}

impl Drop for ServiceManager {
    fn drop(&mut self) {
        // Also for a relay that ends by itself, and for one whose stop was quicker than the task above.
        tell(&[NotifyState::Stopping]);
        for task in &self.tasks {
            task.abort();
        }
    }
}

/// A silent watchdog makes systemd end the process and start it anew.
async fn watchdog(progress: Arc<Progress>, stop: CancellationToken, period: Duration) {
    let mut timer = tokio::time::interval(period.max(Duration::from_millis(1)));
    loop {
        timer.tick().await;
        // A stop has a bound of its own, and what it waits for is no longer the loop.
        match progress.alive() {
            Err(why) if !stop.is_cancelled() => warn!(error = %why, "the watchdog is told nothing"),
            _ => tell(&[NotifyState::Watchdog]),
        }
    }
}

/// A manager that cannot be reached is no reason to stop publishing.
fn tell(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        debug!(error = %error, "the service manager could not be told");
    }
}
