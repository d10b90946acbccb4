//! kill -9 at an instant at which rows have reached the broker and are not marked sent.
//!
//! The relay is frozen first, so that what is in flight can be counted, and is killed without
//! ever running again; where nothing is in flight it goes on and the next arrival is taken.

use std::time::Duration;

use anyhow::{Context, Result};
use outbox_tests::relay::Relay;
use outbox_tests::wait;
use tokio_postgres::Client;

use crate::received::Received;

/// A relay must have shown that it works before it is killed.
const ARRIVALS_MIN: usize = 100;

/// A new relay waits out its predecessor's lease first; a loaded machine takes its time for all of it.
const PATIENCE: Duration = Duration::from_secs(90);

/// The database and the broker at the instant of a kill.
pub struct Kill {
    pub committed: usize,
    /// Marked sent.
    pub marked: usize,
    /// Ids that arrived at the consumer and are not marked: these must come again.
    pub in_flight: Vec<String>,
}

pub async fn with_rows_in_flight(relay: &mut Relay, shop: &Client, received: &Received) -> Result<Kill> {
    received.wait_count(received.count() + ARRIVALS_MIN, PATIENCE).await.context("the relay was just started")?;
    loop {
        relay.sigstop()?;
        settle(shop, received).await?;
        let kill = look(shop, received).await?;
        if !kill.in_flight.is_empty() {
            relay.kill9().await?;
            gone(shop).await?;
            return look(shop, received).await;
        }
        let count = received.count();
        relay.sigcont()?;
        received.wait_count(count + 1, PATIENCE).await?;
    }
}

/// Waits until what the frozen relay had said before is done: its statements have ended, and what
/// it had published was read.
async fn settle(shop: &Client, received: &Received) -> Result<()> {
    let mut before = usize::MAX;
    let mut quiet = 0;
    let mut settled = async || {
        // A backend whose answer nobody reads stays active for ever.
        let sql = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
                   AND application_name = 'outbox-relay' AND state = 'active' \
                   AND wait_event_type IS DISTINCT FROM 'Client'";
        let active: i64 = shop.query_one(sql, &[]).await?.try_get(0)?;
        let now = received.count();
        quiet = if active == 0 && now == before { quiet + 1 } else { 0 };
        before = now;
        anyhow::Ok(quiet >= 3)
    };
    let deadline = tokio::time::Instant::now() + wait::SOON;
    while !settled().await? {
        anyhow::ensure!(tokio::time::Instant::now() < deadline, "a frozen relay's statements do not end");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

/// Waits until the dead relay's sessions have ended: a mark that stood in a socket is still carried out.
async fn gone(shop: &Client) -> Result<()> {
    let sql = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
               AND application_name = 'outbox-relay'";
    let none = || async { Ok(shop.query_one(sql, &[]).await?.try_get::<_, i64>(0)? == 0) };
    wait::until_true("the dead relay's sessions to end", wait::SOON, none).await
}

async fn look(shop: &Client, received: &Received) -> Result<Kill> {
    let sql = "SELECT count(*), count(sent_at), array_agg(idempotency_key) FILTER (WHERE sent_at IS NULL) \
               FROM outbox.message";
    let row = shop.query_one(sql, &[]).await?;
    let number = |index: usize| -> Result<usize> { Ok(usize::try_from(row.try_get::<_, i64>(index)?)?) };
    let unmarked: Option<Vec<String>> = row.try_get(2)?;
    let in_flight = received.of(unmarked.unwrap_or_default());
    Ok(Kill { committed: number(0)?, marked: number(1)?, in_flight })
}
