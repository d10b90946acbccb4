//! claim: asks for one page, or commits one hold. They take turns (rule 4), so one future at a time is enough.

use futures_util::future::BoxFuture;

use crate::clock::Millis;
use crate::lane::{HoldOrder, Mapped, PageFacts};
use crate::lane_worker::map::map;
use crate::lane_worker::{End, LaneWorker};
use crate::mutant::crash_point;
use crate::shared::{Reservation, held_look_pause_ms};
use crate::source::{ClaimRequest, Fenced, HoldState, Horizon, Page, Session, SourceError};

/// What the database was asked, and its answer.
pub(super) enum Turn {
    Claimed { asked: Asked, reply: Result<Page, SourceError> },
    Held { order: HoldOrder, reply: Result<Fenced, SourceError> },
}

pub(super) struct Asked {
    horizon: Option<Horizon>,
    rows_max: usize,
    /// Given back when the answer is in, or the turn is dropped with its session.
    _reserved: Reservation,
    with_held: bool,
    at: Millis,
}

impl<S: Session> LaneWorker<S> {
    /// Starts the next turn with the database, if there is reason for one. Holds come first.
    pub(super) fn start_turn(&mut self) -> Option<BoxFuture<'static, Turn>> {
        if let Some(order) = self.lane.take_hold() {
            return Some(self.hold(order));
        }
        let settings = &self.shared.settings;
        let rows_max = settings.batch_rows_max.min(settings.lane_rows_max().saturating_sub(self.lane.len()));
        // Later than this the next page would come late; earlier it would step over more rows that are here already.
        let room = rows_max > 0 && self.lane.queued() < settings.batch_rows_max.div_ceil(2);
        if !self.look || !room || self.stopping || self.shared.sinks.all_away() {
            return None;
        }
        let reserved = self.shared.memory.reserve(settings.batch_bytes_max);
        self.starved = reserved.is_none();
        Some(self.claim(rows_max, reserved?))
    }

    fn hold(&self, order: HoldOrder) -> BoxFuture<'static, Turn> {
        let (session, lease) = (self.session.clone(), self.lease);
        Box::pin(async move {
            crash_point("before_hold");
            let reply = session.hold(lease, &order.entries).await;
            crash_point("after_hold");
            Turn::Held { order, reply }
        })
    }

    fn claim(&mut self, rows_max: usize, reserved: Reservation) -> BoxFuture<'static, Turn> {
        let now = self.shared.clock.now();
        let with_held = now >= self.held_look_at;
        let (mut open_gates, probe_gates) =
            if with_held { self.shared.breakers().take_probes(self.lease.lane, now) } else { Default::default() };
        open_gates.extend(self.shared.away_gates());
        let request = ClaimRequest {
            lease: self.lease,
            low: self.lane.low(),
            exclude: self.lane.seqs(),
            rows_max,
            bytes_max: self.shared.settings.batch_bytes_max,
            with_held,
            open_gates,
            probe_gates,
            block_key: self.shared.block_key(),
        };
        let asked = Asked { horizon: *self.horizon.borrow(), rows_max, _reserved: reserved, with_held, at: now };
        self.look = false;
        let session = self.session.clone();
        Box::pin(async move {
            let reply = session.claim(request).await;
            Turn::Claimed { asked, reply }
        })
    }

    /// Takes in what the database answered.
    pub(super) fn end_turn(&mut self, turn: Turn) -> Result<(), End> {
        match turn {
            Turn::Claimed { asked, reply } => self.claimed(asked, reply),
            Turn::Held { order, reply: Ok(Fenced::Done) } => {
                self.report_held(&order);
                self.lane.held(&order);
                self.return_idle_probes();
                self.look = true;
                Ok(())
            }
            Turn::Held { reply: Ok(Fenced::Stale), .. } => Err(End::Stale),
            Turn::Held { order, reply: Err(SourceError::Again(_)) } => {
                self.turn = Some(self.hold(order));
                Ok(())
            }
            Turn::Held { reply: Err(error), .. } => Err(End::Lost(error)),
        }
    }

    fn claimed(&mut self, asked: Asked, reply: Result<Page, SourceError>) -> Result<(), End> {
        let now = self.shared.clock.now();
        let took_ms = now.since(asked.at);
        self.shared.observer.claimed(reply.as_ref().map_or(0, |page| page.rows.len()), took_ms as f64 / 1_000.0);
        let page = match reply {
            Ok(page) => page,
            // The poll for idle lanes brings it back.
            Err(SourceError::Again(_)) => {
                self.return_idle_probes();
                return Ok(());
            }
            Err(error) => return Err(End::Lost(error)),
        };
        if asked.with_held {
            self.held_look_at = now.plus(held_look_pause_ms(took_ms));
        }
        let cut = page.whole_to != i64::MAX;
        self.look |= cut && asked.rows_max > 0;
        self.database_ahead_us = page.now.0 - i64::try_from(asked.at.0 * 1_000).unwrap_or(0);
        let facts = PageFacts::from(&page);
        if !page.rows.is_empty() {
            crash_point("after_claim");
            self.shared.observer.batch(page.rows.len());
        }
        let mapped: Vec<Mapped> = map(&self.shared.routes, page.rows);
        self.lane.on_page(mapped, &facts, asked.horizon);
        self.return_idle_probes();
        // Before what was reserved for the claim is given back, lest somebody takes the budget twice.
        self.account();
        Ok(())
    }

    /// A claim takes all probes that are due and brings rows for some; a row may also leave memory unpublished, with
    /// the hold of its key. Probes without a row here are for other lanes, at once.
    fn return_idle_probes(&self) {
        let mut breakers = self.shared.breakers();
        if !breakers.is_empty() {
            breakers.keep_probes(self.lease.lane, &self.lane.probe_gates());
        }
    }

    /// A committed hold is news for an operator. A row that could not be read has no message id to tell.
    fn report_held(&self, order: &HoldOrder) {
        for entry in &order.entries {
            let (message_id, destination) = self.lane.names(entry.id.seq);
            if entry.state == HoldState::Parked {
                self.shared.observer.parked(entry.reason, 1);
                tracing::warn!(
                    lane = self.lease.lane, seq = entry.id.seq, message_id, destination, reason = %entry.reason,
                    error = %entry.detail, attempt = entry.attempts, "row parked; see `outbox-relay parked show {}`", entry.id.seq
                );
            } else {
                tracing::debug!(
                    lane = self.lease.lane, seq = entry.id.seq, message_id, destination, reason = %entry.reason,
                    error = %entry.detail, "row waits"
                );
            }
        }
    }
}

/// Bytes are counted for the whole lane; the budget follows the lane's own count.
impl<S: Session> LaneWorker<S> {
    /// Brings the shared bounds in line with what the lane really has.
    pub(super) fn account(&mut self) {
        self.reserved.resize(self.lane.weight_bytes());
    }
}
