//! mark: records rows as sent, fenced; and reads rows again that were kept over a lost session.

use outbox_core::{Lease, MarkOrder, RowId, SourceError, TxId};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use crate::config::PostgresConfig;
use crate::connection::Connection;
use crate::errors::classify;
use crate::types::Xid8;

/// Marks the rows of all orders in one statement; the leases that were stale come back.
pub(crate) async fn mark(
    connection: &Connection,
    config: &PostgresConfig,
    orders: &[MarkOrder],
) -> Result<Vec<Lease>, SourceError> {
    let leases: Vec<Lease> = orders.iter().map(|order| order.lease).collect();
    let (lanes, epochs) = crate::lanes::columns(&leases);
    let each = orders.iter().flat_map(|order| order.rows.iter().map(move |row| (order.lease, row)));
    let (mut row_lanes, mut row_epochs, mut seqs, mut txs) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for (lease, row) in each {
        row_lanes.push(lease.lane);
        row_epochs.push(lease.epoch);
        seqs.push(row.seq);
        txs.push(Xid8::from(row.tx));
    }
    let rows = connection
        .query(
            include_str!("sql/mark.sql"),
            &[
                (&config.source, Type::TEXT),
                (&config.relay_id, Type::UUID),
                (&lanes, Type::INT2_ARRAY),
                (&epochs, Type::INT8_ARRAY),
                (&config.lock_timeout(), Type::TEXT),
                (&row_lanes, Type::INT2_ARRAY),
                (&row_epochs, Type::INT8_ARRAY),
                (&seqs, Type::INT8_ARRAY),
                (&txs, Type::XID8_ARRAY),
            ],
        )
        .await?;
    let lease = |row: &Row| -> Result<Lease, tokio_postgres::Error> {
        Ok(Lease { lane: row.try_get("lane")?, epoch: row.try_get("epoch")? })
    };
    let valid = rows.iter().map(lease).collect::<Result<Vec<_>, _>>().map_err(|error| classify(&error))?;
    Ok(leases.into_iter().filter(|lease| !valid.contains(lease)).collect())
}

/// Of these rows, those that are still there, the same, and unsent.
pub(crate) async fn recheck(connection: &Connection, rows: &[(RowId, String)]) -> Result<Vec<RowId>, SourceError> {
    let seqs: Vec<i64> = rows.iter().map(|(id, _)| id.seq).collect();
    let txs: Vec<Xid8> = rows.iter().map(|(id, _)| Xid8::from(id.tx)).collect();
    let keys: Vec<&str> = rows.iter().map(|(_, key)| key.as_str()).collect();
    let still = connection
        .query(
            include_str!("sql/recheck.sql"),
            &[(&seqs, Type::INT8_ARRAY), (&txs, Type::XID8_ARRAY), (&keys, Type::TEXT_ARRAY)],
        )
        .await?;
    let id = |row: &Row| -> Result<RowId, tokio_postgres::Error> {
        let tx: Xid8 = row.try_get("tx")?;
        Ok(RowId { seq: row.try_get("seq")?, tx: TxId(tx.0) })
    };
    still.iter().map(|row| id(row).map_err(|error| classify(&error))).collect()
}
