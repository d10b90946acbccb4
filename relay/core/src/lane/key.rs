//! The unconfirmed rows of one ordering key in memory: which of them may go next.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::address::Address;
use crate::publisher::{KeyOrder, Run};

#[derive(Clone, Debug, Default)]
pub(super) struct Key {
    /// Unconfirmed numbers, ascending.
    seqs: VecDeque<i64>,
    in_flight: usize,
    /// The highest number in flight, and the address all of those in flight went to.
    last: i64,
    address: Option<Arc<Address>>,
    /// Shared by those in flight, where more than one may be.
    run: Option<Run>,
    /// A row of it failed: nothing more is published until the hold commits.
    blocked: bool,
}

impl Key {
    pub(super) fn insert(&mut self, seq: i64) {
        let at = match self.seqs.back() {
            Some(last) if *last > seq => self.seqs.partition_point(|other| *other < seq),
            _ => self.seqs.len(),
        };
        self.seqs.insert(at, seq);
    }

    pub(super) fn remove(&mut self, seq: i64) {
        if self.seqs.front() == Some(&seq) {
            self.seqs.pop_front();
        } else {
            self.seqs.retain(|other| *other != seq);
        }
    }

    /// Strict: nothing of the key is in flight and the row is its first. Pipelined: every earlier row of the
    /// key is in flight to the same address, and no later one.
    pub(super) fn may_go(&self, seq: i64, address: &Address, order: impl FnOnce() -> KeyOrder) -> bool {
        if self.blocked || self.seqs.get(self.in_flight) != Some(&seq) {
            return false;
        }
        self.in_flight == 0
            || (self.run.is_some()
                && self.last < seq
                && self.address.as_deref() == Some(address)
                && order() == KeyOrder::Pipelined)
    }

    /// Notes a publication; the run it belongs to.
    pub(super) fn sent(&mut self, seq: i64, address: &Arc<Address>, order: KeyOrder) -> Option<Run> {
        if self.in_flight == 0 {
            self.address = Some(address.clone());
            self.last = seq;
            self.run = (order == KeyOrder::Pipelined).then(Run::default);
        }
        self.last = self.last.max(seq);
        self.in_flight += 1;
        self.run.clone()
    }

    pub(super) const fn answered(&mut self) {
        self.in_flight -= 1;
    }

    /// The only row that may be next.
    pub(super) fn next(&self) -> Option<i64> {
        if self.blocked { None } else { self.seqs.get(self.in_flight).copied() }
    }

    /// True the first time.
    pub(super) const fn block(&mut self) -> bool {
        !std::mem::replace(&mut self.blocked, true)
    }

    pub(super) const fn unblock(&mut self) {
        self.blocked = false;
    }

    /// Blocked, and every answer is in: its rows may be held.
    pub(super) const fn is_holdable(&self) -> bool {
        self.blocked && self.in_flight == 0
    }

    #[cfg(test)]
    pub(super) const fn in_flight(&self) -> usize {
        self.in_flight
    }

    #[cfg(test)]
    pub(super) const fn is_blocked(&self) -> bool {
        self.blocked
    }

    pub(super) fn is_done(&self) -> bool {
        self.seqs.is_empty() && !self.blocked
    }

    pub(super) fn seqs(&self) -> impl Iterator<Item = i64> + '_ {
        self.seqs.iter().copied()
    }
}
