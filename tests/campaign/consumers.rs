//! The consumers of a campaign: they write down every arrival, and come back after the broker was away.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use anyhow::Result;
use outbox_tests::kafka::{self, Kafka};
use outbox_tests::ledger::Arrival;
use outbox_tests::rabbit::Rabbit;
use outbox_tests::wait;
use tokio::sync::watch;

use crate::evidence::Notes;

/// Few, so that a consumer that rests fills its queue.
const PREFETCH: u16 = 20;
const RETRY: Duration = Duration::from_millis(200);
const LOOK: Duration = Duration::from_millis(500);
const SILENCE_MAX: Duration = Duration::from_secs(10);

/// Reads a queue for ever; rests while `resting`. A client that has been silent for long is replaced, as Kafka's is.
pub async fn rabbitmq(url: String, queue: String, notes: Notes, mut resting: watch::Receiver<bool>) {
    loop {
        let _ = read_rabbitmq(&url, &queue, &notes, &mut resting).await;
        tokio::time::sleep(RETRY).await;
    }
}

async fn read_rabbitmq(url: &str, queue: &str, notes: &Notes, resting: &mut watch::Receiver<bool>) -> Result<()> {
    let rabbit = Rabbit::connect_to(url).await?;
    let read = read_queue(&rabbit, queue, notes, resting).await;
    wait::bounded("a consumer's session to end", SILENCE_MAX, rabbit.close()).await??;
    read
}

async fn read_queue(rabbit: &Rabbit, queue: &str, notes: &Notes, resting: &mut watch::Receiver<bool>) -> Result<()> {
    let mut reader = wait::bounded("a consumer to be taken", SILENCE_MAX, rabbit.reader(queue, PREFETCH)).await??;
    let mut heard = Instant::now();
    while heard.elapsed() < SILENCE_MAX {
        if *resting.borrow() {
            resting.wait_for(|resting| !resting).await?;
            heard = Instant::now();
        }
        if let Some(message) = reader.next(LOOK).await? {
            heard = Instant::now();
            let arrival = message.arrival().unwrap_or_else(|error| unreadable(&error));
            notes.arrived(arrival, message.redelivered);
        }
    }
    Ok(())
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
                notes.arrived(record.arrival().unwrap_or_else(|error| unreadable(&error)), false);
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
