//! A row as an AMQP message, and every check that can be made before it is sent.
//!
//! The mapping is a pure function of row and address: the same row gives the same bytes at every publication.
//! What a broker would answer with a closed channel or connection (long names, large headers, large bodies) is
//! found here, so that it costs no neighbour anything. The body is not copied; it is borrowed from the row.

use lapin::BasicProperties;
use lapin::types::{AMQPValue, ShortString};
use outbox_core::{Address, Outcome, Reason, Row};

use crate::table::{SizedTable, field_table};

/// Who published, for consumers and operators.
const APP_ID: &str = "outbox-relay";

/// The broker writes it to disk.
const PERSISTENT: u8 = 2;

/// What a content header takes beside its properties: frame type, channel and size (7), end mark (1), class and
/// weight (4), body size (8), property flags (2).
const HEADER_FRAME_BYTES: usize = 22;

/// Kept free in a content header's frame, so that no broker's reading of the limit matters.
const FRAME_MARGIN_BYTES: usize = 64;

/// What the broker takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) frame_bytes_max: usize,
    pub(crate) message_bytes_max: usize,
}

/// Everything but the body, ready for one `basic.publish`.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) exchange: ShortString,
    pub(crate) routing_key: ShortString,
    pub(crate) properties: BasicProperties,
}

/// The body: the payload's exact bytes, none for a tombstone.
pub(crate) fn body(row: &Row) -> &[u8] {
    row.payload.as_deref().unwrap_or(&[])
}

/// Maps a row; an error is its outcome.
pub(crate) fn map(row: &Row, address: &Address, limits: Limits) -> Result<Message, Outcome> {
    let exchange = exchange_name(&address.destination)?;
    let routing_key = routing_key(&address.routing_key)?;
    let message_id = message_id(&row.idempotency_key)?;
    let content_type = ShortString::try_new(&*row.content_type).map_err(|_| {
        let bytes = row.content_type.len();
        impossible(Reason::Encoding, format!("the content type has {bytes} bytes; AMQP allows 255"))
    })?;
    if let Some(name) = row.headers.reserved() {
        return Err(impossible(Reason::ReservedHeader, format!("the header name '{name}' belongs to the relay")));
    }
    let body_bytes = body(row).len();
    if body_bytes > limits.message_bytes_max {
        return Err(too_large(body_bytes, limits.message_bytes_max));
    }
    let headers = headers(row)?;
    let mut property_bytes = headers.bytes + 3 + row.idempotency_key.len() + row.content_type.len() + APP_ID.len();
    let mut properties = BasicProperties::default()
        .with_message_id(message_id)
        .with_content_type(content_type)
        .with_app_id(ShortString::try_new(APP_ID).unwrap_or_default())
        .with_delivery_mode(PERSISTENT)
        .with_headers(headers.table);
    property_bytes += 1;
    // Before the epoch there is no AMQP timestamp; such a row goes without one.
    if let Ok(micros) = u64::try_from(row.due_at().0) {
        properties = properties.with_timestamp(micros / 1_000_000);
        property_bytes += 8;
    }
    check_frame(property_bytes, limits)?;
    Ok(Message { exchange, routing_key, properties })
}

fn headers(row: &Row) -> Result<SizedTable, Outcome> {
    let mut headers = if row.headers.0.is_empty() { SizedTable::empty() } else { field_table(&row.headers)? };
    if let Some(key) = &row.ordering_key {
        headers.put_text("ordering-key", key);
    }
    if row.payload.is_none() {
        headers.put("tombstone", AMQPValue::Boolean(true), 1);
    }
    Ok(headers)
}

fn check_frame(property_bytes: usize, limits: Limits) -> Result<(), Outcome> {
    let frame_bytes = property_bytes + HEADER_FRAME_BYTES;
    let most = limits.frame_bytes_max.saturating_sub(FRAME_MARGIN_BYTES);
    if frame_bytes > most {
        return Err(impossible(
            Reason::Size,
            format!("headers and properties take {frame_bytes} bytes; the broker's frame_max leaves {most}"),
        ));
    }
    Ok(())
}

/// The broker's own refusal, or ours before it.
pub(crate) fn too_large(body_bytes: usize, most: usize) -> Outcome {
    impossible(Reason::Size, format!("the payload has {body_bytes} bytes; the broker takes {most} (max_message_size)"))
}

/// Control characters are refused because the broker strips some of them from the names it looks up, but not from
/// those it publishes to: such an exchange would be found and then missing.
fn exchange_name(name: &str) -> Result<ShortString, Outcome> {
    if name.chars().any(char::is_control) {
        return Err(impossible(Reason::Name, "the exchange name has a control character".to_owned()));
    }
    short("exchange name", name)
}

fn routing_key(key: &str) -> Result<ShortString, Outcome> {
    if key.contains('\0') {
        return Err(impossible(Reason::Name, "the routing key has a NUL character".to_owned()));
    }
    short("routing key", key)
}

fn message_id(key: &str) -> Result<ShortString, Outcome> {
    if key.is_empty() {
        return Err(impossible(Reason::Name, "the idempotency key is empty".to_owned()));
    }
    short("idempotency key", key)
}

fn short(what: &str, text: &str) -> Result<ShortString, Outcome> {
    ShortString::try_new(text)
        .map_err(|_| impossible(Reason::Name, format!("the {what} has {} bytes; AMQP allows 255", text.len())))
}

fn impossible(reason: Reason, detail: String) -> Outcome {
    Outcome::Impossible { reason, detail }
}

#[cfg(test)]
#[path = "message_properties.rs"]
mod properties;
#[cfg(test)]
#[path = "message_tests.rs"]
mod tests;
