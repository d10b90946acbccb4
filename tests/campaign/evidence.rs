//! What the writers and consumers of a campaign write down, shared by their tasks.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use outbox_tests::journal::{Entry, Journal};
use outbox_tests::ledger::Arrival;
use outbox_tests::verdict::Seen;
use tokio::time::Instant;

/// See the module.
#[derive(Clone)]
pub struct Notes {
    begun: Instant,
    inner: Arc<Mutex<Inner>>,
}

#[derive(Default)]
struct Inner {
    journal: Journal,
    volatile: HashSet<String>,
    arrivals: Vec<Seen>,
    ids: HashSet<String>,
}

impl Notes {
    pub fn new() -> Self {
        Self { begun: Instant::now(), inner: Arc::default() }
    }

    pub fn now_ms(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// `volatile`: a crash of the database may undo it although the commit was answered.
    pub fn wrote(&self, entries: Vec<Entry>, volatile: bool) {
        let mut inner = self.lock();
        for entry in entries {
            if volatile {
                inner.volatile.insert(entry.id.clone());
            }
            inner.journal.record(entry);
        }
    }

    pub fn arrived(&self, arrival: Arrival, redelivered: bool) {
        let at_ms = self.now_ms();
        let mut inner = self.lock();
        inner.ids.insert(arrival.id.clone());
        inner.arrivals.push(Seen { at_ms, arrival, redelivered });
    }

    pub fn has_all(&self, ids: &[String]) -> bool {
        let inner = self.lock();
        ids.iter().all(|id| inner.ids.contains(id))
    }

    pub fn missing(&self, ids: &[String]) -> Vec<String> {
        let inner = self.lock();
        ids.iter().filter(|id| !inner.ids.contains(*id)).cloned().collect()
    }

    /// Arrivals, and of them those after a time.
    pub fn arrivals_since(&self, from_ms: u64) -> usize {
        self.lock().arrivals.iter().rev().take_while(|seen| seen.at_ms >= from_ms).count()
    }

    pub fn arrivals(&self) -> usize {
        self.lock().arrivals.len()
    }

    /// Everything so far.
    pub fn copy(&self) -> (Vec<Entry>, HashSet<String>, Vec<Seen>) {
        let inner = self.lock();
        (inner.journal.entries(), inner.volatile.clone(), inner.arrivals.clone())
    }

    /// A new round begins: what was judged is forgotten.
    pub fn clear(&self) {
        *self.lock() = Inner::default();
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
