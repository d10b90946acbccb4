//! The sending thread's looks into its inbox, told apart, and when they are.

use std::time::Instant;

use outbox_core::Millis;

use crate::gate::Turn;

pub(crate) struct Rounds {
    count: u64,
    begun: Instant,
}

impl Rounds {
    pub fn new() -> Self {
        Self { count: 0, begun: Instant::now() }
    }

    pub const fn next(&mut self) {
        self.count += 1;
    }

    pub fn turn(&self, now: Millis) -> Turn {
        let now_us = u64::try_from(self.begun.elapsed().as_micros()).unwrap_or(u64::MAX);
        Turn { round: self.count, now, now_us }
    }
}
