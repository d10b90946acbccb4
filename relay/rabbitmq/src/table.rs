//! A row's headers as an AMQP field table, with the exact number of bytes that they take on the wire.
//!
//! Numbers: a whole number that fits 64 bits is a long-long-int; every other number is the nearest double, as in
//! every JSON reader. One that a double cannot hold at all (it would become infinite, or zero without being zero)
//! is refused. Text is a long string in UTF-8, `null` is void, lists and objects nest.

use lapin::types::{AMQPValue, FieldArray, FieldTable, ShortString};
use outbox_core::{HeaderValue, Headers, Outcome, Reason};

/// Deeper nesting than anybody needs; it bounds the recursion here and in consumers.
const DEPTH_MAX: usize = 32;

/// Type tag of a value.
const TAG_BYTES: usize = 1;

/// Length prefix of long strings, arrays and tables.
const LENGTH_BYTES: usize = 4;

/// A field table and its bytes, its own length prefix included.
pub(crate) struct SizedTable {
    pub(crate) table: FieldTable,
    pub(crate) bytes: usize,
}

impl SizedTable {
    pub(crate) fn empty() -> Self {
        Self { table: FieldTable::default(), bytes: LENGTH_BYTES }
    }

    /// Adds a header of the relay's own; `name` is one of ours and short.
    pub(crate) fn put(&mut self, name: &'static str, value: AMQPValue, value_bytes: usize) {
        if let Ok(key) = ShortString::try_new(name) {
            self.bytes += 1 + name.len() + TAG_BYTES + value_bytes;
            self.table.insert(key, value);
        }
    }

    pub(crate) fn put_text(&mut self, name: &'static str, text: &str) {
        self.put(name, AMQPValue::LongString(text.into()), LENGTH_BYTES + text.len());
    }
}

/// Maps headers; an error is the row's outcome and names the header, never its value.
pub(crate) fn field_table(headers: &Headers) -> Result<SizedTable, Outcome> {
    let (table, bytes) = entries(&headers.0, 0)?;
    Ok(SizedTable { table, bytes })
}

fn entries(items: &[(String, HeaderValue)], depth: usize) -> Result<(FieldTable, usize), Outcome> {
    let mut table = FieldTable::default();
    let mut bytes = LENGTH_BYTES;
    for (name, value) in items {
        let key = ShortString::try_new(name.as_str()).map_err(|_| Outcome::Impossible {
            reason: Reason::Name,
            detail: format!("a header name has {} bytes; AMQP allows 255", name.len()),
        })?;
        let (value, value_bytes) = encode(name, value, depth + 1)?;
        bytes += 1 + name.len() + TAG_BYTES + value_bytes;
        table.insert(key, value);
    }
    Ok((table, bytes))
}

fn encode(name: &str, value: &HeaderValue, depth: usize) -> Result<(AMQPValue, usize), Outcome> {
    if depth > DEPTH_MAX {
        return Err(encoding(format!("header '{name}' is nested more than {DEPTH_MAX} levels deep")));
    }
    Ok(match value {
        HeaderValue::Null => (AMQPValue::Void, 0),
        HeaderValue::Bool(flag) => (AMQPValue::Boolean(*flag), 1),
        HeaderValue::Number(text) => (number(name, text)?, 8),
        HeaderValue::Text(text) => (AMQPValue::LongString(text.as_str().into()), LENGTH_BYTES + text.len()),
        HeaderValue::List(items) => {
            let mut array = FieldArray::default();
            let mut bytes = LENGTH_BYTES;
            for item in items {
                let (value, value_bytes) = encode(name, item, depth + 1)?;
                bytes += TAG_BYTES + value_bytes;
                array.push(value);
            }
            (AMQPValue::FieldArray(array), bytes)
        }
        HeaderValue::Table(items) => {
            let (table, bytes) = entries(items, depth)?;
            (AMQPValue::FieldTable(table), bytes)
        }
    })
}

fn number(name: &str, text: &str) -> Result<AMQPValue, Outcome> {
    if let Ok(whole) = text.parse::<i64>() {
        return Ok(AMQPValue::LongLongInt(whole));
    }
    let mantissa = text.split(['e', 'E']).next().unwrap_or("");
    let vanishes = |double: f64| double == 0.0 && mantissa.contains(|c: char| ('1'..='9').contains(&c));
    match text.parse::<f64>() {
        Ok(double) if double.is_finite() && !vanishes(double) => Ok(AMQPValue::Double(double)),
        _ => Err(encoding(format!("header '{name}' holds a number that fits no AMQP type"))),
    }
}

fn encoding(detail: String) -> Outcome {
    Outcome::Impossible { reason: Reason::Encoding, detail }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(value: HeaderValue) -> Result<(AMQPValue, usize), Outcome> {
        let table = field_table(&Headers(vec![("h".to_owned(), value)]))?;
        Ok((table.table.inner().get("h").cloned().expect("inserted"), table.bytes))
    }

    fn number(text: &str) -> Option<AMQPValue> {
        one(HeaderValue::Number(text.to_owned())).ok().map(|(value, _)| value)
    }

    #[test]
    fn numbers_keep_their_value() {
        assert_eq!(number("0"), Some(AMQPValue::LongLongInt(0)));
        assert_eq!(number("9223372036854775807"), Some(AMQPValue::LongLongInt(i64::MAX)));
        assert_eq!(number("-9223372036854775808"), Some(AMQPValue::LongLongInt(i64::MIN)));
        assert_eq!(number("9223372036854775808"), Some(AMQPValue::Double(9_223_372_036_854_775_808.0)));
        assert_eq!(number("1.5"), Some(AMQPValue::Double(1.5)));
        assert_eq!(number("0.000"), Some(AMQPValue::Double(0.0)));
        assert_eq!(number("1e2"), Some(AMQPValue::Double(100.0)));
        for text in ["1e400", "-1e400", "1e-400", "NaN", "inf", "", "0x10"] {
            assert_eq!(number(text), None, "{text}");
        }
    }

    #[test]
    fn names_are_measured_in_bytes() {
        let named = |name: String| field_table(&Headers(vec![(name, HeaderValue::Null)]));
        assert!(named("x".repeat(255)).is_ok());
        assert!(named("x".repeat(256)).is_err());
        assert!(named("ä".repeat(127)).is_ok());
        assert!(named("ä".repeat(128)).is_err());
        let nested = HeaderValue::Table(vec![("x".repeat(256), HeaderValue::Null)]);
        assert!(matches!(one(nested), Err(Outcome::Impossible { reason: Reason::Name, .. })));
    }

    #[test]
    fn nesting_is_bounded() {
        let nest = |levels: usize| (0..levels).fold(HeaderValue::Null, |inner, _| HeaderValue::List(vec![inner]));
        assert!(one(nest(DEPTH_MAX - 1)).is_ok());
        assert!(matches!(one(nest(DEPTH_MAX)), Err(Outcome::Impossible { reason: Reason::Encoding, .. })));
        assert!(one(nest(1_000)).is_err());
    }

    #[test]
    fn bytes_follow_the_wire_format() {
        // 4 for the table's length, 1 + 1 for the name, 1 for the tag, then the value.
        assert_eq!(one(HeaderValue::Null).expect("fits").1, 7);
        assert_eq!(one(HeaderValue::Bool(true)).expect("fits").1, 8);
        assert_eq!(one(HeaderValue::Number("1".into())).expect("fits").1, 15);
        assert_eq!(one(HeaderValue::Text("äb".into())).expect("fits").1, 7 + 4 + 3);
        assert_eq!(one(HeaderValue::List(vec![HeaderValue::Null])).expect("fits").1, 7 + 4 + 1);
        assert_eq!(one(HeaderValue::Table(vec![("n".into(), HeaderValue::Null)])).expect("fits").1, 7 + 4 + 3);
    }
}
