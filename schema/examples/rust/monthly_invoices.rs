//! Monthly invoices: a job that makes each invoice once, and a consumer that mails each once.
//!
//!     monthly_invoices issue MONTH CUSTOMER...     the job; run it as often as you like
//!     monthly_invoices mail-rabbitmq QUEUE         mails what arrives, until SIGTERM; dead letters go to DEAD_LETTERS
//!     monthly_invoices mail-kafka TOPIC
//!
//! `DATABASE_URL`, `AMQP_URL` and `KAFKA_BROKERS` say where things are. Keys come from the work, so a second run is
//! told that it was done: schema/IDEMPOTENCY.md says why this is safe to run twice.

#![allow(clippy::print_stdout, reason = "a program for people")]

use std::time::Duration;

use anyhow::{Context, Result, bail};
use outbox_client::{BoxError, Event, Handler, Inbox, Message, Outcome, Settings, enqueue, kafka, rabbitmq};
use tokio::signal::unix::{SignalKind, signal};
use tokio_postgres::{Client, NoTls, Transaction};

/// Where a test stops the program: at the boundary between two steps. Leave it out of yours.
async fn boundary(name: &str) {
    if std::env::var("KILL_AT").as_deref() == Ok(name) {
        let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    }
    if std::env::var("PAUSE_AT").as_deref() == Ok(name) {
        println!("paused at {name}");
        std::future::pending::<()>().await;
    }
}

/// Makes the invoice and enqueues its e-mail, both or neither. False: that was done before.
async fn issue(client: &mut Client, month: &str, customer: &str) -> Result<bool> {
    let key = format!("invoice:{month}:{customer}");
    let job = Message { id: key.clone(), body: Vec::new() };
    let topic = std::env::var("EMAIL_TOPIC").unwrap_or_else(|_| "invoice.email".to_owned());
    let transaction = client.transaction().await?;
    let outcome = Inbox::process(&transaction, "send-invoice", &job, async |transaction| -> Result<()> {
        boundary("claimed").await;
        let total: i32 = transaction
            .query_opt(
                "INSERT INTO invoice (month, customer, total) SELECT $1, id, amount FROM customer WHERE id = $2 \
                 RETURNING total",
                &[&month, &customer],
            )
            .await?
            .with_context(|| format!("no customer {customer}"))?
            .try_get(0)?;
        boundary("invoiced").await;
        let payload = serde_json::json!({ "month": month, "customer": customer, "total": total }).to_string();
        enqueue(transaction, &Event::text(&key, &topic, &payload).ordered_by(customer)).await?;
        boundary("enqueued").await;
        Ok(())
    })
    .await?;
    transaction.commit().await?;
    boundary("committed").await;
    Ok(matches!(outcome, Outcome::Done(())))
}

/// "Sends" an e-mail: the consumer claims the message before and acknowledges it after the commit.
struct Mailer;

impl Handler for Mailer {
    async fn handle(&self, transaction: &Transaction<'_>, message: &Message) -> Result<(), BoxError> {
        boundary("claimed").await;
        let invoice: serde_json::Value = serde_json::from_slice(&message.body)?;
        let (month, customer) = (invoice["month"].as_str(), invoice["customer"].as_str());
        let total = i32::try_from(invoice["total"].as_i64().ok_or("no total")?)?;
        transaction
            .execute(
                "INSERT INTO sent_email (month, customer, total) VALUES ($1, $2, $3)",
                &[&month, &customer, &total],
            )
            .await?;
        boundary("mailed").await;
        Ok(())
    }

    async fn committed(&self, message: &Message, outcome: Outcome<()>) {
        boundary("committed").await;
        match outcome {
            Outcome::Done(()) => println!("mailed {}", message.id),
            Outcome::Repeated => println!("done before {}", message.id),
        }
    }
}

async fn stopped() {
    match signal(SignalKind::terminate()) {
        Ok(mut terminate) => drop(terminate.recv().await),
        Err(_) => std::future::pending().await,
    }
}

fn variable(name: &str) -> Result<String> {
    std::env::var(name).with_context(|| format!("{name} is not set"))
}

fn settings() -> Result<Settings> {
    let mut settings = Settings::new(variable("DATABASE_URL")?.parse()?, "mailer");
    settings.attempts_max = 3;
    settings.retry_pause = Duration::from_millis(100);
    Ok(settings)
}

async fn mail_rabbitmq(queue: &str) -> Result<()> {
    let dead_letters = rabbitmq::DeadLetterRoute {
        exchange: String::new(),
        routing_key: std::env::var("DEAD_LETTERS").unwrap_or_else(|_| format!("{queue}.dead")),
    };
    let (settings, url, queue) = (settings()?, variable("AMQP_URL")?, queue.to_owned());
    rabbitmq::Consumer { settings, url, queue, dead_letters, prefetch: 10 }.run(&Mailer, stopped()).await?;
    Ok(())
}

async fn mail_kafka(topic: &str) -> Result<()> {
    let group = std::env::var("GROUP").unwrap_or_else(|_| "mailer".to_owned());
    let worker = std::env::var("WORKER").unwrap_or_else(|_| "mailer-1".to_owned());
    let properties = [
        ("bootstrap.servers", variable("KAFKA_BROKERS")?),
        ("group.id", group),
        // A worker that is started again under its name goes on at once, not after the dead one's session.
        ("group.instance.id", worker),
        ("session.timeout.ms", "6000".to_owned()),
    ];
    let properties = properties.map(|(name, value)| (name.to_owned(), value)).to_vec();
    let (topics, dead_letter_topic) = (vec![topic.to_owned()], format!("{topic}.dead"));
    kafka::Consumer { settings: settings()?, properties, topics, dead_letter_topic }.run(&Mailer, stopped()).await?;
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments.as_slice() {
        ["issue", month, customers @ ..] => {
            let (mut client, connection) = tokio_postgres::connect(&variable("DATABASE_URL")?, NoTls).await?;
            tokio::spawn(async move { drop(connection.await) });
            let mut made = 0;
            for customer in customers {
                made += usize::from(issue(&mut client, month, customer).await?);
            }
            println!("{made} of {} invoices made", customers.len());
            Ok(())
        }
        ["mail-rabbitmq", queue] => mail_rabbitmq(queue).await,
        ["mail-kafka", topic] => mail_kafka(topic).await,
        _ => bail!("usage: monthly_invoices issue MONTH CUSTOMER... | mail-rabbitmq QUEUE | mail-kafka TOPIC"),
    }
}
