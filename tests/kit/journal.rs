//! What the writers did, written down by them: the truth that the ledger compares arrivals with.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sha2::{Digest, Sha256};

/// How a transaction ended, as far as its writer knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Committed,
    RolledBack,
    /// The connection was lost in the commit: the row may exist or not, both are right.
    Unknown,
}

/// The content of a message that must arrive unchanged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Content {
    pub key: Option<String>,
    /// SHA-256 of the body; `None` for a tombstone.
    pub body_hash: Option<[u8; 32]>,
    /// Headers in a form that the test chose for both sides.
    pub headers: BTreeMap<String, String>,
}

/// SHA-256, for [`Content::body_hash`].
#[must_use]
pub fn hash(body: &[u8]) -> [u8; 32] {
    Sha256::digest(body).into()
}

/// One row that a writer tried to insert.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub id: String,
    pub content: Content,
    /// Its place among the rows of its key, growing in the order of commits; gaps are allowed.
    pub number: u64,
    pub outcome: Outcome,
}

/// Shared by all writers of a test.
#[derive(Clone, Default)]
pub struct Journal {
    inner: Arc<Mutex<Inner>>,
}

#[derive(Default)]
struct Inner {
    entries: Vec<Entry>,
    numbers: HashMap<String, u64>,
}

impl Journal {
    /// The next number of a key. Take it while holding whatever serialises the key's writers,
    /// else numbers do not grow in the order of commits.
    #[must_use]
    pub fn next_number(&self, key: Option<&str>) -> u64 {
        let mut inner = self.lock();
        let number = inner.numbers.entry(key.unwrap_or_default().to_owned()).or_default();
        *number += 1;
        *number
    }

    /// Adds what a transaction did, once its outcome is known to be known or unknown.
    pub fn record(&self, entry: Entry) {
        self.lock().entries.push(entry);
    }

    /// A copy of all entries.
    #[must_use]
    pub fn entries(&self) -> Vec<Entry> {
        self.lock().entries.clone()
    }

    /// How many rows ended so.
    #[must_use]
    pub fn count(&self, outcome: Outcome) -> usize {
        self.lock().entries.iter().filter(|entry| entry.outcome == outcome).count()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
