//! The life of one lane under one lease: **claim → map → publish → confirm → decide → mark**.
//!
//! `run` reads top to bottom; every step is a call whose name is a file. While one page waits for its confirms
//! the next is fetched; marks are handed to `mark`, which coalesces those of all lanes. The worker ends when the
//! lease is lost, the database session is over, or it is told to stop; it gives its memory back, and the relay
//! decides what that is still worth.

mod claim;
mod confirm;
mod drill;
mod map;
mod publish;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::sync::{Notify, mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::clock::Millis;
use crate::in_flight::Permits;
use crate::lane::Lane;
use crate::lane_worker::claim::Turn;
use crate::lane_worker::drill::Drill;
use crate::lane_worker::publish::Blocked;
use crate::mark::{MarkHandle, Marked};
use crate::publisher::Answer;
use crate::shared::{Idle, Reservation, Shared};
use crate::source::{Horizon, Lease, Position, Session, SourceError};

/// Answers taken in at one time before other events get their turn.
const ANSWERS_MAX: usize = 512;

/// Between two looks at a byte budget that is used up, should its wake-up come between look and wait.
const STARVED_MS: u64 = 50;

/// Why a worker ended.
#[derive(Debug)]
pub(crate) enum End {
    /// Another owner or epoch: memory is void.
    Stale,
    /// The relay took the lane away from the worker.
    Abandoned,
    /// The database session is over: published rows are kept.
    Lost(SourceError),
    /// It was told to stop, and everything that could be settled is.
    Stopped,
}

/// What outlives a lease and a session: the lane's rows, and the way back for answers.
pub(crate) struct LaneMemory {
    pub(crate) lane: Lane,
    pub(crate) answers: mpsc::UnboundedReceiver<Answer>,
    answers_sender: mpsc::UnboundedSender<Answer>,
    permits: Permits,
    reserved: Reservation,
}

impl LaneMemory {
    pub(crate) fn new(shared: &Shared) -> Self {
        let (answers_sender, answers) = mpsc::unbounded_channel();
        let lane = Lane::new(shared.block_key());
        Self {
            lane,
            answers,
            answers_sender,
            permits: Permits::none(&shared.in_flight),
            reserved: shared.memory.nothing(),
        }
    }
}

/// What a worker is given with its lease.
pub(crate) struct Assignment<S> {
    pub(crate) session: Arc<S>,
    pub(crate) lease: Lease,
    /// Milliseconds of `Clock` until which the lease holds for certain; renewals move it.
    pub(crate) lease_until: Arc<AtomicU64>,
    pub(crate) marks: MarkHandle,
    pub(crate) horizon: watch::Receiver<Option<Horizon>>,
}

pub(crate) struct LaneWorker<S> {
    shared: Arc<Shared>,
    session: Arc<S>,
    lane: Lane,
    lease: Lease,
    lease_until: Arc<AtomicU64>,
    marks: MarkHandle,
    marked: mpsc::UnboundedReceiver<Marked>,
    marked_sender: mpsc::UnboundedSender<Marked>,
    horizon: watch::Receiver<Option<Horizon>>,
    answers: mpsc::UnboundedReceiver<Answer>,
    answers_sender: mpsc::UnboundedSender<Answer>,
    permits: Permits,
    /// What the lane's rows weigh, out of the shared budget.
    reserved: Reservation,
    wake: Arc<Notify>,
    turn: Option<BoxFuture<'static, Turn>>,
    /// There may be rows that no claim has brought yet.
    look: bool,
    /// The shared byte budget is used up.
    starved: bool,
    stopping: bool,
    held_look_at: Millis,
    drill: Drill,
    /// A sink sent rows back: publishing rests until then.
    pause_until: Millis,
    /// The database's clock less ours, in microseconds.
    database_ahead_us: i64,
}

impl<S: Session> LaneWorker<S> {
    pub(crate) fn new(shared: Arc<Shared>, memory: LaneMemory, assignment: Assignment<S>) -> Self {
        let (marked_sender, marked) = mpsc::unbounded_channel();
        Self {
            shared,
            session: assignment.session,
            lane: memory.lane,
            lease: assignment.lease,
            lease_until: assignment.lease_until,
            marks: assignment.marks,
            marked,
            marked_sender,
            horizon: assignment.horizon,
            answers: memory.answers,
            answers_sender: memory.answers_sender,
            permits: memory.permits,
            reserved: memory.reserved,
            wake: Arc::new(Notify::new()),
            turn: None,
            look: true,
            starved: false,
            stopping: false,
            held_look_at: Millis(0),
            drill: Drill::default(),
            pause_until: Millis(0),
            database_ahead_us: 0,
        }
    }

    /// Works until something ends it. `stop`: no new claims and publications, settle what is in flight.
    /// `abandon`: end at once, the lease or the session is gone, or the grace is over. The turn with the database
    /// that is under way is abandoned with its session, never awaited past it.
    pub(crate) async fn run(mut self, stop: CancellationToken, abandon: CancellationToken) -> (LaneMemory, End) {
        let mut released = self.shared.released.subscribe();
        let mut links = self.shared.link_changes.subscribe();
        let mut answers = Vec::with_capacity(ANSWERS_MAX);
        let end = loop {
            // Whatever the last event did to the lane's memory, others may have what it freed before this lane goes on.
            self.account();
            // Publishing may leave rows to hold, so the turn with the database comes after it.
            let blocked = self.publish();
            self.permits.settle(self.lane.published(), blocked.wait());
            if self.turn.is_none() {
                self.turn = self.start_turn();
            }
            if self.mark().is_err() {
                break End::Lost(SourceError::Lost("the marking task ended".to_owned()));
            }
            if self.stopping {
                self.lane.stop_publishing();
                if self.is_settled() {
                    break End::Stopped;
                }
            }
            self.stand_on_board();
            let pause_ms = self.pause_ms();
            tokio::select! {
                biased;
                () = abandon.cancelled() => break End::Abandoned,
                () = stop.cancelled(), if !self.stopping => self.stopping = true,
                _ = self.answers.recv_many(&mut answers, ANSWERS_MAX) => {
                    for answer in answers.drain(..) {
                        self.confirm(answer);
                    }
                }
                Some(marked) = self.marked.recv() => match marked {
                    Marked::Done(rows) => self.lane.marked(&rows),
                    Marked::Stale => break End::Stale,
                },
                turn = next_turn(&mut self.turn) => {
                    self.turn = None;
                    if let Err(end) = self.end_turn(turn) {
                        break end;
                    }
                }
                () = std::future::ready(()), if blocked == Blocked::Burst => tokio::task::yield_now().await,
                () = self.permits.wait(blocked.wait()) => {}
                () = self.wake.notified() => self.look = true,
                () = self.shared.memory.freed.notified(), if self.starved => {}
                Ok(()) = released.changed() => {
                    self.held_look_at = Millis(0);
                    self.look = true;
                }
                Ok(()) = self.horizon.changed() => self.look |= self.may_raise_low(),
                Ok(()) = links.changed() => self.look = true,
                () = tokio::time::sleep(Duration::from_millis(pause_ms.unwrap_or(0))), if pause_ms.is_some() => {}
            }
            self.leave_board();
        };
        self.leave_board();
        (self.into_memory(), end)
    }

    /// mark: hands over what was confirmed since the last time.
    fn mark(&mut self) -> Result<(), ()> {
        let rows = self.lane.take_marks();
        if rows.is_empty() { Ok(()) } else { self.marks.send(self.lease, rows, self.marked_sender.clone()) }
    }

    /// Until when the lease holds for certain.
    fn lease_until(&self) -> Millis {
        Millis(self.lease_until.load(Ordering::Acquire))
    }

    /// Nothing is owed any more: no answer, no mark, no hold.
    fn is_settled(&self) -> bool {
        self.turn.is_none() && self.lane.published() == 0 && !self.lane.must_hold()
    }

    /// A claim under the newest horizon would move `low`.
    fn may_raise_low(&self) -> bool {
        self.horizon.borrow().is_some_and(|horizon| horizon.last_seq > self.lane.low()) && !self.stopping
    }

    /// While a sink rests, the byte budget is used up or the lease looks expired, the worker comes back by itself.
    fn pause_ms(&self) -> Option<u64> {
        if self.starved {
            return Some(STARVED_MS);
        }
        let now = self.shared.clock.now();
        let lease_until = self.lease_until();
        if !self.lane.has_ready() || self.stopping {
            None
        } else if now < self.pause_until {
            Some(self.pause_until.since(now))
        } else {
            (now >= lease_until).then_some(self.shared.settings.lease_renew_ms / 4)
        }
    }

    /// An idle lane is looked after by the one poll for all lanes.
    fn stand_on_board(&self) {
        if self.turn.is_none() && !self.look && !self.stopping && self.lane.queued() == 0 {
            let position = Position { lane: self.lease.lane, low: self.lane.low() };
            let idle = Idle { position, exclude: self.lane.seqs(), wake: self.wake.clone() };
            self.shared.board.lanes().insert(self.lease.lane, idle);
        }
    }

    fn leave_board(&self) {
        self.shared.board.lanes().remove(&self.lease.lane);
    }

    fn into_memory(mut self) -> LaneMemory {
        self.account();
        self.permits.settle(self.lane.published(), None);
        self.shared.breakers().keep_probes(self.lease.lane, &[]);
        LaneMemory {
            lane: self.lane,
            answers: self.answers,
            answers_sender: self.answers_sender,
            permits: self.permits,
            reserved: self.reserved,
        }
    }
}

/// Waits for the turn under way; for ever when there is none.
async fn next_turn(turn: &mut Option<BoxFuture<'static, Turn>>) -> Turn {
    match turn {
        Some(turn) => turn.await,
        None => std::future::pending().await,
    }
}
