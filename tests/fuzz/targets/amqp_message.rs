//! Any row to any address of RabbitMQ: a message that holds all of the row and fits the broker's frame, or a reason.

#![no_main]
#![allow(dead_code, reason = "the adapter's modules are taken as they are, and not all of them is called here")]

#[path = "../../../relay/rabbitmq/src/message.rs"]
mod message;
#[path = "../../../relay/rabbitmq/src/table.rs"]
mod table;

use arbitrary::Arbitrary;
use lapin::types::AMQPValue;
use libfuzzer_sys::fuzz_target;
use message::Limits;
use outbox_core::{Address, Outcome, Sink};
use rows::AnyRow;

#[derive(Arbitrary, Debug)]
struct Input {
    exchange: String,
    routing_key: String,
    frame_bytes_max: u16,
    message_bytes_max: u16,
    row: AnyRow,
}

fuzz_target!(|input: Input| {
    let row = input.row.row();
    // RabbitMQ refuses a frame_max below 4,096.
    let limits = Limits {
        frame_bytes_max: usize::from(input.frame_bytes_max).max(4_096),
        message_bytes_max: usize::from(input.message_bytes_max),
    };
    let address = Address { sink: Sink::Rabbitmq, destination: input.exchange, routing_key: input.routing_key };
    match message::map(&row, &address, limits) {
        Ok(message) => {
            let headers = message.properties.headers().as_ref();
            let value = |name: &str| headers.and_then(|table| table.inner().get(name));
            let id = message.properties.message_id().as_ref().map(ToString::to_string);
            assert_eq!(id.as_deref(), Some(row.idempotency_key.as_str()));
            assert!(row.headers.0.iter().all(|(name, _)| value(name).is_some()));
            assert_eq!(row.ordering_key.is_some(), value("ordering-key").is_some());
            assert_eq!(value("tombstone") == Some(&AMQPValue::Boolean(true)), row.payload.is_none());
            assert!(message::body(&row).len() <= limits.message_bytes_max);
            assert!(header_frame_bytes(&message) <= limits.frame_bytes_max);
        }
        Err(Outcome::Impossible { detail, .. }) => assert!(!detail.is_empty() && detail.len() < 1_000),
        Err(other) => panic!("{other:?}"),
    }
});

/// The content header as lapin writes it: frame type, channel, size and end mark (8), class, weight and body size
/// (12), and the properties.
fn header_frame_bytes(message: &message::Message) -> usize {
    let written = amq_protocol::protocol::basic::gen_properties(&message.properties);
    cookie_factory::gen_simple(|context| written(context), Vec::new()).expect("properties are written").len() + 20
}
