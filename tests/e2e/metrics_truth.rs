//! Metrics tell the truth: each is driven to a known value; what cannot be known is gone rather than stuck; ages grow
//! while everything is down; counters never fall; and a scrape asks nobody.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result};
use outbox_tests::metrics::{self, Samples};
use outbox_tests::proxy::{Direction, Proxy};
use outbox_tests::relay::Relay;
use outbox_tests::wait::{self, SOON};
use outbox_tests::writer::Row;
use serde_json::json;

use crate::scene::{Broker, ROUTE_BY_HEADER, Scene};

/// The sampler looks every five seconds.
const SAMPLED: Duration = Duration::from_secs(60);

async fn wait_for(relay: &Relay, what: &str, holds: impl Fn(&Samples) -> bool) -> Result<()> {
    let found = || async { Ok(holds(&relay.metrics().await?)) };
    let waited = wait::until_true(what, SAMPLED, found).await;
    if waited.is_err() {
        eprintln!("{:#?}", relay.metrics().await?);
    }
    waited
}

/// One value of a series without labels that would tell several apart.
fn value(samples: &Samples, name: &str) -> f64 {
    samples.value(name, &[]).unwrap_or(f64::NAN)
}

/// Ten rows of ten bytes go; two wait for an exchange, one of them with one behind it; one has no queue; one is parked;
/// one is not due.
async fn insert_one_of_each(scene: &Scene, missing: &str) -> Result<()> {
    let row =
        |id: &str, exchange: &str| Row::new(id, &scene.topic).text("0123456789").headers(json!({"exchange": exchange}));
    for number in 0..10 {
        row(&format!("good-{number}"), "amq.topic").key(&format!("k{number}")).insert(&scene.client).await?;
    }
    row("first", missing).key("a").insert(&scene.client).await?;
    row("behind", missing).key("a").insert(&scene.client).await?;
    row("second", missing).key("b").insert(&scene.client).await?;
    let mut unroutable = row("unroutable", "amq.topic").key("c");
    unroutable.topic = format!("{}.nowhere", scene.topic);
    unroutable.insert(&scene.client).await?;
    let reserved = Row::new("reserved", &scene.topic).key("d").headers(json!({"exchange": "amq.topic", "id": "x"}));
    reserved.insert(&scene.client).await?;
    row("later", "amq.topic").key("e").delayed(3_600.0).insert(&scene.client).await?;
    Ok(())
}

#[tokio::test]
async fn each_metric_reaches_its_known_value() -> Result<()> {
    let scene = Scene::rabbitmq().await?;
    let Broker::Rabbitmq(rabbit) = &scene.broker else { anyhow::bail!("RabbitMQ is meant") };
    let missing = rabbit.unique("missing");
    // The lease outlasts the takeover at the end.
    let launch = scene.launch().config(ROUTE_BY_HEADER).env("OUTBOX__RETENTION", "1s");
    let mut relay = launch.env("OUTBOX__LEASE__TTL_MS", "20000").start()?;
    relay.wait_ready(SOON).await?;
    let start = relay.metrics().await?;
    for name in ["claimed_messages", "published_bytes", "publish_unknown", "returned_messages", "pruned_messages"] {
        assert_eq!(value(&start, &format!("outbox_{name}_total")), 0.0, "{name} starts at 0");
    }
    insert_one_of_each(&scene, &missing).await?;
    wait_for(&relay, "ten rows to be sent and removed", |now| {
        let to = |name: &str, labels: &[(&str, &str)]| now.sum(name, labels);
        to("outbox_published_messages_total", &[("sink", "rabbitmq"), ("destination", "amq.topic")]) == 10.0
            && value(now, "outbox_published_bytes_total") == 100.0
            && value(now, "outbox_pruned_messages_total") == 10.0
            && value(now, "outbox_delivery_latency_seconds_count") == 10.0
            && to("outbox_parked_messages_total", &[("reason", "reserved_header")]) == 1.0
            && to("outbox_publish_failures_total", &[("reason", "no_exchange")]) >= 1.0
            && value(now, "outbox_returned_messages_total") >= 1.0
    })
    .await?;
    wait_for(&relay, "the state to be sampled", |now| {
        now.value("outbox_held_messages", &[("state", "waiting")]) == Some(4.0)
            && now.value("outbox_held_messages", &[("state", "parked")]) == Some(1.0)
            && value(now, "outbox_held_keys") == 4.0
            && value(now, "outbox_pending_messages") == 0.0
            && value(now, "outbox_oldest_pending_age_seconds") > 1.0
            && value(now, "outbox_table_bytes") > 8_192.0
            && value(now, "outbox_dead_tuples") >= 0.0
            && value(now, "outbox_oldest_transaction_age_seconds") >= 0.0
            && value(now, "outbox_breaker_open") == 2.0
            && value(now, "outbox_lanes_owned") == 16.0
            && now.sum("outbox_sink_connected", &[]) == 1.0
            && now.sum("outbox_sink_blocked", &[]) == 0.0
    })
    .await?;
    // Nothing unknown, and every histogram saw what it should.
    let now = relay.metrics().await?;
    assert_eq!(value(&now, "outbox_publish_unknown_total"), 0.0);
    let failed = now.sum("outbox_publish_failures_total", &[]);
    assert!(value(&now, "outbox_publish_duration_seconds_count") >= 10.0 + failed - 1.0, "failures are timed too");
    for name in ["outbox_claim_duration_seconds_count", "outbox_mark_duration_seconds_count"] {
        assert!(value(&now, name) >= 1.0, "{name}");
    }
    assert!(value(&now, "outbox_batch_messages_sum") <= value(&now, "outbox_claimed_messages_total"));
    assert!(value(&now, "outbox_last_publish_timestamp_seconds") > 1.0e9);
    assert!(now.sum("outbox_wakeups_total", &[("source", "poll")]) >= 1.0);
    assert_eq!(now.sum("outbox_build_info", &[]), 1.0);
    assert!(value(&now, "process_resident_memory_bytes") > 0.0);

    // A takeover behind the relay's back is counted, and a lost session too.
    take_lanes_before_marks(&scene).await?;
    wait_for(&relay, "fenced marks", |now| value(now, "outbox_marks_fenced_total") >= 1.0).await?;
    let kill = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                WHERE datname = current_database() AND application_name = 'outbox-relay'";
    scene.client.query(kill, &[]).await?;
    let lost = |now: &Samples| now.sum("outbox_reconnects_total", &[("peer", "postgres")]) >= 1.0;
    wait_for(&relay, "a new database session", lost).await?;
    assert_eq!(relay.stop(SOON).await?, Some(0));
    Ok(())
}

/// All lanes get a new epoch while marks wait for them: a renewal that came first would only tell the relay.
async fn take_lanes_before_marks(scene: &Scene) -> Result<()> {
    let mut taker = scene.database.client().await?;
    let takeover = taker.transaction().await?;
    takeover.execute("SELECT FROM outbox.lane FOR UPDATE", &[]).await?;
    for number in 0..50 {
        let row = Row::new(&format!("more-{number}"), &scene.topic).headers(json!({"exchange": "amq.topic"}));
        row.insert(&scene.client).await?;
    }
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
                   AND wait_event_type = 'Lock' AND query LIKE '%Called by: mark.rs%'";
    let waits = || async { Ok(scene.client.query_one(waiting, &[]).await?.try_get::<_, i64>(0)? > 0) };
    wait::until_true("marks to wait for their lanes", SOON, waits).await?;
    takeover.execute("UPDATE outbox.lane SET epoch = epoch + 1", &[]).await?;
    Ok(takeover.commit().await?)
}

/// Every counter that a scrape shows, to compare with the next one.
fn counters(samples: &Samples) -> BTreeMap<String, f64> {
    let names = samples.names();
    let counters = names.iter().filter(|name| name.ends_with("_total") || name.ends_with("_count"));
    counters.map(|name| ((*name).to_owned(), samples.sum(name, &[]))).collect()
}

fn never_fell(before: &BTreeMap<String, f64>, after: &BTreeMap<String, f64>) {
    for (name, value) in before.iter().filter(|(name, _)| name.starts_with("outbox_")) {
        assert!(
            after.get(name).is_some_and(|after| after >= value),
            "{name} fell from {value} to {:?}",
            after.get(name)
        );
    }
}

const STATE: [&str; 6] = [
    "outbox_pending_messages",
    "outbox_held_messages",
    "outbox_held_keys",
    "outbox_table_bytes",
    "outbox_dead_tuples",
    "outbox_oldest_transaction_age_seconds",
];

#[tokio::test]
async fn broken_probes_leave_no_stuck_gauge_and_ages_grow() -> Result<()> {
    let mut scene = Scene::rabbitmq().await?;
    let database = Proxy::start(scene.database.port()?).await?;
    let broker = scene.broker_proxy().await?;
    let url = scene.database.url_through(database.port())?;
    let mut relay = scene.launch_at(&url, &broker.address).start()?;
    scene.commit(10, 10).await?;
    scene.wait_sent(10, SOON).await?;
    let good = counters(&relay.metrics().await?);

    broker.take_away();
    scene.commit(5, 5).await?;
    wait_for(&relay, "five rows to be pending and the broker to be away", |now| {
        value(now, "outbox_pending_messages") == 5.0 && now.sum("outbox_sink_connected", &[]) == 0.0
    })
    .await?;
    database.drop_bytes(Direction::Requests);
    database.drop_bytes(Direction::Replies);
    wait_for(&relay, "the state to be gone", |now| STATE.iter().all(|name| now.value(name, &[]).is_none())).await?;
    let down = relay.metrics().await?;
    let (age, sampled) = (
        value(&down, "outbox_oldest_pending_age_seconds"),
        value(&down, "outbox_stats_last_success_timestamp_seconds"),
    );
    assert!(age > 0.0 && sampled > 1.0e9, "{age} {sampled}");
    wait_for(&relay, "the age to grow", |now| value(now, "outbox_oldest_pending_age_seconds") >= age + 2.0).await?;
    let admin = relay.admin().await?;
    // Ten scrapers get their answers although nobody else answers.
    let scrapes = futures_util::future::join_all((0..10).map(|_| metrics::scrape(admin))).await;
    for scrape in scrapes {
        let scrape = scrape.context("a scrape while everything is down")?;
        assert_eq!(value(&scrape, "outbox_stats_last_success_timestamp_seconds"), sampled);
        never_fell(&good, &counters(&scrape));
    }
    assert_eq!(metrics::get(admin, "/readyz").await?.status, 503);

    database.heal();
    database.cut();
    broker.heal();
    scene.wait_all_sent(SOON * 2).await?;
    wait_for(&relay, "the state to be known again", |now| {
        value(now, "outbox_pending_messages") == 0.0
            && value(now, "outbox_oldest_pending_age_seconds") == 0.0
            && value(now, "outbox_stats_last_success_timestamp_seconds") > sampled
            && now.sum("outbox_sink_connected", &[]) == 1.0
    })
    .await?;
    never_fell(&good, &counters(&relay.metrics().await?));
    relay.wait_ready(SOON).await?;
    assert_eq!(relay.stop(SOON).await?, Some(0));
    Ok(())
}

/// Beyond the bound of counting an estimate stands in, and the sample stays cheap enough to be fresh.
async fn backlog(rows: usize) -> Result<()> {
    let scene = Scene::rabbitmq().await?;
    let sql = format!(
        "INSERT INTO outbox.message (idempotency_key, topic) SELECT 'n' || n, 't' FROM generate_series(1, {rows}) n"
    );
    scene.client.batch_execute(&sql).await?;
    scene.client.batch_execute("ANALYZE outbox.message").await?;
    let proxy = scene.broker_proxy().await?;
    proxy.take_away();
    let mut relay = scene.launch_at(scene.database.url(), &proxy.address).start()?;
    wait_for(&relay, "the backlog to be known", |now| {
        let pending = value(now, "outbox_pending_messages");
        pending >= 0.8 * rows as f64 && pending <= 1.2 * rows as f64
    })
    .await?;
    let before = value(&relay.metrics().await?, "outbox_stats_last_success_timestamp_seconds");
    let again = |now: &Samples| value(now, "outbox_stats_last_success_timestamp_seconds") > before;
    wait_for(&relay, "another sample", again).await?;
    assert_eq!(relay.stop(SOON).await?, Some(0));
    Ok(())
}

#[tokio::test]
async fn a_backlog_beyond_the_bound_of_counting_is_estimated() -> Result<()> {
    backlog(150_000).await
}

#[tokio::test]
#[ignore = "slow: ten million rows"]
async fn a_backlog_of_ten_million_rows_is_estimated() -> Result<()> {
    backlog(10_000_000).await
}
