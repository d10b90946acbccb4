//! What Kafka refuses or has not got: a record that is too large, a name that it cannot have, a topic that comes
//! late, goes, comes again or grows. Only the rows in question wait or are parked; their neighbours arrive once.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result};
use outbox_tests::kafka::{Kafka, Received};
use outbox_tests::own_services::kafka_tool;
use outbox_tests::proxy::Direction;
use outbox_tests::wait::{self, SOON};
use outbox_tests::writer::Row;
use serde_json::json;

use crate::scene::{Broker, Kind, Scene};

const PARKED: &str = "SELECT count(*) FROM outbox.message_status WHERE state = 'parked' AND reason = $1";

fn kafka(scene: &Scene) -> Result<&Kafka> {
    match &scene.broker {
        Broker::Kafka(kafka) => Ok(kafka),
        Broker::Rabbitmq(_) => anyhow::bail!("a scene with Kafka is meant"),
    }
}

async fn wait_parked(scene: &Scene, reason: &str, count: i64) -> Result<()> {
    let parked = || async { Ok(scene.client.query_one(PARKED, &[&reason]).await?.try_get::<_, i64>(0)? == count) };
    wait::until_true(&format!("{count} rows to be parked as {reason}"), SOON, parked).await
}

/// Rows of the test's own among good ones, one after each: `bad` of them, in one transaction.
async fn commit_mixed(scene: &mut Scene, bad: Vec<Row>) -> Result<()> {
    for row in bad {
        scene.commit(5, 7).await?;
        row.insert(&scene.client).await?;
    }
    scene.commit(5, 7).await
}

/// Bytes that no compression makes smaller.
fn noise(bytes: usize) -> String {
    std::iter::repeat_with(fastrand::alphanumeric).take(bytes).collect()
}

/// 2 MB rows to a topic of Kafka's default limit, 20 in a row and 20 alone.
#[tokio::test]
async fn f13_f34_f36_a_row_above_the_topics_limit_is_parked_alone_counted_and_logged() -> Result<()> {
    let test = "f13_f34_f36_a_row_above_the_topics_limit_is_parked_alone_counted_and_logged";
    let Some(mut scene) = Scene::new(Kind::Kafka, test).await? else { return Ok(()) };
    let topic = scene.topic.clone();
    let large = |id: String| Row::new(&id, &topic).text(&noise(2_000_000));
    for number in 0..20 {
        large(format!("large-{number}")).insert(&scene.client).await?;
    }
    commit_mixed(&mut scene, (20..25).map(|number| large(format!("large-{number}")).key("key-1")).collect()).await?;
    let mut relay = scene.launch().start()?;
    wait_parked(&scene, "size", 25).await?;
    let good = scene.written();
    scene.read_distinct(good, SOON).await?;
    scene.wait_sent(good, SOON).await?;
    scene.read_until_quiet(Duration::from_millis(300)).await?;
    scene.report().require(0)?;
    let metrics = relay.metrics().await?;
    assert_eq!(metrics.sum("outbox_parked_messages_total", &[("reason", "size")]), 25.0);
    assert_eq!(metrics.sum("outbox_reconnects_total", &[("peer", "kafka")]), 0.0, "the producer survived");
    let line = relay.wait_log("large-24", SOON).await?;
    assert!(line.contains("row parked") && line.contains("size"), "{line}");
    assert_eq!(relay.stop(SOON).await?, Some(0));
    Ok(())
}

/// Against a small limit the border is found by the broker's own rule, and with compression it is the broker's word.
#[tokio::test]
async fn f34_rows_around_a_small_limit_arrive_or_are_parked_with_and_without_compression() -> Result<()> {
    let test = "f34_rows_around_a_small_limit_arrive_or_are_parked_with_and_without_compression";
    for compression in ["none", "lz4"] {
        let Some(mut scene) = Scene::new(Kind::Kafka, test).await? else { return Ok(()) };
        let small = kafka(&scene)?.unique("small");
        kafka(&scene)?.create_topic(&small, 1, &[("max.message.bytes", "100000")]).await?;
        scene.topic = small.clone();
        let large = [200_000, 2_000_000, 100_001, 130_000];
        let bad = large.iter().map(|bytes| Row::new(&format!("large-{bytes}"), &small).text(&noise(*bytes))).collect();
        commit_mixed(&mut scene, bad).await?;
        let fits = scene.row(7).text(&noise(90_000));
        scene.commit_rows(&[fits]).await?;
        let config = format!("[kafka.properties]\n\"compression.type\" = \"{compression}\"\n");
        let mut relay = scene.launch().config(&config).start()?;
        wait_parked(&scene, "size", 4).await?;
        let good = scene.written();
        scene.read_distinct(good, SOON).await?;
        scene.wait_sent(good, SOON).await?;
        scene.read_until_quiet(Duration::from_millis(300)).await?;
        scene.report().require(0)?;
        assert_eq!(relay.stop(SOON).await?, Some(0));
    }
    Ok(())
}

/// Where each key went: partition by key.
fn placement(records: &[Received]) -> Result<BTreeMap<String, i32>> {
    let key = |record: &Received| anyhow::Ok(String::from_utf8(record.key.clone().context("a record without key")?)?);
    records.iter().map(|record| Ok((key(record)?, record.partition))).collect()
}

#[tokio::test]
async fn f32_keys_go_where_kafkas_own_console_producer_puts_them() -> Result<()> {
    let test = "f32_keys_go_where_kafkas_own_console_producer_puts_them";
    let Some(scene) = Scene::new(Kind::Kafka, test).await? else { return Ok(()) };
    let (ours, theirs) = (kafka(&scene)?.unique("ours"), kafka(&scene)?.unique("theirs"));
    for topic in [&ours, &theirs] {
        kafka(&scene)?.create_topic(topic, 12, &[]).await?;
    }
    let keys: Vec<String> = (0..200).map(|number| format!("{}straße-{number}", "k".repeat(number % 9))).collect();
    for key in &keys {
        Row::new(&format!("id {key}"), &ours).key(key).insert(&scene.client).await?;
    }
    let mut relay = scene.launch().start()?;
    let input: String = keys.iter().map(|key| format!("{key}\tvalue\n")).collect();
    let program = "org.apache.kafka.tools.ConsoleProducer";
    let options = ["--topic", &theirs, "--bootstrap-server", kafka(&scene)?.brokers()];
    let parse = ["--reader-property", "parse.key=true"];
    kafka_tool(&[&[program], &options[..], &parse[..]].concat(), &input).await?;
    let expected = placement(&kafka(&scene)?.consume(&theirs, keys.len(), SOON).await?)?;
    let found = placement(&kafka(&scene)?.consume(&ours, keys.len(), SOON).await?)?;
    assert_eq!(found.len(), keys.len());
    assert_eq!(found, expected);
    assert_eq!(relay.stop(SOON).await?, Some(0));
    Ok(())
}

#[tokio::test]
async fn f42_a_topic_that_kafka_cannot_have_parks_its_row_and_no_other() -> Result<()> {
    let test = "f42_a_topic_that_kafka_cannot_have_parks_its_row_and_no_other";
    let Some(mut scene) = Scene::new(Kind::Kafka, test).await? else { return Ok(()) };
    let long = "x".repeat(250);
    let names = ["a b", "a/b", "", ".", "..", "ä", "a:b", "line\nbreak", "a\"b", long.as_str()];
    let routes = "[[route]]\nmatch = \"named\"\nsink = \"kafka\"\ntopic = \"{header.to}\"\n\
                  [[route]]\nmatch = \"*\"\nsink = \"kafka\"\ntopic = \"{topic}\"\n";
    let named = |(number, name): (usize, &&str)| {
        Row::new(&format!("bad-{number}"), "named").key(&format!("b{number}")).headers(json!({"to": name}))
    };
    commit_mixed(&mut scene, names.iter().enumerate().map(named).collect()).await?;
    let mut relay = scene.launch().config(routes).start()?;
    wait_parked(&scene, "name", i64::try_from(names.len())?).await?;
    let good = scene.written();
    scene.read_distinct(good, SOON).await?;
    scene.wait_sent(good, SOON).await?;
    scene.report().require(0)?;
    assert_eq!(relay.stop(SOON).await?, Some(0));
    Ok(())
}

/// The rows are there first. Neither attempts nor patience run out before the topic comes.
async fn late_topic(test: &str, late_by: Duration) -> Result<()> {
    let Some(mut scene) = Scene::new(Kind::Kafka, test).await? else { return Ok(()) };
    let late = kafka(&scene)?.unique("late");
    scene.topic = late.clone();
    scene.commit(100, 7).await?;
    let config = "[retry]\nattempts_max = 1\nattempts_min_age_ms = 0\nmax_ms = 1000\n";
    let mut relay = scene.launch().config(config).start()?;
    let tried = || async { Ok(scene.waiting("no_topic").await? >= 1) };
    wait::until_true("rows to wait for their topic", SOON, tried).await?;
    let patient = || async { Ok(scene.count("parked").await? + scene.count("sent").await? == 0) };
    wait::holds("the rows wait and are not given up", late_by, patient).await?;
    assert_eq!(scene.attempts().await?, 0, "a missing topic uses up no attempt");
    kafka(&scene)?.create_topic(&late, 3, &[]).await?;
    scene.finish(0).await?;
    assert_eq!(relay.stop(SOON).await?, Some(0));
    Ok(())
}

#[tokio::test]
async fn f43_rows_before_their_topic_wait_and_are_not_given_up() -> Result<()> {
    late_topic("f43_rows_before_their_topic_wait_and_are_not_given_up", Duration::from_secs(4)).await
}

#[tokio::test]
#[ignore = "slow: a topic that is made 90 seconds later"]
async fn f43_rows_of_a_topic_that_comes_90_seconds_later_are_not_given_up() -> Result<()> {
    late_topic("f43_rows_of_a_topic_that_comes_90_seconds_later_are_not_given_up", Duration::from_secs(90)).await
}

async fn has_stored(scene: &Scene, least: usize) -> Result<bool> {
    Ok(kafka(scene)?.stored(&scene.topic).await? >= least)
}

/// A broker takes any sequence from a producer that it does not know in a partition, so a second request must not be
/// on its way there before the first one is answered: librdkafka may send it over another connection meanwhile.
#[tokio::test]
async fn a_new_producer_has_one_request_to_a_partition_under_way() -> Result<()> {
    let test = "a_new_producer_has_one_request_to_a_partition_under_way";
    let Some(mut scene) = Scene::new(Kind::Kafka, test).await? else { return Ok(()) };
    let mut relay = scene.launch().start()?;
    scene.commit(9, 9).await?;
    scene.wait_sent(9, SOON).await?;
    assert_eq!(relay.stop(SOON).await?, Some(0));
    let records = kafka(&scene)?.reader(&scene.topic).await?.take(9, SOON).await?;
    let of = |record: &Received| record.arrival().map(|arrival| arrival.content.key.unwrap_or_default());
    let (known, fresh) = (of(&records[0])?, records.iter().find(|record| record.partition != records[0].partition));
    let fresh = of(fresh.context("all keys are in one partition")?)?;

    let proxy = scene.broker_proxy().await?;
    let mut relay = scene.launch_at(scene.database.url(), &proxy.address).start()?;
    // The topic's first row goes through a producer of its own, the second one through that of all others.
    for sent in [10, 11] {
        let row = scene.row(1).key(&known);
        scene.commit_rows(&[row]).await?;
        scene.wait_sent(sent, SOON).await?;
    }
    proxy.stall(Direction::Replies);
    let rows = [scene.row(1).key(&fresh), scene.row(1).key(&fresh), scene.row(1).key(&fresh)];
    scene.commit_rows(&rows[..1]).await?;
    wait::until_true("a row to arrive unanswered", SOON, || has_stored(&scene, 12)).await?;
    let claimed = relay.metrics().await?.sum("outbox_claimed_messages_total", &[]);
    scene.commit_rows(&rows[1..]).await?;
    let both = || async { Ok(relay.metrics().await?.sum("outbox_claimed_messages_total", &[]) >= claimed + 2.0) };
    wait::until_true("two more rows to be claimed", SOON, both).await?;
    let more = wait::until_true("more to arrive", Duration::from_secs(1), || has_stored(&scene, 13));
    assert!(more.await.is_err(), "two were under way");
    proxy.forward(Direction::Replies);
    scene.finish(0).await?;
    assert_eq!(relay.stop(SOON).await?, Some(0));
    Ok(())
}
