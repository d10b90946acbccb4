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
