//! The one connection of a command that runs once, and what its errors mean to an operator.
//!
//! Statements are unnamed (`query_typed`) and settings are local to a transaction, so that a pooler in transaction
//! mode works. Not used by the relay itself, which has an adapter of its own.

use std::error::Error as _;
use std::future::Future;
use std::time::Duration;

use outbox_postgres::{TlsProblem, tls_problem};
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Error, IsolationLevel, Transaction};

use crate::config::Database;
use crate::exit::{Exit, Failure, Outcome};

/// Connecting and logging in, all of it.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// One statement of a command that runs once; the server ends it.
const STATEMENT_TIMEOUT_MS: u64 = 30_000;

/// A statement and its answer, with room for the server's own time-out to speak first.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(STATEMENT_TIMEOUT_MS + 5_000);

/// Connects, or says why not.
///
/// # Errors
/// `Unavailable` where trying again may help, `Configuration` where an operator must act.
pub async fn connect(database: &Database) -> Outcome<Client> {
    let connecting = tokio::time::timeout(CONNECT_TIMEOUT, database.connect()).await;
    let (client, connection) = connecting
        .map_err(|_| {
            let text = format!(
                "PostgreSQL did not answer within {} s; is it up, and is the address right?",
                CONNECT_TIMEOUT.as_secs()
            );
            Failure::text(Exit::Unavailable, text)
        })?
        .map_err(|error| explain("cannot connect to PostgreSQL", error))?;
    tokio::spawn(async move {
        // Its error is what the next statement fails with.
        let _ = connection.await;
    });
    Ok(client)
}

/// A transaction that sees one snapshot, changes nothing and ends by itself.
pub async fn reading(client: &mut Client) -> Outcome<Transaction<'_>> {
    let builder = client.build_transaction().isolation_level(IsolationLevel::RepeatableRead).read_only(true);
    let transaction = answered("BEGIN", builder.start()).await?;
    answered("SET", transaction.batch_execute(&timeout_sql())).await?;
    Ok(transaction)
}

/// A transaction that may change something and ends by itself.
pub async fn writing(client: &mut Client) -> Outcome<Transaction<'_>> {
    let transaction = answered("BEGIN", client.transaction()).await?;
    answered("SET", transaction.batch_execute(&timeout_sql())).await?;
    Ok(transaction)
}

fn timeout_sql() -> String {
    format!("SET LOCAL statement_timeout = {STATEMENT_TIMEOUT_MS}; SET LOCAL lock_timeout = 10000")
}

/// Waits for an answer of the database, but not for ever.
pub async fn answered<T>(what: &str, asking: impl Future<Output = Result<T, Error>>) -> Outcome<T> {
    match tokio::time::timeout(ANSWER_TIMEOUT, asking).await {
        Ok(answer) => answer.map_err(|error| explain(what, error)),
        Err(_) => {
            let text = format!("{what}: PostgreSQL did not answer within {} s", ANSWER_TIMEOUT.as_secs());
            Err(Failure::text(Exit::Unavailable, text))
        }
    }
}

/// Sorts an error of the driver by what an operator can do about it. Its own text is only "db error".
pub fn explain(what: &str, error: Error) -> Failure {
    if let Some(TlsProblem { text, lasts }) = tls_problem(&error) {
        let exit = if lasts { Exit::Configuration } else { Exit::Unavailable };
        return Failure::text(exit, format!("{what}: {text}"));
    }
    let Some(db) = error.as_db_error() else {
        let away = error.is_closed() || error.source().is_some_and(|source| source.is::<std::io::Error>());
        let (exit, advice) = if away {
            (Exit::Unavailable, "is PostgreSQL up, and is the address right?")
        } else {
            (Exit::Configuration, "check the database URL")
        };
        let cause = error.source().map(|source| format!(": {source}")).unwrap_or_default();
        return Failure::text(exit, format!("{what}: {error}{cause}; {advice}"));
    };
    let code = db.code();
    let (exit, advice) = if code.code().starts_with("28") {
        (Exit::Configuration, "check user and password of the database URL, and pg_hba.conf")
    } else if *code == SqlState::UNDEFINED_DATABASE {
        (Exit::Configuration, "create the database, or correct the database URL")
    } else if is_schema(code) {
        (Exit::Configuration, "the schema is missing or too old; run `outbox-relay migrate`")
    } else if *code == SqlState::INSUFFICIENT_PRIVILEGE {
        (Exit::Configuration, "grant the role outbox_operator or outbox_relay to this login (schema/roles.sql)")
    } else if is_away(code) {
        (Exit::Unavailable, "try again later")
    } else if *code == SqlState::QUERY_CANCELED || *code == SqlState::LOCK_NOT_AVAILABLE {
        (Exit::Failed, "the database is busy; try again at a quieter time")
    } else {
        (Exit::Failed, "see the server's log")
    };
    Failure::text(exit, format!("{what}: {} (SQLSTATE {}); {advice}", db.message(), code.code()))
}

fn is_schema(code: &SqlState) -> bool {
    [SqlState::UNDEFINED_TABLE, SqlState::INVALID_SCHEMA_NAME, SqlState::UNDEFINED_FUNCTION, SqlState::UNDEFINED_COLUMN]
        .contains(code)
}

/// Starting up, shutting down, full, or a connection that broke.
fn is_away(code: &SqlState) -> bool {
    let class = code.code();
    class.starts_with("08") || class.starts_with("57P") || class.starts_with("53")
}
