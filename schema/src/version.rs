//! How the schema of a database compares with what this program is built for.

use std::fmt;
use std::time::Duration;

use tokio_postgres::GenericClient;

use crate::error::MigrateError;
use crate::files::Schema;
use crate::ledger::{self, Entry};

/// The answer to "may this program run against this schema?".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Not installed.
    Missing { schema: Schema },
    /// Files are missing that this program needs.
    Older { schema: Schema, found: i32, expected: i32 },
    /// Exactly what this program is built for.
    Current { schema: Schema, version: i32 },
    /// Newer, and made so that this program may still run.
    NewerCompatible { schema: Schema, found: i32, expected: i32 },
    /// Newer, and this program must not touch it.
    NewerBreaking { schema: Schema, found: i32, compatible_from: i32, expected: i32 },
}

impl Verdict {
    /// Whether this program may run against the schema.
    #[must_use]
    pub fn is_usable(self) -> bool {
        match self {
            Self::Current { .. } | Self::NewerCompatible { .. } => true,
            Self::Missing { .. } | Self::Older { .. } | Self::NewerBreaking { .. } => false,
        }
    }

    pub(crate) fn of(schema: Schema, entries: &[Entry]) -> Self {
        let expected = schema.version();
        let Some(found) = entries.iter().map(|entry| entry.version).max() else {
            return Self::Missing { schema };
        };
        // Every entry counts, not only the newest: a harmless file after a breaking one takes nothing back.
        let compatible_from = entries.iter().map(|entry| entry.compatible_from).max().unwrap_or(found);
        if compatible_from > expected {
            Self::NewerBreaking { schema, found, compatible_from, expected }
        } else if found > expected {
            Self::NewerCompatible { schema, found, expected }
        } else if found < expected {
            Self::Older { schema, found, expected }
        } else {
            Self::Current { schema, version: found }
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing { schema } => write!(f, "schema {schema} is not installed: run `outbox-relay migrate`"),
            Self::Older { schema, found, expected } => write!(
                f,
                "schema {schema} is at version {found}, version {expected} is needed: run `outbox-relay migrate`"
            ),
            Self::Current { schema, version } => {
                write!(f, "schema {schema} is at version {version}, as expected")
            }
            Self::NewerCompatible { schema, found, expected } => {
                write!(f, "schema {schema} is at version {found}, newer than {expected}, and still fits this program")
            }
            Self::NewerBreaking { schema, found, compatible_from, expected } => write!(
                f,
                "schema {schema} is at version {found} and needs a program for version {compatible_from} or later, \
                 this one is for {expected}: use a newer outbox-relay"
            ),
        }
    }
}

/// Compares a schema with this program, changing nothing. The role needs SELECT on `<schema>.migration` only.
///
/// # Errors
///
/// [`MigrateError`] when the database cannot be asked: no connection, or no permission.
pub async fn check_version(client: &impl GenericClient, schema: Schema) -> Result<Verdict, MigrateError> {
    ledger::entries(client, schema)
        .await
        .map(|entries| Verdict::of(schema, &entries))
        .map_err(|source| MigrateError::database(format!("reading {schema}.migration"), Duration::ZERO, source))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(version: i32, compatible_from: i32) -> Entry {
        Entry { version, checksum: None, compatible_from }
    }

    #[test]
    fn an_empty_ledger_is_a_missing_schema() {
        assert_eq!(Verdict::of(Schema::Inbox, &[]), Verdict::Missing { schema: Schema::Inbox });
    }

    #[test]
    fn a_breaking_file_stays_breaking_under_a_harmless_one() {
        let newer = Schema::Outbox.version() + 1;
        let entries = [entry(1, 1), entry(newer, newer), entry(newer + 1, 1)];
        let verdict = Verdict::of(Schema::Outbox, &entries);
        let Verdict::NewerBreaking { found, compatible_from, .. } = verdict else { panic!("{verdict}") };
        assert_eq!((found, compatible_from), (newer + 1, newer));
        assert!(!verdict.is_usable());
    }

    #[test]
    fn a_newer_compatible_schema_is_usable() {
        let newer = Schema::Outbox.version() + 1;
        assert!(matches!(
            Verdict::of(Schema::Outbox, &[entry(1, 1), entry(newer, 1)]),
            Verdict::NewerCompatible { .. }
        ));
    }
}
