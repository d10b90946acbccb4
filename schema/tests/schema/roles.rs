//! Each role may do its work and nothing else.

use tokio_postgres::Client;

use crate::kit::{Database, one, sqlstate};

const DENIED: &str = "42501";

async fn all_denied(client: &Client, statements: &[&str]) {
    for sql in statements {
        assert_eq!(sqlstate(client.batch_execute(sql).await), DENIED, "{sql}");
    }
}

async fn all_allowed(client: &Client, statements: &[&str]) {
    for sql in statements {
        if let Err(error) = client.batch_execute(sql).await {
            panic!("{sql}: {:?}", error.as_db_error());
        }
    }
}

#[tokio::test]
async fn the_app_inserts() {
    let db = Database::with_roles().await;
    let app = db.connect_as("outbox_app").await;
    all_allowed(
        &app,
        &[
            "INSERT INTO outbox.message (idempotency_key, topic, payload) VALUES ('a', 't', '{}')",
            "INSERT INTO outbox.message (idempotency_key, topic, payload) VALUES ('a', 't', '{}') \
             ON CONFLICT (idempotency_key) DO NOTHING RETURNING seq",
            "INSERT INTO outbox.message (idempotency_key, topic, payload_bytes, ordering_key, content_type, headers, available_at) \
             VALUES ('b', 't', '\\x00', 'o', 'x/y', '{}', '2100-01-01') RETURNING seq, idempotency_key",
            "SELECT outbox.enqueue('c', 't', '{}')",
            "SELECT outbox.enqueue('c', 't', '{}')",
            "SELECT outbox.enqueue('d', 't', '{}'::jsonb)",
            "SELECT outbox.enqueue('e', 't', '\\x00'::bytea)",
            "SELECT inbox.claim('c', 'm', NULL)",
            "UPDATE inbox.processed SET result = '{}' WHERE consumer = 'c'",
            "SELECT inbox.claim_step('c', 'm', 's')",
            "SELECT inbox.finish_step('c', 'm', 's', '{}'), inbox.step_result('c', 'm', 's')",
            "SELECT inbox.is_done('c', 'm'), inbox.prune(interval '1 day')",
        ],
    )
    .await;
    let own: bool = {
        app.batch_execute("BEGIN; SELECT outbox.enqueue('f', 't', '{}')").await.unwrap();
        let app_tx: String = one(&app, "SELECT pg_catalog.pg_current_xact_id()::text").await;
        app.batch_execute("COMMIT").await.unwrap();
        let sql = format!("SELECT tx::text = '{app_tx}' FROM outbox.message WHERE idempotency_key = 'f'");
        one(&db.connect().await, &sql).await
    };
    assert!(own, "tx is the caller's transaction");
}

#[tokio::test]
async fn the_app_forges_and_reads_nothing() {
    let db = Database::with_roles().await;
    let app = db.connect_as("outbox_app").await;
    for (column, value) in
        [("tx", "'1'"), ("seq", "1"), ("lane", "1"), ("created_at", "'2000-01-01'"), ("sent_at", "'2000-01-01'")]
    {
        let sql = format!("INSERT INTO outbox.message (idempotency_key, topic, {column}) VALUES ('k', 't', {value})");
        let code = sqlstate(app.batch_execute(&sql).await);
        assert!([DENIED, "428C9"].contains(&code.as_str()), "{sql}: {code}");
    }
    all_denied(
        &app,
        &[
            "SELECT payload FROM outbox.message",
            "SELECT headers FROM outbox.message",
            "SELECT * FROM outbox.message",
            "UPDATE outbox.message SET sent_at = NULL",
            "UPDATE outbox.message SET payload = ''",
            "INSERT INTO outbox.message (idempotency_key, topic) VALUES ('k', 't') \
             ON CONFLICT (idempotency_key) DO UPDATE SET topic = 'u'",
            "DELETE FROM outbox.message",
            "TRUNCATE outbox.message",
            "DO $$ BEGIN LOCK TABLE outbox.message IN ACCESS EXCLUSIVE MODE; END $$",
            "SELECT pg_catalog.setval('outbox.message_seq', 1)",
            "SELECT last_value FROM outbox.message_seq",
            "SELECT * FROM outbox.message_status",
            "SELECT * FROM outbox.held",
            "SELECT * FROM outbox.lane",
            "SELECT * FROM outbox.relay",
            "SELECT * FROM outbox.migration",
            "SELECT outbox.retry(topic => 't')",
            "SELECT outbox.discard(topic => 't')",
            "CREATE TABLE outbox.mine ()",
            "CREATE FUNCTION outbox.mine() RETURNS int LANGUAGE sql RETURN 1",
            "DROP TABLE outbox.message",
            "UPDATE inbox.processed SET payload_hash = NULL",
        ],
    )
    .await;
}

#[tokio::test]
async fn the_relay_marks_and_keeps_its_books() {
    let db = Database::with_roles().await;
    db.connect().await.batch_execute("SELECT outbox.enqueue('k', 't', '{}')").await.unwrap();
    let relay = db.connect_as("outbox_relay").await;
    all_allowed(
        &relay,
        &[
            "SELECT tx, seq, lane, idempotency_key, topic, ordering_key, payload, payload_bytes, content_type, headers, \
                    created_at, available_at, sent_at FROM outbox.message",
            "SELECT last_value, is_called FROM outbox.message_seq",
            "SELECT pg_catalog.pg_current_wal_insert_lsn(), pg_catalog.pg_current_wal_flush_lsn(), \
                    pg_catalog.pg_current_xact_id()",
            "UPDATE outbox.lane SET owner = pg_catalog.gen_random_uuid(), epoch = epoch + 1, \
                    expires_at = pg_catalog.clock_timestamp() WHERE lane = 1",
            "SELECT FROM outbox.lane WHERE lane = 1 FOR SHARE",
            "INSERT INTO outbox.relay (id) VALUES (pg_catalog.gen_random_uuid())",
            "UPDATE outbox.relay SET heartbeat_at = pg_catalog.clock_timestamp()",
            "DELETE FROM outbox.relay",
            "INSERT INTO outbox.held (source, row_id, seq, lane, state, reason) VALUES ('outbox', '1', 1, 0, 'parked', 'size')",
            "UPDATE outbox.held SET attempts = 1",
            "SELECT outbox.retry(ARRAY[1]::bigint[])",
            "SELECT outbox.discard(ARRAY[1]::bigint[])",
            "SELECT state FROM outbox.message_status",
            "SELECT version FROM outbox.migration",
            "SELECT * FROM outbox.source_row",
            "SELECT FROM outbox.message FOR UPDATE",
            "UPDATE outbox.message SET sent_at = pg_catalog.clock_timestamp()",
            "DELETE FROM outbox.held",
            "DELETE FROM outbox.message",
        ],
    )
    .await;
}

#[tokio::test]
async fn the_relay_changes_no_row_and_no_schema() {
    let db = Database::with_roles().await;
    let relay = db.connect_as("outbox_relay").await;
    all_denied(
        &relay,
        &[
            "INSERT INTO outbox.message (idempotency_key, topic) VALUES ('k', 't')",
            "SELECT outbox.enqueue('k', 't', '')",
            "UPDATE outbox.message SET payload = ''",
            "UPDATE outbox.message SET seq = 1",
            "UPDATE outbox.message SET idempotency_key = 'x'",
            "SELECT pg_catalog.nextval('outbox.message_seq')",
            "INSERT INTO outbox.source_row (source, row_id, state) VALUES ('s', '1', 'taken')",
            "DELETE FROM outbox.source_row",
            "SELECT pg_catalog.setval('outbox.message_seq', 1)",
            "INSERT INTO outbox.lane (source, lane) VALUES ('x', 1)",
            "DELETE FROM outbox.lane",
            "TRUNCATE outbox.message",
            "INSERT INTO outbox.migration (version, name, compatible_from) VALUES (2, 'x', 2)",
            "CREATE TABLE outbox.mine ()",
            "CREATE INDEX mine ON outbox.message (topic)",
            "ALTER TABLE outbox.message ADD COLUMN mine int",
            "DROP TABLE outbox.held",
            "DROP SCHEMA outbox CASCADE",
            "CREATE SCHEMA mine",
            "SELECT * FROM inbox.processed",
        ],
    )
    .await;
    let powers: i64 = one(
        &relay,
        "SELECT count(*) FROM pg_catalog.pg_roles WHERE rolname LIKE 'outbox\\_%' \
            AND (rolsuper OR rolreplication OR rolcreaterole OR rolcreatedb OR rolbypassrls OR rolcanlogin)",
    )
    .await;
    assert_eq!(powers, 0);
}

#[tokio::test]
async fn a_relay_with_sources_enters_rows_and_keeps_notes() {
    let db = Database::with_roles().await;
    let client = db.connect_as("outbox_source").await;
    all_allowed(
        &client,
        &[
            "INSERT INTO outbox.message (idempotency_key, topic, ordering_key, payload, content_type, headers) \
             VALUES ('k', 't', 'o', '{}', 'x/y', '{}') ON CONFLICT (idempotency_key) DO NOTHING RETURNING idempotency_key, lane",
            "SELECT topic, ordering_key, payload, payload_bytes, content_type FROM outbox.message",
            "INSERT INTO outbox.source_row (source, row_id, state) VALUES ('s', '1', 'taken')",
            "UPDATE outbox.source_row SET state = 'refused', reason = 'topic'",
            "DELETE FROM outbox.source_row",
        ],
    )
    .await;
    all_denied(
        &client,
        &[
            "INSERT INTO outbox.message (idempotency_key, topic, sent_at) VALUES ('l', 't', '2000-01-01')",
            "INSERT INTO outbox.message (idempotency_key, topic, seq) VALUES ('l', 't', 1)",
            "UPDATE outbox.message SET sent_at = NULL",
            "DELETE FROM outbox.message",
            "SELECT * FROM outbox.lane",
            "TRUNCATE outbox.source_row",
            "CREATE TABLE outbox.mine ()",
        ],
    )
    .await;
}

#[tokio::test]
async fn the_operator_looks_and_requeues() {
    let db = Database::with_roles().await;
    let operator = db.connect_as("outbox_operator").await;
    all_allowed(
        &operator,
        &[
            "SELECT * FROM outbox.message_status",
            "SELECT * FROM outbox.held",
            "SELECT * FROM outbox.lane",
            "SELECT * FROM outbox.relay",
            "SELECT * FROM outbox.source_row",
            "SELECT outbox.retry(topic => 't')",
            "SELECT outbox.discard(topic => 't')",
            "SELECT * FROM inbox.processed",
            "SELECT inbox.is_done('c', 'm', 's')",
        ],
    )
    .await;
    all_denied(
        &operator,
        &[
            "SELECT payload FROM outbox.message",
            "SELECT seq FROM outbox.message",
            "UPDATE outbox.message SET sent_at = NULL",
            "DELETE FROM outbox.message",
            "UPDATE outbox.held SET state = 'waiting'",
            "DELETE FROM outbox.held",
            "UPDATE outbox.lane SET owner = NULL",
            "SELECT outbox.enqueue('k', 't', '')",
            "SELECT inbox.claim('c', 'm', NULL)",
            "SELECT inbox.finish_step('c', 'm', 's')",
            "CREATE TABLE outbox.mine ()",
        ],
    )
    .await;
}

#[tokio::test]
async fn the_script_is_harmless_twice_and_everything_has_the_owner() {
    let db = Database::with_roles().await;
    let client = db.connect().await;
    client.batch_execute(outbox_schema::ROLES_SQL).await.unwrap();
    let foreign: i64 = one(
        &client,
        "SELECT (SELECT count(*) FROM pg_catalog.pg_class WHERE relnamespace IN ('outbox'::pg_catalog.regnamespace, 'inbox'::pg_catalog.regnamespace) \
                    AND pg_catalog.pg_get_userbyid(relowner) <> 'outbox_owner') \
              + (SELECT count(*) FROM pg_catalog.pg_proc WHERE pronamespace IN ('outbox'::pg_catalog.regnamespace, 'inbox'::pg_catalog.regnamespace) \
                    AND pg_catalog.pg_get_userbyid(proowner) <> 'outbox_owner')",
    )
    .await;
    assert_eq!(foreign, 0);
}

#[tokio::test]
async fn before_the_schemas_the_script_makes_the_roles_only() {
    let db = Database::empty().await;
    let client = db.connect().await;
    client.batch_execute(outbox_schema::ROLES_SQL).await.unwrap();
    let roles: i64 = one(
        &client,
        "SELECT count(*) FROM pg_catalog.pg_roles WHERE rolname IN ('outbox_owner', 'outbox_app', 'outbox_relay', 'outbox_source', 'outbox_operator')",
    )
    .await;
    assert_eq!(roles, 5);
}

/// A temporary object of the caller must not be taken for one of PostgreSQL's by a function with its owner's rights.
#[tokio::test]
async fn functions_with_their_owners_rights_have_a_safe_search_path() {
    let db = Database::with_roles().await;
    let unsafe_ones: i64 = one(
        &db.connect().await,
        "SELECT count(*) FROM pg_catalog.pg_proc WHERE pronamespace = 'outbox'::pg_catalog.regnamespace AND prosecdef \
            AND NOT 'search_path=pg_catalog, pg_temp' = ANY (coalesce(proconfig, '{}'))",
    )
    .await;
    assert_eq!(unsafe_ones, 0);
    let public: i64 = one(
        &db.connect().await,
        "SELECT count(*) FROM pg_catalog.pg_proc p, pg_catalog.aclexplode(coalesce(p.proacl, pg_catalog.acldefault('f', p.proowner))) a \
          WHERE p.pronamespace = 'outbox'::pg_catalog.regnamespace AND a.grantee = 0",
    )
    .await;
    assert_eq!(public, 0, "nobody gets a right by default");
}
