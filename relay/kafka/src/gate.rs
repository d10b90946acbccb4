//! When a topic may take its next row. Pure: it is told the time and what is in flight.
//!
//! One row at a time goes to a topic that has not confirmed one to this producer yet (it may be missing), to a
//! topic whose batches were refused lately (so that the culprit is found), and of rows that are larger than the
//! topic takes unless compression helps. A batch never outgrows a topic's own limit: where that is smaller than
//! librdkafka's batches, no more than the limit is in flight.
//!
//! The first row of a partition goes with nothing else of its topic in flight, once for each producer. A broker takes
//! any sequence from a producer that it does not know, so of two requests in flight the later one could be written
//! first: librdkafka sends it over a new connection or to a new leader while the first one is not answered yet. Once
//! the broker knows the producer, it refuses that.
//!
//! Otherwise rows go in waves: all that is there, then nothing until nearly all of it is reported. librdkafka sends
//! nothing more to a partition that has five records in flight (`RD_KAFKA_IDEMP_MAX_INFLIGHT`, which it compares with
//! records), and while it holds records back its thread spins: half of the relay's time, seen in a profile. So a wave
//! also ends before its first row's `linger.ms` is over: what is handed over later would miss the wave's batch.

use std::collections::VecDeque;

use outbox_core::{Millis, Outgoing};

use crate::flight::Load;
use crate::topics::Limits;

/// So many rows in flight close a wave and open the next; librdkafka holds none back yet.
pub(crate) const LOOSE_ROWS: usize = 4;
/// How long a topic gets one row at a time after one of its batches was refused.
const CAREFUL_MS: u64 = 60_000;
/// A row is called too large only by a limit younger than this.
const LIMIT_FRESH_MS: u64 = 2_000;
/// After this the topic's limits are asked for again, beside the traffic.
const LIMIT_STALE_MS: u64 = 60_000;

/// Whether a row may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    Go {
        alone: bool,
    },
    /// Until a report or an answer of the cluster arrives.
    Wait,
    /// The topic has to be asked for first.
    Ask,
    TooLarge {
        limit_bytes: usize,
    },
}

/// What is the same for every topic.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Batching {
    /// The most bytes that librdkafka puts into a batch of several records.
    pub batch_size_bytes: usize,
    /// Whether a record may be smaller on the wire than its plain size says.
    pub compressed: bool,
    /// How long a wave may take to be handed over.
    pub wave_us: u64,
}

/// When a row is offered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turn {
    /// Tells looks into the inbox apart: what one of them brought goes as one wave.
    pub round: u64,
    pub now: Millis,
    /// Of a clock that only moves on, with any origin.
    pub now_us: u64,
}

#[derive(Default)]
pub(crate) struct Gate {
    pub queue: VecDeque<Outgoing>,
    pub limits: Limits,
    /// An answer of the cluster is under way; `background` says that rows go on meanwhile.
    pub asking: bool,
    pub background: bool,
    asked_at: Option<Millis>,
    pub proven: bool,
    careful_until: Option<Millis>,
    /// librdkafka still believes that the topic is missing.
    pub stale: bool,
    /// The round of the sending thread in which rows went last.
    wave: u64,
    /// When the first of them went.
    wave_began_us: u64,
}

impl Gate {
    pub fn admit(&mut self, bytes: usize, load: Load, turn: Turn, batching: Batching) -> Admission {
        let Turn { round, now, now_us } = turn;
        if self.asking || load.alone {
            return Admission::Wait;
        }
        let Some(asked_at) = self.asked_at else {
            return Admission::Ask;
        };
        let limit_bytes = self.limits.batch_max_bytes.unwrap_or(usize::MAX);
        let oversize = bytes > limit_bytes;
        if oversize && !batching.compressed {
            let fresh = now.since(asked_at) <= LIMIT_FRESH_MS;
            return if fresh { Admission::TooLarge { limit_bytes } } else { Admission::Ask };
        }
        if oversize || !self.proven || self.is_careful(now) {
            return if load.rows == 0 { Admission::Go { alone: true } } else { Admission::Wait };
        }
        if load.fresh {
            return if load.rows == 0 { Admission::Go { alone: false } } else { Admission::Wait };
        }
        let narrow = limit_bytes <= batching.batch_size_bytes;
        if narrow && load.rows > 0 && load.bytes.saturating_add(bytes) > limit_bytes {
            return Admission::Wait;
        }
        if load.rows <= LOOSE_ROWS {
            (self.wave, self.wave_began_us) = (round, now_us);
        }
        if self.wave != round || now_us.saturating_sub(self.wave_began_us) > batching.wave_us {
            return Admission::Wait;
        }
        Admission::Go { alone: false }
    }

    /// The cluster said that the topic is there.
    pub fn opened(&mut self, limits: Limits, now: Millis) {
        self.limits = limits;
        self.asked_at = Some(now);
        self.asking = false;
        self.background = false;
    }

    /// The topic is gone, or nothing is known about it any more.
    pub fn forget(&mut self) {
        self.asked_at = None;
        self.asking = false;
        self.background = false;
        self.proven = false;
    }

    pub fn beware(&mut self, now: Millis) {
        self.careful_until = Some(now.plus(CAREFUL_MS));
    }

    /// Rows of a key may overlap: failures of other rows cannot touch their order.
    pub fn may_pipeline(&self, now: Millis) -> bool {
        self.proven && self.limits.batch_max_bytes.is_some() && !self.is_careful(now)
    }

    pub fn is_stale(&self, now: Millis) -> bool {
        let old = self.asked_at.is_some_and(|at| now.since(at) > LIMIT_STALE_MS);
        old && !self.asking && !self.background
    }

    /// Whether the careful time has just ended.
    pub fn relax(&mut self, now: Millis) -> bool {
        let over = self.careful_until.is_some_and(|until| now >= until);
        if over {
            self.careful_until = None;
        }
        over
    }

    fn is_careful(&self, now: Millis) -> bool {
        self.careful_until.is_some_and(|until| now < until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Batching = Batching { batch_size_bytes: 1_000, compressed: false, wave_us: 600 };
    const NOW: Millis = Millis(10_000);

    fn gate(limit: usize) -> Gate {
        let mut gate = Gate { proven: true, ..Gate::default() };
        gate.opened(Limits { batch_max_bytes: Some(limit), ..Limits::default() }, NOW);
        gate
    }

    fn turn(round: u64, now: Millis) -> Turn {
        Turn { round, now, now_us: 0 }
    }

    fn load(rows: usize, bytes: usize) -> Load {
        Load { rows, bytes, ..Load::default() }
    }

    #[test]
    fn an_unknown_topic_is_asked_for_and_then_gets_one_row_at_a_time() {
        let mut gate = Gate::default();
        assert_eq!(gate.admit(1, load(0, 0), turn(1, NOW), PLAIN), Admission::Ask);
        gate.asking = true;
        assert_eq!(gate.admit(1, load(0, 0), turn(1, NOW), PLAIN), Admission::Wait);
        gate.opened(Limits::default(), NOW);
        assert_eq!(gate.admit(1, load(0, 0), turn(1, NOW), PLAIN), Admission::Go { alone: true });
        assert_eq!(gate.admit(1, load(1, 1), turn(1, NOW), PLAIN), Admission::Wait);
        gate.proven = true;
        assert_eq!(gate.admit(1, load(0, 0), turn(1, NOW), PLAIN), Admission::Go { alone: false });
        assert!(!gate.may_pipeline(NOW), "without a known limit keys are strict");
    }

    #[test]
    fn what_is_in_flight_never_outgrows_a_narrow_limit() {
        let mut gate = gate(1_000);
        assert_eq!(gate.admit(400, load(1, 600), turn(1, NOW), PLAIN), Admission::Go { alone: false });
        assert_eq!(gate.admit(401, load(1, 600), turn(1, NOW), PLAIN), Admission::Wait);
        assert_eq!(gate.admit(1_000, load(0, 0), turn(1, NOW), PLAIN), Admission::Go { alone: false });
    }

    #[test]
    fn rows_go_in_waves() {
        let mut gate = gate(1_000_000);
        for rows in 0..100 {
            assert_eq!(gate.admit(1, load(rows, rows), turn(1, NOW), PLAIN), Admission::Go { alone: false });
        }
        assert_eq!(gate.admit(1, load(100, 100), turn(2, NOW), PLAIN), Admission::Wait);
        assert_eq!(gate.admit(1, load(LOOSE_ROWS + 1, 5), turn(3, NOW), PLAIN), Admission::Wait);
        assert_eq!(gate.admit(1, load(LOOSE_ROWS, 4), turn(3, NOW), PLAIN), Admission::Go { alone: false });
        assert_eq!(gate.admit(1, load(LOOSE_ROWS + 1, 5), turn(3, NOW), PLAIN), Admission::Go { alone: false });
    }

    #[test]
    fn the_first_row_of_a_partition_waits_for_all_and_lets_others_pass() {
        let mut gate = gate(1_000_000);
        let fresh = |rows| Load { fresh: true, ..load(rows, rows) };
        assert_eq!(gate.admit(1, fresh(0), turn(1, NOW), PLAIN), Admission::Go { alone: false });
        assert_eq!(gate.admit(1, fresh(1), turn(1, NOW), PLAIN), Admission::Wait);
        assert_eq!(gate.admit(1, load(1, 1), turn(1, NOW), PLAIN), Admission::Go { alone: false });
    }

    #[test]
    fn a_wave_ends_before_its_batch_leaves() {
        let mut gate = gate(1_000_000);
        let at = |now_us| Turn { round: 7, now: NOW, now_us };
        for rows in 0..100 {
            assert_eq!(gate.admit(1, load(rows, rows), at(50_000), PLAIN), Admission::Go { alone: false });
        }
        assert_eq!(gate.admit(1, load(100, 100), at(50_600), PLAIN), Admission::Go { alone: false });
        assert_eq!(gate.admit(1, load(101, 101), at(50_601), PLAIN), Admission::Wait);
        // The next wave has its own time.
        assert_eq!(gate.admit(1, load(LOOSE_ROWS, 4), at(60_000), PLAIN), Admission::Go { alone: false });
        assert_eq!(gate.admit(1, load(LOOSE_ROWS + 1, 5), at(60_600), PLAIN), Admission::Go { alone: false });
    }

    #[test]
    fn too_large_is_said_by_a_fresh_limit_only() {
        let mut gate = gate(2_000);
        assert_eq!(gate.admit(2_001, load(0, 0), turn(1, NOW), PLAIN), Admission::TooLarge { limit_bytes: 2_000 });
        assert_eq!(gate.admit(2_001, load(0, 0), turn(1, NOW.plus(LIMIT_FRESH_MS + 1)), PLAIN), Admission::Ask);
        let packed = Batching { compressed: true, ..PLAIN };
        assert_eq!(gate.admit(2_001, load(0, 0), turn(1, NOW), packed), Admission::Go { alone: true });
        assert_eq!(gate.admit(2_001, load(1, 10), turn(1, NOW), packed), Admission::Wait);
    }

    #[test]
    fn a_refused_batch_makes_careful_for_a_while() {
        let mut gate = gate(2_000);
        assert!(gate.may_pipeline(NOW));
        gate.beware(NOW);
        assert!(!gate.may_pipeline(NOW));
        assert_eq!(gate.admit(1, load(0, 0), turn(1, NOW), PLAIN), Admission::Go { alone: true });
        assert_eq!(gate.admit(1, load(1, 1), turn(1, NOW), PLAIN), Admission::Wait);
        assert_eq!(gate.admit(1, load(1, 1), turn(1, NOW.plus(CAREFUL_MS)), PLAIN), Admission::Go { alone: false });
    }
}
