//! Losses and repetitions seen elsewhere when a broker refuses one row of many, or when a stop
//! comes while a client library still holds rows.

use std::time::Duration;

use anyhow::Result;
use lapin::ExchangeKind;
use lapin::options::ExchangeDeclareOptions;
use lapin::types::FieldTable;
use outbox_tests::rabbit::Rabbit;
use outbox_tests::relay::Relay;
use outbox_tests::vhost::Vhost;
use outbox_tests::{services, wait};

use crate::scene::{Broker, Kind, ROUTE_BY_HEADER, Scene};

/// Where the scene's queue is bound.
const GOOD: &str = "amq.topic";

fn rabbit(scene: &Scene) -> Result<&Rabbit> {
    match &scene.broker {
        Broker::Rabbitmq(rabbit) => Ok(rabbit),
        Broker::Kafka(_) => anyhow::bail!("a scene with RabbitMQ is meant"),
    }
}

/// Makes the exchange and lets the scene's queue have all its messages.
async fn make_exchange(scene: &Scene, exchange: &str) -> Result<()> {
    rabbit(scene)?.exchange(exchange).await?;
    rabbit(scene)?.bind(&scene.topic, exchange, "#").await
}

#[tokio::test]
async fn f02_progress_is_per_row() -> Result<()> {
    let mut scene = Scene::rabbitmq().await?;
    let missing = rabbit(&scene)?.unique("missing");
    let mut rows = vec![scene.row_to(&missing, 1_000)];
    rows.extend((0..20).map(|_| scene.row_to(GOOD, 1_000)));
    scene.commit_rows(&rows).await?;
    let mut relay = scene.launch().config(ROUTE_BY_HEADER).start()?;
    scene.wait_sent(20, wait::SOON).await?;
    scene.wait_waiting("no_exchange", 1).await?;
    assert_eq!(relay.stop(wait::SOON).await?, Some(0));

    // Neither a restart nor rows that came later make the relay forget the first.
    let later: Vec<_> = (0..20).map(|_| scene.row_to(GOOD, 1_000)).collect();
    scene.commit_rows(&later).await?;
    let mut relay = scene.launch().config(ROUTE_BY_HEADER).start()?;
    scene.wait_sent(40, wait::SOON).await?;
    scene.wait_waiting("no_exchange", 1).await?;
    assert_eq!(scene.attempts().await?, 0, "a missing exchange uses up no attempt");
    make_exchange(&scene, &missing).await?;
    scene.finish(0).await?;
    assert_eq!(relay.stop(wait::SOON).await?, Some(0));
    Ok(())
}

fn channels_closed(relay: &Relay) -> usize {
    relay.log().lines().filter(|line| line.contains("RabbitMQ closed a channel")).count()
}

/// Publishing to an internal exchange closes the channel, and nothing tells before.
async fn make_internal(scene: &Scene, exchange: &str) -> Result<()> {
    let channel = rabbit(scene)?.channel().await?;
    let options = ExchangeDeclareOptions { internal: true, ..ExchangeDeclareOptions::default() };
    let arguments = FieldTable::default();
    channel.exchange_declare(exchange.into(), ExchangeKind::Topic, options, arguments).await?;
    Ok(())
}

#[tokio::test]
async fn f07_after_twenty_closed_channels_only_an_ack_counts() -> Result<()> {
    let vhost = Vhost::create().await?;
    let broker = Broker::Rabbitmq(Rabbit::connect_to(vhost.url()).await?);
    let mut scene = Scene::at(&services::database_url()?, broker).await?;
    let internal: Vec<String> = (0..20).map(|number| format!("internal-{number}")).collect();
    for exchange in &internal {
        make_internal(&scene, exchange).await?;
    }
    let mut rows: Vec<_> = internal.iter().map(|exchange| scene.row_to(exchange, 1_000)).collect();
    let mut unroutable = scene.row_to(GOOD, 1_000);
    unroutable.topic = format!("{}.nowhere", scene.topic);
    rows.push(unroutable);
    rows.extend((0..5).map(|_| scene.row_to(GOOD, 1_000)));
    scene.commit_rows(&rows).await?;
    let mut relay = scene.launch().config(ROUTE_BY_HEADER).start()?;
    scene.wait_sent(5, wait::SOON).await?;
    scene.wait_waiting("unroutable", 1).await?;
    scene.wait_waiting("no_exchange", 20).await?;
    assert!(channels_closed(&relay) >= 20, "{} channels were closed", channels_closed(&relay));
    // The unroutable row is tried again and again, on channels that were opened after a closed one.
    let returned = || async { Ok(relay.metrics().await?.sum("outbox_returned_messages_total", &[]) >= 5.0) };
    wait::until_true("five more returns", wait::SOON, returned).await?;
    assert_eq!(scene.count("sent").await?, 5);
    assert_eq!(scene.attempts().await?, 0, "an exchange that takes nothing uses up no attempt");

    rabbit(&scene)?.bind(&scene.topic, GOOD, &format!("{}.nowhere", scene.topic)).await?;
    for exchange in &internal {
        rabbit(&scene)?.delete_exchange(exchange).await?;
        make_exchange(&scene, exchange).await?;
    }
    scene.finish(0).await?;
    assert_eq!(relay.stop(wait::SOON).await?, Some(0));
    Ok(())
}

#[tokio::test]
async fn f18_good_rows_go_exactly_once_beside_a_bad_one() -> Result<()> {
    let mut scene = Scene::rabbitmq().await?;
    let missing = rabbit(&scene)?.unique("missing");
    let rows: Vec<_> = (0..100).map(|place| scene.row_to(if place == 49 { &missing } else { GOOD }, 1_000)).collect();
    scene.commit_rows(&rows).await?;
    let mut relay = scene.launch().config(ROUTE_BY_HEADER).start()?;
    let passes = || async {
        let labels = [("reason", "no_exchange")];
        Ok(relay.metrics().await?.sum("outbox_publish_failures_total", &labels) >= 10.0)
    };
    wait::until_true("ten passes over the bad row", wait::SOON, passes).await?;
    assert_eq!(scene.count("sent").await?, 99);
    scene.read_distinct(99, wait::SOON).await?;
    scene.read_until_quiet(Duration::from_millis(300)).await?;
    assert_eq!(scene.arrivals(), 99, "a good row came twice");
    make_exchange(&scene, &missing).await?;
    scene.finish(0).await?;
    assert_eq!(relay.stop(wait::SOON).await?, Some(0));
    Ok(())
}

/// librdkafka keeps rows for seconds here; a stop must neither lose nor repeat them.
const LINGERING: &str = "[kafka.properties]\n\"linger.ms\" = \"5000\"\n";

/// Stops the relay in the middle of its work and compares its marks with what is in the topic.
async fn stop_in_the_middle(scene: &mut Scene, relay: &mut Relay, claimed: f64) -> Result<()> {
    let enough = || async { Ok(relay.metrics().await?.sum("outbox_claimed_messages_total", &[]) >= claimed) };
    wait::until_true("rows to be claimed", wait::SOON, enough).await?;
    assert_eq!(relay.stop(wait::SOON).await?, Some(0));
    let sent = scene.count("sent").await?;
    scene.read_distinct(sent, wait::SOON).await?;
    scene.read_until_quiet(Duration::from_millis(500)).await?;
    assert_eq!(scene.distinct(), sent, "sent is what was confirmed");
    let owned = "SELECT count(*) FROM outbox.lane WHERE owner IS NOT NULL";
    assert_eq!(scene.client.query_one(owned, &[]).await?.try_get::<_, i64>(0)?, 0, "lanes were not given back");
    Ok(())
}

#[tokio::test]
async fn f11_a_stop_flushes_what_librdkafka_holds() -> Result<()> {
    let Some(mut scene) = Scene::new(Kind::Kafka, "f11_a_stop_flushes_what_librdkafka_holds").await? else {
        return Ok(());
    };
    scene.commit(5_000, 500).await?;
    let mut relay = scene.launch().config(LINGERING).start()?;
    stop_in_the_middle(&mut scene, &mut relay, 1.0).await?;

    // Once the topic has confirmed its first row, many lie in librdkafka's queue together.
    let before = scene.distinct();
    let mut relay = scene.launch().config(LINGERING).start()?;
    scene.read_distinct(before + 1, wait::SOON).await?;
    stop_in_the_middle(&mut scene, &mut relay, 1_000.0).await?;
    assert!(scene.distinct() > before + 1, "nothing was flushed");
    assert!(scene.distinct() < 5_000, "the stop came too late to show anything");

    let mut relay = scene.launch().start()?;
    scene.finish(0).await?;
    assert_eq!(relay.stop(wait::SOON).await?, Some(0));
    Ok(())
}
