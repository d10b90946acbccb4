//! Input without mercy: any headers are written, once each, and lists and tables as JSON that reads back the same.

use outbox_core::{Headers, RowId, TxId};
use proptest::prelude::*;
use rdkafka::message::Headers as _;

use super::*;

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

proptest! {
    #[test]
    fn any_headers_are_written_and_counted(
        headers in prop::collection::vec(("[a-z]{1,5}|\\PC{0,20}", json()), 0..5),
        key in prop::option::of(any::<String>()),
        created_at in any::<i64>(),
    ) {
        let row = Row {
            id: RowId { seq: 1, tx: TxId(1) },
            idempotency_key: "id".to_owned(),
            topic: "t".into(),
            ordering_key: key.map(Into::into),
            payload: None,
            content_type: "text/plain".into(),
            // A header's name ends at its first NUL in librdkafka; PostgreSQL's jsonb has none.
            headers: Headers(headers.iter().map(|(name, value)| (name.replace('\0', ""), header(value))).collect()),
            created_at: Timestamp(created_at),
            available_at: None,
            attempts: 0,
            held_since: None,
        };
        let written = super::headers(&row);
        prop_assert_eq!(written.count(), 2 + row.headers.0.len());
        let mut least = 0;
        for (at, (name, value)) in headers.iter().enumerate() {
            let header = written.get(2 + at);
            prop_assert_eq!(header.key, name.replace('\0', ""));
            least += header.key.len() + header.value.map_or(0, <[u8]>::len);
            let text = header.value.map(|value| std::str::from_utf8(value).unwrap());
            match value {
                serde_json::Value::Null => prop_assert_eq!(text, None),
                serde_json::Value::String(given) => prop_assert_eq!(text, Some(given.as_str())),
                other => {
                    let read: serde_json::Value = serde_json::from_str(text.unwrap()).unwrap();
                    prop_assert_eq!(&read, other);
                }
            }
        }
        prop_assert!(batch_bytes(&row) > least);
        prop_assert!(timestamp_ms(row.created_at, 1_700_000_000_000).is_none_or(|ms| ms > 0));
    }
}
