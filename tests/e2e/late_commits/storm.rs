//! Twenty-four writers who do everything that makes rows visible in another order than that of their numbers.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::Result;
use fastrand::Rng;
use outbox_tests::database::Database;
use outbox_tests::journal::{Journal, Outcome};
use outbox_tests::writer::Row;
use tokio_postgres::{Client, GenericClient, Transaction};

const WRITERS: u64 = 24;
const HOT_KEYS: usize = 12;

/// Rows to write, entered in the journal once their transaction's end is known.
type Written = Vec<(Row, u64, Outcome)>;

struct Writer {
    number: u64,
    client: Client,
    journal: Journal,
    random: Rng,
    rows: usize,
    committed: Arc<AtomicUsize>,
    rows_max: usize,
}

/// Writes until `rows` are committed, by all writers together.
pub async fn blow(database: &Database, journal: &Journal, seed: u64, rows: usize) -> Result<()> {
    let client = database.client().await?;
    client
        .batch_execute(&format!(
            "CREATE TABLE unrelated (id bigserial); CREATE TABLE hot (id int PRIMARY KEY); \
             INSERT INTO hot SELECT generate_series(0, {HOT_KEYS} - 1)"
        ))
        .await?;
    let committed = Arc::new(AtomicUsize::new(0));
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..WRITERS {
        let mut writer = Writer {
            number,
            client: database.client().await?,
            journal: journal.clone(),
            random: Rng::with_seed(seed.wrapping_add(number)),
            rows: 0,
            committed: committed.clone(),
            rows_max: rows,
        };
        tasks.spawn(async move { writer.run().await });
    }
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    Ok(())
}

impl Writer {
    async fn run(&mut self) -> Result<()> {
        while self.committed.load(Ordering::Relaxed) < self.rows_max {
            self.write().await?;
        }
        Ok(())
    }

    /// One transaction.
    async fn write(&mut self) -> Result<()> {
        let mut random = self.random.fork();
        let mut rows = self.rows;
        let mut transaction = self.client.transaction().await?;
        if random.bool() {
            // A low transaction id, long before the first number is drawn.
            transaction.batch_execute("INSERT INTO unrelated DEFAULT VALUES").await?;
            if random.u8(..4) == 0 {
                sleep(&transaction, random.f64() * 0.03).await?;
            }
        }
        let key = match random.u8(..10) {
            0 => None,
            1..3 => Some(format!("own-{}-{}", self.number, rows)),
            _ => {
                let hot = i32::from(random.u8(..HOT_KEYS as u8));
                transaction.query("SELECT FROM hot WHERE id = $1 FOR UPDATE", &[&hot]).await?;
                Some(format!("hot-{hot}"))
            }
        };
        let is_hot = key.as_deref().is_some_and(|key| key.starts_with("hot"));
        let mut written = Written::new();
        for _ in 0..random.usize(1..4) {
            if random.u8(..5) == 0 {
                let savepoint = transaction.savepoint("s").await?;
                let count = random.usize(1..3);
                let undone = insert(&savepoint, &self.journal, (self.number, &mut rows), key.as_deref(), count);
                written.extend(undone.await?.into_iter().map(|(row, number, _)| (row, number, Outcome::RolledBack)));
                savepoint.rollback().await?;
            }
            let count = random.usize(1..5);
            written.extend(insert(&transaction, &self.journal, (self.number, &mut rows), key.as_deref(), count).await?);
            // Who holds a hot key holds up others, so only the others stay long.
            match random.u8(..20) {
                0 if !is_hot => sleep(&transaction, 0.1 + random.f64() * 0.4).await?,
                1..4 => sleep(&transaction, random.f64() * 0.01).await?,
                _ => {}
            }
        }
        let back = random.u8(..8) == 0;
        if back {
            transaction.rollback().await?;
        } else {
            transaction.commit().await?;
        }
        self.rows = rows;
        self.enter(written, back);
        Ok(())
    }

    fn enter(&self, written: Written, back: bool) {
        for (row, number, outcome) in written {
            let outcome = if back { Outcome::RolledBack } else { outcome };
            self.committed.fetch_add(usize::from(outcome == Outcome::Committed), Ordering::Relaxed);
            self.journal.record(row.entry(number, outcome));
        }
    }
}

async fn sleep(transaction: &Transaction<'_>, seconds: f64) -> Result<()> {
    transaction.execute("SELECT pg_sleep($1)", &[&seconds]).await?;
    Ok(())
}

/// Several rows in one statement. Whoever calls holds the key's lock, so numbers follow the order of commits.
async fn insert(
    client: &impl GenericClient,
    journal: &Journal,
    (writer, rows): (u64, &mut usize),
    key: Option<&str>,
    count: usize,
) -> Result<Written> {
    let mut written = Written::new();
    for _ in 0..count {
        *rows += 1;
        let row = Row::new(&format!("{writer}-{rows}"), "a");
        let row = match key {
            Some(key) => row.key(key),
            None => row,
        };
        written.push((row, journal.next_number(key), Outcome::Committed));
    }
    let ids: Vec<&str> = written.iter().map(|(row, _, _)| row.id.as_str()).collect();
    let statement = "INSERT INTO outbox.message (idempotency_key, topic, ordering_key, payload) \
                     SELECT id, 'a', $2, '{\"id\":\"' || id || '\"}' FROM unnest($1::text[]) WITH ORDINALITY AS r (id, at) \
                     ORDER BY at";
    client.execute(statement, &[&ids, &key]).await?;
    Ok(written)
}
