//! `refused`: rows of sources that cannot become a message; once they are mended they are tried again.

use std::io::Write as _;

use outbox_postgres::retry_refused;
use serde::Serialize;
use serde_json::json;
use tokio_postgres::types::{ToSql, Type};

use super::parked::confirmed;
use crate::backlog::decoded;
use crate::cli::{Output, Refused};
use crate::config::{Database, SourceTable};
use crate::database::{answered, connect, reading, writing};
use crate::exit::{Exit, Failure, Outcome};
use crate::output::{self, printable};

#[derive(Debug, Serialize)]
struct Entry {
    source: String,
    row_id: String,
    reason: String,
    detail: Option<String>,
    noted_at: String,
}

const ENTRIES_SQL: &str = "
    SELECT source, row_id, reason, detail, to_char(noted_at AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"')
      FROM outbox.source_row WHERE state = 'refused' AND ($1::text IS NULL OR source = $1)
     ORDER BY source, row_id LIMIT $2";

const MATCHING_SQL: &str = "
    SELECT count(*) FROM outbox.source_row
     WHERE state = 'refused' AND source = $1 AND ($2::text[] IS NULL OR row_id = ANY ($2))";

/// Looks or acts.
pub async fn refused(
    database: &Database,
    tables: &[SourceTable],
    action: &Refused,
    form: Output,
    out: &mut Vec<u8>,
) -> Outcome<Exit> {
    match action {
        Refused::List { source, limit } => list(database, source.as_deref(), *limit, form, out).await,
        Refused::Retry { source, ids, all: _, yes } => {
            let Some(table) = tables.iter().find(|table| table.intake.name == *source) else {
                let text = format!("no source is named '{source}' in the configuration; give it with --config");
                return Err(Failure::text(Exit::Configuration, text));
            };
            let ids = (!ids.is_empty()).then_some(ids.as_slice());
            retry(database, table, ids, *yes, form, out).await
        }
    }
}

async fn list(database: &Database, source: Option<&str>, limit: u32, form: Output, out: &mut Vec<u8>) -> Outcome<Exit> {
    let mut client = connect(database).await?;
    let transaction = reading(&mut client).await?;
    let limit_rows = i64::from(limit);
    let parameters: [(&(dyn ToSql + Sync), Type); 2] = [(&source, Type::TEXT), (&limit_rows, Type::INT8)];
    let rows = answered("cannot read the notes of sources", transaction.query_typed(ENTRIES_SQL, &parameters)).await?;
    let entries = decoded(&rows, |row| {
        Ok(Entry {
            source: row.try_get(0)?,
            row_id: row.try_get(1)?,
            reason: row.try_get(2)?,
            detail: row.try_get(3)?,
            noted_at: row.try_get(4)?,
        })
    })?;
    match form {
        Output::Json => output::json(out, &entries)?,
        Output::Text if entries.is_empty() => writeln!(out, "nothing is refused")?,
        Output::Text => {
            let cells = |entry: &Entry| {
                let detail = entry.detail.as_deref().map_or_else(|| "-".to_owned(), printable);
                let (source, id) = (printable(&entry.source), printable(&entry.row_id));
                vec![source, id, printable(&entry.reason), entry.noted_at.clone(), detail]
            };
            let rows: Vec<Vec<String>> = entries.iter().map(cells).collect();
            output::table(out, &["source", "id", "reason", "since", "detail"], &rows)?;
            if entries.len() == limit as usize {
                writeln!(out, "perhaps more; --limit {} shows more", limit.saturating_mul(10))?;
            }
        }
    }
    Ok(Exit::Done)
}

async fn retry(
    database: &Database,
    source: &SourceTable,
    ids: Option<&[String]>,
    yes: bool,
    form: Output,
    out: &mut Vec<u8>,
) -> Outcome<Exit> {
    let mut client = connect(database).await?;
    let owned = ids.map(<[String]>::to_vec);
    let parameters: [(&(dyn ToSql + Sync), Type); 2] = [(&source.intake.name, Type::TEXT), (&owned, Type::TEXT_ARRAY)];
    let rows = answered("cannot read the notes of sources", client.query_typed(MATCHING_SQL, &parameters)).await?;
    let matching: i64 = decoded(&rows, |row| row.try_get(0))?.first().copied().unwrap_or_default();
    if matching > 0 && !yes && !confirmed("try again", matching).await? {
        return Err(Failure::text(Exit::Failed, "nothing was changed"));
    }
    let (mut retried, mut left) = (0, usize::try_from(matching).unwrap_or(usize::MAX));
    // No more than were there at the start: a running relay may refuse the same rows again meanwhile.
    while left > 0 {
        let transaction = writing(&mut client).await?;
        let batch = answered("cannot free refused rows", retry_refused(&transaction, &source.table, ids)).await?;
        answered("the outcome is unknown; look again", transaction.commit()).await?;
        retried += batch;
        left = if batch == 0 { 0 } else { left.saturating_sub(batch) };
    }
    match form {
        Output::Json => output::json(out, &json!({ "retried": retried }))?,
        Output::Text if retried == 0 => writeln!(out, "nothing matches")?,
        Output::Text => writeln!(out, "retried {retried}")?,
    }
    Ok(Exit::Done)
}
