//! Leases and heartbeats. Only the database's clock decides what has expired.

use std::time::Duration;

use outbox_core::{Acquired, Heartbeat, Lease, SourceError, mutant};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use crate::config::PostgresConfig;
use crate::connection::Connection;
use crate::errors::classify;

pub(crate) async fn register(connection: &Connection, config: &PostgresConfig) -> Result<(), SourceError> {
    let pid = i32::try_from(std::process::id()).unwrap_or(0);
    connection
        .query(
            include_str!("sql/register.sql"),
            &[
                (&config.relay_id, Type::UUID),
                (&config.version, Type::TEXT),
                (&config.host, Type::TEXT),
                (&pid, Type::INT4),
            ],
        )
        .await?;
    Ok(())
}

pub(crate) async fn heartbeat(
    connection: &Connection,
    config: &PostgresConfig,
    owned: &[Lease],
) -> Result<Heartbeat, SourceError> {
    let (lanes, epochs) = columns(owned);
    let half_lease = Duration::from_millis((config.lease_ttl_ms / 2).max(250));
    let rows = connection
        .query_within(
            half_lease,
            include_str!("sql/heartbeat.sql"),
            &[
                (&config.source, Type::TEXT),
                (&config.relay_id, Type::UUID),
                (&lanes, Type::INT2_ARRAY),
                (&epochs, Type::INT8_ARRAY),
                (&config.lease_ttl(), Type::INT8),
            ],
        )
        .await?;
    let row = rows.first().ok_or_else(|| SourceError::Lost("the heartbeat came back empty".to_owned()))?;
    let read = |row: &Row| -> Result<(bool, Heartbeat), tokio_postgres::Error> {
        let lanes: Vec<i16> = row.try_get("lanes")?;
        let epochs: Vec<i64> = row.try_get("epochs")?;
        let relays: i64 = row.try_get("relays")?;
        let rank: i64 = row.try_get("rank")?;
        let beat = Heartbeat {
            kept: lanes.into_iter().zip(epochs).map(|(lane, epoch)| Lease { lane, epoch }).collect(),
            relays_alive: usize::try_from(relays).unwrap_or(1).max(1),
            free: row.try_get("free")?,
            rank: usize::try_from(rank).unwrap_or(0),
        };
        Ok((row.try_get("known")?, beat))
    };
    let (known, mut beat) = read(row).map_err(|error| classify(&error))?;
    if mutant("skip_locked") {
        let free = (0..16).filter(|lane| owned.iter().all(|lease| lease.lane != *lane)).collect();
        beat = Heartbeat { kept: owned.to_vec(), relays_alive: 1, rank: 0, free };
    }
    if known {
        Ok(beat)
    } else {
        Err(SourceError::Lost(
            "this relay's entry in outbox.relay is gone: the database crashed, failed over, or the relay was paused"
                .to_owned(),
        ))
    }
}

pub(crate) async fn acquire(
    connection: &Connection,
    config: &PostgresConfig,
    wanted: &[(i16, Option<i64>)],
) -> Result<Vec<Acquired>, SourceError> {
    if mutant("skip_locked") {
        let all = wanted.iter().map(|(lane, _)| Acquired { lease: Lease { lane: *lane, epoch: 1 }, continuous: false });
        return Ok(all.collect());
    }
    let (lanes, epochs): (Vec<i16>, Vec<Option<i64>>) = wanted.iter().copied().unzip();
    let rows = connection
        .query(
            include_str!("sql/acquire.sql"),
            &[
                (&config.source, Type::TEXT),
                (&config.relay_id, Type::UUID),
                (&lanes, Type::INT2_ARRAY),
                (&epochs, Type::INT8_ARRAY),
                (&config.lease_ttl(), Type::INT8),
            ],
        )
        .await?;
    let acquired = |row: &Row| -> Result<Acquired, tokio_postgres::Error> {
        let lease = Lease { lane: row.try_get("lane")?, epoch: row.try_get("epoch")? };
        Ok(Acquired { lease, continuous: row.try_get("continuous")? })
    };
    rows.iter().map(|row| acquired(row).map_err(|error| classify(&error))).collect()
}

pub(crate) async fn release(
    connection: &Connection,
    config: &PostgresConfig,
    leases: &[Lease],
) -> Result<(), SourceError> {
    let (lanes, epochs) = columns(leases);
    connection
        .query(
            include_str!("sql/release.sql"),
            &[
                (&config.source, Type::TEXT),
                (&config.relay_id, Type::UUID),
                (&lanes, Type::INT2_ARRAY),
                (&epochs, Type::INT8_ARRAY),
            ],
        )
        .await?;
    Ok(())
}

pub(crate) async fn leave(connection: &Connection, config: &PostgresConfig) -> Result<(), SourceError> {
    connection.query("DELETE FROM outbox.relay WHERE id = $1", &[(&config.relay_id, Type::UUID)]).await?;
    Ok(())
}

pub(crate) fn columns(leases: &[Lease]) -> (Vec<i16>, Vec<i64>) {
    leases.iter().map(|lease| (lease.lane, lease.epoch)).unzip()
}
