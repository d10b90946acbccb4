//! Backlogs: whatever waits and however long a broker is away, memory has a bound and all of it goes.

use std::time::Duration;

use anyhow::{Context, Result};
use outbox_tests::rabbit::Reader;
use outbox_tests::relay::Relay;
use outbox_tests::wait::{self, SOON};

use crate::stage::Stage;

const MIB: u64 = 1024 * 1024;
/// Less than what waits: a relay that read it all would be above.
const MEMORY_MAX: u64 = 140 * MIB;

/// The most memory that the process ever had, in bytes.
fn memory_peak(relay: &Relay) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", relay.pid()))?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).context("no VmHWM")?;
    let kib: u64 = line.split_whitespace().nth(1).context("no number")?.parse()?;
    Ok(kib * 1024)
}

/// Inserts in the server, so that the test itself holds nothing.
async fn fill(stage: &Stage, rows: usize, bytes: usize) -> Result<()> {
    let sql = format!(
        "INSERT INTO outbox.message (idempotency_key, topic, ordering_key, payload)
         SELECT '{bytes}-' || n, 't', 'k' || n % 500, repeat('x', {bytes}) FROM generate_series(1, {rows}) n"
    );
    stage.database.client().await?.batch_execute(&sql).await?;
    Ok(())
}

/// Reads so many messages, each of this size, none twice.
async fn drain(reader: &mut Reader, rows: usize, bytes: usize) -> Result<()> {
    let mut seen = std::collections::HashSet::with_capacity(rows);
    while seen.len() < rows {
        let message = reader.next(SOON * 2).await?.with_context(|| format!("{} of {rows} rows came", seen.len()))?;
        anyhow::ensure!(message.body.len() == bytes, "{} bytes came", message.body.len());
        let id = message.message_id.context("a message without id")?;
        anyhow::ensure!(seen.insert(id.clone()), "{id} came twice");
    }
    Ok(())
}

async fn all_marked(stage: &Stage) -> Result<()> {
    let client = stage.database.client().await?;
    let left = "SELECT FROM outbox.message WHERE sent_at IS NULL LIMIT 1";
    let marked = || async { Ok(client.query(left, &[]).await?.is_empty()) };
    wait::until_true("every row to be marked", SOON, marked).await
}

/// The broker comes after the relay and the backlog.
async fn late_broker(rows: usize, late_by: Duration) -> Result<()> {
    const BYTES: usize = 4_096;
    let stage = Stage::new().await?;
    fill(&stage, rows, BYTES).await?;
    let port: u16 =
        stage.rabbit.url().rsplit_once(':').context("no port")?.1.split('/').next().unwrap_or("").parse()?;
    let proxy = outbox_tests::proxy::Proxy::start(port).await?;
    proxy.take_away();
    let relay =
        stage.launch().amqp(&stage.rabbit.url().replace(&port.to_string(), &proxy.port().to_string())).start()?;
    let small = || async { Ok(memory_peak(&relay)? < MEMORY_MAX) };
    wait::holds("the relay waits within its bound", late_by, small).await?;
    proxy.heal();
    drain(&mut stage.rabbit.reader(&stage.queue, 1_000).await?, rows, BYTES).await?;
    all_marked(&stage).await?;
    let peak = memory_peak(&relay)?;
    eprintln!("{rows} rows of {BYTES} bytes, the broker late: at most {} MiB", peak / MIB);
    assert!(peak < MEMORY_MAX, "{} MiB", peak / MIB);
    Ok(())
}

#[tokio::test]
async fn f74_a_backlog_before_a_late_broker_is_back_pressure_within_a_bound() -> Result<()> {
    late_broker(40_000, Duration::from_secs(5)).await
}

#[tokio::test]
#[ignore = "slow: 300,000 rows before a broker that is 20 s late"]
async fn f74_300_000_rows_before_a_late_broker() -> Result<()> {
    late_broker(300_000, Duration::from_secs(20)).await
}

async fn large_backlog(rows: usize, bytes: usize, bound: u64) -> Result<()> {
    let stage = Stage::new().await?;
    fill(&stage, rows, bytes).await?;
    let relay = stage.launch().start()?;
    drain(&mut stage.rabbit.reader(&stage.queue, if bytes > 1_000_000 { 1 } else { 1_000 }).await?, rows, bytes)
        .await?;
    all_marked(&stage).await?;
    let peak = memory_peak(&relay)?;
    eprintln!("{rows} rows of {bytes} bytes: at most {} MiB", peak / MIB);
    assert!(peak < bound, "{} MiB for {rows} rows of {bytes} bytes", peak / MIB);
    Ok(())
}

#[tokio::test]
async fn f82_backlogs_of_small_and_of_huge_rows_stay_within_a_bound() -> Result<()> {
    large_backlog(20_000, 256, MEMORY_MAX).await?;
    large_backlog(14, 20_000_000, 260 * MIB).await
}

#[tokio::test]
#[ignore = "slow: a million rows"]
async fn f82_a_million_rows_stay_within_a_bound() -> Result<()> {
    large_backlog(1_000_000, 256, MEMORY_MAX).await
}

#[tokio::test]
#[ignore = "slow: 2 GB in 100 rows"]
async fn f82_100_rows_of_20_mb_stay_within_a_bound() -> Result<()> {
    large_backlog(100, 20_000_000, 350 * MIB).await
}
