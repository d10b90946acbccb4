//! `run --drill …`: duplicates on purpose look like those after a fault, are counted and announced, and
//! need a second word.

use std::collections::HashMap;

use anyhow::{Context, Result};
use outbox_tests::journal::{Journal, Outcome};
use outbox_tests::kafka::Kafka;
use outbox_tests::ledger::{self, Arrival};
use outbox_tests::relay::Launch;
use outbox_tests::wait::{self, SOON};
use outbox_tests::writer::Row;

use crate::stage::{self, Stage};

const ROWS: usize = 60;
const FLAG: &str = "--yes-this-is-not-production";

/// Rows of five keys, and what must arrive of each.
async fn insert(stage: &Stage, topic: &str, journal: &Journal) -> Result<()> {
    let client = stage.database.client().await?;
    for n in 0..ROWS {
        let row =
            Row::new(&format!("{topic}-{n}"), topic).key(&format!("key-{}", n % 5)).text(&format!("{{\"n\": {n}}}"));
        row.insert(&client).await?;
        journal.record(row.entry(n as u64, Outcome::Committed));
    }
    Ok(())
}

/// Each id `times` times, and by first arrival everything as the ledger wants it.
fn must_be_whole(journal: &Journal, arrivals: &[Arrival], ids: &[String], times: usize) -> Result<()> {
    let mut counts: HashMap<&str, usize> = HashMap::new();
    for id in ids {
        *counts.entry(id).or_default() += 1;
    }
    assert_eq!(counts.len(), ROWS);
    assert!(counts.values().all(|count| *count == times), "{counts:?}");
    ledger::check(&journal.entries(), arrivals).require((times - 1) * ROWS)
}

#[tokio::test]
async fn rabbitmq_gets_every_row_twice_and_the_relay_says_so() -> Result<()> {
    let (stage, journal) = (Stage::new().await?, Journal::default());
    let mut relay = stage.launch().arg("--drill").arg("duplicate=100%").arg(FLAG).start()?;
    relay.wait_log("DRILL", SOON).await?;
    insert(&stage, "t", &journal).await?;
    let received = stage.rabbit.consume(&stage.queue, 2 * ROWS, SOON).await?;
    let ids: Vec<String> = received.iter().filter_map(|message| message.message_id.clone()).collect();
    let arrivals = received.iter().map(stage::rabbit_arrival).collect::<Result<Vec<_>>>()?;
    must_be_whole(&journal, &arrivals, &ids, 2)?;
    let metrics = relay.metrics().await?;
    assert_eq!(metrics.sum("outbox_drill_messages_total", &[]), ROWS as f64);
    assert_eq!(metrics.sum("outbox_published_messages_total", &[]), ROWS as f64, "a drill's messages count apart");
    wait::until_true("all marks", SOON, || async {
        let client = stage.database.client().await?;
        let sql = "SELECT count(*) FROM outbox.message WHERE sent_at IS NULL";
        Ok(client.query_one(sql, &[]).await?.get::<_, i64>(0) == 0)
    })
    .await?;
    assert_eq!(relay.stop(SOON).await?, Some(0));
    Ok(())
}

#[tokio::test]
async fn kafka_gets_every_row_twice() -> Result<()> {
    let Some(kafka) = Kafka::connect_or_skip("drill::kafka_gets_every_row_twice")? else { return Ok(()) };
    let (stage, journal) = (Stage::new().await?, Journal::default());
    let topic = kafka.unique("drill");
    kafka.create_topic(&topic, 1, &[]).await?;
    let launch = Launch::run().database(stage.database.url()).kafka(kafka.brokers());
    let relay = launch.arg("--drill").arg("duplicate=100%").arg(FLAG).start()?;
    insert(&stage, &topic, &journal).await?;
    let received = kafka.consume(&topic, 2 * ROWS, SOON).await?;
    let ids = received.iter().map(|record| record.id().context("no id")).collect::<Result<Vec<_>>>()?;
    let arrivals = received.iter().map(stage::kafka_arrival).collect::<Result<Vec<_>>>()?;
    must_be_whole(&journal, &arrivals, &ids, 2)?;
    drop(relay);
    Ok(())
}

/// First arrivals keep their order; repetitions come after later messages of their lane.
#[tokio::test]
async fn reorder_repeats_rows_after_later_ones() -> Result<()> {
    let (stage, journal) = (Stage::new().await?, Journal::default());
    insert(&stage, "t", &journal).await?;
    let relay = stage.launch().arg("--drill").arg("reorder=100%").arg(FLAG).start()?;
    let published = || async { Ok(relay.metrics().await?.sum("outbox_published_messages_total", &[]) == ROWS as f64) };
    wait::until_true("all rows at the broker", SOON, published).await?;
    let repeated = relay.metrics().await?.sum("outbox_drill_messages_total", &[]) as usize;
    // The last ten of each lane, one a key here, find nothing later to come after.
    assert!((1..ROWS).contains(&repeated), "{repeated}");
    let received = stage.rabbit.consume(&stage.queue, ROWS + repeated, SOON).await?;
    let arrivals = received.iter().map(stage::rabbit_arrival).collect::<Result<Vec<_>>>()?;
    ledger::check(&journal.entries(), &arrivals).require(repeated)?;
    let mut last = HashMap::new();
    let mut late = 0;
    for arrival in &received {
        let (key, id) = (arrival.header_text("ordering-key"), arrival.message_id.clone().context("no id")?);
        let number: usize = id.rsplit_once('-').context("no number")?.1.parse()?;
        let newest = last.entry(key).or_insert(number);
        late += usize::from(number < *newest);
        *newest = (*newest).max(number);
    }
    assert!(late > 0, "no repetition came after a later message of its key");
    Ok(())
}

#[tokio::test]
async fn without_a_drill_and_with_half_of_one() -> Result<()> {
    for (share, expected) in [(None, 0..=0), (Some("duplicate=50%"), 1..=ROWS - 1)] {
        let (stage, journal) = (Stage::new().await?, Journal::default());
        insert(&stage, "t", &journal).await?;
        let mut launch = stage.launch();
        if let Some(share) = share {
            launch = launch.arg("--drill").arg(share).arg(FLAG);
        }
        let relay = launch.start()?;
        let published =
            || async { Ok(relay.metrics().await?.sum("outbox_published_messages_total", &[]) == ROWS as f64) };
        wait::until_true("all rows at the broker", SOON, published).await?;
        let drilled = relay.metrics().await?.sum("outbox_drill_messages_total", &[]) as usize;
        assert!(expected.contains(&drilled), "{share:?}: {drilled}");
        stage.rabbit.consume(&stage.queue, ROWS + drilled, SOON).await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_drill_needs_a_second_word() -> Result<()> {
    let refused = Launch::run().arg("--drill").arg("duplicate=1%").finish(SOON).await?;
    assert_eq!(refused.code, Some(2));
    assert!(refused.stderr.contains(FLAG), "{}", refused.stderr);
    Ok(())
}
