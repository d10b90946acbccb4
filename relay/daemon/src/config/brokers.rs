//! How to reach the brokers. An address that exists has the right form; whether it answers is the adapters' matter.

use std::collections::BTreeMap;

use outbox_core::{KeyOrder, Sink};
use secrecy::{ExposeSecret as _, SecretString};

use super::keys::KAFKA_PROPERTIES;
use super::reader::Reader;
use super::secret;

/// RabbitMQ.
#[derive(Clone, Debug)]
pub struct Rabbitmq {
    pub url: SecretString,
    pub order: KeyOrder,
}

/// Kafka. Property values may be passwords, so they are all kept as secrets.
#[derive(Clone, Debug)]
pub struct Kafka {
    pub brokers: String,
    pub properties: BTreeMap<String, SecretString>,
}

/// At least one broker.
#[derive(Clone, Debug, Default)]
pub struct Brokers {
    pub rabbitmq: Option<Rabbitmq>,
    pub kafka: Option<Kafka>,
}

/// librdkafka properties that would break a promise, and why; some have a second name.
const REFUSED: [(&str, &str); 17] = [
    ("bootstrap.servers", "set kafka.brokers instead"),
    ("metadata.broker.list", "set kafka.brokers instead"),
    ("enable.idempotence", "without it a retry inside the client may write a row twice or out of order"),
    ("acks", "only a confirm of all in-sync replicas counts"),
    ("request.required.acks", "only a confirm of all in-sync replicas counts"),
    ("partitioner", "rows of a key would land elsewhere than those of Java's producers"),
    ("message.timeout.ms", "the relay's own deadline decides; set confirm.timeout_ms"),
    ("delivery.timeout.ms", "the relay's own deadline decides; set confirm.timeout_ms"),
    ("message.send.max.retries", "the idempotent producer needs its own"),
    ("retries", "the idempotent producer needs its own"),
    ("max.in.flight", "the idempotent producer needs its own"),
    ("max.in.flight.requests.per.connection", "the idempotent producer needs its own"),
    ("queuing.strategy", "only first in, first out keeps the order of a key"),
    ("transactional.id", "the relay does not use transactions"),
    ("delivery.report.only.error", "a row is marked only after its delivery report"),
    ("enable.gapless.guarantee", "a gap is handled by the relay"),
    ("allow.auto.create.topics", "a misspelt topic would be made instead of shown"),
];

impl Brokers {
    pub(super) fn read(reader: &mut Reader) -> Self {
        Self { rabbitmq: rabbitmq(reader), kafka: kafka(reader) }
    }

    /// Which brokers are configured.
    pub fn sinks(&self) -> Vec<Sink> {
        let rabbitmq = self.rabbitmq.as_ref().map(|_| Sink::Rabbitmq);
        rabbitmq.into_iter().chain(self.kafka.as_ref().map(|_| Sink::Kafka)).collect()
    }
}

fn rabbitmq(reader: &mut Reader) -> Option<Rabbitmq> {
    let order = reader.choice("rabbitmq.order", &[("strict", KeyOrder::Strict), ("pipelined", KeyOrder::Pipelined)]);
    let url = secret::read(reader, "rabbitmq.url")?;
    let host = url.expose_secret().strip_prefix("amqp://").or_else(|| url.expose_secret().strip_prefix("amqps://"));
    if host.is_none_or(|host| host.is_empty() || host.contains(char::is_whitespace)) {
        let key = if reader.set("rabbitmq.url_file").is_some() { "rabbitmq.url_file" } else { "rabbitmq.url" };
        reader.refuse(key, "must be amqp://user:password@host:port/vhost, or amqps:// for TLS");
        return None;
    }
    Some(Rabbitmq { url, order })
}

fn kafka(reader: &mut Reader) -> Option<Kafka> {
    let properties = properties(reader);
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
    match entries.iter().find(|entry| !well_formed(entry)) {
        Some(entry) => reader.refuse("kafka.brokers", format!("must be host:port,host:port; one entry is '{entry}'")),
        None => return Some(Kafka { brokers: entries.join(","), properties }),
    }
    None
}

fn properties(reader: &mut Reader) -> BTreeMap<String, SecretString> {
    let mut properties = BTreeMap::new();
    for (name, setting) in reader.below(KAFKA_PROPERTIES) {
        let key = format!("{KAFKA_PROPERTIES}.{name}");
        match setting.raw.as_text() {
            Some(text) => drop(properties.insert(name, SecretString::from(text))),
            None => reader.refuse(&key, "must be one value, not a list"),
        }
    }
    // The file wins: secrets come from files first.
    if let Some(path) = reader.text("kafka.properties_file")
        && let Some(text) = secret::read_file(reader, "kafka.properties_file", &path)
    {
        for (number, line) in text.lines().enumerate() {
            let line = line.trim();
            match line.split_once('=') {
                _ if line.is_empty() || line.starts_with('#') => {}
                Some((name, value)) => {
                    properties.insert(name.trim().to_owned(), SecretString::from(value.trim()));
                }
                None => {
                    reader.refuse("kafka.properties_file", format!("line {} of '{path}' is not name=value", number + 1))
                }
            }
        }
    }
    for (name, why) in REFUSED {
        if properties.contains_key(name) {
            reader.refuse(&format!("{KAFKA_PROPERTIES}.{name}"), format!("cannot be set: {why}"));
        }
    }
    properties
}
