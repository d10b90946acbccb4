//! One key, a queue that refuses when it is full, a slow consumer, and rows that cannot be routed at first.

use std::time::Duration;

use anyhow::{Result, bail};
use lapin::types::AMQPValue;
use outbox_tests::journal::{Journal, Outcome};
use outbox_tests::ledger::Report;
use outbox_tests::rabbit::{QueueType, Received};
use outbox_tests::services;
use outbox_tests::wait;
use outbox_tests::writer::{Row, Writer};

use crate::stage::{self, Stage};

const ROWS: usize = 400;
/// Every so many rows one goes to a routing key that nobody has bound yet.
const UNROUTABLE_EVERY: usize = 80;

/// The queue takes five messages; then it refuses with a nack.
async fn narrow_stage() -> Result<Stage> {
    let stage = Stage::unbound(&services::database_url()?).await?;
    stage.rabbit.exchange(&stage.exchange).await?;
    let arguments =
        [("x-max-length", AMQPValue::LongInt(5)), ("x-overflow", AMQPValue::LongString("reject-publish".into()))];
    stage.rabbit.queue(&stage.queue, QueueType::Classic, &arguments).await?;
    stage.rabbit.bind(&stage.queue, &stage.exchange, "ok").await?;
    Ok(stage)
}

/// Binds what a held row lacks, once it is held: only then can the key go on.
async fn bind_what_is_missing(stage: &Stage) -> Result<()> {
    let client = &stage.database.client().await?;
    for number in (0..ROWS).filter(|number| is_unroutable(*number)) {
        let key = format!("later.{number}");
        let held = || async {
            let statement = "SELECT FROM outbox.held WHERE topic = $1 AND reason = 'unroutable'";
            Ok(client.query_opt(statement, &[&key]).await?.is_some())
        };
        wait::until_true(&format!("{key} to be held"), Duration::from_secs(120), held).await?;
        stage.rabbit.bind(&stage.queue, &stage.exchange, &key).await?;
    }
    Ok(())
}

const fn is_unroutable(number: usize) -> bool {
    number % UNROUTABLE_EVERY == UNROUTABLE_EVERY / 2
}

/// Sends all rows of one key past a slow consumer; refusals are counted to show that the queue was full.
async fn squeeze(order: &str) -> Result<(Report, i64)> {
    let stage = narrow_stage().await?;
    let journal = Journal::default();
    let rows: Vec<Row> = (0..ROWS)
        .map(|number| {
            let topic = if is_unroutable(number) { format!("later.{number}") } else { "ok".to_owned() };
            Row::new(&format!("row-{number}"), &topic).key("k")
        })
        .collect();
    Writer::new(stage.database.client().await?, journal.clone()).commit(&rows).await?;
    assert_eq!(journal.count(Outcome::Committed), ROWS);
    let relay = stage
        .launch()
        .env("OUTBOX__RABBITMQ__ORDER", order)
        .env("OUTBOX__RETRY__INITIAL_MS", "10")
        .env("OUTBOX__RETRY__MAX_MS", "40")
        .start()?;
    let mut reader = stage.rabbit.reader(&stage.queue, 1).await?;
    let reading = async {
        let mut received: Vec<Received> = Vec::new();
        let mut ids = std::collections::HashSet::new();
        while ids.len() < ROWS {
            let Some(message) = reader.next(wait::SOON).await? else { break };
            ids.insert(message.message_id.clone());
            received.push(message);
            // A look at the queue between two messages makes the consumer slower than the relay.
            stage.rabbit.depth(&stage.queue).await?;
        }
        anyhow::Ok(received)
    };
    let (bound, received) = tokio::join!(bind_what_is_missing(&stage), reading);
    bound?;
    let report = stage::judge(&journal.entries(), &received?)?;
    let refused = relay.metrics().await?.sum("outbox_publish_failures_total", &[("reason", "nack")]);
    Ok((report, refused as i64))
}

#[tokio::test]
async fn a_full_queue_and_missing_bindings_invert_nothing() -> Result<()> {
    let (report, refused) = squeeze("strict").await?;
    eprintln!("{refused} refusals: {report}");
    assert!(refused > 0, "the queue was never full, so nothing was shown");
    report.require(0)
}

#[tokio::test]
async fn a_relay_that_pipelines_a_key_is_caught() -> Result<()> {
    const TRIES: usize = 5;
    for attempt in 1..=TRIES {
        let (report, _) = squeeze("pipelined").await?;
        if !report.out_of_order.is_empty() {
            eprintln!("caught in try {attempt}: {report}");
            return Ok(());
        }
    }
    bail!("{TRIES} tries did not tell a pipelined key from a strict one")
}
