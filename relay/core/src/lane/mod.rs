//! One lane's memory as a pure state machine: which rows are here, which may go, what to mark, what to hold,
//! and how far `low` may move. No clock, no database, no broker; `lane_worker` drives it.
//!
//! The rules are those of the design's "Rules of the waiting room"; methods name the one they keep.

mod hold;
mod key;
mod page;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

pub use hold::HoldOrder;
pub use page::PageFacts;

use crate::address::Address;
use crate::clock::Millis;
use crate::decide::{History, Verdicted};
use crate::lane::key::Key;
use crate::mutant::mutant;
use crate::publisher::{KeyOrder, Run};
use crate::reason::Reason;
use crate::row::{Row, RowId};
use crate::source::{Claimed, Content, Horizon, Origin};

/// Where a row in memory stands.
#[derive(Clone, Debug, PartialEq)]
enum State {
    Queued,
    /// With the sink; `serial` tells its publications apart.
    InFlight {
        serial: u64,
    },
    Confirmed,
    /// Blocks its key until its hold commits.
    Failed(Verdicted),
}

#[derive(Clone, Debug)]
struct Entry {
    id: RowId,
    origin: Origin,
    /// `None` when the row came without content (blocked or bad).
    row: Option<Arc<Row>>,
    address: Option<Arc<Address>>,
    ordering_key: Option<Arc<str>>,
    history: History,
    state: State,
    /// An earlier publication of it had no known outcome: it may stand at the broker.
    unknown: bool,
    published_at: Millis,
    weight_bytes: usize,
}

impl Entry {
    const fn may_stand_at_broker(&self) -> bool {
        self.unknown || matches!(self.state, State::InFlight { .. } | State::Confirmed)
    }
}

/// A row with what mapping made of it.
#[derive(Debug)]
pub struct Mapped {
    pub claimed: Claimed,
    /// `Err` parks the row (no route, a bad column) or leaves it behind a waiting row.
    pub target: Result<Arc<Address>, Verdicted>,
}

/// A row to hand to a sink.
#[derive(Debug)]
pub struct Publication {
    pub row: Arc<Row>,
    pub address: Arc<Address>,
    pub serial: u64,
    /// Set where rows of its key may follow it before it is answered.
    pub run: Option<Run>,
}

/// What a caller learns of a row that a sink answered for.
#[derive(Debug)]
pub struct Answered {
    pub row: Arc<Row>,
    pub address: Arc<Address>,
    pub published_at: Millis,
    pub history: History,
}

/// What an address says to a row that is next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    Open,
    /// The row stays in memory (the only broker is away).
    Wait,
    /// The row goes to the waiting room; a probe passes when an address's breaker is meant.
    Hold {
        reason: Reason,
        probe_passes: bool,
    },
}

/// The memory of one lane.
#[derive(Clone, Debug, Default)]
pub struct Lane {
    /// `on_park = "block_key"`.
    block_key: bool,
    entries: BTreeMap<i64, Entry>,
    keys: HashMap<Arc<str>, Key>,
    /// Rows that may be next, in order of becoming so; checked again when taken.
    ready: VecDeque<i64>,
    confirmed: Vec<i64>,
    /// Every number up to here is sent, held or in memory, or can never appear.
    low: i64,
    queued: usize,
    published: usize,
    weight_bytes: usize,
    serial: u64,
    /// Keys (or single rows) whose failures wait for their hold.
    blocked_keys: Vec<Arc<str>>,
    failed_single: Vec<i64>,
}

impl Lane {
    /// An empty lane. `block_key`: a parked row stops its key.
    #[must_use]
    pub fn new(block_key: bool) -> Self {
        Self { block_key, ..Self::default() }
    }

    /// Numbers up to here are sent, held or in memory, or can never appear: fresh rows are looked for above it.
    #[must_use]
    pub const fn low(&self) -> i64 {
        self.low
    }

    /// Numbers that a claim must leave out.
    #[must_use]
    pub fn seqs(&self) -> Vec<i64> {
        self.entries.keys().copied().collect()
    }

    /// Rows that were claimed and not handed over yet.
    #[must_use]
    pub const fn queued(&self) -> usize {
        self.queued
    }

    /// Rows that may stand at the broker and are not marked or held: each is a possible duplicate.
    #[must_use]
    pub const fn published(&self) -> usize {
        self.published
    }

    /// Bytes kept in memory.
    #[must_use]
    pub const fn weight_bytes(&self) -> usize {
        self.weight_bytes
    }

    /// Rows in memory.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether nothing is in memory.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether a row may be next; `next_publication` decides.
    #[must_use]
    pub fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Takes in one page. `horizon` was taken before the claim was asked for: once the snapshot's `xmin` lies
    /// above its transaction, no number up to it can still appear.
    pub fn on_page(&mut self, rows: Vec<Mapped>, page: &PageFacts, horizon: Option<Horizon>) {
        for mapped in rows {
            self.insert(mapped, page);
        }
        self.mutated_low(page);
        if let Some(horizon) = horizon
            && (page.snapshot_xmin > horizon.xid || mutant("no_own_xid"))
        {
            // A page that was cut off is whole up to its last row, and so is what is known.
            self.low = self.low.max(horizon.last_seq.min(page.whole_to));
        }
    }

    fn mutated_low(&mut self, page: &PageFacts) {
        if mutant("cursor") || mutant("visible_maximum") && page.whole_to == i64::MAX {
            let seen = self.entries.last_key_value().map_or(0, |(seq, _)| *seq);
            self.low = self.low.max(seen);
        }
    }

    fn insert(&mut self, mapped: Mapped, page: &PageFacts) {
        let Mapped { claimed, target } = mapped;
        let seq = claimed.id.seq;
        if self.entries.contains_key(&seq) {
            return;
        }
        let row = match claimed.content {
            Content::Row(row) => Some(row),
            Content::Blocked | Content::Bad { .. } => None,
        };
        let history = row.as_ref().map_or_else(History::default, |row| page.history(row));
        let ordering_key = claimed.ordering_key.map(|key| self.intern(key));
        let (state, address) = match target {
            Ok(address) => (State::Queued, Some(address)),
            Err(verdict) => (State::Failed(verdict), None),
        };
        let failed = matches!(state, State::Failed(_));
        let weight_bytes = row.as_ref().map_or(128, |row| row.weight_bytes());
        self.weight_bytes += weight_bytes;
        if let Some(name) = &ordering_key {
            self.keys.entry(name.clone()).or_default().insert(seq);
        }
        let entry = Entry {
            id: claimed.id,
            origin: claimed.origin,
            row,
            address,
            ordering_key: ordering_key.clone(),
            history,
            state,
            unknown: false,
            published_at: Millis(0),
            weight_bytes,
        };
        self.entries.insert(seq, entry);
        if failed {
            self.block(seq, ordering_key);
        } else {
            self.queued += 1;
            self.ready.push_back(seq);
        }
    }

    fn intern(&self, key: Arc<str>) -> Arc<str> {
        self.keys.get_key_value(&key).map_or(key, |(known, _)| known.clone())
    }

    /// The next row that may go, if its address lets it.
    pub fn next_publication(
        &mut self,
        order: impl Fn(&Address) -> KeyOrder,
        gate: impl Fn(&Address) -> Gate,
        now: Millis,
    ) -> Option<Publication> {
        for _ in 0..self.ready.len() {
            let seq = self.ready.pop_front()?;
            let Some(address) = self.publishable(seq, &order) else { continue };
            let probe = self.entries.get(&seq).is_some_and(|entry| entry.origin == Origin::Held { probe: true });
            match gate(&address) {
                Gate::Open => return self.publish(seq, address, &order, now),
                Gate::Hold { probe_passes: true, .. } if probe => return self.publish(seq, address, &order, now),
                Gate::Wait => self.ready.push_back(seq),
                Gate::Hold { reason, .. } => self.fail(seq, Verdicted::waiting(reason)),
            }
        }
        None
    }

    /// Whether a row is the one of its key that may go now (design, "Order").
    fn publishable(&self, seq: i64, order: impl Fn(&Address) -> KeyOrder) -> Option<Arc<Address>> {
        let entry = self.entries.get(&seq).filter(|entry| entry.state == State::Queued)?;
        let address = entry.address.as_ref()?;
        if let Some(name) = &entry.ordering_key {
            let key = self.keys.get(name)?;
            if !key.may_go(seq, address, || order(address)) {
                return None;
            }
        }
        Some(address.clone())
    }

    fn publish(
        &mut self,
        seq: i64,
        address: Arc<Address>,
        order: impl Fn(&Address) -> KeyOrder,
        now: Millis,
    ) -> Option<Publication> {
        self.serial += 1;
        let serial = self.serial;
        let entry = self.entries.get_mut(&seq)?;
        let row = entry.row.clone()?;
        entry.state = State::InFlight { serial };
        entry.published_at = now;
        self.published += usize::from(!entry.unknown);
        self.queued -= 1;
        let mut run = None;
        if let Some(name) = entry.ordering_key.clone() {
            if let Some(key) = self.keys.get_mut(&name) {
                run = key.sent(seq, &address, order(&address));
            }
            self.ready_next(&name);
        }
        Some(Publication { row, address, serial, run })
    }

    /// The row of a key that may be next joins the ready ones.
    fn ready_next(&mut self, name: &Arc<str>) {
        if let Some(seq) = self.keys.get(name).and_then(Key::next)
            && self.entries.get(&seq).is_some_and(|entry| entry.state == State::Queued)
        {
            self.ready.push_back(seq);
        }
    }

    /// The row that an answer is for, unless the answer is stale. It is no longer in flight and stays in
    /// memory; exactly one of `confirm`, `again`, `fail` and `forget` must follow.
    pub fn answered(&mut self, seq: i64, serial: u64) -> Option<Answered> {
        let entry = self.entries.get_mut(&seq).filter(|entry| entry.state == State::InFlight { serial })?;
        entry.state = State::Queued;
        self.queued += 1;
        self.published -= usize::from(!entry.unknown);
        if let Some(key) = entry.ordering_key.as_ref().and_then(|name| self.keys.get_mut(name)) {
            key.answered();
        }
        Some(Answered {
            row: entry.row.clone()?,
            address: entry.address.clone()?,
            published_at: entry.published_at,
            history: entry.history,
        })
    }

    /// The broker has it: it waits for its mark and no longer holds its key back.
    pub fn confirm(&mut self, seq: i64) {
        let Some(entry) = self.entries.get_mut(&seq) else { return };
        entry.state = State::Confirmed;
        self.published += usize::from(!entry.unknown);
        self.queued -= 1;
        self.confirmed.push(seq);
        if let Some(name) = entry.ordering_key.clone() {
            self.leave_key(seq, &name);
            self.ready_next(&name);
        }
    }

    /// It goes again with the same id. `unknown`: it may have arrived, so it keeps its place among the
    /// possible duplicates.
    pub fn again(&mut self, seq: i64, unknown: bool) {
        let Some(entry) = self.entries.get_mut(&seq) else { return };
        if unknown && !entry.unknown {
            entry.unknown = true;
            self.published += 1;
        }
        // A lower row of its key may have come while it was in flight, and then that one is next.
        match entry.ordering_key.clone() {
            Some(name) => self.ready_next(&name),
            None => self.ready.push_front(seq),
        }
    }

    fn leave_key(&mut self, seq: i64, name: &Arc<str>) {
        let Some(key) = self.keys.get_mut(name) else { return };
        key.remove(seq);
        if key.is_done() {
            self.keys.remove(name);
        }
    }

    /// Rows that were confirmed since the last call.
    pub fn take_marks(&mut self) -> Vec<RowId> {
        let seqs = std::mem::take(&mut self.confirmed);
        seqs.iter().filter_map(|seq| self.entries.get(seq)).map(|entry| entry.id).collect()
    }

    /// The mark of these rows is committed, or they are gone: they leave memory (rule 7).
    pub fn marked(&mut self, rows: &[RowId]) {
        for row in rows {
            self.forget(row.seq);
        }
    }

    /// A row leaves memory.
    pub fn forget(&mut self, seq: i64) {
        let Some(entry) = self.entries.remove(&seq) else { return };
        self.weight_bytes -= entry.weight_bytes;
        self.published -= usize::from(entry.may_stand_at_broker());
        self.queued -= usize::from(entry.state == State::Queued);
        if let Some(name) = &entry.ordering_key
            && entry.state != State::Confirmed
        {
            if let (State::InFlight { .. }, Some(key)) = (&entry.state, self.keys.get_mut(name)) {
                key.answered();
            }
            self.leave_key(seq, name);
            self.ready_next(name);
        }
    }
}
