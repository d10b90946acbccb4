//! Work beside the lanes, each as `run` (timer, select, log) around one step: the poll for idle lanes, the
//! horizon that lets `low` move, retention, and the question whether a drain is done.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::clock::Millis;
use crate::observer::Wakeup;
use crate::shared::{Shared, held_look_pause_ms};
use crate::source::{DrainGoal, Horizon, PollRequest, Session, SourceError};

/// One transaction id a second at most.
const HORIZON_MS: u64 = 1_000;
/// Between two looks whether a drain is done.
const DRAIN_MS: u64 = 100;
/// Between two batches of retention: short while there is more, long when there is none.
const PRUNE_BUSY_MS: u64 = 50;
const PRUNE_IDLE_MS: u64 = 10_000;

/// One cheap question for all idle lanes, asked less often the longer nothing is found.
pub(super) async fn poll<S: Session>(session: Arc<S>, shared: Arc<Shared>, drain: bool) -> Result<(), SourceError> {
    let (min_ms, max_ms) = (shared.settings.poll_min_ms, shared.settings.poll_max_ms);
    let mut wait_ms = min_ms;
    let mut held_look_at = Millis(0);
    loop {
        tokio::time::sleep(Duration::from_millis(wait_ms)).await;
        shared.observer.progress();
        let now = shared.clock.now();
        let with_held = now >= held_look_at;
        let Some(request) = poll_request(&shared, with_held, now) else {
            wait_ms = min_ms;
            continue;
        };
        match session.poll(&request).await {
            Ok(lanes) => {
                wait_ms = if lanes.is_empty() { (wait_ms + wait_ms / 4 + 1).min(max_ms) } else { min_ms };
                for lane in lanes {
                    shared.observer.wakeup(if drain { Wakeup::Drain } else { Wakeup::Poll });
                    if let Some(idle) = shared.board.lanes().get(&lane) {
                        idle.wake.notify_one();
                    }
                }
            }
            Err(SourceError::Again(_)) => wait_ms = max_ms,
            Err(error) => return Err(error),
        }
        if with_held {
            let ended = shared.clock.now();
            held_look_at = ended.plus(held_look_pause_ms(ended.since(now)));
        }
    }
}

/// `None` when no lane is idle, or no broker takes anything.
fn poll_request(shared: &Shared, with_held: bool, now: Millis) -> Option<PollRequest> {
    if shared.sinks.all_away() {
        return None;
    }
    let board = shared.board.lanes();
    if board.is_empty() {
        return None;
    }
    let positions = board.values().map(|idle| idle.position).collect();
    let exclude = board.values().flat_map(|idle| idle.exclude.iter().copied()).collect();
    drop(board);
    let mut open_gates = shared.breakers().shut(now);
    open_gates.extend(shared.away_gates());
    Some(PollRequest { positions, exclude, with_held, open_gates, block_key: shared.block_key() })
}

/// Takes a horizon a second, so that `low` follows what is sent. Not while nothing moves: an idle relay takes no
/// transaction ids.
pub(super) async fn horizon<S: Session>(
    session: Arc<S>,
    shared: Arc<Shared>,
    horizon: watch::Sender<Option<Horizon>>,
) -> Result<(), SourceError> {
    let mut settled = 0;
    loop {
        match session.last_seq().await {
            Ok(last_seq) if last_seq != settled => match session.horizon().await {
                Ok(next) => {
                    settled = next.last_seq;
                    horizon.send_replace(Some(next));
                }
                Err(SourceError::Again(_)) => {}
                Err(error) => return Err(error),
            },
            Ok(_) | Err(SourceError::Again(_)) => {
                // Lanes that could not raise `low` yet (an older transaction was open) look again.
                let behind = shared.board.lanes().values().any(|idle| idle.position.low < settled);
                if behind {
                    horizon.send_modify(|_| ());
                }
            }
            Err(error) => return Err(error),
        }
        tokio::time::sleep(Duration::from_millis(HORIZON_MS)).await;
    }
}

/// Removes rows past their retention in small batches, with a pause after each.
pub(super) async fn prune<S: Session>(session: Arc<S>, shared: Arc<Shared>) -> Result<(), SourceError> {
    let Some(retention_s) = shared.settings.retention_s else { return std::future::pending().await };
    loop {
        let pruned = match session.prune(retention_s).await {
            Ok(pruned) => pruned,
            Err(SourceError::Again(_)) => 0,
            Err(error) => return Err(error),
        };
        if pruned > 0 {
            shared.observer.pruned(pruned);
        }
        let wait_ms = if pruned > 0 { PRUNE_BUSY_MS } else { PRUNE_IDLE_MS };
        tokio::time::sleep(Duration::from_millis(wait_ms)).await;
    }
}

/// Ends when everything of the goal is sent, parked or discarded. The question costs a look at the table, so it is
/// asked only while no lane of this process has work.
pub(super) async fn drained<S: Session>(
    session: Arc<S>,
    shared: Arc<Shared>,
    goal: &mut Option<DrainGoal>,
) -> Result<(), SourceError> {
    let goal = match goal {
        Some(goal) => goal,
        None => goal.insert(session.drain_goal().await?),
    };
    loop {
        if shared.is_idle() {
            match session.drained(goal, shared.block_key()).await {
                Ok(true) => return Ok(()),
                Ok(false) | Err(SourceError::Again(_)) => {}
                Err(error) => return Err(error),
            }
        }
        tokio::time::sleep(Duration::from_millis(DRAIN_MS)).await;
    }
}
