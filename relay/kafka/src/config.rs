//! What the operator may set, and which of librdkafka's own properties would break a promise.
//!
//! A `KafkaConfig` is checked whole by `settings`, without any network. Values of properties never appear in an
//! error or in `Debug`, since any of them may be a secret.

use std::collections::BTreeMap;
use std::fmt;

use outbox_core::{Fresh, is_loopback};
use rdkafka::ClientConfig;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::KafkaError;
use thiserror::Error;

use crate::gate::Batching;
use crate::handshake::fault_of_files;

/// librdkafka's own time-out of a record: its maximum is about 24.8 days. It must never fire, since a record
/// that times out is skipped while later ones of its key are written.
const MESSAGE_TIMEOUT_MS: &str = "2147483647";
/// Large, so that only the topic's own limit decides; still below a broker's `socket.request.max.bytes`.
const MESSAGE_MAX_BYTES: usize = 100_000_000;
const BATCH_SIZE_BYTES: usize = 1_000_000;
const LINGER_MS: f64 = 1.0;
const WAVE_US_MIN: u64 = 600;
/// A row waits this long after its lease was looked at.
const LINGER_MAX_MS: f64 = 5_000.0;

/// How to reach a cluster and how to behave towards it. `start` and `check` refuse what is not valid.
#[derive(Clone)]
pub struct KafkaConfig {
    /// `kafka.brokers`: host:port, separated by commas.
    pub brokers: String,
    /// `kafka.properties`: librdkafka's own, except those that would break a promise.
    pub properties: BTreeMap<String, String>,
    /// The properties as they are when a client is made, if they may change.
    pub fresh_properties: Option<Fresh<BTreeMap<String, String>>>,
    /// `kafka.allow_plaintext`: whether records may go to another machine unencrypted.
    pub allow_plaintext: bool,
    /// `confirm.timeout_ms`: when the oldest row has waited this long, the outcome of all is unknown.
    pub confirm_timeout_ms: u64,
    /// `in_flight_max`: the most rows that are handed over and unanswered.
    pub in_flight_max: usize,
    /// Whether at most one row of a key may be unconfirmed (needed by `on_park = "block_key"`).
    pub strict: bool,
}

impl KafkaConfig {
    /// The defaults for these brokers.
    #[must_use]
    pub fn new(brokers: impl Into<String>) -> Self {
        Self {
            brokers: brokers.into(),
            properties: BTreeMap::new(),
            fresh_properties: None,
            allow_plaintext: false,
            confirm_timeout_ms: 30_000,
            in_flight_max: 2_000,
            strict: false,
        }
    }

    /// Checks everything that can be checked without a network, librdkafka's own rules included.
    ///
    /// # Errors
    /// Names the key and the rule it breaks.
    pub fn check(&self) -> Result<(), ConfigError> {
        let settings = Settings::new(self)?;
        // librdkafka checks how settings go together only when a client is made; making one sends nothing yet.
        let made: Result<rdkafka::producer::BaseProducer, _> = settings.producer.create();
        let value = |rule| ConfigError::Value { key: "kafka.properties".to_owned(), rule };
        let explained = |error| fault_of_files(self).map_or_else(|| ConfigError::from_kafka(error), value);
        made.map(drop).map_err(explained)
    }
}

impl fmt::Debug for KafkaConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KafkaConfig")
            .field("brokers", &self.brokers)
            .field("properties", &self.properties.keys().collect::<Vec<_>>())
            .field("confirm_timeout_ms", &self.confirm_timeout_ms)
            .field("in_flight_max", &self.in_flight_max)
            .field("strict", &self.strict)
            .finish()
    }
}

/// Why a configuration is refused; the daemon ends with 78.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ConfigError {
    #[error("kafka.properties: '{key}' may not be set: {reason}")]
    Refused { key: String, reason: &'static str },
    #[error("{key}: {rule}")]
    Value { key: String, rule: String },
    #[error("kafka.properties: '{key}': {detail}")]
    Property { key: String, detail: String },
    #[error("kafka: librdkafka refuses the configuration: {detail}")]
    Client { detail: String },
    #[error("kafka: no thread could be started: {detail}")]
    Thread { detail: String },
}

impl ConfigError {
    pub(crate) fn from_kafka(error: KafkaError) -> Self {
        match error {
            // librdkafka repeats the value in its text, so only what is safe of it is used.
            KafkaError::ClientConfig(_, text, key, _) => {
                let detail = if text.starts_with("No such configuration property") {
                    "librdkafka knows no such property; look for a spelling mistake".to_owned()
                } else {
                    "librdkafka does not take this value; see its list of configuration properties".to_owned()
                };
                Self::Property { key, detail }
            }
            KafkaError::ClientCreation(detail) => Self::Client { detail },
            other => Self::Client { detail: other.to_string() },
        }
    }
}

const REFUSED: [(&str, &str); 24] = [
    ("bootstrap.servers", "it is kafka.brokers"),
    ("metadata.broker.list", "it is kafka.brokers"),
    ("enable.idempotence", "it is always on: without it a retry repeats and reorders records"),
    ("acks", "it is always 'all': a record must not be confirmed before it is replicated"),
    ("request.required.acks", "acks is always 'all': a record must not be confirmed before it is replicated"),
    ("partitioner", "it is always murmur2_random: another one breaks the order of keys that Java producers share"),
    ("message.timeout.ms", "a record that times out is skipped while later ones go on; use confirm.timeout_ms"),
    ("delivery.timeout.ms", "a record that times out is skipped while later ones go on; use confirm.timeout_ms"),
    ("max.in.flight", "the idempotent producer sets it"),
    ("max.in.flight.requests.per.connection", "the idempotent producer sets it"),
    ("retries", "a record that runs out of retries is skipped while later ones go on; use confirm.timeout_ms"),
    ("message.send.max.retries", "a record that runs out of retries is skipped; use confirm.timeout_ms"),
    ("enable.gapless.guarantee", "the relay sets it itself where it is needed"),
    ("transactional.id", "transactions are not used"),
    ("transaction.timeout.ms", "transactions are not used"),
    ("queue.buffering.max.messages", "it follows from in_flight_max"),
    ("queue.buffering.max.kbytes", "rows are bounded by in_flight_max and batch.bytes_max"),
    ("queue.buffering.backpressure.threshold", "in_flight_max bounds what waits"),
    ("queuing.strategy", "it is always fifo: anything else breaks the order of keys"),
    ("allow.auto.create.topics", "a missing topic is an operator's decision; its rows wait until it exists"),
    ("delivery.report.only.error", "a row is marked sent only after its delivery report"),
    ("produce.offset.report", "it has no use here"),
    ("log.queue", "the relay reads the log queue itself"),
    ("statistics.interval.ms", "the relay has metrics of its own"),
];

/// Properties of librdkafka that are refused, and why.
pub fn refused_properties() -> impl Iterator<Item = (&'static str, &'static str)> {
    REFUSED.iter().copied()
}

/// A checked configuration, ready to make clients from.
#[derive(Clone)]
pub(crate) struct Settings {
    pub config: KafkaConfig,
    pub producer: ClientConfig,
    /// For the client that asks about topics. It never sends a record, and it is quiet: nobody reads its log.
    pub admin: ClientConfig,
    pub batching: Batching,
}

impl Settings {
    pub fn new(config: &KafkaConfig) -> Result<Self, ConfigError> {
        check_values(config)?;
        let properties = &config.properties;
        let linger = number(properties, &["linger.ms", "queue.buffering.max.ms"])?;
        if linger.is_some_and(|ms| !(0.0..=LINGER_MAX_MS).contains(&ms)) {
            let rule = format!("must lie between 0 and {LINGER_MAX_MS}, so that a row leaves while its lease lasts");
            return Err(ConfigError::Value { key: "kafka.properties: 'linger.ms'".to_owned(), rule });
        }
        let mut admin = ClientConfig::new();
        admin.set("client.id", "outbox-relay").set("reconnect.backoff.max.ms", "2000");
        for (key, value) in properties {
            admin.set(key, value);
        }
        admin.set("bootstrap.servers", config.brokers.trim()).set("allow.auto.create.topics", "false");
        let mut producer = admin.clone();
        let compression = ["compression.type", "compression.codec"].iter().find_map(|key| properties.get(*key));
        for (key, value) in ours(config) {
            if !properties.contains_key(key) {
                producer.set(key, value);
            }
        }
        admin.set_log_level(RDKafkaLogLevel::Emerg);
        Ok(Self {
            config: config.clone(),
            producer,
            admin,
            batching: Batching {
                batch_size_bytes: bytes(properties, "batch.size")?.unwrap_or(BATCH_SIZE_BYTES),
                compressed: compression.is_some_and(|codec| codec != "none"),
                wave_us: wave_us(linger.unwrap_or(LINGER_MS)),
            },
        })
    }

    /// Reads what may have changed, a password for one. What cannot be read or is not valid changes nothing.
    pub fn renew(&mut self) {
        let Some(fresh) = &self.config.fresh_properties else { return };
        let read = fresh.read().and_then(|properties| {
            let config = KafkaConfig { properties, ..self.config.clone() };
            config.check().and_then(|()| Self::new(&config)).map_err(|error| error.to_string())
        });
        match read {
            Ok(settings) => *self = settings,
            Err(error) => {
                tracing::warn!(sink = "kafka", error, "the properties cannot be read anew; the last are used")
            }
        }
    }
}

/// Two thirds of the linger; without one nothing is gained by short waves.
fn wave_us(linger_ms: f64) -> u64 {
    let linger = std::time::Duration::try_from_secs_f64(linger_ms / 1_000.0).unwrap_or_default();
    u64::try_from(linger.as_micros() * 2 / 3).unwrap_or(u64::MAX).max(WAVE_US_MIN)
}

/// What a producer of ours has beside the operator's properties. Those that may be set are the last three.
fn ours(config: &KafkaConfig) -> [(&'static str, String); 10] {
    [
        ("enable.idempotence", "true".to_owned()),
        ("acks", "all".to_owned()),
        ("partitioner", "murmur2_random".to_owned()),
        ("message.timeout.ms", MESSAGE_TIMEOUT_MS.to_owned()),
        // librdkafka counts a record until after its report was served, so room for what follows it is needed:
        // a queue of just in_flight_max is often full, and each report then costs a look at what waits.
        ("queue.buffering.max.messages", (config.in_flight_max * 2 + 1_000).to_string()),
        ("queue.buffering.max.kbytes", "2147483647".to_owned()),
        ("topic.metadata.propagation.max.ms", "1000".to_owned()),
        // Time for the sending thread to hand over a wave before its first batch leaves; see gate.rs.
        ("linger.ms", LINGER_MS.to_string()),
        ("message.max.bytes", MESSAGE_MAX_BYTES.to_string()),
        ("batch.size", BATCH_SIZE_BYTES.to_string()),
    ]
}

fn check_values(config: &KafkaConfig) -> Result<(), ConfigError> {
    let value = |key: &str, rule: &str| ConfigError::Value { key: key.to_owned(), rule: rule.to_owned() };
    let empty = |part: &str| part.trim().is_empty();
    if config.brokers.split(',').any(empty) {
        return Err(value("kafka.brokers", "must be a list of host:port, separated by commas, without empty parts"));
    }
    if !(100..=86_400_000).contains(&config.confirm_timeout_ms) {
        return Err(value("confirm.timeout_ms", "must lie between 100 ms and a day"));
    }
    if !(1..=1_000_000).contains(&config.in_flight_max) {
        return Err(value("in_flight_max", "must lie between 1 and 1,000,000"));
    }
    for key in config.properties.keys() {
        if let Some((_, reason)) = REFUSED.iter().find(|(refused, _)| refused == key) {
            return Err(ConfigError::Refused { key: key.clone(), reason });
        }
    }
    if asks_for_tokens_in_plain_text(config) && !config.allow_plaintext {
        return Err(value(
            "kafka.properties: 'sasl.oauthbearer.token.endpoint.url'",
            "it names another machine, and the client's secret would go there in plain text; use https, or, on a \
             network you trust, kafka.allow_plaintext = true",
        ));
    }
    match plain_entry(config).filter(|_| !config.allow_plaintext) {
        None => Ok(()),
        Some(entry) => Err(value(
            "kafka.brokers",
            &format!(
                "'{entry}' is another machine, and records would go there in plain text; set security.protocol to ssl \
                 or sasl_ssl in kafka.properties, or, on a network you trust, kafka.allow_plaintext = true"
            ),
        )),
    }
}

/// The first broker on another machine that is spoken to without TLS. An entry may have a protocol of its own.
fn plain_entry(config: &KafkaConfig) -> Option<&str> {
    let common = config.properties.get("security.protocol").map_or("plaintext", |protocol| protocol.trim());
    config.brokers.split(',').map(str::trim).find(|entry| {
        let (protocol, place) = entry.split_once("://").unwrap_or((common, entry));
        let host =
            place.rsplit_once(':').filter(|(_, port)| port.parse::<u16>().is_ok()).map_or(place, |(host, _)| host);
        ["plaintext", "sasl_plaintext"].contains(&protocol.to_lowercase().as_str()) && !is_loopback(host)
    })
}

/// Whether whoever gives out tokens is asked without TLS on another machine. Without a scheme libcurl takes http.
fn asks_for_tokens_in_plain_text(config: &KafkaConfig) -> bool {
    let Some(url) = config.properties.get("sasl.oauthbearer.token.endpoint.url").map(|url| url.trim().to_lowercase())
    else {
        return false;
    };
    let rest = url.split_once("://").map_or(url.as_str(), |(_, rest)| rest);
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let place = authority.rsplit_once('@').map_or(authority, |(_, place)| place);
    let host = if place.starts_with('[') { place.split_inclusive(']').next() } else { place.split(':').next() };
    !url.starts_with("https://") && !is_loopback(host.unwrap_or_default())
}

fn number(properties: &BTreeMap<String, String>, keys: &[&str]) -> Result<Option<f64>, ConfigError> {
    let Some((key, text)) = keys.iter().find_map(|key| properties.get_key_value(*key)) else {
        return Ok(None);
    };
    let detail = "must be a number".to_owned();
    text.trim().parse().map(Some).map_err(|_| ConfigError::Property { key: key.clone(), detail })
}

fn bytes(properties: &BTreeMap<String, String>, key: &str) -> Result<Option<usize>, ConfigError> {
    let Some(text) = properties.get(key) else {
        return Ok(None);
    };
    let detail = "must be a whole number of bytes".to_owned();
    text.trim().parse().map(Some).map_err(|_| ConfigError::Property { key: key.to_owned(), detail })
}

#[cfg(test)]
#[path = "config_tests.rs"]
mod tests;
