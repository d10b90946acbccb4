//! `migrate`: makes the schemas or brings them up to date.

use std::io::Write as _;
use std::time::Duration;

use outbox_schema::{MigrateError, Options, Schema};
use serde_json::json;

use crate::cli::{self, Output, SchemaName};
use crate::config::Database;
use crate::database::connect;
use crate::exit::{Exit, Failure, Outcome};
use crate::output;

/// Applies what is missing and says what it did.
pub async fn migrate(database: &Database, arguments: &cli::Migrate, form: Output, out: &mut Vec<u8>) -> Outcome<Exit> {
    let mut client = connect(database).await?;
    let mut options = Options { lock_timeout: Duration::from_millis(arguments.lock_timeout_ms), ..Options::default() };
    if !arguments.schema.is_empty() {
        options.schemas = arguments.schema.iter().map(|name| schema(*name)).collect();
    }
    let report = outbox_schema::migrate(&mut client, &options).await.map_err(failure)?;
    match form {
        Output::Json => {
            let applied: Vec<_> = report
                .applied
                .iter()
                .map(|file| json!({"schema": file.schema.name(), "version": file.version, "name": file.name}))
                .collect();
            let schemas: Vec<String> = report.verdicts.iter().map(ToString::to_string).collect();
            output::json(out, &json!({"applied": applied, "schemas": schemas}))?;
        }
        Output::Text => {
            for file in &report.applied {
                writeln!(out, "applied {}/{}.sql", file.schema.name(), file.name)?;
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
