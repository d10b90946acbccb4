//! f33: bad rows neither starve the good ones nor keep a processor busy.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use outbox_tests::relay::Relay;
use outbox_tests::services;
use outbox_tests::wait;

use super::{wait_count, wait_held};
use crate::stage::Stage;

/// Of one processor, in a build without optimisation.
const IDLE_SHARE_MAX: f64 = 0.3;
/// Tries of a missing address in the window. They wait 160, 320, 640 ms and so on, so even four windows have no more.
const IDLE_TRIES_MAX: f64 = 8.0;
/// The kernel counts in hundredths of a second.
const TICKS_PER_SECOND: f64 = 100.0;

async fn stage_with_good_route() -> Result<Stage> {
    let stage = Stage::unbound(&services::database_url()?).await?;
    stage.rabbit.exchange(&stage.exchange).await?;
    stage.rabbit.queue(&stage.queue, outbox_tests::rabbit::QueueType::Classic, &[]).await?;
    stage.rabbit.bind(&stage.queue, &stage.exchange, "good").await?;
    Ok(stage)
}

async fn insert(stage: &Stage, name: &str, topic: &str, count: i32) -> Result<()> {
    let statement = "INSERT INTO outbox.message (idempotency_key, topic, ordering_key, payload) \
                     SELECT $1 || '-' || n, $2, $1 || '-key-' || n % 1000, '{}' FROM generate_series(1, $3) AS n";
    stage.database.client().await?.execute(statement, &[&name, &topic, &count]).await?;
    Ok(())
}

/// How long the relay takes for 10,000 good rows, from its start.
async fn time_of_good_rows(bad: bool) -> Result<(Duration, Stage, Relay)> {
    let stage = stage_with_good_route().await?;
    if bad {
        insert(&stage, "bad", "bad", 1).await?;
    }
    insert(&stage, "good", "good", 10_000).await?;
    let mut reader = stage.rabbit.reader(&stage.queue, 1_000).await?;
    let started = Instant::now();
    let relay = stage.launch().start()?;
    reader.take(10_000, Duration::from_secs(120)).await?;
    Ok((started.elapsed(), stage, relay))
}

/// User and system time of a process in seconds.
fn cpu_seconds(pid: u32) -> Result<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name in brackets may hold blanks; what follows it does not.
    let (_, fields) = stat.rsplit_once(')').context("no name in stat")?;
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).context("a short stat")?.parse::<f64>().context("no number in stat");
    Ok((ticks(11)? + ticks(12)?) / TICKS_PER_SECOND)
}

async fn require_idle(relay: &Relay) -> Result<()> {
    const WINDOW: Duration = Duration::from_secs(3);
    let tries = || async { Ok::<_, anyhow::Error>(relay.metrics().await?.sum("outbox_publish_failures_total", &[])) };
    let (before, tried, started) = (cpu_seconds(relay.pid())?, tries().await?, Instant::now());
    wait::holds("the relay runs", WINDOW, || async { Ok(cpu_seconds(relay.pid()).is_ok()) }).await?;
    let share = (cpu_seconds(relay.pid())? - before) / started.elapsed().as_secs_f64();
    eprintln!("{:.1} % of a processor while idle", share * 100.0);
    assert!(share < IDLE_SHARE_MAX, "the relay is busy with {:.0} % of a processor", share * 100.0);
    // On a busy machine a relay that never rests has a small share too.
    let tried = tries().await? - tried;
    assert!(tried <= IDLE_TRIES_MAX, "a missing address was tried {tried} times");
    Ok(())
}

#[tokio::test]
async fn f33_one_bad_row_neither_slows_10_000_good_ones_nor_keeps_a_processor_busy() -> Result<()> {
    let (without, _, relay) = time_of_good_rows(false).await?;
    drop(relay);
    let (with, stage, relay) = time_of_good_rows(true).await?;
    eprintln!("{without:?} without, {with:?} with the bad row");
    // Other tests run beside this one, so only a clear loss of speed counts.
    assert!(with < 4 * without + Duration::from_secs(5), "{without:?} without, {with:?} with the bad row");
    wait_held(&stage, "unroutable", 1).await?;
    wait_count(&stage, "state = 'sent'", 10_000).await?;
    require_idle(&relay).await
}

#[tokio::test]
async fn f33_500_bad_rows_in_front_do_not_starve_the_good_ones() -> Result<()> {
    let stage = stage_with_good_route().await?;
    insert(&stage, "bad", "bad", 500).await?;
    insert(&stage, "good", "good", 1_000).await?;
    let relay = stage.launch().env("OUTBOX__BATCH__ROWS_MAX", "100").start()?;
    stage.rabbit.consume(&stage.queue, 1_000, wait::SOON).await?;
    wait_held(&stage, "unroutable", 500).await?;
    wait_count(&stage, "state = 'sent' AND topic = 'good'", 1_000).await?;
    require_idle(&relay).await?;
    // The good rows that come later are not held up by what waits.
    insert(&stage, "later", "good", 1_000).await?;
    stage.rabbit.consume(&stage.queue, 1_000, wait::SOON).await?;
    Ok(())
}
