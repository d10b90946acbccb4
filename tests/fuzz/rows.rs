//! Any row that PostgreSQL could give, made of a fuzzer's bytes.

use arbitrary::Arbitrary;
use bytes::Bytes;
use outbox_core::{HeaderValue, Headers, Row, RowId, Timestamp, TxId};

/// What serde_json reads, less the table of all headers.
const DEPTH_MAX: usize = 120;

/// A header's value. Numbers come as digits, as `jsonb` prints them.
#[derive(Arbitrary, Debug)]
pub enum AnyValue {
    Null,
    Bool(bool),
    Whole(i64),
    Long { digits: u64, times: u8, fraction: Option<u64> },
    Text(String),
    List(Vec<AnyValue>),
    Table(Vec<(String, AnyValue)>),
}

/// A row's own words; what is fixed for every row is left out.
#[derive(Arbitrary, Debug)]
pub struct AnyRow {
    pub idempotency_key: String,
    pub topic: String,
    pub ordering_key: Option<String>,
    pub payload: Option<Vec<u8>>,
    pub content_type: String,
    pub headers: Vec<(String, AnyValue)>,
    pub created_at: i64,
    pub available_at: Option<i64>,
}

impl AnyRow {
    /// The row. Text in PostgreSQL has no NUL, so it is left out; deeper headers are parked before they are mapped.
    pub fn row(self) -> Row {
        Row {
            id: RowId { seq: 1, tx: TxId(1) },
            idempotency_key: text(self.idempotency_key),
            topic: text(self.topic).into(),
            ordering_key: self.ordering_key.map(|key| text(key).into()),
            payload: self.payload.map(Bytes::from),
            content_type: text(self.content_type).into(),
            headers: Headers(table(self.headers, 0)),
            created_at: Timestamp(self.created_at),
            available_at: self.available_at.map(Timestamp),
            attempts: 0,
            held_since: None,
        }
    }
}

fn text(text: String) -> String {
    text.replace('\0', "")
}

fn table(fields: Vec<(String, AnyValue)>, depth: usize) -> Vec<(String, HeaderValue)> {
    fields.into_iter().map(|(name, value)| (text(name), value.header(depth))).collect()
}

impl AnyValue {
    fn header(self, depth: usize) -> HeaderValue {
        match self {
            Self::List(_) | Self::Table(_) if depth == DEPTH_MAX => HeaderValue::Null,
            Self::Null => HeaderValue::Null,
            Self::Bool(truth) => HeaderValue::Bool(truth),
            Self::Whole(number) => HeaderValue::Number(number.to_string()),
            Self::Long { digits, times, fraction } => {
                let whole = format!("1{}", digits.to_string().repeat(usize::from(times)));
                HeaderValue::Number(fraction.map_or_else(|| whole.clone(), |fraction| format!("{whole}.{fraction}")))
            }
            Self::Text(given) => HeaderValue::Text(text(given)),
            Self::List(items) => HeaderValue::List(items.into_iter().map(|item| item.header(depth + 1)).collect()),
            Self::Table(fields) => HeaderValue::Table(table(fields, depth + 1)),
        }
    }
}
