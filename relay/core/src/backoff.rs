//! How long to wait before the next try. The `backoff` crate's policy is used in this file only and no type of
//! it leaves it: the crate is unmaintained, and this is the one place to change.
//!
//! Its defaults are not ours: it gives up after 15 minutes (here: never) and its jitter passes the maximum
//! (here: clamped).

use std::time::Duration;

use backoff::ExponentialBackoff;
use backoff::backoff::Backoff as _;

/// Exponential waits between two bounds, with jitter of ±20 % and a factor of 2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackoffPolicy {
    /// `retry.initial_ms`, at least 1.
    pub initial_ms: u64,
    /// `retry.max_ms`, at least `initial_ms`.
    pub max_ms: u64,
}

impl Default for BackoffPolicy {
    fn default() -> Self {
        Self { initial_ms: 200, max_ms: 30_000 }
    }
}

impl BackoffPolicy {
    /// The wait after the `tries`-th failure in a row (0 is the first), in milliseconds.
    #[must_use]
    pub fn delay_ms(&self, tries: u32) -> u64 {
        let doubled = self.initial_ms.saturating_mul(1_u64 << tries.min(40)).min(self.max_ms);
        let mut policy = ExponentialBackoff {
            current_interval: Duration::from_millis(doubled),
            initial_interval: Duration::from_millis(doubled),
            randomization_factor: 0.2,
            multiplier: 2.0,
            max_interval: Duration::from_millis(self.max_ms),
            max_elapsed_time: None,
            ..ExponentialBackoff::default()
        };
        let delay = policy.next_backoff().unwrap_or(Duration::from_millis(doubled));
        u64::try_from(delay.as_millis()).unwrap_or(self.max_ms).clamp(1, self.max_ms)
    }
}

/// A run of failures of one thing, for reconnect loops.
#[derive(Clone, Debug)]
pub struct Backoff {
    policy: BackoffPolicy,
    tries: u32,
}

impl Backoff {
    /// Starts with no failure.
    #[must_use]
    pub const fn new(policy: BackoffPolicy) -> Self {
        Self { policy, tries: 0 }
    }

    /// Counts one failure and says how long to wait, in milliseconds.
    pub fn next_ms(&mut self) -> u64 {
        let delay = self.policy.delay_ms(self.tries);
        self.tries = self.tries.saturating_add(1);
        delay
    }

    /// Forgets the failures.
    pub const fn reset(&mut self) {
        self.tries = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_grow_to_the_maximum_and_never_pass_it() {
        let policy = BackoffPolicy::default();
        assert!((160..=240).contains(&policy.delay_ms(0)));
        assert!((320..=480).contains(&policy.delay_ms(1)));
        for tries in 0..100 {
            assert!(policy.delay_ms(tries) <= policy.max_ms, "try {tries}");
        }
        assert!(policy.delay_ms(u32::MAX) >= 24_000);
    }
}
