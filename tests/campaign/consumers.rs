//! The consumers of a campaign: they write down every arrival, and come back after the broker was away.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use lapin::types::AMQPValue;
use outbox_tests::kafka::{self, Kafka};
use outbox_tests::ledger::Arrival;
use outbox_tests::rabbit::{self, Rabbit};
use tokio::sync::watch;

use crate::evidence::Notes;

/// Few, so that a consumer that rests fills its queue.
const PREFETCH: u16 = 20;
const RETRY: Duration = Duration::from_millis(200);
const LOOK: Duration = Duration::from_millis(500);
const SILENCE_MAX: Duration = Duration::from_secs(10);

/// Reads a queue for ever; rests while `resting`.
pub async fn rabbitmq(url: String, queue: String, notes: Notes, mut resting: watch::Receiver<bool>) {
    loop {
        let _ = read_rabbitmq(&url, &queue, &notes, &mut resting).await;
        tokio::time::sleep(RETRY).await;
    }
}

async fn read_rabbitmq(url: &str, queue: &str, notes: &Notes, resting: &mut watch::Receiver<bool>) -> Result<()> {
    let rabbit = Rabbit::connect_to(url).await?;
    let mut reader = rabbit.reader(queue, PREFETCH).await?;
    loop {
        resting.wait_for(|resting| !resting).await?;
        if let Some(message) = reader.next(LOOK).await? {
            notes.arrived(of_rabbitmq(&message)?, message.redelivered);
        }
    }
}

/// Reads a topic from its begin for ever. A client that has been silent for long is replaced: after a restart of the
/// only broker librdkafka 2.12 may be left without a thread for any broker, and then it never connects again.
pub async fn kafka(brokers: String, topic: String, notes: Notes) {
    let mut next = HashMap::new();
    loop {
        let kafka = Kafka::at(&brokers);
        if let Ok(reader) = kafka.reader(&topic).await {
            read_kafka(&reader, &notes, &mut next).await;
        }
        tokio::time::sleep(RETRY).await;
    }
}

/// Until nothing came for long. `next` is the first offset of each partition that was not read yet.
async fn read_kafka(reader: &kafka::Reader, notes: &Notes, next: &mut HashMap<i32, i64>) {
    let mut heard = Instant::now();
    while heard.elapsed() < SILENCE_MAX {
        match reader.next(LOOK).await {
            Ok(Some(record)) => {
                heard = Instant::now();
                let next = next.entry(record.partition).or_default();
                if record.offset < *next {
                    continue;
                }
                *next = record.offset + 1;
                match of_kafka(&record) {
                    Ok(arrival) => notes.arrived(arrival, false),
                    Err(error) => notes.arrived(unreadable(&error), false),
                }
            }
            Ok(None) => {}
            Err(_) => tokio::time::sleep(RETRY).await,
        }
    }
}

/// A message that nobody could have sent is a phantom.
fn unreadable(error: &anyhow::Error) -> Arrival {
    Arrival::new(&format!("unreadable: {error:#}"), None, None, BTreeMap::new())
}

fn of_rabbitmq(message: &rabbit::Received) -> Result<Arrival> {
    let Some(id) = message.message_id.as_deref() else {
        return Ok(unreadable(&anyhow::anyhow!("no message id")));
    };
    let tombstone = message.header("tombstone") == Some(&AMQPValue::Boolean(true));
    let mut headers = BTreeMap::new();
    for name in message.headers.inner().keys().map(ToString::to_string) {
        // A quorum queue adds its own.
        if !matches!(name.as_str(), "ordering-key" | "tombstone" | "x-delivery-count") {
            let value = message.header_text(&name).unwrap_or_else(|| "no text".to_owned());
            headers.insert(name, value);
        }
    }
    let body = if tombstone && message.body.is_empty() { None } else { Some(message.body.as_slice()) };
    Ok(Arrival::new(id, message.header_text("ordering-key").as_deref(), body, headers))
}

fn of_kafka(record: &kafka::Received) -> Result<Arrival> {
    let id = record.id().context("no id, or several")?;
    let mut headers = BTreeMap::new();
    for (name, value) in record.headers.iter().filter(|(name, _)| name != "id" && name != "content-type") {
        headers.insert(name.clone(), value.as_deref().map(String::from_utf8_lossy).unwrap_or_default().into_owned());
    }
    let key = record.key.as_deref().map(std::str::from_utf8).transpose()?;
    Ok(Arrival::new(&id, key, record.value.as_deref(), headers))
}
