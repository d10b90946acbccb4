//! The way into the waiting room, fenced and synchronous.

use outbox_core::{Fenced, HoldEntry, HoldState, Lease, SourceError};
use serde_json::json;
use tokio_postgres::types::Type;

use crate::config::PostgresConfig;
use crate::connection::Connection;

/// An error text is cut here, in bytes.
const DETAIL_BYTES_MAX: usize = 1_000;

/// Commits one hold.
pub(crate) async fn hold(
    connection: &Connection,
    config: &PostgresConfig,
    lease: Lease,
    entries: &[HoldEntry],
) -> Result<Fenced, SourceError> {
    let entries: serde_json::Value = entries.iter().map(entry).collect();
    let rows = connection
        .query(
            include_str!("sql/hold.sql"),
            &[
                (&config.source, Type::TEXT),
                (&config.relay_id, Type::UUID),
                (&lease.lane, Type::INT2),
                (&lease.epoch, Type::INT8),
                (&config.lock_timeout(), Type::TEXT),
                (&entries, Type::JSONB),
            ],
        )
        .await?;
    Ok(if rows.is_empty() { Fenced::Stale } else { Fenced::Done })
}

fn entry(entry: &HoldEntry) -> serde_json::Value {
    let state = match entry.state {
        HoldState::Waiting => "waiting",
        HoldState::Parked => "parked",
    };
    json!({
        "seq": entry.id.seq,
        "tx": entry.id.tx.0.to_string(),
        "state": state,
        "attempts": i32::try_from(entry.attempts).unwrap_or(i32::MAX),
        "delay_ms": entry.delay_ms.map(|ms| i64::try_from(ms).unwrap_or(i64::MAX)),
        "reason": entry.reason.as_str(),
        "last_error": detail(&entry.detail),
        "gates": entry.gates,
    })
}

/// What the table can hold: no NUL, and not a page of text.
fn detail(text: &str) -> Option<String> {
    let clean: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let mut end = clean.len().min(DETAIL_BYTES_MAX);
    while !clean.is_char_boundary(end) {
        end -= 1;
    }
    (end > 0).then(|| clean[..end].to_owned())
}
