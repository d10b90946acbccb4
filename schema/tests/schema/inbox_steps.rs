//! The steps of one piece of work: each once, with a result that stays; asking, and removing old entries.

use outbox_schema::Schema;
use tokio_postgres::Client;

use crate::kit::{Database, one, pid, sqlstate, start_and_block, words};

const CLAIM: &str = "SELECT inbox.claim_step('billing', 'm', 'charge')";

/// What `step_result` says of the step `charge`, as text.
async fn result_of_charge(client: &Client) -> Option<String> {
    one(client, "SELECT inbox.step_result('billing', 'm', 'charge')::text").await
}

#[tokio::test]
async fn each_step_is_claimed_once() {
    let db = Database::migrated().await;
    let client = db.connect().await;
    for step in ["reserve", "charge", "mail"] {
        let claim = format!("SELECT inbox.claim_step(consumer => 'billing', message_id => 'm', step => '{step}')");
        assert!(one::<bool>(&client, &claim).await);
        assert!(!one::<bool>(&client, &claim).await);
    }
    assert!(one::<bool>(&client, "SELECT inbox.claim_step('mail', 'm', 'charge')").await, "another consumer");
    assert!(one::<bool>(&client, "SELECT inbox.claim_step('billing', 'n', 'charge')").await, "another message");
    assert!(one::<bool>(&client, "SELECT inbox.claim('billing', 'm', NULL)").await, "the message as a whole");
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
async fn a_job_goes_on_at_its_first_unfinished_step() {
    let db = Database::migrated().await;
    let client = db.connect().await;
    let done = async |step: &str| one::<bool>(&client, &format!("SELECT inbox.is_done('c', 'job', '{step}')")).await;
    for step in ["one", "two"] {
        client
            .batch_execute(&format!(
                "BEGIN; SELECT inbox.claim_step('c', 'job', '{step}'); \
                 SELECT inbox.finish_step('c', 'job', '{step}', '{{\"from\": \"{step}\"}}'); COMMIT"
            ))
            .await
            .unwrap();
    }
    // The worker dies in the third.
    client.batch_execute("BEGIN; SELECT inbox.claim_step('c', 'job', 'three'); ROLLBACK").await.unwrap();
    assert_eq!((done("one").await, done("two").await, done("three").await), (true, true, false));
    let carried: String = one(&client, "SELECT inbox.step_result('c', 'job', 'two') ->> 'from'").await;
    assert_eq!(carried, "two");
    assert!(!one::<bool>(&client, "SELECT inbox.is_done('c', 'job')").await, "the job as a whole is not done");
}

#[tokio::test]
async fn the_first_result_stays() {
    let db = Database::migrated().await;
    let client = db.connect().await;
    assert_eq!(result_of_charge(&client).await, None);
    assert!(one::<bool>(&client, CLAIM).await);
    assert_eq!(result_of_charge(&client).await, None, "claimed, not finished");
    assert!(one::<bool>(&client, "SELECT inbox.finish_step('billing', 'm', 'charge', '{\"id\": 1}')").await);
    assert!(!one::<bool>(&client, "SELECT inbox.finish_step('billing', 'm', 'charge', '{\"id\": 2}')").await);
    assert_eq!(result_of_charge(&client).await.as_deref(), Some("{\"id\": 1}"));
    // Without a claim it is done all the same, and without a result it is done too.
    assert!(one::<bool>(&client, "SELECT inbox.finish_step('billing', 'm', 'mail')").await);
    assert!(!one::<bool>(&client, "SELECT inbox.finish_step('billing', 'm', 'mail')").await);
    assert!(!one::<bool>(&client, "SELECT inbox.claim_step('billing', 'm', 'mail')").await);
}

#[tokio::test]
async fn another_body_under_one_id_is_an_error() {
    crate::inbox::other_bodies_are_refused("inbox.claim_step('c', 'm', 's', HASH)").await;
}

#[tokio::test]
async fn bad_arguments_are_named() {
    let db = Database::migrated().await;
    let client = db.connect().await;
    let long = "pg_catalog.repeat('é', 128)";
    for function in ["claim_step", "finish_step", "step_result", "is_done"] {
        for (arguments, word) in [
            ("NULL, 'm', 's'".to_owned(), "consumer must be 1 to 255 bytes long, not NULL"),
            ("'', 'm', 's'".to_owned(), "consumer must be 1 to 255 bytes long, not 0"),
            (format!("{long}, 'm', 's'"), "consumer must be 1 to 255 bytes long, not 256"),
            ("'c', NULL, 's'".to_owned(), "message id must be 1 to 255 bytes long, not NULL"),
            ("'c', '', 's'".to_owned(), "message id must be 1 to 255 bytes long, not 0"),
            (format!("'c', {long}, 's'"), "message id must be 1 to 255 bytes long, not 256"),
            ("'c', 'm', NULL".to_owned(), "step must be"),
            (format!("'c', 'm', {long}"), "not 256"),
        ] {
            let sql = format!("SELECT inbox.{function}({arguments})");
            let said = words(client.query(&sql, &[]).await);
            assert!(said.contains(word) && said.starts_with(&format!("inbox.{function}: ")), "{sql}: {said}");
            assert_eq!(sqlstate(client.query(&sql, &[]).await), "22023", "{sql}");
        }
    }
    for (call, word) in [
        ("claim_step('c', 'm', '')", "step must be 1 to 255 bytes long, not 0"),
        ("claim_step('c', 'm', 's', '')", "payload_hash must be 32 bytes long, not 0"),
        ("claim_step('c', 'm', 's', '\\x00')", "payload_hash must be 32 bytes long, not 1"),
        ("prune(NULL)", "older_than must be above 0, not NULL"),
        ("prune(interval '0')", "older_than must be above 0"),
        ("prune(interval '-1 day')", "older_than must be above 0"),
        ("prune(interval '1 day', 0)", "batch must be 1 to 100000, not 0"),
        ("prune(interval '1 day', NULL)", "batch must be 1 to 100000, not NULL"),
    ] {
        let said = words(client.query(&format!("SELECT inbox.{call}"), &[]).await);
        assert!(said.contains(word), "{call}: {said}");
    }
    let longest = "SELECT inbox.claim_step(pg_catalog.repeat('c', 255), pg_catalog.repeat('m', 255), pg_catalog.repeat('s', 255))";
    assert!(one::<bool>(&client, longest).await);
}

/// After an error the caller may go back to a savepoint of its own and decide.
#[tokio::test]
async fn bad_input_leaves_the_transaction_to_its_caller() {
    let db = Database::migrated().await;
    let client = db.connect().await;
    client.batch_execute("BEGIN; SELECT inbox.claim('c', 'm', NULL); SAVEPOINT before").await.unwrap();
    assert_eq!(sqlstate(client.query("SELECT inbox.claim_step('c', '', 's')", &[]).await), "22023");
    client.batch_execute("ROLLBACK TO before; COMMIT").await.unwrap();
    assert!(one::<bool>(&client, "SELECT inbox.is_done('c', 'm')").await);
}

#[tokio::test]
async fn old_entries_go_in_batches() {
    let db = Database::migrated().await;
    let client = db.connect().await;
    client
        .batch_execute(
            "INSERT INTO inbox.processed (consumer, message_id, processed_at) \
             SELECT 'c', number::text, pg_catalog.clock_timestamp() - interval '100 days' \
               FROM pg_catalog.generate_series(1, 25) AS number; \
             SELECT inbox.claim('c', 'young', NULL)",
        )
        .await
        .unwrap();
    let prune = async || one::<i32>(&client, "SELECT inbox.prune(older_than => interval '90 days', batch => 10)").await;
    assert_eq!(prune().await, 10);

    // What somebody works on is left for later, and nobody waits.
    let busy = db.connect().await;
    busy.batch_execute("BEGIN; UPDATE inbox.processed SET result = '1' WHERE message_id = '25'").await.unwrap();
    assert_eq!((prune().await, prune().await, prune().await), (10, 4, 0));
    busy.batch_execute("COMMIT").await.unwrap();
    assert_eq!((prune().await, prune().await), (1, 0));
    assert!(one::<bool>(&client, "SELECT inbox.is_done('c', 'young')").await);
}

#[tokio::test]
async fn an_inbox_of_version_one_is_brought_up_with_its_entries() {
    let db = Database::empty().await;
    let client = db.connect().await;
    client.batch_execute(Schema::Inbox.migrations()[0].sql).await.unwrap();
    client.batch_execute(outbox_schema::ROLES_SQL).await.unwrap();
    assert!(one::<bool>(&client, "SELECT inbox.claim('c', 'm', NULL)").await);
    db.migrate().await.unwrap();
    client.batch_execute(outbox_schema::ROLES_SQL).await.unwrap();
    let app = db.connect_as("outbox_app").await;
    assert!(one::<bool>(&app, "SELECT inbox.is_done('c', 'm')").await);
    assert!(one::<bool>(&app, "SELECT inbox.claim_step('c', 'm', 's')").await);
}
