//! What the database has of an application's table, against what the configuration says of it; with the statements
//! that mend what is missing, to be run by whoever owns the table.

use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Error};

use super::table::{Body, IntakeTable, Mark, Name};

/// What is wrong. The last four are not in a relay's way by themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IntakeFaultKind {
    /// Table, column or type: the configuration and the database disagree.
    Table,
    MarkMissing,
    Privileges,
    RowSecurity,
    Rule,
    Trigger,
    Index,
}

impl IntakeFaultKind {
    /// Whether rows cannot be taken, or not all of them.
    #[must_use]
    pub const fn is_error(self) -> bool {
        match self {
            Self::Table | Self::MarkMissing | Self::Privileges | Self::RowSecurity | Self::Rule => true,
            Self::Trigger | Self::Index => false,
        }
    }
}

/// One thing that is wrong, and what mends it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IntakeFault {
    pub kind: IntakeFaultKind,
    pub detail: String,
    /// To be run in this order, as they stand.
    pub statements: Vec<String>,
}

const TABLE: &str = "
    SELECT c.oid, c.relkind::text AS kind, has_schema_privilege(n.oid, 'USAGE') AS reachable,
           has_table_privilege(c.oid, 'SELECT') AS readable, has_table_privilege(c.oid, 'UPDATE') AS writable,
           row_security_active(c.oid) AS row_security, quote_ident(current_user) AS login
      FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
     WHERE n.nspname = $1 AND c.relname = $2";

const COLUMNS: &str = "
    SELECT a.attname::text AS name, format_type(a.atttypid, NULL) AS type, a.attnotnull AS required,
           has_column_privilege(a.attrelid, a.attnum, 'SELECT') AS readable,
           has_column_privilege(a.attrelid, a.attnum, 'UPDATE') AS writable,
           EXISTS (SELECT FROM pg_catalog.pg_index AS i
                    WHERE i.indrelid = a.attrelid AND i.indisunique AND i.indisvalid AND i.indpred IS NULL
                      AND i.indnkeyatts = 1 AND i.indkey[0] = a.attnum) AS key
      FROM pg_catalog.pg_attribute AS a
     WHERE a.attrelid = $1 AND a.attnum > 0 AND NOT a.attisdropped";

// The columns of an index in their order; those that are expressions have none.
const INDEXES: &str = "
    SELECT c.relname::text AS name, i.indisvalid AS valid,
           ARRAY(SELECT a.attname::text FROM unnest(i.indkey) WITH ORDINALITY AS k (attnum, place)
                   JOIN pg_catalog.pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
                  ORDER BY k.place) AS columns
      FROM pg_catalog.pg_index AS i JOIN pg_catalog.pg_class AS c ON c.oid = i.indexrelid
     WHERE i.indrelid = $1 AND pg_get_expr(i.indpred, i.indrelid) = format('(%I IS NULL)', $2)";

// Of the catalog, which everybody may read: the schema may be closed to this login.
const NAME_TAKEN: &str = "
    SELECT EXISTS (SELECT FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
                    WHERE n.nspname = $1 AND c.relname = $2) AS taken";

// tgtype: 2 is BEFORE, 16 is UPDATE.
const TRIGGERS: &str = "
    SELECT quote_ident(t.tgname) AS name FROM pg_catalog.pg_trigger AS t
     WHERE t.tgrelid = $1 AND NOT t.tgisinternal AND t.tgenabled <> 'D' AND t.tgtype & 18 = 18 ORDER BY 1";

const RULES: &str = "
    SELECT quote_ident(r.rulename) AS name FROM pg_catalog.pg_rewrite AS r
     WHERE r.ev_class = $1 AND r.ev_enabled <> 'D' ORDER BY 1";

const OUTBOX_PRIVILEGES: &str = "
    SELECT what AS name FROM (VALUES
        ('INSERT on outbox.message',      has_column_privilege('outbox.message', 'idempotency_key', 'INSERT')
                                      AND has_column_privilege('outbox.message', 'headers', 'INSERT')),
        ('USAGE on outbox.message_seq',   has_sequence_privilege('outbox.message_seq', 'USAGE')),
        ('SELECT on outbox.source_row',   has_table_privilege('outbox.source_row', 'SELECT')),
        ('INSERT on outbox.source_row',   has_table_privilege('outbox.source_row', 'INSERT')),
        ('UPDATE on outbox.source_row',   has_table_privilege('outbox.source_row', 'UPDATE')),
        ('DELETE on outbox.source_row',   has_table_privilege('outbox.source_row', 'DELETE'))
    ) AS needed (what, have) WHERE NOT have";

const ID_TYPES: [&str; 4] = ["bigint", "integer", "smallint", "uuid"];
const NAME_BYTES_MAX: usize = 63;

struct Column {
    name: String,
    kind: String,
    required: bool,
    readable: bool,
    writable: bool,
    key: bool,
}

struct Found {
    oid: u32,
    kind: String,
    reachable: bool,
    readable: bool,
    writable: bool,
    row_security: bool,
    login: String,
    columns: Vec<Column>,
}

impl Found {
    fn column(&self, name: &Name) -> Option<&Column> {
        self.columns.iter().find(|column| column.name == name.as_str())
    }
}

/// Everything that is wrong with one table; nothing is changed.
///
/// # Errors
/// The database does not answer, or refuses to.
pub async fn inspect(client: &Client, table: &IntakeTable) -> Result<Vec<IntakeFault>, Error> {
    let Some(found) = look(client, table).await? else {
        return Ok(vec![fault(IntakeFaultKind::Table, format!("there is no table {}", table.quoted()), vec![])]);
    };
    if !["r", "p"].contains(&found.kind.as_str()) {
        return Ok(vec![fault(IntakeFaultKind::Table, format!("{} is no table", table.quoted()), vec![])]);
    }
    let mut faults = columns(table, &found);
    faults.extend(mark_missing(table, &found));
    faults.extend(privileges(client, table, &found).await?);
    if found.row_security {
        let detail = format!("row level security applies to this login on {}", table.quoted());
        faults.push(fault(IntakeFaultKind::RowSecurity, detail, vec![]));
    }
    if let Mark::Column { name, .. } = &table.mark {
        let oid = [(&found.oid as &(dyn ToSql + Sync), Type::OID)];
        for (kind, sql, word) in
            [(IntakeFaultKind::Rule, RULES, "rule"), (IntakeFaultKind::Trigger, TRIGGERS, "trigger")]
        {
            for found in strings(client, sql, &oid).await? {
                faults.push(fault(kind, format!("the {word} {found} acts on updates of {}", table.quoted()), vec![]));
            }
        }
        faults.extend(index(client, table, name, &found).await?);
    }
    Ok(faults)
}

fn fault(kind: IntakeFaultKind, detail: String, statements: Vec<String>) -> IntakeFault {
    IntakeFault { kind, detail, statements }
}

async fn look(client: &Client, table: &IntakeTable) -> Result<Option<Found>, Error> {
    let names = (table.schema.as_str(), table.table.as_str());
    let rows = client.query_typed(TABLE, &[(&names.0, Type::TEXT), (&names.1, Type::TEXT)]).await?;
    let Some(row) = rows.first() else { return Ok(None) };
    let oid: u32 = row.try_get("oid")?;
    let columns = client.query_typed(COLUMNS, &[(&oid, Type::OID)]).await?;
    let columns = columns.iter().map(|row| {
        Ok(Column {
            name: row.try_get("name")?,
            kind: row.try_get("type")?,
            required: row.try_get("required")?,
            readable: row.try_get("readable")?,
            writable: row.try_get("writable")?,
            key: row.try_get("key")?,
        })
    });
    Ok(Some(Found {
        oid,
        kind: row.try_get("kind")?,
        reachable: row.try_get("reachable")?,
        readable: row.try_get("readable")?,
        writable: row.try_get("writable")?,
        row_security: row.try_get("row_security")?,
        login: row.try_get("login")?,
        columns: columns.collect::<Result<_, Error>>()?,
    }))
}

/// Columns that are not there, or are of another kind than they must be.
fn columns(table: &IntakeTable, found: &Found) -> Vec<IntakeFault> {
    let mut wrong = Vec::new();
    let mark = match &table.mark {
        Mark::Column { name, .. } => Some(name),
        Mark::SideTable => None,
    };
    for name in table.columns_read().iter().filter(|name| Some(*name) != mark) {
        if found.column(name).is_none() {
            wrong.push(format!("has no column {}", name.quoted()));
        }
    }
    let mut typed = |name: Option<&Name>, fits: &dyn Fn(&Column) -> bool, rule: &str| {
        if let Some((name, column)) = name.and_then(|name| Some((name, found.column(name)?)))
            && !fits(column)
        {
            wrong.push(format!("has the column {} of type {}, which must be {rule}", name.quoted(), column.kind));
        }
    };
    typed(Some(&table.id), &|column| ID_TYPES.contains(&column.kind.as_str()), "bigint, integer, smallint or uuid");
    typed(Some(&table.id), &|column| column.key && column.required, "NOT NULL with a unique index of its own");
    typed(mark, &|column| column.kind == "timestamp with time zone", "timestamptz");
    typed(mark, &|column| !column.required, "nullable: NULL is what was not taken");
    typed(table.headers.as_ref(), &|column| column.kind == "jsonb", "jsonb");
    if let Body::Columns { payload, payload_bytes } = &table.body {
        typed(
            payload.as_ref(),
            &|column| column.kind != "bytea",
            "text, or another with a text form (see payload_bytes)",
        );
        typed(payload_bytes.as_ref(), &|column| column.kind == "bytea", "bytea (see payload)");
    }
    let faults = wrong.into_iter().map(|what| format!("{} {what}", table.quoted()));
    faults.map(|detail| fault(IntakeFaultKind::Table, detail, vec![])).collect()
}

fn mark_missing(table: &IntakeTable, found: &Found) -> Option<IntakeFault> {
    let Mark::Column { name, .. } = &table.mark else { return None };
    if found.column(name).is_some() {
        return None;
    }
    let detail = format!("{} has no column {} for the mark", table.quoted(), name.quoted());
    Some(fault(IntakeFaultKind::MarkMissing, detail, vec![add_mark(table, name)]))
}

/// What adds the column for the mark.
pub(super) fn add_mark(table: &IntakeTable, name: &Name) -> String {
    format!("ALTER TABLE {} ADD COLUMN {} timestamptz;", table.quoted(), name.quoted())
}

async fn privileges(client: &Client, table: &IntakeTable, found: &Found) -> Result<Option<IntakeFault>, Error> {
    let (mut lacks, mut statements) = (Vec::new(), Vec::new());
    if !found.reachable {
        lacks.push(format!("USAGE on schema {}", table.schema.quoted()));
        statements.push(format!("GRANT USAGE ON SCHEMA {} TO {};", table.schema.quoted(), found.login));
    }
    let mark = match &table.mark {
        Mark::Column { name, .. } => Some(name),
        Mark::SideTable => None,
    };
    // The column for the mark may be about to be added.
    let missing = |name: &Name, has: fn(&Column) -> bool, has_all: bool| match found.column(name) {
        Some(column) => !has(column),
        None => Some(name) == mark && !has_all,
    };
    let list = |names: Vec<&Name>| names.iter().map(|name| name.quoted()).collect::<Vec<_>>().join(", ");
    let read = table.columns_read();
    let unread: Vec<&Name> =
        read.iter().filter(|name| missing(name, |column| column.readable, found.readable)).collect();
    let unwritten: Vec<&Name> =
        mark.into_iter().filter(|name| missing(name, |column| column.writable, found.writable)).collect();
    let mut grants = Vec::new();
    for (right, names) in [("SELECT", unread), ("UPDATE", unwritten)] {
        if !names.is_empty() {
            grants.push(format!("{right} ({})", list(names)));
        }
    }
    if !grants.is_empty() {
        lacks.push(format!("{} on {}", grants.join(", "), table.quoted()));
        statements.push(format!("GRANT {} ON {} TO {};", grants.join(", "), table.quoted(), found.login));
    }
    let outbox = strings(client, OUTBOX_PRIVILEGES, &[]).await?;
    if !outbox.is_empty() {
        lacks.extend(outbox);
        statements.push(format!("GRANT outbox_source TO {};", found.login));
    }
    let detail = format!("this login lacks {}", lacks.join(", "));
    Ok((!lacks.is_empty()).then(|| fault(IntakeFaultKind::Privileges, detail, statements)))
}

/// The partial index through which rows that were not taken are found.
async fn index(client: &Client, table: &IntakeTable, mark: &Name, found: &Found) -> Result<Option<IntakeFault>, Error> {
    let order = table.order_columns();
    let rows = client.query_typed(INDEXES, &[(&found.oid, Type::OID), (&mark.as_str(), Type::TEXT)]).await?;
    let mut statements = Vec::new();
    let concurrently = if found.kind == "p" { "" } else { "CONCURRENTLY " };
    for row in &rows {
        let columns: Vec<String> = row.try_get("columns")?;
        let fits = columns.iter().map(String::as_str).take(order.len()).eq(order.iter().map(|name| name.as_str()));
        if fits && row.try_get("valid")? {
            return Ok(None);
        }
        if fits {
            let name = Name::new(row.try_get("name")?).map_or_else(|_| String::new(), |name| name.quoted());
            statements.push(format!("DROP INDEX {concurrently}{}.{name};", table.schema.quoted()));
        }
    }
    let columns: Vec<String> = order.iter().map(|name| name.quoted()).collect();
    let name = free_name(client, table, !statements.is_empty()).await?;
    statements.push(format!(
        "CREATE INDEX {concurrently}{name} ON {} ({}) WHERE {} IS NULL;",
        table.quoted(),
        columns.join(", "),
        mark.quoted()
    ));
    let detail = format!("{} has no valid index of the rows that were not taken", table.quoted());
    Ok(Some(fault(IntakeFaultKind::Index, detail, statements)))
}

/// A name for the index that nothing else in the schema has, unless that goes first.
async fn free_name(client: &Client, table: &IntakeTable, replaces: bool) -> Result<String, Error> {
    for number in 1.. {
        let suffix = if number == 1 { "_untaken".to_owned() } else { format!("_untaken_{number}") };
        let mut end = table.table.as_str().len().min(NAME_BYTES_MAX - suffix.len());
        while !table.table.as_str().is_char_boundary(end) {
            end -= 1;
        }
        let name = format!("{}{suffix}", &table.table.as_str()[..end]);
        let parameters = [(&table.schema.as_str() as &(dyn ToSql + Sync), Type::TEXT), (&name, Type::TEXT)];
        let taken = client.query_typed(NAME_TAKEN, &parameters).await?;
        if replaces || !taken.first().map_or(Ok(false), |row| row.try_get("taken"))? {
            return Ok(Name::new(&name).map_or(name, |name| name.quoted()));
        }
    }
    Ok(String::new())
}

async fn strings(client: &Client, sql: &str, parameters: &[(&(dyn ToSql + Sync), Type)]) -> Result<Vec<String>, Error> {
    client.query_typed(sql, parameters).await?.iter().map(|row| row.try_get("name")).collect()
}

/// Adds the column for the mark where the configuration permits it and it is missing. Whether it did.
///
/// # Errors
/// The database refuses: not the owner, or the table's lock was not free in time.
pub async fn add_missing_mark(client: &Client, table: &IntakeTable, lock_timeout_ms: u64) -> Result<bool, Error> {
    let Mark::Column { name, add: true } = &table.mark else { return Ok(false) };
    let missing = look(client, table).await?.is_some_and(|found| found.column(name).is_none());
    if missing {
        // One message, and so one transaction, in which the setting is local.
        let sql = format!("SET LOCAL lock_timeout = {lock_timeout_ms}; {}", add_mark(table, name));
        client.batch_execute(&sql).await?;
    }
    Ok(missing)
}
