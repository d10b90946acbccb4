//! What all lanes of one process share: bounds, breakers, brokers and the board on which idle lanes stand.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, watch};

use crate::breaker::Breakers;
use crate::clock::Clock;
use crate::in_flight::InFlight;
use crate::observer::Observer;
use crate::route::Routes;
use crate::settings::{OnPark, Settings};
use crate::sinks::Sinks;
use crate::source::Position;

/// Shared by everything that runs in one relay process, across database sessions.
pub struct Shared {
    pub settings: Settings,
    pub routes: Routes,
    pub sinks: Sinks,
    pub observer: Arc<dyn Observer>,
    pub clock: Clock,
    pub(crate) breakers: Mutex<Breakers>,
    /// Grows at each breaker that closes, so that lanes look into the waiting room at once.
    pub(crate) released: watch::Sender<u64>,
    /// Grows at each change of a link to a broker.
    pub(crate) link_changes: watch::Sender<u64>,
    /// The state of the database session, for readiness.
    pub database: watch::Sender<DatabaseLink>,
    /// What is wrong with a table whose rows are to be taken over, by its name, for readiness.
    pub intake_errors: watch::Sender<BTreeMap<String, String>>,
    /// `in_flight_max`: one permit a row that may stand at the broker unmarked.
    pub(crate) in_flight: Arc<InFlight>,
    pub(crate) memory: Arc<Memory>,
    pub(crate) board: Board,
    /// Lanes with a worker.
    pub(crate) lanes_owned: AtomicUsize,
    /// Set once the sinks were told to stop; true when all of them have.
    sinks_stopped: Mutex<Option<watch::Receiver<bool>>>,
}

impl Shared {
    /// Puts the parts together.
    #[must_use]
    pub fn new(settings: Settings, routes: Routes, sinks: Sinks, observer: Arc<dyn Observer>) -> Self {
        let breakers = Breakers::new(settings.retry.backoff, settings.confirm_timeout_ms);
        let in_flight = InFlight::new(settings.in_flight_max);
        let memory = Memory::new(settings.memory_bytes_max());
        Self {
            settings,
            routes,
            sinks,
            observer,
            clock: Clock,
            breakers: Mutex::new(breakers),
            released: watch::Sender::new(0),
            link_changes: watch::Sender::new(0),
            database: watch::Sender::new(DatabaseLink::Down { detail: "not connected yet".to_owned() }),
            intake_errors: watch::Sender::new(BTreeMap::new()),
            in_flight,
            memory,
            board: Board::default(),
            lanes_owned: AtomicUsize::new(0),
            sinks_stopped: Mutex::new(None),
        }
    }

    pub(crate) fn breakers(&self) -> MutexGuard<'_, Breakers> {
        self.breakers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn block_key(&self) -> bool {
        self.settings.on_park == OnPark::BlockKey
    }

    /// Tells every sink to stop, once. Each stops in a task of its own, so that nobody who only waits for it can
    /// cut it short. Wait with `wait_for`.
    pub(crate) fn stop_sinks(&self) -> watch::Receiver<bool> {
        let mut stopped = self.sinks_stopped.lock().unwrap_or_else(PoisonError::into_inner);
        stopped
            .get_or_insert_with(|| {
                let (sender, receiver) = watch::channel(false);
                let grace_ms = self.settings.shutdown_grace_ms;
                let publishers = self.sinks.all().to_vec();
                tokio::spawn(async move {
                    futures_util::future::join_all(publishers.iter().map(|publisher| publisher.stop(grace_ms))).await;
                    sender.send_replace(true);
                });
                receiver
            })
            .clone()
    }

    /// A link that goes down now does so because it was told to.
    pub(crate) fn sinks_are_stopping(&self) -> bool {
        self.sinks_stopped.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    pub(crate) fn note_lanes_owned(&self, lanes: usize) {
        self.lanes_owned.store(lanes, Ordering::Relaxed);
        self.in_flight.share_among(lanes);
        self.observer.lanes_owned(lanes);
    }

    /// No lane of this process has anything to do right now.
    pub(crate) fn is_idle(&self) -> bool {
        self.board.lanes().len() >= self.lanes_owned.load(Ordering::Relaxed)
    }

    /// Breaker names of brokers that take nothing now.
    pub(crate) fn away_gates(&self) -> Vec<String> {
        self.sinks.away().iter().map(|sink| sink.as_str().to_owned()).collect()
    }
}

/// How long to leave the waiting room alone after a look that took this long: a look costs at most a twentieth of
/// the time between two, however many rows wait.
pub(crate) fn held_look_pause_ms(took_ms: u64) -> u64 {
    (took_ms * 20).max(100)
}

/// The state of the way to the database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DatabaseLink {
    Up,
    Down { detail: String },
}

/// A byte budget over all lanes. It may be overdrawn by what one claim brings, then nobody claims until it is
/// paid back: a row larger than the budget still passes.
pub(crate) struct Memory {
    free_bytes: AtomicI64,
    pub(crate) freed: Notify,
}

impl Memory {
    fn new(bytes: usize) -> Arc<Self> {
        Arc::new(Self { free_bytes: AtomicI64::new(signed(bytes)), freed: Notify::new() })
    }

    /// Takes bytes if the budget is not overdrawn.
    pub(crate) fn reserve(self: &Arc<Self>, bytes: usize) -> Option<Reservation> {
        let take = |free: i64| (free > 0).then(|| free.saturating_sub(signed(bytes)));
        self.free_bytes.fetch_update(Ordering::AcqRel, Ordering::Acquire, take).ok()?;
        Some(Reservation { memory: self.clone(), bytes })
    }

    /// Holds nothing yet.
    pub(crate) fn nothing(self: &Arc<Self>) -> Reservation {
        Reservation { memory: self.clone(), bytes: 0 }
    }

    fn pay_back(&self, change: i64) {
        let before = self.free_bytes.fetch_add(change, Ordering::AcqRel);
        if before <= 0 && before + change > 0 {
            self.freed.notify_waiters();
        }
    }
}

/// Bytes taken from the budget. Whoever drops it gives them back, also a claim that dies with its session and a
/// worker that panics: a byte that stays taken is missing until the process ends.
pub(crate) struct Reservation {
    memory: Arc<Memory>,
    bytes: usize,
}

impl Reservation {
    /// Holds this much from now on, whatever is free.
    pub(crate) fn resize(&mut self, bytes: usize) {
        if bytes != self.bytes {
            self.memory.pay_back(signed(self.bytes) - signed(bytes));
            self.bytes = bytes;
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.resize(0);
    }
}

fn signed(bytes: usize) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

/// A lane that has nothing to do until rows appear.
pub(crate) struct Idle {
    pub(crate) position: Position,
    pub(crate) exclude: Vec<i64>,
    pub(crate) wake: Arc<Notify>,
}

/// Idle lanes, for the one question that is asked for all of them.
#[derive(Default)]
pub(crate) struct Board(Mutex<HashMap<i16, Idle>>);

impl Board {
    pub(crate) fn lanes(&self) -> MutexGuard<'_, HashMap<i16, Idle>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_reservation_pays_back() {
        let memory = Memory::new(100);
        let first = memory.reserve(150);
        assert!(first.is_some());
        assert!(memory.reserve(1).is_none(), "overdrawn");
        drop(first);
        let mut second = memory.reserve(10).expect("the budget is whole again");
        second.resize(100);
        assert!(memory.reserve(1).is_none());
        second.resize(99);
        assert!(memory.reserve(1).is_some());
    }
}
