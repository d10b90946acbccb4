//! Order per key, and one bad row harming only its own key.

mod poison;
mod queue_full;
mod waiting;

use anyhow::Result;
use outbox_tests::wait;

use crate::stage::Stage;

/// Waits until so many rows lie in the waiting room for this reason.
async fn wait_held(stage: &Stage, reason: &str, count: i64) -> Result<()> {
    let client = &stage.database.client().await?;
    let statement = "SELECT count(*) FROM outbox.held WHERE state = 'waiting' AND reason = $1";
    wait::until_true(&format!("{count} rows held as {reason}"), wait::SOON, || async {
        Ok(client.query_one(statement, &[&reason]).await?.try_get::<_, i64>(0)? == count)
    })
    .await
}

async fn count(stage: &Stage, condition: &str) -> Result<i64> {
    let statement = format!("SELECT count(*) FROM outbox.message_status WHERE {condition}");
    Ok(stage.database.client().await?.query_one(&statement, &[]).await?.try_get(0)?)
}

/// Waits until so many rows satisfy a condition on `outbox.message_status`.
async fn wait_count(stage: &Stage, condition: &str, expected: i64) -> Result<()> {
    let what = format!("{expected} rows with {condition}");
    wait::until_true(&what, wait::SOON, || async { Ok(count(stage, condition).await? == expected) }).await
}
