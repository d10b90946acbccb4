//! RabbitMQ as a consumer sees it: exchanges and queues with names of one test, bindings, and
//! reading what arrived in the order in which it arrived.

use std::time::Duration;

use anyhow::{Context, Result};
use lapin::options::{
    ExchangeDeclareOptions, ExchangeDeleteOptions, QueueBindOptions, QueueDeclareOptions, QueueDeleteOptions,
    QueuePurgeOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Channel, Connection, ConnectionProperties, ExchangeKind};

pub use crate::rabbit_reader::{Reader, Received};
use crate::{cleanup, services, wait};

/// On a machine that is busy with other brokers.
const HANDSHAKE_MAX: Duration = Duration::from_secs(20);

/// The queue types that differ in what an ack means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueType {
    Classic,
    Quorum,
    Stream,
}

/// What `rabbitmqctl eval` is given to `suspend` or `resume` the process of a queue. Suspended it takes messages and
/// confirms none, as a quorum queue without a majority does.
#[must_use]
pub fn tell_process_of(queue: &str, word: &str) -> String {
    format!(
        "[Queue] = [Q || Q <- rabbit_amqqueue:list(), element(4, amqqueue:get_name(Q)) =:= <<\"{queue}\">>], \
         ok = sys:{word}(amqqueue:get_pid(Queue))."
    )
}

/// A connection to one broker and the objects that a test declared through it.
pub struct Rabbit {
    url: String,
    connection: Connection,
    suffix: String,
    made: std::sync::Mutex<Made>,
}

#[derive(Clone, Default)]
struct Made {
    exchanges: Vec<String>,
    queues: Vec<String>,
}

impl Rabbit {
    /// Connects to the broker of `TEST_AMQP_URL`.
    ///
    /// # Errors
    /// When it cannot be reached.
    pub async fn connect() -> Result<Self> {
        Self::connect_to(&services::amqp_url()?).await
    }

    /// Connects to any broker or virtual host.
    ///
    /// # Errors
    /// When it cannot be reached.
    pub async fn connect_to(url: &str) -> Result<Self> {
        // lapin does not notice a broker that goes away in the middle of a handshake.
        let connecting = Connection::connect(url, ConnectionProperties::default());
        let connected = wait::bounded("RabbitMQ's handshake", HANDSHAKE_MAX, connecting).await?;
        let connection = connected.context("connecting to RabbitMQ")?;
        Ok(Self {
            url: url.to_owned(),
            connection,
            suffix: uuid::Uuid::new_v4().simple().to_string(),
            made: std::sync::Mutex::default(),
        })
    }

    /// The address to hand to the relay.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// `name` made unique for this test, and the same on every call.
    #[must_use]
    pub fn unique(&self, name: &str) -> String {
        format!("{name}.{}", &self.suffix[..12])
    }

    /// A channel of its own: an error closes no other one.
    ///
    /// # Errors
    /// When the connection is gone.
    pub async fn channel(&self) -> Result<Channel> {
        Ok(self.connection.create_channel().await?)
    }

    /// Declares a durable topic exchange under the name as given.
    ///
    /// # Errors
    /// When the broker refuses.
    pub async fn exchange(&self, name: &str) -> Result<()> {
        let channel = self.channel().await?;
        let options = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
        let arguments = FieldTable::default();
        channel.exchange_declare(name.into(), ExchangeKind::Topic, options, arguments).await?;
        self.made_mut(|made| made.exchanges.push(name.to_owned()));
        close(&channel).await
    }

    /// Declares a durable queue; `arguments` such as `("x-max-length", AMQPValue::LongInt(5))`.
    ///
    /// # Errors
    /// When the broker refuses.
    pub async fn queue(&self, name: &str, kind: QueueType, arguments: &[(&str, AMQPValue)]) -> Result<()> {
        let channel = self.channel().await?;
        let mut table = FieldTable::default();
        let kind = match kind {
            QueueType::Classic => "classic",
            QueueType::Quorum => "quorum",
            QueueType::Stream => "stream",
        };
        table.insert("x-queue-type".into(), AMQPValue::LongString(kind.into()));
        for (name, value) in arguments {
            table.insert((*name).into(), value.clone());
        }
        let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
        channel.queue_declare(name.into(), options, table).await?;
        self.made_mut(|made| made.queues.push(name.to_owned()));
        close(&channel).await
    }

    /// Declares exchange and queue and binds them with `#`: the usual case.
    ///
    /// # Errors
    /// When the broker refuses.
    pub async fn exchange_with_queue(&self, exchange: &str, queue: &str) -> Result<()> {
        self.exchange(exchange).await?;
        self.queue(queue, QueueType::Classic, &[]).await?;
        self.bind(queue, exchange, "#").await
    }

    /// # Errors
    /// When the broker refuses.
    pub async fn bind(&self, queue: &str, exchange: &str, routing_key: &str) -> Result<()> {
        let channel = self.channel().await?;
        channel
            .queue_bind(
                queue.into(),
                exchange.into(),
                routing_key.into(),
                QueueBindOptions::default(),
                FieldTable::default(),
            )
            .await?;
        close(&channel).await
    }

    /// # Errors
    /// When the broker refuses.
    pub async fn unbind(&self, queue: &str, exchange: &str, routing_key: &str) -> Result<()> {
        let channel = self.channel().await?;
        let arguments = FieldTable::default();
        channel.queue_unbind(queue.into(), exchange.into(), routing_key.into(), arguments).await?;
        close(&channel).await
    }

    /// # Errors
    /// When the broker refuses.
    pub async fn delete_queue(&self, name: &str) -> Result<()> {
        let channel = self.channel().await?;
        channel.queue_delete(name.into(), QueueDeleteOptions::default()).await?;
        close(&channel).await
    }

    /// # Errors
    /// When the broker refuses.
    pub async fn delete_exchange(&self, name: &str) -> Result<()> {
        let channel = self.channel().await?;
        channel.exchange_delete(name.into(), ExchangeDeleteOptions::default()).await?;
        close(&channel).await
    }

    /// Removes all ready messages and says how many there were.
    ///
    /// # Errors
    /// When the broker refuses.
    pub async fn purge(&self, queue: &str) -> Result<u32> {
        let channel = self.channel().await?;
        let purged = channel.queue_purge(queue.into(), QueuePurgeOptions::default()).await?;
        close(&channel).await?;
        Ok(purged)
    }

    /// The number of ready messages.
    ///
    /// # Errors
    /// When the queue does not exist.
    pub async fn depth(&self, queue: &str) -> Result<u32> {
        let channel = self.channel().await?;
        let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        let queue = channel.queue_declare(queue.into(), options, FieldTable::default()).await?;
        let depth = queue.message_count();
        close(&channel).await?;
        Ok(depth)
    }

    /// A reader that stays open, so that a test can look several times. At most `prefetch`
    /// messages are ahead of it: a small number makes a slow consumer.
    ///
    /// # Errors
    /// When the queue does not exist.
    pub async fn reader(&self, queue: &str, prefetch: u16) -> Result<Reader> {
        Reader::open(self.channel().await?, queue, prefetch, FieldTable::default()).await
    }

    /// A reader of a stream from its first message.
    ///
    /// # Errors
    /// When the queue does not exist or is no stream.
    pub async fn stream_reader(&self, queue: &str) -> Result<Reader> {
        let mut arguments = FieldTable::default();
        let first = AMQPValue::LongString("first".into());
        arguments.insert("x-stream-offset".into(), first);
        Reader::open(self.channel().await?, queue, 1_000, arguments).await
    }

    /// Reads until `count` messages came, and fails at the deadline with how many did.
    ///
    /// # Errors
    /// When fewer arrive in time.
    pub async fn consume(&self, queue: &str, count: usize, within: Duration) -> Result<Vec<Received>> {
        let mut reader = self.reader(queue, 1_000).await?;
        let received = reader.take(count, within).await;
        reader.close().await?;
        received
    }

    /// Reads until nothing came for `quiet`: for "everything that is there".
    ///
    /// # Errors
    /// When the queue goes away.
    pub async fn consume_all(&self, queue: &str, quiet: Duration) -> Result<Vec<Received>> {
        let mut reader = self.reader(queue, 1_000).await?;
        let mut received = Vec::new();
        loop {
            // Quiet alone may be a busy machine.
            let left = self.depth(queue).await?;
            let more = reader.take_until_quiet(quiet).await?;
            let done = left == 0 && more.is_empty();
            received.extend(more);
            if done {
                break;
            }
        }
        reader.close().await?;
        Ok(received)
    }

    /// Ends the connection. One that is dropped while the broker owes it an answer stays open, and a consumer that was
    /// asked for on it then keeps the messages that it is given.
    ///
    /// # Errors
    /// When the connection is lost already.
    pub async fn close(&self) -> Result<()> {
        Ok(self.connection.close(200, "done".into()).await?)
    }

    fn made_mut(&self, change: impl FnOnce(&mut Made)) {
        change(&mut self.made.lock().unwrap_or_else(std::sync::PoisonError::into_inner));
    }
}

impl Drop for Rabbit {
    fn drop(&mut self) {
        let mut made = Made::default();
        self.made_mut(|own| made = std::mem::take(own));
        if !cleanup::is_wanted() || (made.queues.is_empty() && made.exchanges.is_empty()) {
            return;
        }
        let url = self.url.clone();
        cleanup::run("the test's queues", async move {
            let connection = Connection::connect(&url, ConnectionProperties::default()).await?;
            let channel = connection.create_channel().await?;
            for queue in made.queues {
                let options = QueueDeleteOptions::default();
                channel.queue_delete(queue.into(), options).await?;
            }
            for exchange in made.exchanges {
                let options = ExchangeDeleteOptions::default();
                channel.exchange_delete(exchange.into(), options).await?;
            }
            connection.close(200, "done".into()).await?;
            Ok(())
        });
    }
}

async fn close(channel: &Channel) -> Result<()> {
    Ok(channel.close(200, "done".into()).await?)
}
