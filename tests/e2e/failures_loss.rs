//! Losses seen elsewhere: a row counts as sent only once the broker confirmed that very row, and
//! what a dead relay had claimed comes back.

use std::time::Duration;

use anyhow::Result;
use outbox_tests::proxy::Direction;
use outbox_tests::relay::{Launch, Relay};
use outbox_tests::wait;
use tokio::time::Instant;

use crate::mutants::{must_be_caught, mutant};
use crate::scene::{BrokerProxy, Kind, Scene};

const ROWS: usize = 50;

/// A relay that has sent its first rows through the proxy: topic and exchange are known to it.
async fn warm(scene: &mut Scene, launch: &Launch) -> Result<Relay> {
    scene.commit(10, 10).await?;
    let relay = launch.start()?;
    scene.wait_sent(10, wait::SOON).await?;
    Ok(relay)
}

async fn stays_unsent(scene: &Scene, count: usize, window: Duration) -> Result<()> {
    wait::holds("no row is marked before its confirm", window, || async { Ok(scene.count("sent").await? == count) })
        .await
}

async fn wait_claimed(relay: &Relay, count: f64) -> Result<()> {
    let claimed = || async { Ok(relay.metrics().await?.sum("outbox_claimed_messages_total", &[]) >= count) };
    wait::until_true("the rows to be claimed", wait::SOON, claimed).await
}

/// First nothing reaches the broker, and the relay dies; then nothing comes back from it.
async fn marks_follow_confirms(scene: &mut Scene, proxy: &BrokerProxy, launch: &Launch) -> Result<()> {
    let mut relay = warm(scene, launch).await?;
    proxy.stall(Direction::Requests);
    scene.commit(ROWS, ROWS).await?;
    wait_claimed(&relay, 60.0).await?;
    stays_unsent(scene, 10, Duration::from_millis(500)).await?;
    relay.kill9().await?;
    // The cut throws away what the dead relay had handed over.
    proxy.cut();
    proxy.heal();
    let mut relay = launch.start()?;
    scene.finish(0).await?;

    proxy.stall(Direction::Replies);
    let before = scene.distinct();
    scene.commit(ROWS, ROWS).await?;
    scene.read_distinct(before + 1, wait::SOON).await?;
    stays_unsent(scene, before, Duration::from_millis(500)).await?;
    proxy.heal();
    scene.finish(0).await?;
    assert_eq!(relay.stop(wait::SOON).await?, Some(0));
    Ok(())
}

async fn f06(kind: Kind, test: &str) -> Result<()> {
    let Some(mut scene) = Scene::new(kind, test).await? else { return Ok(()) };
    let proxy = scene.broker_proxy().await?;
    let launch = scene.launch_at(scene.database.url(), &proxy.address);
    marks_follow_confirms(&mut scene, &proxy, &launch).await
}

#[tokio::test]
async fn f06_a_row_is_marked_only_after_its_confirm_from_rabbitmq() -> Result<()> {
    f06(Kind::Rabbitmq, "f06_a_row_is_marked_only_after_its_confirm_from_rabbitmq").await
}

#[tokio::test]
async fn f06_a_row_is_marked_only_after_its_confirm_from_kafka() -> Result<()> {
    f06(Kind::Kafka, "f06_a_row_is_marked_only_after_its_confirm_from_kafka").await
}

#[tokio::test]
async fn f06_catches_a_relay_that_marks_before_the_confirm() -> Result<()> {
    let mut scene = Scene::rabbitmq().await?;
    let proxy = scene.broker_proxy().await?;
    let launch = scene.launch_at(scene.database.url(), &proxy.address);
    let launch = mutant(&launch, "mark_before_confirm")?;
    let checked = marks_follow_confirms(&mut scene, &proxy, &launch).await;
    must_be_caught("mark_before_confirm", checked, "no row is marked before its confirm")
}

const TIMEOUT: Duration = Duration::from_millis(2_000);

/// The broker answers nothing for twice the time-out, and then has lost what it had not read.
async fn time_out_is_unknown(scene: &mut Scene, proxy: &BrokerProxy, launch: &Launch) -> Result<()> {
    let mut relay = warm(scene, launch).await?;
    proxy.stall(Direction::Requests);
    proxy.stall(Direction::Replies);
    scene.commit(ROWS, ROWS).await?;
    wait_claimed(&relay, 60.0).await?;
    stays_unsent(scene, 10, TIMEOUT * 2).await?;
    let unknown = || async { Ok(relay.metrics().await?.sum("outbox_publish_unknown_total", &[]) >= 1.0) };
    wait::until_true("an unknown outcome to be counted", wait::SOON, unknown).await?;
    assert_eq!(scene.count("pending").await?, ROWS);
    proxy.cut();
    proxy.heal();
    scene.wait_all_sent(wait::SOON * 2).await?;
    // What had no answer in time may come twice, and nothing else.
    let unknown = relay.metrics().await?.sum("outbox_publish_unknown_total", &[]);
    scene.finish(unknown as usize).await?;
    assert_eq!(scene.attempts().await?, 0, "a time-out uses up no attempt");
    assert_eq!(relay.stop(wait::SOON).await?, Some(0));
    Ok(())
}

fn impatient(scene: &Scene, proxy: &BrokerProxy) -> Launch {
    let timeout = TIMEOUT.as_millis().to_string();
    scene.launch_at(scene.database.url(), &proxy.address).env("OUTBOX__CONFIRM__TIMEOUT_MS", timeout)
}

async fn f12(kind: Kind, test: &str) -> Result<()> {
    let Some(mut scene) = Scene::new(kind, test).await? else { return Ok(()) };
    let proxy = scene.broker_proxy().await?;
    let launch = impatient(&scene, &proxy);
    time_out_is_unknown(&mut scene, &proxy, &launch).await
}

#[tokio::test]
async fn f12_time_out_is_unknown_with_rabbitmq() -> Result<()> {
    f12(Kind::Rabbitmq, "f12_time_out_is_unknown_with_rabbitmq").await
}

#[tokio::test]
async fn f12_time_out_is_unknown_with_kafka() -> Result<()> {
    f12(Kind::Kafka, "f12_time_out_is_unknown_with_kafka").await
}

#[tokio::test]
async fn f12_catches_a_relay_that_marks_on_a_time_out() -> Result<()> {
    let mut scene = Scene::rabbitmq().await?;
    let proxy = scene.broker_proxy().await?;
    let launch = mutant(&impatient(&scene, &proxy), "mark_on_timeout")?;
    let checked = time_out_is_unknown(&mut scene, &proxy, &launch).await;
    must_be_caught("mark_on_timeout", checked, "no row is marked before its confirm")
}

const LEASE: Duration = Duration::from_millis(500);
/// What noticing the free lanes, publishing and a loaded machine may take beyond the lease.
const TAKEOVER_SLACK: Duration = Duration::from_millis(2_000);

/// The first relay claims rows and cannot reach the broker; killed, it leaves them to the other.
async fn one_takeover(scene: &mut Scene, proxy: &BrokerProxy) -> Result<Duration> {
    let lease = LEASE.as_millis().to_string();
    let launch = scene.launch_at(scene.database.url(), &proxy.address).env("OUTBOX__LEASE__TTL_MS", lease);
    let mut victim = launch.start()?;
    let shares = || async { Ok(victim.metrics().await?.sum("outbox_lanes_owned", &[]) >= 8.0) };
    wait::until_true("the relay to own its share", wait::SOON, shares).await?;
    let connected = || async { Ok(victim.metrics().await?.sum("outbox_sink_connected", &[]) >= 1.0) };
    wait::until_true("the relay to be connected", wait::SOON, connected).await?;
    proxy.stall(Direction::Requests);
    let before = scene.distinct();
    scene.commit(64, 64).await?;
    wait_claimed(&victim, 1.0).await?;
    victim.kill9().await?;
    let killed = Instant::now();
    proxy.cut();
    proxy.heal();
    scene.read_distinct(before + 64, wait::SOON).await?;
    Ok(killed.elapsed())
}

#[tokio::test]
async fn f14_rows_of_a_killed_relay_come_back_within_a_lease() -> Result<()> {
    let mut scene = Scene::rabbitmq().await?;
    let proxy = scene.broker_proxy().await?;
    let mut other = scene.launch().env("OUTBOX__LEASE__TTL_MS", LEASE.as_millis().to_string()).start()?;
    other.wait_ready(wait::SOON).await?;
    let mut took = Vec::new();
    for _ in 0..20 {
        took.push(one_takeover(&mut scene, &proxy).await?);
    }
    took.sort_unstable();
    eprintln!("20 takeovers took {took:?}");
    // A machine may stop for a while, but not each time.
    assert!(took[10] <= LEASE + TAKEOVER_SLACK, "half of the takeovers took longer: {took:?}");
    // Nothing of the killed relays reached the broker.
    scene.finish(0).await?;
    assert_eq!(other.stop(wait::SOON).await?, Some(0));
    Ok(())
}
