//! The consumer of a queue: retries within bounds, a dead-letter route, a stop that gives back, a lost database.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use lapin::options::{BasicGetOptions, BasicPublishOptions, QueueDeclareOptions, QueueDeleteOptions};
use lapin::types::{FieldTable, ShortString};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties};
use outbox_client::rabbitmq::{Consumer, DeadLetterRoute};
use outbox_client::{BoxError, Handler, Message, Outcome, REASON_HEADER, Settings};
use tokio::sync::Notify;
use tokio_postgres::Transaction;

use crate::kit::Database;

pub const WAIT_MAX: Duration = Duration::from_secs(60);

/// A queue and a dead-letter queue of one test.
pub struct Queues {
    _connection: Connection,
    channel: Channel,
    queue: String,
    dead: String,
}

fn amqp_url() -> String {
    std::env::var("TEST_AMQP_URL").expect("TEST_AMQP_URL is not set; see tests/README.md")
}

impl Queues {
    pub async fn new() -> Self {
        let connection = Connection::connect(&amqp_url(), ConnectionProperties::default()).await.unwrap();
        let channel = connection.create_channel().await.unwrap();
        let suffix = uuid::Uuid::new_v4().simple().to_string();
        let (queue, dead) = (format!("client.{suffix}"), format!("client.dead.{suffix}"));
        for name in [&queue, &dead] {
            let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
            channel.queue_declare(name.as_str().into(), options, FieldTable::default()).await.unwrap();
        }
        Self { _connection: connection, channel, queue, dead }
    }

    pub async fn publish(&self, id: Option<&str>, body: &str) {
        let mut properties = BasicProperties::default();
        if let Some(id) = id {
            properties = properties.with_message_id(id.into());
        }
        let options = BasicPublishOptions::default();
        let sent = self.channel.basic_publish(
            ShortString::default(),
            self.queue.as_str().into(),
            options,
            body.as_bytes(),
            properties,
        );
        sent.await.unwrap().await.unwrap();
    }

    /// The next dead letter: its id, why it is one, and its body.
    pub async fn dead_letter(&self) -> Option<(Option<String>, String, String)> {
        let options = BasicGetOptions { no_ack: true };
        let letter = self.channel.basic_get(self.dead.as_str().into(), options).await.unwrap()?;
        let headers = letter.delivery.properties.headers().clone().unwrap();
        let reason = headers.inner().get(REASON_HEADER).and_then(|value| value.as_long_string()).unwrap().to_string();
        let id = letter.delivery.properties.message_id().as_ref().map(ToString::to_string);
        Some((id, reason, String::from_utf8(letter.delivery.data.clone()).unwrap()))
    }

    fn consumer(&self, database: &Database) -> Consumer {
        self.consumer_with(Settings::new(database.config(), "c"))
    }

    pub fn consumer_with(&self, mut settings: Settings) -> Consumer {
        settings.attempts_max = 3;
        settings.retry_pause = Duration::from_millis(1);
        let dead_letters = DeadLetterRoute { exchange: String::new(), routing_key: self.dead.clone() };
        Consumer { settings, url: amqp_url(), queue: self.queue.clone(), dead_letters, prefetch: 10 }
    }

    pub async fn delete(self) {
        for name in [&self.queue, &self.dead] {
            self.channel.queue_delete(name.as_str().into(), QueueDeleteOptions::default()).await.unwrap();
        }
    }
}

/// Does what the body says, and ends the consumer after the message `last`.
#[derive(Default)]
struct Scripted {
    attempts: Mutex<HashMap<String, u32>>,
    failures: Mutex<Vec<(String, String)>>,
    begun: Notify,
    done: Notify,
}

impl Scripted {
    fn attempts(&self, id: &str) -> u32 {
        self.attempts.lock().unwrap().get(id).copied().unwrap_or_default()
    }
}

impl Handler for Scripted {
    async fn handle(&self, transaction: &Transaction<'_>, message: &Message) -> Result<(), BoxError> {
        let attempt = {
            let mut attempts = self.attempts.lock().unwrap();
            let count = attempts.entry(message.id.clone()).or_default();
            *count += 1;
            *count
        };
        transaction.execute("INSERT INTO effect VALUES ($1)", &[&message.id]).await?;
        match std::str::from_utf8(&message.body)? {
            "fail" => Err("as told".into()),
            "fail twice" if attempt < 3 => Err("as told".into()),
            "lose the database" if attempt < 5 => {
                transaction.execute("SELECT pg_terminate_backend(pg_backend_pid())", &[]).await?;
                Ok(())
            }
            "swallow" => {
                let _ = transaction.execute("SELECT 1/0", &[]).await;
                Ok(())
            }
            "wait" => {
                self.begun.notify_one();
                std::future::pending().await
            }
            _ => Ok(()),
        }
    }

    async fn committed(&self, message: &Message, _outcome: Outcome<()>) {
        if message.id == "last" {
            self.done.notify_one();
        }
    }

    async fn failed(&self, message: &Message, error: &(dyn std::error::Error + Send + Sync)) {
        self.failures.lock().unwrap().push((message.id.clone(), error.to_string()));
    }
}

async fn run_until_last(consumer: &Consumer, handler: &Scripted) {
    tokio::time::timeout(WAIT_MAX, consumer.run(handler, handler.done.notified()))
        .await
        .expect("the last message was not reached")
        .unwrap();
}

async fn database() -> Database {
    let database = Database::migrated().await;
    database.client().await.batch_execute("CREATE TABLE effect (id text)").await.unwrap();
    database
}

#[tokio::test]
async fn each_message_has_one_effect_and_what_cannot_be_done_is_set_aside() {
    let (database, queues, handler) = (database().await, Queues::new().await, Scripted::default());
    for (id, body) in [
        (Some("a"), "x"),
        (Some("a"), "x"),
        (Some("a"), "another"),
        (Some("b"), "fail"),
        (Some("c"), "fail twice"),
        (Some("d"), "lose the database"),
        (Some("e"), "swallow"),
        (None, "x"),
        (Some("last"), "x"),
    ] {
        queues.publish(id, body).await;
    }
    run_until_last(&queues.consumer(&database), &handler).await;
    assert_eq!(["a", "b", "c", "d"].map(|id| handler.attempts(id)), [1, 3, 3, 5]);
    let failures = |id: &str| handler.failures.lock().unwrap().iter().filter(|(of, _)| of == id).count();
    assert_eq!(["a", "b", "c", "last"].map(failures), [1, 3, 2, 0], "each failure is told");
    // A lost connection may be found out by the next attempt's first statement too.
    assert!(failures("d") >= 4, "each lost database is told");
    assert_eq!(database.count("effect").await, 4);
    assert_eq!(database.count("effect WHERE id IN ('a', 'c', 'd', 'last')").await, 4);
    let expected = [
        (Some("a"), "other_body", "another"),
        (Some("b"), "attempts", "fail"),
        (Some("e"), "attempts", "swallow"),
        (None, "no_id", "x"),
    ];
    for (id, reason, body) in expected {
        let letter = queues.dead_letter().await.unwrap();
        assert_eq!(letter, (id.map(str::to_owned), reason.to_owned(), body.to_owned()));
    }
    assert!(queues.dead_letter().await.is_none());
    queues.delete().await;
}

#[tokio::test]
async fn a_stop_gives_the_message_in_hand_back() {
    let (database, queues, handler) = (database().await, Queues::new().await, Scripted::default());
    queues.publish(Some("a"), "wait").await;
    let consumer = queues.consumer(&database);
    let stopped = tokio::time::timeout(WAIT_MAX, consumer.run(&handler, handler.begun.notified())).await;
    stopped.expect("the message did not come").unwrap();
    let options = BasicGetOptions { no_ack: false };
    let again = tokio::time::timeout(WAIT_MAX, async {
        loop {
            if let Some(message) = queues.channel.basic_get(queues.queue.as_str().into(), options).await.unwrap() {
                return message;
            }
        }
    });
    assert!(again.await.expect("the message did not come back").delivery.redelivered);
    assert_eq!((database.count("effect").await, database.count("inbox.processed").await), (0, 0));
    queues.delete().await;
}

/// A dead letter that nobody takes is not acknowledged: the consumer ends, and the message comes again.
#[tokio::test]
async fn without_a_dead_letter_queue_nothing_is_dropped() {
    let (database, queues, handler) = (database().await, Queues::new().await, Scripted::default());
    queues.publish(None, "x").await;
    let mut consumer = queues.consumer(&database);
    consumer.dead_letters.routing_key = "nowhere".to_owned();
    let ended = tokio::time::timeout(WAIT_MAX, consumer.run(&handler, std::future::pending())).await;
    let error = ended.expect("the consumer goes on").unwrap_err();
    assert!(error.to_string().contains("dead letter"), "{error}");
    consumer.dead_letters.routing_key.clone_from(&queues.dead);
    queues.publish(Some("last"), "x").await;
    run_until_last(&consumer, &handler).await;
    assert_eq!(queues.dead_letter().await.unwrap().1, "no_id");
    queues.delete().await;
}

/// What only an operator can mend ends the consumer with a word of what it is; the message comes again.
#[tokio::test]
async fn a_database_without_the_inbox_is_an_error_and_no_endless_wait() {
    let (database, queues, handler) = (database().await, Queues::new().await, Scripted::default());
    database.client().await.batch_execute("DROP SCHEMA inbox CASCADE").await.unwrap();
    queues.publish(Some("a"), "x").await;
    let consumer = queues.consumer(&database);
    let ended = tokio::time::timeout(WAIT_MAX, consumer.run(&handler, std::future::pending())).await;
    let error = ended.expect("the consumer goes on").unwrap_err().to_string();
    assert!(error.contains("inbox") && error.contains("3F000"), "{error}");
    assert_eq!(handler.attempts("a"), 0);
    assert!(queues.dead_letter().await.is_none(), "the message is not to blame");
    queues.delete().await;
}
