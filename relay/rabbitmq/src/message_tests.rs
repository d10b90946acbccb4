//! The mapping of design section 9, and each check at its border.

use bytes::Bytes;
use outbox_core::{HeaderValue, Headers, RowId, Sink, Timestamp, TxId};

use super::*;

const LIMITS: Limits = Limits { frame_bytes_max: 131_072, message_bytes_max: 1_000 };

fn row() -> Row {
    Row {
        id: RowId { seq: 1, tx: TxId(1) },
        idempotency_key: "order:1".to_owned(),
        topic: "orders".into(),
        ordering_key: None,
        payload: Some(Bytes::from_static(b"{}")),
        content_type: "application/json".into(),
        headers: Headers::default(),
        created_at: Timestamp(1_700_000_000_999_999),
        available_at: None,
        attempts: 0,
        held_since: None,
    }
}

fn address(exchange: &str, routing_key: &str) -> Address {
    Address { sink: Sink::Rabbitmq, destination: exchange.to_owned(), routing_key: routing_key.to_owned() }
}

fn mapped(row: &Row) -> Result<Message, Outcome> {
    map(row, &address("amq.topic", "orders"), LIMITS)
}

fn reason(result: Result<Message, Outcome>) -> Option<Reason> {
    match result {
        Err(Outcome::Impossible { reason, .. }) => Some(reason),
        _ => None,
    }
}

fn with(change: impl FnOnce(&mut Row)) -> Row {
    let mut row = row();
    change(&mut row);
    row
}

fn text(value: &ShortString) -> &str {
    value.as_str()
}

#[test]
fn a_row_becomes_the_message_of_the_table() {
    let row = with(|r| {
        r.ordering_key = Some("customer ä".into());
        r.headers = Headers(vec![("traceparent".to_owned(), HeaderValue::Text("00-a-b-01".to_owned()))]);
    });
    let message = mapped(&row).expect("maps");
    let properties = &message.properties;
    assert_eq!(text(&message.exchange), "amq.topic");
    assert_eq!(text(&message.routing_key), "orders");
    assert_eq!(properties.message_id().as_ref().map(text), Some("order:1"));
    assert_eq!(properties.content_type().as_ref().map(text), Some("application/json"));
    assert_eq!(properties.app_id().as_ref().map(text), Some("outbox-relay"));
    assert_eq!(*properties.delivery_mode(), Some(2));
    assert_eq!(*properties.timestamp(), Some(1_700_000_000));
    let headers = properties.headers().clone().expect("set");
    assert_eq!(headers.inner().get("ordering-key"), Some(&AMQPValue::LongString("customer ä".into())));
    assert_eq!(headers.inner().get("traceparent"), Some(&AMQPValue::LongString("00-a-b-01".into())));
    assert!(!headers.contains_key("tombstone"));
    assert_eq!(body(&row), b"{}");
}

#[test]
fn a_tombstone_is_not_an_empty_payload() {
    let tombstone = with(|r| r.payload = None);
    let empty = with(|r| r.payload = Some(Bytes::new()));
    let marked =
        |row: &Row| mapped(row).expect("maps").properties.headers().clone().expect("set").contains_key("tombstone");
    assert!(marked(&tombstone));
    assert!(!marked(&empty));
    assert!(body(&tombstone).is_empty() && body(&empty).is_empty());
}

#[test]
fn the_timestamp_is_the_later_one_and_none_before_the_epoch() {
    let at = |row: &Row| *mapped(row).expect("maps").properties.timestamp();
    assert_eq!(at(&with(|r| r.available_at = Some(Timestamp(1_800_000_000_000_000)))), Some(1_800_000_000));
    assert_eq!(at(&with(|r| r.available_at = Some(Timestamp(0)))), Some(1_700_000_000));
    assert_eq!(at(&with(|r| r.created_at = Timestamp(-1))), None);
    assert_eq!(at(&with(|r| r.created_at = Timestamp(0))), Some(0));
}

#[test]
fn names_are_checked_in_bytes_at_their_border() {
    for (unit, fits, breaks) in [("x", 255, 256), ("ä", 127, 128), ("€", 85, 86), ("🦀", 63, 64)] {
        for (count, ok) in [(fits, true), (breaks, false)] {
            let name = unit.repeat(count);
            let expected = (!ok).then_some(Reason::Name);
            assert_eq!(reason(mapped(&with(|r| r.idempotency_key = name.clone()))), expected, "id {count} {unit}");
            assert_eq!(reason(map(&row(), &address(&name, "k"), LIMITS)), expected, "exchange {count} {unit}");
            assert_eq!(reason(map(&row(), &address("e", &name), LIMITS)), expected, "key {count} {unit}");
            let encoding = (!ok).then_some(Reason::Encoding);
            assert_eq!(reason(mapped(&with(|r| r.content_type = name.into()))), encoding, "type {count} {unit}");
        }
    }
    assert_eq!(reason(mapped(&with(|r| r.idempotency_key.clear()))), Some(Reason::Name));
}

#[test]
fn odd_names_are_refused_only_where_the_broker_cannot_have_them() {
    for exchange in ["a\nb", "a\0", "\u{7f}"] {
        assert_eq!(reason(map(&row(), &address(exchange, "k"), LIMITS)), Some(Reason::Name), "{exchange:?}");
    }
    assert_eq!(reason(map(&row(), &address("e", "a\0b"), LIMITS)), Some(Reason::Name));
    for (exchange, key) in [("", "queue"), ("amq.topic", ""), ("a b/c", "a b/ü.#"), ("e", "line\nbreak")] {
        assert!(map(&row(), &address(exchange, key), LIMITS).is_ok(), "{exchange:?} {key:?}");
    }
}

#[test]
fn our_header_names_are_reserved() {
    for name in ["id", "content-type", "ordering-key", "tombstone"] {
        let row = with(|r| r.headers = Headers(vec![(name.to_owned(), HeaderValue::Null)]));
        assert_eq!(reason(mapped(&row)), Some(Reason::ReservedHeader), "{name}");
    }
    assert!(mapped(&with(|r| r.headers = Headers(vec![("ID".to_owned(), HeaderValue::Null)]))).is_ok());
}

#[test]
fn sizes_are_checked_at_their_border() {
    let sized = |bytes: usize| with(|r| r.payload = Some(Bytes::from(vec![b'x'; bytes])));
    assert!(mapped(&sized(1_000)).is_ok());
    assert_eq!(reason(mapped(&sized(1_001))), Some(Reason::Size));
    let header =
        |bytes: usize| with(|r| r.headers = Headers(vec![("h".to_owned(), HeaderValue::Text("x".repeat(bytes)))]));
    assert!(mapped(&header(130_000)).is_ok());
    for bytes in [131_000, 140_000, 5_000_000] {
        assert_eq!(reason(mapped(&header(bytes))), Some(Reason::Size), "{bytes}");
    }
}

#[test]
fn mapping_twice_gives_the_same_message() {
    let row = with(|r| {
        let value = |n: &str| HeaderValue::Number(n.to_owned());
        r.headers = Headers(vec![("b".into(), value("1e3")), ("a".into(), HeaderValue::List(vec![value("7")]))]);
    });
    assert_eq!(mapped(&row).expect("maps").properties, mapped(&row).expect("maps").properties);
}
