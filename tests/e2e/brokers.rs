//! Brokers as they are: every type of queue, alternate exchanges, exchanges bound to exchanges, virtual hosts without
//! permission, queues and topics that go and come again, topics that grow or keep the last of each key only.

use std::collections::HashSet;
use std::time::Duration;

use anyhow::{Context, Result};
use lapin::ExchangeKind;
use lapin::options::{ExchangeBindOptions, ExchangeDeclareOptions};
use lapin::types::{AMQPValue, FieldTable};
use outbox_tests::kafka::Kafka;
use outbox_tests::own_services::rabbitmqctl;
use outbox_tests::rabbit::{QueueType, Received};
use outbox_tests::relay::Launch;
use outbox_tests::vhost::Vhost;
use outbox_tests::wait::{self, SOON};
use outbox_tests::writer::Row;
use outbox_tests::{rabbit::Rabbit, services};

use crate::scene::{Broker, Kind, Scene};
use crate::stage::Stage;

const ROWS: usize = 60;

async fn insert(stage: &Stage, topic: &str, first: usize) -> Result<()> {
    let client = stage.database.client().await?;
    for number in first..first + ROWS {
        Row::new(&format!("{topic}:{number}"), topic).key(&format!("k{}", number % 5)).insert(&client).await?;
    }
    Ok(())
}

async fn wait_sent(stage: &Stage, rows: usize) -> Result<()> {
    let client = stage.database.client().await?;
    let sql = "SELECT count(*) FROM outbox.message WHERE sent_at IS NOT NULL";
    let sent = || async { Ok(client.query_one(sql, &[]).await?.try_get::<_, i64>(0)? == rows as i64) };
    wait::until_true(&format!("{rows} rows to be marked"), SOON, sent).await
}

/// Each row once, and each key in the order of its numbers.
fn once_and_in_order(received: &[Received], rows: usize) -> Result<()> {
    let mut last = std::collections::HashMap::new();
    let mut seen = HashSet::new();
    for message in received {
        let id = message.message_id.clone().context("a message without id")?;
        let number: usize = id.rsplit_once(':').context("no number")?.1.parse()?;
        assert!(seen.insert(number), "{id} came twice");
        let before = last.insert(message.header_text("ordering-key"), number);
        assert!(before.is_none_or(|before| before < number), "{id} came after {before:?}");
    }
    assert_eq!(seen.len(), rows);
    Ok(())
}

#[tokio::test]
async fn classic_quorum_and_stream_queues_get_each_row_once_in_order() -> Result<()> {
    let stage = Stage::unbound(&services::database_url()?).await?;
    stage.rabbit.exchange(&stage.exchange).await?;
    let kinds = [("classic", QueueType::Classic), ("quorum", QueueType::Quorum), ("stream", QueueType::Stream)];
    for (name, kind) in kinds {
        stage.rabbit.queue(&stage.rabbit.unique(name), kind, &[]).await?;
        stage.rabbit.bind(&stage.rabbit.unique(name), &stage.exchange, name).await?;
    }
    let mut relay = stage.launch().start()?;
    for (name, _) in kinds {
        insert(&stage, name, 0).await?;
    }
    wait_sent(&stage, 3 * ROWS).await?;
    for (name, kind) in kinds {
        let queue = stage.rabbit.unique(name);
        let mut reader = match kind {
            QueueType::Stream => stage.rabbit.stream_reader(&queue).await?,
            QueueType::Classic | QueueType::Quorum => stage.rabbit.reader(&queue, 100).await?,
        };
        let mut received = reader.take(ROWS, SOON).await?;
        received.extend(reader.next(Duration::from_millis(300)).await?);
        once_and_in_order(&received, ROWS).context(name)?;
    }
    assert_eq!(relay.stop(SOON).await?, Some(0));
    Ok(())
}

/// What no queue of the exchange takes goes to the alternate one, and an exchange may feed another: both are routed, so
/// nothing is returned.
#[tokio::test]
async fn alternate_exchanges_and_bound_exchanges_count_as_routed() -> Result<()> {
    let stage = Stage::new().await?;
    let (front, side, side_queue) =
        (stage.rabbit.unique("front"), stage.rabbit.unique("side"), stage.rabbit.unique("side"));
    stage.rabbit.exchange_with_queue(&side, &side_queue).await?;
    let channel = stage.rabbit.channel().await?;
    let mut arguments = FieldTable::default();
    arguments.insert("alternate-exchange".into(), AMQPValue::LongString(side.as_str().into()));
    let options = ExchangeDeclareOptions { durable: true, auto_delete: true, ..ExchangeDeclareOptions::default() };
    channel.exchange_declare(front.as_str().into(), ExchangeKind::Topic, options, arguments).await?;
    let (to, from) = (stage.exchange.as_str().into(), front.as_str().into());
    channel.exchange_bind(to, from, "known".into(), ExchangeBindOptions::default(), FieldTable::default()).await?;
    let mut relay = stage.launch().env("OUTBOX__RABBITMQ__EXCHANGE", &front).start()?;
    insert(&stage, "known", 0).await?;
    insert(&stage, "unknown", 0).await?;
    wait_sent(&stage, 2 * ROWS).await?;
    once_and_in_order(&stage.rabbit.consume(&stage.queue, ROWS, SOON).await?, ROWS)?;
    once_and_in_order(&stage.rabbit.consume(&side_queue, ROWS, SOON).await?, ROWS)?;
    assert_eq!(relay.metrics().await?.sum("outbox_returned_messages_total", &[]), 0.0);
    assert_eq!(relay.stop(SOON).await?, Some(0));
    Ok(())
}

#[tokio::test]
async fn a_queue_that_is_deleted_and_made_again_gets_the_rows_that_waited() -> Result<()> {
    let stage = Stage::new().await?;
    let mut relay = stage.launch().env("OUTBOX__RETRY__MAX_MS", "500").start()?;
    insert(&stage, "t", 0).await?;
    wait_sent(&stage, ROWS).await?;
    once_and_in_order(&stage.rabbit.consume(&stage.queue, ROWS, SOON).await?, ROWS)?;
    stage.rabbit.delete_queue(&stage.queue).await?;
    insert(&stage, "t", ROWS).await?;
    let client = stage.database.client().await?;
    let held = "SELECT count(*) FROM outbox.held WHERE state = 'waiting' AND attempts = 0";
    let waits = || async { Ok(client.query_one(held, &[]).await?.try_get::<_, i64>(0)? == ROWS as i64) };
    wait::until_true("the rows to wait", SOON, waits).await?;
    stage.rabbit.queue(&stage.queue, QueueType::Classic, &[]).await?;
    stage.rabbit.bind(&stage.queue, &stage.exchange, "#").await?;
    wait_sent(&stage, 2 * ROWS).await?;
    once_and_in_order(&stage.rabbit.consume(&stage.queue, ROWS, SOON).await?, ROWS)?;
    assert_eq!(relay.stop(SOON).await?, Some(0));
    Ok(())
}

/// Without any permission starting is refused with a word of advice; without the right to write to one exchange only
/// its rows wait.
#[tokio::test]
async fn a_virtual_host_without_permission_is_refused_and_an_exchange_without_only_waits() -> Result<()> {
    let vhost = Vhost::create().await?;
    let broker = Broker::Rabbitmq(Rabbit::connect_to(vhost.url()).await?);
    let mut scene = Scene::at(&services::database_url()?, broker).await?;
    let Broker::Rabbitmq(rabbit) = &scene.broker else { anyhow::bail!("RabbitMQ is meant") };
    rabbit.exchange_with_queue("closed", "closed").await?;
    let user = format!("user-{}", fastrand::u64(..));
    rabbitmqctl(&["add_user", &user, "secret"]).await?;
    let url = vhost.url().replace("guest:guest", &format!("{user}:secret"));
    let launch = scene.launch_at(scene.database.url(), &url).config(crate::scene::ROUTE_BY_HEADER);
    let refused = launch.finish(SOON).await?;
    rabbitmqctl(&["set_permissions", "-p", vhost.name(), &user, "^$", "^amq\\.topic$", "^$"]).await?;
    let rows: Vec<Row> = (0..20).map(|_| scene.row_to("amq.topic", 1_000)).collect();
    let closed = scene.row_to("closed", 1_000);
    closed.insert(&scene.client).await?;
    scene.commit_rows(&rows).await?;
    let mut relay = launch.start()?;
    scene.read_distinct(20, SOON).await?;
    scene.wait_sent(20, SOON).await?;
    let waits = "SELECT reason, last_error FROM outbox.message_status WHERE state = 'waiting'";
    let found = wait::until("the row of the closed exchange to wait", SOON, || async {
        Ok(scene.client.query(waits, &[]).await?.into_iter().next())
    })
    .await?;
    let (reason, error): (String, String) = (found.try_get(0)?, found.try_get(1)?);
    assert_eq!(relay.stop(SOON).await?, Some(0));
    rabbitmqctl(&["delete_user", &user]).await?;
    assert_eq!(refused.code, Some(78), "{}", refused.stderr);
    assert!(refused.stderr.contains("rabbitmq") && !refused.stderr.contains("secret"), "{}", refused.stderr);
    assert!(error.contains("closed"), "{reason}: {error}");
    Ok(())
}

#[tokio::test]
async fn a_topic_that_is_deleted_and_made_again_gets_the_rows_that_waited() -> Result<()> {
    let test = "a_topic_that_is_deleted_and_made_again_gets_the_rows_that_waited";
    let Some(kafka) = Kafka::connect_or_skip(test)? else { return Ok(()) };
    let mut scene = Scene::at(&services::database_url()?, Broker::Kafka(kafka)).await?;
    let Broker::Kafka(kafka) = &scene.broker else { anyhow::bail!("Kafka is meant") };
    let topic = kafka.unique("remade");
    kafka.create_topic(&topic, 3, &[]).await?;
    let mut relay = scene.launch().env("OUTBOX__RETRY__MAX_MS", "500").start()?;
    for number in 0..ROWS {
        Row::new(&format!("before:{number}"), &topic).key(&format!("k{}", number % 5)).insert(&scene.client).await?;
    }
    scene.wait_sent(ROWS, SOON).await?;
    kafka.delete_topic(&topic).await?;
    for number in 0..ROWS {
        Row::new(&format!("after:{number}"), &topic).key(&format!("k{}", number % 5)).insert(&scene.client).await?;
    }
    let gone = || async { Ok(scene.waiting("no_topic").await? >= 1) };
    wait::until_true("rows to wait for their topic", SOON, gone).await?;
    assert_eq!(scene.attempts().await?, 0);
    kafka.create_topic(&topic, 2, &[]).await?;
    let records = kafka.consume(&topic, ROWS, SOON * 2).await?;
    let ids: HashSet<String> = records.iter().filter_map(outbox_tests::kafka::Received::id).collect();
    assert!(ids.len() == ROWS && ids.iter().all(|id| id.starts_with("after:")), "{ids:?}");
    scene.wait_sent(2 * ROWS, SOON).await?;
    // The scene's own topic is untouched by all that.
    scene.commit(20, 5).await?;
    scene.finish(0).await?;
    assert_eq!(relay.stop(SOON).await?, Some(0));
    Ok(())
}

#[tokio::test]
async fn partitions_that_are_added_get_their_share() -> Result<()> {
    let Some(mut scene) = Scene::new(Kind::Kafka, "partitions_that_are_added_get_their_share").await? else {
        return Ok(());
    };
    // Told often about the cluster, the producer learns of new partitions within the test.
    let config = "[kafka.properties]\n\"topic.metadata.refresh.interval.ms\" = \"500\"\n";
    let mut relay = scene.launch().config(config).start()?;
    scene.commit(100, 50).await?;
    scene.wait_sent(100, SOON).await?;
    let Broker::Kafka(kafka) = &scene.broker else { anyhow::bail!("Kafka is meant") };
    let topic = scene.topic.clone();
    kafka.add_partitions(&topic, 6).await?;
    let kafka = Kafka::at(kafka.brokers());
    let mut seen = HashSet::new();
    let mut sent = 100;
    // A key may change its partition when their number changes, so here only arrival counts.
    for _ in 0..60 {
        for number in 0..50 {
            let id = format!("more-{sent}-{number}");
            Row::new(&id, &topic).key(&format!("key-{number}")).insert(&scene.client).await?;
        }
        sent += 50;
        scene.wait_sent(sent, SOON).await?;
        seen = kafka.consume(&topic, sent, SOON).await?.iter().map(|record| record.partition).collect();
        if seen.len() == 6 {
            break;
        }
    }
    assert_eq!(seen.len(), 6, "only partitions {seen:?} got rows");
    assert_eq!(kafka.stored(&topic).await?, sent, "each row is there once");
    assert_eq!(relay.stop(SOON).await?, Some(0));
    Ok(())
}

/// A compacted topic refuses records without a key: their rows use up their attempts and are parked, the others flow.
#[tokio::test]
async fn a_compacted_topic_takes_rows_with_a_key_and_parks_those_without() -> Result<()> {
    let test = "a_compacted_topic_takes_rows_with_a_key_and_parks_those_without";
    let Some(kafka) = Kafka::connect_or_skip(test)? else { return Ok(()) };
    let scene = Scene::at(&services::database_url()?, Broker::Kafka(kafka)).await?;
    let Broker::Kafka(kafka) = &scene.broker else { anyhow::bail!("Kafka is meant") };
    let topic = kafka.unique("compacted");
    kafka.create_topic(&topic, 1, &[("cleanup.policy", "compact")]).await?;
    for number in 0..50 {
        let row = Row::new(&format!("row-{number}"), &topic);
        let row = if number % 10 == 5 { row } else { row.key(&format!("k{number}")) };
        row.insert(&scene.client).await?;
    }
    let config = "[retry]\nattempts_max = 2\nattempts_min_age_ms = 0\ninitial_ms = 50\nmax_ms = 100\n";
    let mut relay = scene.launch().config(config).start()?;
    scene.wait_sent(45, SOON).await?;
    let parked = || async { Ok(scene.count("parked").await? == 5) };
    wait::until_true("the rows without key to be parked", SOON, parked).await?;
    assert_eq!(kafka.stored(&topic).await?, 45, "each row is there once");
    let listed = Launch::new(["parked", "list"]).database(scene.database.url()).finish(SOON).await?;
    assert!(listed.stdout.contains("row-5"), "{}", listed.stdout);
    assert_eq!(relay.stop(SOON).await?, Some(0));
    Ok(())
}
