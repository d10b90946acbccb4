//! The simulated database: one lane's tables, transactions under way, and what of it is on disk.
//!
//! Statements have exactly the meaning of the files in `relay/postgres/src/sql`; each runs at one instant. A crash
//! brings back what was flushed last and gives numbers and transaction ids out again.

use std::collections::{BTreeMap, HashSet};

use outbox_core::{Acquired, HoldEntry, HoldState, Horizon, Lease, RowId, TxId};

use crate::variant::Variant;

pub const LANE: i16 = 0;

/// Names one inserted row for ever, also where numbers are given out twice.
pub type Uid = usize;

#[derive(Clone, Debug)]
pub struct DbRow {
    pub uid: Uid,
    pub id: RowId,
    pub key: Option<u8>,
    pub topic: u8,
    pub available_at: Option<u64>,
    pub sent: bool,
    /// The simulation's step at which it became visible.
    pub committed_at: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    Waiting,
    Parked,
    Discarded,
}

#[derive(Clone, Debug)]
pub struct Held {
    pub uid: Uid,
    pub tx: TxId,
    pub key: Option<u8>,
    pub standing: Standing,
    pub next_attempt_at: Option<u64>,
    pub reason: outbox_core::Reason,
    pub attempts: u32,
    pub gates: Vec<String>,
    pub held_since: u64,
}

/// Everything a crash can take back.
#[derive(Clone, Debug, Default)]
pub struct Tables {
    pub rows: BTreeMap<i64, DbRow>,
    pub held: BTreeMap<i64, Held>,
    owner: Option<u32>,
    epoch: i64,
    expires_at: u64,
    pub seq: i64,
    next_xid: u64,
}

/// A transaction of the application.
#[derive(Debug)]
pub struct Open {
    xid: u64,
    rows: Vec<DbRow>,
    pub keys: Vec<Option<u8>>,
}

pub struct Db {
    pub variant: Variant,
    pub block_key: bool,
    pub now_ms: u64,
    pub tables: Tables,
    durable: Tables,
    pub open: Vec<Open>,
    /// Holds between their look and their write: they share the lane's lock, so nobody can take it.
    pub sharing: usize,
    /// `outbox.relay`: unlogged, so empty after a crash.
    pub relays: HashSet<u32>,
    next_uid: Uid,
}

impl Db {
    pub fn new(variant: Variant, block_key: bool) -> Self {
        let tables = Tables { next_xid: 100, ..Tables::default() };
        Self {
            variant,
            block_key,
            now_ms: 1_000,
            durable: tables.clone(),
            tables,
            open: Vec::new(),
            sharing: 0,
            relays: HashSet::new(),
            next_uid: 0,
        }
    }

    fn take_xid(&mut self) -> u64 {
        self.tables.next_xid += 1;
        self.tables.next_xid - 1
    }

    /// The transaction id is taken before the number.
    pub fn begin(&mut self) -> usize {
        let xid = self.take_xid();
        self.open.push(Open { xid, rows: Vec::new(), keys: Vec::new() });
        self.open.len() - 1
    }

    pub fn insert(&mut self, open: usize, key: Option<u8>, topic: u8, available_at: Option<u64>) -> Uid {
        self.tables.seq += 1;
        let uid = self.next_uid;
        self.next_uid += 1;
        let open = &mut self.open[open];
        let id = RowId { seq: self.tables.seq, tx: TxId(open.xid) };
        open.rows.push(DbRow { uid, id, key, topic, available_at, sent: false, committed_at: 0 });
        open.keys.push(key);
        uid
    }

    pub fn commit(&mut self, open: usize, flush: bool, step: usize) -> Vec<Uid> {
        let open = self.open.remove(open);
        let uids = open.rows.iter().map(|row| row.uid).collect();
        for mut row in open.rows {
            row.committed_at = step;
            self.tables.rows.insert(row.id.seq, row);
        }
        if flush {
            self.flush();
        }
        uids
    }

    pub fn rollback(&mut self, open: usize) {
        self.open.remove(open);
    }

    pub fn flush(&mut self) {
        self.durable = self.tables.clone();
    }

    pub fn is_durable(&self, row: &DbRow) -> bool {
        self.durable.rows.get(&row.id.seq).is_some_and(|durable| durable.uid == row.uid)
    }

    pub fn durable_held(&self, seq: i64) -> Option<&Held> {
        self.durable.held.get(&seq)
    }

    pub fn crash(&mut self) {
        self.tables = self.durable.clone();
        self.open.clear();
        self.relays.clear();
        self.sharing = 0;
    }

    pub fn xmin(&self) -> u64 {
        self.open.iter().map(|open| open.xid).min().unwrap_or(self.tables.next_xid)
    }

    /// Reads the number first; `finish` takes the transaction id later.
    pub const fn last_seq(&self) -> i64 {
        self.tables.seq
    }

    pub fn horizon(&mut self, last_seq: i64) -> Horizon {
        let xid = self.take_xid();
        Horizon { last_seq, xid }
    }

    pub const fn expired(&self) -> bool {
        self.tables.owner.is_none() || self.tables.expires_at < self.now_ms
    }

    pub fn is_owner(&self, owner: u32) -> bool {
        self.tables.owner == Some(owner)
    }

    const fn owns(&self, owner: u32, epoch: i64) -> bool {
        matches!(self.tables.owner, Some(found) if found == owner) && self.tables.epoch == epoch
    }

    pub fn heartbeat(&mut self, owner: u32, epoch: Option<i64>, ttl_ms: u64) -> bool {
        let kept = epoch.is_some_and(|epoch| self.owns(owner, epoch));
        if kept {
            self.tables.expires_at = self.now_ms + ttl_ms;
        }
        kept
    }

    pub fn acquire(&mut self, owner: u32, known: Option<i64>, ttl_ms: u64) -> Option<Acquired> {
        let ours = self.tables.owner == Some(owner);
        if self.sharing > 0 || !ours && !self.expired() {
            return None;
        }
        let continuous = ours && known == Some(self.tables.epoch);
        if !(ours && self.variant == Variant::EpochKept) {
            self.tables.epoch += 1;
        }
        self.tables.owner = Some(owner);
        self.tables.expires_at = self.now_ms + ttl_ms;
        // Or a crash would give the epoch out again, to the same owner.
        self.flush();
        Some(Acquired { lease: Lease { lane: LANE, epoch: self.tables.epoch }, continuous })
    }

    /// mark.sql: false when the lease is stale.
    pub fn mark(&mut self, owner: u32, epoch: i64, rows: &[RowId]) -> bool {
        if !self.owns(owner, epoch) {
            return false;
        }
        for id in rows {
            if let Some(row) = self.tables.rows.get_mut(&id.seq).filter(|row| row.id.tx == id.tx) {
                row.sent = true;
            }
        }
        if self.variant != Variant::ReleaseApart {
            self.leave_held(rows);
        }
        true
    }

    pub fn leave_held(&mut self, rows: &[RowId]) {
        for id in rows {
            if self.tables.held.get(&id.seq).is_some_and(|held| held.tx == id.tx) {
                self.tables.held.remove(&id.seq);
            }
        }
    }

    /// hold.sql, first instant: the fence, and the rows that its snapshot shows unsent. `None`: stale.
    pub fn hold_look(&mut self, owner: u32, epoch: i64, entries: &[HoldEntry]) -> Option<Vec<HoldEntry>> {
        if self.variant != Variant::HoldNotFenced {
            if !self.owns(owner, epoch) {
                return None;
            }
            self.sharing += 1;
        }
        let takes_sent = self.variant == Variant::HoldTakesSent;
        let put_back =
            |entry: &HoldEntry| self.variant == Variant::BehindPutBack && entry.reason == outbox_core::Reason::Behind;
        let unsent = |entry: &&HoldEntry| {
            let row = self.tables.rows.get(&entry.id.seq);
            row.is_some_and(|row| row.id == entry.id && (!row.sent || takes_sent)) && !put_back(entry)
        };
        Some(entries.iter().filter(unsent).cloned().collect())
    }

    /// Second instant: the entries are written and committed.
    pub fn hold_write(&mut self, entries: &[HoldEntry]) {
        self.sharing = self.sharing.saturating_sub(1);
        for entry in entries {
            self.hold_one(entry);
        }
        self.flush();
    }

    fn hold_one(&mut self, entry: &HoldEntry) {
        let Some(row) = self.tables.rows.get(&entry.id.seq).filter(|row| row.id == entry.id) else { return };
        let known = self.tables.held.get(&entry.id.seq);
        if known.is_some_and(|held| held.standing != Standing::Waiting || held.tx != entry.id.tx) {
            return;
        }
        let held = Held {
            uid: row.uid,
            tx: entry.id.tx,
            key: row.key,
            standing: match entry.state {
                HoldState::Waiting => Standing::Waiting,
                HoldState::Parked => Standing::Parked,
            },
            next_attempt_at: entry.delay_ms.map(|delay_ms| self.now_ms + delay_ms),
            reason: entry.reason,
            attempts: entry.attempts,
            gates: entry.gates.clone(),
            held_since: known.map_or(self.now_ms, |held| held.held_since),
        };
        self.tables.held.insert(entry.id.seq, held);
    }

    /// recheck.sql.
    pub fn recheck(&self, rows: &[(RowId, String)]) -> Vec<RowId> {
        let still = |(id, key): &&(RowId, String)| {
            let row = self.tables.rows.get(&id.seq);
            row.is_some_and(|row| row.id == *id && !row.sent && *key == row.uid.to_string())
        };
        rows.iter().filter(still).map(|(id, _)| *id).collect()
    }

    pub fn retry(&mut self, seq: i64) {
        let Some(held) = self.tables.held.get_mut(&seq).filter(|held| held.standing == Standing::Parked) else {
            return;
        };
        held.standing = Standing::Waiting;
        held.attempts = 0;
        held.next_attempt_at = None;
        held.held_since = self.now_ms;
        if self.variant == Variant::RetryDeletesEntry {
            self.tables.held.remove(&seq);
        }
    }

    pub fn discard(&mut self, seq: i64) {
        let Some(held) = self.tables.held.get_mut(&seq) else { return };
        held.standing = Standing::Discarded;
        if self.variant == Variant::DiscardDeletesEntry {
            self.tables.held.remove(&seq);
        }
    }

    /// Retention: a sent row, or a discarded one together with its entry.
    pub fn prune(&mut self) -> Vec<Uid> {
        let mut gone = Vec::new();
        let seqs: Vec<i64> = self.tables.rows.keys().copied().collect();
        for seq in seqs {
            let discarded = self.tables.held.get(&seq).is_some_and(|held| held.standing == Standing::Discarded);
            if discarded || self.tables.rows[&seq].sent {
                gone.push(self.tables.rows[&seq].uid);
                self.tables.rows.remove(&seq);
                if discarded {
                    self.tables.held.remove(&seq);
                }
            }
        }
        gone
    }
}
