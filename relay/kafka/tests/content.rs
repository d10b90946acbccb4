//! What a row looks like as a record.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use outbox_core::{Clock, HeaderValue, Headers, Outcome, Reason, Row, Timestamp};
use outbox_kafka::KafkaConfig;
use rdkafka::message::{Message, Timestamp as RecordTime};

use crate::kit::{self, Bed};

fn all_kinds(seq: i64) -> Headers {
    let text = |text: &str| HeaderValue::Text(text.to_owned());
    let number = |text: &str| HeaderValue::Number(text.to_owned());
    let table = vec![("z".to_owned(), number("1.50")), ("a".to_owned(), text("\"ü\"\n"))];
    Headers(vec![
        ("traceparent".to_owned(), text("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")),
        ("tracestate".to_owned(), text("a=1,b=2 ,  c=")),
        ("text".to_owned(), text("straße 🦀")),
        ("empty".to_owned(), text("")),
        ("whole".to_owned(), number(&seq.to_string())),
        ("long".to_owned(), number("123456789012345678901234567890.0123456789")),
        ("yes".to_owned(), HeaderValue::Bool(true)),
        ("no".to_owned(), HeaderValue::Bool(false)),
        ("null".to_owned(), HeaderValue::Null),
        ("list".to_owned(), HeaderValue::List(vec![number("1"), text("two"), HeaderValue::Null])),
        ("table".to_owned(), HeaderValue::Table(table)),
    ])
}

fn expected_kinds(seq: i64) -> Vec<(&'static str, Option<String>)> {
    let some = |text: &str| Some(text.to_owned());
    vec![
        ("traceparent", some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")),
        ("tracestate", some("a=1,b=2 ,  c=")),
        ("text", some("straße 🦀")),
        ("empty", some("")),
        ("whole", Some(seq.to_string())),
        ("long", some("123456789012345678901234567890.0123456789")),
        ("yes", some("true")),
        ("no", some("false")),
        ("null", None),
        ("list", some(r#"[1,"two",null]"#)),
        ("table", some(r#"{"z":1.50,"a":"\"ü\"\n"}"#)),
    ]
}

/// Sizes whose logarithms are spread evenly from nothing to a megabyte.
fn random_rows(topic: &str, count: i64, random: &mut fastrand::Rng) -> Vec<Arc<Row>> {
    let mut rows = Vec::new();
    for seq in 1..=count {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small and positive")]
        let size = (1_000_000_f64.powf(random.f64()) - 1.0) as usize;
        let payload: Vec<u8> = std::iter::repeat_with(|| random.u8(..)).take(size).collect();
        let key = format!("key-{}", random.u32(..200));
        let mut row = kit::row(seq, topic, Some(&key), None);
        row.payload = Some(Bytes::from(payload));
        row.headers = all_kinds(seq);
        rows.push(Arc::new(row));
    }
    rows
}

#[tokio::test(flavor = "multi_thread")]
async fn f48_ten_thousand_rows_arrive_once_byte_for_byte_in_order() {
    let Some(brokers) = kit::brokers() else { return };
    let topic = kit::unique("content");
    kit::create_topic(&brokers, &topic, 3, &[]).await;
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    // 144 MB are in flight on average: a busy machine's disk may need its time.
    let mut bed = Bed::up(KafkaConfig { confirm_timeout_ms: 170_000, ..KafkaConfig::new(&brokers) }).await;
    let mut all: HashMap<i64, Arc<Row>> = HashMap::new();
    let rows = random_rows(&topic, 10_000, &mut random);
    kit::all_confirmed(&bed.publish_all(&rows).await);
    all.extend(rows.iter().map(|row| (row.id.seq, Arc::clone(row))));
    let messages = kit::read(&brokers, &topic);
    kit::arrived_once_in_order(&messages, &rows);
    for message in &messages {
        let row = &all[&kit::seq(message)];
        assert!(message.payload() == row.payload.as_deref(), "payload of row {}", row.id.seq);
        assert_eq!(message.key(), row.ordering_key.as_ref().map(|key| key.as_bytes()));
        assert_eq!(message.timestamp(), RecordTime::CreateTime(row.created_at.0 / 1_000));
        assert_eq!(kit::header(message, "content-type"), Some(Some(b"application/json".as_slice())));
        for (name, value) in expected_kinds(row.id.seq) {
            assert_eq!(kit::header(message, name), Some(value.as_ref().map(String::as_bytes)), "header {name}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn f47_null_and_empty_payloads_and_keys_stay_apart() {
    let Some(brokers) = kit::brokers() else { return };
    let topic = kit::unique("null");
    kit::create_topic(&brokers, &topic, 1, &[]).await;
    let payloads: [Option<&[u8]>; 4] = [None, Some(b""), Some(b"null"), Some(b"{}")];
    let keys = [None, Some(""), Some("k")];
    let mut rows = Vec::new();
    for payload in payloads {
        for key in keys {
            let seq = i64::try_from(rows.len()).unwrap();
            rows.push(Arc::new(kit::row(seq, &topic, key, payload)));
        }
    }
    let mut bed = Bed::up(KafkaConfig::new(&brokers)).await;
    kit::all_confirmed(&bed.publish_all(&rows).await);
    let messages = kit::read(&brokers, &topic);
    assert_eq!(messages.len(), rows.len());
    for message in &messages {
        let row = &rows[usize::try_from(kit::seq(message)).unwrap()];
        assert_eq!(message.payload(), row.payload.as_deref());
        assert_eq!(message.key(), row.ordering_key.as_ref().map(|key| key.as_bytes()));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn reserved_headers_and_impossible_names_never_leave() {
    let Some(brokers) = kit::brokers() else { return };
    let topic = kit::unique("reserved");
    kit::create_topic(&brokers, &topic, 1, &[]).await;
    let mut rows = Vec::new();
    for name in ["id", "content-type", "ordering-key", "tombstone"] {
        let mut row = kit::row(i64::try_from(rows.len()).unwrap(), &topic, None, Some(b"x"));
        row.headers = Headers(vec![(name.to_owned(), HeaderValue::Text("mine".to_owned()))]);
        rows.push(Arc::new(row));
    }
    let reserved = rows.len();
    let long = "a".repeat(250);
    for name in ["", ".", "..", "a b", "a\0b", "a/b", long.as_str()] {
        rows.push(Arc::new(kit::row(i64::try_from(rows.len()).unwrap(), name, None, Some(b"x"))));
    }
    rows.push(Arc::new(kit::row(i64::try_from(rows.len()).unwrap(), &topic, None, Some(b"good"))));
    let mut bed = Bed::up(KafkaConfig::new(&brokers)).await;
    let outcomes = bed.publish_all(&rows).await;
    for (at, row) in rows.iter().enumerate() {
        let outcome = &outcomes[&row.id.seq];
        if at < reserved {
            assert!(matches!(outcome, Outcome::Impossible { reason: Reason::ReservedHeader, .. }), "{outcome:?}");
        } else if at + 1 < rows.len() {
            assert!(matches!(outcome, Outcome::Impossible { reason: Reason::Name, .. }), "{at}: {outcome:?}");
        } else {
            assert_eq!(*outcome, Outcome::Confirmed);
        }
    }
    assert_eq!(kit::read(&brokers, &topic).len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_far_ahead_is_taken_with_the_time_of_its_sending() {
    let Some(brokers) = kit::brokers() else { return };
    let topic = kit::unique("ahead");
    kit::create_topic(&brokers, &topic, 1, &[]).await;
    let mut far = kit::row(1, &topic, None, Some(b"x"));
    far.available_at = Some(Timestamp(4_000_000_000_000_000));
    let mut before = kit::row(2, &topic, None, Some(b"x"));
    before.created_at = Timestamp(-5);
    let mut bed = Bed::up(KafkaConfig::new(&brokers)).await;
    kit::all_confirmed(&bed.publish_all(&[Arc::new(far), Arc::new(before)]).await);
    for message in kit::read(&brokers, &topic) {
        let at = message.timestamp().to_millis().unwrap();
        assert!((1_600_000_000_000..4_000_000_000_000).contains(&at), "{at}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_whose_lease_ran_out_never_leaves() {
    let Some(brokers) = kit::brokers() else { return };
    let topic = kit::unique("lease");
    kit::create_topic(&brokers, &topic, 1, &[]).await;
    let mut bed = Bed::up(KafkaConfig::new(&brokers)).await;
    let late = Arc::new(kit::row(1, &topic, None, Some(b"late")));
    bed.publish_until(&late, outbox_core::Millis(Clock.now().0 - 1));
    assert_eq!(bed.answer().await, (1, Outcome::NotSent));
    kit::all_confirmed(&bed.publish_all(&[Arc::new(kit::row(2, &topic, None, Some(b"good")))]).await);
    assert_eq!(kit::read(&brokers, &topic).len(), 1);
}
