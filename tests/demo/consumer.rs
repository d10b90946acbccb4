//! The consumer: does the work of each message once, in one transaction with `inbox.claim`.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use outbox_tests::database::Database;
use outbox_tests::journal::hash;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_postgres::Client;
use tokio_util::sync::CancellationToken;

use crate::queue::{Message, Queue};
use crate::received::Received;

const WORKERS: usize = 3;
/// After `done`: a silence this long is the end.
const QUIET: Duration = Duration::from_millis(500);

/// What the consumer's database says.
pub struct Effects {
    pub done: usize,
    pub twice: usize,
}

/// Reads until `done` and nothing more comes, and works on every message. A message is
/// acknowledged before its work here, since the demo does not kill its consumer.
pub async fn consume(
    mut queue: Queue,
    received: Arc<Received>,
    ledger: &Database,
    done: CancellationToken,
) -> Result<Effects> {
    let mut workers = JoinSet::new();
    let mut inputs = Vec::new();
    for _ in 0..WORKERS {
        let (input, messages) = mpsc::channel(1_000);
        workers.spawn(work(ledger.client().await?, messages));
        inputs.push(input);
    }
    loop {
        match queue.next(QUIET).await? {
            Some(message) => {
                received.record(&message);
                let worker = received.count() % WORKERS;
                inputs[worker].send(message).await.context("a worker of the consumer ended")?;
            }
            None if done.is_cancelled() => break,
            None => {}
        }
    }
    drop(inputs);
    while let Some(worker) = workers.join_next().await {
        worker??;
    }
    count(&ledger.client().await?).await
}

async fn work(mut client: Client, mut messages: mpsc::Receiver<Message>) -> Result<()> {
    while let Some(message) = messages.recv().await {
        let transaction = client.transaction().await?;
        let body_hash = hash(&message.body).to_vec();
        let claim = "SELECT inbox.claim('demo', $1, $2)";
        let first: bool = transaction.query_one(claim, &[&message.id, &body_hash]).await?.try_get(0)?;
        if first {
            transaction.execute("INSERT INTO effect (message_id) VALUES ($1)", &[&message.id]).await?;
        }
        transaction.commit().await?;
    }
    Ok(())
}

async fn count(client: &Client) -> Result<Effects> {
    let sql = "SELECT count(*), count(*) FILTER (WHERE times > 1) \
               FROM (SELECT count(*) AS times FROM effect GROUP BY message_id) AS effects";
    let row = client.query_one(sql, &[]).await?;
    let number = |index: usize| -> Result<usize> { Ok(usize::try_from(row.try_get::<_, i64>(index)?)?) };
    Ok(Effects { done: number(0)?, twice: number(1)? })
}
