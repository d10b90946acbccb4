//! Promise 2: what was rolled back, or undone by a crash of the database, is never published; and what is
//! committed after such a crash is published, also under numbers that were given out before.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use fastrand::Rng;
use outbox_tests::journal::{Journal, Outcome};
use outbox_tests::ledger::Report;
use outbox_tests::own_services::{OwnServices, Service};
use outbox_tests::rabbit::Received;
use outbox_tests::relay::{Launch, Relay};
use outbox_tests::wait;
use outbox_tests::writer::{Row, Writer};
use tokio_postgres::Client;

use crate::stage::{self, Stage};

const ROUNDS: usize = 20;

/// A relay waits longer for its database after each of several crashes in a row, so it gets a few crashes and is
/// then replaced by a new one with a new database.
const ROUNDS_OF_ONE_RELAY: usize = 5;

#[tokio::test]
async fn rolled_back_rows_never_arrive() -> Result<()> {
    let stage = Stage::new().await?;
    let mut reader = stage.rabbit.reader(&stage.queue, 100).await?;
    let _relay = stage.launch().start()?;
    let journal = Journal::default();
    let mut writer = Writer::new(stage.database.client().await?, journal.clone());
    let row = |name: &str, number: usize| Row::new(&format!("{name}-{number}"), "a").key("k");
    for number in 0..100 {
        writer.roll_back(&[row("back", number), row("also-back", number)]).await?;
        writer.commit(&[row("kept", number)]).await?;
        roll_back_to_savepoint(writer.client(), &row("undone", number)).await?;
        journal.record(row("undone", number).entry(journal.next_number(Some("k")), Outcome::RolledBack));
    }
    let mut received = reader.take(100, wait::SOON).await?;
    received.extend(reader.take_until_quiet(Duration::from_millis(500)).await?);
    stage::judge(&journal.entries(), &received)?.require(0)
}

async fn roll_back_to_savepoint(client: &mut Client, row: &Row) -> Result<()> {
    let mut transaction = client.transaction().await?;
    let savepoint = transaction.savepoint("s").await?;
    row.insert(&savepoint).await?;
    savepoint.rollback().await?;
    Ok(transaction.commit().await?)
}

/// A PostgreSQL of this test alone that leaves asynchronous commits in memory for as long as a round lasts, and
/// crashes like a machine that loses power: nothing of it is flushed on the way down.
struct Fragile {
    own: OwnServices,
    url: String,
}

impl Fragile {
    async fn start() -> Result<Self> {
        let own = OwnServices::start(&[Service::Postgres]).await?;
        let url = own.address(Service::Postgres)?;
        let client = outbox_tests::database::connect(&url).await?;
        for setting in ["wal_writer_delay = '10s'", "checkpoint_timeout = '1h'", "autovacuum = off"] {
            client.batch_execute(&format!("ALTER SYSTEM SET {setting}")).await?;
        }
        drop(client);
        let fragile = Self { own, url };
        // The writer of WAL sleeps by the new setting from its start.
        fragile.own.stop(Service::Postgres).await?;
        fragile.own.resume(Service::Postgres).await?;
        Ok(fragile)
    }

    async fn stage(&self) -> Result<Stage> {
        let stage = Stage::on(&self.url).await?;
        // Of the relay, too, only the fence flushes: heartbeats would hide that it is missing.
        let setting = format!("ALTER DATABASE {} SET synchronous_commit = off", stage.database.name());
        stage.database.client().await?.batch_execute(&setting).await?;
        Ok(stage)
    }

    async fn crash(&self) -> Result<()> {
        self.own.crash(Service::Postgres).await
    }

    async fn resume(&self) -> Result<()> {
        self.own.resume(Service::Postgres).await
    }
}

/// Marks are committed without a flush here, so each crash may take back those of all rows so far.
fn repeats_max(rows_of_a_round: usize) -> usize {
    rows_of_a_round * ROUNDS_OF_ONE_RELAY * (ROUNDS_OF_ONE_RELAY + 1) / 2
}

/// What one relay went through.
struct Life {
    report: Report,
    /// Rounds in which the crash undid the commit, or took numbers back.
    effective: usize,
}

/// Commits one row without waiting for its flush.
async fn commit_in_memory(stage: &Stage, row: &Row) -> Result<()> {
    let mut client = stage.database.client().await?;
    let transaction = client.transaction().await?;
    transaction.batch_execute("SET LOCAL synchronous_commit = off").await?;
    row.insert(&transaction).await?;
    Ok(transaction.commit().await?)
}

/// Commits a row and lets the fence make it durable, so that the relay is known to work.
async fn settle(stage: &Stage, id: &str, reader: &mut outbox_tests::rabbit::Reader) -> Result<Vec<Received>> {
    let client = stage.database.client().await?;
    client.batch_execute("SET synchronous_commit = on").await?;
    Row::new(id, "a").insert(&client).await?;
    let mut received = Vec::new();
    loop {
        let message = reader.next(wait::SOON).await?.with_context(|| format!("{id} never came"))?;
        let found = message.message_id.as_deref() == Some(id);
        received.push(message);
        if found {
            return Ok(received);
        }
    }
}

async fn exists(client: &Client, id: &str) -> Result<bool> {
    Ok(client.query_opt("SELECT FROM outbox.message WHERE idempotency_key = $1", &[&id]).await?.is_some())
}

/// Commits, waits for the arrival (every other round) or not at all, and crashes. After the restart the table says
/// whether the row ever happened.
async fn lose_commits(fragile: &Fragile, launch: impl Fn(&Stage) -> Result<Launch>, seed: u64) -> Result<Life> {
    let mut random = Rng::with_seed(seed);
    let stage = fragile.stage().await?;
    let mut reader = stage.rabbit.reader(&stage.queue, 100).await?;
    let _relay: Relay = launch(&stage)?.start()?;
    let (journal, mut received, mut effective) = (Journal::default(), Vec::new(), 0);
    for round in 0..ROUNDS_OF_ONE_RELAY {
        let (ready, row) = (Row::new(&format!("ready-{round}"), "a"), Row::new(&format!("row-{round}"), "a"));
        received.extend(settle(&stage, &ready.id, &mut reader).await?);
        journal.record(ready.entry(round as u64, Outcome::Committed));
        commit_in_memory(&stage, &row).await?;
        // Either right after the publication, or a moment before or after the read.
        let patience = if round % 2 == 0 { Duration::from_secs(5) } else { Duration::from_millis(random.u64(..40)) };
        received.extend(reader.next(patience).await?);
        fragile.crash().await?;
        fragile.resume().await?;
        let exists = exists(&stage.database.client().await?, &row.id).await?;
        effective += usize::from(!exists);
        let outcome = if exists { Outcome::Committed } else { Outcome::RolledBack };
        journal.record(row.entry(round as u64, outcome));
    }
    received.extend(settle(&stage, "last", &mut reader).await?);
    journal.record(Row::new("last", "a").entry(0, Outcome::Committed));
    received.extend(reader.take_until_quiet(Duration::from_millis(300)).await?);
    Ok(Life { report: stage::judge(&journal.entries(), &received)?, effective })
}

#[tokio::test]
async fn a_commit_that_a_crash_undoes_is_never_published() -> Result<()> {
    let fragile = Fragile::start().await?;
    let mut undone = 0;
    for life in 0..ROUNDS / ROUNDS_OF_ONE_RELAY {
        let seed = fastrand::u64(..);
        eprintln!("life {life}: seed {seed}");
        let life = lose_commits(&fragile, |stage| Ok(stage.launch()), seed).await?;
        undone += life.effective;
        life.report.require(repeats_max(2))?;
    }
    eprintln!("{undone} of {ROUNDS} crashes undid the commit");
    assert!(undone > 0, "no crash undid a commit, so nothing was shown");
    Ok(())
}

#[tokio::test]
async fn the_mutant_without_fence_is_caught() -> Result<()> {
    let fragile = Fragile::start().await?;
    for life in 1..=ROUNDS / ROUNDS_OF_ONE_RELAY {
        let found = lose_commits(&fragile, |stage| stage.launch_mutant("no_fence"), fastrand::u64(..)).await?;
        if !found.report.phantom.is_empty() {
            eprintln!("caught in life {life}: {}", found.report);
            return Ok(());
        }
    }
    bail!("{ROUNDS} rounds did not tell the relay without fence from the true one")
}

const DRAWN: i64 = 200;
const KEYS: usize = 32;

/// Draws numbers that nobody keeps, lets the relay's positions move past them, and crashes: the numbers are given
/// out again, to rows that are committed for good.
async fn reuse_numbers(
    fragile: &Fragile,
    launch: impl Fn(&Stage) -> Result<Launch>,
    patience: Duration,
) -> Result<Life> {
    let stage = fragile.stage().await?;
    let mut reader = stage.rabbit.reader(&stage.queue, 100).await?;
    let _relay: Relay = launch(&stage)?.start()?;
    let (journal, mut received, mut effective) = (Journal::default(), Vec::new(), 0);
    for round in 0..ROUNDS_OF_ONE_RELAY {
        let ready = Row::new(&format!("ready-{round}"), "a");
        received.extend(settle(&stage, &ready.id, &mut reader).await?);
        journal.record(ready.entry(round as u64, Outcome::Committed));
        let drawn_to = draw_and_wait_for_the_relay(&stage).await?;
        fragile.crash().await?;
        fragile.resume().await?;
        let client = stage.database.client().await?;
        client.batch_execute("SET synchronous_commit = on").await?;
        let mut reused = false;
        for key in 0..KEYS {
            let row = Row::new(&format!("row-{round}-{key}"), "a").key(&format!("key-{key}"));
            reused |= row.insert(&client).await? <= drawn_to;
            journal.record(row.entry(round as u64, Outcome::Committed));
        }
        effective += usize::from(reused);
        let expected = journal.count(Outcome::Committed);
        stage::read_ids(&mut reader, &mut received, expected, patience).await?;
        let report = stage::judge(&journal.entries(), &received)?;
        if !report.lost.is_empty() {
            let passed = pass_over(&stage, &mut reader).await;
            passed.context("rows are missing, and later ones do not come either")?;
            return Ok(Life { report, effective });
        }
    }
    Ok(Life { report: stage::judge(&journal.entries(), &received)?, effective })
}

/// Commits so many rows that the last is above every number drawn before, and waits for it: what has not come then
/// was passed over, and the relay is not merely slow.
async fn pass_over(stage: &Stage, reader: &mut outbox_tests::rabbit::Reader) -> Result<()> {
    let statement = "INSERT INTO outbox.message (idempotency_key, topic, payload) \
                     SELECT 'passing-' || n, 'a', '{}' FROM generate_series(1, $1::bigint) AS n";
    stage.database.client().await?.execute(statement, &[&(2 * DRAWN)]).await?;
    settle(stage, "last", reader).await.map(|_| ())
}

/// The relay looks at the sequence once a second and then claims once more in every lane; nothing tells from
/// outside that it did, so it gets the time for it.
const HORIZON: Duration = Duration::from_millis(1_500);

/// The highest number drawn.
async fn draw_and_wait_for_the_relay(stage: &Stage) -> Result<i64> {
    let client = &stage.database.client().await?;
    let draw = "SELECT max(nextval('outbox.message_seq')) FROM generate_series(1, $1::bigint)";
    let drawn_to = client.query_one(draw, &[&DRAWN]).await?.try_get(0)?;
    let serves = || async { Ok(client.simple_query("").await.is_ok()) };
    wait::holds("the database serves", HORIZON, serves).await?;
    Ok(drawn_to)
}

#[tokio::test]
async fn a_number_given_out_twice_loses_nothing() -> Result<()> {
    let fragile = Fragile::start().await?;
    let mut reused = 0;
    for _ in 0..ROUNDS / ROUNDS_OF_ONE_RELAY {
        let life = reuse_numbers(&fragile, |stage| Ok(stage.launch()), wait::SOON).await?;
        reused += life.effective;
        life.report.require(repeats_max(KEYS + 1))?;
    }
    eprintln!("numbers were given out again after {reused} of {ROUNDS} crashes");
    assert!(reused > 0, "no number was given out twice, so nothing was shown");
    Ok(())
}

#[tokio::test]
async fn the_mutant_that_keeps_positions_is_caught() -> Result<()> {
    let fragile = Fragile::start().await?;
    for life in 1..=ROUNDS / ROUNDS_OF_ONE_RELAY {
        let found =
            reuse_numbers(&fragile, |stage| stage.launch_mutant("keep_positions"), Duration::from_secs(8)).await?;
        if !found.report.lost.is_empty() {
            eprintln!("caught in life {life}: {}", found.report);
            return Ok(());
        }
    }
    bail!("{ROUNDS} rounds did not tell the relay that keeps positions from the true one")
}
