//! publish: hands rows to their sinks, as many as the lease, the bounds and the order of keys allow.

use std::sync::Arc;

use crate::in_flight::Wait;
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
    /// Hands over what may go now. `Blocked::Permits` says that only `in_flight_max` holds rows back.
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
            if let Err(wait) = self.permits.allow(self.lane.published(), self.lane.queued()) {
                return Blocked::Permits(wait);
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
}

/// Why publishing stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Blocked {
    No,
    /// More could go at once; other events first.
    Burst,
    Permits(Wait),
}

impl Blocked {
    /// What permits are waited for.
    pub(super) const fn wait(self) -> Option<Wait> {
        match self {
            Self::Permits(wait) => Some(wait),
            Self::No | Self::Burst => None,
        }
    }
}

/// The mutant's row: its id tells publications apart, as it must not.
fn renamed(row: &Arc<Row>, serial: u64) -> Arc<Row> {
    let mut renamed = Row::clone(row);
    renamed.idempotency_key = format!("{}-{serial}", row.idempotency_key);
    Arc::new(renamed)
}
