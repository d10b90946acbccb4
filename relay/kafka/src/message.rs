//! How a row is written as a Kafka record, and how large it becomes.
//!
//! The mapping is part of the product's contract: the same row always gives the same bytes. Sizes are those of
//! record format 2, without compression, and exact for a batch of one record.

use outbox_core::{HeaderValue, Row, Timestamp};
use rdkafka::message::{Header, OwnedHeaders};

/// What the broker adds to a batch, whatever it holds.
const BATCH_OVERHEAD_BYTES: usize = 61;
/// By default a broker refuses records that lie further ahead; such a row gets the time of its sending.
const AHEAD_MAX_MS: i64 = 3_600_000;

/// The record's headers: ours first, then the row's in their order.
pub(crate) fn headers(row: &Row) -> OwnedHeaders {
    let mut headers = OwnedHeaders::new_with_capacity(2 + row.headers.0.len())
        .insert(Header { key: "id", value: Some(row.idempotency_key.as_bytes()) })
        .insert(Header { key: "content-type", value: Some(row.content_type.as_bytes()) });
    for (name, value) in &row.headers.0 {
        headers = with_text(value, |text| headers.insert(Header { key: name, value: text.map(str::as_bytes) }));
    }
    headers
}

/// Bytes of a batch that holds this row's record alone.
pub(crate) fn batch_bytes(row: &Row) -> usize {
    let key = row.ordering_key.as_ref().map(|key| key.len());
    let value = row.payload.as_ref().map(|payload| payload.len());
    let mut body = 3 + field(key) + field(value) + varint(2 + row.headers.0.len());
    body += field(Some("id".len())) + field(Some(row.idempotency_key.len()));
    body += field(Some("content-type".len())) + field(Some(row.content_type.len()));
    for (name, value) in &row.headers.0 {
        body += field(Some(name.len())) + field(with_text(value, |text| text.map(str::len)));
    }
    BATCH_OVERHEAD_BYTES + varint(body) + body
}

/// The record's timestamp in milliseconds; `None` leaves it to the moment of sending (a row that lies more than
/// an hour ahead of `now_ms`, or not after 1970, which Kafka cannot write).
pub(crate) fn timestamp_ms(due_at: Timestamp, now_ms: i64) -> Option<i64> {
    let due_ms = due_at.0.div_euclid(1_000);
    (due_ms > 0 && due_ms <= now_ms.saturating_add(AHEAD_MAX_MS)).then_some(due_ms)
}

/// Strings as they are, numbers as their decimal text, null as no value, everything else as JSON.
fn with_text<T>(value: &HeaderValue, use_text: impl FnOnce(Option<&str>) -> T) -> T {
    match value {
        HeaderValue::Null => use_text(None),
        HeaderValue::Text(text) | HeaderValue::Number(text) => use_text(Some(text)),
        HeaderValue::Bool(true) => use_text(Some("true")),
        HeaderValue::Bool(false) => use_text(Some("false")),
        HeaderValue::List(_) | HeaderValue::Table(_) => {
            let mut text = String::new();
            json(value, &mut text);
            use_text(Some(&text))
        }
    }
}

/// Written by hand so that names keep their order and numbers their digits.
fn json(value: &HeaderValue, into: &mut String) {
    match value {
        HeaderValue::Null => into.push_str("null"),
        HeaderValue::Bool(truth) => into.push_str(if *truth { "true" } else { "false" }),
        HeaderValue::Number(text) => into.push_str(text),
        HeaderValue::Text(text) => quoted(text, into),
        HeaderValue::List(items) => {
            into.push('[');
            for (at, item) in items.iter().enumerate() {
                into.push_str(if at == 0 { "" } else { "," });
                json(item, into);
            }
            into.push(']');
        }
        HeaderValue::Table(items) => {
            into.push('{');
            for (at, (name, item)) in items.iter().enumerate() {
                into.push_str(if at == 0 { "" } else { "," });
                quoted(name, into);
                into.push(':');
                json(item, into);
            }
            into.push('}');
        }
    }
}

fn quoted(text: &str, into: &mut String) {
    into.push_str(&serde_json::Value::from(text).to_string());
}

/// A length and its bytes; no value is a length of -1.
fn field(len: Option<usize>) -> usize {
    len.map_or(1, |len| varint(len) + len)
}

/// Bytes of a zigzag varint of a number that is not negative.
fn varint(number: usize) -> usize {
    let mut rest = number << 1;
    let mut bytes = 1;
    while rest >= 0x80 {
        rest >>= 7;
        bytes += 1;
    }
    bytes
}

#[cfg(test)]
#[path = "message_properties.rs"]
mod properties;
#[cfg(test)]
mod tests {
    use outbox_core::{Headers, RowId, TxId};
    use rdkafka::message::Headers as _;

    use super::*;

    fn row(headers: Vec<(String, HeaderValue)>) -> Row {
        Row {
            id: RowId { seq: 1, tx: TxId(1) },
            idempotency_key: "order:1".to_owned(),
            topic: "t".into(),
            ordering_key: None,
            payload: None,
            content_type: "application/json".into(),
            headers: Headers(headers),
            created_at: Timestamp(0),
            available_at: None,
            attempts: 0,
            held_since: None,
        }
    }

    #[test]
    fn headers_are_written_by_the_rule() {
        let table = HeaderValue::Table(vec![
            ("z".to_owned(), HeaderValue::List(vec![HeaderValue::Null, HeaderValue::Number("1.10".to_owned())])),
            ("b".to_owned(), HeaderValue::Text("\"ü".to_owned())),
        ]);
        let row = row(vec![
            ("text".to_owned(), HeaderValue::Text("ä \n".to_owned())),
            ("empty".to_owned(), HeaderValue::Text(String::new())),
            ("number".to_owned(), HeaderValue::Number("12345678901234567890.50".to_owned())),
            ("yes".to_owned(), HeaderValue::Bool(true)),
            ("null".to_owned(), HeaderValue::Null),
            ("table".to_owned(), table),
        ]);
        let written = headers(&row);
        let expected: [(&str, Option<&str>); 8] = [
            ("id", Some("order:1")),
            ("content-type", Some("application/json")),
            ("text", Some("ä \n")),
            ("empty", Some("")),
            ("number", Some("12345678901234567890.50")),
            ("yes", Some("true")),
            ("null", None),
            ("table", Some(r#"{"z":[null,1.10],"b":"\"ü"}"#)),
        ];
        let read: Vec<_> = written.as_borrowed().iter().map(|header| (header.key, header.value)).collect();
        let expected: Vec<_> = expected.iter().map(|(key, value)| (*key, value.map(str::as_bytes))).collect();
        assert_eq!(read, expected);
    }

    #[test]
    fn timestamps_far_ahead_or_before_1970_are_left_out() {
        let now_ms = 1_700_000_000_000;
        assert_eq!(timestamp_ms(Timestamp(1_234_999), now_ms), Some(1_234));
        assert_eq!(timestamp_ms(Timestamp((now_ms + AHEAD_MAX_MS) * 1_000), now_ms), Some(now_ms + AHEAD_MAX_MS));
        assert_eq!(timestamp_ms(Timestamp((now_ms + AHEAD_MAX_MS + 1) * 1_000), now_ms), None);
        assert_eq!(timestamp_ms(Timestamp(-1), now_ms), None);
        assert_eq!(timestamp_ms(Timestamp(0), now_ms), None);
    }

    #[test]
    fn varints_grow_where_zigzag_says() {
        for (number, bytes) in [(0, 1), (63, 1), (64, 2), (8_191, 2), (8_192, 3), (1_048_575, 3), (1_048_576, 4)] {
            assert_eq!(varint(number), bytes, "{number}");
        }
    }
}
