//! Tables of other shapes: uuid ids, tables that may only be read, and names that need quoting.

use anyhow::Result;
use outbox_tests::wait::SOON;

use super::bed::Bed;
use super::check::HOSTILE;

const READ_ONLY: &str = r#"
[[source]]
name = "events"
table = "shop.events"
id = "event"
order = "at"
message_id = "event:{event}"
topic = "TOPIC"
payload = "body"
side_table = true
poll_ms = 20
batch_rows = 8
"#;

#[tokio::test]
async fn a_table_with_uuids_that_may_only_be_read_is_relayed() -> Result<()> {
    let table = "CREATE SCHEMA shop; CREATE TABLE shop.events (event uuid PRIMARY KEY DEFAULT gen_random_uuid(), \
                 at timestamptz NOT NULL DEFAULT clock_timestamp(), n int, body jsonb)";
    let mut bed = Bed::rabbitmq(table, READ_ONLY).await?;
    let login = format!("reader_{}", bed.scene.database.name());
    bed.sql(outbox_schema::ROLES_SQL).await?;
    bed.sql(&format!(
        "CREATE ROLE {login} LOGIN PASSWORD 'outbox' IN ROLE outbox_relay, outbox_source; \
         GRANT USAGE ON SCHEMA shop TO {login}; GRANT SELECT ON shop.events TO {login}"
    ))
    .await?;
    let url = bed.scene.database.url().replace("postgres:outbox@", &format!("{login}:outbox@"));
    assert!(url.contains(&login), "the address has no user to replace");
    let insert = "INSERT INTO shop.events (n, body) SELECT n, json_build_object('n', n) FROM generate_series";
    bed.sql(&format!("{insert}(1, 20) AS n")).await?;
    let launch = bed.scene.launch_at(&url, &bed.scene.broker_address()).config(&bed.config);
    let mut relay = launch.start()?;
    let first = bed.arrived(20).await?;
    bed.sql(&format!("{insert}(21, 40) AS n")).await?;
    let second = bed.arrived(20).await?;
    let expected = "SELECT array_agg('event:' || event ORDER BY n) FROM shop.events";
    let expected: Vec<String> = bed.scene.client.query_one(expected, &[]).await?.get(0);
    let mut all: Vec<String> = first.into_iter().chain(second).collect();
    // Without an ordering key the broker may get neighbours in any order.
    all.sort();
    let mut sorted = expected.clone();
    sorted.sort();
    assert_eq!(all, sorted);
    let by_seq = "SELECT array_agg(idempotency_key ORDER BY seq) FROM outbox.message";
    assert_eq!(bed.scene.client.query_one(by_seq, &[]).await?.get::<_, Vec<String>>(0), expected);
    bed.wait_number("SELECT count(*) FROM outbox.source_row WHERE state = 'taken'", 40).await?;
    assert_eq!(relay.stop(SOON).await?, Some(0));
    let mut again = launch.start()?;
    again.wait_ready(SOON).await?;
    bed.sql(&format!("{insert}(41, 41) AS n")).await?;
    assert_eq!(bed.arrived(1).await?.len(), 1);
    assert_eq!(bed.scene.arrivals(), 41, "nothing came twice");
    assert_eq!(again.stop(SOON).await?, Some(0));
    bed.sql(&format!("DROP OWNED BY {login}; DROP ROLE {login}")).await
}

#[tokio::test]
async fn names_that_need_quoting_are_relayed() -> Result<()> {
    let table = r#"CREATE SCHEMA "My ""Shop"""; CREATE TABLE "My ""Shop"""."select" ("Id" bigint PRIMARY KEY,
        "order" timestamptz, "kind of ""it""" text, "it's" text, "user" text, "h""h" jsonb, "Taken ""At""" timestamptz)"#;
    let mut bed = Bed::rabbitmq(table, HOSTILE).await?;
    let topic = bed.scene.topic.clone();
    bed.sql(&format!(
        r#"INSERT INTO "My ""Shop"""."select" VALUES (1, NULL, 'second', 'x''); DROP TABLE y; --', '{topic}', '{{"number": "7"}}'),
           (2, now(), 'first', '$1 «table» {{}}', '{topic}', NULL)"#
    ))
    .await?;
    let mut relay = bed.launch().start()?;
    let mut ids = bed.arrived(2).await?;
    ids.sort();
    assert_eq!(ids, ["\\it's:first:$1 «table» {}", "\\it's:second:x'); DROP TABLE y; --"]);
    assert!(relay.log().contains("has no valid index of the rows that were not taken"), "{}", relay.log());
    // A row whose order column is NULL is taken last.
    let body = "SELECT payload FROM outbox.message ORDER BY seq DESC LIMIT 1";
    let body: String = bed.scene.client.query_one(body, &[]).await?.get(0);
    let expected = serde_json::json!({"kind of \"it\"": "second", "it's": "x'); DROP TABLE y; --", "user": topic});
    assert_eq!(serde_json::from_str::<serde_json::Value>(&body)?, expected);
    assert_eq!(relay.stop(SOON).await?, Some(0));
    Ok(())
}
