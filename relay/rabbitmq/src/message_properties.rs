//! Input without mercy: any row becomes a message that holds all of it, or is impossible for a reason.

use bytes::Bytes;
use lapin::types::AMQPValue;
use outbox_core::{HeaderValue, Headers, RowId, Sink, Timestamp, TxId};
use proptest::prelude::*;

use super::*;

const LIMITS: Limits = Limits { frame_bytes_max: 4_096, message_bytes_max: 100 };

/// As the adapter of PostgreSQL reads them.
fn header(value: &serde_json::Value) -> HeaderValue {
    match value {
        serde_json::Value::Null => HeaderValue::Null,
        serde_json::Value::Bool(truth) => HeaderValue::Bool(*truth),
        serde_json::Value::Number(number) => HeaderValue::Number(number.to_string()),
        serde_json::Value::String(text) => HeaderValue::Text(text.clone()),
        serde_json::Value::Array(items) => HeaderValue::List(items.iter().map(header).collect()),
        serde_json::Value::Object(map) => {
            HeaderValue::Table(map.iter().map(|(name, value)| (name.clone(), header(value))).collect())
        }
    }
}

/// Any JSON, also numbers that no computer counts with.
fn json() -> impl Strategy<Value = serde_json::Value> {
    let number =
        prop_oneof![any::<i64>().prop_map(|number| number.to_string()), "-?[1-9][0-9]{0,400}(\\.[0-9]{1,40})?"];
    let leaf = prop_oneof![
        Just(serde_json::Value::Null),
        any::<bool>().prop_map(serde_json::Value::from),
        number.prop_map(|text| serde_json::from_str(&text).unwrap()),
        any::<String>().prop_map(serde_json::Value::from),
    ];
    leaf.prop_recursive(6, 40, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(serde_json::Value::from),
            prop::collection::vec(("\\PC{0,300}", inner), 0..4)
                .prop_map(|fields| fields.into_iter().collect::<serde_json::Value>()),
        ]
    })
}

prop_compose! {
    fn any_row()(
        idempotency_key in "\\PC{0,260}",
        ordering_key in prop::option::of("\\PC{0,1100}"),
        payload in prop::option::of(prop::collection::vec(any::<u8>(), 0..120)),
        content_type in "\\PC{0,260}",
        headers in prop::collection::vec(("[a-z]{1,3}|id|\\PC{0,260}", json()), 0..5),
        created_at in any::<i64>(),
        available_at in prop::option::of(any::<i64>()),
    ) -> Row {
        Row {
            id: RowId { seq: 1, tx: TxId(1) },
            idempotency_key,
            topic: "t".into(),
            ordering_key: ordering_key.map(Into::into),
            payload: payload.map(Bytes::from),
            content_type: content_type.into(),
            headers: Headers(headers.iter().map(|(name, value)| (name.clone(), header(value))).collect()),
            created_at: Timestamp(created_at),
            available_at: available_at.map(Timestamp),
            attempts: 0,
            held_since: None,
        }
    }
}

/// Nothing of the row is missing.
fn complete(row: &Row, message: &Message) -> bool {
    let headers = message.properties.headers().as_ref();
    let value = |name: &str| headers.and_then(|table| table.inner().get(name));
    message.properties.message_id().as_ref().map(ToString::to_string).as_deref() == Some(&row.idempotency_key)
        && row.headers.0.iter().all(|(name, _)| value(name).is_some())
        && row.ordering_key.is_some() == value("ordering-key").is_some()
        && (value("tombstone") == Some(&AMQPValue::Boolean(true))) == row.payload.is_none()
}

proptest! {
    #[test]
    fn any_row_becomes_a_whole_message_or_is_impossible(
        row in any_row(),
        exchange in "\\PC{0,260}|[\\x00-\\x20]{0,4}",
        routing_key in "\\PC{0,260}|[\\x00-\\x20]{0,4}",
    ) {
        let address = Address { sink: Sink::Rabbitmq, destination: exchange, routing_key };
        match map(&row, &address, LIMITS) {
            Ok(message) => {
                prop_assert!(complete(&row, &message));
                prop_assert!(body(&row).len() <= LIMITS.message_bytes_max);
                prop_assert!(row.headers.reserved().is_none());
            }
            Err(Outcome::Impossible { detail, .. }) => prop_assert!(!detail.is_empty() && detail.len() < 1_000),
            Err(other) => prop_assert!(false, "{:?}", other),
        }
    }
}
