//! Numbers are given out before they are committed: rows that become visible late must be found, once, and before
//! the later rows of their key.

mod storm;

use std::time::Duration;

use anyhow::{Result, bail};
use fastrand::Rng;
use outbox_tests::journal::{Journal, Outcome};
use outbox_tests::ledger::Report;
use outbox_tests::relay::Launch;
use outbox_tests::wait;
use outbox_tests::writer::{Row, Writer};

use crate::stage::{self, Stage};

/// More than a loaded machine needs between two arrivals; a mutant that loses rows is given less.
const PATIENCE: Duration = Duration::from_secs(60);
const QUIET: Duration = Duration::from_secs(4);
/// Every lane gets some.
const CANARIES: usize = 64;

/// Rows committed after everything else. Once they arrived the relay has passed whatever it has not delivered.
async fn send_canaries(stage: &Stage, journal: &Journal) -> Result<()> {
    let rows: Vec<Row> = (0..CANARIES).map(|number| Row::new(&format!("canary-{number}"), "a")).collect();
    Writer::new(stage.database.client().await?, journal.clone()).commit(&rows).await
}

/// What arrived of one storm, judged.
async fn weather(launch: impl Fn(&Stage) -> Result<Launch>, seed: u64, rows: usize, quiet: Duration) -> Result<Report> {
    eprintln!("seed {seed}");
    let stage = Stage::new().await?;
    let mut reader = stage.rabbit.reader(&stage.queue, 500).await?;
    let journal = Journal::default();
    // Small pages are cut more often, large ones see more of a lane at once.
    let page = ["20", "100", "500"][Rng::with_seed(seed).usize(..3)];
    let mut relay = launch(&stage)?.env("OUTBOX__BATCH__ROWS_MAX", page).start()?;
    let writing = async {
        storm::blow(&stage.database, &journal, seed, rows).await?;
        send_canaries(&stage, &journal).await
    };
    let reading = async {
        let mut received = Vec::new();
        let mut canaries = 0;
        while canaries < CANARIES {
            // Without one the ledger says what is missing, if only the last rows.
            let Some(message) = reader.next(PATIENCE).await? else { break };
            canaries += usize::from(message.message_id.as_deref().is_some_and(|id| id.starts_with("canary")));
            received.push(message);
        }
        anyhow::Ok(received)
    };
    let (written, received) = tokio::join!(writing, reading);
    written?;
    let mut received = received?;
    stage::read_ids(&mut reader, &mut received, journal.count(Outcome::Committed), quiet).await?;
    relay.stop(wait::SOON).await?;
    received.extend(reader.take_until_quiet(Duration::from_millis(200)).await?);
    let report = stage::judge(&journal.entries(), &received)?;
    eprintln!("{report}");
    Ok(report)
}

#[tokio::test]
async fn late_commits_of_24_adversarial_writers_are_delivered_once_and_in_order() -> Result<()> {
    weather(|stage| Ok(stage.launch()), fastrand::u64(..), 20_000, PATIENCE).await?.require(0)
}

#[tokio::test]
#[ignore = "slow: make test-slow"]
async fn late_commits_of_100_000_rows_and_several_seeds_are_delivered_once_and_in_order() -> Result<()> {
    for _ in 0..4 {
        weather(|stage| Ok(stage.launch()), fastrand::u64(..), 100_000, PATIENCE).await?.require(0)?;
    }
    Ok(())
}

/// Storms until the ledger tells the mutant from the true relay.
async fn catch(mutant: &str) -> Result<()> {
    const STORMS_MAX: usize = 12;
    for storm in 1..=STORMS_MAX {
        let report = weather(|stage| stage.launch_mutant(mutant), fastrand::u64(..), 4_000, QUIET).await?;
        if report.require(0).is_err() {
            eprintln!("{mutant} was caught by storm {storm}");
            return Ok(());
        }
    }
    bail!("{STORMS_MAX} storms did not tell the mutant {mutant} from the true relay")
}

#[tokio::test]
async fn the_mutant_with_a_cursor_is_caught() -> Result<()> {
    catch("cursor").await
}

#[tokio::test]
async fn the_mutant_with_a_visible_maximum_is_caught() -> Result<()> {
    catch("visible_maximum").await
}

/// A row's transaction stays open while the relay takes horizons, one a second, and claims under them in every lane.
async fn stay_open(launch: impl Fn(&Stage) -> Result<Launch>, quiet: Duration) -> Result<Report> {
    const CLAIMS: usize = 10;
    let (stage, journal) = (Stage::new().await?, Journal::default());
    let mut reader = stage.rabbit.reader(&stage.queue, 500).await?;
    let _relay = launch(&stage)?.start()?;
    let mut client = stage.database.client().await?;
    let open = client.transaction().await?;
    let late = Row::new("late", "a");
    late.insert(&open).await?;
    let mut writer = Writer::new(stage.database.client().await?, journal.clone());
    let mut received = Vec::new();
    for claim in 0..CLAIMS {
        let rows: Vec<Row> = (0..CANARIES).map(|number| Row::new(&format!("early-{claim}-{number}"), "a")).collect();
        writer.commit(&rows).await?;
        stage::read_ids(&mut reader, &mut received, journal.count(Outcome::Committed), quiet).await?;
        if received.len() < journal.count(Outcome::Committed) {
            // The wrong relay loses these too, where a horizon met their commit.
            break;
        }
        open.execute("SELECT pg_sleep(0.3)", &[]).await?;
    }
    open.commit().await?;
    journal.record(late.entry(0, Outcome::Committed));
    send_canaries(&stage, &journal).await?;
    stage::read_ids(&mut reader, &mut received, journal.count(Outcome::Committed), quiet).await?;
    stage::judge(&journal.entries(), &received)
}

#[tokio::test]
async fn a_row_whose_transaction_stays_open_over_horizons_is_not_passed_over() -> Result<()> {
    stay_open(|stage| Ok(stage.launch()), PATIENCE).await?.require(0)
}

#[tokio::test]
async fn the_mutant_without_a_transaction_id_of_its_own_is_caught() -> Result<()> {
    let report = stay_open(|stage| stage.launch_mutant("no_own_xid"), QUIET).await?;
    assert!(!report.lost.is_empty(), "{report}");
    Ok(())
}

#[tokio::test]
async fn the_mutant_with_a_sweep_apart_is_caught() -> Result<()> {
    catch("sweep_apart").await
}

const ROUNDS: usize = 500;
const WRITERS: usize = 8;

/// A inserts and waits, B inserts and commits, A commits.
async fn overtake(stage: &Stage, journal: Journal, writer: usize) -> Result<()> {
    let (mut a, b) = (stage.database.client().await?, stage.database.client().await?);
    let mut b = Writer::new(b, journal.clone());
    let mut random = Rng::with_seed(writer as u64);
    for round in (writer..ROUNDS).step_by(WRITERS) {
        let late = Row::new(&format!("late-{round}"), "a");
        let transaction = a.transaction().await?;
        late.insert(&transaction).await?;
        b.commit(&[Row::new(&format!("early-{round}"), "a")]).await?;
        // The relay reads B's row meanwhile, or just does not.
        transaction.execute("SELECT pg_sleep($1)", &[&(random.f64() * 0.06)]).await?;
        transaction.commit().await?;
        journal.record(late.entry(round as u64, Outcome::Committed));
    }
    Ok(())
}

async fn overtakes(launch: impl Fn(&Stage) -> Result<Launch>, quiet: Duration) -> Result<Report> {
    let stage = Stage::new().await?;
    let mut reader = stage.rabbit.reader(&stage.queue, 500).await?;
    let _relay = launch(&stage)?.start()?;
    let journal = Journal::default();
    let writers = (0..WRITERS).map(|writer| overtake(&stage, journal.clone(), writer));
    futures_util::future::try_join_all(writers).await?;
    send_canaries(&stage, &journal).await?;
    let mut received = Vec::new();
    stage::read_ids(&mut reader, &mut received, 2 * ROUNDS + CANARIES, quiet).await?;
    stage::judge(&journal.entries(), &received)
}

#[tokio::test]
async fn f01_a_row_that_commits_late_is_not_passed_over() -> Result<()> {
    overtakes(|stage| Ok(stage.launch()), PATIENCE).await?.require(0)
}

#[tokio::test]
async fn f01_the_mutant_with_a_cursor_is_caught() -> Result<()> {
    let report = overtakes(|stage| stage.launch_mutant("cursor"), QUIET).await?;
    assert!(report.lost.iter().any(|id| id.starts_with("late")), "{report}");
    assert!(!report.lost.iter().any(|id| id.starts_with("canary")), "the relay stood still: {report}");
    Ok(())
}
