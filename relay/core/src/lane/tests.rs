//! The rules of the pure lane, one test each, and a brute-force recount of its books after every step.

mod hold;
mod order;
mod positions;
mod random;
mod session;

use std::sync::Arc;

use super::*;
use crate::address::Sink;
use crate::headers::Headers;
use crate::row::{Timestamp, TxId};
use crate::source::HoldState;

pub(super) const NOW: Millis = Millis(1);

pub(super) fn id(seq: i64) -> RowId {
    RowId { seq, tx: TxId(seq.unsigned_abs() + 1_000) }
}

pub(super) fn address(name: &str) -> Arc<Address> {
    Arc::new(Address { sink: Sink::Rabbitmq, destination: "events".to_owned(), routing_key: name.to_owned() })
}

fn row(seq: i64, key: Option<&str>, attempts: u32) -> Arc<Row> {
    Arc::new(Row {
        id: id(seq),
        idempotency_key: format!("work:{seq}"),
        topic: "t".into(),
        ordering_key: key.map(Arc::from),
        payload: None,
        content_type: "text/plain".into(),
        headers: Headers::default(),
        created_at: Timestamp(0),
        available_at: None,
        attempts,
        held_since: None,
    })
}

pub(super) fn mapped(seq: i64, key: &str, origin: Origin, to: &str) -> Mapped {
    let key = (!key.is_empty()).then_some(key);
    let content = Content::Row(row(seq, key, 0));
    let claimed = Claimed { id: id(seq), origin, ordering_key: key.map(Arc::from), content };
    Mapped { claimed, target: Ok(address(to)) }
}

pub(super) fn fresh(seq: i64, key: &str) -> Mapped {
    mapped(seq, key, Origin::Fresh, "a")
}

/// A row that the claim left out of the flow, since an earlier one of its key waits.
pub(super) fn behind(seq: i64, key: &str) -> Mapped {
    let claimed =
        Claimed { id: id(seq), origin: Origin::Fresh, ordering_key: Some(key.into()), content: Content::Blocked };
    Mapped { claimed, target: Err(Verdicted::waiting(Reason::Behind)) }
}

pub(super) fn parked() -> Verdicted {
    Verdicted { state: HoldState::Parked, ..Verdicted::waiting(Reason::Size) }
}

pub(super) fn nacked() -> Verdicted {
    Verdicted::waiting(Reason::Nack)
}

pub(super) fn whole(xmin: u64) -> PageFacts {
    PageFacts { whole_to: i64::MAX, snapshot_xmin: xmin, now: Timestamp(0) }
}

pub(super) fn horizon(last_seq: i64, xid: u64) -> Option<Horizon> {
    Some(Horizon { last_seq, xid })
}

/// A lane with the recount after each step.
pub(super) struct Checked(pub(super) Lane);

impl Checked {
    pub(super) fn new(block_key: bool) -> Self {
        Self(Lane::new(block_key))
    }

    pub(super) fn page(&mut self, rows: Vec<Mapped>) {
        self.0.on_page(rows, &whole(0), None);
        check_invariants(&self.0);
    }

    pub(super) fn publish_as(&mut self, order: KeyOrder) -> Option<(i64, u64)> {
        let next = self.0.next_publication(|_| order, |_| Gate::Open, NOW);
        check_invariants(&self.0);
        next.map(|next| (next.row.id.seq, next.serial))
    }

    pub(super) fn publish(&mut self) -> Option<(i64, u64)> {
        self.publish_as(KeyOrder::Strict)
    }

    /// Everything that may go now.
    pub(super) fn publish_all(&mut self, order: KeyOrder) -> Vec<(i64, u64)> {
        std::iter::from_fn(|| self.publish_as(order)).collect()
    }

    pub(super) fn answer(&mut self, (seq, serial): (i64, u64)) {
        assert!(self.0.answered(seq, serial).is_some(), "the answer for {seq} counts as stale");
    }

    pub(super) fn confirm(&mut self, sent: (i64, u64)) {
        self.answer(sent);
        self.0.confirm(sent.0);
        check_invariants(&self.0);
    }

    pub(super) fn again(&mut self, sent: (i64, u64), unknown: bool) {
        self.answer(sent);
        self.0.again(sent.0, unknown);
        check_invariants(&self.0);
    }

    pub(super) fn fail(&mut self, sent: (i64, u64), verdict: Verdicted) {
        self.answer(sent);
        self.0.fail(sent.0, verdict);
        check_invariants(&self.0);
    }

    pub(super) fn mark_all(&mut self) -> Vec<i64> {
        let rows = self.0.take_marks();
        self.0.marked(&rows);
        check_invariants(&self.0);
        rows.iter().map(|row| row.seq).collect()
    }

    /// Commits the next hold; number and reason of each entry.
    pub(super) fn hold(&mut self) -> Vec<(i64, Reason)> {
        let order = self.0.take_hold().expect("a hold is due");
        check_invariants(&self.0);
        self.0.held(&order);
        check_invariants(&self.0);
        order.entries.iter().map(|entry| (entry.id.seq, entry.reason)).collect()
    }
}

/// Counts everything anew. A key's next row must be among the ready ones, or nothing would ever send it.
pub(super) fn check_invariants(lane: &Lane) {
    let count = |what: fn(&Entry) -> bool| lane.entries.values().filter(|entry| what(entry)).count();
    assert_eq!(lane.queued, count(|entry| entry.state == State::Queued), "queued");
    assert_eq!(lane.published, count(Entry::may_stand_at_broker), "published");
    assert_eq!(lane.weight_bytes, lane.entries.values().map(|entry| entry.weight_bytes).sum::<usize>(), "weight");
    for (name, key) in &lane.keys {
        let of_key = |entry: &&Entry| entry.ordering_key.as_ref() == Some(name) && entry.state != State::Confirmed;
        let rows: Vec<&Entry> = lane.entries.values().filter(of_key).collect();
        assert_eq!(key.seqs().collect::<Vec<_>>(), rows.iter().map(|row| row.id.seq).collect::<Vec<_>>(), "{name}");
        let in_flight = rows.iter().filter(|row| matches!(row.state, State::InFlight { .. })).count();
        assert_eq!(key.in_flight(), in_flight, "in flight of {name}");
        assert!(!key.is_done(), "{name} is done and still there");
        let failed = rows.iter().any(|row| matches!(row.state, State::Failed(_)));
        assert!(key.is_blocked() || !failed, "a failed row does not block {name}");
        if let Some(first) = rows.first()
            && first.state == State::Queued
            && in_flight == 0
            && !key.is_blocked()
        {
            assert!(lane.ready.contains(&first.id.seq), "{} of {name} is next and nobody knows", first.id.seq);
        }
    }
    for entry in lane.entries.values() {
        let Some(name) = &entry.ordering_key else {
            assert!(entry.state != State::Queued || lane.ready.contains(&entry.id.seq), "{} is lost", entry.id.seq);
            continue;
        };
        assert!(lane.keys.contains_key(name) || entry.state == State::Confirmed, "{name} has no book");
    }
}
