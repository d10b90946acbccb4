//! The tables as they are, against what the schema made: rights, and changes around its rules.

use outbox_schema::{Schema, check_version};
use tokio_postgres::{Client, Row};

use super::finding::{
    AUTOVACUUM_OFF, Finding, INDEX_MISSING, Kind, PRIVILEGES, PRIVILEGES_MISSING, REWRITE_RULE, ROW_SECURITY, SCHEMA,
    SCHEMA_WRONG, SEQ_DEFAULT_CHANGED, SEQUENCE_CHANGED, UNLOGGED, UPDATE_TRIGGER,
};
use crate::backlog::decoded;
use crate::database::answered;
use crate::exit::{Exit, Failure, Outcome};

const PRIVILEGES_SQL: &str = "
    SELECT what FROM (VALUES
        ('USAGE on schema outbox',             has_schema_privilege('outbox', 'USAGE')),
        ('SELECT on outbox.message',           has_table_privilege('outbox.message', 'SELECT')),
        ('UPDATE (sent_at) on outbox.message', has_column_privilege('outbox.message', 'sent_at', 'UPDATE')),
        ('DELETE on outbox.message',           has_table_privilege('outbox.message', 'DELETE')),
        ('SELECT on outbox.message_seq',       has_sequence_privilege('outbox.message_seq', 'SELECT')),
        ('SELECT on outbox.lane',              has_table_privilege('outbox.lane', 'SELECT')),
        ('UPDATE on outbox.lane',              has_table_privilege('outbox.lane', 'UPDATE')),
        ('SELECT on outbox.relay',             has_table_privilege('outbox.relay', 'SELECT')),
        ('INSERT on outbox.relay',             has_table_privilege('outbox.relay', 'INSERT')),
        ('UPDATE on outbox.relay',             has_table_privilege('outbox.relay', 'UPDATE')),
        ('DELETE on outbox.relay',             has_table_privilege('outbox.relay', 'DELETE')),
        ('SELECT on outbox.held',              has_table_privilege('outbox.held', 'SELECT')),
        ('INSERT on outbox.held',              has_table_privilege('outbox.held', 'INSERT')),
        ('UPDATE on outbox.held',              has_table_privilege('outbox.held', 'UPDATE')),
        ('DELETE on outbox.held',              has_table_privilege('outbox.held', 'DELETE'))
    ) AS needed(what, have) WHERE NOT have";

const ROW_SECURITY_SQL: &str = "
    SELECT name FROM unnest(ARRAY['outbox.message', 'outbox.held', 'outbox.lane', 'outbox.relay']) AS name
     WHERE row_security_active(name) ORDER BY 1";

// tgtype: 2 is BEFORE, 16 is UPDATE.
const TRIGGERS_SQL: &str = "
    SELECT quote_ident(t.tgname) || ' on ' || t.tgrelid::regclass
      FROM pg_catalog.pg_trigger AS t
     WHERE t.tgrelid IN ('outbox.message'::regclass, 'outbox.held'::regclass, 'outbox.lane'::regclass)
       AND NOT t.tgisinternal AND t.tgenabled <> 'D' AND t.tgtype & 18 = 18 ORDER BY 1";

const RULES_SQL: &str = "
    SELECT quote_ident(r.rulename) || ' on ' || r.ev_class::regclass
      FROM pg_catalog.pg_rewrite AS r
     WHERE r.ev_class IN ('outbox.message'::regclass, 'outbox.held'::regclass, 'outbox.lane'::regclass,
                          'outbox.relay'::regclass) AND r.ev_enabled <> 'D' ORDER BY 1";

const INDEXES_SQL: &str = "
    SELECT name FROM unnest(ARRAY['message_pkey', 'message_idempotency_key_key', 'message_unsent', 'message_delayed',
                                  'message_sent', 'lane_pkey', 'relay_pkey', 'held_pkey', 'held_waiting', 'held_key',
                                  'held_state']) AS name
     WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_index AS i
                        WHERE i.indexrelid = to_regclass('outbox.' || name) AND i.indisvalid) ORDER BY 1";

const SEQUENCE_SQL: &str = "
    SELECT format('CACHE %s, INCREMENT %s%s', seqcache, seqincrement, CASE WHEN seqcycle THEN ', CYCLE' ELSE '' END)
      FROM pg_catalog.pg_sequence
     WHERE seqrelid = 'outbox.message_seq'::regclass AND (seqcache, seqincrement, seqcycle) <> (1, 1, false)";

const DEFAULT_SQL: &str = "
    SELECT coalesce(pg_get_expr(d.adbin, d.adrelid), 'none')
      FROM pg_catalog.pg_attribute AS a
      LEFT JOIN pg_catalog.pg_attrdef AS d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
     WHERE a.attrelid = 'outbox.message'::regclass AND a.attname = 'seq'
       AND coalesce(pg_get_expr(d.adbin, d.adrelid), '') !~ 'pg_current_xact_id.*message_seq'";

const UNLOGGED_SQL: &str = "
    SELECT oid::regclass::text FROM pg_catalog.pg_class
     WHERE oid IN ('outbox.message'::regclass, 'outbox.held'::regclass, 'outbox.lane'::regclass)
       AND relpersistence <> 'p' ORDER BY 1";

const AUTOVACUUM_SQL: &str = "
    SELECT oid::regclass::text FROM pg_catalog.pg_class
     WHERE oid IN ('outbox.message'::regclass, 'outbox.held'::regclass)
       AND (NOT current_setting('autovacuum')::bool OR EXISTS (
                SELECT FROM pg_catalog.pg_options_to_table(reloptions)
                 WHERE option_name = 'autovacuum_enabled' AND NOT option_value::bool)) ORDER BY 1";

/// What was changed, and how it is found: each line of an answer is one finding.
const CHANGES: [(Kind, &str, &str); 8] = [
    (ROW_SECURITY, ROW_SECURITY_SQL, "row level security applies to this login on"),
    (UPDATE_TRIGGER, TRIGGERS_SQL, "a trigger runs before each update:"),
    (REWRITE_RULE, RULES_SQL, "statements are rewritten by the rule"),
    (INDEX_MISSING, INDEXES_SQL, "there is no valid index outbox."),
    (SEQUENCE_CHANGED, SEQUENCE_SQL, "outbox.message_seq has"),
    (SEQ_DEFAULT_CHANGED, DEFAULT_SQL, "the default of outbox.message.seq is"),
    (UNLOGGED, UNLOGGED_SQL, "unlogged:"),
    (AUTOVACUUM_OFF, AUTOVACUUM_SQL, "no autovacuum of"),
];

/// Looks at version, rights and changes. What needs the tables is not asked where they are not there.
pub async fn look(client: &Client) -> Outcome<Vec<Finding>> {
    let verdict = check_version(client, Schema::Outbox).await;
    let verdict = verdict.map_err(|error| Failure::new(Exit::Configuration, error))?;
    if !verdict.is_usable() {
        return Ok(vec![SCHEMA_WRONG.found(verdict.to_string())]);
    }
    let mut findings = vec![SCHEMA.found(verdict.to_string())];
    let missing = texts(client, PRIVILEGES_SQL).await?;
    findings.push(if missing.is_empty() {
        PRIVILEGES.found("this login has all that a relay needs")
    } else {
        PRIVILEGES_MISSING.found(format!("this login lacks {}", missing.join(", ")))
    });
    for (kind, sql, words) in CHANGES {
        let space = if words.ends_with('.') { "" } else { " " };
        let found = texts(client, sql).await?;
        findings.extend(found.iter().map(|text| kind.found(format!("{words}{space}{text}"))));
    }
    Ok(findings)
}

async fn texts(client: &Client, sql: &str) -> Outcome<Vec<String>> {
    let rows = answered("cannot look at the schema", client.query_typed(sql, &[])).await?;
    decoded(&rows, |row: &Row| row.try_get(0))
}
