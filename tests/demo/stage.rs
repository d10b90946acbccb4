//! Where the demo plays: two fresh databases made by `outbox-relay migrate`, and a queue or topic.

use anyhow::{Context, Result, bail, ensure};
use outbox_tests::database::Database;
use outbox_tests::kafka::Kafka;
use outbox_tests::rabbit::{QueueType, Rabbit};
use outbox_tests::relay::Launch;
use outbox_tests::{services, wait};

use crate::queue::Queue;

/// The relay's bound on duplicates, small so that reaching it would be seen.
pub const IN_FLIGHT_MAX: usize = 200;

/// Short, so that a killed relay's lanes are free again while people watch.
const LEASE_TTL_MS: u64 = 1_000;

/// Partitions share the keys; order holds within each.
const PARTITIONS: i32 = 3;

pub enum Broker {
    Rabbitmq(Box<Rabbit>),
    Kafka(Kafka),
}

pub struct Stage {
    /// The application's database, with the outbox.
    pub shop: Database,
    /// The consumer's own database, with the inbox alone.
    pub ledger: Database,
    pub broker: Broker,
    /// Name of the queue or topic.
    address: String,
}

impl Stage {
    /// `broker` is `rabbitmq` or `kafka`.
    pub async fn set(broker: &str) -> Result<Self> {
        let (shop, ledger) = (Database::empty().await?, Database::empty().await?);
        migrate(&shop, "outbox").await?;
        migrate(&ledger, "inbox").await?;
        let client = shop.client().await?;
        client.batch_execute("CREATE TABLE repository (name text PRIMARY KEY, deliveries integer NOT NULL)").await?;
        let client = ledger.client().await?;
        // No unique key on purpose: only inbox.claim stands between a redelivery and a second effect.
        client.batch_execute("CREATE TABLE effect (message_id text NOT NULL)").await?;
        let (broker, address) = match broker {
            "rabbitmq" => {
                let rabbit = Rabbit::connect().await?;
                let name = rabbit.unique("demo");
                rabbit.exchange(&name).await?;
                rabbit.queue(&name, QueueType::Quorum, &[]).await?;
                rabbit.bind(&name, &name, "github.#").await?;
                (Broker::Rabbitmq(Box::new(rabbit)), name)
            }
            "kafka" => {
                let brokers = services::kafka_brokers()?.context("there is no Kafka here")?;
                let kafka = Kafka::at(&brokers);
                let name = kafka.unique("demo");
                kafka.create_topic(&name, PARTITIONS, &[]).await?;
                (Broker::Kafka(kafka), name)
            }
            other => bail!("BROKER must be rabbitmq or kafka, not {other:?}"),
        };
        Ok(Self { shop, ledger, broker, address })
    }

    /// The consumer's side of the broker.
    pub async fn queue(&self) -> Result<Queue> {
        Ok(match &self.broker {
            Broker::Rabbitmq(rabbit) => Queue::Rabbitmq(Box::new(rabbit.reader(&self.address, 500).await?)),
            Broker::Kafka(kafka) => Queue::Kafka(kafka.reader(&self.address).await?),
        })
    }

    /// `run` with a short lease, its way to the broker, and further arguments.
    pub fn relay(&self, arguments: &[&str]) -> Launch {
        let common = format!("in_flight_max = {IN_FLIGHT_MAX}\n[lease]\nttl_ms = {LEASE_TTL_MS}\n");
        let address = &self.address;
        let route = match &self.broker {
            Broker::Rabbitmq(_) => format!("exchange = \"{address}\"\nrouting_key = \"{{topic}}\"\n"),
            Broker::Kafka(_) => format!("topic = \"{address}\"\n"),
        };
        let launch = Launch::run().database(self.shop.url()).quiet();
        let launch = arguments.iter().fold(launch, |launch, argument| launch.arg(*argument));
        match &self.broker {
            Broker::Rabbitmq(rabbit) => launch
                .amqp(rabbit.url())
                .config(&format!("{common}[[route]]\nmatch = \"github.*\"\nsink = \"rabbitmq\"\n{route}")),
            Broker::Kafka(kafka) => launch
                .kafka(kafka.brokers())
                .config(&format!("{common}[[route]]\nmatch = \"github.*\"\nsink = \"kafka\"\n{route}")),
        }
    }
}

async fn migrate(database: &Database, schema: &str) -> Result<()> {
    let launch = Launch::new(["migrate", "--schema", schema]).database(database.url()).quiet();
    let finished = launch.finish(wait::SOON).await?;
    ensure!(finished.code == Some(0), "outbox-relay migrate failed: {}", finished.stderr);
    Ok(())
}
