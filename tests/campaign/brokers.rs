//! The broker of a campaign: what rows are addressed to, made, deleted and made again.

use anyhow::{Context, Result};
use lapin::types::AMQPValue;
use outbox_tests::kafka::Kafka;
use outbox_tests::own_services::Service;
use outbox_tests::proxy::Proxy;
use outbox_tests::rabbit::{QueueType, Rabbit};
use outbox_tests::relay::Launch;
use outbox_tests::wait;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::consumers;
use crate::evidence::Notes;
use crate::options::Mode;

/// Messages that wait in the main queue before it refuses more.
const QUEUE_MAX: i32 = 150;
const KAFKA_PARTITIONS: i32 = 3;

/// The broker and its consumers.
pub struct Broker {
    mode: Mode,
    address: String,
    suffix: String,
    notes: Notes,
    /// Sessions whose queues and topics go with them.
    rabbits: Vec<Rabbit>,
    kafkas: Vec<Kafka>,
    readers: Vec<(String, JoinHandle<()>)>,
    pub resting: watch::Sender<bool>,
}

impl Broker {
    pub async fn set(mode: Mode, address: String, notes: Notes) -> Result<Self> {
        let suffix = uuid::Uuid::new_v4().simple().to_string()[..8].to_owned();
        let resting = watch::Sender::new(false);
        let (rabbits, kafkas, readers) = (Vec::new(), Vec::new(), Vec::new());
        let mut broker = Self { mode, address, suffix, notes, rabbits, kafkas, readers, resting };
        let topic = broker.topic();
        broker.make(&topic, true).await?;
        Ok(broker)
    }

    pub fn service(&self) -> Service {
        match self.mode {
            Mode::RabbitmqClassic | Mode::RabbitmqQuorum => Service::Rabbitmq,
            Mode::Kafka => Service::Kafka,
        }
    }

    /// The topic of most rows; also the name of RabbitMQ's exchange and queue.
    pub fn topic(&self) -> String {
        format!("main.{}", self.suffix)
    }

    /// The topic of a few rows whose address comes late.
    pub fn side(&self, number: usize) -> String {
        format!("side.{}.{number}", self.suffix)
    }

    /// Makes an address, and reads what comes there.
    pub async fn make(&mut self, topic: &str, bounded: bool) -> Result<()> {
        match self.mode {
            Mode::Kafka => {
                let kafka = Kafka::at(&self.address);
                // Deleting goes on after its answer.
                let made = || async { kafka.create_topic(topic, KAFKA_PARTITIONS, &[]).await.map(Some) };
                wait::until(&format!("the topic {topic} to be made"), wait::SOON, made).await?;
                self.kafkas.push(kafka);
            }
            Mode::RabbitmqClassic | Mode::RabbitmqQuorum => {
                // RabbitMQ 3.10 that is killed soon after a quorum queue was declared has no leader for it ever after, and
                // confirms nothing to it. The main queue is safe from that (see `stage`).
                let quorum = bounded && self.mode == Mode::RabbitmqQuorum;
                let kind = if quorum { QueueType::Quorum } else { QueueType::Classic };
                let rabbit = self.rabbit().await?;
                let most = [
                    ("x-max-length", AMQPValue::LongInt(QUEUE_MAX)),
                    ("x-overflow", AMQPValue::LongString("reject-publish".into())),
                ];
                rabbit.queue(topic, kind, if bounded { &most } else { &[] }).await?;
                self.rabbits.push(rabbit);
                self.make_exchange(topic).await?;
            }
        }
        self.read(topic);
        Ok(())
    }

    /// Exchange and binding; the queue stands already.
    pub async fn make_exchange(&mut self, topic: &str) -> Result<()> {
        let rabbit = self.rabbit().await?;
        rabbit.exchange(topic).await?;
        for key in [topic.to_owned(), second(topic)] {
            rabbit.bind(topic, topic, &key).await?;
        }
        self.rabbits.push(rabbit);
        Ok(())
    }

    /// Whether rows with the second routing key of the main exchange find a queue.
    pub async fn bind_second(&self, bound: bool) -> Result<()> {
        let (topic, rabbit) = (self.topic(), self.rabbit().await?);
        if bound {
            rabbit.bind(&topic, &topic, &second(&topic)).await
        } else {
            rabbit.unbind(&topic, &topic, &second(&topic)).await
        }
    }

    /// The topics of most rows. In RabbitMQ they are two routing keys to one queue, where a key's rows keep their
    /// order; Kafka has no such thing.
    pub fn topics(&self) -> Vec<String> {
        let topic = self.topic();
        if self.mode == Mode::Kafka { vec![topic] } else { vec![second(&topic), topic] }
    }

    pub async fn delete_exchange(&self, topic: &str) -> Result<()> {
        self.rabbit().await?.delete_exchange(topic).await
    }

    /// Deletes an address whose messages have all been read.
    pub async fn delete(&mut self, topic: &str) -> Result<()> {
        if self.mode != Mode::Kafka {
            return self.delete_exchange(topic).await;
        }
        self.readers.retain(|(name, reader)| {
            if name == topic {
                reader.abort();
            }
            name != topic
        });
        Kafka::at(&self.address).delete_topic(topic).await
    }

    /// Makes an address again that was deleted.
    pub async fn remake(&mut self, topic: &str) -> Result<()> {
        match self.mode {
            Mode::Kafka => self.make(topic, false).await,
            Mode::RabbitmqClassic | Mode::RabbitmqQuorum => self.make_exchange(topic).await,
        }
    }

    fn read(&mut self, topic: &str) {
        let (address, name, notes) = (self.address.clone(), topic.to_owned(), self.notes.clone());
        let reader = match self.mode {
            Mode::Kafka => tokio::spawn(consumers::kafka(address, name, notes)),
            Mode::RabbitmqClassic | Mode::RabbitmqQuorum => {
                tokio::spawn(consumers::rabbitmq(address, name, notes, self.resting.subscribe()))
            }
        };
        self.readers.push((topic.to_owned(), reader));
    }

    async fn rabbit(&self) -> Result<Rabbit> {
        let connect = || async { Rabbit::connect_to(&self.address).await.map(Some) };
        wait::until("the broker to take a session", wait::SOON * 2, connect).await
    }

    /// A breakable link. Kafka's clients only stay on a port that the broker advertises.
    pub async fn link(&self, fault_ports: &[(u16, u16)], relay: usize) -> Result<Proxy> {
        match self.mode {
            Mode::Kafka => {
                let (listens, advertised) = fault_ports.get(relay).context("too few fault ports of Kafka")?;
                Proxy::start_on(*advertised, *listens).await
            }
            Mode::RabbitmqClassic | Mode::RabbitmqQuorum => {
                let (_, port) = self.address.rsplit_once(':').context("no port")?;
                Proxy::start(port.split('/').next().unwrap_or(port).parse()?).await
            }
        }
    }

    /// The launch of a relay that reaches the broker through this link.
    pub fn launch(&self, launch: Launch, link: &Proxy) -> Result<Launch> {
        if self.mode == Mode::Kafka {
            return Ok(launch.kafka(&format!("127.0.0.1:{}", link.port())));
        }
        let (before, port) = self.address.rsplit_once(':').context("no port")?;
        let vhost = port.split_once('/').map_or("", |(_, vhost)| vhost);
        let route = |of: &str, exchange: &str| {
            format!(
                "[[route]]\nmatch = \"{of}\"\nsink = \"rabbitmq\"\nexchange = \"{exchange}\"\nrouting_key = \"{{topic}}\"\n"
            )
        };
        let config = format!("{}{}", route("side.*", "{topic}"), route("*", &self.topic()));
        Ok(launch.amqp(&format!("{before}:{}/{vhost}", link.port())).config(&config))
    }
}

/// A second routing key to the same queue.
fn second(topic: &str) -> String {
    format!("{topic}.second")
}

impl Drop for Broker {
    fn drop(&mut self) {
        for (_, reader) in &self.readers {
            reader.abort();
        }
    }
}
