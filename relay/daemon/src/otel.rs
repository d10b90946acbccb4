//! Spans: one for each answer of a broker to a row whose `traceparent` is sampled, exported by OTLP over HTTP.
//!
//! Guaranteed: recording never waits and what finds no room in the queue is dropped and counted; a receiver that is
//! away, refuses or hangs is told of once and changes nothing for rows; a stop waits for spans as long as it is told
//! and no longer. A span has the row's id, key and address, and neither payload nor headers but the trace's own.
//! Deliberately absent: spans of rows without a sampled `traceparent`, and any change of what is published.

mod export;
mod parent;
mod receiver;
mod span;

use std::time::{Duration, SystemTime};

use outbox_core::{Answered, Millis, Outcome, Reason};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::config;
use crate::metrics::Spans;

use export::Exporter;
use parent::Parent;
use receiver::Receiver;
use span::{Publication, Resource};

/// Publications that wait for their export, a few megabytes at most.
const QUEUE_MAX: usize = 8_192;
/// What the end of the process waits for the receiver at most.
const LAST_EXPORT_MAX: Duration = Duration::from_secs(5);

/// Takes in what brokers answer. Never waits.
pub struct Recorder {
    queue: mpsc::Sender<Publication>,
    counters: Spans,
}

impl Recorder {
    /// Notes one answer, if its row is traced and it left for the broker at all.
    pub fn record(&self, answered: &Answered, outcome: &Outcome, now: Millis) {
        let Some(parent) = Parent::of(&answered.row.headers) else { return };
        let error = match outcome {
            Outcome::Confirmed => None,
            Outcome::NotSent => return,
            Outcome::Unknown { detail } => Some((Reason::Unknown, detail.clone())),
            Outcome::AddressAway { reason, detail, .. }
            | Outcome::Busy { reason, detail }
            | Outcome::Impossible { reason, detail }
            | Outcome::Failed { reason, detail } => Some((*reason, detail.clone())),
        };
        let ended = wall_clock();
        let publication = Publication {
            parent,
            message_id: answered.row.idempotency_key.clone(),
            ordering_key: answered.row.ordering_key.clone(),
            address: answered.address.clone(),
            attempt: answered.history.attempts.saturating_add(1),
            error,
            started: ended - Duration::from_millis(now.since(answered.published_at)),
            ended,
        };
        if self.queue.try_send(publication).is_err() {
            self.counters.dropped(1);
        }
    }
}

/// The task that exports.
pub struct Exporting {
    task: JoinHandle<()>,
    end: CancellationToken,
    stop: CancellationToken,
    stopped_at: JoinHandle<Instant>,
    grace: Duration,
}

/// Starts exporting what the recorder takes in. Nothing is connected to before there is a span. `stop` begins the
/// `grace` within which the process shall end.
pub fn start(
    otel: &config::Otel,
    relay_id: uuid::Uuid,
    counters: Spans,
    stop: CancellationToken,
    grace: Duration,
) -> (Recorder, Exporting) {
    info!(endpoint = %otel.endpoint, "spans of rows with a sampled traceparent are exported");
    let (queue, publications) = mpsc::channel(QUEUE_MAX);
    let end = CancellationToken::new();
    let resource = Resource::new(&otel.resource, relay_id);
    let exporter = Exporter::new(publications, Receiver::new(otel), resource, counters.clone(), end.clone());
    let task = tokio::spawn(exporter.run());
    let stopped = stop.clone();
    let stopped_at = tokio::spawn(async move {
        stopped.cancelled().await;
        Instant::now()
    });
    (Recorder { queue, counters }, Exporting { task, end, stop, stopped_at, grace })
}

impl Exporting {
    /// Exports what is there, in what a stop has left of its grace.
    pub async fn finish(mut self) {
        self.end.cancel();
        let spent = if self.stop.is_cancelled() {
            self.stopped_at.await.map_or(self.grace, |at| at.elapsed())
        } else {
            self.stopped_at.abort();
            Duration::ZERO
        };
        let left = self.grace.saturating_sub(spent).min(LAST_EXPORT_MAX);
        if tokio::time::timeout(left, &mut self.task).await.is_err() {
            self.task.abort();
            warn!("spans are lost: the receiver did not take them before the end");
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "spans of several machines are laid beside each other by wall clock")]
fn wall_clock() -> SystemTime {
    SystemTime::now()
}
