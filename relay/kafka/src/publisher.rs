//! `outbox_core::Publisher` for Kafka: a thin handle on the sending thread.
//!
//! Guarantees: `publish` never waits; `stop` answers every row that is still open. Deliberately absent: any
//! decision about a row.

use std::collections::HashSet;
use std::sync::mpsc::Sender as Asks;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use outbox_core::{Address, KeyOrder, Link, Observer, Outgoing, Publisher, Remark, Sink};
use tokio::sync::{oneshot, watch};

use crate::config::{ConfigError, KafkaConfig, Settings};
use crate::inbox::{Event, Inbox};
use crate::scout::{Ask, Scout};
use crate::sender::Sender;
use crate::topics::{self, Standing};

/// The longest wait for the answer to `probe`.
const PROBE_MAX: Duration = Duration::from_secs(15);

/// One cluster. Dropping it without `stop` leaves the rows in flight unknown.
pub struct KafkaPublisher {
    inbox: Arc<Inbox>,
    link: watch::Receiver<Link>,
    stopped: watch::Receiver<bool>,
    pipelined: Arc<RwLock<HashSet<String>>>,
    asks: Asks<Ask>,
}

impl KafkaPublisher {
    /// Starts the threads and begins to connect. It does not wait for a broker.
    ///
    /// # Errors
    /// A configuration that is not valid, naming the key; a thread that could not be started.
    pub fn start(config: KafkaConfig, observer: Arc<dyn Observer>) -> Result<Arc<Self>, ConfigError> {
        let settings = Settings::new(&config)?;
        let inbox = Arc::new(Inbox::default());
        let pipelined = Arc::new(RwLock::new(HashSet::new()));
        let (link_sender, link) = watch::channel(Link::Down { detail: "connecting".to_owned() });
        let (stopped_sender, stopped) = watch::channel(false);
        let asks = Scout::start(&settings, &inbox)?;
        let stopped_guard = Stopped { stopped: stopped_sender, inbox: Arc::clone(&inbox), link: link_sender.clone() };
        let sender =
            Sender::new(settings, Arc::clone(&inbox), link_sender, observer, Arc::clone(&pipelined), asks.clone())?;
        std::thread::Builder::new()
            .name("kafka-send".to_owned())
            .spawn(move || {
                let _stopped = stopped_guard;
                sender.run();
            })
            .map_err(|error| ConfigError::Thread { detail: error.to_string() })?;
        Ok(Arc::new(Self { inbox, link, stopped, pipelined, asks }))
    }
}

/// Falls with the sending thread, also when that panics: nobody waits for a thread that is gone, and no row is
/// left in its inbox.
struct Stopped {
    stopped: watch::Sender<bool>,
    inbox: Arc<Inbox>,
    link: watch::Sender<Link>,
}

impl Drop for Stopped {
    fn drop(&mut self) {
        self.link.send_replace(Link::Down { detail: "stopped".to_owned() });
        drop(self.inbox.close());
        self.stopped.send_replace(true);
    }
}

impl KafkaPublisher {
    /// What the cluster says of a topic; `None` once the adapter has stopped. The scout may be in the middle of
    /// other questions that nobody answers.
    async fn standing(&self, topic: &str) -> Option<Standing> {
        let (reply, answer) = oneshot::channel();
        // A scout that is gone drops the question, and with it the reply.
        let _ = self.asks.send(Ask::Probe(topic.to_owned(), reply));
        match tokio::time::timeout(PROBE_MAX, answer).await {
            Ok(answer) => answer.ok(),
            Err(_) => Some(Standing::Unasked(format!("no broker answered within {} s", PROBE_MAX.as_secs()))),
        }
    }
}

impl Publisher for KafkaPublisher {
    fn sink(&self) -> Sink {
        Sink::Kafka
    }

    /// Pipelined where the idempotent producer keeps the order: at a topic that has confirmed a row to this
    /// producer and whose limit is known, so that no batch is refused for its size.
    fn order(&self, address: &Address) -> KeyOrder {
        let pipelined = self.pipelined.read().unwrap_or_else(PoisonError::into_inner);
        if pipelined.contains(&address.destination) { KeyOrder::Pipelined } else { KeyOrder::Strict }
    }

    fn publish(&self, outgoing: Outgoing) {
        self.inbox.row(outgoing);
    }

    fn link(&self) -> watch::Receiver<Link> {
        self.link.clone()
    }

    fn probe<'a>(&'a self, address: &'a Address) -> BoxFuture<'a, Result<Option<String>, String>> {
        async move {
            if let Some(fault) = topics::name_fault(&address.destination) {
                return Ok(Some(format!("'{}' cannot be a topic: {fault}", address.destination)));
            }
            match self.standing(&address.destination).await {
                Some(Standing::Exists(_)) => Ok(None),
                Some(Standing::Away(detail)) => Ok(Some(detail)),
                Some(Standing::Unasked(detail)) => Err(detail),
                None => Err("the Kafka adapter has stopped".to_owned()),
            }
        }
        .boxed()
    }

    fn remarks<'a>(&'a self, address: &'a Address) -> BoxFuture<'a, Vec<Remark>> {
        async move {
            let Some(Standing::Exists(limits)) = self.standing(&address.destination).await else { return Vec::new() };
            let size = limits.batch_max_bytes.map(Remark::BytesMax);
            let compacted = limits.compacted.then_some(Remark::Compacted);
            let one = (limits.in_sync_min == Some(1)).then_some(Remark::OneConfirms);
            size.into_iter().chain(compacted).chain(one).collect()
        }
        .boxed()
    }

    fn stop(&self, grace_ms: u64) -> BoxFuture<'_, ()> {
        let mut stopped = self.stopped.clone();
        self.inbox.event(Event::Stop { grace_ms });
        async move {
            // An error means that the thread is gone, which is what is waited for.
            let _ = stopped.wait_for(|stopped| *stopped).await;
        }
        .boxed()
    }
}

impl Drop for KafkaPublisher {
    fn drop(&mut self) {
        self.inbox.event(Event::Stop { grace_ms: 0 });
    }
}
