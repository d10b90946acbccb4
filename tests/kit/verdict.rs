//! The judgement over a campaign's round: the writers' journal, the final table and what consumers received, in
//! the order in which it arrived. It shares no code with the relay.
//!
//! Beyond the ledger it resolves commits of unknown outcome from the final table, bounds duplicates fault by fault
//! (promise 5), and finds rows that are marked sent and never arrived, and rows that nobody sent. It deliberately
//! does not count what a broker delivers again by its own word (`redelivered`) as a duplicate of the relay.

use std::collections::{HashMap, HashSet};
use std::fmt;

use crate::journal::{Entry, Outcome};
use crate::ledger::{self, Arrival, Report};

/// One arrival as a consumer saw it.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Milliseconds since the campaign began.
    pub at_ms: u64,
    pub arrival: Arrival,
    /// The broker says that it handed the message out before.
    pub redelivered: bool,
}

/// A row of the final table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stored {
    pub sent: bool,
}

/// From the begin of one batch of faults to that of the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    pub batch: usize,
    pub from_ms: u64,
    /// How many rows may arrive again by promise 5.
    pub duplicates_max: usize,
}

/// Everything that is known of one round.
#[derive(Clone, Debug, Default)]
pub struct Evidence {
    pub journal: Vec<Entry>,
    /// Ids of rows that were committed with `synchronous_commit = off`: a crash of the database may undo them.
    pub volatile: HashSet<String>,
    pub table: HashMap<String, Stored>,
    pub arrivals: Vec<Seen>,
    /// Ascending.
    pub windows: Vec<Window>,
}

/// The promises, in the order in which a broken one is told first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rule {
    Phantom,
    Altered,
    OutOfOrder,
    SentButAbsent,
    Lost,
    Duplicated,
    Backlog,
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Phantom => "phantom",
            Self::Altered => "altered",
            Self::OutOfOrder => "out of order",
            Self::SentButAbsent => "sent but absent",
            Self::Lost => "lost",
            Self::Duplicated => "duplicated",
            Self::Backlog => "backlog not cleared",
        })
    }
}

/// One broken promise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Breach {
    pub rule: Rule,
    pub detail: String,
}

impl fmt::Display for Breach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.rule, self.detail)
    }
}

/// What was found.
#[derive(Clone, Debug, Default)]
pub struct Verdict {
    pub committed: usize,
    pub delivered: usize,
    /// Repeated arrivals that the relay answers for.
    pub duplicates: usize,
    /// Commits whose writer never learned the outcome, and commits that a crash undid.
    pub unknown: usize,
    pub undone: usize,
    pub breaches: Vec<Breach>,
}

impl Verdict {
    /// The one to tell first.
    #[must_use]
    pub fn first_broken(&self) -> Option<&Breach> {
        self.breaches.iter().min_by_key(|breach| breach.rule)
    }
}

/// Judges a finished round: all writers have ended and everything that was in flight has landed.
#[must_use]
pub fn judge(evidence: &Evidence) -> Verdict {
    let mut verdict = Verdict::default();
    let journal = resolve(evidence, &mut verdict);
    let arrivals: Vec<Arrival> = evidence.arrivals.iter().map(|seen| seen.arrival.clone()).collect();
    let report = ledger::check(&journal, &arrivals);
    verdict.committed = report.committed;
    verdict.delivered = report.delivered;
    of_ledger(&report, &mut verdict.breaches);
    judge_duplicates(evidence, &mut verdict);
    let arrived: HashSet<&str> = arrivals.iter().map(|arrival| arrival.id.as_str()).collect();
    for (id, stored) in &evidence.table {
        match (stored.sent, arrived.contains(id.as_str())) {
            (true, false) => verdict.push(Rule::SentButAbsent, id.clone()),
            (false, _) => verdict.push(Rule::Backlog, format!("{id} is not marked sent")),
            (true, true) => {}
        }
    }
    verdict
}

/// Judges while writers are at work: only what no later event can excuse. Rows that no writer has written down yet
/// and commits of unknown outcome are left to the end of the round.
#[must_use]
pub fn judge_so_far(journal: &[Entry], arrivals: &[Seen]) -> Vec<Breach> {
    let known: HashSet<&str> = journal.iter().map(|entry| entry.id.as_str()).collect();
    let arrivals: Vec<Arrival> = arrivals
        .iter()
        .filter(|seen| known.contains(seen.arrival.id.as_str()))
        .map(|seen| seen.arrival.clone())
        .collect();
    let report = Report { lost: Vec::new(), ..ledger::check(journal, &arrivals) };
    let mut breaches = Vec::new();
    of_ledger(&report, &mut breaches);
    breaches
}

impl Verdict {
    fn push(&mut self, rule: Rule, detail: String) {
        self.breaches.push(Breach { rule, detail });
    }
}

/// The journal with every outcome decided by the final table.
fn resolve(evidence: &Evidence, verdict: &mut Verdict) -> Vec<Entry> {
    let mut journal = evidence.journal.clone();
    for entry in &mut journal {
        let stored = evidence.table.contains_key(&entry.id);
        entry.outcome = match (entry.outcome, stored) {
            (Outcome::Unknown, stored) => {
                verdict.unknown += 1;
                if stored { Outcome::Committed } else { Outcome::RolledBack }
            }
            (Outcome::Committed, false) if evidence.volatile.contains(&entry.id) => {
                verdict.undone += 1;
                Outcome::RolledBack
            }
            (Outcome::Committed, false) => {
                verdict.push(Rule::Lost, format!("{} was committed and is not in the table", entry.id));
                Outcome::Committed
            }
            (Outcome::RolledBack, true) => {
                verdict.push(Rule::Phantom, format!("{} was rolled back and is in the table", entry.id));
                Outcome::RolledBack
            }
            (outcome, _) => outcome,
        };
    }
    journal
}

fn of_ledger(report: &Report, breaches: &mut Vec<Breach>) {
    let mut push = |rule, detail| breaches.push(Breach { rule, detail });
    for id in &report.phantom {
        push(Rule::Phantom, format!("{id} arrived and was never committed"));
    }
    for (id, what) in &report.altered {
        push(Rule::Altered, format!("{id} arrived with another {what}"));
    }
    for (id, later) in &report.out_of_order {
        push(Rule::OutOfOrder, format!("{id} arrived first after {later} of its key"));
    }
    for id in &report.lost {
        push(Rule::Lost, format!("{id} was committed and never arrived"));
    }
}

/// Each repeated arrival is put down to the batch of faults that began last before it.
fn judge_duplicates(evidence: &Evidence, verdict: &mut Verdict) {
    let mut seen: HashSet<&str> = HashSet::new();
    let mut repeated: HashMap<usize, usize> = HashMap::new();
    for arrival in &evidence.arrivals {
        if seen.insert(&arrival.arrival.id) || arrival.redelivered {
            continue;
        }
        verdict.duplicates += 1;
        match evidence.windows.partition_point(|window| window.from_ms <= arrival.at_ms).checked_sub(1) {
            Some(index) => *repeated.entry(index).or_default() += 1,
            None => verdict.push(Rule::Duplicated, format!("{} arrived again before any fault", arrival.arrival.id)),
        }
    }
    for (index, window) in evidence.windows.iter().enumerate() {
        let found = repeated.get(&index).copied().unwrap_or(0);
        if found > window.duplicates_max {
            let (batch, most) = (window.batch, window.duplicates_max);
            verdict.push(Rule::Duplicated, format!("{found} rows again around batch {batch}, at most {most} may be"));
        }
    }
}

#[cfg(test)]
mod tests;
