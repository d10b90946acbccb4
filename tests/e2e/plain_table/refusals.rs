//! Rows that cannot become a message, and two rows with one message id.

use std::collections::BTreeMap;

use anyhow::Result;
use outbox_tests::relay::Launch;
use outbox_tests::wait::SOON;

use super::bed::Bed;

const TABLE: &str = "CREATE TABLE outbox (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, key text, topic text, \
                     grp text, part text, body text, raw bytea, head jsonb, taken_at timestamptz); \
                     CREATE INDEX outbox_untaken ON outbox (id) WHERE taken_at IS NULL";

const SOURCE: &str = r#"
[[source]]
name = "mixed"
table = "public.outbox"
message_id = "{key}"
topic = "{topic}"
ordering_key = "{grp}/{part}"
payload = "body"
payload_bytes = "raw"
headers = "head"
mark_column = "taken_at"
poll_ms = 20
batch_rows = 7
"#;

async fn refusals(bed: &Bed) -> Result<BTreeMap<String, (String, String)>> {
    let sql = "SELECT o.key, r.reason, r.detail FROM outbox.source_row r JOIN outbox o ON o.id::text = r.row_id \
               WHERE r.source = 'mixed' AND r.state = 'refused'";
    let rows = bed.scene.client.query(sql, &[]).await?;
    Ok(rows
        .iter()
        .map(|row| {
            let key: Option<String> = row.get(0);
            let key = key.unwrap_or_default();
            (key.chars().take(9).collect(), (row.get(1), row.get(2)))
        })
        .collect())
}

#[tokio::test]
async fn bad_rows_are_refused_with_their_reason_and_their_neighbours_arrive() -> Result<()> {
    let mut bed = Bed::rabbitmq(TABLE, SOURCE).await?;
    let topic = bed.scene.topic.clone();
    let good = |key: &str| format!("INSERT INTO outbox (key, topic, grp, part) VALUES ('{key}', '{topic}', 'g', 'p');");
    let bad = [
        format!("(NULL, '{topic}', 'g', 'p', NULL, NULL, NULL)"),
        format!("(repeat('k', 256), '{topic}', 'g', 'p', NULL, NULL, NULL)"),
        "('no topic', NULL, 'g', 'p', NULL, NULL, NULL)".to_owned(),
        "('empty', '', 'g', 'p', NULL, NULL, NULL)".to_owned(),
        "('long', repeat('ä', 125), 'g', 'p', NULL, NULL, NULL)".to_owned(),
        format!("('no part', '{topic}', 'g', NULL, NULL, NULL, NULL)"),
        format!("('big part', '{topic}', 'g', repeat('p', 1023), NULL, NULL, NULL)"),
        format!("('both', '{topic}', 'g', 'p', 'text', 'bytes', NULL)"),
        format!("('list', '{topic}', 'g', 'p', NULL, NULL, '[1]')"),
    ];
    let mut sql = good("first");
    for (number, values) in bad.iter().enumerate() {
        sql.push_str(&format!("INSERT INTO outbox (key, topic, grp, part, body, raw, head) VALUES {values};"));
        sql.push_str(&good(&format!("good {number}")));
    }
    bed.sql(&sql).await?;
    let mut relay = bed.launch().start()?;
    let mut expected = vec!["first".to_owned()];
    expected.extend((0..bad.len()).map(|number| format!("good {number}")));
    assert_eq!(bed.arrived(expected.len()).await?, expected);
    bed.wait_number("SELECT count(*) FROM outbox WHERE taken_at IS NULL", 0).await?;
    let found = refusals(&bed).await?;
    let expect = |key: &str, reason: &str, detail: &str| {
        assert_eq!(found.get(key), Some(&(reason.to_owned(), detail.to_owned())), "{key}: {found:#?}");
    };
    expect("", "message_id", "key is NULL");
    expect("kkkkkkkkk", "message_id", "256 bytes, not 1 to 255");
    expect("no topic", "topic", "topic is NULL");
    expect("empty", "topic", "0 bytes, not 1 to 249");
    expect("long", "topic", "250 bytes, not 1 to 249");
    expect("no part", "ordering_key", "part is NULL");
    expect("big part", "ordering_key", "1025 bytes, more than 1024");
    expect("both", "payload", "both payloads are set");
    expect("list", "headers", "no JSON object");
    assert_eq!(found.len(), bad.len());
    let metrics = relay.metrics().await?;
    assert_eq!(metrics.sum("outbox_source_refused_rows_total", &[("source", "mixed"), ("reason", "topic")]), 3.0);
    assert_eq!(metrics.sum("outbox_source_refused_rows_total", &[]), 9.0);
    assert!(relay.log().contains("rows of a source were refused"), "{}", relay.log());

    looked_at_and_retried(&mut bed).await?;

    // Mended and unmarked it goes, and is noted no longer.
    bed.sql("UPDATE outbox SET part = 'p', taken_at = NULL WHERE key = 'no part'").await?;
    assert_eq!(bed.arrived(1).await?, ["no part"]);
    assert!(!refusals(&bed).await?.contains_key("no part"));
    assert_eq!(relay.stop(SOON).await?, Some(0));
    Ok(())
}

/// What an operator sees of refused rows, and does about one that was mended.
async fn looked_at_and_retried(bed: &mut Bed) -> Result<()> {
    let command = |arguments: &[&str]| {
        let launch = Launch::new(arguments.iter().copied()).database(bed.scene.database.url()).config(&bed.config);
        async move { launch.finish(SOON).await }
    };
    let status = command(&["status"]).await?;
    assert!(status.stdout.contains("mixed   topic         3 "), "{}", status.stdout);
    let list = command(&["refused", "list", "mixed", "--output", "json"]).await?;
    let list: serde_json::Value = serde_json::from_str(&list.stdout)?;
    assert_eq!(list.as_array().map(Vec::len), Some(9));
    let id = bed.number("SELECT id FROM outbox WHERE key = 'no topic'").await?.to_string();
    let entry = list.as_array().and_then(|list| list.iter().find(|entry| entry["row_id"] == id.as_str()));
    assert_eq!(entry.map(|entry| entry["detail"].clone()), Some("topic is NULL".into()), "{list}");
    let topic = bed.scene.topic.clone();
    bed.sql(&format!("UPDATE outbox SET topic = '{topic}' WHERE key = 'no topic'")).await?;
    let asked = command(&["refused", "retry", "mixed", &id]).await?;
    assert_eq!(asked.code, Some(2), "nobody is there to say yes: {}", asked.stderr);
    let retried = command(&["refused", "retry", "mixed", &id, "--yes"]).await?;
    assert_eq!(retried.stdout, "retried 1\n", "{}", retried.stderr);
    assert_eq!(bed.arrived(1).await?, ["no topic"]);
    // What was not mended comes back.
    let command = |arguments: &[&str]| {
        let launch = Launch::new(arguments.iter().copied()).database(bed.scene.database.url()).config(&bed.config);
        async move { launch.finish(SOON).await }
    };
    let all = command(&["refused", "retry", "mixed", "--all", "--yes"]).await?;
    assert_eq!(all.stdout, "retried 8\n", "{}", all.stderr);
    bed.wait_number("SELECT count(*) FROM outbox.source_row WHERE state = 'refused'", 8).await?;
    assert_eq!(command(&["refused", "retry", "nobody", "--all", "--yes"]).await?.code, Some(78));
    Ok(())
}

#[tokio::test]
async fn one_message_id_twice_is_one_message_and_with_other_content_refused() -> Result<()> {
    let mut bed = Bed::rabbitmq(TABLE, SOURCE).await?;
    let topic = bed.scene.topic.clone();
    let row = |key: &str, part: &str, body: &str| {
        format!(
            "INSERT INTO outbox (key, topic, grp, part, body) VALUES ('{key}', '{topic}', 'g', '{part}', '{body}');"
        )
    };
    // Within one batch, and against what was there.
    bed.sql(&format!(
        "{}{}{}{}INSERT INTO outbox.message (idempotency_key, topic, payload, ordering_key) \
         VALUES ('there', '{topic}', '1', 'g/p'), ('else', '{topic}', '1', 'g/p')",
        row("a", "p", "1"),
        row("a", "p", "1"),
        row("a", "p", "2"),
        row("there", "p", "1")
    ))
    .await?;
    bed.sql(&row("else", "q", "1")).await?;
    let mut relay = bed.launch().start()?;
    let mut ids = bed.arrived(3).await?;
    ids.sort();
    assert_eq!(ids, ["a", "else", "there"]);
    bed.wait_number("SELECT count(*) FROM outbox WHERE taken_at IS NULL", 0).await?;
    let found = refusals(&bed).await?;
    let reason = |detail: &str| ("other_content".to_owned(), format!("the key is in the outbox with another {detail}"));
    assert_eq!(
        found,
        BTreeMap::from([("a".to_owned(), reason("payload")), ("else".to_owned(), reason("ordering key"))])
    );
    assert_eq!(bed.number("SELECT count(*) FROM outbox.message").await?, 3);

    // Later batches.
    bed.sql(&format!("{}{}", row("a", "p", "1"), row("there", "p", "2"))).await?;
    bed.wait_number("SELECT count(*) FROM outbox WHERE taken_at IS NULL", 0).await?;
    assert_eq!(refusals(&bed).await?.get("there"), Some(&reason("payload")));
    assert!(bed.scene.next(std::time::Duration::from_millis(300)).await?.is_none());
    assert_eq!(relay.stop(SOON).await?, Some(0));
    Ok(())
}
