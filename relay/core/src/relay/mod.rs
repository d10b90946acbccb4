//! The relay: one database session after the other, for ever, until it is told to stop or has drained.
//!
//! Positions and unpublished rows die with a session; lanes whose rows were published keep those rows for the
//! next one (rule 7).

mod background;
mod intake;
mod leases;
mod links;
mod session;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::backoff::{Backoff, BackoffPolicy};
use crate::lane_worker::LaneMemory;
use crate::observer::Peer;
use crate::relay::session::SessionRun;
use crate::shared::{DatabaseLink, Shared};
use crate::source::{DrainGoal, Source, SourceError};

/// Between two tries to reach the database.
const RECONNECT: BackoffPolicy = BackoffPolicy { initial_ms: 100, max_ms: 5_000 };

/// What sinks get on top of the grace to answer for what they have.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// Why the relay ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// It was told to stop.
    Stopped,
    /// Everything that was committed and due when it started is sent, parked or discarded.
    Drained,
}

/// A lane without a session: what it published last, under which epoch.
struct Dormant {
    memory: LaneMemory,
    epoch: i64,
}

/// One relay process.
pub struct Relay<S: Source> {
    source: Arc<S>,
    shared: Arc<Shared>,
    dormant: HashMap<i16, Dormant>,
    drain: bool,
    goal: Option<DrainGoal>,
}

impl<S: Source> Relay<S> {
    /// A relay that has not started. With `drain` it ends when the backlog of its start is done.
    #[must_use]
    pub fn new(source: Arc<S>, shared: Arc<Shared>, drain: bool) -> Self {
        Self { source, shared, dormant: HashMap::new(), drain, goal: None }
    }

    /// Runs until `stop`, or until drained. Losing any service is not an end.
    pub async fn run(mut self, stop: CancellationToken) -> Finish {
        let links = tokio::spawn(links::watch(self.shared.clone()));
        let limit = Duration::from_millis(self.shared.settings.shutdown_grace_ms) + LAST_WORDS;
        let overdue = CancellationToken::new();
        let stopping = tokio::spawn(limit_stop(stop.clone(), self.shared.clone(), limit, overdue.clone()));
        let mut backoff = Backoff::new(RECONNECT);
        let mut wait_ms = 0;
        let mut connected_before = false;
        let finish = loop {
            self.shared.observer.progress();
            let connected = tokio::select! {
                () = stop.cancelled() => break Finish::Stopped,
                connected = self.source.connect() => connected,
            };
            let error = match connected {
                Ok(session) => {
                    self.shared.database.send_replace(DatabaseLink::Up);
                    if std::mem::replace(&mut connected_before, true) {
                        self.shared.observer.reconnected(Peer::Postgres);
                    }
                    tracing::info!("database session is up");
                    let mut run = SessionRun::new(session, self.shared.clone(), std::mem::take(&mut self.dormant));
                    let started = self.shared.clock.now();
                    let life = async {
                        let end = run.run(&stop, self.drain, &mut self.goal).await;
                        (end, run.into_dormant().await)
                    };
                    let (end, dormant) = tokio::select! {
                        ended = life => ended,
                        () = overdue.cancelled() => {
                            tracing::warn!("the database did not answer within the time for a stop; leases run out by themselves");
                            break Finish::Stopped;
                        }
                    };
                    self.dormant = dormant;
                    // A session shorter than the wait before it is taken for another failed try.
                    if self.shared.clock.now().since(started) > wait_ms {
                        backoff.reset();
                    }
                    match end {
                        Ok(finish) => break finish,
                        Err(error) => error,
                    }
                }
                Err(error) => error,
            };
            self.note_lost(&error);
            wait_ms = backoff.next_ms();
            tokio::select! {
                () = stop.cancelled() => break Finish::Stopped,
                () = tokio::time::sleep(Duration::from_millis(wait_ms)) => {}
            }
        };
        // A sink that does not end in time leaves rows unsent; they go again with the same id.
        let mut sinks = self.shared.stop_sinks();
        tokio::select! {
            _ = sinks.wait_for(|stopped| *stopped) => {}
            () = overdue.cancelled() => {}
            () = tokio::time::sleep(limit) => {}
        }
        stopping.abort();
        links.abort();
        finish
    }

    fn note_lost(&self, error: &SourceError) {
        self.shared.database.send_replace(DatabaseLink::Down { detail: error.to_string() });
        self.shared.note_lanes_owned(0);
        tracing::warn!(error = %error, "no database session; trying again");
    }
}

/// A stop ends in bounded time, whoever does not answer: an orchestrator kills what takes longer. Sinks flush what they
/// have at once, also while the session still waits for its database.
async fn limit_stop(stop: CancellationToken, shared: Arc<Shared>, limit: Duration, overdue: CancellationToken) {
    stop.cancelled().await;
    drop(shared.stop_sinks());
    tokio::time::sleep(limit).await;
    overdue.cancel();
}
