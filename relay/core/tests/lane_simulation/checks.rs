//! The promises, checked at every step and at the end.

use std::collections::HashSet;

use crate::broker::{Brokers, Message};
use crate::claim::key_name;
use crate::db::{Db, DbRow, Standing, Uid};

/// What the checks remember beside the tables.
#[derive(Default)]
pub struct Ledger {
    /// Removed by retention: they were there, and are settled.
    pub pruned: HashSet<Uid>,
    /// Given up once by an operator or by policy: free of the order.
    pub retried: HashSet<Uid>,
}

/// At every change: marks tell the truth, and no row is both sent and held.
pub fn tables(db: &Db, brokers: &Brokers) -> Result<(), String> {
    for row in db.tables.rows.values().filter(|row| row.sent) {
        if !brokers.arrived.contains(&row.uid) {
            return Err(format!("row {} ({}) is marked sent and never arrived", row.uid, row.id.seq));
        }
        if let Some(held) = db.tables.held.get(&row.id.seq) {
            return Err(format!("row {} ({}) is sent and {:?}", row.uid, row.id.seq, held.standing));
        }
    }
    Ok(())
}

/// When a message arrives: its row is committed for good, and no earlier row of its key is passed over.
pub fn arrival(message: &Message, db: &Db, brokers: &Brokers, ledger: &Ledger) -> Result<(), String> {
    if ledger.pruned.contains(&message.uid) {
        return Ok(());
    }
    let row = db.tables.rows.get(&message.seq).filter(|row| row.uid == message.uid);
    if !row.is_some_and(|row| db.is_durable(row)) {
        return Err(format!("row {} ({}) arrived and may never have been", message.uid, message.seq));
    }
    if brokers.arrived.contains(&message.uid) || ledger.retried.contains(&message.uid) {
        return Ok(());
    }
    let Some(key) = &message.key else { return Ok(()) };
    for lower in db.tables.rows.range(..message.seq).map(|(_, row)| row) {
        let of_key = lower.key.map(key_name).as_ref() == Some(key);
        let visible = lower.committed_at <= message.claimed.step
            && lower.available_at.is_none_or(|at| at <= message.claimed.now_ms);
        if of_key && visible && !brokers.arrived.contains(&lower.uid) && !may_be_passed(lower, db, ledger) {
            return Err(format!("{key}: {} arrived before {}, which could be seen", message.seq, lower.id.seq));
        }
    }
    Ok(())
}

/// Parked for good under `continue`, discarded, or put back by an operator.
fn may_be_passed(row: &DbRow, db: &Db, ledger: &Ledger) -> bool {
    let standing = db.durable_held(row.id.seq).map(|held| held.standing);
    ledger.retried.contains(&row.uid)
        || standing == Some(Standing::Discarded)
        || standing == Some(Standing::Parked) && !db.block_key
}

/// What arrived must outlive a crash.
pub fn after_crash(db: &Db, brokers: &Brokers, ledger: &Ledger) -> Result<(), String> {
    let there: HashSet<Uid> = db.tables.rows.values().map(|row| row.uid).collect();
    match brokers.arrived.iter().find(|uid| !there.contains(uid) && !ledger.pruned.contains(uid)) {
        Some(uid) => Err(format!("row {uid} arrived and a crash undid it")),
        None => Ok(()),
    }
}

/// Rows that are neither sent nor given up; behind a parked row they rest under `block_key`.
pub fn unsettled(db: &Db) -> Vec<i64> {
    let open = |row: &&DbRow| {
        let standing = db.tables.held.get(&row.id.seq).map(|held| held.standing);
        let blocked = || {
            let mut lower = db.tables.held.range(..row.id.seq).map(|(_, held)| held);
            db.block_key
                && row.key.is_some()
                && lower.any(|held| held.key == row.key && held.standing == Standing::Parked)
        };
        !row.sent && !matches!(standing, Some(Standing::Parked | Standing::Discarded)) && !blocked()
    };
    db.tables.rows.values().filter(open).map(|row| row.id.seq).collect()
}
