//! confirm: takes a sink's answer, lets `decide` say what follows, and does it to the lane's memory.

use crate::clock::Millis;
use crate::decide::{Verdict, decide};
use crate::lane::Answered;
use crate::lane_worker::LaneWorker;
use crate::mutant::{crash_point, mutant};
use crate::outcome::Outcome;
use crate::publisher::Answer;
use crate::reason::Reason;
use crate::source::Session;

/// How long a sink that sent a row back although its link looks up is left alone, in milliseconds.
const PAUSE_MS: u64 = 20;

impl<S: Session> LaneWorker<S> {
    /// Takes in one answer. An answer to an earlier publication of the row says nothing about this one.
    pub(super) fn confirm(&mut self, answer: Answer) {
        if self.drilled(&answer) {
            return;
        }
        let Some(answered) = self.lane.answered(answer.seq, answer.serial) else { return };
        let now = self.shared.clock.now();
        let unknown = matches!(answer.outcome, Outcome::Unknown { .. });
        let outcome = if unknown && mutant("mark_on_timeout") { Outcome::Confirmed } else { answer.outcome };
        self.observe(&answered, &outcome, now);
        match decide(outcome, answered.history, &self.shared.settings.retry) {
            Verdict::Mark => {
                crash_point("after_confirm");
                self.address_answered(&answered);
                self.lane.confirm(answer.seq);
                self.drill(&answered);
            }
            Verdict::Again => {
                self.pause_until = now.plus(PAUSE_MS);
                self.lane.again(answer.seq, unknown);
            }
            Verdict::Hold(verdict) => {
                match verdict.opens {
                    Some(scope) => self.shared.breakers().trip(&answered.address, scope, verdict.reason, now),
                    None => self.address_answered(&answered),
                }
                self.lane.fail(answer.seq, verdict);
            }
        }
    }

    /// Rule 6: an ack, nack or refusal closes the address's breaker, and its rows follow at once.
    fn address_answered(&self, answered: &Answered) {
        if self.shared.breakers().answered(&answered.address) {
            self.shared.released.send_modify(|times| *times += 1);
        }
    }

    fn observe(&self, answered: &Answered, outcome: &Outcome, now: Millis) {
        let observer = &self.shared.observer;
        observer.answered(answered, outcome, now);
        let sink = answered.address.sink;
        let publish_seconds = now.since(answered.published_at) as f64 / 1_000.0;
        match outcome {
            Outcome::Confirmed => {
                let bytes = answered.row.payload.as_ref().map_or(0, bytes::Bytes::len);
                let database_now_us = i64::try_from(now.0 * 1_000).unwrap_or(0) + self.database_ahead_us;
                let delivery_us = (database_now_us - answered.row.due_at().0).max(0);
                observer.published(&answered.address, bytes, publish_seconds, delivery_us as f64 / 1e6);
            }
            Outcome::NotSent => {}
            Outcome::Unknown { detail } => {
                observer.unknown(sink);
                tracing::debug!(lane = self.lease.lane, sink = %sink, error = %detail, "outcome unknown");
            }
            Outcome::AddressAway { reason, .. }
            | Outcome::Busy { reason, .. }
            | Outcome::Impossible { reason, .. }
            | Outcome::Failed { reason, .. } => {
                if *reason == Reason::Unknown {
                    observer.unknown(sink);
                }
                observer.publish_failed(sink, *reason, publish_seconds);
            }
        }
        observer.progress();
    }
}
