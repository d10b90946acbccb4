//! Topics, rows, a publisher and a reader for one test each.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use outbox_core::{
    Address, Answer, Clock, Headers, Link, NoObserver, Outcome, Outgoing, Publisher, Row, RowId, Run, Sink, Ticket,
    Timestamp, TxId,
};
use outbox_kafka::{KafkaConfig, KafkaPublisher};
use rdkafka::admin::{AdminClient, AdminOptions, AlterConfig, NewTopic, ResourceSpecifier, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::{Headers as _, Message, OwnedMessage};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// Generous: what is waited for comes in milliseconds, unless the machine has much else to do.
pub const PATIENCE: Duration = Duration::from_secs(180);

/// The brokers to test against, or nothing, said loudly.
pub fn brokers() -> Option<String> {
    let brokers = std::env::var("TEST_KAFKA_BROKERS").ok().filter(|text| !text.is_empty());
    if brokers.is_none() {
        assert!(std::env::var_os("CI").is_none(), "TEST_KAFKA_BROKERS is not set; run tests/services/up.sh kafka");
        eprintln!("SKIPPED: TEST_KAFKA_BROKERS is not set; run tests/services/up.sh kafka");
    }
    brokers
}

pub fn unique(what: &str) -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    format!("test.{what}.{}.{count}.{}", std::process::id(), fastrand::u32(..))
}

fn admin(brokers: &str) -> AdminClient<DefaultClientContext> {
    ClientConfig::new().set("bootstrap.servers", brokers).create().unwrap()
}

pub async fn create_topic(brokers: &str, name: &str, partitions: i32, settings: &[(&str, &str)]) {
    // Records carry their rows' time, which is long past here: by default the broker soon deletes such records.
    let mut topic = NewTopic::new(name, partitions, TopicReplication::Fixed(1)).set("retention.ms", "-1");
    for (key, value) in settings {
        topic = topic.set(key, value);
    }
    let options = AdminOptions::new().operation_timeout(Some(PATIENCE));
    let admin = admin(brokers);
    let done = admin.create_topics(&[topic], &options).await.unwrap();
    assert!(done.iter().all(Result::is_ok), "{done:?}");
    // The controller's word comes before the broker itself knows of the topic.
    known(&admin, name, |topic| topic.error().is_none() && !topic.partitions().is_empty()).await;
}

pub async fn delete_topic(brokers: &str, name: &str) {
    let options = AdminOptions::new().operation_timeout(Some(PATIENCE));
    let admin = admin(brokers);
    let done = admin.delete_topics(&[name], &options).await.unwrap();
    assert!(done.iter().all(Result::is_ok), "{done:?}");
    // As with a new one: until the broker itself knows, it still takes records.
    known(&admin, name, |topic| topic.error().is_some()).await;
}

/// Waits until a broker says of a topic what the controller has decided.
async fn known(
    admin: &AdminClient<DefaultClientContext>,
    name: &str,
    mut wanted: impl FnMut(&rdkafka::metadata::MetadataTopic) -> bool,
) {
    let mut look = tokio::time::interval(Duration::from_millis(20));
    let known = async {
        loop {
            look.tick().await;
            let metadata = admin.inner().fetch_metadata(Some(name), PATIENCE).unwrap();
            if metadata.topics().iter().all(&mut wanted) {
                return;
            }
        }
    };
    tokio::time::timeout(PATIENCE, known).await.expect("what became of a topic must become known");
}

pub async fn alter_topic(brokers: &str, name: &str, key: &str, value: &str) {
    // What is not named goes back to the broker's default.
    let change = AlterConfig::new(ResourceSpecifier::Topic(name)).set("retention.ms", "-1").set(key, value);
    let done = admin(brokers).alter_configs(&[change], &AdminOptions::new()).await.unwrap();
    assert!(done.iter().all(Result::is_ok), "{done:?}");
}

/// A row with nothing special about it.
pub fn row(seq: i64, topic: &str, key: Option<&str>, payload: Option<&[u8]>) -> Row {
    Row {
        id: RowId { seq, tx: TxId(1) },
        idempotency_key: format!("work:{seq}"),
        topic: topic.into(),
        ordering_key: key.map(Arc::from),
        payload: payload.map(Bytes::copy_from_slice),
        content_type: "application/json".into(),
        headers: Headers::default(),
        created_at: Timestamp(1_700_000_000_000_000 + seq * 1_000),
        available_at: None,
        attempts: 0,
        held_since: None,
    }
}

/// A started publisher and the answers of its rows.
pub struct Bed {
    pub publisher: Arc<KafkaPublisher>,
    pub in_flight_max: usize,
    sender: UnboundedSender<Answer>,
    answers: UnboundedReceiver<Answer>,
}

impl Bed {
    pub fn start(config: KafkaConfig) -> Self {
        let in_flight_max = config.in_flight_max;
        let (sender, answers) = unbounded_channel();
        Self { publisher: KafkaPublisher::start(config, Arc::new(NoObserver)).unwrap(), in_flight_max, sender, answers }
    }

    pub async fn up(config: KafkaConfig) -> Self {
        let bed = Self::start(config);
        bed.wait_link("up", Link::is_up).await;
        bed
    }

    pub async fn wait_link(&self, what: &str, wanted: impl FnMut(&Link) -> bool) {
        let mut link = self.publisher.link();
        let waited = tokio::time::timeout(PATIENCE, link.wait_for(wanted)).await;
        waited.unwrap_or_else(|_| panic!("the link did not become {what}")).unwrap();
    }

    pub fn publish(&self, row: &Arc<Row>) {
        self.publish_until(row, Clock.now().plus(600_000));
    }

    pub fn publish_until(&self, row: &Arc<Row>, lease_until: outbox_core::Millis) {
        self.hand_over(row, lease_until, None);
    }

    fn hand_over(&self, row: &Arc<Row>, lease_until: outbox_core::Millis, run: Option<Run>) {
        let address = Address { sink: Sink::Kafka, destination: row.topic.to_string(), routing_key: String::new() };
        self.publisher.publish(Outgoing {
            row: Arc::clone(row),
            address: Arc::new(address),
            lease_until,
            ticket: Ticket::new(row.id.seq, 1, self.sender.clone()).in_run(run),
        });
    }

    pub async fn answer(&mut self) -> (i64, Outcome) {
        let answer = tokio::time::timeout(PATIENCE, self.answers.recv()).await;
        let answer = answer.expect("a row was not answered in time").unwrap();
        (answer.seq, answer.outcome)
    }

    /// Publishes all rows in order, with at most `in_flight_max` open, and collects every answer.
    pub async fn publish_all(&mut self, rows: &[Arc<Row>]) -> HashMap<i64, Outcome> {
        self.publish_in_runs(rows, |_| None).await
    }

    async fn publish_in_runs(
        &mut self,
        rows: &[Arc<Row>],
        mut run: impl FnMut(&Row) -> Option<Run>,
    ) -> HashMap<i64, Outcome> {
        let mut outcomes = HashMap::new();
        for (at, row) in rows.iter().enumerate() {
            if at - outcomes.len() >= self.in_flight_max {
                self.take(&mut outcomes).await;
            }
            self.hand_over(row, Clock.now().plus(600_000), run(row));
        }
        while outcomes.len() < rows.len() {
            self.take(&mut outcomes).await;
        }
        outcomes
    }

    async fn take(&mut self, outcomes: &mut HashMap<i64, Outcome>) {
        let (seq, outcome) = self.answer().await;
        assert!(outcomes.insert(seq, outcome).is_none(), "row {seq} was answered twice");
    }

    /// Rows as the core sends them: behind a row of its key that was not confirmed, none leaves.
    async fn pass(&mut self, rows: &[Arc<Row>]) -> HashMap<i64, Outcome> {
        let mut runs: HashMap<_, Run> = HashMap::new();
        let run = |row: &Row| {
            let key = row.ordering_key.clone()?;
            Some(runs.entry((row.topic.clone(), key)).or_default().clone())
        };
        self.publish_in_runs(rows, run).await
    }

    /// Publishes all rows until each has left. After a fault librdkafka may have answered every row before the adapter
    /// has noticed that its producer is of no use any more; what it is given until then comes back unsent.
    pub async fn publish_until_sent(&mut self, rows: &[Arc<Row>]) -> HashMap<i64, Outcome> {
        let until = Instant::now() + PATIENCE;
        let mut outcomes = HashMap::new();
        let mut left = rows.to_vec();
        while !left.is_empty() {
            assert!(Instant::now() < until, "{} rows did not leave", left.len());
            self.wait_link("up", Link::is_up).await;
            outcomes.extend(self.pass(&left).await);
            left.retain(|row| outcomes[&row.id.seq] == Outcome::NotSent);
        }
        outcomes
    }

    /// What the core does with rows that may go again: in order, after the link is up, at every probe interval, and
    /// none behind one of its key that was not confirmed.
    pub async fn persist(&mut self, rows: &[Arc<Row>]) {
        let until = Instant::now() + PATIENCE;
        let mut probe = tokio::time::interval(Duration::from_millis(200));
        let mut left: Vec<Arc<Row>> = rows.to_vec();
        while !left.is_empty() {
            assert!(Instant::now() < until, "{} rows could not be delivered", left.len());
            probe.tick().await;
            self.wait_link("up", Link::is_up).await;
            let outcomes = self.pass(&left).await;
            for (seq, outcome) in &outcomes {
                let parked = matches!(outcome, Outcome::Impossible { .. } | Outcome::Failed { .. });
                assert!(!parked, "row {seq}: {outcome:?}");
            }
            left.retain(|row| outcomes[&row.id.seq] != Outcome::Confirmed);
        }
    }
}

pub fn all_confirmed(outcomes: &HashMap<i64, Outcome>) {
    for (seq, outcome) in outcomes {
        assert_eq!(*outcome, Outcome::Confirmed, "row {seq}");
    }
}

/// Everything that a topic holds, partition by partition.
pub fn read(brokers: &str, topic: &str) -> Vec<OwnedMessage> {
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", brokers)
        .set("group.id", "test")
        .set("enable.auto.commit", "false")
        .set("enable.partition.eof", "false")
        .set("fetch.message.max.bytes", "20000000")
        .create()
        .unwrap();
    let metadata = consumer.fetch_metadata(Some(topic), PATIENCE).unwrap();
    let mut left = HashMap::new();
    let mut assignment = TopicPartitionList::new();
    for partition in metadata.topics()[0].partitions() {
        let (low, high) = consumer.fetch_watermarks(topic, partition.id(), PATIENCE).unwrap();
        if high > low {
            left.insert(partition.id(), high);
            assignment.add_partition_offset(topic, partition.id(), Offset::Beginning).unwrap();
        }
    }
    consumer.assign(&assignment).unwrap();
    let mut messages = Vec::new();
    let until = Instant::now() + PATIENCE;
    while !left.is_empty() {
        assert!(Instant::now() < until, "topic {topic} could not be read to its end");
        let Some(message) = consumer.poll(Duration::from_millis(200)) else {
            continue;
        };
        let message = message.unwrap().detach();
        if left.get(&message.partition()).is_some_and(|high| message.offset() + 1 >= *high) {
            left.remove(&message.partition());
        }
        messages.push(message);
    }
    messages.sort_by_key(|message| (message.partition(), message.offset()));
    messages
}

pub fn header<'a>(message: &'a OwnedMessage, name: &str) -> Option<Option<&'a [u8]>> {
    let headers = message.headers()?;
    let mut found = headers.iter().filter(|header| header.key == name);
    let value = found.next().map(|header| header.value);
    assert!(found.next().is_none(), "header {name} comes twice");
    value
}

pub fn id(message: &OwnedMessage) -> String {
    String::from_utf8(header(message, "id").unwrap().unwrap().to_vec()).unwrap()
}

pub fn seq(message: &OwnedMessage) -> i64 {
    id(message).strip_prefix("work:").unwrap().parse().unwrap()
}

/// Each row of `rows` arrived exactly once, and those of a key in their order.
pub fn arrived_once_in_order(messages: &[OwnedMessage], rows: &[Arc<Row>]) {
    let mut expected: Vec<i64> = rows.iter().map(|row| row.id.seq).collect();
    let mut got: Vec<i64> = messages.iter().map(seq).collect();
    expected.sort_unstable();
    got.sort_unstable();
    assert_eq!(got, expected);
    in_order(messages);
}

/// Judged by first arrival.
pub fn in_order(messages: &[OwnedMessage]) {
    let mut last: HashMap<&[u8], i64> = HashMap::new();
    let mut seen = std::collections::HashSet::new();
    for message in messages {
        let seq = seq(message);
        let Some(key) = message.key().filter(|_| seen.insert(seq)) else {
            continue;
        };
        let before = last.insert(key, seq).unwrap_or(i64::MIN);
        assert!(before < seq, "row {seq} arrived after row {before} of its key");
    }
}
