//! The plain table of an application with a column for the mark.

use std::time::Duration;

use anyhow::{Context, Result};
use outbox_tests::journal::hash;
use outbox_tests::wait::SOON;

use super::bed::{Bed, PLAIN, SOURCE};
use crate::scene::Kind;

const UNTAKEN: &str = "SELECT count(*) FROM outbox WHERE taken_at IS NULL";

async fn rows_arrive(kind: Kind, test: &str) -> Result<()> {
    let Some(mut bed) = Bed::new(kind, test, PLAIN, SOURCE).await? else { return Ok(()) };
    bed.sql("INSERT INTO outbox (kind, ref) VALUES ('invoice-email', '2026-10:cust_1')").await?;
    let mut relay = bed.launch().start()?;
    let first = bed.scene.next(SOON).await?.context("nothing came")?;
    assert_eq!(first.id, "invoice-email:2026-10:cust_1");
    assert_eq!(first.content.key.as_deref(), Some("invoice-email"));
    let body = br#"{"kind" : "invoice-email", "ref" : "2026-10:cust_1"}"#;
    assert_eq!(first.content.body_hash, Some(hash(body)));

    bed.sql("BEGIN; INSERT INTO outbox (kind, ref) VALUES ('never', '1'); ROLLBACK").await?;
    bed.sql("INSERT INTO outbox (kind, ref) SELECT 'invoice-email', n::text FROM generate_series(1, 50) AS n").await?;
    let ids = bed.arrived(50).await?;
    assert_eq!(ids, (1..=50).map(|n| format!("invoice-email:{n}")).collect::<Vec<_>>(), "in the order of their ids");
    bed.wait_number(UNTAKEN, 0).await?;
    bed.scene.wait_all_sent(SOON).await?;
    assert!(bed.scene.next(Duration::from_millis(300)).await?.is_none());
    let metrics = relay.metrics().await?;
    assert_eq!(metrics.sum("outbox_source_taken_rows_total", &[("source", "invoices")]), 51.0);
    assert_eq!(metrics.sum("outbox_source_refused_rows_total", &[]), 0.0);
    assert_eq!(relay.stop(SOON).await?, Some(0));
    Ok(())
}

#[tokio::test]
async fn rows_of_a_plain_table_arrive_with_rabbitmq() -> Result<()> {
    rows_arrive(Kind::Rabbitmq, "rows_of_a_plain_table_arrive_with_rabbitmq").await
}

#[tokio::test]
async fn rows_of_a_plain_table_arrive_with_kafka() -> Result<()> {
    rows_arrive(Kind::Kafka, "rows_of_a_plain_table_arrive_with_kafka").await
}
