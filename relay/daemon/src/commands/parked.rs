//! `parked`: look at rows that were given up, send them again or drop them. Works with and without a running relay.
//!
//! Payload and headers are never printed unless asked for by name. Nothing matching is no error. Retry and discard are
//! the schema's own functions, so that an operator's login needs no right to write.

use std::io::{BufRead as _, IsTerminal as _, Write};

use outbox_core::Reason;
use serde::Serialize;
use serde_json::json;
use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};

use crate::cli::{Act, Choice, Output, Parked};
use crate::config::Database;
use crate::database::{answered, connect, explain, reading, writing};
use crate::exit::{Exit, Failure, Outcome};
use crate::output::{self, printable};

#[derive(Debug, Serialize)]
struct Entry {
    seq: i64,
    idempotency_key: Option<String>,
    topic: Option<String>,
    ordering_key: Option<String>,
    lane: i16,
    state: String,
    attempts: i32,
    reason: String,
    last_error: Option<String>,
    held_since: String,
    next_attempt_at: Option<String>,
}

/// What `--payload` adds.
#[derive(Debug, Serialize)]
struct Content {
    content_type: Option<String>,
    headers: Option<serde_json::Value>,
    payload: Option<String>,
    payload_bytes_hex: Option<String>,
}

// The view gives the key, which the waiting room does not hold; it is asked row by row through its primary key.
const ENTRIES_SQL: &str = "
    SELECT h.seq, s.idempotency_key, h.topic, h.ordering_key, h.lane, h.state, h.attempts, h.reason, h.last_error,
           to_char(h.held_since AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"'),
           to_char(h.next_attempt_at AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"')
      FROM (SELECT seq, topic, ordering_key, lane, state, attempts, reason, last_error, held_since, next_attempt_at
              FROM outbox.held
             WHERE source = 'outbox'
               AND (NOT $1 OR state = 'parked')
               AND ($2::text[] IS NULL OR row_id = ANY ($2))
               AND ($3::text IS NULL OR topic = $3)
             ORDER BY seq LIMIT $4) AS h
      LEFT JOIN LATERAL (SELECT idempotency_key FROM outbox.message_status AS s WHERE s.seq = h.seq) AS s ON true
     ORDER BY h.seq";

const CONTENT_SQL: &str = "
    SELECT content_type, headers::text, payload, encode(payload_bytes, 'hex') FROM outbox.message WHERE seq = $1";

// What an action would touch; the functions themselves decide anew.
const MATCHING_SQL: &str = "
    SELECT count(*) FROM outbox.held
     WHERE source = 'outbox' AND state = ANY ($1)
       AND ($2::text[] IS NULL OR row_id = ANY ($2)) AND ($3::text IS NULL OR topic = $3)";

const RETRY_SQL: &str = "SELECT outbox.retry(seqs => $1, topic => $2)";
const DISCARD_SQL: &str = "SELECT outbox.discard(seqs => $1, topic => $2)";
const ALL_PARKED_SQL: &str = "SELECT seq FROM outbox.held WHERE source = 'outbox' AND state = 'parked'";

/// Looks or acts.
pub async fn parked(database: &Database, action: &Parked, form: Output, out: &mut Vec<u8>) -> Outcome<Exit> {
    match action {
        Parked::List { choice, limit } => list(database, choice, *limit, form, out).await,
        Parked::Show { seqs, payload } => show(database, seqs, *payload, form, out).await,
        Parked::Retry(act) => Action::RETRY.perform(database, act, form, out).await,
        Parked::Discard(act) => Action::DISCARD.perform(database, act, form, out).await,
    }
}

async fn list(database: &Database, choice: &Choice, limit: u32, form: Output, out: &mut Vec<u8>) -> Outcome<Exit> {
    let mut client = connect(database).await?;
    let transaction = reading(&mut client).await?;
    let entries = entries(&transaction, true, choice, i64::from(limit)).await?;
    match form {
        Output::Json => output::json(out, &entries)?,
        Output::Text if entries.is_empty() => writeln!(out, "nothing is parked")?,
        Output::Text => {
            let header = ["seq", "idempotency_key", "topic", "ordering_key", "reason", "attempts", "since", "error"];
            let rows: Vec<Vec<String>> = entries.iter().map(Entry::cells).collect();
            output::table(out, &header, &rows)?;
            if entries.len() == limit as usize {
                writeln!(out, "perhaps more; --limit {} shows more", limit.saturating_mul(10))?;
            }
        }
    }
    Ok(Exit::Done)
}

async fn show(database: &Database, seqs: &[i64], payload: bool, form: Output, out: &mut Vec<u8>) -> Outcome<Exit> {
    let mut client = connect(database).await?;
    let transaction = reading(&mut client).await?;
    let choice = Choice { seqs: seqs.to_vec(), topic: None };
    let entries = entries(&transaction, false, &choice, i64::MAX).await?;
    let mut shown = Vec::new();
    for entry in entries {
        let content = if payload { content(&transaction, entry.seq).await? } else { None };
        let mut document = serde_json::to_value(&entry).map_err(anyhow::Error::new)?;
        if let Some(reason) = Reason::ALL.iter().find(|reason| reason.as_str() == entry.reason) {
            document["action"] = json!(reason.advice());
        }
        if let Some(content) = content {
            document["content"] = serde_json::to_value(&content).map_err(anyhow::Error::new)?;
        }
        shown.push(document);
    }
    if form == Output::Json {
        output::json(out, &shown)?;
        return Ok(Exit::Done);
    }
    if shown.is_empty() {
        writeln!(out, "none of these rows is in the waiting room")?;
    }
    for document in &shown {
        for (name, value) in document.as_object().into_iter().flatten().filter(|(_, value)| !value.is_null()) {
            let value = value.as_str().map_or_else(|| value.to_string(), printable);
            writeln!(out, "{name:<16} {value}")?;
        }
        writeln!(out)?;
    }
    Ok(Exit::Done)
}

async fn entries(
    transaction: &tokio_postgres::Transaction<'_>,
    parked_only: bool,
    choice: &Choice,
    limit: i64,
) -> Outcome<Vec<Entry>> {
    let ids = row_ids(&choice.seqs);
    let parameters: [(&(dyn ToSql + Sync), Type); 4] =
        [(&parked_only, Type::BOOL), (&ids, Type::TEXT_ARRAY), (&choice.topic, Type::TEXT), (&limit, Type::INT8)];
    let rows = answered("cannot read the waiting room", transaction.query_typed(ENTRIES_SQL, &parameters)).await?;
    let entries: Result<Vec<Entry>, _> = rows.iter().map(Entry::decode).collect();
    entries.map_err(|error| explain("the waiting room has an unexpected form", error))
}

async fn content(transaction: &tokio_postgres::Transaction<'_>, seq: i64) -> Outcome<Option<Content>> {
    let what = "cannot read the payload";
    let rows = answered(what, transaction.query_typed(CONTENT_SQL, &[(&seq, Type::INT8)])).await?;
    let decode = |row: &Row| -> Result<Content, tokio_postgres::Error> {
        let headers: Option<String> = row.try_get(1)?;
        let headers =
            headers.map(|headers| serde_json::from_str(&headers).unwrap_or(serde_json::Value::String(headers)));
        let (payload, payload_bytes_hex) = (row.try_get(2)?, row.try_get(3)?);
        Ok(Content { content_type: row.try_get(0)?, headers, payload, payload_bytes_hex })
    };
    rows.first().map(decode).transpose().map_err(|error| explain(what, error))
}

/// `None` for no choice of numbers at all.
fn row_ids(seqs: &[i64]) -> Option<Vec<String>> {
    (!seqs.is_empty()).then(|| seqs.iter().map(ToString::to_string).collect())
}

struct Action {
    sql: &'static str,
    verb: &'static str,
    done: &'static str,
    states: &'static [&'static str],
}

impl Action {
    const RETRY: Self = Self { sql: RETRY_SQL, verb: "send again", done: "retried", states: &["parked"] };
    const DISCARD: Self =
        Self { sql: DISCARD_SQL, verb: "give up for good", done: "discarded", states: &["parked", "waiting"] };

    async fn perform(&self, database: &Database, act: &Act, form: Output, out: &mut Vec<u8>) -> Outcome<Exit> {
        let mut client = connect(database).await?;
        let ids = row_ids(&act.choice.seqs);
        let topic = act.choice.topic.as_deref();
        // All means all that is parked: rows that wait will go by themselves.
        let states = if act.all { &["parked"][..] } else { self.states };
        let parameters: [(&(dyn ToSql + Sync), Type); 3] =
            [(&states, Type::TEXT_ARRAY), (&ids, Type::TEXT_ARRAY), (&topic, Type::TEXT)];
        let rows = answered("cannot read the waiting room", client.query_typed(MATCHING_SQL, &parameters)).await?;
        let matching: i64 = match rows.first() {
            Some(row) => row.try_get(0).map_err(|error| explain("cannot count", error))?,
            None => 0,
        };
        let seqs = if matching == 0 {
            Vec::new()
        } else {
            if !act.yes && !confirmed(self.verb, matching).await? {
                return Err(Failure::text(Exit::Failed, "nothing was changed"));
            }
            self.change(&mut client, act).await?
        };
        match form {
            Output::Json => output::json(out, &json!({ self.done: seqs }))?,
            Output::Text if seqs.is_empty() => writeln!(out, "nothing matches")?,
            Output::Text => writeln!(out, "{} {}", self.done, seqs.len())?,
        }
        Ok(Exit::Done)
    }

    async fn change(&self, client: &mut tokio_postgres::Client, act: &Act) -> Outcome<Vec<i64>> {
        let what = "nothing was changed";
        let transaction = writing(client).await?;
        let seqs = if act.all {
            Some(numbers(&answered(what, transaction.query_typed(ALL_PARKED_SQL, &[])).await?)?)
        } else {
            (!act.choice.seqs.is_empty()).then(|| act.choice.seqs.clone())
        };
        let topic = act.choice.topic.as_deref();
        let parameters: [(&(dyn ToSql + Sync), Type); 2] = [(&seqs, Type::INT8_ARRAY), (&topic, Type::TEXT)];
        let changed = numbers(&answered(what, transaction.query_typed(self.sql, &parameters)).await?)?;
        answered("the outcome is unknown; look again", transaction.commit()).await?;
        Ok(changed)
    }
}

fn numbers(rows: &[Row]) -> Outcome<Vec<i64>> {
    let all: Result<Vec<i64>, _> = rows.iter().map(|row| row.try_get(0)).collect();
    all.map_err(|error| explain("the waiting room has an unexpected form", error))
}

/// Asks on a terminal; elsewhere `--yes` is needed.
pub(super) async fn confirmed(verb: &str, rows: i64) -> Outcome<bool> {
    if !std::io::stdin().is_terminal() {
        return Err(Failure::text(Exit::Usage, format!("this would {verb}: {rows} rows; add --yes to do it")));
    }
    let question = format!("{verb}: {rows} rows. Go on? [y/N] ");
    let ask = move || -> std::io::Result<bool> {
        write!(std::io::stderr().lock(), "{question}")?;
        let mut answer = String::new();
        std::io::stdin().lock().read_line(&mut answer)?;
        Ok(["y", "yes"].contains(&answer.trim().to_lowercase().as_str()))
    };
    // A thread of its own: waiting for a person must not stall the stop signal.
    let answer = tokio::task::spawn_blocking(ask).await.map_err(anyhow::Error::new)?;
    Ok(answer?)
}

impl Entry {
    fn decode(row: &Row) -> Result<Self, tokio_postgres::Error> {
        Ok(Self {
            seq: row.try_get(0)?,
            idempotency_key: row.try_get(1)?,
            topic: row.try_get(2)?,
            ordering_key: row.try_get(3)?,
            lane: row.try_get(4)?,
            state: row.try_get(5)?,
            attempts: row.try_get(6)?,
            reason: row.try_get(7)?,
            last_error: row.try_get(8)?,
            held_since: row.try_get(9)?,
            next_attempt_at: row.try_get(10)?,
        })
    }

    fn cells(&self) -> Vec<String> {
        let or_dash = |text: &Option<String>| text.as_deref().map_or_else(|| "-".to_owned(), printable);
        let error: String = or_dash(&self.last_error).chars().take(100).collect();
        vec![
            self.seq.to_string(),
            or_dash(&self.idempotency_key),
            or_dash(&self.topic),
            or_dash(&self.ordering_key),
            printable(&self.reason),
            self.attempts.to_string(),
            self.held_since.clone(),
            error,
        ]
    }
}
