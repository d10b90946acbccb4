//! What arrived, in the order in which it arrived, and a signal whenever something did.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Result;
use outbox_tests::ledger::Arrival;
use outbox_tests::wait;
use tokio::sync::watch;

use crate::queue::Message;

pub struct Received {
    inner: Mutex<Inner>,
    count: watch::Sender<usize>,
}

#[derive(Default)]
struct Inner {
    arrivals: Vec<Arrival>,
    ids: HashSet<String>,
}

impl Received {
    pub fn new() -> Self {
        Self { inner: Mutex::default(), count: watch::Sender::new(0) }
    }

    pub fn record(&self, message: &Message) {
        let arrival = Arrival::new(&message.id, message.key.as_deref(), Some(&message.body), BTreeMap::new());
        let mut inner = self.lock();
        inner.ids.insert(message.id.clone());
        inner.arrivals.push(arrival);
        let count = inner.arrivals.len();
        drop(inner);
        self.count.send_replace(count);
    }

    /// All arrivals, redeliveries included.
    pub fn count(&self) -> usize {
        *self.count.borrow()
    }

    /// Different ids.
    pub fn ids(&self) -> usize {
        self.lock().ids.len()
    }

    /// Those of these that have arrived.
    pub fn of(&self, mut ids: Vec<String>) -> Vec<String> {
        let inner = self.lock();
        ids.retain(|id| inner.ids.contains(id));
        ids
    }

    pub fn arrivals(&self) -> Vec<Arrival> {
        self.lock().arrivals.clone()
    }

    /// Waits until that many arrived.
    pub async fn wait_count(&self, count: usize, within: Duration) -> Result<()> {
        let mut news = self.count.subscribe();
        let reached = async { news.wait_for(|now| *now >= count).await.map(|_| ()) };
        Ok(wait::bounded(&format!("message number {count} to arrive"), within, reached).await??)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
