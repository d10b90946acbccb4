//! drill: publishes a share of the confirmed rows once more, on purpose (`run --drill …`), so that a team sees in
//! staging whether its consumers do the work of one id once: at once, or after later messages.
//!
//! The second publication is like one after a fault: the same id, the same bytes, after the first. First arrivals so
//! keep their order. The lane's memory knows nothing of it: its answer changes nothing.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::address::Address;
use crate::lane::Answered;
use crate::lane_worker::LaneWorker;
use crate::publisher::{Answer, Outgoing, Ticket};
use crate::row::Row;
use crate::source::Session;

/// The serial of a publication that no row in memory waits for.
const SERIAL: u64 = u64::MAX;
/// Publications of one lane that a broker has not answered, and rows that wait for theirs; beyond that a drill leaves
/// rows out.
const OPEN_MAX: usize = 100;
/// So many rows of the lane are confirmed before one that was drawn comes again, late.
const LATE_BY: u64 = 10;

/// What one lane's drill has under way.
#[derive(Default)]
pub(super) struct Drill {
    open: usize,
    confirmed: u64,
    late: VecDeque<Late>,
}

struct Late {
    due: u64,
    row: Arc<Row>,
    address: Arc<Address>,
}

impl<S: Session> LaneWorker<S> {
    /// Draws whether a row that was just confirmed goes out once more, and sends those whose time has come.
    pub(super) fn drill(&mut self, confirmed: &Answered) {
        let shares = self.shared.settings.drill;
        // Without a drill nothing is drawn.
        if (shares.duplicate <= 0.0 && shares.reorder <= 0.0) || self.stopping {
            return;
        }
        self.drill.confirmed += 1;
        let (row, address) = (&confirmed.row, &confirmed.address);
        if fastrand::f64() < shares.duplicate {
            self.publish_again(row.clone(), address.clone());
        }
        if fastrand::f64() < shares.reorder && self.drill.late.len() < OPEN_MAX {
            let due = self.drill.confirmed + LATE_BY;
            self.drill.late.push_back(Late { due, row: row.clone(), address: address.clone() });
        }
        while self.drill.late.front().is_some_and(|late| late.due <= self.drill.confirmed) {
            let Some(late) = self.drill.late.pop_front() else { break };
            self.publish_again(late.row, late.address);
        }
    }

    fn publish_again(&mut self, row: Arc<Row>, address: Arc<Address>) {
        let Some(sink) = self.shared.sinks.get(address.sink) else { return };
        if self.drill.open >= OPEN_MAX {
            return;
        }
        self.drill.open += 1;
        self.shared.observer.drilled(address.sink);
        let ticket = Ticket::new(row.id.seq, SERIAL, self.answers_sender.clone());
        sink.publish(Outgoing { row, address, lease_until: self.lease_until(), ticket });
    }

    /// Takes in the answer to a row of the drill; any other is left to `confirm`.
    pub(super) fn drilled(&mut self, answer: &Answer) -> bool {
        let is_drill = answer.serial == SERIAL;
        if is_drill {
            // One of an earlier session of the lane is not counted here.
            self.drill.open = self.drill.open.saturating_sub(1);
        }
        is_drill
    }
}
