//! Stopping: what librdkafka holds is confirmed or said to be unknown, never dropped in silence.

use std::sync::Arc;
use std::time::{Duration, Instant};

use outbox_core::{Link, Outcome, Publisher};
use outbox_kafka::KafkaConfig;

use crate::kit::{self, Bed};

#[tokio::test(flavor = "multi_thread")]
async fn f11_records_that_linger_are_sent_and_confirmed() {
    let Some(brokers) = kit::brokers() else { return };
    let topic = kit::unique("linger");
    kit::create_topic(&brokers, &topic, 3, &[]).await;
    let mut config = KafkaConfig::new(&brokers);
    config.in_flight_max = 6_000;
    config.properties.insert("linger.ms".to_owned(), "5000".to_owned());
    let mut bed = Bed::up(config).await;
    let first = Arc::new(kit::row(0, &topic, Some("k"), Some(b"x")));
    kit::all_confirmed(&bed.publish_all(&[Arc::clone(&first)]).await);
    let rows: Vec<_> =
        (1..=5_000).map(|seq| Arc::new(kit::row(seq, &topic, Some(&format!("k{}", seq % 9)), Some(b"x")))).collect();
    rows.iter().for_each(|row| bed.publish(row));
    tokio::time::sleep(Duration::from_secs(1)).await;
    let before = Instant::now();
    bed.publisher.stop(20_000).await;
    println!("stopped after {} ms", before.elapsed().as_millis());
    assert!(before.elapsed() < Duration::from_secs(3), "the linger is cut short");
    // What was with librdkafka is confirmed, what still waited for its wave never left; nothing is unknown.
    let mut arrived = vec![first];
    for _ in &rows {
        let (seq, outcome) = bed.answer().await;
        match outcome {
            Outcome::Confirmed => arrived.extend(rows.iter().find(|row| row.id.seq == seq).cloned()),
            other => assert_eq!(other, Outcome::NotSent, "row {seq}"),
        }
    }
    assert!(arrived.len() > 1, "no row was with librdkafka");
    kit::arrived_once_in_order(&kit::read(&brokers, &topic), &arrived);
    bed.publisher.stop(20_000).await;
    bed.publish(&rows[0]);
    assert_eq!(bed.answer().await.1, Outcome::NotSent);
    assert!(matches!(*bed.publisher.link().borrow(), Link::Down { .. }));
}

#[tokio::test(flavor = "multi_thread")]
async fn stopping_without_a_broker_ends_at_once() {
    let mut bed = Bed::start(KafkaConfig::new("127.0.0.1:1"));
    bed.wait_link("down", |link| matches!(link, Link::Down { detail } if detail != "connecting")).await;
    bed.publish(&Arc::new(kit::row(1, "t", None, Some(b"x"))));
    assert_eq!(bed.answer().await, (1, Outcome::NotSent));
    let before = Instant::now();
    bed.publisher.stop(20_000).await;
    assert!(before.elapsed() < Duration::from_secs(15), "the grace is for rows, and there is none");
}
