//! Kafka as the driver needs it: a topic, a bare producer with the relay's settings, and a consumer that checks.

use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::message::{Header, Headers as _, OwnedHeaders};
use rdkafka::producer::{BaseRecord, DeliveryResult, ProducerContext, ThreadedProducer};
use rdkafka::{ClientConfig, ClientContext, Message as _, Offset, TopicPartitionList};

use crate::check::{Checker, Seen};
use crate::load::Load;

const SILENCE: Duration = Duration::from_millis(500);
const PATIENCE: Duration = Duration::from_secs(30);
/// Until a record outlives the run.
const DELIVERY: Duration = Duration::from_secs(60);

pub struct Topic {
    brokers: String,
    partitions: i32,
    pub name: String,
}

impl Topic {
    pub async fn create(brokers: &str, partitions: i32) -> Result<Self> {
        let topic =
            Self { brokers: brokers.to_owned(), partitions, name: format!("bench.{}", uuid::Uuid::new_v4().simple()) };
        let new = NewTopic::new(&topic.name, partitions, TopicReplication::Fixed(1));
        for made in topic.admin()?.create_topics([&new], &AdminOptions::new()).await? {
            made.map_err(|(name, code)| anyhow::anyhow!("creating the topic {name}: {code}"))?;
        }
        Ok(topic)
    }

    fn admin(&self) -> Result<AdminClient<DefaultClientContext>> {
        Ok(self.config().create()?)
    }

    fn config(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", &self.brokers);
        config
    }

    /// Reads every partition from its beginning and checks it.
    pub async fn check(&self, load: Arc<Load>) -> Result<Seen> {
        let mut config = self.config();
        config.set("group.id", &self.name).set("enable.auto.commit", "false");
        let consumer: BaseConsumer = config.create()?;
        let mut all = TopicPartitionList::new();
        for partition in 0..self.partitions {
            all.add_partition_offset(&self.name, partition, Offset::Beginning)?;
        }
        consumer.assign(&all)?;
        tokio::task::spawn_blocking(move || {
            let mut checker = Checker::new(&load);
            loop {
                let wait = if checker.messages() < u64::from(load.rows) { PATIENCE } else { SILENCE };
                let Some(message) = consumer.poll(wait) else { return Ok(checker.seen()) };
                let message = message?;
                let id = message.headers().and_then(|headers| headers.iter().find(|header| header.key == "id"));
                checker.see(id.and_then(|id| std::str::from_utf8(id.value?).ok()));
            }
        })
        .await?
    }

    /// Produces rows from memory, with a bound on what is unconfirmed, and gives the seconds it took.
    pub async fn bare(&self, load: Arc<Load>, rows: Range<u32>, in_flight: usize) -> Result<f64> {
        let (sender, reports) = channel();
        let mut config = self.config();
        config.set("enable.idempotence", "true").set("acks", "all").set("linger.ms", "1");
        config.set("partitioner", "murmur2_random").set("enable.gapless.guarantee", "true");
        // A record counts until its report was served, a little longer than it is unconfirmed.
        config.set("queue.buffering.max.messages", (2 * in_flight).to_string());
        let producer: ThreadedProducer<Tell> = config.create_with_context(Tell(sender))?;
        let topic = self.name.clone();
        tokio::task::spawn_blocking(move || {
            let report = || match reports.recv_timeout(DELIVERY) {
                Ok(true) => Ok(()),
                Ok(false) => bail!("a bare record was refused"),
                Err(_) => bail!("no delivery report"),
            };
            // Connecting is no part of the rate.
            send(&producer, &topic, &load, rows.start)?;
            report()?;
            let started = Instant::now();
            let mut open = 0_usize;
            for row in rows {
                while open >= in_flight {
                    report()?;
                    open -= 1;
                }
                send(&producer, &topic, &load, row)?;
                open += 1;
            }
            for _ in 0..open {
                report()?;
            }
            Ok(started.elapsed().as_secs_f64())
        })
        .await?
    }

    pub async fn delete(self) -> Result<()> {
        self.admin()?.delete_topics(&[&self.name], &AdminOptions::new()).await?;
        Ok(())
    }
}

/// What the relay sends too, so that both do the same work.
fn send(producer: &ThreadedProducer<Tell>, topic: &str, load: &Load, row: u32) -> Result<()> {
    let id = Load::id(row);
    let headers = OwnedHeaders::new_with_capacity(2)
        .insert(Header { key: "id", value: Some(&id) })
        .insert(Header { key: "content-type", value: Some("application/json") });
    let key = load.key(row);
    let record = BaseRecord::to(topic).key(&key).headers(headers);
    producer.send(record.payload(&load.body(row)[..])).map_err(|(error, _)| error).context("a bare record")
}

struct Tell(Sender<bool>);

impl ClientContext for Tell {}

impl ProducerContext for Tell {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
        // The receiver is gone only when the run has failed.
        let _ = self.0.send(result.is_ok());
    }
}
