//! The application of a campaign: tasks with connections of their own that commit, roll back, dawdle, and lose
//! their connection in the commit.
//!
//! A key's writers are serialised by a row lock that is taken before the insert, so a key's numbers grow in the
//! order of commits, and in the order of `seq`.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use outbox_tests::journal::{Entry, Outcome};
use outbox_tests::writer::{Body, Row};
use serde_json::json;
use tokio::sync::RwLock;
use tokio::task::JoinHandle;
use tokio_postgres::{Client, NoTls};

use crate::evidence::Notes;

const HOT_KEYS: usize = 4;
const COLD_KEYS: usize = 120;

/// How a transaction goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Course {
    Commit,
    RollBack,
    /// Some rows are rolled back to a savepoint, the others committed.
    Savepoint,
    /// Open for a while before it commits.
    Long,
    /// The connection is cut while the commit is under way.
    Cut,
    /// Committed before it is durable.
    Volatile,
}

/// A writer; several run at once.
pub struct Writer {
    pub number: usize,
    pub url: String,
    pub topics: Vec<String>,
    pub notes: Notes,
    /// Held while a transaction is open: whoever wants silence takes it for writing.
    pub gate: Arc<RwLock<()>>,
    pub random: fastrand::Rng,
    pub pause_ms: u64,
}

struct Link {
    client: Client,
    driver: JoinHandle<()>,
}

impl Writer {
    /// Works until it is aborted.
    pub async fn run(mut self) {
        let mut link = None;
        let mut written = 0;
        loop {
            tokio::time::sleep(Duration::from_millis(self.random.u64(1..=2 * self.pause_ms))).await;
            let gate = Arc::clone(&self.gate);
            let _open = gate.read().await;
            let Ok(open) = self.link(&mut link).await else { continue };
            let course = self.course();
            if self.transaction(open, course, &mut written).await.is_err() || course == Course::Cut {
                link = None;
            }
        }
    }

    async fn link<'a>(&self, link: &'a mut Option<Link>) -> Result<&'a mut Link> {
        if link.is_none() {
            let connect = tokio_postgres::connect(&self.url, NoTls);
            let (client, connection) = tokio::time::timeout(Duration::from_secs(10), connect).await??;
            let driver = tokio::spawn(async move {
                let _ = connection.await;
            });
            // The campaign makes the server read-only for the relays.
            client.batch_execute("SET default_transaction_read_only = off; SET lock_timeout = '10s'").await?;
            *link = Some(Link { client, driver });
        }
        link.as_mut().context("just made")
    }

    fn course(&mut self) -> Course {
        match self.random.u8(0..100) {
            0..58 => Course::Commit,
            58..66 => Course::RollBack,
            66..76 => Course::Savepoint,
            76..82 => Course::Long,
            82..90 => Course::Cut,
            _ => Course::Volatile,
        }
    }

    /// The keys of one statement group, sorted so that writers seldom deadlock.
    fn keys(&mut self) -> Vec<Option<String>> {
        let mut keys: Vec<Option<String>> = (0..self.random.usize(1..=4))
            .map(|_| match self.random.u8(0..10) {
                0 => None,
                1..4 => Some(format!("hot-{}", self.random.usize(0..HOT_KEYS))),
                _ => Some(format!("key-{}", self.random.usize(0..COLD_KEYS))),
            })
            .collect();
        keys.sort();
        keys
    }

    async fn transaction(&mut self, link: &mut Link, course: Course, written: &mut usize) -> Result<()> {
        let mut kept = Vec::new();
        let mut undone = Vec::new();
        let inserted = self.insert_all(&link.client, course, written, &mut kept, &mut undone).await;
        let outcome = match inserted {
            Err(_) => Outcome::RolledBack,
            Ok(()) if course == Course::RollBack => {
                let _ = link.client.batch_execute("ROLLBACK").await;
                Outcome::RolledBack
            }
            Ok(()) => self.commit(link, course).await,
        };
        for entry in &mut kept {
            entry.outcome = outcome;
        }
        self.notes.wrote(kept, course == Course::Volatile);
        self.notes.wrote(undone, false);
        if inserted.is_err() {
            // The session may still be in the failed transaction.
            link.client.batch_execute("ROLLBACK").await?;
        }
        inserted
    }

    async fn insert_all(
        &mut self,
        client: &Client,
        course: Course,
        written: &mut usize,
        kept: &mut Vec<Entry>,
        undone: &mut Vec<Entry>,
    ) -> Result<()> {
        let begin = if course == Course::Volatile { "BEGIN; SET LOCAL synchronous_commit = off" } else { "BEGIN" };
        client.batch_execute(begin).await?;
        self.insert(client, written, kept).await?;
        match course {
            Course::Savepoint => {
                client.batch_execute("SAVEPOINT s").await?;
                self.insert(client, written, undone).await?;
                client.batch_execute("ROLLBACK TO s").await?;
                client.batch_execute("SAVEPOINT t").await?;
                self.insert(client, written, kept).await?;
                client.batch_execute("RELEASE t").await?;
            }
            Course::Long => tokio::time::sleep(Duration::from_millis(self.random.u64(100..1_500))).await,
            Course::Commit | Course::RollBack | Course::Cut | Course::Volatile => {}
        }
        Ok(())
    }

    /// What is written down before the insert is rolled back until the commit says otherwise.
    async fn insert(&mut self, client: &Client, written: &mut usize, entries: &mut Vec<Entry>) -> Result<()> {
        for key in self.keys() {
            let number = next_number(client, key.as_deref()).await?;
            let id = format!("w{}-{written}", self.number);
            *written += 1;
            let topic = self.topics[self.random.usize(0..self.topics.len())].clone();
            let row = row(&id, &topic, key.as_deref(), number, &mut self.random);
            entries.push(row.entry(number, Outcome::RolledBack));
            row.insert(client).await?;
        }
        Ok(())
    }

    async fn commit(&mut self, link: &mut Link, course: Course) -> Outcome {
        let commit = link.client.batch_execute("COMMIT");
        if course != Course::Cut {
            return if commit.await.is_ok() { Outcome::Committed } else { Outcome::Unknown };
        }
        let within = Duration::from_micros(self.random.u64(0..3_000));
        let answered = tokio::time::timeout(within, commit).await;
        link.driver.abort();
        if matches!(answered, Ok(Ok(()))) { Outcome::Committed } else { Outcome::Unknown }
    }
}

/// Takes the key's lock, which lasts to the end of the transaction.
pub async fn next_number(client: &Client, key: Option<&str>) -> Result<u64> {
    let Some(key) = key else { return Ok(0) };
    let sql = "INSERT INTO campaign.counter AS c VALUES ($1, 1)
               ON CONFLICT (key) DO UPDATE SET n = c.n + 1 RETURNING n";
    let number: i64 = client.query_one(sql, &[&key]).await?.try_get(0)?;
    Ok(u64::try_from(number)?)
}

/// A row of any shape that the table takes.
pub fn row(id: &str, topic: &str, key: Option<&str>, number: u64, random: &mut fastrand::Rng) -> Row {
    let mut row = Row::new(id, topic).headers(json!({ "number": number.to_string() }));
    row.expected_headers.insert("number".to_owned(), number.to_string());
    row.key = key.map(ToOwned::to_owned);
    let length = if random.u8(0..50) == 0 { 60_000 } else { random.usize(0..400) };
    match random.u8(0..20) {
        0 => row.body(Body::Tombstone),
        1..4 => {
            let bytes = (0..length).map(|_| random.u8(..)).collect();
            row.body(Body::Bytes(bytes))
        }
        _ => row.text(&format!(r#"{{"id":"{id}","filler":"{}"}}"#, "x".repeat(length))),
    }
}
