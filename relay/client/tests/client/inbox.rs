//! `enqueue` and `Inbox::process` in the caller's transaction.

use std::time::{Duration, SystemTime};

use outbox_client::{Error, Event, Inbox, Message, Outcome, ProcessError, enqueue};
use tokio_postgres::Client;

use crate::kit::Database;

fn message(id: &str, body: &str) -> Message {
    Message { id: id.to_owned(), body: body.as_bytes().to_vec() }
}

/// Processes and commits; the work is a row of the table `effect`.
async fn process(client: &mut Client, message: &Message) -> Result<Outcome<u64>, ProcessError> {
    let transaction = client.transaction().await.unwrap();
    let outcome = Inbox::process(&transaction, "c", message, async |transaction| {
        transaction.execute("INSERT INTO effect VALUES ($1)", &[&message.id]).await
    })
    .await?;
    transaction.commit().await.unwrap();
    Ok(outcome)
}

async fn with_effects() -> (Database, Client) {
    let database = Database::migrated().await;
    let client = database.client().await;
    client.batch_execute("CREATE TABLE effect (id text)").await.unwrap();
    (database, client)
}

#[tokio::test]
async fn an_event_goes_with_the_transaction() {
    let database = Database::migrated().await;
    let mut client = database.client().await;
    let event = Event::text("k", "t", "{}").ordered_by("o").headers(r#"{"a": 1}"#).available_at(SystemTime::UNIX_EPOCH);
    let transaction = client.transaction().await.unwrap();
    assert_eq!(enqueue(&transaction, &event).await.unwrap().map(|seq| seq > 0), Some(true));
    transaction.rollback().await.unwrap();
    assert_eq!(database.count("outbox.message").await, 0);

    let transaction = client.transaction().await.unwrap();
    assert!(enqueue(&transaction, &event).await.unwrap().is_some());
    assert_eq!(enqueue(&transaction, &event).await.unwrap(), None, "the same again");
    let later = SystemTime::UNIX_EPOCH + Duration::from_secs(1);
    enqueue(&transaction, &Event::bytes("b", "t", &[0, 255]).available_at(later)).await.unwrap();
    enqueue(&transaction, &Event::tombstone("n", "t").content_type("x/y")).await.unwrap();
    transaction.commit().await.unwrap();
    let rows = client
        .query(
            "SELECT idempotency_key, payload, payload_bytes, content_type, ordering_key, headers::text \
               FROM outbox.message ORDER BY seq",
            &[],
        )
        .await
        .unwrap();
    type Row = (String, Option<String>, Option<Vec<u8>>, String, Option<String>, String);
    let rows: Vec<Row> =
        rows.iter().map(|row| (row.get(0), row.get(1), row.get(2), row.get(3), row.get(4), row.get(5))).collect();
    let text = |text: &str| text.to_owned();
    assert_eq!(
        rows,
        [
            (text("k"), Some(text("{}")), None, text("application/json"), Some(text("o")), text(r#"{"a": 1}"#)),
            (text("b"), None, Some(vec![0, 255]), text("application/octet-stream"), None, text("{}")),
            (text("n"), None, None, text("x/y"), None, text("{}")),
        ]
    );
}

#[tokio::test]
async fn bad_events_are_told_apart() {
    let database = Database::migrated().await;
    let mut client = database.client().await;
    let transaction = client.transaction().await.unwrap();
    enqueue(&transaction, &Event::text("k", "t", "1")).await.unwrap();
    transaction.commit().await.unwrap();
    let long = "k".repeat(256);
    for (event, refused) in [
        (Event::text("", "t", "1"), true),
        (Event::text(&long, "t", "1"), true),
        (Event::text("j", "t", "1").headers("{no JSON"), true),
        (Event::text("j", "t", "1").headers("[]"), true),
        (Event::text("k", "t", "2"), false),
    ] {
        let transaction = client.transaction().await.unwrap();
        let error = enqueue(&transaction, &event).await.unwrap_err();
        match &error {
            Error::Refused(_) => assert!(refused, "{event:?}: {error}"),
            Error::OtherContent(_) => assert!(!refused, "{event:?}: {error}"),
            other => panic!("{event:?}: {other}"),
        }
        assert!(error.to_string().contains("SQLSTATE"), "{error}");
    }
}

#[tokio::test]
async fn the_work_is_done_once() {
    let (database, mut client) = with_effects().await;
    assert_eq!(process(&mut client, &message("m", "a")).await.unwrap(), Outcome::Done(1));
    assert_eq!(process(&mut client, &message("m", "a")).await.unwrap(), Outcome::Repeated);
    let error = process(&mut client, &message("m", "b")).await.unwrap_err();
    assert!(matches!(error, ProcessError::Inbox(Error::OtherBody(_))), "{error}");
    let error = process(&mut client, &message("", "b")).await.unwrap_err();
    assert!(matches!(error, ProcessError::Inbox(Error::Refused(_))), "{error}");
    assert_eq!(database.count("effect").await, 1);
}

#[tokio::test]
async fn failed_work_takes_its_claim_back() {
    let (database, mut client) = with_effects().await;
    let failing = message("m", "a");
    {
        let transaction = client.transaction().await.unwrap();
        let worked = Inbox::process(&transaction, "c", &failing, async |transaction| {
            transaction.execute("INSERT INTO effect VALUES ('half')", &[]).await?;
            Err::<(), outbox_client::BoxError>("no".into())
        });
        assert!(matches!(worked.await, Err(ProcessError::Work(_))));
        transaction.rollback().await.unwrap();
    }
    {
        let transaction = client.transaction().await.unwrap();
        let worked = Inbox::process(&transaction, "c", &failing, async |transaction| {
            let _ = transaction.execute("SELECT 1/0", &[]).await;
            Ok::<(), outbox_client::BoxError>(())
        });
        let error = worked.await.unwrap_err();
        assert!(matches!(error, ProcessError::Work(_)), "an error that was swallowed is one: {error}");
        transaction.rollback().await.unwrap();
    }
    assert_eq!((database.count("effect").await, database.count("inbox.processed").await), (0, 0));
    assert_eq!(process(&mut client, &failing).await.unwrap(), Outcome::Done(1));
}
