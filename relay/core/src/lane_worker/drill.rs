//! drill: publishes a share of the confirmed rows once more, on purpose (`run --drill duplicate=…`), so that a team
//! sees in staging whether its consumers do the work of one id once.
//!
//! The second publication is like one after a fault: the same id, the same bytes, after the first. The lane's memory
//! knows nothing of it: its answer changes nothing.

use crate::lane::Answered;
use crate::lane_worker::LaneWorker;
use crate::publisher::{Answer, Outgoing, Ticket};
use crate::source::Session;

/// The serial of a publication that no row in memory waits for.
const SERIAL: u64 = u64::MAX;
/// Publications of one lane that a broker has not answered; beyond that a drill leaves rows out.
const OPEN_MAX: usize = 100;

impl<S: Session> LaneWorker<S> {
    /// Draws whether a row that was just confirmed goes out once more.
    pub(super) fn drill(&mut self, confirmed: &Answered) {
        let share = self.shared.settings.drill_duplicate_share;
        // Without a drill nothing is drawn.
        if share <= 0.0 || self.stopping || self.drills_open >= OPEN_MAX || fastrand::f64() >= share {
            return;
        }
        let Some(sink) = self.shared.sinks.get(confirmed.address.sink) else { return };
        self.drills_open += 1;
        self.shared.observer.drilled(confirmed.address.sink);
        sink.publish(Outgoing {
            row: confirmed.row.clone(),
            address: confirmed.address.clone(),
            lease_until: self.lease_until(),
            ticket: Ticket::new(confirmed.row.id.seq, SERIAL, self.answers_sender.clone()),
        });
    }

    /// Takes in the answer to a row of the drill; any other is left to `confirm`.
    pub(super) fn drilled(&mut self, answer: &Answer) -> bool {
        let is_drill = answer.serial == SERIAL;
        if is_drill {
            // One of an earlier session of the lane is not counted here.
            self.drills_open = self.drills_open.saturating_sub(1);
        }
        is_drill
    }
}
