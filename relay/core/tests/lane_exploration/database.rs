//! The tables of one lane, with the meaning of the statements in `relay/postgres/src/sql`. Rows are numbered 1 to 3:
//! 1 and 3 share a key, 2 has none and may commit last.

use std::collections::BTreeMap;
use std::sync::Arc;

use outbox_core::{Claimed, Content, Headers, HoldEntry, Horizon, Origin, Page, Row, RowId, Timestamp, TxId};

pub const ROWS: i64 = 3;
const FIRST_XID: u64 = 100;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fate {
    Absent,
    Open,
    Committed,
    RolledBack,
}

/// Whether a waiting row's time has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Waiting {
    pub due: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Database {
    pub rows: BTreeMap<i64, Fate>,
    pub sent: Vec<i64>,
    pub held: BTreeMap<i64, Waiting>,
    pub owner: Option<u8>,
    pub epoch: i64,
    pub expired: bool,
    next_xid: u64,
    xids: BTreeMap<i64, u64>,
}

pub fn key(seq: i64) -> Option<Arc<str>> {
    (seq != 2).then(|| "k".into())
}

impl Database {
    /// `late`: the first two transactions are under way; else they are committed, and the third is under way.
    pub fn new(late: bool) -> Self {
        let mut database = Self {
            rows: (1..=ROWS).map(|seq| (seq, Fate::Absent)).collect(),
            sent: Vec::new(),
            held: BTreeMap::new(),
            owner: None,
            epoch: 0,
            expired: false,
            next_xid: FIRST_XID,
            xids: BTreeMap::new(),
        };
        database.begin(1);
        database.begin(2);
        if !late {
            database.rows.insert(1, Fate::Committed);
            database.rows.insert(2, Fate::Committed);
            database.begin(3);
        }
        database
    }

    pub fn begin(&mut self, seq: i64) {
        self.xids.insert(seq, self.next_xid);
        self.next_xid += 1;
        self.rows.insert(seq, Fate::Open);
    }

    pub fn state(&self, seq: i64) -> Fate {
        self.rows.get(&seq).copied().unwrap_or(Fate::Absent)
    }

    pub fn is_committed(&self, seq: i64) -> bool {
        self.state(seq) == Fate::Committed
    }

    pub fn last_seq(&self) -> i64 {
        self.rows.iter().filter(|(_, state)| **state != Fate::Absent).map(|(seq, _)| *seq).max().unwrap_or(0)
    }

    pub fn horizon(&mut self) -> Horizon {
        self.next_xid += 1;
        Horizon { last_seq: self.last_seq(), xid: self.next_xid - 1 }
    }

    fn xmin(&self) -> u64 {
        let open = self.rows.iter().filter(|(_, state)| **state == Fate::Open);
        open.filter_map(|(seq, _)| self.xids.get(seq)).min().copied().unwrap_or(self.next_xid)
    }

    pub fn owns(&self, owner: u8, epoch: i64) -> bool {
        self.owner == Some(owner) && self.epoch == epoch
    }

    /// Sent is sent, whoever says so; but a stale owner is not heard.
    pub fn mark(&mut self, owner: u8, epoch: i64, rows: &[RowId]) -> bool {
        if !self.owns(owner, epoch) {
            return false;
        }
        for row in rows {
            if !self.sent.contains(&row.seq) {
                self.sent.push(row.seq);
                self.sent.sort_unstable();
            }
            self.held.remove(&row.seq);
        }
        true
    }

    pub fn hold(&mut self, owner: u8, epoch: i64, entries: &[HoldEntry], fenced: bool) -> bool {
        if fenced && !self.owns(owner, epoch) {
            return false;
        }
        for entry in entries {
            // Without the fence the look at `sent_at` may be older than the write.
            if !self.sent.contains(&entry.id.seq) || !fenced {
                self.held.insert(entry.id.seq, Waiting { due: entry.delay_ms.is_none() });
            }
        }
        true
    }

    /// One page of everything that may be taken, in one snapshot.
    pub fn page(&self, low: i64, exclude: &[i64]) -> Page {
        let mut rows = Vec::new();
        for seq in 1..=ROWS {
            if !self.is_committed(seq) || self.sent.contains(&seq) || exclude.contains(&seq) {
                continue;
            }
            let blocked =
                key(seq).is_some() && self.held.range(..seq).any(|(lower, held)| key(*lower).is_some() && !held.due);
            match self.held.get(&seq) {
                Some(held) if held.due && !blocked => {
                    rows.push(self.claimed(seq, Origin::Held { probe: false }, false))
                }
                Some(_) => {}
                None if seq > low => rows.push(self.claimed(seq, Origin::Fresh, blocked)),
                None => {}
            }
        }
        Page { rows, whole_to: i64::MAX, snapshot_xmin: self.xmin(), now: Timestamp(0) }
    }

    fn claimed(&self, seq: i64, origin: Origin, blocked: bool) -> Claimed {
        let id = self.id(seq);
        let row = Row {
            id,
            idempotency_key: seq.to_string(),
            topic: "t".into(),
            ordering_key: key(seq),
            payload: None,
            content_type: "".into(),
            headers: Headers::default(),
            created_at: Timestamp(0),
            available_at: None,
            attempts: 0,
            held_since: None,
        };
        let content = if blocked { Content::Blocked } else { Content::Row(Arc::new(row)) };
        Claimed { id, origin, ordering_key: key(seq), content }
    }

    fn id(&self, seq: i64) -> RowId {
        RowId { seq, tx: TxId(self.xids.get(&seq).copied().unwrap_or(0)) }
    }

    /// Of these rows, those that are still unsent.
    pub fn recheck(&self, rows: &[(RowId, String)]) -> Vec<RowId> {
        rows.iter().map(|(id, _)| *id).filter(|id| !self.sent.contains(&id.seq)).collect()
    }
}
