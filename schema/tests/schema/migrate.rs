//! Applying the schemas: twice, at once, over a changed file, under a newer schema, and beside open transactions.

use std::time::Duration;

use outbox_schema::{MigrateError, Options, Schema, Verdict, check_version, migrate};

use crate::kit::{Database, one, pid, wait_until_blocked};

#[tokio::test]
async fn twice_is_harmless() {
    let db = Database::empty().await;
    let first = db.migrate().await.unwrap();
    let names: Vec<&str> = first.applied.iter().map(|applied| applied.name).collect();
    assert_eq!(names, ["0001_outbox", "0002_sources", "0003_room_for_marks", "0001_inbox", "0002_steps"]);
    let second = db.migrate().await.unwrap();
    assert!(second.applied.is_empty());
    assert_eq!(first.verdicts, second.verdicts);
    assert!(second.verdicts.iter().all(|verdict| verdict.is_usable()));
}

#[tokio::test]
async fn racing_replicas_take_turns() {
    let db = Database::empty().await;
    let options = Options::default();
    let mut clients = [db.connect().await, db.connect().await, db.connect().await];
    let [a, b, c] = &mut clients;
    let (a, b, c) = tokio::join!(migrate(a, &options), migrate(b, &options), migrate(c, &options));
    let applied: usize = [a, b, c].into_iter().map(|report| report.unwrap().applied.len()).sum();
    let files: usize = Schema::ALL.iter().map(|schema| schema.migrations().len()).sum();
    assert_eq!(applied, files, "each file once");
}

#[tokio::test]
async fn a_changed_file_is_refused() {
    let db = Database::migrated().await;
    let client = db.connect().await;
    client.batch_execute("UPDATE inbox.migration SET checksum = 'tampered' WHERE version = 1").await.unwrap();
    let error = db.migrate().await.unwrap_err();
    assert!(matches!(error, MigrateError::Checksum { schema: Schema::Inbox, .. }), "{error}");
    assert!(error.to_string().contains("tampered"), "{error}");
}

#[tokio::test]
async fn a_file_applied_by_hand_is_adopted() {
    let db = Database::empty().await;
    let client = db.connect().await;
    for migration in Schema::Outbox.migrations() {
        client.batch_execute(migration.sql).await.unwrap();
    }
    let verdict = check_version(&client, Schema::Outbox).await.unwrap();
    assert!(verdict.is_usable(), "{verdict}");
    let report = db.migrate().await.unwrap();
    assert!(report.applied.iter().all(|applied| applied.schema == Schema::Inbox), "{report:?}");
    let checksum: String = one(&client, "SELECT checksum FROM outbox.migration WHERE version = 1").await;
    assert_eq!(checksum, Schema::Outbox.migrations()[0].checksum());
}

#[tokio::test]
async fn a_database_of_version_1_is_brought_up_beside_a_writer() {
    let db = Database::empty().await;
    let client = db.connect().await;
    client.batch_execute(Schema::Outbox.migrations()[0].sql).await.unwrap();
    client.batch_execute(outbox_schema::ROLES_SQL).await.unwrap();
    let older = check_version(&client, Schema::Outbox).await.unwrap();
    assert_eq!(older, Verdict::Older { schema: Schema::Outbox, found: 1, expected: Schema::Outbox.version() });
    // The application and a relay of version 1 go on meanwhile.
    let writer = db.connect().await;
    writer.batch_execute("BEGIN; SELECT outbox.enqueue('k', 't', '{}')").await.unwrap();
    let report = db.migrate().await.unwrap();
    let files: Vec<&str> = report.applied.iter().map(|applied| applied.name).collect();
    assert!(files.starts_with(&["0002_sources", "0003_room_for_marks"]), "{report:?}");
    writer.batch_execute("COMMIT").await.unwrap();
    let compatible: i32 = one(&client, "SELECT max(compatible_from) FROM outbox.migration").await;
    assert_eq!(compatible, 1, "a relay of version 1 may run against it");
    let owner: String = one(
        &client,
        "SELECT pg_catalog.pg_get_userbyid(relowner)::text FROM pg_catalog.pg_class WHERE oid = 'outbox.source_row'::pg_catalog.regclass",
    )
    .await;
    assert_eq!(owner, "outbox_owner");
    let rows: i64 = one(&client, "SELECT count(*) FROM outbox.message").await;
    assert_eq!(rows, 1);
}

#[tokio::test]
async fn versions_are_compared() {
    let db = Database::empty().await;
    let client = db.connect().await;
    let check = async || check_version(&client, Schema::Outbox).await.unwrap();
    assert_eq!(check().await, Verdict::Missing { schema: Schema::Outbox });

    db.migrate().await.unwrap();
    let version = Schema::Outbox.version();
    assert_eq!(check().await, Verdict::Current { schema: Schema::Outbox, version });

    let newer = version + 1;
    let insert = |compatible_from: i32| {
        format!(
            "DELETE FROM outbox.migration WHERE version = {newer}; \
             INSERT INTO outbox.migration (version, name, compatible_from) VALUES ({newer}, 'later', {compatible_from})"
        )
    };
    client.batch_execute(&insert(version)).await.unwrap();
    assert!(matches!(check().await, Verdict::NewerCompatible { .. }));
    assert!(db.migrate().await.unwrap().applied.is_empty());

    client.batch_execute(&insert(newer)).await.unwrap();
    assert!(matches!(check().await, Verdict::NewerBreaking { .. }));
    let error = db.migrate().await.unwrap_err();
    assert!(matches!(error, MigrateError::NewerBreaking { .. }), "{error}");
    assert!(error.to_string().contains("use a newer outbox-relay"), "{error}");
}

#[tokio::test]
async fn a_long_reader_does_not_stop_it() {
    let db = Database::migrated().await;
    let reader = db.connect().await;
    reader.batch_execute("BEGIN; SELECT FROM outbox.message; SELECT FROM outbox.migration").await.unwrap();
    assert!(db.migrate().await.unwrap().applied.is_empty());
}

#[tokio::test]
async fn a_locked_table_ends_in_a_bounded_wait() {
    let db = Database::migrated().await;
    let holder = db.connect().await;
    holder.batch_execute("BEGIN; LOCK TABLE outbox.migration IN ACCESS EXCLUSIVE MODE").await.unwrap();
    let options = Options { lock_timeout: Duration::from_millis(50), ..Options::default() };
    let error = db.migrate_with(&options).await.unwrap_err();
    assert!(matches!(error, MigrateError::LockTimeout { .. }), "{error}");
    assert!(error.to_string().contains("pg_locks"), "{error}");
}

#[tokio::test]
async fn the_wait_for_the_turn_is_bounded() {
    let db = Database::migrated().await;
    let (holder, observer) = (db.connect().await, db.connect().await);
    holder.batch_execute("BEGIN; LOCK TABLE outbox.migration IN ACCESS EXCLUSIVE MODE").await.unwrap();
    let mut slow = db.connect().await;
    let slow_pid = pid(&slow).await;
    let slow = tokio::spawn(async move {
        let options = Options { lock_timeout: Duration::from_secs(60), ..Options::default() };
        migrate(&mut slow, &options).await
    });
    wait_until_blocked(&observer, slow_pid).await;
    let impatient = Options { turn_timeout: Duration::from_millis(50), ..Options::default() };
    let error = db.migrate_with(&impatient).await.unwrap_err();
    assert!(matches!(error, MigrateError::Turn { .. }), "{error}");
    holder.batch_execute("COMMIT").await.unwrap();
    slow.await.unwrap().unwrap();
}

#[tokio::test]
async fn another_encoding_is_refused() {
    let db = Database::with_encoding("SQL_ASCII").await;
    let error = db.migrate().await.unwrap_err();
    assert!(matches!(error, MigrateError::NotUtf8 { .. }), "{error}");
}

#[tokio::test]
async fn what_was_there_before_is_left_alone() {
    let db = Database::empty().await;
    let client = db.connect().await;
    client.batch_execute("CREATE SCHEMA outbox; CREATE TABLE outbox.message (mine int)").await.unwrap();
    let error = db.migrate().await.unwrap_err();
    assert!(matches!(error, MigrateError::NameTaken { .. }), "{error}");
    let columns: i64 = one(
        &client,
        "SELECT count(*) FROM pg_catalog.pg_attribute WHERE attrelid = 'outbox.message'::pg_catalog.regclass AND attnum > 0",
    )
    .await;
    assert_eq!(columns, 1);
    let inbox: Option<String> = one(&client, "SELECT pg_catalog.to_regnamespace('inbox')::text").await;
    assert_eq!(inbox, None, "all or nothing");
}

#[tokio::test]
async fn odd_session_defaults_do_not_matter() {
    let db = Database::empty().await;
    let mut client = db.connect().await;
    client
        .batch_execute(
            "SET default_transaction_isolation = 'serializable'; SET default_transaction_read_only = on; \
             SET standard_conforming_strings = off; SET search_path = 'nowhere'",
        )
        .await
        .unwrap();
    migrate(&mut client, &Options::default()).await.unwrap();
    let kept: String = one(&client, "SELECT pg_catalog.current_setting('search_path')").await;
    assert_eq!(kept, "nowhere");
}

#[tokio::test]
async fn a_schema_made_beforehand_keeps_its_owner() {
    let db = Database::empty().await;
    let client = db.connect().await;
    client.batch_execute(outbox_schema::ROLES_SQL).await.unwrap();
    client.batch_execute("CREATE SCHEMA outbox AUTHORIZATION outbox_owner").await.unwrap();
    db.migrate().await.unwrap();
    let owner: String = one(
        &client,
        "SELECT pg_catalog.pg_get_userbyid(relowner)::text FROM pg_catalog.pg_class WHERE oid = 'outbox.message'::pg_catalog.regclass",
    )
    .await;
    assert_eq!(owner, "outbox_owner");
    let inbox_owner_is_me: bool = one(
        &client,
        "SELECT pg_catalog.pg_get_userbyid(nspowner) = current_user FROM pg_catalog.pg_namespace WHERE nspname = 'inbox'",
    )
    .await;
    assert!(inbox_owner_is_me, "the role is given back after each schema");
}

#[tokio::test]
async fn without_permission_it_says_what_is_needed() {
    let db = Database::with_roles().await;
    let client = db.connect_as("outbox_app").await;
    let error = check_version(&client, Schema::Outbox).await.unwrap_err();
    assert!(matches!(error, MigrateError::Denied { .. }), "{error}");
    let relay = db.connect_as("outbox_relay").await;
    assert!(check_version(&relay, Schema::Outbox).await.unwrap().is_usable());
}
