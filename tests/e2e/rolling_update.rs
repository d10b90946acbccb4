//! An update while rows flow: the schema first, then one relay after the other, and the way back. The relay of before is
//! the last one whose schema was version 1; `make test-slow` builds it from the history.

use std::path::PathBuf;

use anyhow::{Context, Result};
use outbox_tests::database::Database;
use outbox_tests::kafka::Kafka;
use outbox_tests::rabbit::Rabbit;
use outbox_tests::relay::{Launch, Relay};
use outbox_tests::wait;

use crate::scene::{Broker, Kind, Scene};

fn before() -> Result<PathBuf> {
    let binary = std::env::var_os("OUTBOX_BEFORE_BIN").context("OUTBOX_BEFORE_BIN: see tests/before.sh")?;
    Ok(PathBuf::from(binary))
}

async fn migrate(launch: &Launch, database: &Database) -> Result<i64> {
    let done = launch.finish(wait::SOON).await?;
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    let version = "SELECT max(version)::bigint FROM outbox.migration";
    Ok(database.client().await?.query_one(version, &[]).await?.try_get(0)?)
}

/// The next one joins while rows are there, the one at work leaves, and more rows come meanwhile.
async fn take_turns(scene: &mut Scene, relays: &mut [Relay], next: &Launch) -> Result<()> {
    for relay in relays {
        scene.commit(150, 20).await?;
        let arrived = scene.distinct();
        let mut joins = next.start()?;
        scene.read_distinct(arrived + 20, wait::SOON).await?;
        relay.sigterm()?;
        scene.commit(50, 20).await?;
        assert_eq!(relay.wait_exit(wait::SOON).await?.code(), Some(0));
        std::mem::swap(relay, &mut joins);
    }
    Ok(())
}

async fn update_and_back(kind: Kind) -> Result<()> {
    let broker = match kind {
        Kind::Rabbitmq => Broker::Rabbitmq(Rabbit::connect().await?),
        Kind::Kafka => match Kafka::connect_or_skip("a_rolling_update_from_the_version_before")? {
            Some(kafka) => Broker::Kafka(kafka),
            None => return Ok(()),
        },
    };
    let database = Database::empty().await?;
    let migrate_with = |binary: PathBuf| Launch::new(["migrate"]).binary(binary).database(database.url());
    let (migrate_before, migrate_now) = (migrate_with(before()?), migrate_with(outbox_tests::relay::binary()));
    assert_eq!(migrate(&migrate_before, &database).await?, 1, "OUTBOX_BEFORE_BIN is not of before");
    let mut scene = Scene::on(database, broker).await?;
    let now = scene.launch();
    let older = now.clone().binary(before()?);

    let mut relays = vec![older.start()?, older.start()?];
    scene.commit(500, 20).await?;
    scene.read_distinct(20, wait::SOON).await?;
    // Under the feet of relays at work.
    assert!(migrate(&migrate_now, &scene.database).await? > 1);
    scene.commit(500, 20).await?;
    for _ in 0..3 {
        take_turns(&mut scene, &mut relays, &now).await?;
        take_turns(&mut scene, &mut relays, &older).await?;
    }
    take_turns(&mut scene, &mut relays, &now).await?;
    // Lost, phantom, altered, out of order or repeated: nothing of it.
    scene.finish(0).await?;
    for relay in &mut relays {
        assert_eq!(relay.stop(wait::SOON).await?, Some(0));
    }
    Ok(())
}

#[tokio::test]
#[ignore = "slow: builds the version before"]
async fn a_rolling_update_from_the_version_before_and_back_repeats_nothing_with_rabbitmq() -> Result<()> {
    update_and_back(Kind::Rabbitmq).await
}

#[tokio::test]
#[ignore = "slow: builds the version before"]
async fn a_rolling_update_from_the_version_before_and_back_repeats_nothing_with_kafka() -> Result<()> {
    update_and_back(Kind::Kafka).await
}
