//! Where the relay tells what it does, so that metrics live in one place and the core knows none of them.

use crate::address::{Address, Sink};
use crate::clock::Millis;
use crate::intake::Taken;
use crate::lane::Answered;
use crate::outcome::Outcome;
use crate::reason::Reason;

/// Which service a connection leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    Postgres,
    Broker(Sink),
}

/// What made a lane look for rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wakeup {
    Notify,
    Poll,
    Drain,
}

/// Called per batch where possible; must not block.
#[expect(unused_variables, reason = "an observer implements what it wants to see")]
pub trait Observer: Send + Sync + 'static {
    fn claimed(&self, rows: usize, seconds: f64) {}
    fn batch(&self, rows: usize) {}
    fn published(&self, address: &Address, bytes: usize, publish_seconds: f64, delivery_seconds: f64) {}
    fn publish_failed(&self, sink: Sink, reason: Reason, publish_seconds: f64) {}
    fn unknown(&self, sink: Sink) {}
    /// A sink answered for a row, at `now`; told for each row, whatever the answer.
    fn answered(&self, answered: &Answered, outcome: &Outcome, now: Millis) {}
    /// A confirmed row is published once more, on purpose.
    fn drilled(&self, sink: Sink) {}
    fn returned(&self, sink: Sink) {}
    fn parked(&self, reason: Reason, rows: usize) {}
    fn marked(&self, rows: usize, seconds: f64) {}
    fn fenced(&self, lanes: usize) {}
    fn pruned(&self, rows: usize) {}
    /// Rows of an application's table were taken over, or refused.
    fn taken(&self, intake: &str, taken: &Taken) {}
    /// Whether rows of an application's table cannot be taken over.
    fn intake_failing(&self, intake: &str, failing: bool) {}
    fn link(&self, sink: Sink, connected: bool, blocked: bool) {}
    fn breakers_open(&self, open: usize) {}
    fn lanes_owned(&self, lanes: usize) {}
    fn reconnected(&self, peer: Peer) {}
    fn wakeup(&self, source: Wakeup) {}
    /// Something that shows the send loop is alive although nothing may have been sent.
    fn progress(&self) {}
}

/// Sees nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoObserver;

impl Observer for NoObserver {}
