//! Statements of one table, made once from its checked names. Names are quoted and literals escaped; values of rows
//! are never part of a statement.

use outbox_core::{ColumnPart, ColumnTemplate};

use super::table::{Body, IntakeTable, Mark, Name};

const TAKE: &str = include_str!("../sql/take.sql");
const SETTLE_MARKED: &str = include_str!("../sql/settle_marked.sql");
const SETTLE_NOTED: &str = include_str!("../sql/settle_noted.sql");
const TIDY: &str = include_str!("../sql/tidy.sql");

/// The statements of a table.
pub(crate) struct Statements {
    /// Whether there is a row that was not taken.
    pub(crate) look: String,
    pub(crate) take: String,
    table: String,
    id: String,
}

impl Statements {
    pub(crate) fn new(table: &IntakeTable) -> Self {
        let columns = Columns(table.content_columns());
        let (untaken, lock, settle) = match &table.mark {
            Mark::Column { name, .. } => {
                (format!("t.{} IS NULL", name.quoted()), "FOR NO KEY UPDATE OF t SKIP LOCKED", SETTLE_MARKED)
            }
            Mark::SideTable => (
                format!(
                    "NOT EXISTS (SELECT FROM outbox.source_row AS r WHERE r.source = $1 AND r.row_id = t.{}::text)",
                    table.id.quoted()
                ),
                "",
                SETTLE_NOTED,
            ),
        };
        let mark = match &table.mark {
            Mark::Column { name, .. } => name.quoted(),
            Mark::SideTable => String::new(),
        };
        let order: Vec<String> = table.order_columns().iter().map(|name| format!("t.{}", name.quoted())).collect();
        let (payload, payload_bytes) = columns.body(&table.body);
        let settle = fill(settle, &[("table", &table.quoted()), ("mark", &mark), ("id", &table.id.quoted())]);
        let ordering_key_nulls = match &table.ordering_key {
            // One column alone may be NULL, as in outbox.message: no order is wanted.
            Some(template) if !template.is_one_column() => columns.nulls(template),
            _ => "''".to_owned(),
        };
        let take = fill(
            TAKE,
            &[
                ("columns", &columns.selected(table)),
                ("table", &table.quoted()),
                ("untaken", &untaken),
                ("order", &order.join(", ")),
                ("lock", lock),
                ("rank", if table.order.is_some() { "f.ord, f.id" } else { "f.id" }),
                ("message_id", &columns.text(&table.message_id)),
                ("topic", &columns.text(&table.topic)),
                ("ordering_key", &table.ordering_key.as_ref().map_or_else(null_text, |key| columns.text(key))),
                ("payload", &payload),
                ("payload_bytes", &payload_bytes),
                ("headers", &columns.headers(table.headers.as_ref())),
                ("message_id_nulls", &columns.nulls(&table.message_id)),
                ("topic_nulls", &columns.nulls(&table.topic)),
                ("ordering_key_nulls", &ordering_key_nulls),
                ("settle", &settle),
            ],
        );
        // In the order of the index, so that only the index can serve it: without, a planner that expects many such rows
        // reads the table from its beginning. A table without a mark has no such index.
        let ordered = match &table.mark {
            Mark::Column { .. } => format!(" ORDER BY {}", order.join(", ")),
            Mark::SideTable => String::new(),
        };
        // With the source as a parameter in either form, so that both are asked alike.
        let look = format!(
            "SELECT $1 <> '' AND (SELECT true FROM {} AS t WHERE {untaken}{ordered} LIMIT 1) IS TRUE AS found",
            table.quoted()
        );
        Self { look, take, table: table.quoted(), id: table.id.quoted() }
    }

    /// Removes notes whose row is gone; the type is the catalog's word for that of the id.
    pub(crate) fn tidy(&self, id_type: &str) -> String {
        fill(TIDY, &[("table", &self.table), ("id", &self.id), ("id_type", id_type)])
    }
}

/// Columns by the short names that they have within the statement.
struct Columns(Vec<Name>);

impl Columns {
    fn selected(&self, table: &IntakeTable) -> String {
        let mut selected = vec![format!("t.{} AS id", table.id.quoted())];
        selected.extend(table.order.iter().map(|name| format!("t.{} AS ord", name.quoted())));
        let named = self.0.iter().enumerate().map(|(index, name)| format!("t.{} AS c{index}", name.quoted()));
        selected.extend(named);
        selected.join(", ")
    }

    fn of(&self, name: &str) -> String {
        let index = self.0.iter().position(|column| column.as_str() == name);
        index.map_or_else(|| "NULL".to_owned(), |index| format!("f.c{index}"))
    }

    /// NULL where a column is.
    fn text(&self, template: &ColumnTemplate) -> String {
        let parts = template.parts().iter().map(|part| match part {
            ColumnPart::Literal(text) => literal(text),
            ColumnPart::Column(name) => format!("{}::text", self.of(name)),
        });
        let parts: Vec<String> = parts.collect();
        if parts.is_empty() { literal("") } else { parts.join(" || ") }
    }

    /// Which of a template's columns are NULL; empty where none is.
    fn nulls(&self, template: &ColumnTemplate) -> String {
        let cases = template.columns().map(|name| {
            format!("CASE WHEN {} IS NULL THEN {} END", self.of(name), literal(&format!("{name} is NULL")))
        });
        format!("array_to_string(ARRAY[{}]::text[], ', ')", cases.collect::<Vec<_>>().join(", "))
    }

    fn body(&self, body: &Body) -> (String, String) {
        let null_bytes = || "NULL::bytea".to_owned();
        match body {
            Body::Object(columns) => {
                let pairs =
                    columns.iter().map(|name| format!("{}, {}", literal(name.as_str()), self.of(name.as_str())));
                let pairs: Vec<String> = pairs.collect();
                (format!("json_build_object({})::text", pairs.join(", ")), null_bytes())
            }
            Body::Columns { payload, payload_bytes } => {
                let text = payload.as_ref().map(|name| format!("{}::text", self.of(name.as_str())));
                let bytes = payload_bytes.as_ref().map(|name| self.of(name.as_str()));
                (text.unwrap_or_else(null_text), bytes.unwrap_or_else(null_bytes))
            }
        }
    }

    fn headers(&self, headers: Option<&Name>) -> String {
        headers.map_or_else(
            || "'{}'::jsonb".to_owned(),
            |name| format!("coalesce({}, '{{}}'::jsonb)", self.of(name.as_str())),
        )
    }
}

fn null_text() -> String {
    "NULL::text".to_owned()
}

/// A literal that means the same under any setting of standard_conforming_strings.
pub(crate) fn literal(text: &str) -> String {
    let escaped = text.replace('\'', "''");
    if escaped.contains('\\') {
        format!("E'{}'::text", escaped.replace('\\', "\\\\"))
    } else {
        format!("'{escaped}'::text")
    }
}

/// Puts values in the places of `«name»`, in one pass: what a value holds is never taken for a place.
fn fill(template: &str, values: &[(&str, &str)]) -> String {
    let mut filled = String::with_capacity(template.len() * 2);
    let mut rest = template;
    while let Some((before, after)) = rest.split_once('«') {
        filled.push_str(before);
        let (name, after) = after.split_once('»').unwrap_or((after, ""));
        match values.iter().find(|(known, _)| *known == name) {
            Some((_, value)) => filled.push_str(value),
            // The remark that explains the marks.
            None => filled.push('…'),
        }
        rest = after;
    }
    filled.push_str(rest);
    filled
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Name {
        Name::new(text).unwrap()
    }

    fn table() -> IntakeTable {
        IntakeTable {
            name: "invoices".to_owned(),
            schema: name("public"),
            table: name("out\"box"),
            id: name("id"),
            order: None,
            message_id: ColumnTemplate::parse("{kind}:{«table»}").unwrap(),
            topic: ColumnTemplate::parse("it's\\").unwrap(),
            ordering_key: None,
            body: Body::Object(vec![name("kind")]),
            content_type: "application/json".to_owned(),
            headers: None,
            mark: Mark::Column { name: name("taken_at"), add: false },
            batch_rows: 10,
        }
    }

    #[test]
    fn names_are_quoted_and_literals_escaped() {
        let statements = Statements::new(&table());
        assert!(statements.take.contains("FROM \"public\".\"out\"\"box\" AS t"), "{}", statements.take);
        assert!(statements.take.contains("(E'it''s\\\\'::text) COLLATE \"C\" AS topic"), "{}", statements.take);
        assert!(statements.take.contains("t.\"kind\" AS c0, t.\"«table»\" AS c1"), "{}", statements.take);
        assert!(statements.take.contains("(f.c0::text || ':'::text || f.c1::text) COLLATE \"C\" AS key"));
        assert!(statements.look.contains("t.\"taken_at\" IS NULL"), "{}", statements.look);
    }

    #[test]
    fn a_table_that_is_only_read_is_neither_locked_nor_changed() {
        let statements = Statements::new(&IntakeTable { mark: Mark::SideTable, ..table() });
        assert!(!statements.take.contains("FOR NO KEY UPDATE"), "{}", statements.take);
        assert!(!statements.take.contains("UPDATE \"public\""), "{}", statements.take);
    }

    #[test]
    fn what_is_no_name_is_refused() {
        assert!(Name::new("").is_err());
        assert!(Name::new(&"x".repeat(64)).is_err());
        assert!(Name::new("a\0b").is_err());
        assert_eq!(name("Order \"No\"").quoted(), "\"Order \"\"No\"\"\"");
    }
}
