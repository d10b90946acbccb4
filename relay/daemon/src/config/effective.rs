//! The configuration as it would be used, for the `config` command. Secrets are hidden; every value says where it
//! comes from.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::{Map, Value};

use super::keys::{KAFKA_PROPERTIES, KEYS, Key, LISTS};
use super::layers::{Merged, Setting};
use super::secret;
use super::value::{Raw, quoted};

/// Merged settings, ready to be shown.
pub struct Effective(Merged);

impl Effective {
    pub(super) const fn new(merged: Merged) -> Self {
        Self(merged)
    }

    /// As TOML that could be used as a file, if the hidden values were filled in.
    pub fn to_toml(&self) -> String {
        let mut out = String::new();
        let mut section = "";
        for key in KEYS {
            let (own_section, name) = key.name.rsplit_once('.').unwrap_or(("", key.name));
            let line = match self.0.get(key.name) {
                Some(setting) => line(name, &shown(key.name, &setting.raw), &setting.origin.to_string()),
                None if key.default.is_empty() => continue,
                None => line(name, key.default, "default"),
            };
            if own_section != section {
                section = own_section;
                let _ = write!(out, "\n[{section}]\n");
            }
            out.push_str(&line);
            out.push('\n');
        }
        self.properties(&mut out);
        for (list, _) in LISTS {
            self.list(list, &mut out);
        }
        out
    }

    /// As JSON: sections as objects, without where values come from.
    pub fn to_json(&self) -> Value {
        let mut root = Map::new();
        for Key { name, default, .. } in KEYS {
            let value = match self.0.get(*name) {
                Some(Setting { raw, .. }) => json(&hidden(name, raw)),
                None if default.is_empty() => continue,
                // Defaults are numbers, texts and an empty list, which JSON writes as TOML does.
                None => serde_json::from_str(default).unwrap_or(Value::Null),
            };
            place(&mut root, name, value);
        }
        for (name, setting) in self.0.iter().filter(|(name, _)| name.starts_with(KAFKA_PROPERTIES)) {
            if let Some(property) = name.strip_prefix("kafka.properties.") {
                let kafka = root.entry("kafka").or_insert_with(|| Value::Object(Map::new()));
                if let Some(kafka) = kafka.as_object_mut() {
                    let properties = kafka.entry("properties").or_insert_with(|| Value::Object(Map::new()));
                    properties[property] = json(&hidden(name, &setting.raw));
                }
            }
        }
        for (list, _) in LISTS {
            if let Some(tables) = self.0.get(list) {
                root.insert(list.to_owned(), json(&tables.raw));
            }
        }
        Value::Object(root)
    }

    fn properties(&self, out: &mut String) {
        let all: Vec<(&str, &Setting)> = self
            .0
            .iter()
            .filter_map(|(name, setting)| Some((name.strip_prefix("kafka.properties.")?, setting)))
            .collect();
        if !all.is_empty() {
            out.push_str("\n[kafka.properties]\n");
        }
        for (name, setting) in all {
            let value = shown(&format!("{KAFKA_PROPERTIES}.{name}"), &setting.raw);
            out.push_str(&line(&quoted(name), &value, &setting.origin.to_string()));
            out.push('\n');
        }
    }

    fn list(&self, name: &str, out: &mut String) {
        let Some(Setting { raw: Raw::List(tables), .. }) = self.0.get(name) else { return };
        for table in tables {
            let _ = write!(out, "\n[[{name}]]\n");
            if let Raw::Table(table) = table {
                for (name, value) in table {
                    let _ = writeln!(out, "{name} = {value}");
                }
            }
        }
    }
}

/// Every key with its meaning and its default, as a file to start from: all of it is commented out.
pub fn default_file() -> String {
    let mut out = String::from(
        "# outbox-relay: every key, its meaning and its default. Flags beat OUTBOX__SECTION__KEY variables,\n\
         # which beat DATABASE_URL, AMQP_URL and KAFKA_BROKERS, which beat this file.\n\n",
    );
    let mut section = "";
    for key in KEYS {
        let (own_section, name) = key.name.rsplit_once('.').unwrap_or(("", key.name));
        if own_section != section {
            section = own_section;
            let _ = write!(out, "\n[{section}]\n");
        }
        let default = if key.default.is_empty() { "\"\"" } else { key.default };
        let _ = writeln!(out, "# {}\n# {name} = {default}", key.help);
    }
    out.push_str(
        "\n# librdkafka's own properties, except those that would break a promise.\n\
         # [kafka.properties]\n# \"compression.type\" = \"lz4\"\n\
         \n# The first route whose match fits the row's topic wins. Templates know {topic}, {ordering_key},\n\
         # {idempotency_key} and {header.NAME}. With two brokers the last route must match everything.\n\
         # [[route]]\n# match = \"*\"\n# sink = \"rabbitmq\"\n# exchange = \"amq.topic\"\n# routing_key = \"{topic}\"\n\
         \n# A table of an application as a source: its new rows are taken over into the outbox (schema/SOURCES.md).\n\
         # [[source]]\n# name = \"invoices\"\n# table = \"public.outbox\"\n# message_id = \"{kind}:{ref}\"\n\
         # topic = \"{kind}\"\n# body = [\"kind\", \"ref\"]\n# mark_column = \"taken_at\"\n",
    );
    out
}

/// The source stands in a column of its own.
fn line(name: &str, value: &str, origin: &str) -> String {
    format!("{:<40} # {origin}", format!("{name} = {value}"))
}

fn shown(name: &str, raw: &Raw) -> String {
    hidden(name, raw).to_string()
}

fn hidden(name: &str, raw: &Raw) -> Raw {
    match raw {
        Raw::Text(text) if name.ends_with(".url") => Raw::Text(secret::redact_url(text)),
        _ if secret::is_secret_name(name) && !name.ends_with("_file") => Raw::Text("***".to_owned()),
        // Numbers from the environment are numbers all the same.
        Raw::Text(text) if is_number(name) => text.parse().map_or_else(|_| raw.clone(), Raw::Integer),
        other => other.clone(),
    }
}

fn is_number(name: &str) -> bool {
    super::keys::find(name).is_some_and(|key| key.default.parse::<i64>().is_ok() || key.name.ends_with("_ms"))
}

fn json(raw: &Raw) -> Value {
    match raw {
        Raw::Text(text) => Value::from(text.as_str()),
        Raw::Integer(number) => Value::from(*number),
        Raw::Float(number) => Value::from(*number),
        Raw::Bool(yes) => Value::from(*yes),
        Raw::List(items) => items.iter().map(json).collect(),
        Raw::Table(table) => Value::Object(
            table
                .iter()
                .map(|(key, value)| (key.clone(), json(value)))
                .collect::<BTreeMap<_, _>>()
                .into_iter()
                .collect(),
        ),
    }
}

fn place(root: &mut Map<String, Value>, name: &str, value: Value) {
    match name.split_once('.') {
        None => drop(root.insert(name.to_owned(), value)),
        Some((section, key)) => {
            let section = root.entry(section).or_insert_with(|| Value::Object(Map::new()));
            section[key] = value;
        }
    }
}
