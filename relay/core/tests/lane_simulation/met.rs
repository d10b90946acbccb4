//! What the simulation met: proof that the faults it promises do happen, and that interesting states are reached.

use std::collections::BTreeMap;

/// Each of these must have been met at least once over all seeds.
pub const EXPECTED: [&str; 41] = [
    "row committed late",
    "row committed asynchronously",
    "transaction rolled back",
    "number given out twice",
    "relay crashed",
    "session lost",
    "session lost with a claim under way",
    "session lost with a hold under way",
    "session lost with a mark under way",
    "write ran after its session",
    "write was lost with its session",
    "stale mark",
    "stale hold",
    "lease run out",
    "lane taken over",
    "lane taken again, rows kept",
    "kept row was gone",
    "database crashed",
    "database crashed with an unflushed row",
    "relay's entry was gone",
    "broker away",
    "address missing",
    "link lost with rows under way",
    "late arrival",
    "message arrived twice",
    "answer: confirmed",
    "answer: not sent",
    "answer: unknown",
    "answer: address away",
    "answer: busy",
    "answer: impossible",
    "answer: failed",
    "answer: stale",
    "row waiting",
    "row behind",
    "row parked",
    "row probed",
    "low moved",
    "operator retried",
    "operator discarded",
    "rows pruned",
];

#[derive(Default)]
pub struct Met(pub BTreeMap<&'static str, u64>);

impl Met {
    pub fn note(&mut self, what: &'static str) {
        *self.0.entry(what).or_default() += 1;
    }

    pub fn add(&mut self, other: Self) {
        for (what, times) in other.0 {
            *self.0.entry(what).or_default() += times;
        }
    }
}
