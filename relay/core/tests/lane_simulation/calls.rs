//! Statements under way between a relay and the database. Each runs in one or more instants, and its reply may
//! come late, never, or after its session.

use outbox_core::{Acquired, ClaimRequest, Fenced, HoldEntry, Horizon, Lease, Page, RowId};

use crate::claim::{Candidates, Part};
use crate::db::Db;
use crate::relay::{Instant, LEASE_MS};
use crate::variant::Variant;

/// What a claim's answer is judged with.
#[derive(Clone, Debug)]
pub struct Asked {
    pub horizon: Option<Horizon>,
}

#[derive(Clone, Debug)]
pub enum Ask {
    Claim {
        request: Box<ClaimRequest>,
        asked: Asked,
        /// Each is one instant; one statement has one.
        statements: Vec<Vec<Part>>,
        candidates: Candidates,
        read: Option<(Page, Instant)>,
    },
    Hold {
        entries: Vec<HoldEntry>,
        /// What its snapshot lets it write.
        seen: Option<Vec<HoldEntry>>,
    },
    Mark {
        rows: Vec<RowId>,
    },
    /// Only a variant: the second half of a mark.
    Leave {
        rows: Vec<RowId>,
    },
    Heartbeat {
        epoch: Option<i64>,
        asked_at_ms: u64,
    },
    Acquire {
        known: Option<i64>,
        asked_at_ms: u64,
    },
    Recheck {
        lease: Lease,
        rows: Vec<(RowId, String)>,
        asked_at_ms: u64,
    },
    Horizon {
        last_seq: Option<i64>,
    },
}

impl Ask {
    pub fn claim(request: ClaimRequest, asked: Asked) -> Self {
        let statements = vec![vec![Part::Fresh, Part::Delayed, Part::Waiting]];
        Self::Claim { request: Box::new(request), asked, statements, candidates: Candidates::default(), read: None }
    }

    pub const fn hold(entries: Vec<HoldEntry>) -> Self {
        Self::Hold { entries, seen: None }
    }

    /// Between its look and its write.
    pub const fn is_half_done(&self) -> bool {
        matches!(self, Self::Hold { seen: Some(_), .. })
    }

    /// A statement that changes something goes on without its client.
    pub const fn may_run_late(&self) -> bool {
        matches!(self, Self::Hold { .. } | Self::Mark { .. } | Self::Leave { .. } | Self::Acquire { .. })
    }
}

#[derive(Clone, Debug)]
pub enum Reply {
    /// The relay's row is gone, or the connection is.
    Lost,
    Page {
        page: Page,
        request: Box<ClaimRequest>,
        asked: Asked,
        at: Instant,
    },
    Held(Fenced),
    Marked(bool),
    Beat {
        kept: bool,
        free: bool,
        asked_at_ms: u64,
    },
    Acquired {
        acquired: Option<Acquired>,
        asked_at_ms: u64,
    },
    Rechecked {
        lease: Lease,
        still: Vec<RowId>,
        asked_at_ms: u64,
    },
    Horizon(Horizon),
}

#[derive(Debug)]
pub struct Call {
    pub owner: u32,
    pub epoch: i64,
    pub session: u64,
    pub ask: Ask,
    pub reply: Option<Reply>,
    /// Its client is gone.
    pub orphan: bool,
}

impl Call {
    /// Runs the next instant of the statement. A relay without its row in `outbox.relay` is told so by claims and
    /// heartbeats.
    pub fn run(&mut self, db: &mut Db, step: usize) {
        let alive = db.relays.contains(&self.owner) || db.variant == Variant::ConnectionReplacedUnseen;
        self.reply = match &mut self.ask {
            Ask::Claim { .. } | Ask::Heartbeat { .. } if !alive => Some(Reply::Lost),
            Ask::Claim { request, asked, statements, candidates, read } => match read.take() {
                Some((page, at)) => {
                    if db.variant != Variant::NoFence && !page.rows.is_empty() {
                        db.flush();
                    }
                    Some(Reply::Page { page, request: request.clone(), asked: asked.clone(), at })
                }
                None => {
                    let parts = statements.remove(0);
                    db.read(request, &parts, candidates);
                    if statements.is_empty() {
                        let page = db.page(request, std::mem::take(candidates));
                        *read = Some((page, Instant { step, now_ms: db.now_ms }));
                    }
                    None
                }
            },
            Ask::Hold { entries, seen } => match seen.take() {
                Some(seen) => {
                    db.hold_write(&seen);
                    Some(Reply::Held(Fenced::Done))
                }
                None => {
                    *seen = db.hold_look(self.owner, self.epoch, entries);
                    seen.is_none().then_some(Reply::Held(Fenced::Stale))
                }
            },
            Ask::Mark { rows } => {
                let marked = db.mark(self.owner, self.epoch, rows);
                if marked && db.variant == Variant::ReleaseApart {
                    self.ask = Ask::Leave { rows: std::mem::take(rows) };
                    None
                } else {
                    Some(Reply::Marked(marked))
                }
            }
            Ask::Leave { rows } => {
                db.leave_held(rows);
                Some(Reply::Marked(true))
            }
            Ask::Heartbeat { epoch, asked_at_ms } => {
                let kept = db.heartbeat(self.owner, *epoch, LEASE_MS);
                let free = db.expired() || db.is_owner(self.owner) && epoch.is_none();
                Some(Reply::Beat { kept, free, asked_at_ms: *asked_at_ms })
            }
            Ask::Acquire { known, asked_at_ms } => {
                let acquired = db.acquire(self.owner, *known, LEASE_MS);
                Some(Reply::Acquired { acquired, asked_at_ms: *asked_at_ms })
            }
            Ask::Recheck { lease, rows, asked_at_ms } => {
                Some(Reply::Rechecked { lease: *lease, still: db.recheck(rows), asked_at_ms: *asked_at_ms })
            }
            Ask::Horizon { last_seq } => match *last_seq {
                None => {
                    *last_seq = Some(db.last_seq());
                    None
                }
                Some(last_seq) => Some(Reply::Horizon(db.horizon(last_seq))),
            },
        };
    }
}
