//! `migrate`: makes the schemas or brings them up to date.

use std::io::Write as _;
use std::time::Duration;

use outbox_postgres::add_missing_mark;
use outbox_schema::{MigrateError, Options, Schema};
use serde_json::json;

use crate::cli::{self, Output, SchemaName};
use crate::config::{Database, SourceTable};
use crate::database::{answered, connect};
use crate::exit::{Exit, Failure, Outcome};
use crate::output;

/// Applies what is missing and says what it did.
pub async fn migrate(
    database: &Database,
    tables: &[SourceTable],
    arguments: &cli::Migrate,
    form: Output,
    out: &mut Vec<u8>,
) -> Outcome<Exit> {
    let mut client = connect(database).await?;
    let mut options = Options { lock_timeout: Duration::from_millis(arguments.lock_timeout_ms), ..Options::default() };
    if !arguments.schema.is_empty() {
        options.schemas = arguments.schema.iter().map(|name| schema(*name)).collect();
    }
    let report = outbox_schema::migrate(&mut client, &options).await.map_err(failure)?;
    let mut added = Vec::new();
    if options.schemas.contains(&Schema::Outbox) {
        for source in tables {
            let what = format!("adding the column for the mark of source {}", source.intake.name);
            let adding = add_missing_mark(&client, &source.table, arguments.lock_timeout_ms);
            if answered(&what, adding).await? {
                added.push(source);
            }
        }
    }
    match form {
        Output::Json => {
            let applied: Vec<_> = report
                .applied
                .iter()
                .map(|file| json!({"schema": file.schema.name(), "version": file.version, "name": file.name}))
                .collect();
            let schemas: Vec<String> = report.verdicts.iter().map(ToString::to_string).collect();
            let marks: Vec<_> = added.iter().map(|source| source.intake.name.as_str()).collect();
            let mut report = json!({"applied": applied, "schemas": schemas});
            if !marks.is_empty() {
                report["marks_added"] = json!(marks);
            }
            output::json(out, &report)?;
        }
        Output::Text => {
            for file in &report.applied {
                writeln!(out, "applied {}/{}.sql", file.schema.name(), file.name)?;
            }
            for source in added {
                writeln!(out, "added the column for the mark to {}", source.table.quoted())?;
            }
            for verdict in &report.verdicts {
                writeln!(out, "{verdict}")?;
            }
        }
    }
    Ok(Exit::Done)
}

const fn schema(name: SchemaName) -> Schema {
    match name {
        SchemaName::Outbox => Schema::Outbox,
        SchemaName::Inbox => Schema::Inbox,
    }
}

fn failure(error: MigrateError) -> Failure {
    let exit = match &error {
        MigrateError::ServerTooOld { .. }
        | MigrateError::NotUtf8 { .. }
        | MigrateError::NewerBreaking { .. }
        | MigrateError::Checksum { .. }
        | MigrateError::Gap { .. }
        | MigrateError::Denied { .. }
        | MigrateError::NameTaken { .. } => Exit::Configuration,
        MigrateError::Standby | MigrateError::Connection { .. } => Exit::Unavailable,
        MigrateError::Turn { .. } | MigrateError::LockTimeout { .. } | MigrateError::Database { .. } => Exit::Failed,
    };
    Failure::new(exit, error)
}
