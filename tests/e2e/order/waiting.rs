//! Rows whose address is missing wait, hold back their key alone, and go once it exists.

use std::collections::HashSet;
use std::time::Duration;

use anyhow::Result;
use fastrand::Rng;
use outbox_tests::database::Database;
use outbox_tests::journal::{Journal, Outcome};
use outbox_tests::kafka::Kafka;
use outbox_tests::ledger;
use outbox_tests::relay::Launch;
use outbox_tests::services;
use outbox_tests::wait;
use outbox_tests::writer::{Row, Writer};

use super::{count, wait_count, wait_held};
use crate::stage::{self, Stage};

const BEHIND: usize = 20;
const OTHERS: usize = 50;

#[tokio::test]
async fn f04_unroutable_rows_are_held_and_go_once_bound() -> Result<()> {
    let stage = Stage::unbound(&services::database_url()?).await?;
    stage.rabbit.exchange(&stage.exchange).await?;
    let journal = Journal::default();
    let rows: Vec<Row> = (0..10).map(|number| Row::new(&format!("row-{number}"), "a").key("k")).collect();
    Writer::new(stage.database.client().await?, journal.clone()).commit(&rows).await?;
    let relay = stage.launch().start()?;
    wait_held(&stage, "unroutable", 1).await?;
    wait_count(&stage, "state = 'waiting' AND attempts = 0", 10).await?;
    assert_eq!(count(&stage, "state = 'sent'").await?, 0);
    stage.rabbit.queue(&stage.queue, outbox_tests::rabbit::QueueType::Classic, &[]).await?;
    stage.rabbit.bind(&stage.queue, &stage.exchange, "#").await?;
    let received = stage.rabbit.consume(&stage.queue, 10, wait::SOON).await?;
    wait_count(&stage, "state = 'sent'", 10).await?;
    // Each return is one failed publication, and is counted as one.
    let metrics = relay.metrics().await?;
    let failures = metrics.sum("outbox_publish_failures_total", &[("reason", "unroutable")]);
    assert!(failures >= 1.0);
    assert_eq!(metrics.sum("outbox_returned_messages_total", &[]), failures);
    stage::judge(&journal.entries(), &received)?.require(0)
}

/// Every tenth row has a bad route of its own, and everything is pipelined: a return must be found to belong to its
/// row and to no other.
#[tokio::test]
async fn f05_a_return_is_attributed_to_its_own_row() -> Result<()> {
    const ROUNDS: usize = 20;
    const ROWS: usize = 200;
    let seed = fastrand::u64(..);
    eprintln!("seed {seed}");
    let mut random = Rng::with_seed(seed);
    let stage = Stage::unbound(&services::database_url()?).await?;
    stage.rabbit.exchange(&stage.exchange).await?;
    stage.rabbit.queue(&stage.queue, outbox_tests::rabbit::QueueType::Classic, &[]).await?;
    stage.rabbit.bind(&stage.queue, &stage.exchange, "good").await?;
    let mut reader = stage.rabbit.reader(&stage.queue, 500).await?;
    let _relay = stage.launch().start()?;
    let (mut good, mut bad) = (HashSet::new(), HashSet::new());
    let mut received = Vec::new();
    let mut client = stage.database.client().await?;
    for round in 0..ROUNDS {
        let transaction = client.transaction().await?;
        for number in 0..ROWS {
            let id = format!("{round}-{number}");
            let is_bad = random.u8(..10) == 0;
            let topic = if is_bad { format!("bad.{id}") } else { "good".to_owned() };
            Row::new(&id, &topic).insert(&transaction).await?;
            if is_bad {
                bad.insert(id)
            } else {
                good.insert(id)
            };
        }
        transaction.commit().await?;
        let due = good.len() - received.len();
        received.extend(reader.take(due, wait::SOON).await?);
    }
    let arrived: HashSet<String> = received.iter().filter_map(|message| message.message_id.clone()).collect();
    assert_eq!(arrived, good);
    let (good, bad) = (i64::try_from(good.len())?, i64::try_from(bad.len())?);
    wait_count(&stage, "state = 'waiting' AND reason = 'unroutable' AND topic LIKE 'bad.%'", bad).await?;
    wait_count(&stage, "state = 'sent' AND topic = 'good'", good).await?;
    assert_eq!(count(&stage, "true").await?, good + bad);
    Ok(())
}

/// Row 1 of a key has no address yet; its key waits, other keys flow.
async fn insert_late_key(database: &Database, journal: &Journal, late: &str, present: &str) -> Result<()> {
    let mut rows = vec![Row::new("first", late).key("k")];
    rows.extend((0..BEHIND).map(|number| Row::new(&format!("behind-{number}"), present).key("k")));
    rows.extend((0..OTHERS).map(|number| Row::new(&format!("other-{number}"), present).key(&format!("o{number}"))));
    Writer::new(database.client().await?, journal.clone()).commit(&rows).await?;
    assert_eq!(journal.count(Outcome::Committed), 1 + BEHIND + OTHERS);
    Ok(())
}

#[tokio::test]
async fn f29_a_key_waits_for_its_first_rows_exchange_and_others_flow() -> Result<()> {
    let stage = Stage::new().await?;
    let late = stage.rabbit.unique("late");
    let routes = format!(
        "[[route]]\nmatch = \"late\"\nsink = \"rabbitmq\"\nexchange = \"{late}\"\nrouting_key = \"x\"\n\
         [[route]]\nmatch = \"*\"\nsink = \"rabbitmq\"\nexchange = \"{}\"\nrouting_key = \"x\"\n",
        stage.exchange
    );
    let journal = Journal::default();
    insert_late_key(&stage.database, &journal, "late", "present").await?;
    let _relay = stage.launch().config(&routes).env("OUTBOX__RETRY__MAX_MS", "1000").start()?;
    let mut reader = stage.rabbit.reader(&stage.queue, 100).await?;
    let mut received = reader.take(OTHERS, wait::SOON).await?;
    wait_held(&stage, "no_exchange", 1).await?;
    // The address is probed several times meanwhile.
    received.extend(reader.take_until_quiet(Duration::from_secs(2)).await?);
    assert_eq!(received.len(), OTHERS, "a row overtook the first row of its key");
    assert_eq!(count(&stage, "state = 'waiting' AND attempts = 0").await?, 1 + BEHIND as i64);
    stage.rabbit.exchange(&late).await?;
    stage.rabbit.bind(&stage.queue, &late, "#").await?;
    received.extend(reader.take(1 + BEHIND, wait::SOON).await?);
    wait_count(&stage, "state = 'sent'", (1 + BEHIND + OTHERS) as i64).await?;
    stage::judge(&journal.entries(), &received)?.require(0)
}

#[tokio::test]
async fn f29_a_key_waits_for_its_first_rows_topic_and_others_flow() -> Result<()> {
    let Some(kafka) = Kafka::connect_or_skip("order::waiting f29 in Kafka")? else { return Ok(()) };
    let database = Database::migrated().await?;
    let (late, present) = (kafka.unique("late"), kafka.unique("present"));
    kafka.create_topic(&present, 3, &[]).await?;
    let journal = Journal::default();
    insert_late_key(&database, &journal, &late, &present).await?;
    let launch = Launch::run().database(database.url()).kafka(kafka.brokers()).env("OUTBOX__RETRY__MAX_MS", "1000");
    let _relay = launch.start()?;
    let reader = kafka.reader(&present).await?;
    let mut records = reader.take(OTHERS, wait::SOON).await?;
    assert!(reader.next(Duration::from_secs(2)).await?.is_none(), "a row overtook the first row of its key");
    kafka.create_topic(&late, 1, &[]).await?;
    let mut arrivals = vec![stage::kafka_arrival(&kafka.consume(&late, 1, wait::SOON).await?[0])?];
    records.extend(reader.take(BEHIND, wait::SOON).await?);
    for record in &records {
        arrivals.push(stage::kafka_arrival(record)?);
    }
    ledger::check(&journal.entries(), &arrivals).require(0)
}
