//! Everything that `check` can say, by name. The names are stable: programs may go by them. `relay/MESSAGES.md` lists
//! them, and a test holds the list against this file.

use serde::{Serialize, Serializer};

/// Only errors make `check` end with 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// As it should be.
    Ok,
    /// Cannot be looked at from here, or good to know.
    Note,
    /// A relay runs, and something is weaker or slower than it could be.
    Warning,
    /// A relay cannot run, or a promise is broken.
    Error,
}

/// One thing that can be found. `action` is what to do about it; empty where nothing is.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    pub name: &'static str,
    pub severity: Severity,
    pub action: &'static str,
}

impl Serialize for Kind {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name)
    }
}

/// One thing that was found; `detail` says where and what, never a payload or a password.
#[derive(Debug, Serialize)]
pub struct Finding {
    #[serde(rename = "name")]
    pub kind: Kind,
    pub severity: Severity,
    pub detail: String,
    pub action: &'static str,
    /// What mends it, to be run as it stands.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub statements: Vec<String>,
}

impl Kind {
    /// Found, with what there is to say of this place.
    pub fn found(self, detail: impl Into<String>) -> Finding {
        Finding {
            kind: self,
            severity: self.severity,
            detail: detail.into(),
            action: self.action,
            statements: Vec::new(),
        }
    }
}

macro_rules! kinds {
    ($($id:ident = $name:literal $severity:ident $action:literal;)*) => {
        $(pub const $id: Kind = Kind { name: $name, severity: Severity::$severity, action: $action };)*
        #[cfg(test)]
        pub const KINDS: &[Kind] = &[$($id),*];
    };
}

kinds! {
    SERVER = "server" Ok "";
    SERVER_TOO_OLD = "server_too_old" Error "upgrade to PostgreSQL 14 or later";
    SERVER_UNTESTED = "server_untested" Warning "try it on a copy first; 14 to 18 are tested";
    ENCODING = "encoding" Error "make a database with ENCODING 'UTF8' and move the tables there";
    STANDBY = "standby" Error "connect to the primary, or name all hosts in the URL";
    READ_ONLY = "read_only" Error "see default_transaction_read_only of the server, the database and this role";
    FSYNC_OFF = "fsync_off" Warning "set fsync = on: a crash may lose committed rows and the whole database";
    FULL_PAGE_WRITES_OFF = "full_page_writes_off" Warning
        "set full_page_writes = on, unless the storage writes whole pages: a crash may damage the tables";
    DAMAGE_IGNORED = "damage_ignored" Warning "switch it off: damaged rows vanish without a word";
    SYNCHRONOUS_COMMIT_OFF = "synchronous_commit_off" Warning
        "set synchronous_commit = on where applications write: a crash may undo commits that they were told of";
    STATEMENT_TIMEOUT = "statement_timeout" Warning
        "ALTER ROLE this login SET statement_timeout = 0: claims and marks have bounds of their own";
    CONNECTION_LIMIT = "connection_limit" Error "raise the CONNECTION LIMIT; a relay needs 7 connections, and one more with sources";
    POOLER = "pooler" Note
        "nothing, if it is meant: a relay works through it; give its pool 7 connections a relay (8 with sources), or it waits for them";
    FENCE_STANDBYS = "fence_standbys" Error "name standbys in synchronous_standby_names, or set durability_fence = \"local\"";
    FENCE_NONE = "fence_none" Warning
        "set durability_fence = \"local\": a crash of PostgreSQL may undo rows that were published";
    ORDER_PIPELINED = "order_pipelined" Warning "set rabbitmq.order = \"strict\", unless a nack may swap two rows of a key";
    SUPERUSER = "superuser" Warning "use a login that has the role outbox_relay and no more";
    CLOCK_SKEW = "clock_skew" Warning
        "run a time service on both machines: leases go by the database's clock, logs and latencies by both";
    OLD_TRANSACTION = "old_transaction" Warning
        "end it, or find out why it stays open: claims look at more rows, and vacuum removes nothing";
    TRANSACTIONS_HIDDEN = "transactions_hidden" Note
        "GRANT pg_read_all_stats to this login to let check and the metrics see the age of other logins' transactions";
    SCHEMA = "schema" Ok "";
    SCHEMA_WRONG = "schema_wrong" Error "run `outbox-relay migrate`, or use the program that fits";
    PRIVILEGES = "privileges" Ok "";
    PRIVILEGES_MISSING = "privileges_missing" Error "grant the role outbox_relay to this login (schema/roles.sql)";
    ROW_SECURITY = "row_security" Error
        "ALTER TABLE … DISABLE ROW LEVEL SECURITY, or give this login BYPASSRLS: rows that it cannot see are never sent";
    UPDATE_TRIGGER = "update_trigger" Warning
        "make sure that it returns NEW unchanged, or drop it: a mark that it swallows makes its row go again for ever";
    REWRITE_RULE = "rewrite_rule" Error "DROP RULE: it may replace marks and claims by something else";
    INDEX_MISSING = "index_missing" Error "make it again, or REINDEX it where it is invalid (schema/outbox/0001_outbox.sql)";
    SEQUENCE_CHANGED = "sequence_changed" Error
        "ALTER SEQUENCE outbox.message_seq CACHE 1 INCREMENT 1 NO CYCLE: else rows are skipped or go out of order";
    SEQ_DEFAULT_CHANGED = "seq_default_changed" Error
        "put back the default of outbox.message.seq, which takes the transaction id before the number: else rows are lost";
    UNLOGGED = "unlogged" Error "ALTER TABLE … SET LOGGED: a crash empties an unlogged table";
    AUTOVACUUM_OFF = "autovacuum_off" Warning "switch autovacuum on for it: each mark leaves a dead row";
    SOURCE = "source" Ok "";
    SOURCE_TABLE = "source_table" Error "correct the source's keys, or the table: until then none of its rows are taken";
    SOURCE_MARK_MISSING = "source_mark_missing" Error
        "add the column as its table's owner, or set mark_add = true and run `outbox-relay migrate`; set it in rows that were sent before";
    SOURCE_PRIVILEGES = "source_privileges" Error "run the statements as the owner of table and roles (schema/roles.sql)";
    SOURCE_INDEX = "source_index" Warning "make the index: without it each look reads the whole table";
    ADDRESS = "address" Ok "";
    ADDRESS_MISSING = "address_missing" Error "declare it, or change the route: rows for it wait until it exists";
    ADDRESS_UNASKED = "address_unasked" Error "bring the broker up, or correct its address and credentials";
    ADDRESS_TEMPLATED = "address_templated" Note "nothing: it depends on each row, so it is not checked here";
    BINDING_UNKNOWN = "binding_unknown" Note
        "see `rabbitmqctl list_bindings`: only a publication shows that a queue is bound; rows without one wait as unroutable";
    SIZE_LIMIT = "size_limit" Note "a larger message is parked as size; set rabbitmq.message_bytes_max to the broker's own limit";
    TOPIC_LIMIT = "topic_limit" Note "a larger record is parked as size; raise max.message.bytes of the topic where that is too small";
    TOPIC_COMPACTED = "topic_compacted" Warning
        "give every row for it an ordering_key: a compacted topic refuses records without key and keeps the last of each";
    TOPIC_MIN_INSYNC = "topic_min_insync" Note
        "set min.insync.replicas = 2 on topics with three replicas: now one replica's word is a confirm";
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_one_of_a_kind_and_whatever_is_wrong_says_what_to_do() {
        let names: BTreeSet<&str> = KINDS.iter().map(|kind| kind.name).collect();
        assert_eq!(names.len(), KINDS.len());
        for kind in KINDS {
            assert_eq!(kind.action.is_empty(), kind.severity == Severity::Ok, "{}", kind.name);
        }
    }

    #[test]
    fn the_list_for_operators_is_this_one() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../MESSAGES.md");
        let text = std::fs::read_to_string(path).expect("relay/MESSAGES.md is there");
        let (_, rest) = text.split_once("\n## What `check` finds\n").expect("the heading is there");
        let section = rest.split("\n## ").next().unwrap_or_default();
        let listed: Vec<&str> = section.lines().filter(|line| line.starts_with("| `")).collect();
        let severity = |kind: &Kind| format!("{:?}", kind.severity).to_lowercase();
        let action = |kind: &Kind| if kind.action.is_empty() { "–" } else { kind.action };
        let expected: Vec<String> =
            KINDS.iter().map(|kind| format!("| `{}` | {} | {} |", kind.name, severity(kind), action(kind))).collect();
        assert_eq!(listed, expected, "relay/MESSAGES.md should say:\n{}", expected.join("\n"));
    }
}
