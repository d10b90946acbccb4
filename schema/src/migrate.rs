//! Applies the schemas: lock → look → compare → apply, in one transaction, so a failure changes nothing.

use std::time::Duration;

use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, IsolationLevel, Transaction};

use crate::error::MigrateError;
use crate::files::{Migration, Schema};
use crate::guards::Server;
use crate::ledger::{self, Entry};
use crate::version::Verdict;

/// Names the lock on which racing replicas take turns. An arbitrary number; two releases must agree on it.
const TURN_LOCK: i64 = 0x6f75_7462_6f78_0001;

/// How to migrate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Which schemas; both by default, the inbox alone in a consumer's own database.
    pub schemas: Vec<Schema>,
    /// How long a statement may wait for a table that is in use, and so make others queue behind it.
    pub lock_timeout: Duration,
    /// How long to wait for another process that is migrating this database.
    pub turn_timeout: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            schemas: Schema::ALL.to_vec(),
            lock_timeout: Duration::from_secs(5),
            turn_timeout: Duration::from_secs(60),
        }
    }
}

/// One file that was applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Applied {
    pub schema: Schema,
    pub version: i32,
    pub name: &'static str,
}

/// What a migration did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The files that were applied, in order; empty where everything was in place.
    pub applied: Vec<Applied>,
    /// How each schema stands now.
    pub verdicts: Vec<Verdict>,
}

/// Brings the schemas to the version this program is built for. Never prompts and makes no roles.
///
/// All work is one transaction at READ COMMITTED: another replica's work becomes visible as soon as the lock is ours.
///
/// # Errors
///
/// [`MigrateError`], each with what to do next. The database is then as it was before.
pub async fn migrate(client: &mut Client, options: &Options) -> Result<Report, MigrateError> {
    let failed = |what: &str, source| MigrateError::database(what, options.lock_timeout, source);
    Server::ask(client).await.map_err(|source| failed("looking at the server", source))?.check()?;
    let transaction = client
        .build_transaction()
        .isolation_level(IsolationLevel::ReadCommitted)
        .read_only(false)
        .start()
        .await
        .map_err(|source| failed("starting a transaction", source))?;
    take_turn(&transaction, options).await?;
    transaction
        .batch_execute(&format!(
            "SET LOCAL lock_timeout = {}; \
             SET LOCAL search_path = pg_catalog, pg_temp; \
             SET LOCAL standard_conforming_strings = on; \
             SET LOCAL client_min_messages = warning",
            milliseconds(options.lock_timeout)
        ))
        .await
        .map_err(|source| failed("setting up the transaction", source))?;

    let mut report = Report { applied: Vec::new(), verdicts: Vec::new() };
    for &schema in &options.schemas {
        report.applied.extend(bring_up(&transaction, schema, options.lock_timeout).await?);
        let entries =
            ledger::entries(&transaction, schema).await.map_err(|source| failed("reading the result", source))?;
        report.verdicts.push(Verdict::of(schema, &entries));
    }
    transaction.commit().await.map_err(|source| failed("committing", source))?;
    Ok(report)
}

/// Waits for other migrating processes, at most `turn_timeout`. The lock ends with the transaction.
async fn take_turn(transaction: &Transaction<'_>, options: &Options) -> Result<(), MigrateError> {
    transaction
        .batch_execute(&format!(
            "SET LOCAL lock_timeout = {}; SELECT pg_catalog.pg_advisory_xact_lock({TURN_LOCK})",
            milliseconds(options.turn_timeout)
        ))
        .await
        .map_err(|source| {
            if source.code() == Some(&SqlState::LOCK_NOT_AVAILABLE) {
                MigrateError::Turn { waited: options.turn_timeout }
            } else {
                MigrateError::database("waiting for the turn", options.turn_timeout, source)
            }
        })
}

/// Applies what one schema lacks.
async fn bring_up(
    transaction: &Transaction<'_>,
    schema: Schema,
    lock_timeout: Duration,
) -> Result<Vec<Applied>, MigrateError> {
    let entries = ledger::entries(transaction, schema)
        .await
        .map_err(|source| MigrateError::database(format!("reading {schema}.migration"), lock_timeout, source))?;
    if let Verdict::NewerBreaking { schema, found, compatible_from, expected } = Verdict::of(schema, &entries) {
        return Err(MigrateError::NewerBreaking { schema, found, compatible_from, expected });
    }
    let plan = plan(schema, &entries)?;
    if plan.is_empty() {
        return Ok(Vec::new());
    }
    let myself = become_owner(transaction, schema)
        .await
        .map_err(|source| MigrateError::database(format!("acting as the owner of {schema}"), lock_timeout, source))?;
    let mut applied = Vec::new();
    for step in plan {
        let migration = step.migration();
        run(transaction, schema, step).await.map_err(|source| {
            MigrateError::database(format!("applying {schema}/{}.sql", migration.name), lock_timeout, source)
        })?;
        if matches!(step, Step::Apply(_)) {
            applied.push(Applied { schema, version: migration.version, name: migration.name });
        }
    }
    if let Some(myself) = myself {
        set_role(transaction, &myself)
            .await
            .map_err(|source| MigrateError::database("resetting the role", lock_timeout, source))?;
    }
    Ok(applied)
}

/// What is to be done about one file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Apply(&'static Migration),
    /// Another tool applied it; from now on its checksum is known.
    Adopt(&'static Migration),
}

impl Step {
    fn migration(self) -> &'static Migration {
        match self {
            Self::Apply(migration) | Self::Adopt(migration) => migration,
        }
    }
}

/// Compares the files with the entries. Pure.
fn plan(schema: Schema, entries: &[Entry]) -> Result<Vec<Step>, MigrateError> {
    let found = entries.iter().map(|entry| entry.version).max().unwrap_or(0);
    let mut steps = Vec::new();
    for migration in schema.migrations() {
        let entry = entries.iter().find(|entry| entry.version == migration.version);
        match entry.map(|entry| entry.checksum.as_deref()) {
            None if migration.version < found => {
                return Err(MigrateError::Gap { schema, name: migration.name, found });
            }
            None => steps.push(Step::Apply(migration)),
            Some(None) => steps.push(Step::Adopt(migration)),
            Some(Some(applied)) if applied == migration.checksum() => {}
            Some(Some(applied)) => {
                return Err(MigrateError::Checksum {
                    schema,
                    name: migration.name,
                    applied: applied.to_owned(),
                    expected: migration.checksum(),
                });
            }
        }
    }
    Ok(steps)
}

async fn run(transaction: &Transaction<'_>, schema: Schema, step: Step) -> Result<(), tokio_postgres::Error> {
    let migration = step.migration();
    match step {
        Step::Apply(_) => transaction.batch_execute(migration.sql).await?,
        Step::Adopt(_) => {}
    }
    ledger::set_checksum(transaction, schema, migration.version, &migration.checksum()).await
}

/// What a later file makes must belong to whoever owns the schema, not to whoever happens to migrate.
/// Returns the role to go back to, quoted, where it changed.
async fn become_owner(transaction: &Transaction<'_>, schema: Schema) -> Result<Option<String>, tokio_postgres::Error> {
    let other = transaction
        .query_typed_opt(
            "SELECT pg_catalog.quote_ident(pg_catalog.pg_get_userbyid(nspowner)), \
                    pg_catalog.quote_ident(current_user) \
               FROM pg_catalog.pg_namespace \
              WHERE nspname = $1 AND pg_catalog.pg_get_userbyid(nspowner) <> current_user \
                AND pg_catalog.pg_has_role(nspowner, 'MEMBER')",
            &[(&schema.name(), Type::TEXT)],
        )
        .await?;
    let Some(row) = other else { return Ok(None) };
    let (owner, myself): (String, String) = (row.try_get(0)?, row.try_get(1)?);
    set_role(transaction, &owner).await?;
    Ok(Some(myself))
}

/// Until the transaction ends; not RESET ROLE, which would outlive it.
async fn set_role(transaction: &Transaction<'_>, quoted: &str) -> Result<(), tokio_postgres::Error> {
    transaction.batch_execute(&format!("SET LOCAL ROLE {quoted}")).await
}

/// For `lock_timeout`, where 0 would mean "for ever".
fn milliseconds(duration: Duration) -> i32 {
    i32::try_from(duration.as_millis()).unwrap_or(i32::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_timeout_means_for_ever() {
        assert_eq!(milliseconds(Duration::ZERO), 1);
        assert_eq!(milliseconds(Duration::MAX), i32::MAX);
        assert_eq!(milliseconds(Duration::from_secs(5)), 5_000);
    }

    #[test]
    fn a_removed_entry_is_a_gap() {
        let newer = [Entry { version: 2, checksum: None, compatible_from: 1 }];
        assert!(matches!(plan(Schema::Outbox, &newer), Err(MigrateError::Gap { found: 2, .. })));
    }
}
