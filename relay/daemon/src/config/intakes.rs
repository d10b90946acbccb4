//! The `[[source]]` tables: an application's tables whose rows the relay takes over.
//!
//! Names and templates are checked here; whether the database has them is asked at the start of `run`, and by `check`.

use std::collections::{BTreeMap, BTreeSet};

use outbox_core::{ColumnTemplate, Intake};
use outbox_postgres::{Body, IntakeTable, Mark, Name};

use super::keys::{Key, SOURCE};
use super::reader::Reader;
use super::value::Raw;

/// PostgreSQL passes at most 100 arguments to the function that makes the object: a name and a value each.
const BODY_COLUMNS_MAX: usize = 50;
/// Bytes of a source's name: a label of metrics and part of a key.
const NAME_BYTES_MAX: usize = 63;

/// One source: what the core and what the database adapter must know of it.
#[derive(Clone, Debug)]
pub struct SourceTable {
    pub intake: Intake,
    pub table: IntakeTable,
}

/// All of them, in their order.
pub(super) fn read(reader: &mut Reader) -> Vec<SourceTable> {
    let mut sources = Vec::new();
    let mut names = BTreeSet::new();
    for (number, values) in reader.tables("source", &SOURCE) {
        let mut entry = Entry { reader, number, values: &values, broken: false };
        let source = entry.source();
        if let Some(source) = source.filter(|_| !entry.broken) {
            if !names.insert(source.intake.name.clone()) {
                entry.refuse(format!("the name '{}' is taken by an earlier source", source.intake.name));
            }
            sources.push(source);
        }
    }
    sources
}

/// One `[[source]]`. A part that is wrong is noted, and the rest is read all the same.
struct Entry<'a> {
    reader: &'a mut Reader,
    number: usize,
    values: &'a BTreeMap<String, Raw>,
    broken: bool,
}

impl Entry<'_> {
    fn refuse(&mut self, rule: impl std::fmt::Display) {
        self.broken = true;
        self.reader.refuse("source", format!("source {}: {rule}", self.number));
    }

    fn source(&mut self) -> Option<SourceTable> {
        let name = self.name();
        let table = self.table();
        let id = self.column("id").or_else(|| Name::new(&default("id")).ok());
        let order = self.column("order");
        let message_id = self.template("message_id");
        let topic = self.template("topic");
        if message_id.is_none() && !self.values.contains_key("message_id") {
            self.refuse("message_id is missing, such as message_id = \"{kind}:{ref}\"");
        }
        if topic.is_none() && !self.values.contains_key("topic") {
            self.refuse("topic is missing, such as topic = \"{kind}\" or topic = \"invoice.email\"");
        }
        if message_id.as_ref().is_some_and(|template| template.columns().next().is_none()) {
            self.refuse("message_id names no column, so that all rows would be one message");
        }
        let ordering_key = self.template("ordering_key");
        let body = self.body();
        let headers = self.column("headers");
        let content_type = self.text("content_type").unwrap_or_else(|| default("content_type"));
        let mark = self.mark();
        let poll_ms = self.integer("poll_ms");
        let batch_rows = u32::try_from(self.integer("batch_rows")).unwrap_or(1);
        let (name, (schema, table)) = (name?, table?);
        let (message_id, topic, body, mark, id) = (message_id?, topic?, body?, mark?, id?);
        let intake = Intake { name: name.clone(), poll_ms };
        let table = IntakeTable {
            name,
            schema,
            table,
            id,
            order,
            message_id,
            topic,
            ordering_key,
            body,
            content_type,
            headers,
            mark,
            batch_rows,
        };
        Some(SourceTable { intake, table })
    }

    /// `None` where the key is not there; a value of another kind is refused.
    fn text(&mut self, key: &str) -> Option<String> {
        let text = self.values.get(key)?.as_text();
        if text.is_none() {
            self.refuse(format!("{key} must be one value, not a list or a table"));
        }
        text
    }

    fn name(&mut self) -> Option<String> {
        let Some(name) = self.text("name") else {
            if !self.values.contains_key("name") {
                self.refuse("name is missing, such as name = \"invoices\"");
            }
            return None;
        };
        let plain = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '_' | '-' | '.');
        if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.chars().all(plain) {
            self.refuse(format!("name must be 1 to {NAME_BYTES_MAX} letters, digits, '_', '-' or '.'; it is '{name}'"));
            return None;
        }
        Some(name)
    }

    fn table(&mut self) -> Option<(Name, Name)> {
        let Some(text) = self.text("table") else {
            if !self.values.contains_key("table") {
                self.refuse("table is missing, such as table = \"public.outbox\"");
            }
            return None;
        };
        match qualified(&text) {
            Ok(names) => return Some(names),
            Err(rule) => self.refuse(format!("table = '{text}': {rule}")),
        }
        None
    }

    fn column(&mut self, key: &str) -> Option<Name> {
        let text = self.text(key)?;
        match Name::new(&text) {
            Ok(name) => return Some(name),
            Err(rule) => self.refuse(format!("{key}: {rule}")),
        }
        None
    }

    fn template(&mut self, key: &str) -> Option<ColumnTemplate> {
        let text = self.text(key)?;
        match ColumnTemplate::parse(&text) {
            Ok(template) => {
                let wrong = template.columns().find_map(|name| Name::new(name).err());
                match wrong {
                    Some(rule) => self.refuse(format!("{key} = \"{text}\": {rule}")),
                    None => return Some(template),
                }
            }
            Err(error) => self.refuse(format!("{key} = \"{text}\": {error}")),
        }
        None
    }

    fn body(&mut self) -> Option<Body> {
        let columns = (self.column("payload"), self.column("payload_bytes"));
        let has = |key: &str| self.values.contains_key(key);
        let (object, any_column) = (has("body"), has("payload") || has("payload_bytes"));
        match (object, any_column) {
            (true, false) => self.object(),
            (false, true) => Some(Body::Columns { payload: columns.0, payload_bytes: columns.1 }),
            (true, true) => {
                self.refuse("body makes the payload itself; set it or payload and payload_bytes, not both");
                None
            }
            (false, false) => {
                self.refuse("has no payload; set body = [\"column\", …], payload or payload_bytes");
                None
            }
        }
    }

    fn object(&mut self) -> Option<Body> {
        let items: Option<Vec<String>> = match self.values.get("body") {
            Some(Raw::List(items)) => items.iter().map(Raw::as_text).collect(),
            _ => None,
        };
        let Some(items) = items.filter(|items| (1..=BODY_COLUMNS_MAX).contains(&items.len())) else {
            self.refuse(format!("body must be a list of 1 to {BODY_COLUMNS_MAX} columns"));
            return None;
        };
        let names: Result<Vec<Name>, String> = items.iter().map(|item| Name::new(item)).collect();
        match names {
            Ok(names) => return Some(Body::Object(names)),
            Err(rule) => self.refuse(format!("body: {rule}")),
        }
        None
    }

    fn mark(&mut self) -> Option<Mark> {
        let (column, add) = (self.column("mark_column"), self.yes("mark_add"));
        let side_table = self.yes("side_table");
        match (column, side_table) {
            (Some(name), false) => Some(Mark::Column { name, add }),
            (None, true) => {
                if add {
                    self.refuse("mark_add is for mark_column; a table that may only be read is not changed");
                }
                Some(Mark::SideTable)
            }
            (Some(_), true) => {
                self.refuse("set mark_column or side_table = true, not both");
                None
            }
            (None, false) => {
                if !self.values.contains_key("mark_column") {
                    self.refuse("set mark_column, a timestamptz column of the table, or side_table = true");
                }
                None
            }
        }
    }

    fn yes(&mut self, key: &str) -> bool {
        match self.text(key).as_deref() {
            None | Some("false") => false,
            Some("true") => true,
            Some(other) => {
                self.refuse(format!("{key} must be true or false; it is '{other}'"));
                false
            }
        }
    }

    fn integer(&mut self, key: &str) -> u64 {
        let text = self.text(key).unwrap_or_else(|| default(key));
        let range = known(key).kind.range();
        match text.parse() {
            Ok(number) if range.contains(&number) => number,
            _ => {
                let (least, most) = (range.start(), range.end());
                self.refuse(format!("{key} must be a whole number, from {least} to {most}; it is '{text}'"));
                *least
            }
        }
    }
}

/// Names come from this program, never from a configuration.
fn known(name: &str) -> &'static Key {
    SOURCE.iter().find(|key| key.name == name).unwrap_or_else(|| unreachable!("{name} is no key of a source"))
}

/// As a file would say it.
fn default(name: &str) -> String {
    known(name).default.trim_matches('"').to_owned()
}

/// `schema.table` as the catalog has the names; a part that has a dot or a quote stands in double quotes, as in SQL.
fn qualified(text: &str) -> Result<(Name, Name), String> {
    let rule = "write schema.table, a name with a dot or a quote in double quotes";
    let (schema, rest) = part(text).ok_or(rule)?;
    let (table, rest) = rest.strip_prefix('.').and_then(part).ok_or(rule)?;
    if !rest.is_empty() {
        return Err(rule.to_owned());
    }
    Ok((Name::new(&schema)?, Name::new(&table)?))
}

/// A name and what follows it.
fn part(text: &str) -> Option<(String, &str)> {
    let Some(quoted) = text.strip_prefix('"') else {
        let end = text.find('.').unwrap_or(text.len());
        let name = &text[..end];
        return (!name.is_empty() && !name.contains('"')).then(|| (name.to_owned(), &text[end..]));
    };
    let mut name = String::new();
    let mut rest = quoted;
    loop {
        let (before, after) = rest.split_once('"')?;
        name.push_str(before);
        match after.strip_prefix('"') {
            Some(more) => {
                name.push('"');
                rest = more;
            }
            None => return Some((name, after)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_named_as_the_catalog_has_them() {
        let names = |text: &str| qualified(text).map(|(schema, table)| (schema.quoted(), table.quoted()));
        let pair = |schema: &str, table: &str| Ok((schema.to_owned(), table.to_owned()));
        assert_eq!(names("public.outbox"), pair("\"public\"", "\"outbox\""));
        assert_eq!(names("Shop.Out Box"), pair("\"Shop\"", "\"Out Box\""));
        assert_eq!(names("\"a.b\".\"c\"\"d\""), pair("\"a.b\"", "\"c\"\"d\""));
        for text in ["outbox", "a.b.c", ".b", "a.", "\"a.b", "\"a\"b.c", "a\"b.c", ""] {
            assert!(names(text).is_err(), "{text}");
        }
    }
}
