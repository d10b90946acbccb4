//! The configuration file as a JSON schema, made of the table of keys, for editors and for checks before a start.
//!
//! It knows the kinds and bounds of single values and refuses unknown keys. How values go together only the relay
//! knows. A number or a choice in quotes, which the relay takes too, is refused.

use outbox_kafka::refused_properties;
use serde_json::{Map, Value, json};

use super::keys::{KAFKA_PROPERTIES, KEYS, Key, ROUTE, SOURCE};
use super::kind::Kind;

/// The draft that the chart's `values.schema.json` is written in, too.
const DRAFT: &str = "http://json-schema.org/draft-07/schema#";

/// The schema of the whole file.
pub fn schema() -> Value {
    let mut root = Map::new();
    let mut sections: Map<String, Value> = Map::new();
    for key in KEYS {
        match key.name.split_once('.') {
            None => drop(root.insert(key.name.to_owned(), value(key))),
            Some((section, name)) => place(&mut sections, section, name, value(key)),
        }
    }
    if let Some((section, name)) = KAFKA_PROPERTIES.split_once('.') {
        place(&mut sections, section, name, properties());
    }
    root.extend(sections.into_iter().map(|(name, keys)| (name, closed(keys))));
    root.insert("route".to_owned(), routes());
    root.insert("source".to_owned(), sources());
    let mut schema = closed(Value::Object(root));
    schema["$schema"] = json!(DRAFT);
    schema["title"] = json!("The configuration file of outbox-relay");
    schema
}

fn place(sections: &mut Map<String, Value>, section: &str, name: &str, value: Value) {
    let section = sections.entry(section).or_insert_with(|| json!({}));
    section[name] = value;
}

fn closed(properties: Value) -> Value {
    json!({"type": "object", "additionalProperties": false, "properties": properties})
}

/// The value of one key.
fn value(key: &Key) -> Value {
    let mut schema = match key.kind {
        Kind::Text => json!({"type": "string"}),
        Kind::Whole(least, most) => json!({"type": "integer", "minimum": least, "maximum": most}),
        // Bounds hold for a number; of a text only the form is judged.
        Kind::Size(least, most) => json!({
            "type": ["integer", "string"], "minimum": least, "maximum": most,
            "pattern": "^[0-9]+ ?(B|kB|KB|MB|GB|KiB|MiB|GiB)?$",
        }),
        Kind::Duration => json!({"type": "string", "pattern": "^([0-9]+ ?(s|m|min|h|d|w)|0|off)$"}),
        Kind::Choice(words) => json!({"enum": words}),
        Kind::Flag => json!({"type": "boolean"}),
        Kind::Texts => json!({"type": "array", "items": {"type": "string"}}),
    };
    schema["description"] = json!(key.help);
    // Defaults are numbers, texts and an empty list, which JSON writes as TOML does.
    if let Ok(default) = serde_json::from_str::<Value>(key.default) {
        schema["default"] = default;
    }
    schema
}

/// librdkafka's own; a name with dots may be written as nested tables.
fn properties() -> Value {
    let refused: Vec<&str> = refused_properties().map(|(name, _)| name).collect();
    json!({
        "type": "object",
        "description": "librdkafka's own properties, except those that would break a promise.",
        "propertyNames": {"not": {"enum": refused}},
        "additionalProperties": {"type": ["string", "number", "boolean", "object"]},
    })
}

fn routes() -> Value {
    let keys: Map<String, Value> = ROUTE.iter().map(|key| (key.name.to_owned(), value(key))).collect();
    let mut route = closed(Value::Object(keys));
    route["properties"]["match"]["minLength"] = json!(1);
    route["required"] = json!(["match", "sink"]);
    let without = |names: &[&str]| {
        let refused: Vec<Value> = names.iter().map(|name| json!({"required": [name]})).collect();
        json!({"not": {"anyOf": refused}})
    };
    route["if"] = json!({"properties": {"sink": {"const": "kafka"}}});
    route["then"] = without(&["exchange", "routing_key"]);
    route["else"] = without(&["topic"]);
    json!({
        "type": "array",
        "description": "Where topics go: the first route that matches wins. With two brokers the last must match \
                        everything.",
        "items": route,
    })
}

fn sources() -> Value {
    let keys: Map<String, Value> = SOURCE.iter().map(|key| (key.name.to_owned(), value(key))).collect();
    let mut source = closed(Value::Object(keys));
    source["properties"]["name"]["pattern"] = json!("^[A-Za-z0-9_.-]{1,63}$");
    source["properties"]["body"]["minItems"] = json!(1);
    source["properties"]["body"]["maxItems"] = json!(50);
    for needed in ["table", "message_id", "topic"] {
        source["properties"][needed]["minLength"] = json!(1);
    }
    source["required"] = json!(["name", "table", "message_id", "topic"]);
    json!({
        "type": "array",
        "description": "Tables of applications whose new rows are taken over into the outbox (schema/SOURCES.md).",
        "items": source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// It is shipped, and the checks of chart and packaging go by it.
    #[test]
    fn the_file_that_is_shipped_is_this_schema() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/outbox-relay.schema.json");
        let text = format!("{:#}\n", schema());
        if std::env::var_os("OUTBOX_TEST_BLESS").is_some() {
            std::fs::write(path, &text).unwrap();
        }
        let shipped = std::fs::read_to_string(path).unwrap_or_default();
        assert!(shipped == text, "packaging/outbox-relay.schema.json is out of date: OUTBOX_TEST_BLESS=1 writes it");
    }

    /// By the schema and by the relay itself.
    #[test]
    fn every_default_is_of_its_kind() {
        for key in KEYS.iter().chain(&ROUTE).chain(&SOURCE).filter(|key| !key.default.is_empty()) {
            let default: Value = serde_json::from_str(key.default).expect(key.name);
            let fits = match key.kind {
                Kind::Text | Kind::Duration | Kind::Size(..) => default.is_string(),
                Kind::Whole(least, most) => default.as_u64().is_some_and(|number| (least..=most).contains(&number)),
                Kind::Choice(words) => default.as_str().is_some_and(|word| words.contains(&word)),
                Kind::Flag => default.is_boolean(),
                Kind::Texts => default.is_array(),
            };
            assert!(fits, "{} has the default {}", key.name, key.default);
        }
    }
}
