//! A consumer of one RabbitMQ queue.
//!
//! Guarantees: one message after the other in the queue's order, each in one transaction with its claim, acknowledged
//! after the commit; what cannot be done goes to the dead-letter route, confirmed, before it is acknowledged. It
//! deliberately declares no queue and no exchange, and ends when the broker fails: run it again.

use std::time::Duration;

use futures_util::StreamExt;
use lapin::message::Delivery;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, BasicQosOptions, ConfirmSelectOptions,
};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{Channel, Confirmation, Connection, ConnectionProperties};
use tokio::time::timeout;

use crate::consumer::{ConsumeError, DEAD_LETTER_MAX, Fate, Handler, REASON_HEADER, SetAside, Settings, Worker};

/// A broker that accepts a connection and says nothing is given up after this, and one that does not say good-bye.
const CONNECT_MAX: Duration = Duration::from_secs(30);
const CLOSE_MAX: Duration = Duration::from_secs(5);

/// Where dead letters go. It must exist and lead to a queue.
#[derive(Debug, Clone)]
pub struct DeadLetterRoute {
    /// Empty for the default exchange, which takes a queue's name as routing key.
    pub exchange: String,
    pub routing_key: String,
}

/// What to consume.
#[derive(Clone)]
pub struct Consumer {
    pub settings: Settings,
    /// `amqp://user:password@host:port/vhost`
    pub url: String,
    pub queue: String,
    pub dead_letters: DeadLetterRoute,
    /// So many messages may be on their way to this consumer.
    pub prefetch: u16,
}

impl Consumer {
    /// Consumes until `stop` ends, then gives back what it has in hand: its transaction is rolled back, and the
    /// message, not acknowledged, comes again.
    ///
    /// # Errors
    /// When the broker fails, or the database refuses the inbox. What was not acknowledged comes again.
    pub async fn run(&self, handler: &impl Handler, stop: impl Future<Output = ()>) -> Result<(), ConsumeError> {
        tokio::pin!(stop);
        let connection = tokio::select! {
            () = &mut stop => return Ok(()),
            connected = timeout(CONNECT_MAX, Connection::connect(&self.url, ConnectionProperties::default())) => {
                let connected = connected.map_err(ConsumeError::broker("connecting"))?;
                connected.map_err(ConsumeError::broker("connecting"))?
            }
        };
        let ended = tokio::select! {
            () = &mut stop => Ok(()),
            ended = self.consume(&connection, handler) => ended,
        };
        // Its failure adds nothing: the broker notices by itself that nobody is there.
        let _ = timeout(CLOSE_MAX, connection.close(200, ShortString::from("stopped"))).await;
        ended
    }

    async fn consume(&self, connection: &Connection, handler: &impl Handler) -> Result<(), ConsumeError> {
        let failed = ConsumeError::broker::<lapin::Error>;
        let channel = connection.create_channel().await.map_err(failed("opening a channel"))?;
        // A channel of its own, so that a return can only belong to the one dead letter on its way.
        let dead = connection.create_channel().await.map_err(failed("opening a channel"))?;
        dead.confirm_select(ConfirmSelectOptions::default()).await.map_err(failed("asking for confirms"))?;
        channel.basic_qos(self.prefetch, BasicQosOptions::default()).await.map_err(failed("setting the prefetch"))?;
        let mut deliveries = channel
            .basic_consume(
                self.queue.as_str().into(),
                ShortString::default(),
                BasicConsumeOptions::default(),
                FieldTable::default(),
            )
            .await
            .map_err(failed("starting to consume"))?;
        let mut worker = Worker::new(&self.settings, handler);
        while let Some(delivery) = deliveries.next().await {
            let delivery = delivery.map_err(failed("consuming"))?;
            let id = delivery.properties.message_id().as_ref().map(ToString::to_string);
            if let Fate::SetAside(why) = worker.work(id, delivery.data.clone()).await? {
                self.set_aside(&dead, &delivery, why).await?;
            }
            delivery.ack(BasicAckOptions::default()).await.map_err(failed("acknowledging"))?;
        }
        Err(ConsumeError::Broker { what: "consuming", source: "the queue is gone".into() })
    }

    async fn set_aside(&self, channel: &Channel, delivery: &Delivery, why: SetAside) -> Result<(), ConsumeError> {
        let id = delivery.properties.message_id().as_ref().map(ToString::to_string).unwrap_or_default();
        let mut headers = delivery.properties.headers().clone().unwrap_or_default();
        headers.insert(REASON_HEADER.into(), AMQPValue::LongString(why.reason().into()));
        let sent = async {
            channel
                .basic_publish(
                    self.dead_letters.exchange.as_str().into(),
                    self.dead_letters.routing_key.as_str().into(),
                    BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() },
                    &delivery.data,
                    delivery.properties.clone().with_headers(headers).with_delivery_mode(2),
                )
                .await?
                .await
        };
        match timeout(DEAD_LETTER_MAX, sent).await {
            Ok(Ok(Confirmation::Ack(None))) => Ok(()),
            Ok(Ok(_)) => Err(ConsumeError::DeadLetter { id, source: None }),
            Ok(Err(error)) => Err(ConsumeError::DeadLetter { id, source: Some(error.into()) }),
            Err(error) => Err(ConsumeError::DeadLetter { id, source: Some(error.into()) }),
        }
    }
}
