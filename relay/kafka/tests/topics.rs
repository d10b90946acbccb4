//! Topics that are missing, late, deleted or made anew.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use outbox_core::{Address, KeyOrder, Outcome, Publisher, Reason, Scope, Sink};
use outbox_kafka::KafkaConfig;

use crate::kit::{self, Bed};

fn is_missing(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::AddressAway { scope: Scope::Destination, reason: Reason::NoTopic, .. })
}

#[tokio::test(flavor = "multi_thread")]
async fn f38_a_missing_topic_is_blamed_on_exactly_its_rows() {
    let Some(brokers) = kit::brokers() else { return };
    let (topic, missing) = (kit::unique("good"), kit::unique("missing"));
    kit::create_topic(&brokers, &topic, 3, &[]).await;
    let mut rows = Vec::new();
    for seq in 0..1_000 {
        let to = if seq % 10 == 5 { &missing } else { &topic };
        rows.push(Arc::new(kit::row(seq, to, Some(&format!("k{}", seq % 50)), Some(b"x"))));
    }
    let mut bed = Bed::up(KafkaConfig::new(&brokers)).await;
    let outcomes = bed.publish_all(&rows).await;
    let (bad, good): (Vec<_>, Vec<_>) = rows.into_iter().partition(|row| *row.topic == *missing);
    assert!(bad.iter().all(|row| is_missing(&outcomes[&row.id.seq])));
    assert!(good.iter().all(|row| outcomes[&row.id.seq] == Outcome::Confirmed));
    kit::arrived_once_in_order(&kit::read(&brokers, &topic), &good);
}

#[tokio::test(flavor = "multi_thread")]
async fn f43_rows_of_a_topic_that_comes_late_wait_and_follow_in_order() {
    let Some(brokers) = kit::brokers() else { return };
    let topic = kit::unique("late");
    let rows: Vec<_> = (0..50).map(|seq| Arc::new(kit::row(seq, &topic, Some("k"), Some(b"x")))).collect();
    let mut bed = Bed::up(KafkaConfig::new(&brokers)).await;
    let created = async {
        tokio::time::sleep(Duration::from_secs(10)).await;
        kit::create_topic(&brokers, &topic, 1, &[]).await;
    };
    tokio::join!(bed.persist(&rows), created);
    kit::arrived_once_in_order(&kit::read(&brokers, &topic), &rows);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_deleted_under_load_harms_no_other_and_works_again_once_it_is_back() {
    let Some(brokers) = kit::brokers() else { return };
    let (topic, doomed) = (kit::unique("stays"), kit::unique("doomed"));
    kit::create_topic(&brokers, &topic, 1, &[]).await;
    kit::create_topic(&brokers, &doomed, 1, &[]).await;
    let mut bed = Bed::up(KafkaConfig::new(&brokers)).await;
    let row = |seq: i64, to: &str| Arc::new(kit::row(seq, to, Some("k"), Some(b"x")));
    kit::all_confirmed(&bed.publish_all(&[row(0, &topic), row(1, &doomed)]).await);
    kit::delete_topic(&brokers, &doomed).await;
    let rows: Vec<_> = (2..1_000).map(|seq| row(seq, if seq % 2 == 0 { &topic } else { &doomed })).collect();
    let outcomes = bed.publish_all(&rows).await;
    for row in &rows {
        let outcome = &outcomes[&row.id.seq];
        if *row.topic == *doomed {
            assert!(is_missing(outcome), "row {}: {outcome:?}", row.id.seq);
        } else {
            assert_eq!(*outcome, Outcome::Confirmed, "row {}", row.id.seq);
        }
    }
    kit::create_topic(&brokers, &doomed, 1, &[]).await;
    let again: Vec<_> = rows.iter().filter(|row| *row.topic == *doomed).cloned().collect();
    bed.persist(&again).await;
    let messages = kit::read(&brokers, &doomed);
    kit::in_order(&messages);
    let arrived: HashSet<i64> = messages.iter().map(kit::seq).collect();
    assert_eq!(arrived.len(), again.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_are_strict_until_a_topic_has_confirmed_and_always_if_told_so() {
    let Some(brokers) = kit::brokers() else { return };
    let topic = kit::unique("order");
    kit::create_topic(&brokers, &topic, 1, &[]).await;
    let address = Address { sink: Sink::Kafka, destination: topic.clone(), routing_key: String::new() };
    let row = Arc::new(kit::row(1, &topic, Some("k"), Some(b"x")));
    for strict in [false, true] {
        let mut config = KafkaConfig::new(&brokers);
        config.strict = strict;
        let mut bed = Bed::up(config).await;
        assert_eq!(bed.publisher.order(&address), KeyOrder::Strict);
        kit::all_confirmed(&bed.publish_all(&[Arc::clone(&row)]).await);
        // The row is answered a moment before its topic counts as proven.
        let proven = async {
            while bed.publisher.order(&address) != KeyOrder::Pipelined {
                tokio::task::yield_now().await;
            }
        };
        let within = if strict { Duration::from_secs(1) } else { kit::PATIENCE };
        assert_eq!(tokio::time::timeout(within, proven).await.is_err(), strict);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn probe_says_what_is_missing() {
    let Some(brokers) = kit::brokers() else { return };
    let topic = kit::unique("probe");
    kit::create_topic(&brokers, &topic, 1, &[]).await;
    let bed = Bed::up(KafkaConfig::new(&brokers)).await;
    let probe = async |name: &str| {
        let address = Address { sink: Sink::Kafka, destination: name.to_owned(), routing_key: String::new() };
        bed.publisher.probe(&address).await
    };
    assert_eq!(probe(&topic).await, Ok(None));
    let text = probe(&kit::unique("nowhere")).await.unwrap().unwrap();
    assert!(text.contains("create it"), "{text}");
    assert!(probe("a b").await.unwrap().is_some());
    let away = Bed::start(KafkaConfig { confirm_timeout_ms: 1_000, ..KafkaConfig::new("127.0.0.1:1") });
    let address = Address { sink: Sink::Kafka, destination: topic, routing_key: String::new() };
    assert!(away.publisher.probe(&address).await.is_err());
}
