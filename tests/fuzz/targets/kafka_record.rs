//! Any row as a record of Kafka: every header written once and counted, lists and tables as JSON.

#![no_main]
#![allow(dead_code, reason = "the adapter's module is taken as it is, and not all of it is called here")]

#[path = "../../../relay/kafka/src/message.rs"]
mod message;

use libfuzzer_sys::fuzz_target;
use outbox_core::HeaderValue;
use rdkafka::message::Headers as _;
use rows::AnyRow;

fuzz_target!(|row: AnyRow| {
    let row = row.row();
    let written = message::headers(&row);
    let own = written.count() - row.headers.0.len();
    let mut least = row.payload.as_ref().map_or(0, |payload| payload.len());
    for (at, (name, value)) in row.headers.0.iter().enumerate() {
        let header = written.get(own + at);
        assert_eq!(header.key, name);
        least += header.key.len() + header.value.map_or(0, <[u8]>::len);
        let text = header.value.map(|value| std::str::from_utf8(value).expect("headers are UTF-8"));
        match value {
            HeaderValue::Null => assert_eq!(text, None),
            HeaderValue::Text(given) => assert_eq!(text, Some(given.as_str())),
            _ => drop(serde_json::from_str::<serde_json::Value>(text.expect("a value")).expect("JSON")),
        }
    }
    assert!(message::batch_bytes(&row) > least);
    assert!(message::timestamp_ms(row.due_at(), 1_700_000_000_000).is_none_or(|ms| ms > 0));
});
