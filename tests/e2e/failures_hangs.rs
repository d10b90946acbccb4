//! Hangs seen elsewhere: a broker that is frozen, blocked or away, and a database that drops its
//! sessions, stop nothing but what they must, and everything goes on by itself.

use std::time::Duration;

use anyhow::Result;
use outbox_tests::kafka::Kafka;
use outbox_tests::own_services::{OwnServices, Service};
use outbox_tests::proxy::{Direction, Proxy};
use outbox_tests::rabbit::{QueueType, Rabbit};
use outbox_tests::relay::Relay;
use outbox_tests::writer::Row;
use outbox_tests::{metrics, services, wait};
use tokio_postgres::Client;

use crate::scene::{Broker, Kind, Scene};

/// Sessions of the relay that keep a transaction open and wait in it. The sampler reads in a short
/// transaction of several statements, so between two of them it may be seen, but not for long.
async fn idle_in_transaction(client: &Client) -> Result<i64> {
    let sql = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
               AND application_name = 'outbox-relay' AND state LIKE 'idle in transaction%' \
               AND state_change < clock_timestamp() - interval '2 seconds'";
    Ok(client.query_one(sql, &[]).await?.try_get(0)?)
}

async fn sum(relay: &Relay, name: &str) -> Result<f64> {
    Ok(relay.metrics().await?.sum(name, &[]))
}

async fn own_broker(service: Service, own: &OwnServices) -> Result<Broker> {
    let address = own.address(service)?;
    if service == Service::Kafka {
        return Ok(Broker::Kafka(Kafka::at(&address)));
    }
    Ok(Broker::Rabbitmq(Rabbit::connect_to(&address).await?))
}

/// The process of the broker stands still for a while in the middle of the work.
async fn frozen_broker(service: Service, frozen: Duration) -> Result<()> {
    let own = OwnServices::start(&[service]).await?;
    let mut scene = Scene::at(&services::database_url()?, own_broker(service, &own).await?).await?;
    let mut relay = scene.launch().env("OUTBOX__CONFIRM__TIMEOUT_MS", "2000").start()?;
    scene.commit(10, 10).await?;
    scene.wait_sent(10, wait::SOON).await?;
    own.freeze(service)?;
    scene.commit(300, 20).await?;
    let watched = || async {
        let (sent, idle) = (scene.count("sent").await?, idle_in_transaction(&scene.client).await?);
        anyhow::ensure!(sent == 10, "{sent} rows are sent");
        anyhow::ensure!(idle == 0, "{idle} sessions wait within a transaction");
        Ok(true)
    };
    wait::holds("nothing is sent, and no transaction waits for the broker", frozen, watched).await?;
    let given_up = || async { Ok(sum(&relay, "outbox_publish_unknown_total").await? >= 1.0) };
    wait::until_true("the end of the wait for confirms", wait::SOON, given_up).await?;
    // The wait's own bound, and not a heartbeat that stayed away.
    relay.wait_log("within 2000 ms", wait::SOON).await?;
    let shows = || async { Ok(sum(&relay, "outbox_sink_connected").await? == 0.0) };
    wait::until_true("the metrics to show that the broker does not answer", wait::SOON, shows).await?;
    own.thaw(service)?;
    scene.wait_all_sent(wait::SOON * 2).await?;
    let unknown = sum(&relay, "outbox_publish_unknown_total").await?;
    scene.reconnect().await?;
    scene.finish(unknown as usize).await?;
    assert_eq!(scene.attempts().await?, 0, "a frozen broker uses up no attempt");
    assert_eq!(relay.stop(wait::SOON).await?, Some(0));
    Ok(())
}

#[tokio::test]
async fn f51_f58_a_frozen_rabbitmq_is_waited_for_without_a_transaction() -> Result<()> {
    frozen_broker(Service::Rabbitmq, Duration::from_secs(8)).await
}

#[tokio::test]
#[ignore = "slow: a minute with a frozen broker"]
async fn f51_f58_a_minute_of_a_frozen_rabbitmq() -> Result<()> {
    frozen_broker(Service::Rabbitmq, Duration::from_secs(60)).await
}

#[tokio::test]
#[ignore = "slow: a minute with a frozen broker"]
async fn f51_f58_a_minute_of_a_frozen_kafka() -> Result<()> {
    if services::kafka_brokers()?.is_none() {
        services::skip_kafka("f51_f58_a_minute_of_a_frozen_kafka");
        return Ok(());
    }
    frozen_broker(Service::Kafka, Duration::from_secs(60)).await
}

/// Everything but the scene's own topic goes to RabbitMQ.
fn both_brokers(scene: &Scene) -> String {
    format!(
        "[[route]]\nmatch = \"{}\"\nsink = \"kafka\"\ntopic = \"{{topic}}\"\n\
         [[route]]\nmatch = \"*\"\nsink = \"rabbitmq\"\nexchange = \"amq.topic\"\nrouting_key = \"{{topic}}\"\n",
        scene.topic
    )
}

/// Keys of their own, since rows of one key keep their order across brokers too.
async fn insert_for_rabbitmq(client: &Client, name: &str, count: usize) -> Result<()> {
    for number in 0..count {
        Row::new(&format!("{name}-{number}"), "to.rabbitmq").key(&format!("{name}-{number}")).insert(client).await?;
    }
    Ok(())
}

/// The commands that raise an alarm on RabbitMQ's node and end it.
struct Alarm {
    raise: [&'static str; 2],
    end: [&'static str; 2],
}

async fn an_alarm_stops_neither_kafka_nor_the_stop(test: &str, alarm: Alarm) -> Result<()> {
    let Some(kafka) = Kafka::connect_or_skip(test)? else { return Ok(()) };
    let own = OwnServices::start(&[Service::Rabbitmq]).await?;
    let url = own.address(Service::Rabbitmq)?;
    let rabbit = Rabbit::connect_to(&url).await?;
    rabbit.queue("f52", QueueType::Classic, &[]).await?;
    rabbit.bind("f52", "amq.topic", "to.rabbitmq").await?;
    let mut scene = Scene::at(&services::database_url()?, Broker::Kafka(kafka)).await?;
    let launch = scene.launch().amqp(&url).config(&both_brokers(&scene)).env("OUTBOX__SHUTDOWN__GRACE_MS", "5000");
    // Nothing but the grace ends the wait for the row that hangs.
    let launch = launch.env("OUTBOX__CONFIRM__TIMEOUT_MS", "300000");
    let mut relay = launch.start()?;
    insert_for_rabbitmq(&scene.client, "before", 1).await?;
    scene.wait_sent(1, wait::SOON).await?;

    own.rabbitmqctl(&alarm.raise).await?;
    insert_for_rabbitmq(&scene.client, "during", 20).await?;
    let blocked = || async { Ok(sum(&relay, "outbox_sink_blocked").await? == 1.0) };
    wait::until_true("the alarm to show", wait::SOON, blocked).await?;
    // Nothing can be published there, so the relay is alive and not ready, and says why.
    let admin = relay.admin().await?;
    let ready = metrics::get(admin, "/readyz").await?;
    assert!(ready.status == 503 && ready.body.contains("rabbitmq"), "{ready:?}");
    assert_eq!(metrics::get(admin, "/livez").await?.status, 200);
    scene.commit(300, 20).await?;
    scene.read_distinct(300, wait::SOON).await?;
    scene.wait_sent(301, wait::SOON).await?;
    assert_eq!(scene.attempts().await?, 0, "an alarm uses up no attempt");
    // The grace is for the row that hangs; nobody ends the alarm.
    assert_eq!(relay.stop(wait::SOON).await?, Some(0));

    let mut relay = launch.start()?;
    own.rabbitmqctl(&alarm.end).await?;
    scene.finish(0).await?;
    let received = rabbit.consume_all("f52", Duration::from_millis(500)).await?;
    let ids: std::collections::HashSet<_> = received.iter().filter_map(|message| message.message_id.clone()).collect();
    assert_eq!(ids.len(), 21);
    assert_eq!(relay.stop(wait::SOON).await?, Some(0));
    Ok(())
}

#[tokio::test]
async fn f52_f53_f54_an_alarm_of_rabbitmq_shows_and_stops_neither_kafka_nor_the_stop() -> Result<()> {
    let test = "f52_f53_f54_an_alarm_of_rabbitmq_shows_and_stops_neither_kafka_nor_the_stop";
    let raise = ["set_vm_memory_high_watermark", "0.00001"];
    let end = ["set_vm_memory_high_watermark", "0.6"];
    an_alarm_stops_neither_kafka_nor_the_stop(test, Alarm { raise, end }).await
}

#[tokio::test]
async fn f52_f53_f54_a_full_disk_of_rabbitmq_shows_and_stops_neither_kafka_nor_the_stop() -> Result<()> {
    let test = "f52_f53_f54_a_full_disk_of_rabbitmq_shows_and_stops_neither_kafka_nor_the_stop";
    let raise = ["set_disk_free_limit", "900000GB"];
    let end = ["set_disk_free_limit", "1MB"];
    an_alarm_stops_neither_kafka_nor_the_stop(test, Alarm { raise, end }).await
}

/// The brokers' links end at a stop while the lanes are not told yet, since their session waits for a slow database:
/// what the links do not take any more goes with the next relay, and is not held for a broker that is away.
#[tokio::test]
async fn a_stop_holds_no_row_while_the_database_is_slow() -> Result<()> {
    let Some(kafka) = Kafka::connect_or_skip("a_stop_holds_no_row_while_the_database_is_slow")? else {
        return Ok(());
    };
    let mut scene = Scene::rabbitmq().await?;
    let (database, broker) = (Proxy::start(scene.database.port()?).await?, scene.broker_proxy().await?);
    let launch = scene.launch_at(&scene.database.url_through(database.port())?, &broker.address);
    let routes = "[[route]]\nmatch = \"to.kafka\"\nsink = \"kafka\"\ntopic = \"{topic}\"\n\
                  [[route]]\nmatch = \"*\"\nsink = \"rabbitmq\"\nexchange = \"amq.topic\"\nrouting_key = \"{topic}\"\n";
    // A statement may take half of a lease.
    let launch = launch
        .env("OUTBOX__LEASE__TTL_MS", "8000")
        .env("OUTBOX__SHUTDOWN__GRACE_MS", "8000")
        .kafka(kafka.brokers())
        .config(routes);
    let mut relay = launch.start()?;
    scene.commit(10, 10).await?;
    scene.wait_sent(10, wait::SOON).await?;
    // One key, so that its rows go one by one and most of them are still in memory.
    broker.delay(Direction::Replies, Duration::from_millis(100));
    let rows: Vec<Row> = (0..200).map(|_| scene.row(1).key("one")).collect();
    scene.commit_rows(&rows).await?;
    scene.read_distinct(13, wait::SOON).await?;
    database.delay(Direction::Replies, Duration::from_secs(3));
    scene.read_distinct(30, wait::SOON).await?;
    assert_eq!(relay.stop(wait::SOON).await?, Some(0));
    assert_eq!(scene.count("waiting").await?, 0);
    let mut relay = scene.launch().start()?;
    scene.finish(200).await?;
    assert_eq!(relay.stop(wait::SOON).await?, Some(0));
    Ok(())
}

/// Rows flow although the relay's sessions are killed every other second.
async fn killed_backends(test: &str, kind: Kind, rounds: usize) -> Result<()> {
    let Some(mut scene) = Scene::new(kind, test).await? else { return Ok(()) };
    let mut relay = scene.launch().start()?;
    let admin = relay.admin().await?;
    scene.commit(10, 10).await?;
    scene.wait_sent(10, wait::SOON).await?;
    for round in 0..rounds {
        scene.commit(200, 20).await?;
        let sql = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
                   WHERE datname = current_database() AND application_name = 'outbox-relay'";
        let killed: i64 = scene.client.query_one(sql, &[]).await?.try_get(0)?;
        assert!(killed > 0 || round > 0, "no session was killed");
        let alive = || async { Ok(metrics::get(admin, "/livez").await?.status == 200) };
        wait::holds("the relay lives on", Duration::from_secs(2), alive).await?;
        let expected = scene.written();
        scene.read_distinct(expected, wait::SOON).await?;
    }
    // What was in flight when a session ended may repeat: at most that round's rows.
    scene.finish(rounds * 200).await?;
    assert_eq!(scene.attempts().await?, 0, "a lost session uses up no attempt");
    assert_eq!(relay.stop(wait::SOON).await?, Some(0));
    Ok(())
}

#[tokio::test]
async fn f55_f57_killed_sessions_stop_nothing_with_rabbitmq() -> Result<()> {
    killed_backends("f55_f57_killed_sessions_stop_nothing_with_rabbitmq", Kind::Rabbitmq, 7).await
}

/// A claim that never came back must not keep its share of the byte budget, which is four pages.
#[tokio::test]
async fn f57_sessions_that_die_within_a_claim_leave_nothing_taken() -> Result<()> {
    let test = "f57_sessions_that_die_within_a_claim_leave_nothing_taken";
    let Some(mut scene) = Scene::new(Kind::Rabbitmq, test).await? else { return Ok(()) };
    let mut relay = scene.launch().start()?;
    scene.commit(10, 10).await?;
    scene.wait_sent(10, wait::SOON).await?;
    let mut owner = scene.database.client().await?;
    let locked = owner.transaction().await?;
    locked.batch_execute("LOCK TABLE outbox.message IN ACCESS EXCLUSIVE MODE").await?;
    let kill = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
                WHERE datname = current_database() AND application_name = 'outbox-relay' AND pid <> ALL ($1)";
    let claims = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() \
                  AND application_name = 'outbox-relay' AND wait_event_type = 'Lock' \
                  AND query LIKE '%claim%' AND pid <> ALL ($1)";
    scene.client.query_one(kill, &[&Vec::<i32>::new()]).await?;
    // Claims that wait for the table stay unanswered while their session ends with its other connections.
    let mut unanswered: Vec<i32> = Vec::new();
    for _ in 0..2 {
        let wait = async || Ok(scene.client.query(claims, &[&unanswered]).await?.len() >= 2);
        wait::until_true("both connections for claims to wait", wait::SOON, wait).await?;
        let rows = scene.client.query(claims, &[&unanswered]).await?;
        unanswered.extend(rows.iter().map(|row| row.get::<_, i32>(0)));
        scene.client.query_one(kill, &[&unanswered]).await?;
    }
    locked.rollback().await?;
    scene.commit(200, 20).await?;
    scene.read_distinct(210, wait::SOON).await?;
    scene.finish(0).await?;
    assert_eq!(relay.stop(wait::SOON).await?, Some(0));
    Ok(())
}

#[tokio::test]
#[ignore = "slow: a minute of killed sessions"]
async fn f57_a_minute_of_killed_sessions_stops_nothing_with_kafka() -> Result<()> {
    killed_backends("f57_a_minute_of_killed_sessions_stops_nothing_with_kafka", Kind::Kafka, 30).await
}

/// The broker refuses connections for a while.
async fn broker_away(kind: Kind, test: &str, away: Duration) -> Result<()> {
    let Some(mut scene) = Scene::new(kind, test).await? else { return Ok(()) };
    let proxy = scene.broker_proxy().await?;
    let mut relay = scene.launch_at(scene.database.url(), &proxy.address).start()?;
    scene.commit(10, 10).await?;
    scene.wait_sent(10, wait::SOON).await?;
    proxy.take_away();
    scene.commit(500, 20).await?;
    let admin = relay.admin().await?;
    let waits = || async {
        let alive = metrics::get(admin, "/livez").await?.status == 200;
        Ok(alive && scene.count("sent").await? == 10)
    };
    wait::holds("the relay lives and marks nothing", away, waits).await?;
    proxy.heal();
    // The longest wait between two tries is 30 seconds.
    scene.wait_all_sent(wait::SOON * 2).await?;
    let unknown = sum(&relay, "outbox_publish_unknown_total").await?;
    scene.finish(unknown as usize).await?;
    assert_eq!(scene.attempts().await?, 0, "a broker that is away uses up no attempt");
    assert_eq!(relay.stop(wait::SOON).await?, Some(0));
    Ok(())
}

#[tokio::test]
async fn f65_a_rabbitmq_that_was_away_is_found_again() -> Result<()> {
    broker_away(Kind::Rabbitmq, "f65_a_rabbitmq_that_was_away_is_found_again", Duration::from_secs(10)).await
}

#[tokio::test]
async fn f65_a_kafka_that_was_away_is_found_again() -> Result<()> {
    broker_away(Kind::Kafka, "f65_a_kafka_that_was_away_is_found_again", Duration::from_secs(10)).await
}

#[tokio::test]
#[ignore = "slow: five minutes without a broker"]
async fn f65_a_rabbitmq_that_was_away_for_five_minutes_is_found_again() -> Result<()> {
    let test = "f65_a_rabbitmq_that_was_away_for_five_minutes_is_found_again";
    broker_away(Kind::Rabbitmq, test, Duration::from_secs(300)).await
}

#[tokio::test]
#[ignore = "slow: five minutes without a broker"]
async fn f65_a_kafka_that_was_away_for_five_minutes_is_found_again() -> Result<()> {
    broker_away(Kind::Kafka, "f65_a_kafka_that_was_away_for_five_minutes_is_found_again", Duration::from_secs(300))
        .await
}

/// The broker takes what is sent, and none of its answers arrives, on old and new connections.
async fn swallowed_replies(kind: Kind, test: &str) -> Result<()> {
    let Some(mut scene) = Scene::new(kind, test).await? else { return Ok(()) };
    let proxy = scene.broker_proxy().await?;
    let launch = scene.launch_at(scene.database.url(), &proxy.address).env("OUTBOX__CONFIRM__TIMEOUT_MS", "2000");
    let mut relay = launch.start()?;
    scene.commit(10, 10).await?;
    scene.wait_sent(10, wait::SOON).await?;
    proxy.drop_bytes(Direction::Replies);
    let connections = proxy.connections();
    scene.commit(100, 1_000).await?;
    let unknown = || async { Ok(sum(&relay, "outbox_publish_unknown_total").await? >= 1.0) };
    wait::until_true("an unknown outcome", wait::SOON, unknown).await?;
    // The wait's own bound, and not a heartbeat that stayed away.
    relay.wait_log("within 2000 ms", wait::SOON).await?;
    let again = || async { Ok(proxy.connections() > connections) };
    wait::until_true("a new connection", wait::SOON, again).await?;
    assert_eq!(scene.count("sent").await?, 10, "nothing is marked without a confirm");
    // Nobody closes the old connections for the relay.
    proxy.forward(Direction::Replies);
    scene.wait_all_sent(wait::SOON * 2).await?;
    let unknown = sum(&relay, "outbox_publish_unknown_total").await?;
    scene.finish(unknown as usize).await?;
    assert_eq!(scene.attempts().await?, 0, "an answer that never came uses up no attempt");
    assert_eq!(relay.stop(wait::SOON).await?, Some(0));
    Ok(())
}

#[tokio::test]
async fn f50_confirms_that_never_come_from_rabbitmq_have_a_bound() -> Result<()> {
    swallowed_replies(Kind::Rabbitmq, "f50_confirms_that_never_come_from_rabbitmq_have_a_bound").await
}

#[tokio::test]
async fn f50_confirms_that_never_come_from_kafka_have_a_bound() -> Result<()> {
    swallowed_replies(Kind::Kafka, "f50_confirms_that_never_come_from_kafka_have_a_bound").await
}
