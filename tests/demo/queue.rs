//! One way to read for both brokers.

use std::time::Duration;

use anyhow::{Context, Result};
use outbox_tests::{kafka, rabbit};

pub enum Queue {
    Rabbitmq(Box<rabbit::Reader>),
    Kafka(kafka::Reader),
}

/// A message as the consumer needs it.
pub struct Message {
    pub id: String,
    pub key: Option<String>,
    pub body: Vec<u8>,
}

impl Queue {
    /// The next message, or `None` when none came `within`.
    pub async fn next(&mut self, within: Duration) -> Result<Option<Message>> {
        match self {
            Self::Rabbitmq(reader) => {
                let Some(received) = reader.next(within).await? else { return Ok(None) };
                let key = received.header_text("ordering-key");
                let id = received.message_id.context("a message without message_id")?;
                Ok(Some(Message { id, key, body: received.body }))
            }
            Self::Kafka(reader) => {
                let Some(received) = reader.next(within).await? else { return Ok(None) };
                let id = received.id().context("a record without its header id")?;
                let key = received.key.map(String::from_utf8).transpose()?;
                Ok(Some(Message { id, key, body: received.value.unwrap_or_default() }))
            }
        }
    }
}
