//! publish: hands rows to their sinks, as many as the lease, the bounds and the order of keys allow.

use std::sync::Arc;

use crate::lane::Gate;
use crate::lane_worker::LaneWorker;
use crate::mutant::{crash_point, mutant};
use crate::outcome::Outcome;
use crate::publisher::{Answer, Outgoing, Ticket};
use crate::row::Row;
use crate::source::Session;

/// Rows handed over before other events of the lane get their turn.
const BURST_ROWS_MAX: usize = 256;

impl<S: Session> LaneWorker<S> {
    /// Hands over what may go now. `Blocked::Permits` means that only `in_flight_max` holds rows back.
    pub(super) fn publish(&mut self) -> Blocked {
        let now = self.shared.clock.now();
        let lease_until = self.lease_until();
        if self.stopping || !self.lane.has_ready() || now >= lease_until || now < self.pause_until {
            return Blocked::No;
        }
        let shared = self.shared.clone();
        let away = shared.sinks.away();
        // Asked after: a broker that is away because it was told to stop must hold no row.
        if shared.sinks_are_stopping() {
            return Blocked::No;
        }
        if shared.sinks.all_away() && shared.sinks.all().len() == 1 {
            return Blocked::No;
        }
        for _ in 0..BURST_ROWS_MAX {
            if !self.has_permit() {
                return Blocked::Permits;
            }
            let breakers = shared.breakers();
            let gate = |address: &crate::address::Address| match shared.sinks.gate(address.sink, &away) {
                Gate::Open => match breakers.blocks(address) {
                    Some(reason) => Gate::Hold { reason, probe_passes: true },
                    None => Gate::Open,
                },
                shut => shut,
            };
            let next = self.lane.next_publication(|address| shared.sinks.order(address), gate, now);
            drop(breakers);
            let Some(next) = next else { break };
            let Some(sink) = shared.sinks.get(next.address.sink) else { break };
            let (seq, serial) = (next.row.id.seq, next.serial);
            let row = if mutant("new_id_on_retry") { renamed(&next.row, serial) } else { next.row };
            let ticket = Ticket::new(seq, serial, self.answers_sender.clone()).in_run(next.run);
            crash_point("before_publish");
            sink.publish(Outgoing { row, address: next.address, lease_until, ticket });
            crash_point("after_publish");
            if mutant("mark_before_confirm") {
                self.confirm(Answer { seq, serial, outcome: Outcome::Confirmed });
            }
        }
        if self.lane.has_ready() { Blocked::Burst } else { Blocked::No }
    }

    /// Whether one more row may be published: the permits in hand exceed the rows that use one.
    fn has_permit(&mut self) -> bool {
        let held = self.permits.as_ref().map_or(0, tokio::sync::OwnedSemaphorePermit::num_permits);
        if held > self.lane.published() {
            return true;
        }
        let wanted = u32::try_from(self.lane.queued().clamp(1, 32)).unwrap_or(1);
        let semaphore = &self.shared.in_flight;
        let permit =
            Arc::clone(semaphore).try_acquire_many_owned(wanted).or_else(|_| Arc::clone(semaphore).try_acquire_owned());
        match permit {
            Ok(permit) => {
                self.add_permit(permit);
                true
            }
            Err(_) => false,
        }
    }

    pub(super) fn add_permit(&mut self, permit: tokio::sync::OwnedSemaphorePermit) {
        match self.permits.as_mut() {
            Some(permits) => permits.merge(permit),
            None => self.permits = Some(permit),
        }
    }
}

/// Why publishing stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Blocked {
    No,
    /// More could go at once; other events first.
    Burst,
    Permits,
}

/// The mutant's row: its id tells publications apart, as it must not.
fn renamed(row: &Arc<Row>, serial: u64) -> Arc<Row> {
    let mut renamed = Row::clone(row);
    renamed.idempotency_key = format!("{}-{serial}", row.idempotency_key);
    Arc::new(renamed)
}
