//! What a lane keeps of a page beside its rows.

use crate::decide::History;
use crate::row::{Row, Timestamp};
use crate::source::Page;

/// What a page says of itself, without its rows.
#[derive(Clone, Copy, Debug)]
pub struct PageFacts {
    pub whole_to: i64,
    pub snapshot_xmin: u64,
    pub now: Timestamp,
}

impl PageFacts {
    pub(super) fn history(&self, row: &Row) -> History {
        let held_for_ms = row.held_since.map_or(0, |at| u64::try_from((self.now.0 - at.0) / 1_000).unwrap_or(0));
        History { attempts: row.attempts, held_for_ms }
    }
}

impl From<&Page> for PageFacts {
    fn from(page: &Page) -> Self {
        Self { whole_to: page.whole_to, snapshot_xmin: page.snapshot_xmin, now: page.now }
    }
}
