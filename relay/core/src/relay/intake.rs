//! Takes rows of applications' tables over into the outbox: batches back to back while there are many, a look now and
//! then while there are none, one task a table.
//!
//! A table that cannot be read (dropped, changed, a right revoked) is told of and tried again; it stops neither the
//! other tables nor the lanes.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::backoff::{Backoff, BackoffPolicy};
use crate::intake::{Take, Taken};
use crate::observer::Wakeup;
use crate::shared::Shared;
use crate::source::{Session, SourceError};

/// Between two batches of a backlog, so that the database has time for others.
const BUSY_MS: u64 = 5;
/// Between two tries of a table that cannot be read.
const BROKEN: BackoffPolicy = BackoffPolicy { initial_ms: 500, max_ms: 30_000 };
/// A table that is locked, or a deadlock, is no news before so many tries in a row.
const AGAIN_TRIES_MAX: u32 = 5;
/// Between two batches of notes whose row may be gone, and between two walks over all of them.
const TIDY_BUSY_MS: u64 = 1_000;
const TIDY_IDLE_MS: u64 = 60_000;

/// How many tables were found without an untaken row at least once.
pub(super) type Emptied = watch::Receiver<usize>;

/// Starts the tasks of all tables.
pub(super) fn start<S: Session>(
    tasks: &mut JoinSet<Result<(), SourceError>>,
    session: &Arc<S>,
    shared: &Arc<Shared>,
) -> Emptied {
    let (emptied, receiver) = watch::channel(0);
    let emptied = Arc::new(emptied);
    for index in 0..shared.settings.intakes.len() {
        tasks.spawn(take(session.clone(), shared.clone(), index, emptied.clone()));
        tasks.spawn(tidy(session.clone(), index));
    }
    // Without tables nobody else holds the sender, and nobody waits.
    receiver
}

/// Returns once each table had no untaken row at some moment since the session began: what was committed before that
/// is in the outbox.
pub(super) async fn all_emptied(mut emptied: Emptied, tables: usize) {
    if emptied.wait_for(|count| *count >= tables).await.is_err() && tables > 0 {
        // The tasks ended, and the session with them.
        std::future::pending::<()>().await;
    }
}

async fn take<S: Session>(
    session: Arc<S>,
    shared: Arc<Shared>,
    index: usize,
    emptied: Arc<watch::Sender<usize>>,
) -> Result<(), SourceError> {
    let Some(intake) = shared.settings.intakes.get(index) else { return std::future::pending().await };
    let name = intake.name.as_str();
    let mut backoff = Backoff::new(BROKEN);
    let (mut look_first, mut was_empty, mut again) = (true, false, 0);
    loop {
        let asked_at = shared.clock.now();
        let taken = session.take(index, look_first).await;
        let wait_ms = match taken {
            Ok(take) => {
                backoff.reset();
                again = 0;
                note_state(&shared, name, None);
                look_first = true;
                match take {
                    Take::Nothing => {
                        if !std::mem::replace(&mut was_empty, true) {
                            emptied.send_modify(|count| *count += 1);
                        }
                        // A look at a table that may only be read costs more the longer the table is: it takes a
                        // twentieth of the time at most.
                        intake.poll_ms.max(shared.clock.now().since(asked_at).saturating_mul(20))
                    }
                    Take::NotOurTurn => intake.poll_ms,
                    Take::Took(taken) => {
                        note_taken(&shared, name, &taken);
                        look_first = !taken.more;
                        if taken.more { BUSY_MS } else { intake.poll_ms }
                    }
                }
            }
            Err(error @ SourceError::Lost(_)) => return Err(error),
            Err(SourceError::Again(detail)) => {
                tracing::debug!(source = name, error = %detail, "rows of a source are taken later");
                again += 1;
                if again >= AGAIN_TRIES_MAX {
                    note_state(&shared, name, Some(detail));
                }
                backoff.next_ms()
            }
            Err(SourceError::Refused(detail)) => {
                note_state(&shared, name, Some(detail));
                backoff.next_ms()
            }
        };
        tokio::time::sleep(Duration::from_millis(wait_ms)).await;
    }
}

/// Counts a batch, names what was refused, and wakes the lanes that have new rows.
fn note_taken(shared: &Shared, name: &str, taken: &Taken) {
    shared.observer.taken(name, taken);
    for (reason, rows) in &taken.refused {
        tracing::warn!(source = name, %reason, rows, "rows of a source were refused; `outbox-relay refused list` shows them");
    }
    let board = shared.board.lanes();
    for idle in taken.lanes.iter().filter_map(|lane| board.get(lane)) {
        shared.observer.wakeup(Wakeup::Poll);
        idle.wake.notify_one();
    }
}

/// Tells of a table that broke or is mended, once.
fn note_state(shared: &Shared, name: &str, error: Option<String>) {
    let changed = shared.intake_errors.send_if_modified(|errors| {
        if errors.get(name) == error.as_ref() {
            return false;
        }
        match &error {
            Some(detail) => errors.insert(name.to_owned(), detail.clone()),
            None => errors.remove(name),
        };
        true
    });
    if !changed {
        return;
    }
    shared.observer.intake_failing(name, error.is_some());
    match error {
        Some(detail) => {
            tracing::error!(source = name, error = %detail, "rows of a source cannot be taken; trying again, and `outbox-relay check` says more")
        }
        None => tracing::info!(source = name, "rows of a source are taken again"),
    }
}

async fn tidy<S: Session>(session: Arc<S>, index: usize) -> Result<(), SourceError> {
    let mut above = String::new();
    loop {
        let next = match session.tidy(index, &above).await {
            Ok(next) => next,
            Err(error @ SourceError::Lost(_)) => return Err(error),
            // Notes that stay cost room and nothing else; what is wrong with the table is told where its rows are taken.
            Err(SourceError::Again(detail) | SourceError::Refused(detail)) => {
                tracing::debug!(source = index, error = %detail, "notes of rows that are gone stay for now");
                None
            }
        };
        let wait_ms = if next.is_some() { TIDY_BUSY_MS } else { TIDY_IDLE_MS };
        above = next.unwrap_or_default();
        tokio::time::sleep(Duration::from_millis(wait_ms)).await;
    }
}
