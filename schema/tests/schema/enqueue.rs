//! `outbox.enqueue` in one session: overloads, what it stores, same and other content.

use crate::kit::{Database, one, sqlstate, words};

#[tokio::test]
async fn an_untyped_literal_is_text() {
    let db = Database::migrated().await;
    let client = db.connect().await;
    let seq: i64 =
        one(&client, r#"SELECT outbox.enqueue(idempotency_key => 'k', topic => 't', payload => '{"p":"C:\\temp"}')"#)
            .await;
    let row = client
        .query_one(
            "SELECT payload, payload_bytes, content_type, headers::text, ordering_key FROM outbox.message WHERE seq = $1",
            &[&seq],
        )
        .await
        .unwrap();
    assert_eq!(row.get::<_, &str>(0), r#"{"p":"C:\\temp"}"#);
    assert_eq!(row.get::<_, Option<&[u8]>>(1), None);
    assert_eq!(row.get::<_, &str>(2), "application/json");
    assert_eq!(row.get::<_, &str>(3), "{}");
    assert_eq!(row.get::<_, Option<&str>>(4), None);
}

#[tokio::test]
async fn each_overload_fills_its_column() {
    let db = Database::migrated().await;
    let client = db.connect().await;
    client
        .batch_execute(
            r#"SELECT outbox.enqueue('text', 't', 'é'::text);
               SELECT outbox.enqueue('varchar', 't', 'é'::varchar);
               SELECT outbox.enqueue('jsonb', 't', '{"b":1,  "a":"\u00e9"}'::jsonb);
               SELECT outbox.enqueue('bytea', 't', '\x00ff'::bytea);
               SELECT outbox.enqueue('null', 't', NULL);
               SELECT outbox.enqueue(topic => 't', idempotency_key => 'all', payload => 'p', ordering_key => 'o',
                                     headers => '{"h": 1}', content_type => 'text/plain',
                                     available_at => '2100-01-01 00:00:00+00');
               SELECT outbox.enqueue('nulls', 't', 'p', headers => NULL, content_type => NULL);"#,
        )
        .await
        .unwrap();
    let rows = client
        .query(
            "SELECT pg_catalog.concat_ws('|', idempotency_key, coalesce(payload, '-'), \
                    coalesce(pg_catalog.encode(payload_bytes, 'hex'), '-'), content_type, headers, \
                    coalesce(ordering_key, '-'), available_at IS NOT NULL) \
               FROM outbox.message ORDER BY seq",
            &[],
        )
        .await
        .unwrap();
    let lines: Vec<&str> = rows.iter().map(|row| row.get(0)).collect();
    assert_eq!(
        lines,
        [
            "text|é|-|application/json|{}|-|f",
            "varchar|é|-|application/json|{}|-|f",
            r#"jsonb|{"a": "é", "b": 1}|-|application/json|{}|-|f"#,
            "bytea|-|00ff|application/octet-stream|{}|-|f",
            "null|-|-|application/json|{}|-|f",
            r#"all|p|-|text/plain|{"h": 1}|o|t"#,
            "nulls|p|-|application/json|{}|-|f",
        ]
    );
}

#[tokio::test]
async fn a_prepared_statement_needs_no_types() {
    let db = Database::migrated().await;
    let client = db.connect().await;
    let statement =
        client.prepare("SELECT outbox.enqueue(idempotency_key => $1, topic => $2, payload => $3)").await.unwrap();
    let row = client.query_one(&statement, &[&"k", &"t", &"{}"]).await.unwrap();
    assert_eq!(row.get::<_, Option<i64>>(0), Some(1));
}

#[tokio::test]
async fn the_same_content_is_no_new_row() {
    let db = Database::migrated().await;
    let client = db.connect().await;
    for call in [
        "outbox.enqueue('text', 't', '{}', ordering_key => 'o')",
        "outbox.enqueue('jsonb', 't', '{\"a\":1}'::jsonb)",
        "outbox.enqueue('bytea', 't', '\\x01'::bytea)",
        "outbox.enqueue('null', 't', NULL)",
    ] {
        let sql = format!("SELECT {call}");
        assert!(one::<Option<i64>>(&client, &sql).await.is_some(), "{call}");
        assert_eq!(one::<Option<i64>>(&client, &sql).await, None, "{call}");
    }
    assert_eq!(one::<i64>(&client, "SELECT count(*) FROM outbox.message").await, 4);
    // Headers and available_at are not content: a retry carries another trace and another time.
    let again = "SELECT outbox.enqueue('null', 't', NULL, headers => '{\"a\": 1}', available_at => '2100-01-01')";
    assert_eq!(one::<Option<i64>>(&client, again).await, None);
}

#[tokio::test]
async fn other_content_is_an_error_that_names_the_key() {
    let db = Database::migrated().await;
    let client = db.connect().await;
    client.execute("SELECT outbox.enqueue('key-7', 't', 'secret', 'o')", &[]).await.unwrap();
    for (call, differs) in [
        ("outbox.enqueue('key-7', 'u', 'secret', 'o')", "topic."),
        ("outbox.enqueue('key-7', 't', 'other', 'o')", "payload."),
        ("outbox.enqueue('key-7', 't', NULL, 'o')", "payload."),
        ("outbox.enqueue('key-7', 't', 'secret'::bytea, 'o')", "payload, content_type."),
        ("outbox.enqueue('key-7', 't', 'secret')", "ordering_key."),
        ("outbox.enqueue('key-7', 't', 'secret', 'o', content_type => 'x')", "content_type."),
    ] {
        let sql = format!("SELECT {call}");
        let said = words(client.query(&sql, &[]).await);
        assert!(said.contains("\"key-7\""), "{said}");
        assert!(said.contains(&format!("What differs: {differs}")), "{call}: {said}");
        assert!(said.contains("give it a key of its own"), "{said}");
        assert!(!said.contains("secret"), "payloads are not shown: {said}");
        assert_eq!(sqlstate(client.query(&sql, &[]).await), "OX001");
    }
}

#[tokio::test]
async fn what_the_table_refuses_enqueue_refuses() {
    let db = Database::migrated().await;
    let client = db.connect().await;
    for (call, code) in [
        ("outbox.enqueue(NULL, 't', '')", "23502"),
        ("outbox.enqueue('', 't', '')", "23514"),
        ("outbox.enqueue('k', NULL, '')", "23502"),
        ("outbox.enqueue('k', 't', '', headers => '[]')", "23514"),
    ] {
        assert_eq!(sqlstate(client.query(&format!("SELECT {call}"), &[]).await), code, "{call}");
    }
}

#[tokio::test]
async fn twice_in_one_statement_is_once() {
    let db = Database::migrated().await;
    let client = db.connect().await;
    let row = client.query_one("SELECT outbox.enqueue('k', 't', ''), outbox.enqueue('k', 't', '')", &[]).await.unwrap();
    assert!(row.get::<_, Option<i64>>(0).is_some());
    assert_eq!(row.get::<_, Option<i64>>(1), None);
}

#[tokio::test]
async fn a_rolled_back_row_is_not_there() {
    let db = Database::migrated().await;
    let client = db.connect().await;
    client.batch_execute("BEGIN; SELECT outbox.enqueue('k', 't', ''); ROLLBACK").await.unwrap();
    assert_eq!(one::<i64>(&client, "SELECT count(*) FROM outbox.message").await, 0);
}
