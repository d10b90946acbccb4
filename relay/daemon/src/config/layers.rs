//! The sources of the configuration laid over each other: flags beat `OUTBOX__…` variables, which beat the short
//! variables (`DATABASE_URL`), which beat the file, which beats the credentials directory and the defaults.
//!
//! Unknown keys are problems here already, whichever source they come from. Nothing is read for its meaning yet.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use config::{File, FileFormat, Source as _};

use super::keys::{self, KAFKA_PROPERTIES};
use super::problem::Problem;
use super::value::Raw;

/// Where a value came from; messages name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    Default,
    Credential,
    File(String),
    Environment(String),
    Flag(&'static str),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::Credential => f.write_str("$CREDENTIALS_DIRECTORY"),
            Self::File(path) => f.write_str(path),
            Self::Environment(name) => write!(f, "${name}"),
            Self::Flag(name) => f.write_str(name),
        }
    }
}

/// A value and where it came from.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    pub raw: Raw,
    pub origin: Origin,
}

/// Everything that can hold configuration, read but not understood.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// Key, flag, value.
    pub flags: Vec<(&'static str, &'static str, String)>,
    pub environment: Vec<(String, String)>,
    /// Path and text.
    pub file: Option<(String, String)>,
    /// systemd's `$CREDENTIALS_DIRECTORY`.
    pub credentials_dir: Option<PathBuf>,
}

impl Sources {
    /// Whether a variable of the environment is one of ours.
    pub fn is_variable(name: &str) -> bool {
        name.starts_with("OUTBOX__") || SHORT.iter().any(|(short, _)| *short == name)
    }
}

/// Settings by key. Keys of `kafka.properties` are there with their full name, `route` and `source` hold lists.
pub type Merged = BTreeMap<String, Setting>;

/// What a variable that many platforms set stands for.
const SHORT: [(&str, &str); 11] = [
    ("DATABASE_URL", "database.url"),
    ("AMQP_URL", "rabbitmq.url"),
    ("KAFKA_BROKERS", "kafka.brokers"),
    ("OTEL_EXPORTER_OTLP_ENDPOINT", "otel.endpoint"),
    ("OTEL_EXPORTER_OTLP_PROTOCOL", "otel.protocol"),
    ("OTEL_EXPORTER_OTLP_HEADERS", "otel.headers"),
    ("OTEL_EXPORTER_OTLP_CERTIFICATE", "otel.ca_file"),
    ("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", "otel.certificate_file"),
    ("OTEL_EXPORTER_OTLP_CLIENT_KEY", "otel.key_file"),
    ("OTEL_SERVICE_NAME", "otel.service_name"),
    ("OTEL_RESOURCE_ATTRIBUTES", "otel.resource_attributes"),
];

/// Files that systemd's `LoadCredential=` may bring.
const CREDENTIALS: [(&str, &str); 3] = [
    ("database-url", "database.url_file"),
    ("amqp-url", "rabbitmq.url_file"),
    ("kafka-properties", "kafka.properties_file"),
];

/// Lays the sources over each other.
pub fn merge(sources: &Sources, problems: &mut Vec<Problem>) -> Merged {
    let mut merged = Merged::new();
    for layer in [
        credentials(sources),
        file(sources, problems),
        short_variables(sources),
        long_variables(sources, problems),
        flags(sources),
    ] {
        lay_over(&mut merged, layer, problems);
    }
    merged
}

/// A secret and its file are one setting: setting either in a higher layer hides both of the lower ones.
fn lay_over(merged: &mut Merged, layer: Merged, problems: &mut Vec<Problem>) {
    for (key, setting) in &layer {
        let twin = twin(key);
        if let Some(other) = twin.as_ref().and_then(|twin| layer.get(twin)).filter(|_| !key.ends_with("_file")) {
            let rule = format!("set it or {key}_file, not both");
            problems.push(Problem::new(key, &other.origin, rule));
        }
        if let Some(twin) = twin {
            merged.remove(&twin);
        }
        merged.insert(key.clone(), setting.clone());
    }
}

fn twin(key: &str) -> Option<String> {
    match key {
        "database.url" | "rabbitmq.url" | "otel.headers" => Some(format!("{key}_file")),
        "database.url_file" | "rabbitmq.url_file" | "otel.headers_file" => key.strip_suffix("_file").map(str::to_owned),
        _ => None,
    }
}

fn credentials(sources: &Sources) -> Merged {
    let Some(directory) = &sources.credentials_dir else { return Merged::new() };
    CREDENTIALS
        .iter()
        .map(|(file, key)| (directory.join(file), *key))
        .filter(|(path, _)| path.is_file() && !is_blank(path))
        .map(|(path, key)| {
            let raw = Raw::Text(path.to_string_lossy().into_owned());
            (key.to_owned(), Setting { raw, origin: Origin::Credential })
        })
        .collect()
}

/// A unit's `SetCredential=` stands in for a credential that the machine does not have, and it cannot be empty.
/// What cannot be read is not blank: whoever needs it must hear why.
fn is_blank(path: &Path) -> bool {
    std::fs::read(path).is_ok_and(|content| content.trim_ascii().is_empty())
}

fn file(sources: &Sources, problems: &mut Vec<Problem>) -> Merged {
    let mut layer = Merged::new();
    let Some((path, text)) = &sources.file else { return layer };
    let origin = Origin::File(path.clone());
    match File::from_str(text, FileFormat::Toml).collect() {
        Ok(table) => {
            // Sorted, so that problems come in the same order each time.
            let table: BTreeMap<String, Raw> = table.into_iter().map(|(name, value)| (name, value.into())).collect();
            for (name, value) in table {
                flatten(&name, value, &origin, &mut layer, problems);
            }
        }
        Err(error) => problems.push(Problem::new(path, &origin, format!("is not valid TOML: {error}"))),
    }
    layer
}

fn flatten(name: &str, raw: Raw, origin: &Origin, layer: &mut Merged, problems: &mut Vec<Problem>) {
    let below_properties = name.strip_prefix(KAFKA_PROPERTIES).is_some_and(|rest| rest.starts_with('.'));
    match raw {
        Raw::Table(table) if below_properties || keys::is_section(name) => {
            for (key, value) in table {
                flatten(&format!("{name}.{key}"), value, origin, layer, problems);
            }
        }
        raw if below_properties || keys::is_list(name) || keys::find(name).is_some() => {
            layer.insert(name.to_owned(), Setting { raw, origin: origin.clone() });
        }
        _ if keys::is_section(name) => {
            problems.push(Problem::new(name, origin, format!("is a section; write [{name}] and its keys below it")));
        }
        _ => problems.push(Problem::unknown(name, keys::nearest_key(name), origin)),
    }
}

/// An empty variable counts as not set: that is how shells and compose files say so.
fn short_variables(sources: &Sources) -> Merged {
    let named = |name: &str| SHORT.iter().find(|(short, _)| *short == name).map(|(_, key)| *key);
    let set = sources.environment.iter().filter(|(_, value)| !value.is_empty());
    set.filter_map(|(name, value)| named(name).map(|key| (key.to_owned(), text_from(name, value)))).collect()
}

fn long_variables(sources: &Sources, problems: &mut Vec<Problem>) -> Merged {
    let mut layer = Merged::new();
    for (name, value) in &sources.environment {
        let Some(path) = name.strip_prefix("OUTBOX__") else { continue };
        let key = path.to_lowercase().replace("__", ".");
        let property = key.strip_prefix(KAFKA_PROPERTIES).and_then(|rest| rest.strip_prefix('.'));
        let origin = Origin::Environment(name.clone());
        if let Some(property) = property.filter(|property| !property.is_empty()) {
            // A shell's variable cannot have a dot, and librdkafka's names have no underscore.
            let key = format!("{KAFKA_PROPERTIES}.{}", property.replace('_', "."));
            layer.insert(key, text_from(name, value));
        } else if let Some((list, items)) = keys::list_of(&key) {
            problems.push(Problem::new(list, &origin, format!("{items} are set in the configuration file")));
        } else if keys::find(&key).is_some() {
            layer.insert(key, text_from(name, value));
        } else {
            let nearest = keys::nearest_key(&key).map(keys::variable);
            problems.push(Problem::unknown(name, nearest.as_deref(), &origin));
        }
    }
    layer
}

fn flags(sources: &Sources) -> Merged {
    let setting =
        |flag: &'static str, value: &String| Setting { raw: Raw::Text(value.clone()), origin: Origin::Flag(flag) };
    sources.flags.iter().map(|(key, flag, value)| ((*key).to_owned(), setting(flag, value))).collect()
}

fn text_from(variable: &str, value: &str) -> Setting {
    Setting { raw: Raw::Text(value.to_owned()), origin: Origin::Environment(variable.to_owned()) }
}
