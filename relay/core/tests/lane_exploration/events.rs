//! What may happen, how often, and what was met.

use outbox_core::{HoldEntry, RowId};

/// How many of each there may be, and in all.
#[derive(Clone, Copy, Debug, Default, Hash, PartialEq, Eq)]
pub struct Faults {
    /// A relay dies and a new process takes its place.
    pub crashes: usize,
    /// A database session is lost, with the replies under way.
    pub sessions: usize,
    /// A broker link breaks, with what is on it.
    pub cuts: usize,
    /// A lease runs out although its owner lives.
    pub expiries: usize,
    pub nacks: usize,
    /// A sink sends a row back unwritten, since its lease is over by now.
    pub returns: usize,
    pub in_all: usize,
    /// Whether transactions are under way at first, so that they may commit late, and `low` moves.
    pub late: bool,
    /// Rows of a key follow each other without waiting.
    pub pipelined: bool,
}

/// A write whose client is gone and which may still be carried out.
#[derive(Clone, Debug)]
pub enum Orphan {
    Mark { owner: u8, epoch: i64, rows: Vec<RowId> },
    Hold { owner: u8, epoch: i64, entries: Vec<HoldEntry> },
}

/// What the last event was an example of.
#[derive(Clone, Copy, Debug, Default, Hash, PartialEq, Eq)]
pub struct Met {
    pub twice: bool,
    pub late: bool,
    pub takeover: bool,
    pub refused: bool,
    pub waited: bool,
    pub orphan: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Begin(i64),
    Commit(i64),
    RollBack(i64),
    Due(i64),
    LeaseEnds,
    Acquire(usize),
    Renew(usize),
    Reconnect(usize),
    Horizon(usize),
    Claim(usize),
    TurnRuns(usize),
    TurnEnds(usize),
    Arrive(usize),
    Answer(usize),
    MarkRuns(usize),
    MarkEnds(usize),
    Orphan(usize),
    Zombie(usize),
    Crash(usize),
    SessionLost(usize),
    Cut(usize),
    Expire(usize),
    Nack(usize),
    Return(usize),
}
