//! Wrong relays on purpose, for the tests that must catch them. Without the cargo feature `mutants`, which no
//! release has, every question is answered with a constant no and the compiler removes the branch.
//!
//! | name | the rule it breaks |
//! |---|---|
//! | `no_fence` | rows are published before they are durable |
//! | `keep_positions` | `low` is kept over a lost database session |
//! | `cursor` | `low` is the highest number seen |
//! | `visible_maximum` | `low` is the highest number seen by a whole claim, late commits or not |
//! | `no_own_xid` | `low` moves to the sequence's last number without waiting for older transactions |
//! | `sweep_apart` | rows that committed late are read by a second statement |
//! | `mark_before_confirm` | rows are marked when they are handed to the broker |
//! | `mark_on_timeout` | an unknown outcome counts as sent |
//! | `new_id_on_retry` | a row that goes again gets another message id |
//! | `free_key` | a failed row does not hold back its key |
//! | `trust_pairing` | a return is put down to the row whose confirm carries it |
//! | `two_tasks` | all publishing tasks share one channel |
//! | `renew_any_epoch` | a renewal does not name owner and epoch |
//! | `mark_any_epoch` | a mark does not name owner and epoch |
//! | `skip_locked` | relays share the rows of a lane, as claims with SKIP LOCKED do |
//! | `long_window` | rows go out although the lease is over |
//!
//! The same build can die at named points between the steps of a row's journey ([`crash_point`]).

/// Whether this process is that mutant (`OUTBOX_MUTANT`).
#[cfg(feature = "mutants")]
#[must_use]
pub fn mutant(name: &str) -> bool {
    static NAME: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();
    NAME.get_or_init(|| std::env::var("OUTBOX_MUTANT").ok()).as_deref() == Some(name)
}

/// No: this build has no mutants.
#[cfg(not(feature = "mutants"))]
#[must_use]
pub const fn mutant(_: &str) -> bool {
    false
}

/// Ends the process without a word when it passes this point for the nth time (`OUTBOX_CRASH_POINT=name:n`).
#[cfg(feature = "mutants")]
pub fn crash_point(name: &str) {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU32, Ordering};
    static POINT: OnceLock<Option<(String, AtomicU32)>> = OnceLock::new();
    let point = POINT.get_or_init(|| {
        let wanted = std::env::var("OUTBOX_CRASH_POINT").ok()?;
        let (name, count) = wanted.split_once(':')?;
        Some((name.to_owned(), AtomicU32::new(count.parse().ok()?)))
    });
    if let Some((wanted, left)) = point
        && wanted == name
        && left.fetch_sub(1, Ordering::Relaxed) == 1
    {
        std::process::abort();
    }
}

/// Nothing: this build has no crash points.
#[cfg(not(feature = "mutants"))]
pub const fn crash_point(_: &str) {}
