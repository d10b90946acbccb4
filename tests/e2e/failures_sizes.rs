//! Rows that RabbitMQ would close a channel or the connection over, and rows that are not what the table promises:
//! each is parked with its reason, alone, and the connection survives.

use std::time::Duration;

use anyhow::Result;
use outbox_tests::own_services::{OwnServices, Service};
use outbox_tests::rabbit::Rabbit;
use outbox_tests::relay::Launch;
use outbox_tests::services;
use outbox_tests::wait::{self, SOON};
use outbox_tests::writer::Row;
use serde_json::json;

use crate::scene::{Broker, Scene};

const PARKED: &str = "SELECT count(*) FROM outbox.message_status WHERE state = 'parked' AND reason = $1";

async fn wait_parked(scene: &Scene, reason: &str, count: i64) -> Result<()> {
    let parked = || async { Ok(scene.client.query_one(PARKED, &[&reason]).await?.try_get::<_, i64>(0)? == count) };
    wait::until_true(&format!("{count} rows to be parked as {reason}"), SOON, parked).await
}

/// All good rows arrived once and in order, and are marked.
async fn good_rows_arrived(scene: &mut Scene) -> Result<()> {
    let good = scene.written();
    scene.read_distinct(good, SOON).await?;
    scene.wait_sent(good, SOON).await?;
    scene.read_until_quiet(Duration::from_millis(300)).await?;
    scene.report().require(0)
}

/// The broker takes less than the relay was told, so only its word (a closed channel) tells. 20 such rows in a row.
#[tokio::test]
async fn f34_f36_rows_above_the_brokers_own_limit_are_found_and_parked_alone() -> Result<()> {
    let own = OwnServices::start(&[Service::Rabbitmq]).await?;
    own.rabbitmqctl(&[
        "eval",
        "persistent_term:put(max_message_size, 150000), application:set_env(rabbit, max_message_size, 150000).",
    ])
    .await?;
    let broker = Broker::Rabbitmq(Rabbit::connect_to(&own.address(Service::Rabbitmq)?).await?);
    let mut scene = Scene::at(&services::database_url()?, broker).await?;
    let topic = scene.topic.clone();
    let large = |number: usize, bytes: usize| Row::new(&format!("large-{number}"), &topic).text(&"x".repeat(bytes));
    for number in 0..20 {
        // Each with a key of its own, so that they stand with the large one in one window.
        scene.commit(20, 10_000).await?;
        large(number, 200_000).insert(&scene.client).await?;
    }
    for number in 20..25 {
        scene.commit(20, 10).await?;
        large(number, 2_000_000).key("key-1").insert(&scene.client).await?;
    }
    let fits = scene.row(10).text(&"x".repeat(90_000));
    scene.commit_rows(&[fits]).await?;
    let attempts = "[retry]\nattempts_max = 2\nattempts_min_age_ms = 0\ninitial_ms = 50\nmax_ms = 100\n";
    let mut relay = scene.launch().config(attempts).start()?;
    wait_parked(&scene, "size", 25).await?;
    good_rows_arrived(&mut scene).await?;
    let reconnects = relay.metrics().await?.sum("outbox_reconnects_total", &[("peer", "rabbitmq")]);
    assert_eq!(reconnects, 0.0, "a channel was closed, not the connection");
    assert_eq!(relay.stop(SOON).await?, Some(0));
    Ok(())
}

/// 64 lanes' worth of rows that no broker takes, each as large as the whole byte budget: what is parked is not in
/// memory, so the good rows behind go.
#[tokio::test]
async fn f34_parked_rows_leave_the_byte_budget() -> Result<()> {
    let mut scene = Scene::rabbitmq().await?;
    let topic = scene.topic.clone();
    for number in 0..64 {
        Row::new(&format!("large-{number}"), &topic).text(&"x".repeat(4_096)).insert(&scene.client).await?;
    }
    scene.commit(100, 10).await?;
    let config = "[batch]\nbytes_max = 1024\n[rabbitmq]\nmessage_bytes_max = 2048\n";
    let mut relay = scene.launch().config(config).start()?;
    wait_parked(&scene, "size", 64).await?;
    good_rows_arrived(&mut scene).await?;
    assert_eq!(relay.stop(SOON).await?, Some(0));
    Ok(())
}

/// 100, 131, 140 and 5000 kB of headers against a frame of 128 KiB.
#[tokio::test]
async fn f37_large_headers_are_parked_and_cost_no_connection() -> Result<()> {
    let mut scene = Scene::rabbitmq().await?;
    let topic = scene.topic.clone();
    for (number, kilobytes) in [131, 140, 5_000].iter().cycle().take(21).enumerate() {
        scene.commit(10, 10).await?;
        let headers = json!({"large": "x".repeat(kilobytes * 1_000)});
        Row::new(&format!("large-{number}"), &topic).headers(headers).insert(&scene.client).await?;
    }
    let mut fits = scene.row(10);
    fits.expected_headers.insert("large".to_owned(), "x".repeat(100_000));
    let headers = json!(fits.expected_headers);
    scene.commit_rows(&[fits.headers(headers)]).await?;
    let mut relay = scene.launch().start()?;
    wait_parked(&scene, "size", 21).await?;
    good_rows_arrived(&mut scene).await?;
    let reconnects = relay.metrics().await?.sum("outbox_reconnects_total", &[("peer", "rabbitmq")]);
    assert_eq!(reconnects, 0.0);
    assert_eq!(relay.stop(SOON).await?, Some(0));
    Ok(())
}

/// A table that was changed around its rules: what cannot be read is parked, and its column named.
#[tokio::test]
async fn f45_a_column_that_cannot_be_read_parks_its_row_and_is_named() -> Result<()> {
    let mut scene = Scene::rabbitmq().await?;
    scene
        .client
        .batch_execute(
            "ALTER TABLE outbox.message DROP CONSTRAINT message_headers_check;
             ALTER TABLE outbox.message ALTER idempotency_key DROP NOT NULL, ALTER topic DROP NOT NULL,
                 ALTER headers DROP NOT NULL, ALTER content_type DROP NOT NULL, ALTER created_at DROP NOT NULL",
        )
        .await?;
    let columns = [
        ("idempotency_key", "NULL, 't', '{}', 'text/plain', now()"),
        ("topic", "'no topic', NULL, '{}', 'text/plain', now()"),
        ("content_type", "'no type', 't', '{}', NULL, now()"),
        ("created_at", "'no time', 't', '{}', 'text/plain', NULL"),
        ("headers", "'no object', 't', '[1]', 'text/plain', now()"),
        (
            "headers",
            "'deep', 't', ('{\"a\":' || repeat('[', 2000) || repeat(']', 2000) || '}')::jsonb, 'text/plain', now()",
        ),
    ];
    for (_, values) in columns {
        scene.commit(5, 5).await?;
        let sql = format!(
            "INSERT INTO outbox.message (idempotency_key, topic, headers, content_type, created_at, ordering_key)
             VALUES ({values}, 'bad-' || {})",
            values.len()
        );
        scene.client.batch_execute(&sql).await?;
    }
    let mut relay = scene.launch().start()?;
    good_rows_arrived(&mut scene).await?;
    let sql = "SELECT last_error FROM outbox.message_status WHERE state = 'parked' ORDER BY seq";
    let parked = || async { Ok(scene.client.query(sql, &[]).await?.len() == columns.len()) };
    wait::until_true("the rows to be parked", SOON, parked).await?;
    for (row, (column, values)) in scene.client.query(sql, &[]).await?.iter().zip(columns) {
        let error: String = row.try_get(0)?;
        assert!(error.contains(column), "{values}: {error}");
    }
    // What an operator asks shows them too.
    let show: String = scene.client.query_one("SELECT min(seq)::text FROM outbox.held", &[]).await?.try_get(0)?;
    for arguments in [
        &["parked", "list"][..],
        &["parked", "list", "--output", "json"],
        &["parked", "show", &show, "--payload"],
        &["status"],
        &["status", "--output", "json"],
    ] {
        let asked = Launch::new(arguments.iter().copied()).database(scene.database.url()).finish(SOON).await?;
        assert_eq!(asked.code, Some(0), "{arguments:?}: {}", asked.stderr);
    }
    relay.wait_ready(SOON).await?;
    assert_eq!(relay.stop(SOON).await?, Some(0));
    Ok(())
}
