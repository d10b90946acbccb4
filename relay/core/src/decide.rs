//! The one policy: what follows from each answer of a broker. Sinks classify, nothing else retries or parks.

use crate::backoff::BackoffPolicy;
use crate::outcome::{Outcome, Scope};
use crate::reason::Reason;
use crate::source::HoldState;

/// `retry.*` of the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    pub backoff: BackoffPolicy,
    /// `retry.attempts_max`, at least 1.
    pub attempts_max: u32,
    /// A row is not given up sooner than this after its first failure, in milliseconds.
    pub attempts_min_age_ms: u64,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self { backoff: BackoffPolicy::default(), attempts_max: 20, attempts_min_age_ms: 600_000 }
    }
}

/// What the row has behind it.
#[derive(Clone, Copy, Debug, Default)]
pub struct History {
    pub attempts: u32,
    /// Milliseconds since it entered the waiting room, 0 for a fresh row.
    pub held_for_ms: u64,
}

/// What is to be done with the row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Record it as sent.
    Mark,
    /// Publish it again with the same id, no attempt used up.
    Again,
    /// Put it into the waiting room.
    Hold(Verdicted),
}

/// The entry a held row gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdicted {
    pub state: HoldState,
    pub reason: Reason,
    pub detail: String,
    pub attempts: u32,
    pub delay_ms: Option<u64>,
    /// The breaker that opens.
    pub opens: Option<Scope>,
}

impl Verdicted {
    /// A row that must wait through no fault of its own.
    #[must_use]
    pub const fn waiting(reason: Reason) -> Self {
        Self { state: HoldState::Waiting, reason, detail: String::new(), attempts: 0, delay_ms: None, opens: None }
    }
}

/// Decides (design: "Sinks only classify; one policy decides").
#[must_use]
pub fn decide(outcome: Outcome, history: History, policy: &RetryPolicy) -> Verdict {
    let hold = |state, reason, detail, attempts, delay_ms, opens| {
        Verdict::Hold(Verdicted { state, reason, detail, attempts, delay_ms, opens })
    };
    match outcome {
        Outcome::Confirmed => Verdict::Mark,
        Outcome::NotSent | Outcome::Unknown { .. } => Verdict::Again,
        Outcome::AddressAway { scope, reason, detail } => {
            hold(HoldState::Waiting, reason, detail, history.attempts, None, Some(scope))
        }
        Outcome::Busy { reason, detail } => {
            hold(HoldState::Waiting, reason, detail, history.attempts, Some(busy_delay_ms(history, policy)), None)
        }
        Outcome::Impossible { reason, detail } => hold(HoldState::Parked, reason, detail, history.attempts, None, None),
        Outcome::Failed { reason, detail } => {
            let attempts = history.attempts.saturating_add(1);
            if attempts >= policy.attempts_max && history.held_for_ms >= policy.attempts_min_age_ms {
                hold(HoldState::Parked, reason, detail, attempts, None, None)
            } else {
                let delay_ms = policy.backoff.delay_ms(history.attempts);
                hold(HoldState::Waiting, reason, detail, attempts, Some(delay_ms), None)
            }
        }
    }
}

/// A busy queue uses up no attempts, so the wait grows with the time already waited: as long again each time,
/// which doubles it.
fn busy_delay_ms(history: History, policy: &RetryPolicy) -> u64 {
    let initial_ms = policy.backoff.initial_ms.max(1);
    let doublings = (history.held_for_ms / initial_ms).checked_ilog2().map_or(0, |log| log + 1);
    policy.backoff.delay_ms(doublings)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed() -> Outcome {
        Outcome::Failed { reason: Reason::Rejected, detail: String::new() }
    }

    fn held(verdict: Verdict) -> Verdicted {
        match verdict {
            Verdict::Hold(held) => held,
            other => panic!("{other:?} is no hold"),
        }
    }

    #[test]
    fn only_a_confirm_marks() {
        let policy = RetryPolicy::default();
        assert_eq!(decide(Outcome::Confirmed, History::default(), &policy), Verdict::Mark);
        for outcome in [Outcome::NotSent, Outcome::Unknown { detail: String::new() }] {
            assert_eq!(decide(outcome, History::default(), &policy), Verdict::Again);
        }
    }

    #[test]
    fn attempts_and_age_are_both_needed_to_park() {
        let policy = RetryPolicy::default();
        let young = History { attempts: 500, held_for_ms: 599_999 };
        assert_eq!(held(decide(failed(), young, &policy)).state, HoldState::Waiting);
        let few = History { attempts: 18, held_for_ms: 600_000 };
        assert_eq!(held(decide(failed(), few, &policy)).state, HoldState::Waiting);
        let both = History { attempts: 19, held_for_ms: 600_000 };
        assert_eq!(held(decide(failed(), both, &policy)).state, HoldState::Parked);
    }

    #[test]
    fn a_busy_key_waits_longer_each_time_and_loses_no_attempt() {
        let policy = RetryPolicy::default();
        let busy = || Outcome::Busy { reason: Reason::Nack, detail: String::new() };
        let mut last_ms = 0;
        for held_for_ms in [0, 400, 2_000, 10_000, 60_000, 3_600_000] {
            let held = held(decide(busy(), History { attempts: 3, held_for_ms }, &policy));
            assert_eq!((held.attempts, held.state), (3, HoldState::Waiting));
            let delay_ms = held.delay_ms.unwrap_or(0);
            assert!(delay_ms * 3 / 2 >= last_ms, "{delay_ms} after {last_ms}");
            last_ms = delay_ms;
        }
    }

    #[test]
    fn an_absent_address_opens_its_breaker_and_parks_nobody() {
        let outcome = Outcome::AddressAway { scope: Scope::Address, reason: Reason::Unroutable, detail: String::new() };
        let held = held(decide(outcome, History { attempts: 100, held_for_ms: u64::MAX }, &RetryPolicy::default()));
        assert_eq!((held.state, held.attempts, held.opens), (HoldState::Waiting, 100, Some(Scope::Address)));
    }
}
