//! `outbox.enqueue` beside other sessions: the same key at once, retention in between, stricter isolation.

use tokio_postgres::Client;

use crate::kit::{Database, one, pid, sqlstate, start_and_block};

const ENQUEUE: &str = "SELECT outbox.enqueue('k', 't', 'first')";

/// Starts `sql` in a session that must wait for `first`, ends `first` with `end`, and returns both sessions' outcome.
async fn behind(
    db: &Database,
    first: &Client,
    begin: &str,
    sql: &'static str,
    end: &str,
) -> Result<Option<i64>, tokio_postgres::Error> {
    let observer = db.connect().await;
    let second = db.connect().await;
    second.batch_execute(begin).await.unwrap();
    let second_pid = pid(&second).await;
    let waiting =
        start_and_block(&observer, second_pid, async move { second.query_one(sql, &[]).await.map(|row| row.get(0)) })
            .await;
    first.batch_execute(end).await.unwrap();
    waiting.await.unwrap()
}

async fn first_in_transaction(db: &Database, sql: &str) -> Client {
    let first = db.connect().await;
    first.batch_execute(&format!("BEGIN; {sql}")).await.unwrap();
    first
}

#[tokio::test]
async fn the_second_waits_and_finds_the_same() {
    let db = Database::migrated().await;
    let first = first_in_transaction(&db, ENQUEUE).await;
    let second = behind(&db, &first, "", ENQUEUE, "COMMIT").await;
    assert_eq!(second.unwrap(), None);
}

#[tokio::test]
async fn the_second_waits_and_finds_other_content() {
    let db = Database::migrated().await;
    let first = first_in_transaction(&db, ENQUEUE).await;
    let other = "SELECT outbox.enqueue('k', 't', 'second')";
    assert_eq!(sqlstate(behind(&db, &first, "", other, "COMMIT").await), "OX001");
}

#[tokio::test]
async fn the_second_inserts_when_the_first_rolls_back() {
    let db = Database::migrated().await;
    let first = first_in_transaction(&db, ENQUEUE).await;
    assert!(behind(&db, &first, "", ENQUEUE, "ROLLBACK").await.unwrap().is_some());
}

#[tokio::test]
async fn a_row_that_retention_removes_is_inserted_anew() {
    let db = Database::migrated().await;
    db.connect().await.batch_execute(ENQUEUE).await.unwrap();
    let retention = first_in_transaction(&db, "DELETE FROM outbox.message").await;
    assert!(behind(&db, &retention, "", ENQUEUE, "COMMIT").await.unwrap().is_some());
}

#[tokio::test]
async fn a_row_that_retention_keeps_after_all_is_the_same() {
    let db = Database::migrated().await;
    db.connect().await.batch_execute(ENQUEUE).await.unwrap();
    let retention = first_in_transaction(&db, "DELETE FROM outbox.message").await;
    assert_eq!(behind(&db, &retention, "", ENQUEUE, "ROLLBACK").await.unwrap(), None);
}

#[tokio::test]
async fn a_stricter_isolation_gets_a_serialization_failure() {
    let db = Database::migrated().await;
    for level in ["REPEATABLE READ", "SERIALIZABLE"] {
        db.connect().await.batch_execute("TRUNCATE outbox.message").await.unwrap();
        let first = first_in_transaction(&db, ENQUEUE).await;
        let begin = format!("BEGIN ISOLATION LEVEL {level}; SELECT 1");
        assert_eq!(sqlstate(behind(&db, &first, &begin, ENQUEUE, "COMMIT").await), "40001");

        // Nobody to wait for, but the row came after this transaction's snapshot.
        db.connect().await.batch_execute("TRUNCATE outbox.message").await.unwrap();
        let late = db.connect().await;
        late.batch_execute(&format!("{begin} FROM outbox.lane")).await.unwrap();
        db.connect().await.batch_execute(ENQUEUE).await.unwrap();
        assert_eq!(sqlstate(late.query(ENQUEUE, &[]).await), "40001", "{level}");
    }
}

/// Many sessions enqueue one key while another deletes it all the time: always an answer, never two rows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn enqueue_beside_deletes_always_answers() {
    let db = Database::migrated().await;
    let mut tasks = Vec::new();
    for _ in 0..4 {
        let client = db.connect().await;
        tasks.push(tokio::spawn(async move {
            let mut inserted = 0;
            for _ in 0..150 {
                let seq: Option<i64> = one(&client, ENQUEUE).await;
                inserted += u64::from(seq.is_some());
            }
            inserted
        }));
    }
    let deleter = db.connect().await;
    let mut deleted = 0;
    while !tasks.iter().all(tokio::task::JoinHandle::is_finished) {
        deleted += deleter.execute("DELETE FROM outbox.message", &[]).await.unwrap();
    }
    deleted += deleter.execute("DELETE FROM outbox.message", &[]).await.unwrap();
    let mut inserted = 0;
    for task in tasks {
        inserted += task.await.unwrap();
    }
    assert_eq!(inserted, deleted);
    assert!(inserted > 1, "the race did not happen");
}
