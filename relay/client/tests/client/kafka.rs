//! Consumers of one Kafka group while partitions move between them: each message has one effect, the effects of a key
//! are in order, and no offset is left behind.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use outbox_client::kafka::Consumer;
use outbox_client::{BoxError, ConsumeError, Handler, Message, Outcome, Settings};
use outbox_tests::kafka::Kafka;
use outbox_tests::wait;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::mocking::MockCluster;
use rdkafka::producer::{FutureProducer, FutureRecord};
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};
use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinHandle;
use tokio_postgres::Transaction;

use crate::kit::Database;

const PARTITIONS: i32 = 4;
const BROKER_MAX: Duration = Duration::from_secs(30);
/// More than any test has messages.
const FREELY: u32 = 1_000_000;

/// A topic in which each partition holds one key, and a database in which the effects are counted.
struct Scene {
    kafka: Kafka,
    database: Database,
    topic: String,
    group: String,
}

impl Scene {
    /// `None` where Kafka may be missing and is.
    async fn new(test: &str) -> Option<Self> {
        let kafka = Kafka::connect_or_skip(test).unwrap()?;
        let (topic, group) = (kafka.unique("client"), kafka.unique("client-group"));
        let dead = format!("{topic}.dead");
        kafka.create_topic(&topic, PARTITIONS, &[]).await.unwrap();
        kafka.create_topic(&dead, 1, &[]).await.unwrap();
        Some(Self { kafka, database: database().await, topic, group })
    }

    fn config(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", self.kafka.brokers()).set("group.id", &self.group);
        config
    }

    /// These messages of each key, in order.
    async fn publish(&self, numbers: std::ops::Range<i32>) {
        let producer: FutureProducer = self.config().create().unwrap();
        for number in numbers {
            for partition in 0..PARTITIONS {
                let (key, id) = (format!("key-{partition}"), format!("key-{partition}:{number}"));
                let headers = OwnedHeaders::new().insert(Header { key: "id", value: Some(&id) });
                let record = FutureRecord::to(&self.topic).partition(partition).key(&key).payload("x").headers(headers);
                producer.send(record, BROKER_MAX).await.unwrap();
            }
        }
    }

    fn start(&self, handler: &Arc<Worker>, properties: &[(&str, &str)]) -> Running {
        let own =
            [("bootstrap.servers", self.kafka.brokers()), ("group.id", &self.group), ("heartbeat.interval.ms", "500")];
        let properties = own.iter().chain(properties).map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let consumer = Consumer {
            settings: Settings::new(self.database.config(), "c"),
            properties: properties.collect(),
            topics: vec![self.topic.clone()],
            dead_letter_topic: format!("{}.dead", self.topic),
        };
        let (handler, stop) = (handler.clone(), Arc::new(Notify::new()));
        let stopped = stop.clone();
        Running { task: tokio::spawn(async move { consumer.run(&*handler, stopped.notified()).await }), stop }
    }

    /// Members that the group has or awaits.
    async fn members(&self) -> usize {
        let (config, group) = (self.config(), self.group.clone());
        let asked = tokio::task::spawn_blocking(move || {
            let client: BaseConsumer = config.create().unwrap();
            let groups = client.fetch_group_list(Some(&group), BROKER_MAX).unwrap();
            groups.groups().iter().map(|group| group.members().len()).sum()
        });
        asked.await.unwrap()
    }

    /// The next record of each partition, as the group knows it.
    async fn committed(&self) -> Vec<Offset> {
        let (config, topic) = (self.config(), self.topic.clone());
        let asked = tokio::task::spawn_blocking(move || {
            let client: BaseConsumer = config.create().unwrap();
            let mut list = TopicPartitionList::new();
            list.add_partition_range(&topic, 0, PARTITIONS - 1);
            let committed = client.committed_offsets(list, BROKER_MAX).unwrap();
            committed.elements().iter().map(rdkafka::topic_partition_list::TopicPartitionListElem::offset).collect()
        });
        asked.await.unwrap()
    }

    /// Waits until the group is done with so many messages of each key, and looks at their effects.
    async fn one_effect_each(&self, count: i32) {
        let end = vec![Offset::Offset(i64::from(count)); usize::try_from(PARTITIONS).unwrap()];
        let done = || async { Ok(self.committed().await == end) };
        if let Err(error) = wait::until_true("all offsets to be committed", wait::SOON, done).await {
            panic!("{error}: {:?} and not {end:?}", self.committed().await);
        }
        let sql = "SELECT key, array_agg(number ORDER BY at) FROM effect GROUP BY key ORDER BY key";
        let rows = self.database.client().await.query(sql, &[]).await.unwrap();
        let found: Vec<(String, Vec<i32>)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
        let expected: Vec<_> = (0..PARTITIONS).map(|key| (format!("key-{key}"), (0..count).collect())).collect();
        assert_eq!(found, expected);
    }

    async fn effects_of(&self, worker: &Worker) -> i64 {
        self.database.count(&format!("effect WHERE worker = '{}'", worker.name)).await
    }

    /// Whether somebody waits for a claim that another transaction holds.
    async fn a_claim_waits(&self) -> bool {
        let waiting = "pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
        self.database.count(waiting).await > 0
    }
}

async fn database() -> Database {
    let database = Database::migrated().await;
    let table = "CREATE TABLE effect (at bigserial, key text, number int, worker text)";
    database.client().await.batch_execute(table).await.unwrap();
    database
}

struct Running {
    task: JoinHandle<Result<(), ConsumeError>>,
    stop: Arc<Notify>,
}

impl Running {
    async fn stop(self) {
        self.stop.notify_one();
        let ended = wait::bounded("a stopped consumer to end", wait::SOON, self.task).await.unwrap();
        ended.unwrap().unwrap();
    }
}

/// Needs a permit to end the work of a message, and holds it in hand until there is one.
struct Worker {
    name: &'static str,
    permits: Semaphore,
    permitted: AtomicU32,
    begun: AtomicU32,
    committed: AtomicU32,
}

impl Worker {
    fn new(name: &'static str, permits: u32) -> Arc<Self> {
        let worker = Self {
            name,
            permits: Semaphore::new(0),
            permitted: AtomicU32::new(0),
            begun: AtomicU32::new(0),
            committed: AtomicU32::new(0),
        };
        worker.permit(permits);
        Arc::new(worker)
    }

    fn permit(&self, more: u32) {
        self.permitted.fetch_add(more, Ordering::SeqCst);
        self.permits.add_permits(more as usize);
    }

    /// Waits until all permits are used up and one message more has been begun.
    async fn takes_one_in_hand(&self) {
        let probe = || {
            let (begun, permitted) = (self.begun.load(Ordering::SeqCst), self.permitted.load(Ordering::SeqCst));
            std::future::ready(Ok(begun > permitted))
        };
        wait::until_true(&format!("{} to have a message in hand", self.name), wait::SOON, probe).await.unwrap();
    }
}

impl Handler for Worker {
    async fn handle(&self, transaction: &Transaction<'_>, message: &Message) -> Result<(), BoxError> {
        let (key, number) = message.id.split_once(':').ok_or("no number")?;
        let sql = "INSERT INTO effect (key, number, worker) VALUES ($1, $2, $3)";
        transaction.execute(sql, &[&key, &number.parse::<i32>()?, &self.name]).await?;
        self.begun.fetch_add(1, Ordering::SeqCst);
        self.permits.acquire().await?.forget();
        Ok(())
    }

    async fn committed(&self, _message: &Message, outcome: Outcome<()>) {
        if outcome == Outcome::Done(()) {
            self.committed.fetch_add(1, Ordering::SeqCst);
        }
    }
}

/// The second joins while the first is at work, both work, and the first is stopped at work.
async fn joined_and_left(test: &str, strategy: &str) {
    let Some(scene) = Scene::new(test).await else { return };
    let (first, second) = (Worker::new("first", 5), Worker::new("second", FREELY));
    let strategy = [("partition.assignment.strategy", strategy)];
    scene.publish(0..25).await;
    let running = scene.start(&first, &strategy);
    first.takes_one_in_hand().await;
    let joined = scene.start(&second, &strategy);
    let both = || async { Ok(scene.members().await == 2) };
    wait::until_true("both in the group", wait::SOON, both).await.unwrap();
    // The first hears of it between two messages, at its next heartbeat; as long as it has not, it works on.
    let mut count = 25;
    let shared = async {
        while scene.effects_of(&second).await == 0 {
            scene.publish(count..count + 1).await;
            count += 1;
            first.permit(1);
            first.takes_one_in_hand().await;
        }
    };
    wait::bounded("the second to have work", 2 * wait::SOON, shared).await.unwrap();
    first.permit(3);
    first.takes_one_in_hand().await;
    running.stop().await;
    scene.one_effect_each(count).await;
    let done = i64::from(first.committed.load(Ordering::SeqCst));
    assert_eq!(scene.effects_of(&first).await, done, "what the first had in hand was given back");
    joined.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn partitions_that_move_at_once_lose_and_repeat_nothing() {
    joined_and_left("partitions_that_move_at_once_lose_and_repeat_nothing", "range").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn partitions_that_move_one_by_one_lose_and_repeat_nothing() {
    joined_and_left("partitions_that_move_one_by_one_lose_and_repeat_nothing", "cooperative-sticky").await;
}

/// Work that takes longer than the group waits: others have its partitions, and what it had in hand, before it ends.
#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_that_lost_its_partitions_at_work_goes_on_and_repeats_nothing() {
    let test = "a_consumer_that_lost_its_partitions_at_work_goes_on_and_repeats_nothing";
    let Some(scene) = Scene::new(test).await else { return };
    let (slow, other) = (Worker::new("slow", 2), Worker::new("other", FREELY));
    scene.publish(0..5).await;
    let mut losing = scene.start(&slow, &[("max.poll.interval.ms", "6000"), ("session.timeout.ms", "6000")]);
    slow.takes_one_in_hand().await;
    let taking = scene.start(&other, &[]);
    let waits = || async { Ok(scene.a_claim_waits().await) };
    wait::until_true("the other to meet what the slow one has in hand", wait::SOON, waits).await.unwrap();
    slow.permit(FREELY);
    scene.one_effect_each(5).await;
    taking.stop().await;
    // Alone again, it has all partitions.
    scene.publish(5..10).await;
    let worked = scene.one_effect_each(10);
    tokio::select! {
        () = worked => {}
        ended = &mut losing.task => panic!("it ended: {ended:?}"),
    }
    assert!(scene.effects_of(&slow).await >= 23, "the three that it had done, and the last twenty");
    losing.stop().await;
}

/// At a mock of a broker: the real one answers so for an instant only, which no test can choose.
#[tokio::test(flavor = "multi_thread")]
async fn an_offset_that_comes_between_two_generations_is_committed_after_them() {
    let broker = MockCluster::new(1).unwrap();
    let (topic, group) = ("client".to_owned(), "client-group".to_owned());
    broker.create_topic(&topic, PARTITIONS, 1).unwrap();
    let scene = Scene { kafka: Kafka::at(&broker.bootstrap_servers()), database: database().await, topic, group };
    scene.publish(0..1).await;
    broker.request_errors(RDKafkaApiKey::OffsetCommit, &[RDKafkaRespErr::RD_KAFKA_RESP_ERR_REBALANCE_IN_PROGRESS; 3]);
    let worker = Worker::new("worker", FREELY);
    let mut running = scene.start(&worker, &[]);
    tokio::select! {
        () = scene.one_effect_each(1) => {}
        ended = &mut running.task => panic!("it ended: {ended:?}"),
    }
    running.stop().await;
}
