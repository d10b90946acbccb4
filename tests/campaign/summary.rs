//! What a campaign adds up to.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use outbox_tests::verdict::Verdict;

use crate::faults::Played;
use crate::options::Mode;
use crate::schedule::Fault;

/// Counts over all rounds.
pub struct Summary {
    mode: Mode,
    batches: usize,
    kinds: BTreeMap<&'static str, usize>,
    crash_points: BTreeMap<String, usize>,
    committed: usize,
    delivered: usize,
    duplicates: usize,
    unknown: usize,
    undone: usize,
    slowest: Duration,
}

impl Summary {
    pub fn new(mode: Mode) -> Self {
        Self {
            mode,
            batches: 0,
            kinds: BTreeMap::new(),
            crash_points: BTreeMap::new(),
            committed: 0,
            delivered: 0,
            duplicates: 0,
            unknown: 0,
            undone: 0,
            slowest: Duration::ZERO,
        }
    }

    pub fn faults(&self) -> usize {
        self.kinds.values().sum()
    }

    pub fn played(&mut self, batch: &[Fault], played: &Played, took: Duration) {
        self.batches += 1;
        self.slowest = self.slowest.max(took);
        for fault in batch {
            *self.kinds.entry(fault.kind.name()).or_default() += 1;
        }
        for point in &played.crashed_at {
            let name = point.split(':').next().unwrap_or(point);
            *self.crash_points.entry(name.to_owned()).or_default() += 1;
        }
    }

    pub fn judged(&mut self, verdict: &Verdict) {
        self.committed += verdict.committed;
        self.delivered += verdict.delivered;
        self.duplicates += verdict.duplicates;
        self.unknown += verdict.unknown;
        self.undone += verdict.undone;
    }

    /// The numbers in one line.
    pub fn line(&self) -> String {
        format!(
            "mode {}, {} faults in {} batches, {} committed, {} delivered, {} redelivered, {} of unknown outcome, \
             {} undone by crashes, slowest settling {} ms",
            self.mode.name(),
            self.faults(),
            self.batches,
            self.committed,
            self.delivered,
            self.duplicates,
            self.unknown,
            self.undone,
            self.slowest.as_millis()
        )
    }

    /// Faults by kind, and crash points at which a relay died.
    pub fn table(&self) -> String {
        let mut table = String::new();
        for (kind, count) in &self.kinds {
            let _ = writeln!(table, "  {kind:<20} {count:>6}");
        }
        for (point, count) in &self.crash_points {
            let _ = writeln!(table, "  died at {point:<17} {count:>6}");
        }
        table
    }
}
