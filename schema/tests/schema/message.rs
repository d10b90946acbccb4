//! The table: what a plain INSERT may do, what is refused, and the values that are fixed for ever.

use crate::kit::{Database, one, sqlstate};

const CHECK_VIOLATION: &str = "23514";
const UNIQUE_VIOLATION: &str = "23505";

#[tokio::test]
async fn three_columns_are_enough() {
    let db = Database::migrated().await;
    let client = db.connect().await;
    let row = client
        .query_one(
            "INSERT INTO outbox.message (idempotency_key, topic, payload) VALUES ('k', 'order.paid', '{\"a\":1}') \
             RETURNING seq, content_type, headers::text, created_at IS NOT NULL, available_at IS NULL, sent_at IS NULL, \
                       tx = pg_catalog.pg_current_xact_id()",
            &[],
        )
        .await
        .unwrap();
    assert_eq!(row.get::<_, i64>(0), 1);
    assert_eq!(row.get::<_, &str>(1), "application/json");
    assert_eq!(row.get::<_, &str>(2), "{}");
    assert!((3..7).all(|column| row.get::<_, bool>(column)));
}

#[tokio::test]
async fn a_repeated_key_is_refused_or_ignored() {
    let db = Database::migrated().await;
    let client = db.connect().await;
    let insert = "INSERT INTO outbox.message (idempotency_key, topic, payload) VALUES ('k', 't', '1')";
    let ignoring = format!("{insert} ON CONFLICT (idempotency_key) DO NOTHING");
    assert_eq!(client.execute(&ignoring, &[]).await.unwrap(), 1);
    assert_eq!(client.execute(&ignoring, &[]).await.unwrap(), 0);
    assert_eq!(sqlstate(client.execute(insert, &[]).await), UNIQUE_VIOLATION);
}

#[tokio::test]
async fn the_transaction_id_is_taken_before_the_number() {
    let db = Database::migrated().await;
    let client = db.connect().await;
    let default: String = one(
        &client,
        "SELECT pg_catalog.pg_get_expr(d.adbin, d.adrelid) FROM pg_catalog.pg_attrdef d \
           JOIN pg_catalog.pg_attribute a ON a.attrelid = d.adrelid AND a.attnum = d.adnum \
          WHERE d.adrelid = 'outbox.message'::pg_catalog.regclass AND a.attname = 'seq'",
    )
    .await;
    let words: Vec<&str> = default.split_whitespace().collect();
    assert_eq!(
        words.join(" "),
        "CASE WHEN (pg_current_xact_id() IS NOT NULL) THEN nextval('outbox.message_seq'::regclass) \
         ELSE NULL::bigint END"
    );
    let cache: i64 = one(
        &client,
        "SELECT seqcache FROM pg_catalog.pg_sequence WHERE seqrelid = 'outbox.message_seq'::pg_catalog.regclass",
    )
    .await;
    assert_eq!(cache, 1, "a cached block of numbers would break the order");
}

#[tokio::test]
async fn limits_count_bytes() {
    let db = Database::migrated().await;
    let client = db.connect().await;
    let insert = client
        .prepare("INSERT INTO outbox.message (idempotency_key, topic, ordering_key) VALUES ($1, $2, $3)")
        .await
        .unwrap();
    let two_bytes = |count: usize| "é".repeat(count);
    let fits = [
        ("k".repeat(255), "t".to_owned(), None),
        (two_bytes(127), "t".repeat(249), Some("o".repeat(1024))),
        ("k1".to_owned(), two_bytes(124), Some(String::new())),
    ];
    for (key, topic, ordering_key) in fits {
        client.execute(&insert, &[&key, &topic, &ordering_key]).await.unwrap();
    }
    let refused = [
        (String::new(), "t".to_owned(), None),
        ("k".repeat(256), "t".to_owned(), None),
        (two_bytes(128), "t".to_owned(), None),
        ("k2".to_owned(), String::new(), None),
        ("k2".to_owned(), "t".repeat(250), None),
        ("k2".to_owned(), two_bytes(125), None),
        ("k2".to_owned(), "t".to_owned(), Some("o".repeat(1025))),
        ("k2".to_owned(), "t".to_owned(), Some(two_bytes(513))),
    ];
    for (key, topic, ordering_key) in refused {
        let result = client.execute(&insert, &[&key, &topic, &ordering_key]).await;
        assert_eq!(sqlstate(result), CHECK_VIOLATION, "{key} {topic}");
    }
}

#[tokio::test]
async fn impossible_shapes_are_refused() {
    let db = Database::migrated().await;
    let client = db.connect().await;
    for (column, value) in [
        ("headers", "'[]'"),
        ("headers", "'\"text\"'"),
        ("headers", "'null'"),
        ("payload, payload_bytes", "'a', 'a'"),
        ("created_at", "'infinity'"),
        ("available_at", "'infinity'"),
    ] {
        let sql = format!("INSERT INTO outbox.message (idempotency_key, topic, {column}) VALUES ('k', 't', {value})");
        assert_eq!(sqlstate(client.execute(&sql, &[]).await), CHECK_VIOLATION, "{sql}");
    }
    let lane = "INSERT INTO outbox.message (idempotency_key, topic, lane) VALUES ('k', 't', 3)";
    assert_eq!(sqlstate(client.execute(lane, &[]).await), "428C9");
}

#[tokio::test]
async fn other_odd_rows_are_let_in() {
    let db = Database::migrated().await;
    let client = db.connect().await;
    client
        .batch_execute(
            "INSERT INTO outbox.message (idempotency_key, topic) VALUES ('tombstone', 't'); \
             INSERT INTO outbox.message (idempotency_key, topic, content_type) VALUES ('type', 't', ''); \
             INSERT INTO outbox.message (idempotency_key, topic, payload) VALUES ('json', 't', 'not { json'); \
             INSERT INTO outbox.message (idempotency_key, topic, headers) VALUES ('header', 't', '{\"id\": [1]}')",
        )
        .await
        .unwrap();
}

#[tokio::test]
async fn text_is_kept_to_the_byte() {
    let db = Database::migrated().await;
    let client = db.connect().await;
    let bodies = [
        r#"{"p":"C:\\temp","q":"say \"hi\"","n":"a\nb"}"#,
        r#"{"e":"\u00e9","raw":"é","emoji":"🎉"}"#,
        "{\n  \"a\" : 1.0,\r\n\t\"a\": 1e2 }\n",
        "",
    ];
    for (index, body) in bodies.iter().enumerate() {
        let key = format!("k{index}");
        client
            .execute("INSERT INTO outbox.message (idempotency_key, topic, payload) VALUES ($1, 't', $2)", &[&key, body])
            .await
            .unwrap();
        let stored = client
            .query_one(
                "SELECT pg_catalog.convert_to(payload, 'UTF8') FROM outbox.message WHERE idempotency_key = $1",
                &[&key],
            )
            .await
            .unwrap();
        assert_eq!(stored.get::<_, &[u8]>(0), body.as_bytes());
    }
}

/// These numbers are a promise: a key that changed its lane would lose its order.
#[tokio::test]
async fn lanes_are_fixed_for_ever() {
    let db = Database::migrated().await;
    let client = db.connect().await;
    for (ordering_key, idempotency_key, lane) in GOLDEN_LANES {
        let row = client
            .query_one(
                "INSERT INTO outbox.message (idempotency_key, topic, ordering_key) VALUES ($1, 't', $2) RETURNING lane",
                &[&idempotency_key, &ordering_key],
            )
            .await
            .unwrap();
        assert_eq!(row.get::<_, i16>(0), lane, "{ordering_key:?} {idempotency_key}");
    }
}

const GOLDEN_LANES: [(Option<&str>, &str, i16); 7] = [
    (Some("cust_481"), "g1", 5),
    (Some("order-1"), "g2", 11),
    (Some("é"), "g3", 11),
    (Some(""), "g4", 13),
    (None, "invoice:2026-10:cust_481", 3),
    (None, "a", 1),
    (Some("a"), "g5", 1),
];

#[tokio::test]
async fn sixteen_lanes_wait_for_an_owner() {
    let db = Database::migrated().await;
    let client = db.connect().await;
    let free: i64 = one(
        &client,
        "SELECT count(*) FROM outbox.lane WHERE source = 'outbox' AND lane BETWEEN 0 AND 15 \
            AND owner IS NULL AND epoch = 0",
    )
    .await;
    assert_eq!(free, 16);
    let unlogged: bool = one(
        &client,
        "SELECT relpersistence = 'u' FROM pg_catalog.pg_class WHERE oid = 'outbox.relay'::pg_catalog.regclass",
    )
    .await;
    assert!(unlogged, "an empty outbox.relay is how a relay sees a crash");
}

/// Each mark enters its row once more into both unique indexes; with growing keys there is room for it on its page.
#[tokio::test]
async fn marks_split_no_page_of_the_unique_indexes() {
    let db = Database::migrated().await;
    let client = db.connect().await;
    let pages = "SELECT pg_relation_size('outbox.message_pkey') / 8192 + \
                 pg_relation_size('outbox.message_idempotency_key_key') / 8192";
    // One row after the other, as applications write them.
    let rows = "INSERT INTO outbox.message (idempotency_key, topic, payload) \
                SELECT 'order:' || lpad(n::text, 8, '0'), 't', '{}' FROM generate_series(1, 20000) AS n";
    client.batch_execute(rows).await.unwrap();
    let before: i64 = one(&client, pages).await;
    client.batch_execute("UPDATE outbox.message SET sent_at = clock_timestamp()").await.unwrap();
    let after: i64 = one(&client, pages).await;
    assert!(before > 100, "{before} pages");
    assert!(after <= before + before / 50, "{before} pages before, {after} after");
}
