//! Several relays on one outbox: they share the lanes, nothing goes twice without a fault, and a key keeps its order
//! when relays come and go.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::{Context, Result};
use outbox_tests::rabbit::Received;
use outbox_tests::relay::{Launch, Relay};
use outbox_tests::wait::{self, SOON};

use crate::stage::Stage;

const ROWS: i64 = 20_000;
const KEYS: i64 = 200;

async fn fill(stage: &Stage, from: i64, to: i64) -> Result<()> {
    let client = stage.database.client().await?;
    let sql = "INSERT INTO outbox.message (idempotency_key, topic, payload, ordering_key)
               SELECT 'row-' || n, 't', n::text, 'key-' || n % $3 FROM generate_series($1::bigint, $2::bigint - 1) AS n";
    client.execute(sql, &[&from, &to, &KEYS]).await?;
    Ok(())
}

async fn start(stage: &Stage, relays: usize) -> Result<Vec<Relay>> {
    start_as(&stage.launch(), relays).await
}

async fn start_as(launch: &Launch, relays: usize) -> Result<Vec<Relay>> {
    let launch = launch.clone().env("OUTBOX__LEASE__TTL_MS", "2000");
    let relays: Vec<Relay> = (0..relays).map(|_| launch.start()).collect::<Result<_>>()?;
    for relay in &relays {
        relay.wait_ready(SOON).await?;
    }
    Ok(relays)
}

async fn owned(relays: &[Relay]) -> Result<Vec<i64>> {
    let mut owned = Vec::new();
    for relay in relays {
        owned.push(relay.metrics().await?.value("outbox_lanes_owned", &[]).unwrap_or(-1.0) as i64);
    }
    owned.sort_unstable();
    Ok(owned)
}

async fn wait_spread(relays: &[Relay], spread: &[i64]) -> Result<()> {
    let what = format!("the lanes to spread as {spread:?}");
    wait::until_true(&what, SOON, || async { Ok(owned(relays).await? == spread) }).await
}

/// The number in a message of a test here, and its key.
fn number(message: &Received) -> Result<(i64, String)> {
    let key = message.header_text("ordering-key").context("a message without its key")?;
    Ok((std::str::from_utf8(&message.body)?.parse()?, key))
}

/// First arrivals ascend in each key; how many arrived again.
fn repeated(messages: &[Received]) -> Result<usize> {
    let mut last: HashMap<String, i64> = HashMap::new();
    let mut seen = std::collections::HashSet::new();
    let mut repeated = 0;
    for message in messages {
        let (number, key) = number(message)?;
        if !seen.insert(number) {
            repeated += 1;
            continue;
        }
        let before = last.insert(key.clone(), number);
        assert!(before.is_none_or(|before| before < number), "{key}: {number} after {before:?}");
    }
    Ok(repeated)
}

#[tokio::test]
async fn f25_six_relays_send_each_row_once() -> Result<()> {
    let stage = Stage::new().await?;
    let relays = start(&stage, 6).await?;
    wait_spread(&relays, &[2, 2, 3, 3, 3, 3]).await?;
    fill(&stage, 0, ROWS).await?;
    let mut reader = stage.rabbit.reader(&stage.queue, 500).await?;
    let mut messages = reader.take(usize::try_from(ROWS)?, SOON * 3).await?;
    messages.extend(reader.take_until_quiet(Duration::from_secs(1)).await?);
    assert_eq!((messages.len() as i64, repeated(&messages)?), (ROWS, 0));
    Ok(())
}

#[tokio::test]
async fn lanes_follow_relays_that_come_stop_and_die_without_inverting_a_key() -> Result<()> {
    let stage = Stage::new().await?;
    let mut relays = start(&stage, 1).await?;
    wait_spread(&relays, &[16]).await?;
    fill(&stage, 0, 4_000).await?;
    relays.extend(start(&stage, 2).await?);
    wait_spread(&relays, &[5, 5, 6]).await?;
    fill(&stage, 4_000, 8_000).await?;

    // A clean stop gives the lanes back at once and repeats nothing.
    let mut leaving = relays.pop().context("three relays")?;
    assert_eq!(leaving.stop(SOON).await?, Some(0));
    wait_spread(&relays, &[8, 8]).await?;
    let mut reader = stage.rabbit.reader(&stage.queue, 500).await?;
    let mut messages = reader.take(8_000, SOON * 3).await?;
    assert_eq!(repeated(&messages)?, 0);

    // A dead one's lanes are taken over after their lease, and at most what was in flight repeats.
    fill(&stage, 8_000, 12_000).await?;
    let mut dying = relays.pop().context("two relays")?;
    messages.extend(reader.take(100, SOON).await?);
    dying.kill9().await?;
    wait_spread(&relays, &[16]).await?;
    let mut distinct: std::collections::HashSet<i64> = std::collections::HashSet::new();
    for message in &messages {
        distinct.insert(number(message)?.0);
    }
    while distinct.len() < 12_000 {
        let message = reader.next(SOON).await?.context("the rows of the dead relay did not come")?;
        distinct.insert(number(&message)?.0);
        messages.push(message);
    }
    assert!(repeated(&messages)? <= 2_000);
    Ok(())
}

/// A relay finds all leases run out, its own too, and renews those: what it takes besides are the other lanes. A
/// second worker on a lane would be known to nobody, and the relay would wait for its end for ever.
#[tokio::test]
async fn a_relay_that_renews_after_its_leases_ran_out_takes_no_lane_twice() -> Result<()> {
    let stage = Stage::new().await?;
    let mut relays = start(&stage, 2).await?;
    wait_spread(&relays, &[8, 8]).await?;
    // The one that lives on owns the lane that is taken first.
    let client = stage.database.client().await?;
    let first = "SELECT r.pid FROM outbox.lane l JOIN outbox.relay r ON r.id = l.owner WHERE l.lane = 0";
    let lives: i32 = client.query_one(first, &[]).await?.try_get(0)?;
    let dies = relays.iter().position(|relay| i64::from(relay.pid()) != i64::from(lives)).context("two relays")?;
    let mut dying = relays.remove(dies);
    dying.kill9().await?;
    // The dead one's heartbeat goes with it, so that its lanes are missing in the very look that finds the leases over.
    let end = format!("DELETE FROM outbox.relay WHERE pid <> {lives}; UPDATE outbox.lane SET expires_at = 'epoch'");
    client.batch_execute(&end).await?;
    wait_spread(&relays, &[16]).await?;
    let mut relay = relays.pop().context("one relay")?;
    assert_eq!(relay.stop(SOON).await?, Some(0));
    Ok(())
}

/// The wall clock of one relay of two is an hour off (libfaketime): leases, delays and order go by the database's.
async fn clock_is_off(offset: &str) -> Result<()> {
    let stage = Stage::new().await?;
    let off = stage.launch().clock(offset)?;
    let mut relays = start(&stage, 1).await?;
    relays.extend(start_as(&off, 1).await?);
    wait_spread(&relays, &[8, 8]).await?;

    let line = relays[1].wait_log("database session is up", SOON).await?;
    let written = line.split_whitespace().next().context("a line without its time")?;
    let client = stage.database.client().await?;
    let off = "SELECT abs(extract(epoch FROM $1::text::timestamptz - clock_timestamp())) > 3000";
    assert!(client.query_one(off, &[&written]).await?.try_get::<_, bool>(0)?, "the clock is right: {line}");

    // Without a fault nothing goes twice, and nothing before its time.
    let delayed = "INSERT INTO outbox.message (idempotency_key, topic, payload, ordering_key, available_at)
                   SELECT 'row-' || n, 't', n::text, 'key-' || n, clock_timestamp() + interval '3 s'
                     FROM generate_series(10001, 10032) AS n";
    client.execute(delayed, &[]).await?;
    fill(&stage, 0, 4_000).await?;
    let mut reader = stage.rabbit.reader(&stage.queue, 500).await?;
    let mut messages = reader.take(4_032, SOON * 3).await?;
    let marked = "SELECT count(*) = 0 FROM outbox.message WHERE sent_at IS NULL";
    let marked = || async { Ok(client.query_one(marked, &[]).await?.try_get(0)?) };
    wait::until_true("all rows to be marked", SOON, marked).await?;
    let early = "SELECT count(*) FROM outbox.message WHERE sent_at < available_at";
    assert_eq!(client.query_one(early, &[]).await?.try_get::<_, i64>(0)?, 0, "rows went before their time");

    // The other dies: its lanes are taken over all the same.
    let mut dying = relays.remove(0);
    dying.kill9().await?;
    wait_spread(&relays, &[16]).await?;
    fill(&stage, 4_000, 5_000).await?;
    messages.extend(reader.take(1_000, SOON).await?);
    assert_eq!(repeated(&messages)?, 0);
    // So are those of the one whose clock is off.
    let mut dying = relays.remove(0);
    dying.kill9().await?;
    let relays = start(&stage, 1).await?;
    wait_spread(&relays, &[16]).await?;
    fill(&stage, 5_000, 6_000).await?;
    messages.extend(reader.take(1_000, SOON).await?);
    assert_eq!(repeated(&messages)?, 0);
    Ok(())
}

#[tokio::test]
async fn a_relay_whose_clock_is_an_hour_fast_keeps_leases_delays_and_order() -> Result<()> {
    clock_is_off("+3600s").await
}

#[tokio::test]
async fn a_relay_whose_clock_is_an_hour_slow_keeps_leases_delays_and_order() -> Result<()> {
    clock_is_off("-3600s").await
}
