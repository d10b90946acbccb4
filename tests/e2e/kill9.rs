//! kill -9 at random instants while rows flow: nothing is lost, the order of first arrivals of a
//! key stays, duplicates keep within the window, and what comes again comes with the same id and
//! the same bytes.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use outbox_tests::relay::Launch;
use outbox_tests::wait;

use crate::scene::{Kind, Scene};

/// Small, so that the bound on duplicates is tight.
const IN_FLIGHT_MAX: usize = 24;
/// More rows wait than can flow between two kills, so that each kill falls into the work.
const BACKLOG: usize = 400;
/// Rows that arrive between a start and the kill, at most.
const ARRIVALS_MAX: usize = 80;
const KEYS: usize = 20;

/// An instant is random, but a failure can be repeated: the seed is told, and may be given.
fn seeded() -> Result<fastrand::Rng> {
    let seed = match std::env::var("OUTBOX_TEST_SEED") {
        Ok(seed) => seed.parse().context("OUTBOX_TEST_SEED is no number")?,
        Err(_) => fastrand::u64(..),
    };
    eprintln!("OUTBOX_TEST_SEED={seed}");
    Ok(fastrand::Rng::with_seed(seed))
}

fn launch(scene: &Scene) -> Launch {
    scene
        .launch()
        .env("OUTBOX__LEASE__TTL_MS", "500")
        .env("OUTBOX__LOG__LEVEL", "warn")
        .env("OUTBOX__IN_FLIGHT_MAX", IN_FLIGHT_MAX.to_string())
}

async fn kill_repeatedly(kind: Kind, test: &str, kills: usize) -> Result<()> {
    let Some(mut scene) = Scene::new(kind, test).await? else { return Ok(()) };
    let mut random = seeded()?;
    let mut in_work = 0;
    let mut kill = 0;
    // A kill after all the work shows nothing and does not count.
    while in_work < kills {
        kill += 1;
        ensure!(kill <= 2 * kills, "the relay is done before it can be killed: {in_work} of {kill}");
        let unsent = scene.written() - scene.count("sent").await?;
        scene.commit(BACKLOG.saturating_sub(unsent), KEYS).await?;
        let mut relay = launch(&scene).start()?;
        let before = scene.arrivals();
        let wanted = before + random.usize(1..=ARRIVALS_MAX);
        while scene.arrivals() < wanted {
            let next = scene.next(wait::SOON).await?;
            next.with_context(|| format!("waited in vain for {} arrivals after kill {kill}", wanted - before))?;
        }
        relay.kill9().await?;
        in_work += usize::from(scene.count("sent").await? < scene.written());
    }
    let mut relay = launch(&scene).start()?;
    let report = scene.finish(kill * IN_FLIGHT_MAX).await?;
    assert_eq!(relay.stop(wait::SOON).await?, Some(0));
    eprintln!("{kind:?}, {kill} kills, {in_work} of them with rows unsent: {report}");
    assert_eq!(scene.attempts().await?, 0, "a kill uses up no attempt");
    Ok(())
}

#[tokio::test]
async fn kill9_loses_nothing_with_rabbitmq() -> Result<()> {
    kill_repeatedly(Kind::Rabbitmq, "kill9_loses_nothing_with_rabbitmq", 50).await
}

#[tokio::test]
async fn kill9_loses_nothing_with_kafka() -> Result<()> {
    kill_repeatedly(Kind::Kafka, "kill9_loses_nothing_with_kafka", 50).await
}

#[tokio::test]
#[ignore = "slow: 200 kills"]
async fn kill9_loses_nothing_with_rabbitmq_200_times() -> Result<()> {
    kill_repeatedly(Kind::Rabbitmq, "kill9_loses_nothing_with_rabbitmq_200_times", 200).await
}

#[tokio::test]
#[ignore = "slow: 200 kills"]
async fn kill9_loses_nothing_with_kafka_200_times() -> Result<()> {
    kill_repeatedly(Kind::Kafka, "kill9_loses_nothing_with_kafka_200_times", 200).await
}

/// The window as a kill shows it: all rows in flight come again, and nothing else.
async fn kill_before_the_marks(kind: Kind, test: &str) -> Result<()> {
    let Some(mut scene) = Scene::new(kind, test).await? else { return Ok(()) };
    // Marks wait for a lock on the lanes that this session holds, confirms do not. So do renewals,
    // hence the longer lease.
    scene.commit(KEYS, KEYS).await?;
    let mut relay = launch(&scene).env("OUTBOX__LEASE__TTL_MS", "3000").start()?;
    scene.read_distinct(1, wait::SOON).await?;
    scene.client.batch_execute("BEGIN; SELECT FROM outbox.lane FOR UPDATE").await?;
    scene.commit(200, KEYS).await?;
    scene.read_until_quiet(Duration::from_millis(300)).await?;
    relay.kill9().await?;
    scene.client.batch_execute("COMMIT").await?;
    // A mark that waited for the lock is still carried out, with nobody left to hear of it.
    let sessions = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
                    AND application_name = 'outbox-relay'";
    let gone = || async { Ok(scene.client.query_one(sessions, &[]).await?.get::<_, i64>(0) == 0) };
    wait::until_true("the dead relay's sessions to end", wait::SOON, gone).await?;
    let unmarked = scene.distinct() - scene.count("sent").await?;
    assert!(unmarked <= IN_FLIGHT_MAX, "{unmarked} rows stood at the broker unmarked");
    assert!(unmarked > 0, "the kill came too late to show anything");
    let mut relay = launch(&scene).start()?;
    let report = scene.finish(IN_FLIGHT_MAX).await?;
    assert_eq!(report.duplicates, unmarked, "{report}");
    assert_eq!(relay.stop(wait::SOON).await?, Some(0));
    Ok(())
}

#[tokio::test]
async fn kill9_repeats_exactly_the_unmarked_rows_with_rabbitmq() -> Result<()> {
    kill_before_the_marks(Kind::Rabbitmq, "kill9_repeats_exactly_the_unmarked_rows_with_rabbitmq").await
}

#[tokio::test]
async fn kill9_repeats_exactly_the_unmarked_rows_with_kafka() -> Result<()> {
    kill_before_the_marks(Kind::Kafka, "kill9_repeats_exactly_the_unmarked_rows_with_kafka").await
}
