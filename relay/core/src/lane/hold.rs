//! The way into the waiting room, and what is kept when the database session is lost.

use std::collections::HashMap;
use std::sync::Arc;

use crate::address::Address;
use crate::decide::Verdicted;
use crate::lane::{Entry, Lane, State};
use crate::mutant::mutant;
use crate::reason::Reason;
use crate::row::RowId;
use crate::source::{HoldEntry, HoldState, Origin};

/// A hold that must be committed before the lane claims again (rule 4). It is one statement.
#[derive(Clone, Debug)]
pub struct HoldOrder {
    /// Rows that enter the waiting room or change there.
    pub entries: Vec<HoldEntry>,
    /// Every row that leaves memory when the hold is committed.
    leaving: Vec<i64>,
    keys: Vec<Arc<str>>,
}

impl Lane {
    /// The row goes to the waiting room, and its key waits with it.
    pub fn fail(&mut self, seq: i64, mut verdict: Verdicted) {
        let Some(entry) = self.entries.get_mut(&seq) else { return };
        if entry.state == State::Queued {
            self.queued -= 1;
        }
        verdict.attempts = verdict.attempts.max(entry.history.attempts);
        entry.state = State::Failed(verdict);
        let name = entry.ordering_key.clone();
        self.block(seq, name);
    }

    /// Rule 4: a failed row stays in memory and blocks its key until its hold commits.
    pub(super) fn block(&mut self, seq: i64, ordering_key: Option<Arc<str>>) {
        if mutant("free_key") {
            if let Some(name) = ordering_key {
                self.leave_key(seq, &name);
                self.ready_next(&name);
            }
            self.failed_single.push(seq);
            return;
        }
        match ordering_key {
            None => self.failed_single.push(seq),
            Some(name) => {
                if self.keys.entry(name.clone()).or_default().block() {
                    self.blocked_keys.push(name);
                }
            }
        }
    }

    /// Breaker names of the addresses to which a row here is the probe.
    #[must_use]
    pub fn probe_gates(&self) -> Vec<String> {
        let probes = self.entries.values().filter(|entry| entry.origin == Origin::Held { probe: true });
        probes.filter_map(|entry| entry.address.as_deref()).flat_map(Address::gates).collect()
    }

    /// Whether a failure waits for its hold; nothing is claimed while one does.
    #[must_use]
    pub fn must_hold(&self) -> bool {
        !self.failed_single.is_empty() || !self.blocked_keys.is_empty()
    }

    /// The rows to hold now: failed ones, and with each the rows of its key behind it. Keys with a row still
    /// unanswered wait for the answer.
    pub fn take_hold(&mut self) -> Option<HoldOrder> {
        let mut order = HoldOrder { entries: Vec::new(), leaving: Vec::new(), keys: Vec::new() };
        for seq in std::mem::take(&mut self.failed_single) {
            if let Some(entry) = self.entries.get(&seq)
                && let State::Failed(verdict) = &entry.state
            {
                order.entries.push(hold_entry(entry, verdict));
                order.leaving.push(seq);
            }
        }
        let (now, later) = std::mem::take(&mut self.blocked_keys)
            .into_iter()
            .partition(|name| self.keys.get(name).is_none_or(super::Key::is_holdable));
        self.blocked_keys = later;
        order.keys = now;
        for name in order.keys.clone() {
            self.hold_key(&name, &mut order);
        }
        (!order.leaving.is_empty() || !order.keys.is_empty()).then_some(order)
    }

    /// Rule 5: behind a waiting row (or a parked one under `block_key`) the later rows of the key are held too;
    /// behind a row that is parked under `continue` they leave memory and are claimed anew after the park.
    fn hold_key(&self, name: &Arc<str>, order: &mut HoldOrder) {
        let Some(key) = self.keys.get(name) else { return };
        let mut behind = false;
        for seq in key.seqs() {
            let Some(entry) = self.entries.get(&seq) else { continue };
            order.leaving.push(seq);
            match &entry.state {
                State::Failed(verdict) => {
                    order.entries.push(hold_entry(entry, verdict));
                    behind |= verdict.state == HoldState::Waiting || self.block_key;
                }
                State::Queued if behind && !matches!(entry.origin, Origin::Held { .. }) => {
                    let mut verdict = Verdicted::waiting(Reason::Behind);
                    verdict.attempts = entry.history.attempts;
                    order.entries.push(hold_entry(entry, &verdict));
                }
                State::Queued | State::InFlight { .. } | State::Confirmed => {}
            }
        }
    }

    /// What a log line may say of a row in memory: its message id and its destination.
    #[must_use]
    pub fn names(&self, seq: i64) -> (Option<&str>, Option<&str>) {
        let entry = self.entries.get(&seq);
        let row = entry.and_then(|entry| entry.row.as_deref());
        let address = entry.and_then(|entry| entry.address.as_deref());
        (row.map(|row| row.idempotency_key.as_str()), address.map(|address| address.destination.as_str()))
    }

    /// The hold is committed. Rows that were dropped without being held will be claimed anew, so `low` goes back
    /// before them.
    pub fn held(&mut self, order: &HoldOrder) {
        for seq in &order.leaving {
            let fresh = self.entries.get(seq).is_some_and(|entry| entry.origin == Origin::Fresh);
            if fresh && !order.entries.iter().any(|held| held.id.seq == *seq) {
                self.low = self.low.min(*seq - 1);
            }
            self.forget(*seq);
        }
        for name in &order.keys {
            if let Some(key) = self.keys.get_mut(name) {
                key.unblock();
                if key.is_done() {
                    self.keys.remove(name);
                }
            }
        }
    }

    /// Rule 7: positions and unpublished rows die with the session; what was published or confirmed is kept,
    /// to be read again before it is marked. Of a key with rows in flight the rows before those are kept too: a row in
    /// flight may come back, and would go again before a claim has brought what belongs before it.
    pub fn session_lost(&mut self) {
        let dying = self.leaving();
        self.blocked_keys.clear();
        self.failed_single.clear();
        self.ready.clear();
        for key in self.keys.values_mut() {
            key.unblock();
        }
        for seq in dying {
            self.forget(seq);
        }
        for entry in self.entries.values_mut().filter(|entry| matches!(entry.state, State::Failed(_))) {
            entry.state = State::Queued;
            self.queued += 1;
        }
        self.keys.retain(|_, key| !key.is_done());
        if !mutant("keep_positions") {
            self.low = 0;
        }
        self.confirmed =
            self.entries.iter().filter(|(_, entry)| entry.state == State::Confirmed).map(|(seq, _)| *seq).collect();
    }

    /// Rows that are neither with a sink nor confirmed, but for those that stand before a row in flight of their key. One
    /// without an address could not go again, and leaves in any case.
    fn leaving(&self) -> Vec<i64> {
        let in_flight = self.entries.iter().filter(|(_, entry)| matches!(entry.state, State::InFlight { .. }));
        let last: HashMap<&Arc<str>, i64> =
            in_flight.filter_map(|(seq, entry)| Some((entry.ordering_key.as_ref()?, *seq))).collect();
        let leaves = |seq: i64, entry: &Entry| {
            let last = entry.ordering_key.as_ref().and_then(|name| last.get(name));
            let stays = entry.address.is_some() && last.is_some_and(|last| seq < *last);
            matches!(entry.state, State::Queued | State::Failed(_)) && !stays
        };
        self.entries.iter().filter(|(seq, entry)| leaves(**seq, entry)).map(|(seq, _)| *seq).collect()
    }

    /// Nothing more is published: rows that are not in flight leave memory, whoever owns the lane next claims them. Rows
    /// before one in flight of their key stay as long as that one may still come back to this lane.
    pub fn stop_publishing(&mut self) {
        self.ready.clear();
        for seq in self.leaving() {
            if self.entries.get(&seq).is_some_and(|entry| entry.state == State::Queued) {
                self.forget(seq);
            }
        }
    }

    /// Rows kept over a lost session, with what they must be compared by.
    #[must_use]
    pub fn kept(&self) -> Vec<(RowId, String)> {
        let key = |entry: &Entry| entry.row.as_ref().map(|row| (entry.id, row.idempotency_key.clone()));
        self.entries.values().filter_map(key).collect()
    }

    /// Of the kept rows only these are still there and unsent; the others are forgotten.
    pub fn retain(&mut self, still: &[RowId]) {
        let still: std::collections::HashSet<RowId> = still.iter().copied().collect();
        let gone: Vec<i64> =
            self.entries.iter().filter(|(_, entry)| !still.contains(&entry.id)).map(|(seq, _)| *seq).collect();
        for seq in gone {
            self.forget(seq);
        }
        self.confirmed.retain(|seq| self.entries.contains_key(seq));
    }

    /// Everything is forgotten: somebody else owned the lane.
    pub fn clear(&mut self) {
        let serial = self.serial;
        *self = Self::new(self.block_key);
        self.serial = serial;
    }
}

fn hold_entry(entry: &Entry, verdict: &Verdicted) -> HoldEntry {
    HoldEntry {
        id: entry.id,
        state: verdict.state,
        reason: verdict.reason,
        detail: verdict.detail.clone(),
        attempts: verdict.attempts,
        delay_ms: verdict.delay_ms,
        gates: entry.address.as_deref().map(Address::gates).unwrap_or_default(),
    }
}
