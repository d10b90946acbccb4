use anyhow::Result;
use outbox_tests::database::{self, Database};
use outbox_tests::journal::{Journal, Outcome};
use outbox_tests::services;
use outbox_tests::writer::{Body, Row, Writer};

#[tokio::test]
async fn each_test_has_a_database_of_its_own_that_goes_away() -> Result<()> {
    let (one, two) = (Database::empty().await?, Database::empty().await?);
    one.client().await?.batch_execute("CREATE TABLE here (id int)").await?;
    two.client().await?.batch_execute("CREATE TABLE here (id int)").await?;
    let name = one.name().to_owned();
    let still_open = one.client().await?;
    drop(one);
    assert!(still_open.simple_query("SELECT 1").await.is_err());
    let server = database::connect(&services::database_url()?).await?;
    let left = server.query("SELECT 1 FROM pg_database WHERE datname = $1", &[&name]).await?;
    assert!(left.is_empty());
    Ok(())
}

#[tokio::test]
async fn the_writer_journals_what_the_table_holds() -> Result<()> {
    let database = Database::migrated().await?;
    let journal = Journal::default();
    let mut writer = Writer::new(database.client().await?, journal.clone());
    let headers = serde_json::json!({"traceparent": "00-1", "n": 3});
    writer
        .commit(&[
            Row::new("w1", "a.b").key("k").text(r#"{"p":"C:\\temp \u00e9"}"#).headers(headers.clone()),
            Row::new("w2", "a.b").body(Body::Bytes(vec![0, 255])).content_type("application/octet-stream"),
            Row::new("w3", "a.b").key("k").body(Body::Tombstone).delayed(60.0),
        ])
        .await?;
    writer.roll_back(&[Row::new("w4", "a.b").key("k")]).await?;
    assert_eq!((journal.count(Outcome::Committed), journal.count(Outcome::RolledBack)), (3, 1));
    let numbers: Vec<_> = journal.entries().iter().map(|entry| (entry.id.clone(), entry.number)).collect();
    assert_eq!(numbers, [("w1", 1), ("w2", 1), ("w3", 2), ("w4", 3)].map(|(id, number)| (id.to_owned(), number)));

    let statement = "SELECT payload, payload_bytes, headers, content_type, available_at > clock_timestamp() \
                     FROM outbox.message ORDER BY seq";
    let rows = database.client().await?.query(statement, &[]).await?;
    assert_eq!(rows.len(), 3);
    assert_eq!(rows[0].try_get::<_, &str>(0)?, r#"{"p":"C:\\temp \u00e9"}"#);
    assert_eq!(rows[0].try_get::<_, serde_json::Value>(2)?, headers);
    assert_eq!(rows[1].try_get::<_, &[u8]>(1)?, [0, 255]);
    assert_eq!(rows[1].try_get::<_, &str>(3)?, "application/octet-stream");
    assert_eq!(rows[2].try_get::<_, Option<&str>>(0)?, None);
    assert!(rows[2].try_get::<_, bool>(4)?);
    Ok(())
}
