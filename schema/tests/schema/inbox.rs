//! `inbox.claim`: true exactly once, also when two ask at the same moment.

use outbox_schema::{Options, Schema};

use crate::kit::{Database, one, pid, sqlstate, start_and_block, words};

const CLAIM: &str = "SELECT inbox.claim('billing', 'm', NULL)";

#[tokio::test]
async fn a_message_is_claimed_once_per_consumer() {
    let db = Database::migrated().await;
    let client = db.connect().await;
    assert!(one::<bool>(&client, CLAIM).await);
    assert!(!one::<bool>(&client, CLAIM).await);
    assert!(one::<bool>(&client, "SELECT inbox.claim('mail', 'm', NULL)").await);
    assert!(
        one::<bool>(&client, "SELECT inbox.claim(consumer => 'billing', message_id => 'n', payload_hash => NULL)")
            .await
    );
}

#[tokio::test]
async fn the_second_waits_for_the_first() {
    let db = Database::migrated().await;
    for (end, expected) in [("ROLLBACK", true), ("COMMIT", false)] {
        db.connect().await.batch_execute("TRUNCATE inbox.processed").await.unwrap();
        let (first, second, observer) = (db.connect().await, db.connect().await, db.connect().await);
        first.batch_execute("BEGIN").await.unwrap();
        assert!(one::<bool>(&first, CLAIM).await);
        let second_pid = pid(&second).await;
        let waiting = start_and_block(&observer, second_pid, async move { one::<bool>(&second, CLAIM).await }).await;
        first.batch_execute(end).await.unwrap();
        assert_eq!(waiting.await.unwrap(), expected, "{end}");
    }
}

#[tokio::test]
async fn a_stricter_isolation_gets_a_serialization_failure() {
    let db = Database::migrated().await;
    let (client, other) = (db.connect().await, db.connect().await);
    client.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM inbox.processed").await.unwrap();
    assert!(one::<bool>(&other, CLAIM).await);
    assert_eq!(sqlstate(client.query(CLAIM, &[]).await), "40001");
}

#[tokio::test]
async fn another_body_under_one_id_is_an_error() {
    other_bodies_are_refused("inbox.claim('c', 'm', HASH)").await;
}

/// A claim, with `HASH` where its hash stands: true once, false again and without a hash, an error with another one.
pub async fn other_bodies_are_refused(claim: &str) {
    let db = Database::migrated().await;
    let client = db.connect().await;
    let with = |hash: &str| format!("SELECT {}", claim.replace("HASH", hash));
    let of = |body: &str| with(&format!("pg_catalog.sha256('{body}')"));
    assert!(one::<bool>(&client, &of("a")).await);
    assert!(!one::<bool>(&client, &of("a")).await);
    assert!(!one::<bool>(&client, &with("NULL")).await);
    let said = words(client.query(&of("b"), &[]).await);
    for body in ["a", "b"] {
        let hash: String = one(&client, &format!("SELECT pg_catalog.encode(pg_catalog.sha256('{body}'), 'hex')")).await;
        assert!(said.contains(&hash), "{said}");
    }
    assert_eq!(sqlstate(client.query(&of("b"), &[]).await), "OX002");
}

#[tokio::test]
async fn bad_arguments_are_named() {
    let db = Database::migrated().await;
    let client = db.connect().await;
    for (arguments, word) in [
        ("NULL, 'm', NULL", "consumer must be"),
        ("'', 'm', NULL", "consumer must be"),
        ("pg_catalog.repeat('é', 128), 'm', NULL", "not 256"),
        ("'c', NULL, NULL", "message_id must be"),
        ("'c', '', NULL", "message_id must be"),
        ("'c', pg_catalog.repeat('m', 256), NULL", "not 256"),
        ("'c', 'm', '\\x00'", "payload_hash must be 32 bytes"),
        ("'c', 'm', ''", "not 0"),
        ("'c', 'm', pg_catalog.decode(pg_catalog.repeat('00', 33), 'hex')", "not 33"),
    ] {
        let sql = format!("SELECT inbox.claim({arguments})");
        let said = words(client.query(&sql, &[]).await);
        assert!(said.contains(word), "{said}");
        assert_eq!(sqlstate(client.query(&sql, &[]).await), "22023", "{sql}");
    }
    let longest = "SELECT inbox.claim(pg_catalog.repeat('c', 255), pg_catalog.repeat('m', 255), NULL)";
    assert!(one::<bool>(&client, longest).await);
}

#[tokio::test]
async fn the_inbox_can_be_installed_alone() {
    let db = Database::empty().await;
    let options = Options { schemas: vec![Schema::Inbox], ..Options::default() };
    db.migrate_with(&options).await.unwrap();
    let client = db.connect().await;
    client.batch_execute(outbox_schema::ROLES_SQL).await.unwrap();
    let outbox: Option<String> = one(&client, "SELECT pg_catalog.to_regnamespace('outbox')::text").await;
    assert_eq!(outbox, None);
    let consumer = db.connect_as("outbox_app").await;
    assert!(one::<bool>(&consumer, CLAIM).await);
}
