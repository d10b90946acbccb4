//! RabbitMQ as the driver needs it: a queue behind the relay's default exchange, a bare publisher, and a consumer
//! that checks.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use futures_util::StreamExt as _;
use futures_util::future::{join_all, try_join_all};
use lapin::options::{
    BasicConsumeOptions, BasicPublishOptions, ConfirmSelectOptions, QueueBindOptions, QueueDeclareOptions,
    QueueDeleteOptions,
};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties};

use crate::QueueType;
use crate::check::{Checker, Seen};
use crate::load::Load;

const EXCHANGE: &str = "amq.topic";
/// The relay's own defaults: channels of a connection, and rows of a window.
const CHANNELS: u32 = 2;
const WINDOW: usize = 500;
/// After the last message, so that a duplicate has time to come.
const SILENCE: Duration = Duration::from_millis(500);
const PATIENCE: Duration = Duration::from_secs(30);

pub struct Queue {
    connection: Connection,
    channel: Channel,
    pub name: String,
}

impl Queue {
    /// A durable queue that gets what is published under its own name.
    pub async fn declare(url: &str, kind: QueueType) -> Result<Self> {
        let connection = Connection::connect(url, ConnectionProperties::default()).await.context("RabbitMQ")?;
        let channel = connection.create_channel().await?;
        let name = format!("bench.{}", uuid::Uuid::new_v4().simple());
        let mut arguments = FieldTable::default();
        if kind == QueueType::Quorum {
            arguments.insert(short("x-queue-type"), AMQPValue::LongString("quorum".into()));
        }
        let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
        channel.queue_declare(short(&name), options, arguments).await?;
        let bind = QueueBindOptions::default();
        channel.queue_bind(short(&name), short(EXCHANGE), short(&name), bind, FieldTable::default()).await?;
        Ok(Self { connection, channel, name })
    }

    /// Takes everything out and checks it.
    pub async fn check(&self, load: &Load) -> Result<Seen> {
        let options = BasicConsumeOptions { no_ack: true, ..BasicConsumeOptions::default() };
        let tag = short("check");
        let mut consumer = self.channel.basic_consume(short(&self.name), tag, options, FieldTable::default()).await?;
        let mut checker = Checker::new(load);
        loop {
            let wait = if checker.messages() < u64::from(load.rows) { PATIENCE } else { SILENCE };
            match tokio::time::timeout(wait, consumer.next()).await {
                Ok(Some(delivery)) => {
                    let delivery = delivery?;
                    checker.see(delivery.properties.message_id().as_ref().map(ShortString::as_str));
                }
                Ok(None) => bail!("the consumer was cancelled"),
                Err(_) => return Ok(checker.seen()),
            }
        }
    }

    /// Publishes rows from memory, with the relay's window, and gives the seconds it took.
    pub async fn bare(&self, load: &Load, rows: std::ops::Range<u32>) -> Result<f64> {
        // With one key the relay waits for each confirm, and so does this.
        let (channels, window) = if load.keys == 1 { (1, 1) } else { (CHANNELS, WINDOW) };
        let channels = try_join_all((0..channels).map(|_| async {
            let channel = self.connection.create_channel().await?;
            channel.confirm_select(ConfirmSelectOptions::default()).await?;
            anyhow::Ok(channel)
        }));
        let channels = channels.await?;
        let started = Instant::now();
        let step = channels.len();
        let publishing = channels.iter().enumerate().map(|(index, channel)| {
            let mut left = rows.clone().skip(index).step_by(step).peekable();
            async move {
                while left.peek().is_some() {
                    self.window(channel, load, left.by_ref().take(window)).await?;
                }
                anyhow::Ok(())
            }
        });
        try_join_all(publishing).await?;
        Ok(started.elapsed().as_secs_f64())
    }

    async fn window(&self, channel: &Channel, load: &Load, rows: impl Iterator<Item = u32>) -> Result<()> {
        let options = BasicPublishOptions { mandatory: true, immediate: false };
        let sent = rows.map(|row| {
            let (exchange, key) = (short(EXCHANGE), short(&self.name));
            channel.basic_publish(exchange, key, options, load.body(row), properties(load, row))
        });
        let confirms = join_all(sent).await.into_iter().collect::<Result<Vec<_>, _>>()?;
        for confirm in join_all(confirms).await {
            if !confirm?.is_ack() {
                bail!("a bare message was refused");
            }
        }
        Ok(())
    }

    pub async fn delete(self) -> Result<()> {
        self.channel.queue_delete(short(&self.name), QueueDeleteOptions::default()).await?;
        // The process goes on without it either way.
        let _ = self.connection.close(200, short("done")).await;
        Ok(())
    }
}

/// What the relay sends too, so that both do the same work.
fn properties(load: &Load, row: u32) -> BasicProperties {
    let mut headers = FieldTable::default();
    headers.insert(short("ordering-key"), AMQPValue::LongString(load.key(row).into()));
    BasicProperties::default()
        .with_message_id(short(&Load::id(row)))
        .with_content_type(short("application/json"))
        .with_app_id(short("outbox-relay"))
        .with_timestamp(1_700_000_000)
        .with_delivery_mode(2)
        .with_headers(headers)
}

/// Names of ours are short.
fn short(text: &str) -> ShortString {
    ShortString::try_new(text).unwrap_or_default()
}
