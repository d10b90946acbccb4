//! The usual stage of a test: a database, an exchange with one queue, and a relay between them;
//! and how a message looks to the ledger.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use anyhow::{Context, Result};
use lapin::types::AMQPValue;
use outbox_tests::database::Database;
use outbox_tests::journal::Entry;
use outbox_tests::kafka;
use outbox_tests::ledger::{self, Arrival, Report};
use outbox_tests::rabbit::{Rabbit, Reader, Received};
use outbox_tests::relay::Launch;
use outbox_tests::services;

use crate::mutants;

/// A database and an exchange whose only queue takes everything.
pub struct Stage {
    pub database: Database,
    pub rabbit: Rabbit,
    pub exchange: String,
    pub queue: String,
}

impl Stage {
    /// On the shared services.
    ///
    /// # Errors
    /// When one cannot be reached.
    pub async fn new() -> Result<Self> {
        Self::on(&services::database_url()?).await
    }

    /// With the database on another server.
    ///
    /// # Errors
    /// When a service cannot be reached.
    pub async fn on(server_url: &str) -> Result<Self> {
        let stage = Self::unbound(server_url).await?;
        stage.rabbit.exchange_with_queue(&stage.exchange, &stage.queue).await?;
        Ok(stage)
    }

    /// Neither exchange nor queue exist yet.
    ///
    /// # Errors
    /// When a service cannot be reached.
    pub async fn unbound(server_url: &str) -> Result<Self> {
        let database = Database::migrated_on(server_url).await?;
        let rabbit = Rabbit::connect().await?;
        let (exchange, queue) = (rabbit.unique("events"), rabbit.unique("all"));
        Ok(Self { database, rabbit, exchange, queue })
    }

    /// A relay from the database to the exchange, with the row's topic as routing key. A look at the table at
    /// least every 50 ms keeps the tests quick and is no part of what they show.
    #[must_use]
    pub fn launch(&self) -> Launch {
        Launch::run()
            .database(self.database.url())
            .amqp(self.rabbit.url())
            .env("OUTBOX__RABBITMQ__EXCHANGE", &self.exchange)
            .env("OUTBOX__POLL__MAX_MS", "50")
    }

    /// The same for a relay that breaks one rule on purpose.
    ///
    /// # Errors
    /// When there is no such binary.
    pub fn launch_mutant(&self, name: &str) -> Result<Launch> {
        mutants::mutant(&self.launch(), name)
    }
}

/// Reads until so many different ids came altogether, or nothing came for `quiet`: what was lost never comes.
///
/// # Errors
/// When the queue goes away.
pub async fn read_ids(reader: &mut Reader, received: &mut Vec<Received>, count: usize, quiet: Duration) -> Result<()> {
    let mut ids: HashSet<_> = received.iter().map(|message| message.message_id.clone()).collect();
    while ids.len() < count {
        let Some(message) = reader.next(quiet).await? else { break };
        ids.insert(message.message_id.clone());
        received.push(message);
    }
    Ok(())
}

/// The ledger's judgement over what RabbitMQ delivered.
///
/// # Errors
/// When a message has no id.
pub fn judge(journal: &[Entry], received: &[Received]) -> Result<Report> {
    let arrivals: Vec<Arrival> = received.iter().map(rabbit_arrival).collect::<Result<_>>()?;
    Ok(ledger::check(journal, &arrivals))
}

/// A message of RabbitMQ as the ledger compares it.
///
/// # Errors
/// When it has no id.
pub fn rabbit_arrival(message: &Received) -> Result<Arrival> {
    let id = message.message_id.as_deref().context("a message without id")?;
    let key = message.header_text("ordering-key");
    let tombstone = message.header("tombstone") == Some(&AMQPValue::Boolean(true));
    let mut headers = BTreeMap::new();
    for (name, value) in message.headers.inner() {
        if !matches!(name.as_str(), "ordering-key" | "tombstone") {
            headers.insert(name.to_string(), amqp_text(value));
        }
    }
    let body = if tombstone && message.body.is_empty() { None } else { Some(message.body.as_slice()) };
    Ok(Arrival::new(id, key.as_deref(), body, headers))
}

/// A record of Kafka as the ledger compares it.
///
/// # Errors
/// When it has not exactly one id, or a key or a header is no text.
pub fn kafka_arrival(record: &kafka::Received) -> Result<Arrival> {
    let id = record.id().context("a record without exactly one id")?;
    let key = record.key.clone().map(String::from_utf8).transpose()?;
    let mut headers = BTreeMap::new();
    for (name, value) in &record.headers {
        if name != "id" && name != "content-type" {
            let text = value.clone().map(String::from_utf8).transpose()?;
            headers.insert(name.clone(), format!("{text:?}"));
        }
    }
    Ok(Arrival::new(&id, key.as_deref(), record.value.as_deref(), headers))
}

/// A value with its AMQP type, so that text `1`, the number 1 and true are three things.
fn amqp_text(value: &AMQPValue) -> String {
    match value {
        AMQPValue::Void => "null".to_owned(),
        AMQPValue::Boolean(truth) => format!("boolean {truth}"),
        AMQPValue::LongLongInt(number) => format!("integer {number}"),
        AMQPValue::Double(number) => format!("double {number:e}"),
        AMQPValue::LongString(text) => format!("text {:?}", text.to_string()),
        AMQPValue::FieldArray(items) => {
            let items: Vec<String> = items.as_slice().iter().map(amqp_text).collect();
            format!("[{}]", items.join(", "))
        }
        AMQPValue::FieldTable(table) => {
            let items = table.inner().iter();
            let items: Vec<String> =
                items.map(|(name, value)| format!("{:?}: {}", name.as_str(), amqp_text(value))).collect();
            format!("{{{}}}", items.join(", "))
        }
        other => format!("{other:?}"),
    }
}

/// What RabbitMQ must deliver for these headers of a row, in the form of [`rabbit_arrival`].
#[must_use]
pub fn expected_in_rabbit(headers: &serde_json::Value) -> BTreeMap<String, String> {
    fields(headers).map(|(name, value)| (name.clone(), amqp_expected(value))).collect()
}

fn amqp_expected(value: &serde_json::Value) -> String {
    use serde_json::Value;
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(truth) => format!("boolean {truth}"),
        Value::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(whole), _) => format!("integer {whole}"),
            (None, double) => format!("double {:e}", double.unwrap_or(f64::NAN)),
        },
        Value::String(text) => format!("text {text:?}"),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(amqp_expected).collect();
            format!("[{}]", items.join(", "))
        }
        Value::Object(map) => {
            let sorted: BTreeMap<_, _> = map.iter().collect();
            let items: Vec<String> =
                sorted.iter().map(|(name, value)| format!("{name:?}: {}", amqp_expected(value))).collect();
            format!("{{{}}}", items.join(", "))
        }
    }
}

/// What Kafka must deliver for these headers of a row, in the form of [`kafka_arrival`].
#[must_use]
pub fn expected_in_kafka(headers: &serde_json::Value) -> BTreeMap<String, String> {
    use serde_json::Value;
    let expected = |value: &Value| {
        let text = match value {
            Value::Null => None,
            Value::String(text) => Some(text.clone()),
            other => Some(compact(other)),
        };
        format!("{text:?}")
    };
    fields(headers).map(|(name, value)| (name.clone(), expected(value))).collect()
}

/// JSON without blanks, its names in the order in which jsonb keeps them: the shorter first.
fn compact(value: &serde_json::Value) -> String {
    use serde_json::Value;
    match value {
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(compact).collect();
            format!("[{}]", items.join(","))
        }
        Value::Object(map) => {
            let mut sorted: Vec<_> = map.iter().collect();
            sorted.sort_by_key(|(name, _)| (name.len(), name.as_str()));
            let items: Vec<String> =
                sorted.iter().map(|(name, value)| format!("{name:?}:{}", compact(value))).collect();
            format!("{{{}}}", items.join(","))
        }
        other => other.to_string(),
    }
}

fn fields(headers: &serde_json::Value) -> impl Iterator<Item = (&String, &serde_json::Value)> {
    headers.as_object().into_iter().flatten()
}
