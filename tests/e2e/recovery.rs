//! Starting, stopping and waiting, in whatever order the services come and go: the relay waits for
//! what is away, recovers by itself, and stops cleanly whatever it waits for.

use std::time::Duration;

use anyhow::Result;
use outbox_tests::kafka::Kafka;
use outbox_tests::metrics;
use outbox_tests::own_services::{OwnServices, Service};
use outbox_tests::proxy::{Direction, Proxy};
use outbox_tests::rabbit::Rabbit;
use outbox_tests::relay::{Launch, Relay};
use outbox_tests::{services, wait};
use tokio::time::Instant;

use crate::scene::{Broker, Kind, Scene};

/// A stop that waits for nothing in flight is quick; this leaves room for a loaded machine.
const STOP: Duration = Duration::from_secs(10);

async fn lives_and_sends_nothing(relay: &Relay, scene: &Scene) -> Result<()> {
    let admin = relay.admin().await?;
    let waits = || async {
        let (live, ready) = (metrics::get(admin, "/livez").await?, metrics::get(admin, "/readyz").await?);
        Ok(live.status == 200 && ready.status == 503 && scene.count("sent").await? == 0)
    };
    wait::holds("the relay waits, alive and not ready", Duration::from_secs(2), waits).await
}

/// The relay is there first, then the database comes, then the broker.
async fn started_first(kind: Kind, test: &str) -> Result<()> {
    let Some(mut scene) = Scene::new(kind, test).await? else { return Ok(()) };
    let database = Proxy::start(scene.database.port()?).await?;
    let broker = scene.broker_proxy().await?;
    database.take_away();
    broker.take_away();
    scene.commit(100, 10).await?;
    let launch = scene.launch_at(&scene.database.url_through(database.port())?, &broker.address);
    let mut relay = launch.start()?;
    relay.wait_log("the database is away", wait::SOON).await?;
    lives_and_sends_nothing(&relay, &scene).await?;
    database.heal();
    relay.wait_log("database session is up", wait::SOON).await?;
    lives_and_sends_nothing(&relay, &scene).await?;
    broker.heal();
    scene.finish(0).await?;
    relay.wait_ready(wait::SOON).await?;
    assert_eq!(relay.stop(STOP).await?, Some(0));
    Ok(())
}

#[tokio::test]
async fn a_relay_started_before_database_and_rabbitmq_waits_for_both() -> Result<()> {
    started_first(Kind::Rabbitmq, "a_relay_started_before_database_and_rabbitmq_waits_for_both").await
}

#[tokio::test]
async fn a_relay_started_before_database_and_kafka_waits_for_both() -> Result<()> {
    started_first(Kind::Kafka, "a_relay_started_before_database_and_kafka_waits_for_both").await
}

#[tokio::test]
async fn a_stop_is_clean_while_the_database_is_waited_for() -> Result<()> {
    let scene = Scene::rabbitmq().await?;
    let database = Proxy::start(scene.database.port()?).await?;
    let launch = scene.launch_at(&scene.database.url_through(database.port())?, &scene.broker_address());
    // From the start, and after it was there.
    database.take_away();
    let mut relay = launch.start()?;
    relay.wait_log("the database is away", wait::SOON).await?;
    assert_eq!(relay.stop(STOP).await?, Some(0));
    database.heal();
    let mut relay = launch.start()?;
    relay.wait_ready(wait::SOON).await?;
    database.take_away();
    relay.wait_log("no database session", wait::SOON).await?;
    assert_eq!(relay.stop(STOP).await?, Some(0));
    Ok(())
}

/// A statement waits 15 s for a silent database; a stop does not wait with it.
#[tokio::test]
async fn a_stop_ends_in_time_while_the_database_is_silent() -> Result<()> {
    let mut scene = Scene::rabbitmq().await?;
    let database = Proxy::start(scene.database.port()?).await?;
    let launch = scene
        .launch_at(&scene.database.url_through(database.port())?, &scene.broker_address())
        .env("OUTBOX__SHUTDOWN__GRACE_MS", "1000");
    let mut relay = launch.start()?;
    scene.commit(10, 10).await?;
    scene.wait_all_sent(wait::SOON).await?;
    database.stall(Direction::Replies);
    scene.commit(10, 10).await?;
    assert_eq!(relay.stop(STOP).await?, Some(0));
    relay.wait_log("did not answer within the time for a stop", STOP).await?;
    let mut relay = scene.launch().start()?;
    scene.finish(10).await?;
    assert_eq!(relay.stop(STOP).await?, Some(0));
    Ok(())
}

async fn stopped_without_broker(kind: Kind, test: &str) -> Result<()> {
    let Some(mut scene) = Scene::new(kind, test).await? else { return Ok(()) };
    let broker = scene.broker_proxy().await?;
    // Rows that were handed over when the broker went away are waited for within the grace.
    let launch = scene.launch_at(scene.database.url(), &broker.address).env("OUTBOX__SHUTDOWN__GRACE_MS", "2000");
    scene.commit(100, 10).await?;
    broker.take_away();
    let mut relay = launch.start()?;
    relay.wait_log("database session is up", wait::SOON).await?;
    assert_eq!(relay.stop(STOP).await?, Some(0));
    broker.heal();
    let mut relay = launch.start()?;
    scene.wait_all_sent(wait::SOON).await?;
    broker.take_away();
    scene.commit(100, 10).await?;
    relay.wait_log("broker link is down", wait::SOON).await?;
    assert_eq!(relay.stop(STOP).await?, Some(0));
    broker.heal();
    let mut relay = launch.start()?;
    scene.finish(0).await?;
    assert_eq!(relay.stop(STOP).await?, Some(0));
    Ok(())
}

#[tokio::test]
async fn a_stop_is_clean_while_rabbitmq_is_waited_for() -> Result<()> {
    stopped_without_broker(Kind::Rabbitmq, "a_stop_is_clean_while_rabbitmq_is_waited_for").await
}

#[tokio::test]
async fn a_stop_is_clean_while_kafka_is_waited_for() -> Result<()> {
    stopped_without_broker(Kind::Kafka, "a_stop_is_clean_while_kafka_is_waited_for").await
}

fn with_lease(scene: &Scene, lease: Duration) -> Launch {
    scene.launch().env("OUTBOX__LEASE__TTL_MS", lease.as_millis().to_string())
}

#[tokio::test]
async fn a_second_relay_waits_for_the_leases_and_then_takes_over() -> Result<()> {
    let lease = Duration::from_secs(20);
    let mut scene = Scene::rabbitmq().await?;
    let mut first = with_lease(&scene, lease).start()?;
    scene.commit(10, 10).await?;
    scene.wait_sent(10, wait::SOON).await?;
    first.kill9().await?;
    let killed = Instant::now();
    scene.commit(100, 10).await?;
    // It waits, and a stop does not wait with it.
    let mut second = with_lease(&scene, lease).start()?;
    second.wait_log("database session is up", wait::SOON).await?;
    assert_eq!(second.metrics().await?.sum("outbox_lanes_owned", &[]), 0.0, "leases that still run were taken");
    assert_eq!(second.stop(lease / 2).await?, Some(0));
    assert_eq!(scene.count("sent").await?, 10);

    let mut third = with_lease(&scene, lease).start()?;
    scene.read_distinct(110, wait::SOON).await?;
    let took = killed.elapsed();
    // The last renewal was at most a second before the kill.
    assert!(took >= lease - Duration::from_secs(3), "taken over after {took:?} of a lease of {lease:?}");
    scene.finish(0).await?;
    assert_eq!(third.stop(STOP).await?, Some(0));
    Ok(())
}

/// The service crashes in the middle of the work and comes back with its data.
async fn crashed(own: &OwnServices, service: Service, scene: &mut Scene) -> Result<()> {
    let mut relay = scene.launch().start()?;
    scene.commit(50, 10).await?;
    scene.wait_all_sent(wait::SOON * 2).await?;
    scene.commit(300, 10).await?;
    own.crash(service).await?;
    let admin = relay.admin().await?;
    let lives = || async { Ok(metrics::get(admin, "/livez").await?.status == 200) };
    wait::holds("the relay lives on", Duration::from_secs(1), lives).await?;
    own.resume(service).await?;
    scene.reconnect().await?;
    scene.wait_all_sent(wait::SOON * 2).await?;
    scene.commit(50, 10).await?;
    scene.wait_all_sent(wait::SOON).await?;
    scene.finish(300).await?;
    assert_eq!(scene.attempts().await?, 0, "a crash uses up no attempt");
    assert_eq!(relay.stop(STOP).await?, Some(0));
    Ok(())
}

#[tokio::test]
async fn a_crash_of_postgres_is_recovered_from() -> Result<()> {
    let own = OwnServices::start(&[Service::Postgres]).await?;
    let broker = Broker::Rabbitmq(Rabbit::connect().await?);
    let mut scene = Scene::at(&own.address(Service::Postgres)?, broker).await?;
    crashed(&own, Service::Postgres, &mut scene).await
}

#[tokio::test]
async fn a_crash_of_rabbitmq_is_recovered_from() -> Result<()> {
    let own = OwnServices::start(&[Service::Rabbitmq]).await?;
    let broker = Broker::Rabbitmq(Rabbit::connect_to(&own.address(Service::Rabbitmq)?).await?);
    let mut scene = Scene::at(&services::database_url()?, broker).await?;
    crashed(&own, Service::Rabbitmq, &mut scene).await
}

#[tokio::test]
async fn a_crash_of_kafka_is_recovered_from() -> Result<()> {
    if services::kafka_brokers()?.is_none() {
        services::skip_kafka("a_crash_of_kafka_is_recovered_from");
        return Ok(());
    }
    let own = OwnServices::start(&[Service::Kafka]).await?;
    let broker = Broker::Kafka(Kafka::at(&own.address(Service::Kafka)?));
    let mut scene = Scene::at(&services::database_url()?, broker).await?;
    crashed(&own, Service::Kafka, &mut scene).await
}
