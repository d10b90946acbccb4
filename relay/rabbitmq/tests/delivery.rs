//! What is confirmed has arrived once, in order, as it was; what is not is told exactly.

use std::collections::HashMap;
use std::sync::Arc;

use lapin::types::AMQPValue;
use outbox_core::{HeaderValue, Headers, KeyOrder, Outcome, Publisher, Reason, Scope};

use crate::kit::{Broker, Random, Rig, address, row, url};

/// Ten thousand rows over two channels: all confirmed, each there once, the rows of a key in order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_pipelined_rows_arrive_once_and_in_order() {
    let broker = Broker::connect(&url()).await;
    let exchange = broker.exchange().await;
    let queue = broker.queue(&exchange, "#", &[]).await;
    let mut rig = Rig::up(&url(), |options| options.pipelined = true).await;
    let to = Arc::new(address(&exchange, "k"));
    assert_eq!(rig.publisher.order(&to), KeyOrder::Pipelined);
    for seq in 0..10_000 {
        let mut row = row(seq, &format!("{}:{seq}", seq % 50));
        row.ordering_key = Some(format!("key {}", seq % 50).into());
        rig.publish(&Arc::new(row), &to);
    }
    let answers = rig.answers(10_000).await;
    assert!(answers.values().all(|outcome| *outcome == Outcome::Confirmed));
    let order = broker.order(&queue).await;
    assert_eq!(order.len(), 10_000);
    let mut last: HashMap<String, i64> = HashMap::new();
    for id in order {
        let (key, seq) = id.split_once(':').expect("our id");
        let seq: i64 = seq.parse().expect("our number");
        assert!(last.insert(key.to_owned(), seq).is_none_or(|before| before < seq), "{key}: {seq} came late or twice");
    }
    rig.nothing_more();
    rig.publisher.stop(1_000).await;
}

/// Failure 05: returns are never laid on another message.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f05_returns_are_attributed_exactly() {
    let broker = Broker::connect(&url()).await;
    let exchange = broker.exchange().await;
    let queue = broker.queue(&exchange, "good", &[]).await;
    let mut rig = Rig::up(&url(), |_| {}).await;
    let good = Arc::new(address(&exchange, "good"));
    let lost = Arc::new(address(&exchange, "lost"));
    let mut random = Random::seeded();
    let mut returned = 0;
    for round in 0..20 {
        let bad: Vec<bool> = (0..1_000).map(|_| random.below(10) == 0).collect();
        for (seq, bad) in (0..).zip(&bad) {
            let row = Arc::new(row(seq, &format!("{round}:{seq}")));
            rig.publish(&row, if *bad { &lost } else { &good });
        }
        let answers = rig.answers(1_000).await;
        for (seq, bad) in (0..).zip(&bad) {
            let unroutable = matches!(
                &answers[&seq],
                Outcome::AddressAway { scope: Scope::Address, reason: Reason::Unroutable, .. }
            );
            assert_eq!(unroutable, *bad, "round {round}, row {seq}: {:?}", answers[&seq]);
            assert_eq!(answers[&seq] == Outcome::Confirmed, !*bad, "round {round}, row {seq}");
        }
        returned += bad.iter().filter(|bad| **bad).count();
        let ids = broker.ids(&queue).await;
        assert_eq!(ids.len(), bad.iter().filter(|bad| !**bad).count());
        assert!(ids.values().all(|count| *count == 1));
    }
    assert_eq!(rig.counts.returned.load(std::sync::atomic::Ordering::SeqCst), returned);
    rig.publisher.stop(1_000).await;
}

/// A full queue that refuses: exactly the refused rows are busy, and exactly the others are there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nacks_are_exact() {
    let broker = Broker::connect(&url()).await;
    let exchange = broker.exchange().await;
    let limits =
        [("x-max-length", AMQPValue::LongLongInt(100)), ("x-overflow", AMQPValue::LongString("reject-publish".into()))];
    let queue = broker.queue(&exchange, "full", &limits).await;
    let mut rig = Rig::up(&url(), |_| {}).await;
    let full = Arc::new(address(&exchange, "full"));
    let lost = Arc::new(address(&exchange, "lost"));
    for seq in 0..400 {
        rig.publish(&Arc::new(row(seq, &seq.to_string())), if seq % 10 == 3 { &lost } else { &full });
    }
    let answers = rig.answers(400).await;
    let ids = broker.ids(&queue).await;
    for (seq, outcome) in answers {
        let there = ids.contains_key(&seq.to_string());
        match outcome {
            Outcome::Confirmed => assert!(there, "row {seq} was confirmed and is not there"),
            Outcome::Busy { reason: Reason::Nack, .. } => assert!(!there && seq % 10 != 3, "row {seq}"),
            Outcome::AddressAway { reason: Reason::Unroutable, .. } => assert!(!there && seq % 10 == 3, "row {seq}"),
            other => panic!("row {seq}: {other:?}"),
        }
    }
    assert!(ids.len() >= 100 && ids.len() < 360, "{} messages", ids.len());
    rig.publisher.stop(1_000).await;
}

/// What a consumer gets is what the mapping table says, byte for byte.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f48_messages_come_out_as_they_went_in() {
    let broker = Broker::connect(&url()).await;
    let exchange = broker.exchange().await;
    let queue = broker.queue(&exchange, "#", &[]).await;
    let mut rig = Rig::up(&url(), |_| {}).await;
    let to = address(&exchange, "ü.k");
    let number = |text: &str| HeaderValue::Number(text.to_owned());
    let mut full = row(1, "ключ:1");
    full.ordering_key = Some("customer ä".into());
    full.payload = Some(bytes::Bytes::from_static(b"\x00\xff{\"p\":\"C:\\\\temp\"}"));
    full.headers = Headers(vec![
        ("n".to_owned(), HeaderValue::Null),
        ("b".to_owned(), HeaderValue::Bool(false)),
        ("i".to_owned(), number("-9223372036854775808")),
        ("d".to_owned(), number("0.1")),
        ("t".to_owned(), HeaderValue::Text("ü\n".to_owned())),
        ("l".to_owned(), HeaderValue::List(vec![number("1"), HeaderValue::Table(vec![("x".into(), number("2"))])])),
    ]);
    assert_eq!(rig.one(full, &to).await, Outcome::Confirmed);
    let got = broker.take(&queue).await;
    let properties = &got.properties;
    assert_eq!(got.data, b"\x00\xff{\"p\":\"C:\\\\temp\"}");
    assert_eq!(got.routing_key.as_str(), "ü.k");
    assert_eq!(properties.message_id().as_ref().map(lapin::types::ShortString::as_str), Some("ключ:1"));
    assert_eq!(*properties.delivery_mode(), Some(2));
    assert_eq!(*properties.timestamp(), Some(1_700_000_000));
    let headers = properties.headers().clone().expect("headers");
    let headers = headers.inner();
    assert_eq!(headers.get("n"), Some(&AMQPValue::Void));
    assert_eq!(headers.get("b"), Some(&AMQPValue::Boolean(false)));
    assert_eq!(headers.get("i"), Some(&AMQPValue::LongLongInt(i64::MIN)));
    assert_eq!(headers.get("d"), Some(&AMQPValue::Double(0.1)));
    assert_eq!(headers.get("t"), Some(&AMQPValue::LongString("ü\n".into())));
    assert_eq!(headers.get("ordering-key"), Some(&AMQPValue::LongString("customer ä".into())));
    assert!(matches!(headers.get("l"), Some(AMQPValue::FieldArray(items)) if items.as_slice().len() == 2));
    let mut tombstone = row(2, "2");
    tombstone.payload = None;
    assert_eq!(rig.one(tombstone, &to).await, Outcome::Confirmed);
    let got = broker.take(&queue).await;
    assert!(got.data.is_empty());
    let headers = got.properties.headers().clone().expect("headers");
    assert_eq!(headers.inner().get("tombstone"), Some(&AMQPValue::Boolean(true)));
    rig.publisher.stop(1_000).await;
}

/// A row whose lease has run out never leaves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_expired_lease_is_not_sent() {
    let broker = Broker::connect(&url()).await;
    let exchange = broker.exchange().await;
    let queue = broker.queue(&exchange, "#", &[]).await;
    let mut rig = Rig::up(&url(), |_| {}).await;
    let to = Arc::new(address(&exchange, "k"));
    rig.publish_until(&Arc::new(row(1, "late")), &to, 0);
    rig.publish(&Arc::new(row(2, "in time")), &to);
    let answers = rig.answers(2).await;
    assert_eq!(answers[&1], Outcome::NotSent);
    assert_eq!(answers[&2], Outcome::Confirmed);
    assert_eq!(broker.order(&queue).await, ["in time"]);
    rig.publisher.stop(1_000).await;
}

/// Stopping twice is harmless, and a stopped publisher sends nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_publisher_answers_not_sent() {
    let mut rig = Rig::up(&url(), |_| {}).await;
    rig.publisher.stop(1_000).await;
    rig.publisher.stop(1_000).await;
    assert_eq!(rig.one(row(1, "1"), &address("amq.topic", "k")).await, Outcome::NotSent);
    assert!(!rig.publisher.link().borrow().is_up());
}
