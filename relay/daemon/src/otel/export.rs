//! Gathers publications into batches and exports one after the other.

use std::time::Duration;

use bytes::Bytes;
use prost::Message as _;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::receiver::{PostError, Receiver};
use super::span::{Publication, Resource, request};
use crate::metrics::Spans;

/// Spans of one request.
const BATCH_MAX: usize = 1_024;
/// How long a batch that is not full waits for more.
const LINGER: Duration = Duration::from_secs(1);
/// Before a batch is tried again; after the last it is dropped.
const PAUSES: [Duration; 3] = [Duration::from_secs(1), Duration::from_secs(2), Duration::from_secs(4)];

/// See the module.
pub(super) struct Exporter {
    queue: mpsc::Receiver<Publication>,
    receiver: Receiver,
    resource: Resource,
    counters: Spans,
    stop: CancellationToken,
    /// The receiver did not take the last batch.
    failing: bool,
}

impl Exporter {
    pub(super) const fn new(
        queue: mpsc::Receiver<Publication>,
        receiver: Receiver,
        resource: Resource,
        counters: Spans,
        stop: CancellationToken,
    ) -> Self {
        Self { queue, receiver, resource, counters, stop, failing: false }
    }

    /// Exports until told to stop, and then what is in the queue.
    pub(super) async fn run(mut self) {
        while let Some(batch) = self.batch().await {
            self.export(batch).await;
        }
    }

    /// The next batch; `None` once everything is exported after a stop.
    async fn batch(&mut self) -> Option<Vec<Publication>> {
        let mut batch = Vec::new();
        let mut until = None;
        loop {
            let room = BATCH_MAX - batch.len();
            tokio::select! {
                biased;
                () = self.stop.cancelled(), if !self.queue.is_closed() => self.queue.close(),
                got = self.queue.recv_many(&mut batch, room) => {
                    if got == 0 || batch.len() >= BATCH_MAX {
                        return (!batch.is_empty()).then_some(batch);
                    }
                    until.get_or_insert_with(|| Instant::now() + LINGER);
                }
                () = sleep_until(until.unwrap_or_else(Instant::now)), if until.is_some() => return Some(batch),
            }
        }
    }

    async fn export(&mut self, batch: Vec<Publication>) {
        let spans = batch.len() as u64;
        let body = Bytes::from(request(&self.resource, batch).encode_to_vec());
        let mut pauses = PAUSES.into_iter();
        loop {
            // After a stop there is one try.
            let last = self.stop.is_cancelled();
            let error = match self.receiver.post(body.clone()).await {
                Ok(rejected) => return self.taken(spans, rejected.min(spans)),
                Err(error) => error,
            };
            self.refused(&error);
            let Some(pause) = pauses.next().filter(|_| error.may_pass() && !last) else { break };
            tokio::select! {
                () = sleep(pause) => {}
                () = self.stop.cancelled() => {}
            }
        }
        self.counters.dropped(spans);
    }

    fn taken(&mut self, spans: u64, rejected: u64) {
        self.counters.exported(spans - rejected);
        self.counters.dropped(rejected);
        if rejected > 0 {
            debug!(rejected, "the receiver of spans took a part of them only");
        }
        if std::mem::take(&mut self.failing) {
            info!("the receiver of spans takes them again");
        }
    }

    fn refused(&mut self, error: &PostError) {
        if !std::mem::replace(&mut self.failing, true) {
            warn!(error = %error, "spans cannot be exported; look at otel.endpoint, otel.headers and the receiver; rows are published all the same");
        }
    }
}
