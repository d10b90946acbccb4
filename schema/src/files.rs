//! The embedded SQL files. Names and numbers are those of the files on disk, so what a DBA reads is what is applied.

use std::fmt;

use sha2::{Digest, Sha256};

/// The roles script, for `psql` or for a tool of your own. `migrate` never runs it.
pub const ROLES_SQL: &str = include_str!("../roles.sql");

/// One of the two schemas; each has numbered files of its own and can be installed alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Schema {
    Outbox,
    Inbox,
}

/// One numbered file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Migration {
    /// Counts from 1 without gaps within its schema.
    pub version: i32,
    /// The name of the file without its folder and `.sql`.
    pub name: &'static str,
    /// The file, byte for byte.
    pub sql: &'static str,
}

const OUTBOX: &[Migration] = &[
    Migration { version: 1, name: "0001_outbox", sql: include_str!("../outbox/0001_outbox.sql") },
    Migration { version: 2, name: "0002_sources", sql: include_str!("../outbox/0002_sources.sql") },
    Migration { version: 3, name: "0003_room_for_marks", sql: include_str!("../outbox/0003_room_for_marks.sql") },
];

const INBOX: &[Migration] = &[
    Migration { version: 1, name: "0001_inbox", sql: include_str!("../inbox/0001_inbox.sql") },
    Migration { version: 2, name: "0002_steps", sql: include_str!("../inbox/0002_steps.sql") },
];

impl Schema {
    pub const ALL: [Schema; 2] = [Schema::Outbox, Schema::Inbox];

    /// The name of the schema in the database.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Schema::Outbox => "outbox",
            Schema::Inbox => "inbox",
        }
    }

    /// The files of this schema, in the order in which they are applied.
    #[must_use]
    pub fn migrations(self) -> &'static [Migration] {
        match self {
            Schema::Outbox => OUTBOX,
            Schema::Inbox => INBOX,
        }
    }

    /// The schema version this program is built for.
    #[must_use]
    pub fn version(self) -> i32 {
        self.migrations().last().map_or(0, |last| last.version)
    }
}

impl fmt::Display for Schema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Migration {
    /// SHA-256 of the file, in lower-case hex.
    #[must_use]
    pub fn checksum(&self) -> String {
        use fmt::Write as _;
        Sha256::digest(self.sql).iter().fold(String::with_capacity(64), |mut hex, byte| {
            // Writing to a String cannot fail.
            let _ = write!(hex, "{byte:02x}");
            hex
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_count_from_one_and_match_the_names() {
        for schema in Schema::ALL {
            for (index, migration) in schema.migrations().iter().enumerate() {
                assert_eq!(migration.version as usize, index + 1);
                assert!(migration.name.starts_with(&format!("{:04}_", migration.version)));
            }
        }
    }

    #[test]
    fn each_file_enters_itself() {
        for schema in Schema::ALL {
            for migration in schema.migrations() {
                let entry = format!(
                    "INSERT INTO {schema}.migration (version, name, compatible_from) VALUES ({}, '{}', ",
                    migration.version, migration.name
                );
                assert!(migration.sql.contains(&entry), "{entry}");
            }
        }
    }

    #[test]
    fn files_leave_transactions_to_their_caller() {
        for migration in Schema::ALL.iter().flat_map(|schema| schema.migrations()) {
            for line in migration.sql.lines() {
                assert!(!["BEGIN;", "COMMIT;"].contains(&line.trim()), "{}", migration.name);
                assert!(!line.starts_with('\\'), "psql commands are not plain SQL");
            }
        }
    }
}
