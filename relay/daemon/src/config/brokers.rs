//! How to reach the brokers, as the adapters' own checked settings: the rules live with them and not here.

use std::collections::BTreeMap;
use std::path::PathBuf;

use outbox_core::{Fresh, OnPark, Sink};
use outbox_kafka::{ConfigError, KafkaConfig};
use outbox_rabbitmq::{RabbitmqConfig, RabbitmqOptions};
use secrecy::ExposeSecret as _;

use super::keys::KAFKA_PROPERTIES;
use super::reader::Reader;
use super::secret;
use super::settings::Settings;

/// At least one broker in a relay's configuration.
#[derive(Clone, Debug, Default)]
pub struct Brokers {
    pub rabbitmq: Option<RabbitmqConfig>,
    pub kafka: Option<KafkaConfig>,
}

impl Brokers {
    pub(super) fn read(reader: &mut Reader, settings: &Settings) -> Self {
        Self { rabbitmq: rabbitmq(reader, settings), kafka: kafka(reader, settings) }
    }

    /// Which brokers somebody meant to configure, also where their settings are wrong. Routes are judged by these, so
    /// that one wrong address does not bring a second, misleading problem.
    pub(super) fn asked(reader: &mut Reader) -> Vec<Sink> {
        let mut given = |name: &str| reader.text(name).is_some_and(|text| !text.is_empty());
        let rabbitmq = given("rabbitmq.url") || given("rabbitmq.url_file");
        let kafka = given("kafka.brokers");
        [(Sink::Rabbitmq, rabbitmq), (Sink::Kafka, kafka)]
            .into_iter()
            .filter_map(|(sink, asked)| asked.then_some(sink))
            .collect()
    }

    /// Which brokers are configured.
    pub fn sinks(&self) -> Vec<Sink> {
        let rabbitmq = self.rabbitmq.as_ref().map(|_| Sink::Rabbitmq);
        rabbitmq.into_iter().chain(self.kafka.as_ref().map(|_| Sink::Kafka)).collect()
    }
}

fn rabbitmq(reader: &mut Reader, settings: &Settings) -> Option<RabbitmqConfig> {
    let pipelined = reader.choice("rabbitmq.order", &[("strict", false), ("pipelined", true)]);
    let mut path = |name: &str| reader.text(name).filter(|path| !path.is_empty()).map(PathBuf::from);
    let ca_file = path("rabbitmq.ca_file");
    let (certificate_file, key_file) = (path("rabbitmq.certificate_file"), path("rabbitmq.key_file"));
    let allow_plaintext = reader.yes("rabbitmq.allow_plaintext");
    let limited = reader.set("rabbitmq.message_bytes_max").is_some();
    let message_bytes_max = limited.then(|| reader.size_bytes("rabbitmq.message_bytes_max"));
    let url = secret::read(reader, "rabbitmq.url")?;
    let mut options = RabbitmqOptions::new(url.expose_secret());
    options.fresh_url = secret::file(reader, "rabbitmq.url").map(|path| Fresh::new(move || secret::text_of(&path)));
    options.ca_file = ca_file;
    options.certificate_file = certificate_file;
    options.key_file = key_file;
    options.allow_plaintext = allow_plaintext;
    options.message_bytes_max = message_bytes_max.and_then(|bytes| usize::try_from(bytes).ok());
    options.confirm_timeout_ms = settings.relay.confirm_timeout_ms;
    options.pipelined = pipelined;
    options.window_max = options.window_max.min(settings.relay.in_flight_max);
    match RabbitmqConfig::new(options) {
        Ok(config) => return Some(config),
        Err(error) => {
            let from_file = error.key == "rabbitmq.url" && reader.set("rabbitmq.url_file").is_some();
            reader.refuse(if from_file { "rabbitmq.url_file" } else { error.key }, error.rule);
        }
    }
    None
}

fn kafka(reader: &mut Reader, settings: &Settings) -> Option<KafkaConfig> {
    let set = set_properties(reader);
    let file = reader.text("kafka.properties_file").filter(|path| !path.is_empty());
    let properties = match &file {
        None => set.clone(),
        Some(path) => with_file(set.clone(), path).unwrap_or_else(|rule| {
            reader.refuse("kafka.properties_file", rule);
            set.clone()
        }),
    };
    let allow_plaintext = reader.yes("kafka.allow_plaintext");
    let brokers = reader.text("kafka.brokers").filter(|brokers| !brokers.is_empty());
    let Some(brokers) = brokers else {
        if !properties.is_empty() {
            reader.miss("kafka.brokers", "kafka.properties are set, and no broker; set it or KAFKA_BROKERS");
        }
        return None;
    };
    let well_formed = |entry: &str| {
        let port = entry.rsplit_once(':').map(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok());
        !entry.is_empty() && !entry.contains(char::is_whitespace) && port.unwrap_or(true)
    };
    let entries: Vec<&str> = brokers.split(',').map(str::trim).collect();
    if let Some(entry) = entries.iter().find(|entry| !well_formed(entry)) {
        reader.refuse("kafka.brokers", format!("must be host:port,host:port; one entry is '{entry}'"));
        return None;
    }
    let config = KafkaConfig {
        brokers: entries.join(","),
        properties,
        fresh_properties: file.map(|path| Fresh::new(move || with_file(set.clone(), &path))),
        allow_plaintext,
        confirm_timeout_ms: settings.relay.confirm_timeout_ms,
        in_flight_max: settings.relay.in_flight_max,
        // Behind a parked row nothing of its key may be under way.
        strict: settings.relay.on_park == OnPark::BlockKey,
    };
    match config.check() {
        Ok(()) => return Some(config),
        Err(ConfigError::Refused { key, reason }) => {
            reader.refuse(&format!("{KAFKA_PROPERTIES}.{key}"), format!("may not be set: {reason}"));
        }
        Err(ConfigError::Property { key, detail }) => reader.refuse(&format!("{KAFKA_PROPERTIES}.{key}"), detail),
        Err(ConfigError::Value { key, rule }) if key == "kafka.brokers" => reader.refuse(&key, rule),
        Err(ConfigError::Value { key, rule }) => reader.miss(&key, &rule),
        Err(error @ (ConfigError::Client { .. } | ConfigError::Thread { .. })) => reader.refuse("kafka", error),
    }
    None
}

fn set_properties(reader: &mut Reader) -> BTreeMap<String, String> {
    let mut properties = BTreeMap::new();
    for (name, setting) in reader.below(KAFKA_PROPERTIES) {
        let key = format!("{KAFKA_PROPERTIES}.{name}");
        match setting.raw.as_text() {
            Some(text) => drop(properties.insert(name, text)),
            None => reader.refuse(&key, "must be one value, not a list"),
        }
    }
    properties
}

/// The file wins: secrets come from files first.
fn with_file(mut properties: BTreeMap<String, String>, path: &str) -> Result<BTreeMap<String, String>, String> {
    let mut wrong = Vec::new();
    for (number, line) in secret::text_of(path)?.lines().enumerate() {
        let line = line.trim();
        match line.split_once('=') {
            _ if line.is_empty() || line.starts_with('#') => {}
            Some((name, value)) => {
                properties.insert(name.trim().to_owned(), value.trim().to_owned());
            }
            None => wrong.push((number + 1).to_string()),
        }
    }
    match wrong.len() {
        0 => Ok(properties),
        1 => Err(format!("line {} of '{path}' is not name=value", wrong.join(""))),
        _ => Err(format!("lines {} of '{path}' are not name=value", wrong.join(", "))),
    }
}
