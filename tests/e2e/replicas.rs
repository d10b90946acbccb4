//! Three Kafka brokers, of which one and then two leave: what was confirmed stands on two, and what cannot be
//! confirmed waits.

use anyhow::Result;
use outbox_tests::kafka::Kafka;
use outbox_tests::own_services::{OwnServices, Service};
use outbox_tests::services;
use outbox_tests::wait::{self, SOON};

use crate::scene::{Broker, Scene};

const ROWS: usize = 300;
const CLUSTER: [Service; 3] = [Service::Kafka, Service::Kafka2, Service::Kafka3];

async fn commit(scene: &mut Scene) -> Result<()> {
    for _ in 0..10 {
        scene.commit(ROWS / 10, 30).await?;
    }
    Ok(())
}

#[tokio::test]
#[ignore = "slow: three brokers, each declared dead once"]
async fn of_three_brokers_one_may_leave_and_without_two_rows_wait() -> Result<()> {
    if Kafka::connect_or_skip("of_three_brokers_one_may_leave_and_without_two_rows_wait")?.is_none() {
        return Ok(());
    }
    let own = OwnServices::start(&CLUSTER).await?;
    let addresses: Vec<String> = CLUSTER.iter().map(|service| own.address(*service)).collect::<Result<_>>()?;
    let kafka = Kafka::at(&addresses.join(","));
    let topic = kafka.unique("replicated");
    kafka.create_replicated_topic(&topic, 6, 3, &[("min.insync.replicas", "2")]).await?;
    let mut scene = Scene::at(&services::database_url()?, Broker::Kafka(kafka)).await?;
    scene.topic = topic;
    let mut relay = scene.launch().env("OUTBOX__RETRY__MAX_MS", "500").start()?;
    commit(&mut scene).await?;
    scene.wait_sent(ROWS, SOON).await?;

    own.crash(Service::Kafka2).await?;
    commit(&mut scene).await?;
    scene.wait_sent(2 * ROWS, SOON * 2).await?;

    // One replica is left, which may not confirm alone.
    own.crash(Service::Kafka3).await?;
    commit(&mut scene).await?;
    let waits = || async { Ok(scene.count("waiting").await? > 0) };
    wait::until_true("rows to wait for a second replica", SOON * 2, waits).await?;
    own.resume(Service::Kafka3).await?;
    scene.wait_sent(3 * ROWS, SOON * 2).await?;
    own.resume(Service::Kafka2).await?;
    // What was under way when a broker died may be repeated.
    scene.finish(2 * ROWS).await?;
    assert_eq!(relay.metrics().await?.sum("outbox_parked_messages_total", &[]), 0.0);
    assert_eq!(relay.stop(SOON).await?, Some(0));
    Ok(())
}
