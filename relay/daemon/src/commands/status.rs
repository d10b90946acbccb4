//! `status`: what waits, since when and why, and who owns what, from one snapshot and at a bounded cost.
//!
//! Everything a relay reports it reports of the database, so this works with and without one.
//! Counts stop at a bound and say so (`backlog`).

use std::io::Write;

use serde::Serialize;
use tokio_postgres::types::Type;

use crate::backlog::{self, decoded};
use crate::cli::Output;
use crate::config::Database;
use crate::database::{answered, connect, reading};
use crate::exit::{Exit, Outcome};
use crate::output::{self, printable};

/// Counting stops here.
const COUNT_MAX: i64 = 1_000_000;

/// Rows looked at for the numbers by topic.
const TOPIC_SAMPLE_MAX: i64 = 100_000;

/// Topics shown.
const TOPICS_MAX: i64 = 50;

#[derive(Debug, Serialize)]
struct Status {
    /// `None` where the login may not read `outbox.message` (an operator may not).
    backlog: Option<Backlog>,
    held: Vec<Held>,
    parked_messages: i64,
    /// Rows of sources that cannot become a message; empty too where the login may not see them.
    refused: Vec<Refused>,
    lanes: Vec<Lane>,
    relays: Vec<Relay>,
}

#[derive(Debug, Serialize)]
struct Backlog {
    /// Due rows that are neither sent nor held.
    pending_messages: i64,
    /// Whether counting stopped at its bound.
    pending_is_lower_bound: bool,
    delayed_messages: i64,
    /// The age of the oldest due row that is neither sent, parked nor discarded.
    oldest_pending_age_seconds: f64,
    topics: Vec<Topic>,
    topics_sampled_messages: i64,
}

#[derive(Debug, Serialize)]
struct Topic {
    /// `None` where a table was changed so that a row may have none.
    topic: Option<String>,
    unsent_messages: i64,
}

#[derive(Debug, Serialize)]
struct Held {
    state: String,
    reason: String,
    messages: i64,
    oldest_seconds: f64,
}

#[derive(Debug, Serialize)]
struct Refused {
    source: String,
    reason: String,
    rows: i64,
    oldest_seconds: f64,
}

#[derive(Debug, Serialize)]
struct Lane {
    lane: i16,
    owner: Option<String>,
    epoch: i64,
    /// Seconds until the lease ends, by the database's clock; negative once it has ended.
    expires_in_seconds: Option<f64>,
}

#[derive(Debug, Serialize)]
struct Relay {
    id: String,
    version: String,
    host: Option<String>,
    pid: Option<i32>,
    up_seconds: f64,
    heartbeat_age_seconds: f64,
}

const HELD_SQL: &str = "
    SELECT h.state, h.reason, count(*),
           extract(epoch FROM clock_timestamp() - min(h.held_since))::float8
      FROM (SELECT state, reason, held_since FROM outbox.held WHERE source = 'outbox' LIMIT $1) AS h
     GROUP BY 1, 2 ORDER BY 1, 3 DESC, 2";

const LANES_SQL: &str = "
    SELECT lane, owner::text, epoch, extract(epoch FROM expires_at - clock_timestamp())::float8
      FROM outbox.lane WHERE source = 'outbox' ORDER BY lane";

const RELAYS_SQL: &str = "
    SELECT id::text, version, host, pid,
           extract(epoch FROM clock_timestamp() - started_at)::float8,
           extract(epoch FROM clock_timestamp() - heartbeat_at)::float8
      FROM outbox.relay ORDER BY started_at, id LIMIT 100";

const MAY_READ_SQL: &str = "
    SELECT has_column_privilege('outbox.message', 'sent_at', 'SELECT'), has_table_privilege('outbox.source_row', 'SELECT')";

const REFUSED_SQL: &str = "
    SELECT r.source, r.reason, count(*), extract(epoch FROM clock_timestamp() - min(r.noted_at))::float8
      FROM (SELECT source, reason, noted_at FROM outbox.source_row WHERE state = 'refused' LIMIT $1) AS r
     GROUP BY 1, 2 ORDER BY 1, 3 DESC, 2";

// A discarded row is never sent, so it is nobody's backlog.
const TOPICS_SQL: &str = "
    SELECT topic, count(*) FROM (
        (SELECT topic, seq FROM outbox.message WHERE sent_at IS NULL AND available_at IS NULL LIMIT $1)
        UNION ALL
        (SELECT topic, seq FROM outbox.message WHERE sent_at IS NULL AND available_at <= clock_timestamp() LIMIT $1)
    ) AS due
     WHERE NOT EXISTS (SELECT FROM outbox.held AS h
                        WHERE h.source = 'outbox' AND h.row_id = due.seq::text AND h.state = 'discarded')
     GROUP BY topic ORDER BY 2 DESC, 1 LIMIT $2";

/// Asks and prints.
pub async fn status(database: &Database, block_key: bool, form: Output, out: &mut Vec<u8>) -> Outcome<Exit> {
    let status = ask(database, block_key).await?;
    match form {
        Output::Json => output::json(out, &status)?,
        Output::Text => text(out, &status)?,
    }
    Ok(Exit::Done)
}

async fn ask(database: &Database, block_key: bool) -> Outcome<Status> {
    let mut client = connect(database).await?;
    let transaction = reading(&mut client).await?;
    let what = "cannot read the outbox";
    let limited = [(&COUNT_MAX as _, Type::INT8)];
    let held = answered(what, transaction.query_typed(HELD_SQL, &limited)).await?;
    let held = decoded(&held, |row| {
        Ok(Held {
            state: row.try_get(0)?,
            reason: row.try_get(1)?,
            messages: row.try_get(2)?,
            oldest_seconds: row.try_get(3)?,
        })
    })?;
    let lanes = answered(what, transaction.query_typed(LANES_SQL, &[])).await?;
    let lanes = decoded(&lanes, |row| {
        Ok(Lane {
            lane: row.try_get(0)?,
            owner: row.try_get(1)?,
            epoch: row.try_get(2)?,
            expires_in_seconds: row.try_get(3)?,
        })
    })?;
    let relays = answered(what, transaction.query_typed(RELAYS_SQL, &[])).await?;
    let relays = decoded(&relays, |row| {
        Ok(Relay {
            id: row.try_get(0)?,
            version: row.try_get(1)?,
            host: row.try_get(2)?,
            pid: row.try_get(3)?,
            up_seconds: row.try_get(4)?,
            heartbeat_age_seconds: row.try_get(5)?,
        })
    })?;
    let may_read = answered(what, transaction.query_typed(MAY_READ_SQL, &[])).await?;
    let may_read = decoded(&may_read, |row| Ok((row.try_get(0)?, row.try_get(1)?)))?;
    let (messages, notes) = may_read.first().copied().unwrap_or_default();
    let refused = if notes { refused(&transaction).await? } else { Vec::new() };
    let backlog = if messages { Some(backlog(&transaction, block_key).await?) } else { None };
    let parked_messages = held.iter().filter(|held| held.state == "parked").map(|held| held.messages).sum();
    Ok(Status { backlog, held, parked_messages, refused, lanes, relays })
}

async fn refused(transaction: &tokio_postgres::Transaction<'_>) -> Outcome<Vec<Refused>> {
    let parameters = [(&COUNT_MAX as _, Type::INT8)];
    let rows = answered("cannot read the notes of sources", transaction.query_typed(REFUSED_SQL, &parameters)).await?;
    decoded(&rows, |row| {
        Ok(Refused {
            source: row.try_get(0)?,
            reason: row.try_get(1)?,
            rows: row.try_get(2)?,
            oldest_seconds: row.try_get(3)?,
        })
    })
}

async fn backlog(transaction: &tokio_postgres::Transaction<'_>, block_key: bool) -> Outcome<Backlog> {
    let counts = backlog::counts(transaction, COUNT_MAX).await?;
    let oldest_pending_age_seconds = backlog::oldest_seconds(transaction, block_key).await?;
    let parameters = [(&TOPIC_SAMPLE_MAX as _, Type::INT8), (&TOPICS_MAX as _, Type::INT8)];
    let topics = answered("cannot count by topic", transaction.query_typed(TOPICS_SQL, &parameters)).await?;
    let topics = decoded(&topics, |row| Ok(Topic { topic: row.try_get(0)?, unsent_messages: row.try_get(1)? }))?;
    Ok(Backlog {
        pending_messages: counts.pending(),
        pending_is_lower_bound: counts.due >= COUNT_MAX,
        delayed_messages: counts.delayed,
        oldest_pending_age_seconds,
        topics,
        topics_sampled_messages: counts.due.min(TOPIC_SAMPLE_MAX),
    })
}

/// What a drain left, by reason, in one line.
pub async fn remaining(database: &Database, block_key: bool) -> Outcome<String> {
    let status = ask(database, block_key).await?;
    let pending = status.backlog.as_ref().map_or(0, |backlog| backlog.pending_messages);
    let mut left = vec![format!("{pending} pending")];
    left.extend(status.held.iter().map(|held| format!("{} {} ({})", held.messages, held.state, held.reason)));
    Ok(format!("what remains: {}", left.join(", ")))
}

fn text(out: &mut impl Write, status: &Status) -> Outcome<()> {
    if let Some(backlog) = &status.backlog {
        let more = if backlog.pending_is_lower_bound { " or more" } else { "" };
        writeln!(out, "pending   {}{more}", backlog.pending_messages)?;
        writeln!(out, "oldest    {}", output::seconds(backlog.oldest_pending_age_seconds))?;
        writeln!(out, "delayed   {}", backlog.delayed_messages)?;
    } else {
        writeln!(out, "pending   unknown: this login may not read outbox.message (role outbox_relay may)")?;
    }
    let waiting: i64 = status.held.iter().filter(|held| held.state == "waiting").map(|held| held.messages).sum();
    writeln!(out, "waiting   {waiting}\nparked    {}", status.parked_messages)?;
    if !status.held.is_empty() {
        writeln!(out)?;
        let rows: Vec<Vec<String>> = status.held.iter().map(Held::cells).collect();
        output::table(out, &["state", "reason", "messages", "oldest"], &rows)?;
    }
    if !status.refused.is_empty() {
        writeln!(out)?;
        let cells = |refused: &Refused| {
            let (source, reason) = (printable(&refused.source), printable(&refused.reason));
            vec![source, reason, refused.rows.to_string(), output::seconds(refused.oldest_seconds)]
        };
        let rows: Vec<Vec<String>> = status.refused.iter().map(cells).collect();
        output::table(out, &["source", "refused", "rows", "oldest"], &rows)?;
    }
    if let Some(backlog) = status.backlog.as_ref().filter(|backlog| !backlog.topics.is_empty()) {
        writeln!(out, "\nunsent by topic, among {} rows", backlog.topics_sampled_messages)?;
        let cells = |topic: &Topic| {
            vec![printable(topic.topic.as_deref().unwrap_or_default()), topic.unsent_messages.to_string()]
        };
        let rows: Vec<Vec<String>> = backlog.topics.iter().map(cells).collect();
        output::table(out, &["topic", "messages"], &rows)?;
    }
    owners(out, status)
}

fn owners(out: &mut impl Write, status: &Status) -> Outcome<()> {
    let live = |lane: &&Lane| lane.owner.is_some() && lane.expires_in_seconds.is_some_and(|seconds| seconds > 0.0);
    let unowned = status.lanes.len() - status.lanes.iter().filter(live).count();
    writeln!(out, "\nlanes     {} of {} owned", status.lanes.len() - unowned, status.lanes.len())?;
    if status.relays.is_empty() {
        writeln!(out, "relays    none")?;
        return Ok(());
    }
    let rows: Vec<Vec<String>> = status
        .relays
        .iter()
        .map(|relay| {
            let owned = status.lanes.iter().filter(live).filter(|lane| lane.owner.as_ref() == Some(&relay.id));
            let lanes: Vec<String> = owned.map(|lane| lane.lane.to_string()).collect();
            vec![
                relay.id.clone(),
                printable(&relay.version),
                printable(relay.host.as_deref().unwrap_or("-")),
                relay.pid.map_or_else(|| "-".to_owned(), |pid| pid.to_string()),
                output::seconds(relay.up_seconds),
                output::seconds(relay.heartbeat_age_seconds),
                lanes.join(","),
            ]
        })
        .collect();
    output::table(out, &["relay", "version", "host", "pid", "up", "heartbeat", "lanes"], &rows)?;
    Ok(())
}

impl Held {
    fn cells(&self) -> Vec<String> {
        vec![
            self.state.clone(),
            printable(&self.reason),
            self.messages.to_string(),
            output::seconds(self.oldest_seconds),
        ]
    }
}
