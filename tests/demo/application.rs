//! The application: takes webhook deliveries, does its work and enqueues one message each, in one
//! transaction. The provider posts every delivery twice, and some transactions fail.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use outbox_tests::database::Database;
use outbox_tests::journal::{Content, Entry, Journal, Outcome, hash};
use outbox_tests::tally::grouped;
use outbox_tests::wait;
use tokio::task::JoinSet;
use tokio_postgres::Client;
use tokio_util::sync::CancellationToken;

use crate::received::Received;
use crate::webhooks::Delivery;

const WORKERS: usize = 3;
/// At least so many, and more until the relay was killed often enough.
const ROUNDS_MIN: usize = 3;
const ROUNDS_MAX: usize = 100;
/// The application rests while so many rows wait, or a slow machine would only pile them up.
const BACKLOG_MAX: usize = 800;

/// What the application saw.
#[derive(Default)]
pub struct Counts {
    pub posted: AtomicUsize,
    pub committed: AtomicUsize,
    pub rolled_back: AtomicUsize,
    /// Second posts of a delivery that was known.
    pub known: AtomicUsize,
}

impl Counts {
    /// All of them in one line.
    pub fn text(&self) -> String {
        let number = |count: &AtomicUsize| grouped(count.load(Ordering::Relaxed));
        format!(
            "{} posts: {} committed, {} second posts refused by their id, {} rolled back",
            number(&self.posted),
            number(&self.committed),
            number(&self.known),
            number(&self.rolled_back)
        )
    }
}

#[derive(Clone)]
pub struct Application {
    pub deliveries: Arc<Vec<Delivery>>,
    pub journal: Journal,
    pub counts: Arc<Counts>,
    pub received: Arc<Received>,
    /// No further round is begun.
    pub enough: CancellationToken,
}

impl Application {
    /// Replays all deliveries, round after round, each round under fresh ids.
    pub async fn replay(self, shop: &Database) -> Result<()> {
        let mut workers = JoinSet::new();
        for number in 0..WORKERS {
            let worker = Worker { number, client: shop.client().await?, application: self.clone() };
            workers.spawn(worker.work());
        }
        while let Some(worker) = workers.join_next().await {
            worker??;
        }
        Ok(())
    }
}

struct Worker {
    number: usize,
    client: Client,
    application: Application,
}

impl Worker {
    async fn work(mut self) -> Result<()> {
        let deliveries = Arc::clone(&self.application.deliveries);
        for round in 1..=ROUNDS_MAX {
            if round > ROUNDS_MIN && self.application.enough.is_cancelled() {
                break;
            }
            for (index, delivery) in deliveries.iter().enumerate() {
                if self.is_mine(index, delivery) {
                    self.rest().await?;
                    self.deliver(index, delivery, round).await?;
                }
            }
        }
        Ok(())
    }

    /// One worker takes all deliveries of a repository, so that the journal knows their order.
    fn is_mine(&self, index: usize, delivery: &Delivery) -> bool {
        let place = delivery.repository.as_ref().map_or(index, |name| name.bytes().map(usize::from).sum());
        place % WORKERS == self.number
    }

    async fn rest(&self) -> Result<()> {
        let Application { counts, received, .. } = &self.application;
        let small = || async { Ok(counts.committed.load(Ordering::Relaxed) < received.ids() + BACKLOG_MAX) };
        wait::until_true("the relay to work off its backlog", Duration::from_secs(60), small).await
    }

    /// The provider posts twice. Now and then the application fails: at the first post, so that
    /// only the second counts, or at both, so that the message must never be seen.
    async fn deliver(&mut self, index: usize, delivery: &Delivery, round: usize) -> Result<()> {
        let mut own = delivery.clone();
        if round > 1 {
            own.id = format!("{}-{round}", delivery.id);
        }
        let fails = match index % 20 {
            3 => [true, true],
            7 | 13 => [true, false],
            _ => [false, false],
        };
        let mut committed = false;
        for fails in fails {
            committed |= self.post(&own, fails, index.is_multiple_of(2)).await?;
        }
        let outcome = if committed { Outcome::Committed } else { Outcome::RolledBack };
        let content = Content {
            key: own.repository.clone(),
            body_hash: Some(hash(own.payload.as_bytes())),
            ..Content::default()
        };
        let number = self.application.journal.next_number(own.repository.as_deref());
        self.application.journal.record(Entry { id: own.id, content, number, outcome });
        Ok(())
    }

    /// One post: true when it was new and its transaction committed.
    async fn post(&mut self, delivery: &Delivery, fails: bool, by_function: bool) -> Result<bool> {
        let counts = Arc::clone(&self.application.counts);
        counts.posted.fetch_add(1, Ordering::Relaxed);
        let transaction = self.client.transaction().await?;
        let Delivery { id, event, repository, payload } = delivery;
        // The application's own work. Locking the thing first makes the order of the rows of a key
        // the order of their commits, where several sessions write it.
        if let Some(name) = repository {
            let count = "INSERT INTO repository AS r (name, deliveries) VALUES ($1, 1) \
                         ON CONFLICT (name) DO UPDATE SET deliveries = r.deliveries + 1";
            transaction.execute(count, &[name]).await?;
        }
        let enqueue = if by_function {
            "SELECT outbox.enqueue(idempotency_key => $1, topic => $2, payload => $3::text, ordering_key => $4)"
        } else {
            "INSERT INTO outbox.message (idempotency_key, topic, payload, ordering_key) VALUES ($1, $2, $3, $4) \
             ON CONFLICT (idempotency_key) DO NOTHING RETURNING seq"
        };
        let topic = format!("github.{event}");
        let row = transaction.query_opt(enqueue, &[id, &topic, payload, repository]).await.context("enqueueing")?;
        let seq: Option<i64> = row.map(|row| row.try_get(0)).transpose()?.flatten();
        if seq.is_some() && !fails {
            transaction.commit().await?;
            counts.committed.fetch_add(1, Ordering::Relaxed);
            return Ok(true);
        }
        transaction.rollback().await?;
        let counter = if seq.is_some() { &counts.rolled_back } else { &counts.known };
        counter.fetch_add(1, Ordering::Relaxed);
        Ok(false)
    }
}
