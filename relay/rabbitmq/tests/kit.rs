//! A publisher, a plain lapin connection beside it to look at the broker, and rows.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use lapin::options::{
    BasicAckOptions, BasicCancelOptions, BasicConsumeOptions, BasicGetOptions, ExchangeDeclareOptions,
    QueueBindOptions, QueueDeclareOptions,
};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{Channel, Connection, ConnectionProperties, ExchangeKind};
use outbox_core::{
    Address, Answer, Clock, Headers, Link, Observer, Outcome, Outgoing, Peer, Publisher, Row, RowId, Sink, Ticket,
    Timestamp, TxId,
};
use outbox_rabbitmq::{RabbitmqConfig, RabbitmqOptions, RabbitmqPublisher};
use tokio::sync::mpsc;

/// Nothing in these tests takes longer on a sane machine.
pub const PATIENCE: Duration = Duration::from_secs(180);

/// Counts what the adapter reports.
#[derive(Default)]
pub struct Counts {
    pub returned: AtomicUsize,
    pub reconnected: AtomicUsize,
    pub blocked: AtomicUsize,
}

impl Observer for Counts {
    fn returned(&self, sink: Sink) {
        assert_eq!(sink, Sink::Rabbitmq);
        self.returned.fetch_add(1, Ordering::SeqCst);
    }

    fn reconnected(&self, peer: Peer) {
        assert_eq!(peer, Peer::Broker(Sink::Rabbitmq));
        self.reconnected.fetch_add(1, Ordering::SeqCst);
    }

    fn link(&self, _sink: Sink, connected: bool, blocked: bool) {
        assert!(connected || !blocked);
        self.blocked.fetch_add(usize::from(blocked), Ordering::SeqCst);
    }
}

pub fn url() -> String {
    std::env::var("TEST_AMQP_URL")
        .expect("TEST_AMQP_URL must name a RabbitMQ, for example amqp://guest:guest@127.0.0.1:5672/%2f")
}

/// A name that no other test and no other run has.
pub fn unique(what: &str) -> String {
    use std::hash::{BuildHasher, RandomState};
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let next = NEXT.fetch_add(1, Ordering::SeqCst);
    format!("{what}-{:x}-{next}", RandomState::new().hash_one(std::process::id()))
}

pub fn short(text: &str) -> ShortString {
    ShortString::try_new(text).expect("a short name")
}

pub fn address(exchange: &str, routing_key: &str) -> Address {
    Address { sink: Sink::Rabbitmq, destination: exchange.to_owned(), routing_key: routing_key.to_owned() }
}

pub fn row(seq: i64, id: &str) -> Row {
    Row {
        id: RowId { seq, tx: TxId(1) },
        idempotency_key: id.to_owned(),
        topic: "t".into(),
        ordering_key: None,
        payload: Some(Bytes::from(format!("{{\"seq\":{seq}}}"))),
        content_type: "application/json".into(),
        headers: Headers::default(),
        created_at: Timestamp(1_700_000_000_000_000),
        available_at: None,
        attempts: 0,
        held_since: None,
    }
}

/// A publisher and the answers it gave.
pub struct Rig {
    pub publisher: Arc<RabbitmqPublisher>,
    pub counts: Arc<Counts>,
    answers: mpsc::UnboundedReceiver<Answer>,
    sender: mpsc::UnboundedSender<Answer>,
    serial: u64,
}

impl Rig {
    /// Starts one and waits until it is connected.
    pub async fn up(url: &str, change: impl FnOnce(&mut RabbitmqOptions)) -> Self {
        let rig = Self::start(url, change);
        rig.link(Link::is_up).await;
        rig
    }

    pub fn start(url: &str, change: impl FnOnce(&mut RabbitmqOptions)) -> Self {
        let mut options = RabbitmqOptions::new(url);
        change(&mut options);
        let counts = Arc::new(Counts::default());
        let config = RabbitmqConfig::new(options).expect("valid options");
        let publisher = RabbitmqPublisher::start(config, Arc::clone(&counts) as Arc<dyn Observer>);
        let (sender, answers) = mpsc::unbounded_channel();
        Self { publisher, counts, answers, sender, serial: 0 }
    }

    /// Waits for a state of the link.
    pub async fn link(&self, wanted: impl FnMut(&Link) -> bool) -> Link {
        let mut link = self.publisher.link();
        let found = tokio::time::timeout(PATIENCE, link.wait_for(wanted)).await.expect("the link never got there");
        found.expect("the publisher lives").clone()
    }

    pub fn publish(&mut self, row: &Arc<Row>, address: &Arc<Address>) {
        self.publish_until(row, address, 600_000);
    }

    pub fn publish_until(&mut self, row: &Arc<Row>, address: &Arc<Address>, lease_ms: u64) {
        self.serial += 1;
        self.publisher.publish(Outgoing {
            row: Arc::clone(row),
            address: Arc::clone(address),
            lease_until: Clock.now().plus(lease_ms),
            ticket: Ticket::new(row.id.seq, self.serial, self.sender.clone()),
        });
    }

    /// The next answers, by row; each row must answer once.
    pub async fn answers(&mut self, count: usize) -> HashMap<i64, Outcome> {
        let mut all = HashMap::new();
        let deadline = Instant::now() + PATIENCE;
        while all.len() < count {
            let left = deadline.saturating_duration_since(Instant::now());
            let answer = tokio::time::timeout(left, self.answers.recv()).await;
            let answer = answer.unwrap_or_else(|_| panic!("{} of {count} answers came", all.len())).expect("open");
            assert!(all.insert(answer.seq, answer.outcome).is_none(), "row {} answered twice", answer.seq);
        }
        all
    }

    pub fn nothing_more(&mut self) {
        assert!(self.answers.try_recv().is_err(), "a row answered twice");
    }

    pub async fn one(&mut self, row: Row, to: &Address) -> Outcome {
        let seq = row.id.seq;
        self.publish(&Arc::new(row), &Arc::new(to.clone()));
        self.answers(1).await.remove(&seq).expect("its own answer")
    }
}

/// A connection beside the publisher's.
pub struct Broker {
    /// Held, because the exclusive queues of a test go with it.
    _connection: Connection,
    pub channel: Channel,
}

impl Broker {
    pub async fn connect(url: &str) -> Self {
        let connection = Connection::connect(url, ConnectionProperties::default()).await.expect("the broker answers");
        let channel = connection.create_channel().await.expect("a channel");
        Self { _connection: connection, channel }
    }

    pub async fn exchange(&self) -> String {
        let name = unique("exchange");
        self.declare_exchange(&name, ExchangeDeclareOptions { auto_delete: false, ..Default::default() }).await;
        name
    }

    pub async fn declare_exchange(&self, name: &str, options: ExchangeDeclareOptions) {
        let declared = self.channel.exchange_declare(short(name), ExchangeKind::Topic, options, FieldTable::default());
        declared.await.expect("the exchange is declared");
    }

    /// A queue bound to an exchange. Exclusive, so that it goes with the test.
    pub async fn queue(&self, exchange: &str, binding: &str, arguments: &[(&str, AMQPValue)]) -> String {
        let name = unique("queue");
        let mut table = FieldTable::default();
        for (key, value) in arguments {
            table.insert(short(key), value.clone());
        }
        let options = QueueDeclareOptions { exclusive: true, ..Default::default() };
        self.channel.queue_declare(short(&name), options, table).await.expect("the queue is declared");
        self.bind(&name, exchange, binding).await;
        name
    }

    pub async fn bind(&self, queue: &str, exchange: &str, binding: &str) {
        let options = QueueBindOptions::default();
        let bound =
            self.channel.queue_bind(short(queue), short(exchange), short(binding), options, FieldTable::default());
        bound.await.expect("the queue is bound");
    }

    /// How often each message id lies in a queue; takes them out.
    pub async fn ids(&self, queue: &str) -> HashMap<String, usize> {
        let mut ids = HashMap::new();
        for id in self.order(queue).await {
            *ids.entry(id).or_default() += 1;
        }
        ids
    }

    /// The message ids in a queue, in order; takes them out.
    pub async fn order(&self, queue: &str) -> Vec<String> {
        use futures_util::StreamExt;
        let passive = QueueDeclareOptions { passive: true, ..Default::default() };
        let declared = self.channel.queue_declare(short(queue), passive, FieldTable::default()).await.expect("exists");
        let count = usize::try_from(declared.message_count()).expect("fits");
        let tag = short(&unique("consumer"));
        let options = BasicConsumeOptions { no_ack: true, ..Default::default() };
        let consuming = self.channel.basic_consume(short(queue), tag.clone(), options, FieldTable::default());
        let mut consumer = consuming.await.expect("consumes");
        let mut ids = Vec::new();
        let all = async {
            while ids.len() < count {
                ids.push(consumer.next().await.expect("a message").expect("delivered"));
            }
            // Stragglers were pushed to this consumer too; its stream ends once it is cancelled.
            self.channel.basic_cancel(tag, BasicCancelOptions::default()).await.expect("cancelled");
            while let Some(delivery) = consumer.next().await {
                ids.push(delivery.expect("delivered"));
            }
        };
        tokio::time::timeout(PATIENCE, all).await.expect("all messages come");
        ids.iter().map(|delivery| delivery.properties.message_id().clone().expect("has an id").to_string()).collect()
    }

    /// Takes one message.
    pub async fn take(&self, queue: &str) -> lapin::message::Delivery {
        let got = self.channel.basic_get(short(queue), BasicGetOptions::default()).await.expect("asked");
        let delivery = got.expect("a message is there").delivery;
        delivery.ack(BasicAckOptions::default()).await.expect("acked");
        delivery
    }
}

/// Reproducible randomness; the seed is printed when a test fails.
pub struct Random(u64);

impl Random {
    pub fn seeded() -> Self {
        use std::hash::{BuildHasher, RandomState};
        let seed = RandomState::new().hash_one(0);
        eprintln!("random seed {seed}");
        Self(seed)
    }

    pub fn below(&mut self, most: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).expect("fits") % most
    }
}
