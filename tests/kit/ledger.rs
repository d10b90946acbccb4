//! The independent checker: compares what the writers' journal says with what a consumer
//! received, in the order in which it arrived. It shares no code with the relay.
//!
//! Judged: lost, phantom, altered, out of order (by first arrivals, per key), duplicated.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;

use anyhow::{Result, bail};

use crate::journal::{Content, Entry, Outcome, hash};

/// One message as a consumer got it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrival {
    pub id: String,
    pub content: Content,
}

impl Arrival {
    /// `body` is `None` for a tombstone.
    #[must_use]
    pub fn new(id: &str, key: Option<&str>, body: Option<&[u8]>, headers: BTreeMap<String, String>) -> Self {
        let content = Content { key: key.map(ToOwned::to_owned), body_hash: body.map(hash), headers };
        Self { id: id.to_owned(), content }
    }
}

/// What was found. Ids are listed in the order in which they were found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    pub committed: usize,
    /// Different ids that arrived.
    pub delivered: usize,
    /// Arrivals beyond the first of an id.
    pub duplicates: usize,
    /// Ids that arrived more than once.
    pub duplicated: Vec<String>,
    /// Committed, never arrived.
    pub lost: Vec<String>,
    /// Arrived, but rolled back or never written by anybody.
    pub phantom: Vec<String>,
    /// Arrived with another key, body or headers than written, with what differed.
    pub altered: Vec<(String, &'static str)>,
    /// Arrived first after a later row of its key, with that row's id.
    pub out_of_order: Vec<(String, String)>,
}

/// Compares. Ids in the journal must be unique.
#[must_use]
pub fn check(journal: &[Entry], arrivals: &[Arrival]) -> Report {
    let mut written: HashMap<&str, &Entry> = HashMap::new();
    for entry in journal {
        let before = written.insert(&entry.id, entry);
        assert!(before.is_none(), "the journal names {} twice", entry.id);
    }
    let mut report = Report::default();
    let mut seen: HashSet<&str> = HashSet::new();
    let mut repeated: HashSet<&str> = HashSet::new();
    let mut newest: HashMap<&str, &Entry> = HashMap::new();
    for arrival in arrivals {
        let first = seen.insert(&arrival.id);
        if !first {
            report.duplicates += 1;
            if repeated.insert(&arrival.id) {
                report.duplicated.push(arrival.id.clone());
            }
        }
        let known = written.get(arrival.id.as_str()).filter(|entry| entry.outcome != Outcome::RolledBack);
        let Some(entry) = known else {
            if first {
                report.phantom.push(arrival.id.clone());
            }
            continue;
        };
        // Duplicates are compared too: every publication carries the same bytes.
        if let Some(difference) = difference(&entry.content, &arrival.content) {
            report.altered.push((arrival.id.clone(), difference));
        }
        if first {
            judge_order(entry, &mut newest, &mut report);
        }
    }
    report.delivered = seen.len();
    for entry in journal.iter().filter(|entry| entry.outcome == Outcome::Committed) {
        report.committed += 1;
        if !seen.contains(entry.id.as_str()) {
            report.lost.push(entry.id.clone());
        }
    }
    report
}

/// Rows without a key have no order among themselves.
fn judge_order<'a>(entry: &'a Entry, newest: &mut HashMap<&'a str, &'a Entry>, report: &mut Report) {
    let Some(key) = entry.content.key.as_deref() else { return };
    match newest.get(key) {
        Some(later) if later.number > entry.number => {
            report.out_of_order.push((entry.id.clone(), later.id.clone()));
        }
        _ => {
            newest.insert(key, entry);
        }
    }
}

fn difference(written: &Content, arrived: &Content) -> Option<&'static str> {
    if written.key != arrived.key {
        Some("key")
    } else if written.body_hash != arrived.body_hash {
        Some("body")
    } else if written.headers != arrived.headers {
        Some("headers")
    } else {
        None
    }
}

impl Report {
    /// Fails unless every promise was kept and at most `duplicates_max` arrivals were repeated.
    ///
    /// # Errors
    /// With the whole report.
    pub fn require(&self, duplicates_max: usize) -> Result<()> {
        let whole = self.lost.is_empty()
            && self.phantom.is_empty()
            && self.altered.is_empty()
            && self.out_of_order.is_empty()
            && self.duplicates <= duplicates_max;
        if whole {
            return Ok(());
        }
        bail!("a promise was broken (at most {duplicates_max} duplicates were allowed): {self}");
    }
}

/// A long list would bury the counts.
const LISTED_MAX: usize = 10;

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} committed, {} delivered, {} lost, {} phantom, {} altered, {} out of order, {} duplicates",
            self.committed,
            self.delivered,
            self.lost.len(),
            self.phantom.len(),
            self.altered.len(),
            self.out_of_order.len(),
            self.duplicates
        )?;
        list(f, "lost", &self.lost)?;
        list(f, "phantom", &self.phantom)?;
        list(f, "altered", &self.altered)?;
        list(f, "out of order", &self.out_of_order)?;
        list(f, "duplicated", &self.duplicated)
    }
}

fn list<T: fmt::Debug>(f: &mut fmt::Formatter<'_>, name: &str, found: &[T]) -> fmt::Result {
    if found.is_empty() {
        return Ok(());
    }
    let more = found.len().saturating_sub(LISTED_MAX);
    write!(f, "\n  {name}: {:?}", &found[..found.len() - more])?;
    if more > 0 {
        write!(f, " and {more} more")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
