//! Sizes: only rows that are too large are refused, and their neighbours arrive once.

use std::sync::Arc;

use outbox_core::{Address, KeyOrder, Outcome, Publisher as _, Reason, Row, Sink};
use outbox_kafka::KafkaConfig;
use rdkafka::mocking::MockCluster;
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};

use crate::kit::{self, Bed};

const LIMIT: usize = 100_000;
/// What a record without key and with our two headers adds to 100 kB of payload in a batch of its own.
const OVERHEAD: usize = 119;

fn sized(seq: i64, topic: &str, size: usize, key: Option<&str>) -> Arc<Row> {
    let payload: Vec<u8> = std::iter::repeat_with(|| fastrand::u8(..)).take(size).collect();
    Arc::new(kit::row(seq, topic, key, Some(&payload)))
}

/// Rows around the limit, each among small ones.
fn mixed(topic: &str, sizes: &[usize]) -> Vec<Arc<Row>> {
    let mut rows = Vec::new();
    for size in sizes {
        for small in 0..20 {
            let seq = i64::try_from(rows.len()).unwrap();
            let key = format!("k{}", seq % 7);
            let size = if small == 10 { *size } else { 300 };
            rows.push(sized(seq, topic, size, Some(&key)));
        }
    }
    rows
}

/// Who is refused is decided by the broker's rule, computed here by itself.
fn too_large(row: &Row) -> bool {
    row.payload.as_ref().map_or(0, |payload| payload.len()) > LIMIT
}

async fn check_mixed(config: KafkaConfig, brokers: &str, topic: &str) {
    let rows = mixed(topic, &[90_000, 99_000, 99_800, 100_100, 200_000, 2_000_000, 90_000, 2_000_000]);
    let mut bed = Bed::up(config).await;
    let outcomes = bed.publish_all(&rows).await;
    let (bad, good): (Vec<_>, Vec<_>) = rows.into_iter().partition(|row| too_large(row));
    for row in &bad {
        let outcome = &outcomes[&row.id.seq];
        assert!(matches!(outcome, Outcome::Impossible { reason: Reason::Size, .. }), "{outcome:?}");
    }
    for row in &good {
        assert_eq!(outcomes[&row.id.seq], Outcome::Confirmed, "row {}", row.id.seq);
    }
    kit::arrived_once_in_order(&kit::read(brokers, topic), &good);
}

#[tokio::test(flavor = "multi_thread")]
async fn f34_only_rows_that_are_too_large_are_refused() {
    let Some(brokers) = kit::brokers() else { return };
    let topic = kit::unique("limit");
    kit::create_topic(&brokers, &topic, 1, &[("max.message.bytes", &LIMIT.to_string())]).await;
    check_mixed(KafkaConfig::new(&brokers), &brokers, &topic).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn f34_with_compression_the_broker_decides_about_each_large_row() {
    let Some(brokers) = kit::brokers() else { return };
    let topic = kit::unique("limit.lz4");
    kit::create_topic(&brokers, &topic, 1, &[("max.message.bytes", &LIMIT.to_string())]).await;
    let mut config = KafkaConfig::new(&brokers);
    config.properties.insert("compression.type".to_owned(), "lz4".to_owned());
    check_mixed(config.clone(), &brokers, &topic).await;
    let soft = Arc::new(kit::row(1_000, &topic, None, Some(&vec![b'a'; 2_000_000])));
    let outcomes = Bed::up(config).await.publish_all(&[soft]).await;
    assert_eq!(outcomes[&1_000], Outcome::Confirmed, "what fits when compressed is taken");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_limit_is_met_to_the_byte() {
    let Some(brokers) = kit::brokers() else { return };
    let topic = kit::unique("limit.exact");
    kit::create_topic(&brokers, &topic, 1, &[("max.message.bytes", &LIMIT.to_string())]).await;
    let mut rows: Vec<_> = Vec::new();
    for around in 0..40 {
        rows.push(sized(i64::try_from(around).unwrap() + 10, &topic, LIMIT - OVERHEAD - 20 + around, None));
    }
    let mut bed = Bed::up(KafkaConfig::new(&brokers)).await;
    let outcomes = bed.publish_all(&rows).await;
    let mut config = KafkaConfig::new(&brokers);
    // With compression the adapter leaves the decision to the broker; random bytes do not shrink.
    config.properties.insert("compression.type".to_owned(), "gzip".to_owned());
    let by_broker = Bed::up(config).await.publish_all(&rows).await;
    let refused = |outcome: &Outcome| matches!(outcome, Outcome::Impossible { reason: Reason::Size, .. });
    assert!(rows.iter().any(|row| refused(&outcomes[&row.id.seq])), "some must be too large");
    assert!(rows.iter().any(|row| outcomes[&row.id.seq] == Outcome::Confirmed), "some must fit");
    for row in &rows {
        let size = row.payload.as_ref().unwrap().len();
        let (ours, theirs) = (&outcomes[&row.id.seq], &by_broker[&row.id.seq]);
        assert_eq!(refused(ours), refused(theirs), "payload of {size} bytes: {ours:?}, {theirs:?}");
        assert_eq!(*ours == Outcome::Confirmed, *theirs == Outcome::Confirmed, "{ours:?}, {theirs:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_may_take_more_than_librdkafkas_default() {
    let Some(brokers) = kit::brokers() else { return };
    let topic = kit::unique("limit.large");
    kit::create_topic(&brokers, &topic, 1, &[("max.message.bytes", "20000000")]).await;
    let rows: Vec<_> = (1..=3).map(|seq| sized(seq, &topic, 9_000_000, Some("k"))).collect();
    let mut bed = Bed::up(KafkaConfig::new(&brokers)).await;
    kit::all_confirmed(&bed.publish_all(&rows).await);
    kit::arrived_once_in_order(&kit::read(&brokers, &topic), &rows);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_that_was_raised_is_believed_at_once() {
    let Some(brokers) = kit::brokers() else { return };
    let topic = kit::unique("limit.raised");
    kit::create_topic(&brokers, &topic, 1, &[("max.message.bytes", &LIMIT.to_string())]).await;
    let mut bed = Bed::up(KafkaConfig::new(&brokers)).await;
    let outcomes = bed.publish_all(&[sized(1, &topic, 200_000, None)]).await;
    assert!(matches!(outcomes[&1], Outcome::Impossible { reason: Reason::Size, .. }));
    kit::alter_topic(&brokers, &topic, "max.message.bytes", "1000000").await;
    tokio::time::timeout(kit::PATIENCE, async {
        let mut again = tokio::time::interval(std::time::Duration::from_millis(500));
        for seq in 2.. {
            again.tick().await;
            if bed.publish_all(&[sized(seq, &topic, 200_000, None)]).await[&seq] == Outcome::Confirmed {
                return;
            }
        }
    })
    .await
    .expect("the raised limit must be seen");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_that_was_lowered_blames_nobody_else() {
    let Some(brokers) = kit::brokers() else { return };
    let topic = kit::unique("limit.lowered");
    kit::create_topic(&brokers, &topic, 1, &[]).await;
    let mut bed = Bed::up(KafkaConfig::new(&brokers)).await;
    kit::all_confirmed(&bed.publish_all(&[sized(0, &topic, 10, Some("k"))]).await);
    kit::alter_topic(&brokers, &topic, "max.message.bytes", "50000").await;
    let mut rows: Vec<_> = (1..=500).map(|seq| sized(seq, &topic, 1_000, Some(&format!("k{}", seq % 5)))).collect();
    bed.persist(&rows).await;
    rows.push(sized(0, &topic, 10, Some("k")));
    let messages = kit::read(&brokers, &topic);
    kit::in_order(&messages);
    let arrived: std::collections::HashSet<i64> = messages.iter().map(kit::seq).collect();
    assert_eq!(arrived.len(), rows.len());
}

/// The mock cluster describes no topics, like a cluster that does not let us see their limits.
#[tokio::test(flavor = "multi_thread")]
async fn where_the_limit_cannot_be_seen_a_refused_batch_goes_row_by_row() {
    let cluster = MockCluster::new(1).unwrap();
    let (brokers, topic) = (cluster.bootstrap_servers(), "unseen");
    cluster.create_topic(topic, 1, 1).unwrap();
    let mut bed = Bed::up(KafkaConfig::new(&brokers)).await;
    kit::all_confirmed(&bed.publish_all(&[sized(0, topic, 10, Some("k"))]).await);
    let address = Address { sink: Sink::Kafka, destination: topic.to_owned(), routing_key: String::new() };
    assert_eq!(bed.publisher.order(&address), KeyOrder::Strict, "later rows of a key must not overtake");

    let refusal = [RDKafkaRespErr::RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE];
    cluster.request_errors(RDKafkaApiKey::Produce, &refusal);
    let rows: Vec<_> = (1..=200).map(|seq| sized(seq, topic, 10, Some(&format!("key-{seq}")))).collect();
    let outcomes = bed.publish_all(&rows).await;
    let unknown = |outcome: &Outcome| matches!(outcome, Outcome::Unknown { .. });
    assert!(outcomes.values().any(unknown), "the refused batch blames nobody");
    assert!(!outcomes.values().any(|outcome| matches!(outcome, Outcome::Impossible { .. } | Outcome::Failed { .. })));

    let left: Vec<_> = rows.into_iter().filter(|row| outcomes[&row.id.seq] != Outcome::Confirmed).collect();
    cluster.request_errors(RDKafkaApiKey::Produce, &refusal);
    let outcomes = bed.publish_until_sent(&left).await;
    let parked = |outcome: &&Outcome| matches!(outcome, Outcome::Impossible { reason: Reason::Size, .. });
    assert_eq!(outcomes.values().filter(parked).count(), 1, "now the culprit is alone");
    assert_eq!(outcomes.values().filter(|outcome| **outcome == Outcome::Confirmed).count(), left.len() - 1);
}

/// A compacted topic refuses records without a key, and with such a record its whole batch, while the batches
/// behind it are in flight already.
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_batch_in_the_middle_of_others_inverts_no_key() {
    let Some(brokers) = kit::brokers() else { return };
    let topic = kit::unique("compacted");
    kit::create_topic(&brokers, &topic, 1, &[("cleanup.policy", "compact")]).await;
    let mut config = KafkaConfig::new(&brokers);
    config.properties.insert("batch.num.messages".to_owned(), "50".to_owned());
    let mut bed = Bed::up(config).await;
    kit::all_confirmed(&bed.publish_all(&[sized(0, &topic, 10, Some("k0"))]).await);
    let key = |seq: i64| if seq == 500 { None } else { Some(format!("k{}", seq % 5)) };
    let rows: Vec<_> = (1..=2_000).map(|seq| sized(seq, &topic, 100, key(seq).as_deref())).collect();
    let outcomes = bed.publish_all(&rows).await;
    let parked = |outcome: &Outcome| matches!(outcome, Outcome::Failed { .. } | Outcome::Impossible { .. });
    assert!(!outcomes.values().any(parked), "nobody is blamed while the culprit has neighbours");
    let left: Vec<_> = rows.into_iter().filter(|row| outcomes[&row.id.seq] != Outcome::Confirmed).collect();
    // The core would send a row of a key again only after the earlier ones: the second pass must see no other fault.
    let outcomes = bed.publish_until_sent(&left).await;
    let rejected = |outcome: &Outcome| matches!(outcome, Outcome::Failed { reason: Reason::Rejected, .. });
    for (seq, outcome) in &outcomes {
        assert!(if *seq == 500 { rejected(outcome) } else { *outcome == Outcome::Confirmed }, "row {seq}: {outcome:?}");
    }
    let messages = kit::read(&brokers, &topic);
    kit::in_order(&messages);
    let arrived: std::collections::HashSet<i64> = messages.iter().map(kit::seq).collect();
    assert_eq!(arrived.len(), 2_000);
}
