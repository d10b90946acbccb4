//! A queue that takes messages and confirms none, as a quorum queue without a majority does, holds up nobody but its
//! own rows.

use anyhow::{Context, Result};
use outbox_tests::own_services::rabbitmqctl;
use outbox_tests::rabbit::{QueueType, Rabbit, tell_process_of};
use outbox_tests::relay::Relay;
use outbox_tests::writer::Row;
use outbox_tests::{cleanup, wait};

use crate::scene::{Broker, Scene};

const ROWS: usize = 400;
/// So many that windows are full of them.
const SILENT_ROWS: usize = 2_000;
const TRIES: usize = 3;

/// A queue whose process is suspended.
struct SilentQueue {
    rabbit: Rabbit,
    name: String,
}

impl SilentQueue {
    /// It gets what goes to `amq.topic` under its own name.
    async fn new(rabbit: Rabbit, kind: QueueType) -> Result<Self> {
        let name = rabbit.unique("silent");
        rabbit.queue(&name, kind, &[]).await?;
        rabbit.bind(&name, "amq.topic", &name).await?;
        tell(&name, "suspend").await?;
        Ok(Self { rabbit, name })
    }

    async fn speak(&self) -> Result<()> {
        tell(&self.name, "resume").await
    }
}

/// A suspended process could not even be deleted.
impl Drop for SilentQueue {
    fn drop(&mut self) {
        let name = self.name.clone();
        cleanup::run("a suspended queue", async move { tell(&name, "resume").await });
    }
}

async fn tell(queue: &str, word: &str) -> Result<()> {
    rabbitmqctl(&["eval", &tell_process_of(queue, word)]).await.map(|_| ())
}

async fn sum(relay: &Relay, name: &str, labels: &[(&str, &str)]) -> Result<f64> {
    Ok(relay.metrics().await?.sum(name, labels))
}

async fn holds_up_nobody_else(kind: QueueType) -> Result<()> {
    let mut scene = Scene::rabbitmq().await?;
    let Broker::Rabbitmq(rabbit) = &scene.broker else { anyhow::bail!("the scene is RabbitMQ's") };
    let silent = SilentQueue::new(Rabbit::connect_to(rabbit.url()).await?, kind).await?;
    let launch = scene.launch().env("OUTBOX__CONFIRM__TIMEOUT_MS", "2000").env("OUTBOX__RETRY__MAX_MS", "1000");
    let mut relay = launch.start()?;
    // The first row to an exchange goes alone; these are not the first.
    scene.commit(ROWS / 2, 100).await?;
    scene.wait_sent(ROWS / 2, wait::SOON).await?;
    scene.client.batch_execute("BEGIN").await?;
    for number in 0..SILENT_ROWS {
        let row = Row::new(&format!("silent-{number}"), &silent.name).key(&format!("silent-{}", number / 2));
        row.insert(&scene.client).await?;
    }
    scene.client.batch_execute("COMMIT").await?;
    scene.commit(ROWS / 2, 100).await?;
    scene.wait_sent(ROWS, wait::SOON).await?;
    scene.wait_waiting("unknown", SILENT_ROWS / 2).await?;
    relay.wait_log("confirms nothing for this address", wait::SOON).await?;

    // One row at a time is tried, and nobody else's connection hears of it.
    let reconnects = || sum(&relay, "outbox_reconnects_total", &[("peer", "rabbitmq")]);
    let failures = || sum(&relay, "outbox_publish_failures_total", &[("reason", "unknown")]);
    let (connected, failed) = (reconnects().await?, failures().await?);
    for batch in 1..=TRIES {
        scene.commit(50, 50).await?;
        scene.wait_sent(ROWS + 50 * batch, wait::SOON).await?;
        let tried = || async { Ok(failures().await? >= failed + batch as f64) };
        wait::until_true("another row to be tried in vain", wait::SOON, tried).await?;
    }
    assert_eq!(reconnects().await?, connected, "a try ended the connection of others");
    assert_eq!(scene.attempts().await?, 0, "a queue that does not answer uses up no attempt");

    silent.speak().await?;
    scene.wait_all_sent(wait::SOON).await?;
    let duplicates = sum(&relay, "outbox_publish_unknown_total", &[]).await?;
    scene.finish(duplicates as usize).await?;
    in_order(&silent).await?;
    assert_eq!(relay.stop(wait::SOON).await?, Some(0));
    Ok(())
}

/// Every row of the silent queue is there, the first arrivals of a key in order.
async fn in_order(silent: &SilentQueue) -> Result<()> {
    let mut first: Vec<usize> = Vec::new();
    for message in silent.rabbit.consume_all(&silent.name, std::time::Duration::from_millis(500)).await? {
        let id = message.message_id.context("a message without id")?;
        let number = id.strip_prefix("silent-").context("a foreign id")?.parse()?;
        if !first.contains(&number) {
            assert!(number % 2 == 0 || first.contains(&(number - 1)), "{number} came before the row before it");
            first.push(number);
        }
    }
    assert_eq!(first.len(), SILENT_ROWS, "rows are missing");
    Ok(())
}

#[tokio::test]
async fn a_classic_queue_that_never_confirms_holds_up_nobody_else() -> Result<()> {
    holds_up_nobody_else(QueueType::Classic).await
}

#[tokio::test]
async fn a_quorum_queue_that_never_confirms_holds_up_nobody_else() -> Result<()> {
    holds_up_nobody_else(QueueType::Quorum).await
}
