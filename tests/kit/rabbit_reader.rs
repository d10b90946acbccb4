//! Reading one queue in the order in which messages arrive.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use futures_util::StreamExt;
use lapin::options::{BasicAckOptions, BasicConsumeOptions, BasicQosOptions};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{Channel, Consumer};

use crate::ledger::Arrival;

/// One message as it arrived.
#[derive(Clone, Debug)]
pub struct Received {
    pub message_id: Option<String>,
    pub body: Vec<u8>,
    pub headers: FieldTable,
    /// Seconds since 1970.
    pub timestamp: Option<u64>,
    pub content_type: Option<String>,
    pub app_id: Option<String>,
    /// 2 is persistent.
    pub delivery_mode: Option<u8>,
    pub exchange: String,
    pub routing_key: String,
    pub redelivered: bool,
}

impl Received {
    /// A header's value as it came.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&AMQPValue> {
        self.headers.inner().get(name)
    }

    /// A header that holds text.
    #[must_use]
    pub fn header_text(&self, name: &str) -> Option<String> {
        match self.header(name)? {
            AMQPValue::LongString(text) => Some(text.to_string()),
            AMQPValue::ShortString(text) => Some(text.to_string()),
            _ => None,
        }
    }

    /// As the ledger compares it, where all headers of the row are text.
    ///
    /// # Errors
    /// When it has no id, or a header is no text.
    pub fn arrival(&self) -> Result<Arrival> {
        let id = self.message_id.as_deref().context("a message without an id")?;
        let tombstone = self.header("tombstone") == Some(&AMQPValue::Boolean(true));
        let mut headers = BTreeMap::new();
        for name in self.headers.inner().keys().map(ToString::to_string) {
            // A quorum queue adds its own.
            if !matches!(name.as_str(), "ordering-key" | "tombstone" | "x-delivery-count") {
                let value = self.header_text(&name).with_context(|| format!("header {name} is no text"))?;
                headers.insert(name, value);
            }
        }
        let body = if tombstone && self.body.is_empty() { None } else { Some(self.body.as_slice()) };
        Ok(Arrival::new(id, self.header_text("ordering-key").as_deref(), body, headers))
    }
}

/// An open consumer; each message is acknowledged once it was handed over.
pub struct Reader {
    queue: String,
    channel: Channel,
    consumer: Consumer,
}

impl Reader {
    pub(crate) async fn open(channel: Channel, queue: &str, prefetch: u16, arguments: FieldTable) -> Result<Self> {
        channel.basic_qos(prefetch, BasicQosOptions::default()).await?;
        let options = BasicConsumeOptions::default();
        let consumer = channel.basic_consume(queue.into(), "".into(), options, arguments).await?;
        Ok(Self { queue: queue.to_owned(), channel, consumer })
    }

    /// The next message, or `None` when none came `within`.
    ///
    /// # Errors
    /// When the consumer is cancelled or the connection is lost.
    pub async fn next(&mut self, within: Duration) -> Result<Option<Received>> {
        let Ok(next) = tokio::time::timeout(within, self.consumer.next()).await else {
            return Ok(None);
        };
        let delivery = next.with_context(|| format!("the consumer of {} ended", self.queue))??;
        delivery.ack(BasicAckOptions::default()).await?;
        let properties = &delivery.properties;
        let text = |value: &Option<ShortString>| value.as_ref().map(ToString::to_string);
        Ok(Some(Received {
            message_id: text(properties.message_id()),
            headers: properties.headers().clone().unwrap_or_default(),
            timestamp: *properties.timestamp(),
            content_type: text(properties.content_type()),
            app_id: text(properties.app_id()),
            delivery_mode: *properties.delivery_mode(),
            exchange: delivery.exchange.to_string(),
            routing_key: delivery.routing_key.to_string(),
            redelivered: delivery.redelivered,
            body: delivery.data,
        }))
    }

    /// # Errors
    /// When fewer than `count` arrive in time.
    pub async fn take(&mut self, count: usize, within: Duration) -> Result<Vec<Received>> {
        let deadline = tokio::time::Instant::now() + within;
        let mut received = Vec::with_capacity(count);
        while received.len() < count {
            let left = deadline.saturating_duration_since(tokio::time::Instant::now());
            let Some(message) = self.next(left).await? else {
                bail!(
                    "waited {} ms for {count} messages in {}: {} came",
                    within.as_millis(),
                    self.queue,
                    received.len()
                );
            };
            received.push(message);
        }
        Ok(received)
    }

    /// # Errors
    /// When the consumer ends.
    pub async fn take_until_quiet(&mut self, quiet: Duration) -> Result<Vec<Received>> {
        let mut received = Vec::new();
        while let Some(message) = self.next(quiet).await? {
            received.push(message);
        }
        Ok(received)
    }

    /// Gives unacknowledged messages back to the queue.
    ///
    /// # Errors
    /// When the connection is lost.
    pub async fn close(self) -> Result<()> {
        Ok(self.channel.close(200, "done".into()).await?)
    }
}
