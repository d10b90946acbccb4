//! Duplicates seen elsewhere: they occur around a fault only, within the window, with the same id
//! and the same bytes; clean stops cause none.

use std::time::Duration;

use anyhow::Result;
use outbox_tests::database::Database;
use outbox_tests::own_services::{OwnServices, Service};
use outbox_tests::proxy::{Direction, Proxy};
use outbox_tests::rabbit::Rabbit;
use outbox_tests::relay::{Launch, Relay};
use outbox_tests::{services, wait};

use crate::mutants::{must_be_caught, mutant};
use crate::scene::{Broker, Kind, Scene};

const ROWS: usize = 40;

async fn database_proxy(database: &Database) -> Result<(Proxy, String)> {
    let proxy = Proxy::start(database.port()?).await?;
    let url = database.url_through(proxy.port())?;
    Ok((proxy, url))
}

/// The broker has the rows, their confirms arrive, and no mark can be written any more. The relay
/// that lives on still knows what was confirmed; the one that takes over after a kill cannot.
async fn cut_after_the_confirms(scene: &mut Scene, kill: bool, altered: impl Fn(Launch) -> Launch) -> Result<()> {
    let (database, url) = database_proxy(&scene.database).await?;
    let broker = scene.broker_proxy().await?;
    let launch = altered(scene.launch_at(&url, &broker.address));
    let mut relay = launch.start()?;
    scene.commit(10, 10).await?;
    scene.wait_sent(10, wait::SOON).await?;
    for round in 0..3 {
        broker.stall(Direction::Replies);
        let before = scene.written();
        scene.commit(ROWS, 1_000).await?;
        scene.read_distinct(before + 1, wait::SOON).await?;
        scene.read_until_quiet(Duration::from_millis(300)).await?;
        database.take_away();
        broker.heal();
        if kill {
            relay.kill9().await?;
            database.heal();
            relay = launch.start()?;
        } else {
            let lost = || async { Ok(relay.log().matches("no database session").count() > round) };
            wait::until_true("the session to be lost", wait::SOON, lost).await?;
            database.heal();
        }
        scene.wait_all_sent(wait::SOON).await?;
    }
    let report = scene.finish(3 * ROWS).await?;
    eprintln!("after three faults: {report}");
    if kill {
        assert!(report.duplicates > 0, "the faults came too late to show anything");
    }
    assert_eq!(scene.attempts().await?, 0, "a lost database uses up no attempt");
    assert_eq!(relay.stop(wait::SOON).await?, Some(0));
    Ok(())
}

async fn f17(kind: Kind, test: &str, kill: bool) -> Result<()> {
    let Some(mut scene) = Scene::new(kind, test).await? else { return Ok(()) };
    cut_after_the_confirms(&mut scene, kill, |launch| launch).await
}

#[tokio::test]
async fn f17_a_database_lost_after_the_confirms_of_rabbitmq_repeats_at_most_the_window() -> Result<()> {
    f17(Kind::Rabbitmq, "f17_a_database_lost_after_the_confirms_of_rabbitmq_repeats_at_most_the_window", false).await
}

#[tokio::test]
async fn f17_a_database_lost_after_the_confirms_of_kafka_repeats_at_most_the_window() -> Result<()> {
    f17(Kind::Kafka, "f17_a_database_lost_after_the_confirms_of_kafka_repeats_at_most_the_window", false).await
}

#[tokio::test]
async fn f17_a_kill_after_the_confirms_of_rabbitmq_repeats_the_same_id_and_bytes() -> Result<()> {
    f17(Kind::Rabbitmq, "f17_a_kill_after_the_confirms_of_rabbitmq_repeats_the_same_id_and_bytes", true).await
}

#[tokio::test]
async fn f17_a_kill_after_the_confirms_of_kafka_repeats_the_same_id_and_bytes() -> Result<()> {
    f17(Kind::Kafka, "f17_a_kill_after_the_confirms_of_kafka_repeats_the_same_id_and_bytes", true).await
}

#[tokio::test]
async fn f17_catches_a_relay_that_makes_new_ids() -> Result<()> {
    let mut scene = Scene::rabbitmq().await?;
    let wrong = mutant(&scene.launch(), "new_id_on_retry")?;
    scene.commit(ROWS, 1_000).await?;
    let mut relay = wrong.start()?;
    scene.read_distinct(1, wait::SOON).await?;
    relay.kill9().await?;
    let mut relay = wrong.start()?;
    scene.wait_all_sent(wait::SOON).await?;
    scene.read_until_quiet(Duration::from_millis(300)).await?;
    assert_eq!(relay.stop(wait::SOON).await?, Some(0));
    must_be_caught("new_id_on_retry", scene.report().require(ROWS), "a promise was broken")
}

/// A new relay joins, the old one leaves, over and over, while rows are written.
async fn rolling_restarts(kind: Kind, test: &str, restarts: usize) -> Result<()> {
    let Some(mut scene) = Scene::new(kind, test).await? else { return Ok(()) };
    let mut relay = scene.launch().start()?;
    for _ in 0..restarts {
        scene.commit(150, 20).await?;
        let before = scene.distinct();
        let mut next = scene.launch().start()?;
        scene.read_distinct(before + 20, wait::SOON).await?;
        relay.sigterm()?;
        // More arrives while the old one stops.
        scene.commit(50, 20).await?;
        assert_eq!(relay.wait_exit(wait::SOON).await?.code(), Some(0));
        std::mem::swap(&mut relay, &mut next);
    }
    scene.finish(0).await?;
    assert_eq!(relay.stop(wait::SOON).await?, Some(0));
    Ok(())
}

#[tokio::test]
async fn f19_rolling_restarts_repeat_nothing_with_rabbitmq() -> Result<()> {
    rolling_restarts(Kind::Rabbitmq, "f19_rolling_restarts_repeat_nothing_with_rabbitmq", 10).await
}

#[tokio::test]
async fn f19_rolling_restarts_repeat_nothing_with_kafka() -> Result<()> {
    rolling_restarts(Kind::Kafka, "f19_rolling_restarts_repeat_nothing_with_kafka", 10).await
}

#[tokio::test]
#[ignore = "slow: 50 restarts"]
async fn f19_fifty_rolling_restarts_repeat_nothing_with_rabbitmq() -> Result<()> {
    rolling_restarts(Kind::Rabbitmq, "f19_fifty_rolling_restarts_repeat_nothing_with_rabbitmq", 50).await
}

#[tokio::test]
#[ignore = "slow: 50 restarts"]
async fn f19_fifty_rolling_restarts_repeat_nothing_with_kafka() -> Result<()> {
    rolling_restarts(Kind::Kafka, "f19_fifty_rolling_restarts_repeat_nothing_with_kafka", 50).await
}

async fn gauge(relay: &Relay, name: &str) -> Result<f64> {
    Ok(relay.metrics().await?.sum(name, &[("sink", "rabbitmq")]))
}

#[tokio::test]
async fn f24_a_memory_alarm_past_the_time_out_makes_rows_unknown() -> Result<()> {
    let own = OwnServices::start(&[Service::Rabbitmq]).await?;
    let broker = Broker::Rabbitmq(Rabbit::connect_to(&own.address(Service::Rabbitmq)?).await?);
    let mut scene = Scene::at(&services::database_url()?, broker).await?;
    let mut relay = scene.launch().env("OUTBOX__CONFIRM__TIMEOUT_MS", "2000").start()?;
    scene.commit(10, 10).await?;
    scene.wait_sent(10, wait::SOON).await?;
    own.rabbitmqctl(&["set_vm_memory_high_watermark", "0.00001"]).await?;
    scene.commit(ROWS, 1_000).await?;
    // The broker announces the alarm to a connection only once that publishes.
    let timed_out = || async { Ok(relay.metrics().await?.sum("outbox_publish_unknown_total", &[]) >= 1.0) };
    wait::until_true("an unknown outcome", wait::SOON, timed_out).await?;
    // Dropped, not only waited for: what the timed-out connection still held must not follow later.
    relay.wait_log("confirmed nothing more within 2000 ms", wait::SOON).await?;
    let unsent = || async { Ok(scene.count("sent").await? == 10) };
    wait::holds("nothing is sent during the alarm", Duration::from_secs(4), unsent).await?;
    assert_eq!(scene.count("pending").await?, ROWS);
    own.rabbitmqctl(&["set_vm_memory_high_watermark", "0.6"]).await?;
    scene.wait_all_sent(wait::SOON * 2).await?;
    let unknown = relay.metrics().await?.sum("outbox_publish_unknown_total", &[]);
    let report = scene.finish(unknown as usize).await?;
    eprintln!("{unknown} unknown outcomes: {report}");
    assert_eq!(scene.attempts().await?, 0, "an alarm uses up no attempt");
    assert_eq!(gauge(&relay, "outbox_sink_blocked").await?, 0.0);
    assert_eq!(relay.stop(wait::SOON).await?, Some(0));
    Ok(())
}

/// Statements run, and their answers come so late that the session is given up before.
#[tokio::test]
async fn f26_statements_whose_answers_are_late_leave_claims_and_marks_consistent() -> Result<()> {
    let mut scene = Scene::rabbitmq().await?;
    let (database, url) = database_proxy(&scene.database).await?;
    let broker = scene.broker_proxy().await?;
    // The heartbeat gives the session up after half a lease.
    let mut relay = scene.launch_at(&url, &broker.address).env("OUTBOX__LEASE__TTL_MS", "2000").start()?;
    scene.commit(10, 10).await?;
    scene.wait_sent(10, wait::SOON).await?;
    let mut unheard = 0;
    let losses = |relay: &Relay| relay.log().matches("no database session").count();
    for _ in 0..5 {
        broker.stall(Direction::Replies);
        let losses_before = losses(&relay);
        let (sent, before) = (scene.count("sent").await?, scene.written());
        scene.commit(100, 20).await?;
        scene.read_distinct(before + 1, wait::SOON).await?;
        database.stall(Direction::Replies);
        // Now marks are written, and nobody hears that they were; the same of claims.
        broker.heal();
        scene.commit(100, 20).await?;
        let lost = || async { Ok(losses(&relay) > losses_before) };
        wait::until_true("the session to be given up", wait::SOON, lost).await?;
        unheard += usize::from(scene.count("sent").await? > sent);
        database.heal();
        scene.wait_all_sent(wait::SOON).await?;
    }
    assert!(unheard > 0, "each session was given up before a mark");
    // A session that is lost repeats at most what was in flight, and here that is a round's rows.
    scene.finish(5 * 200).await?;
    assert_eq!(scene.attempts().await?, 0, "a late answer uses up no attempt");
    let held = scene.client.query_one("SELECT count(*) FROM outbox.held", &[]).await?;
    assert_eq!(held.try_get::<_, i64>(0)?, 0, "nothing waits that was sent");
    assert_eq!(relay.stop(wait::SOON).await?, Some(0));
    Ok(())
}

/// The owner stands still for longer than its lease, another takes over, and the first wakes up again.
#[tokio::test]
async fn f21_a_paused_relay_that_wakes_up_repeats_at_most_its_window() -> Result<()> {
    let mut scene = Scene::rabbitmq().await?;
    let mut paused = scene.launch().env("OUTBOX__IN_FLIGHT_MAX", "50").start()?;
    scene.commit(100, 20).await?;
    scene.wait_sent(100, wait::SOON).await?;
    let mut other = scene.launch().env("OUTBOX__IN_FLIGHT_MAX", "50").start()?;
    for _ in 0..3 {
        let before = scene.written();
        scene.commit(400, 20).await?;
        scene.read_distinct(before + 20, wait::SOON).await?;
        paused.sigstop()?;
        scene.commit(200, 20).await?;
        // Only a takeover brings the rest.
        scene.wait_all_sent(wait::SOON).await?;
        let written = scene.written();
        paused.sigcont()?;
        scene.commit(50, 20).await?;
        scene.read_distinct(written + 50, wait::SOON).await?;
    }
    let report = scene.finish(3 * 50).await?;
    eprintln!("after three pauses: {report}");
    for relay in [&mut paused, &mut other] {
        assert_eq!(relay.stop(wait::SOON).await?, Some(0));
    }
    Ok(())
}
