//! What can go wrong while a schema is applied or looked at. Each message says what to do next.

use std::time::Duration;

use tokio_postgres::error::SqlState;

use crate::files::Schema;

/// Why a schema was not applied or could not be read. Nothing was changed: all work is one transaction.
#[derive(Debug, thiserror::Error)]
pub enum MigrateError {
    #[error("PostgreSQL {found} is too old: version 14 or later is needed; upgrade the server, then migrate again")]
    ServerTooOld { found: String },

    #[error(
        "the database has encoding {found}, but UTF8 is needed: payloads are sent as their exact UTF-8 bytes; \
         create a database with ENCODING 'UTF8' and migrate that one"
    )]
    NotUtf8 { found: String },

    #[error("this server is a standby and cannot be written to; connect to the primary")]
    Standby,

    #[error(
        "another session has been migrating for more than {waited:?}; see that it ends (pg_stat_activity), then migrate again"
    )]
    Turn { waited: Duration },

    #[error(
        "{what}: a table is in use, its lock was not free within lock_timeout = {lock_timeout:?}; \
         end the transaction that holds it (pg_locks, pg_stat_activity) or migrate at a quieter time"
    )]
    LockTimeout { what: String, lock_timeout: Duration },

    #[error(
        "schema {schema} is at version {found} and asks for a program built for version {compatible_from} or later; \
         this one is built for version {expected}: use a newer outbox-relay"
    )]
    NewerBreaking { schema: Schema, found: i32, compatible_from: i32, expected: i32 },

    #[error(
        "{schema}/{name}.sql was applied with checksum {applied}, but this program has the file with {expected}; \
         a released file never changes: use the release that applied it, or compare the schema with the file by hand"
    )]
    Checksum { schema: Schema, name: &'static str, applied: String, expected: String },

    #[error(
        "schema {schema} is at version {found}, but {schema}/{name}.sql is not entered in {schema}.migration; \
         find out who removed the entry, compare the schema with the file, and enter it again"
    )]
    Gap { schema: Schema, name: &'static str, found: i32 },

    #[error(
        "{what}: permission denied ({message}); to migrate, be the owner of the schema (a member of outbox_owner) \
         with CREATE on the database; to run, be a member of outbox_relay (see schema/roles.sql)"
    )]
    Denied {
        what: String,
        message: String,
        #[source]
        source: tokio_postgres::Error,
    },

    #[error(
        "{what}: {message}; an object of that name was there before and was not made by outbox-relay: \
         rename or drop it, or use another database"
    )]
    NameTaken {
        what: String,
        message: String,
        #[source]
        source: tokio_postgres::Error,
    },

    #[error("{what}: PostgreSQL says {message} (SQLSTATE {sqlstate})")]
    Database {
        what: String,
        message: String,
        sqlstate: String,
        #[source]
        source: tokio_postgres::Error,
    },

    #[error("{what}: the connection to the database failed; nothing was changed, migrate again")]
    Connection {
        what: String,
        #[source]
        source: tokio_postgres::Error,
    },
}

impl MigrateError {
    /// Sorts a database error by its SQLSTATE, since its own text is only "db error".
    pub(crate) fn database(what: impl Into<String>, lock_timeout: Duration, source: tokio_postgres::Error) -> Self {
        let what = what.into();
        let Some(db) = source.as_db_error() else {
            return Self::Connection { what, source };
        };
        let message = db.message().to_owned();
        let code = db.code();
        if *code == SqlState::LOCK_NOT_AVAILABLE {
            Self::LockTimeout { what, lock_timeout }
        } else if *code == SqlState::INSUFFICIENT_PRIVILEGE {
            Self::Denied { what, message, source }
        } else if [SqlState::DUPLICATE_TABLE, SqlState::DUPLICATE_OBJECT, SqlState::DUPLICATE_FUNCTION].contains(code) {
            Self::NameTaken { what, message, source }
        } else {
            let sqlstate = code.code().to_owned();
            Self::Database { what, message, sqlstate, source }
        }
    }
}
