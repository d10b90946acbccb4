//! A consumer of Kafka topics.
//!
//! Guarantees: a partition's records one after the other, each in one transaction with its claim, its offset committed
//! after the transaction; what cannot be done goes to the dead-letter topic, confirmed by all in-sync replicas, before
//! its offset is committed. Where its partitions went to others of its group while it was at work, it goes on with those
//! that it gets then; what it had done is `Repeated` there. It deliberately creates no topic, and ends when the broker
//! fails: run it again.

use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::consumer::{CommitMode, Consumer as _, StreamConsumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{BorrowedMessage, Header, Headers, Message as _, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord};
use rdkafka::util::Timeout;

use crate::consumer::{ConsumeError, DEAD_LETTER_MAX, Fate, Handler, REASON_HEADER, SetAside, Settings, Worker};

/// A group that is between two generations takes no offsets, normally for an instant.
const COMMITS_MAX: u32 = 50;
const COMMIT_PAUSE: Duration = Duration::from_millis(100);

/// What to consume.
#[derive(Clone)]
pub struct Consumer {
    pub settings: Settings,
    /// librdkafka's properties, `bootstrap.servers` and `group.id` among them. What this consumer's promises rest on
    /// (`enable.auto.commit`, `acks`, `enable.idempotence`) is set here and cannot be changed.
    pub properties: Vec<(String, String)>,
    pub topics: Vec<String>,
    pub dead_letter_topic: String,
}

impl Consumer {
    /// Consumes until `stop` ends, then gives back what it has in hand: its transaction is rolled back, and the
    /// record, whose offset was not committed, comes again.
    ///
    /// # Errors
    /// When the broker fails, or the database refuses the inbox. What was not committed comes again.
    pub async fn run(&self, handler: &impl Handler, stop: impl Future<Output = ()>) -> Result<(), ConsumeError> {
        tokio::select! {
            () = stop => Ok(()),
            ended = self.consume(handler) => ended,
        }
    }

    async fn consume(&self, handler: &impl Handler) -> Result<(), ConsumeError> {
        let failed = ConsumeError::broker::<KafkaError>;
        let mut config = ClientConfig::new();
        config.set("auto.offset.reset", "earliest");
        config.extend(self.properties.clone());
        let consumer: StreamConsumer =
            config.clone().set("enable.auto.commit", "false").create().map_err(failed("making a consumer"))?;
        let dead: FutureProducer = producer(&self.properties).create().map_err(failed("making a producer"))?;
        let topics: Vec<&str> = self.topics.iter().map(String::as_str).collect();
        consumer.subscribe(&topics).map_err(failed("subscribing"))?;
        let mut worker = Worker::new(&self.settings, handler);
        loop {
            let record = match consumer.recv().await {
                Ok(record) => record,
                // The work took longer than the group waits (`max.poll.interval.ms`). Asking for more joins it anew.
                Err(KafkaError::MessageConsumption(RDKafkaErrorCode::PollExceeded)) => continue,
                Err(error) => return Err(failed("consuming")(error)),
            };
            let body = record.payload().unwrap_or_default().to_vec();
            if let Fate::SetAside(why) = worker.work(id_of(&record), body).await? {
                self.set_aside(&dead, &record, why).await?;
            }
            commit(&consumer, &record).await.map_err(failed("committing an offset"))?;
        }
    }

    async fn set_aside(
        &self,
        producer: &FutureProducer,
        record: &BorrowedMessage<'_>,
        why: SetAside,
    ) -> Result<(), ConsumeError> {
        let headers = record.headers().map_or_else(OwnedHeaders::new, rdkafka::message::BorrowedHeaders::detach);
        let headers = headers.insert(Header { key: REASON_HEADER, value: Some(why.reason()) });
        let letter = FutureRecord::<[u8], [u8]> {
            topic: &self.dead_letter_topic,
            partition: None,
            payload: record.payload(),
            key: record.key(),
            timestamp: None,
            headers: Some(headers),
        };
        producer.send(letter, Timeout::After(DEAD_LETTER_MAX)).await.map(drop).map_err(|(error, _)| {
            ConsumeError::DeadLetter { id: id_of(record).unwrap_or_default(), source: Some(error.into()) }
        })
    }
}

/// An offset that the group does not take is no failure: the record comes again, to whoever has its partition now, and
/// its claim says that it was done.
async fn commit(consumer: &StreamConsumer, record: &BorrowedMessage<'_>) -> Result<(), KafkaError> {
    use RDKafkaErrorCode::{AssignmentLost, IllegalGeneration, RebalanceInProgress, UnknownMemberId};
    for _ in 0..COMMITS_MAX {
        match consumer.commit_message(record, CommitMode::Sync) {
            Err(KafkaError::ConsumerCommit(RebalanceInProgress)) => tokio::time::sleep(COMMIT_PAUSE).await,
            Err(KafkaError::ConsumerCommit(AssignmentLost | IllegalGeneration | UnknownMemberId)) => break,
            other => return other,
        }
    }
    Ok(())
}

/// Of a consumer's properties a producer takes those of the connection; librdkafka warns of the rest and goes on.
fn producer(properties: &[(String, String)]) -> ClientConfig {
    let mut config = ClientConfig::new();
    let of_consumers =
        ["group.", "session.", "heartbeat.", "auto.", "enable.", "max.poll", "fetch.", "isolation.", "partition."];
    for (name, value) in properties {
        if !of_consumers.iter().any(|prefix| name.starts_with(prefix)) {
            config.set(name, value);
        }
    }
    config.set("acks", "all").set("enable.idempotence", "true");
    config.set("message.timeout.ms", DEAD_LETTER_MAX.as_millis().to_string());
    config
}

/// The header `id`, where there is exactly one and it is text.
fn id_of(record: &BorrowedMessage<'_>) -> Option<String> {
    let mut ids = record.headers()?.iter().filter(|header| header.key == "id");
    let id = ids.next()?.value?;
    if ids.next().is_some() {
        return None;
    }
    std::str::from_utf8(id).ok().map(ToOwned::to_owned)
}
