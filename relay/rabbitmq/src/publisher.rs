//! The adapter's face: hands rows to the writers, answers questions about addresses, and stops in order.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use outbox_core::{Address, KeyOrder, Link, Observer, Outcome, Outgoing, Publisher, Row, Sink};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config::RabbitmqConfig;
use crate::connection::Supervisor;
use crate::probe;
use crate::session::Session;
use crate::suspects::Suspects;
use crate::writer::Writer;

/// What the tasks may still take after the connection was killed.
const LAST_ANSWERS: Duration = Duration::from_secs(5);

/// Publishes to one RabbitMQ. See the crate for what it guarantees.
pub struct RabbitmqPublisher {
    config: Arc<RabbitmqConfig>,
    writers: Vec<mpsc::UnboundedSender<Outgoing>>,
    suspects: Arc<Suspects>,
    link: watch::Receiver<Link>,
    sessions: watch::Receiver<Option<Arc<Session>>>,
    stopping: CancellationToken,
    closing: CancellationToken,
    writing: TaskTracker,
    supervising: TaskTracker,
    stopped: OnceLock<()>,
}

impl RabbitmqPublisher {
    /// Starts connecting and returns at once; the broker may be away. Needs a running tokio runtime.
    #[must_use]
    pub fn start(config: RabbitmqConfig, observer: Arc<dyn Observer>) -> Arc<Self> {
        let config = Arc::new(config);
        let first = Link::Down { detail: format!("connecting to {}", config.endpoint()) };
        let (link_sender, link) = watch::channel(first);
        let (session_sender, sessions) = watch::channel(None);
        let (stopping, closing) = (CancellationToken::new(), CancellationToken::new());
        let (writing, supervising) = (TaskTracker::new(), TaskTracker::new());
        let suspects = Suspects::new(Arc::clone(&config), Arc::clone(&observer), stopping.clone(), writing.clone());
        let mut writers = Vec::new();
        for index in 0..config.options().channels {
            // Bounded by the caller: it hands over at most `in_flight_max` rows that are not answered.
            let (sender, rows) = mpsc::unbounded_channel();
            writers.push(sender);
            writing.spawn(Writer::new(index, Arc::clone(&suspects), rows, sessions.clone()).run());
        }
        let supervisor = Supervisor {
            config: Arc::clone(&config),
            observer,
            link: link_sender,
            sessions: session_sender,
            closing: closing.clone(),
        };
        supervising.spawn(supervisor.run());
        writing.close();
        supervising.close();
        Arc::new(Self {
            config,
            writers,
            suspects,
            link,
            sessions,
            stopping,
            closing,
            writing,
            supervising,
            stopped: OnceLock::new(),
        })
    }

    /// One key, one channel: that keeps the order of a key.
    fn writer(&self, row: &Row) -> Option<&mpsc::UnboundedSender<Outgoing>> {
        if self.writers.len() == 1 {
            return self.writers.first();
        }
        let mut hasher = DefaultHasher::new();
        row.ordering_key.as_deref().unwrap_or(&row.idempotency_key).hash(&mut hasher);
        let writers = u64::try_from(self.writers.len()).ok()?;
        usize::try_from(hasher.finish() % writers).ok().and_then(|index| self.writers.get(index))
    }

    async fn shut_down(&self, grace_ms: u64) {
        self.stopping.cancel();
        if tokio::time::timeout(Duration::from_millis(grace_ms), self.writing.wait()).await.is_err() {
            let session = self.sessions.borrow().clone();
            if let Some(session) = session {
                session.fail("stopped before the broker answered");
            }
            // A dead connection answers everything; should a task hang all the same, its tickets say unknown.
            let _ = tokio::time::timeout(LAST_ANSWERS, self.writing.wait()).await;
        }
        self.closing.cancel();
        let _ = tokio::time::timeout(LAST_ANSWERS, self.supervising.wait()).await;
        let _ = self.stopped.set(());
    }
}

impl Publisher for RabbitmqPublisher {
    fn sink(&self) -> Sink {
        Sink::Rabbitmq
    }

    fn order(&self, _address: &Address) -> KeyOrder {
        if self.config.options().pipelined { KeyOrder::Pipelined } else { KeyOrder::Strict }
    }

    fn publish(&self, outgoing: Outgoing) {
        let Some(outgoing) = self.suspects.take(outgoing) else { return };
        match self.writer(&outgoing.row) {
            Some(writer) if !self.stopping.is_cancelled() => {
                if let Err(rejected) = writer.send(outgoing) {
                    rejected.0.ticket.answer(Outcome::NotSent);
                }
            }
            _ => outgoing.ticket.answer(Outcome::NotSent),
        }
    }

    fn link(&self) -> watch::Receiver<Link> {
        self.link.clone()
    }

    fn probe<'a>(&'a self, address: &'a Address) -> BoxFuture<'a, Result<Option<String>, String>> {
        let wait = Duration::from_millis(self.config.options().connect_timeout_ms);
        probe::probe(self.sessions.clone(), self.link.clone(), wait, address).boxed()
    }

    fn stop(&self, grace_ms: u64) -> BoxFuture<'_, ()> {
        async move {
            if self.stopped.get().is_none() {
                self.shut_down(grace_ms).await;
            }
        }
        .boxed()
    }
}

/// A publisher that was dropped without `stop` leaves no connection behind.
impl Drop for RabbitmqPublisher {
    fn drop(&mut self) {
        self.stopping.cancel();
        self.closing.cancel();
    }
}
