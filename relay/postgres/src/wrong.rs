//! What the mutants of `outbox_core::mutant` change in the statements. In a build without them this is nothing.

use std::borrow::Cow;
use std::hash::{BuildHasher, RandomState};

use outbox_core::{Page, mutant};

/// The statement as this process sends it.
pub(crate) fn twisted(sql: &str) -> Cow<'_, str> {
    let shared = mutant("skip_locked");
    if mutant("mark_any_epoch") && sql.contains("Called by: mark.rs") || shared {
        return without_fence(sql).into();
    }
    if mutant("renew_any_epoch") && sql.contains("l.expires_at < clock_timestamp()") {
        return without_fence(sql).into();
    }
    sql.into()
}

/// Neither owner nor epoch count in the statements that mark, hold and renew.
fn without_fence(sql: &str) -> String {
    sql.replace("SELECT l.lane, l.epoch\n", "SELECT l.lane, o.epoch\n")
        .replace(" AND o.epoch = l.epoch", "")
        .replace(" AND l.owner = $2 AND l.epoch = $4", "")
        .replace(
            "l.epoch = mine.epoch AND l.owner = $2\n    RETURNING l.lane, l.epoch",
            "true RETURNING l.lane, mine.epoch",
        )
        .replace("WHERE l.source = $1 AND l.owner = $2", "WHERE l.source = $1")
}

/// Another relay has locked some of the rows and publishes them.
pub(crate) fn share(page: &mut Page) {
    let mut locked_by_others = Vec::new();
    page.rows.retain(|row| {
        let ours = RandomState::new().hash_one(row.id.seq) & 1 == 0;
        if !ours {
            locked_by_others.push(row.id.seq);
        }
        ours
    });
    page.whole_to = locked_by_others.first().map_or(page.whole_to, |first| first - 1);
}
