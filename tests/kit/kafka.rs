//! Kafka as a consumer sees it: topics of one test, and reading them from the beginning by
//! assignment, without a consumer group, so that nothing rebalances.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rdkafka::admin::{AdminClient, AdminOptions, NewPartitions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer, StreamConsumer};
use rdkafka::error::RDKafkaErrorCode;
use rdkafka::message::{BorrowedMessage, Headers, Message};
use rdkafka::{Offset, TopicPartitionList};

use crate::ledger::Arrival;
use crate::{cleanup, services, wait};

/// One record as it arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    pub topic: String,
    pub partition: i32,
    pub offset: i64,
    /// `None` is a null key, which is not an empty one.
    pub key: Option<Vec<u8>>,
    /// `None` is a tombstone, which is not an empty value.
    pub value: Option<Vec<u8>>,
    /// In the order in which they came, repeated names included.
    pub headers: Vec<(String, Option<Vec<u8>>)>,
    /// Milliseconds since 1970.
    pub timestamp: Option<i64>,
}

impl Received {
    /// All values of one header: a name may come several times, or never.
    #[must_use]
    pub fn header(&self, name: &str) -> Vec<Option<&[u8]>> {
        self.headers.iter().filter(|(found, _)| found == name).map(|(_, value)| value.as_deref()).collect()
    }

    /// The message id: the text of the header `id`, if it is there exactly once.
    #[must_use]
    pub fn id(&self) -> Option<String> {
        match self.header("id").as_slice() {
            [Some(id)] => String::from_utf8(id.to_vec()).ok(),
            _ => None,
        }
    }

    /// As the ledger compares it, where all headers of the row are text.
    ///
    /// # Errors
    /// When it has not exactly one id, or its key is no text.
    pub fn arrival(&self) -> Result<Arrival> {
        let id = self.id().context("a record without an id, or with several")?;
        let mut headers = BTreeMap::new();
        for (name, value) in self.headers.iter().filter(|(name, _)| name != "id" && name != "content-type") {
            let text = value.as_deref().map(String::from_utf8_lossy).unwrap_or_default().into_owned();
            headers.insert(name.clone(), text);
        }
        let key = self.key.as_deref().map(std::str::from_utf8).transpose()?;
        Ok(Arrival::new(&id, key, self.value.as_deref(), headers))
    }

    fn of(message: &BorrowedMessage<'_>) -> Self {
        let headers = message.headers().map_or_else(Vec::new, |headers| {
            headers.iter().map(|header| (header.key.to_owned(), header.value.map(<[u8]>::to_vec))).collect()
        });
        Self {
            topic: message.topic().to_owned(),
            partition: message.partition(),
            offset: message.offset(),
            key: message.key().map(<[u8]>::to_vec),
            value: message.payload().map(<[u8]>::to_vec),
            headers,
            timestamp: message.timestamp().to_millis(),
        }
    }
}

/// A Kafka cluster and the topics that a test made there.
pub struct Kafka {
    brokers: String,
    suffix: String,
    topics: std::sync::Mutex<Vec<String>>,
}

impl Kafka {
    /// The cluster of `TEST_KAFKA_BROKERS`; `None` where Kafka may be missing and is, after
    /// having said so loudly: the test returns then.
    ///
    /// # Errors
    /// In CI, when the variable is not set.
    pub fn connect_or_skip(test: &str) -> Result<Option<Self>> {
        let brokers = services::kafka_brokers()?;
        if brokers.is_none() {
            services::skip_kafka(test);
        }
        Ok(brokers.map(|brokers| Self::at(&brokers)))
    }

    /// Any cluster.
    #[must_use]
    pub fn at(brokers: &str) -> Self {
        Self {
            brokers: brokers.to_owned(),
            suffix: uuid::Uuid::new_v4().simple().to_string(),
            topics: std::sync::Mutex::default(),
        }
    }

    /// The address to hand to the relay.
    #[must_use]
    pub fn brokers(&self) -> &str {
        &self.brokers
    }

    /// `name` made unique for this test, and the same on every call.
    #[must_use]
    pub fn unique(&self, name: &str) -> String {
        format!("{name}.{}", &self.suffix[..12])
    }

    /// Makes a topic under the name as given and waits until clients see it; `config` such as
    /// `("max.message.bytes", "1000")`. It is deleted when the test ends.
    ///
    /// # Errors
    /// When the broker refuses.
    pub async fn create_topic(&self, name: &str, partitions: i32, config: &[(&str, &str)]) -> Result<()> {
        self.create_replicated_topic(name, partitions, 1, config).await
    }

    /// As [`Kafka::create_topic`], each partition on so many brokers.
    ///
    /// # Errors
    /// When the broker refuses.
    pub async fn create_replicated_topic(
        &self,
        name: &str,
        partitions: i32,
        replicas: i32,
        config: &[(&str, &str)],
    ) -> Result<()> {
        let mut topic = NewTopic::new(name, partitions, TopicReplication::Fixed(replicas));
        for (key, value) in config {
            topic = topic.set(key, value);
        }
        for result in self.admin()?.create_topics([&topic], &AdminOptions::new()).await? {
            result.map_err(|(name, code)| anyhow::anyhow!("creating the topic {name}: {code}"))?;
        }
        self.topics.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(name.to_owned());
        self.partitions(name).await.map(|_| ())
    }

    /// Makes a topic grow to so many partitions.
    ///
    /// # Errors
    /// When the broker refuses.
    pub async fn add_partitions(&self, topic: &str, count: usize) -> Result<()> {
        let wanted = NewPartitions::new(topic, count);
        for result in self.admin()?.create_partitions([&wanted], &AdminOptions::new()).await? {
            result.map_err(|(name, code)| anyhow::anyhow!("adding partitions to {name}: {code}"))?;
        }
        Ok(())
    }

    /// Deletes a topic; one that does not exist is no error.
    ///
    /// # Errors
    /// When the broker refuses.
    pub async fn delete_topic(&self, name: &str) -> Result<()> {
        delete(&self.brokers, &[name]).await
    }

    /// Reads the topic from its beginning until `count` records came, in order per partition.
    ///
    /// # Errors
    /// When fewer arrive in time.
    pub async fn consume(&self, topic: &str, count: usize, within: Duration) -> Result<Vec<Received>> {
        self.reader(topic).await?.take(count, within).await
    }

    /// Reads everything that the topic holds now, without waiting for more.
    ///
    /// # Errors
    /// When the end is not reached within a generous deadline.
    pub async fn consume_all(&self, topic: &str) -> Result<Vec<Received>> {
        let count = self.stored(topic).await?;
        self.reader(topic).await?.take_quietly(count, wait::SOON).await
    }

    /// A reader that stays open, so that a test can look several times.
    ///
    /// # Errors
    /// When the topic does not exist.
    pub async fn reader(&self, topic: &str) -> Result<Reader> {
        let partitions = self.partitions(topic).await?;
        let consumer: StreamConsumer = self
            .config()
            .set("group.id", "unused: partitions are assigned")
            .set("enable.auto.commit", "false")
            .set("fetch.wait.max.ms", "20")
            .set("isolation.level", "read_committed")
            // A broker that has just come back may not know its own end yet. The default skips to the end then.
            .set("auto.offset.reset", "earliest")
            .create()?;
        let mut assignment = TopicPartitionList::new();
        for partition in &partitions {
            assignment.add_partition_offset(topic, *partition, Offset::Beginning)?;
        }
        consumer.assign(&assignment)?;
        Ok(Reader { topic: topic.to_owned(), consumer })
    }

    async fn partitions(&self, topic: &str) -> Result<Vec<i32>> {
        wait::until(&format!("the topic {topic} to be known"), wait::SOON, || {
            let (config, topic) = (self.config(), topic.to_owned());
            async move {
                blocking(move || {
                    let consumer: BaseConsumer = config.create()?;
                    let metadata = consumer.fetch_metadata(Some(&topic), Duration::from_secs(5))?;
                    let found = metadata.topics().iter().find(|found| found.name() == topic);
                    let known = found.filter(|found| found.error().is_none());
                    let ids = known.map(|found| found.partitions().iter().map(|part| part.id()).collect::<Vec<_>>());
                    Ok(ids.filter(|ids| !ids.is_empty()))
                })
                .await
            }
        })
        .await
    }

    /// How many records the topic holds, control records of transactions included.
    ///
    /// # Errors
    /// When the topic does not exist.
    pub async fn stored(&self, topic: &str) -> Result<usize> {
        let partitions = self.partitions(topic).await?;
        // The leader of a new partition may still refuse, which is no answer yet.
        wait::until(&format!("the offsets of {topic}"), wait::SOON, || {
            let (config, topic, partitions) = (self.config(), topic.to_owned(), partitions.clone());
            async move {
                blocking(move || {
                    let consumer: BaseConsumer = config.create()?;
                    let mut stored = 0;
                    for partition in partitions {
                        let (low, high) = consumer.fetch_watermarks(&topic, partition, Duration::from_secs(10))?;
                        stored += usize::try_from(high - low).context("offsets out of order")?;
                    }
                    Ok(Some(stored))
                })
                .await
            }
        })
        .await
    }

    fn admin(&self) -> Result<AdminClient<DefaultClientContext>> {
        Ok(self.config().create()?)
    }

    fn config(&self) -> ClientConfig {
        config(&self.brokers)
    }
}

impl Drop for Kafka {
    fn drop(&mut self) {
        let topics = std::mem::take(&mut *self.topics.lock().unwrap_or_else(std::sync::PoisonError::into_inner));
        if topics.is_empty() || !cleanup::is_wanted() {
            return;
        }
        let brokers = self.brokers.clone();
        cleanup::run("the test's topics", async move {
            let names: Vec<&str> = topics.iter().map(String::as_str).collect();
            delete(&brokers, &names).await
        });
    }
}

/// An open consumer of one topic.
pub struct Reader {
    topic: String,
    consumer: StreamConsumer,
}

impl Reader {
    /// The next record, or `None` when none came `within`.
    ///
    /// # Errors
    /// When the consumer fails for good.
    pub async fn next(&self, within: Duration) -> Result<Option<Received>> {
        match tokio::time::timeout(within, self.consumer.recv()).await {
            Ok(message) => Ok(Some(Received::of(&message?))),
            Err(_) => Ok(None),
        }
    }

    /// # Errors
    /// When fewer than `count` arrive in time.
    pub async fn take(&self, count: usize, within: Duration) -> Result<Vec<Received>> {
        let received = self.take_quietly(count, within).await?;
        if received.len() < count {
            let (waited, topic) = (within.as_millis(), &self.topic);
            bail!("waited {waited} ms for {count} records in {topic}: {} came", received.len());
        }
        Ok(received)
    }

    /// What arrived in time, at most `count`. Offsets of transactions' control records are
    /// counted by the broker and never arrive, so a bound from offsets may not be reached.
    async fn take_quietly(&self, count: usize, within: Duration) -> Result<Vec<Received>> {
        let deadline = tokio::time::Instant::now() + within;
        let mut received = Vec::with_capacity(count);
        while received.len() < count {
            let left = deadline.saturating_duration_since(tokio::time::Instant::now());
            let Some(record) = self.next(left).await? else { break };
            received.push(record);
        }
        Ok(received)
    }
}

fn config(brokers: &str) -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", brokers).set("log_level", "3");
    config
}

/// An answer that a topic is unknown is what was wanted.
async fn delete(brokers: &str, topics: &[&str]) -> Result<()> {
    let admin: AdminClient<DefaultClientContext> = config(brokers).create()?;
    for result in admin.delete_topics(topics, &AdminOptions::new()).await? {
        match result {
            Ok(_) | Err((_, RDKafkaErrorCode::UnknownTopicOrPartition)) => {}
            Err((name, code)) => bail!("deleting the topic {name}: {code}"),
        }
    }
    Ok(())
}

/// librdkafka's metadata calls block their thread.
async fn blocking<T: Send + 'static>(call: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(call).await?
}
