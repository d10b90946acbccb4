//! What an operator sees and does: the view, retry and discard.

use tokio_postgres::Client;

use crate::kit::{Database, one, sqlstate, words};

/// Rows 1 to 6: pending, waiting, parked (topic a), parked (topic b), discarded, sent.
async fn furnished() -> (Database, Client) {
    let db = Database::with_roles().await;
    let client = db.connect().await;
    client
        .batch_execute(
            "INSERT INTO outbox.message (idempotency_key, topic, ordering_key) \
             SELECT 'k' || n, CASE n WHEN 4 THEN 'b' ELSE 'a' END, 'o' FROM pg_catalog.generate_series(1, 6) n; \
             INSERT INTO outbox.held (source, row_id, seq, tx, lane, topic, ordering_key, state, attempts, \
                                      next_attempt_at, reason, last_error) \
             SELECT 'outbox', seq::text, seq, tx, lane, topic, ordering_key, \
                    (ARRAY['waiting', 'parked', 'parked', 'discarded'])[seq - 1], 3, '2100-01-01', 'nack', 'full' \
               FROM outbox.message WHERE seq BETWEEN 2 AND 5; \
             INSERT INTO outbox.held (source, row_id, seq, lane, state, reason) VALUES ('other', '3', 3, 0, 'parked', 'size'); \
             UPDATE outbox.message SET sent_at = pg_catalog.clock_timestamp() WHERE seq = 6",
        )
        .await
        .unwrap();
    let operator = db.connect_as("outbox_operator").await;
    (db, operator)
}

async fn states(operator: &Client) -> Vec<String> {
    operator
        .query("SELECT state FROM outbox.message_status ORDER BY seq", &[])
        .await
        .unwrap()
        .iter()
        .map(|row| row.get(0))
        .collect()
}

async fn affected(operator: &Client, call: &str) -> Vec<i64> {
    operator.query(&format!("SELECT {call}"), &[]).await.unwrap().iter().map(|row| row.get(0)).collect()
}

#[tokio::test]
async fn the_view_knows_five_states() {
    let (_db, operator) = furnished().await;
    assert_eq!(states(&operator).await, ["pending", "waiting", "parked", "parked", "discarded", "sent"]);
    let row = operator
        .query_one(
            "SELECT idempotency_key, topic, ordering_key, lane BETWEEN 0 AND 15, attempts, next_attempt_at IS NOT NULL, \
                    reason, last_error, sent_at IS NULL FROM outbox.message_status WHERE seq = 3",
            &[],
        )
        .await
        .unwrap();
    let texts = [0, 1, 2, 6, 7].map(|column| row.get::<_, &str>(column));
    assert_eq!(texts, ["k3", "a", "o", "nack", "full"]);
    assert_eq!(row.get::<_, i32>(4), 3);
    assert!([3, 5, 8].iter().all(|&column| row.get::<_, bool>(column)));
}

#[tokio::test]
async fn retry_makes_parked_rows_due() {
    let (db, operator) = furnished().await;
    assert_eq!(affected(&operator, "outbox.retry(ARRAY[1, 2, 3, 5, 6, 99]::bigint[])").await, [3]);
    assert_eq!(states(&operator).await, ["pending", "waiting", "waiting", "parked", "discarded", "sent"]);
    let anew: bool = one(
        &db.connect().await,
        "SELECT attempts = 0 AND next_attempt_at IS NULL AND reason = 'nack' FROM outbox.held \
          WHERE source = 'outbox' AND seq = 3",
    )
    .await;
    assert!(anew);
    assert_eq!(affected(&operator, "outbox.retry(topic => 'b')").await, [4]);
    assert!(affected(&operator, "outbox.retry(topic => 'b')").await.is_empty());
    let others: bool =
        one(&db.connect().await, "SELECT state = 'parked' FROM outbox.held WHERE source = 'other'").await;
    assert!(others, "another outbox has its own rows");
}

#[tokio::test]
async fn discard_takes_parked_and_waiting_rows() {
    let (db, operator) = furnished().await;
    assert_eq!(affected(&operator, "outbox.discard(topic => 'a')").await, [2, 3]);
    assert_eq!(affected(&operator, "outbox.discard(seqs => ARRAY[1, 4, 6]::bigint[], topic => 'b')").await, [4]);
    assert_eq!(states(&operator).await, ["pending", "discarded", "discarded", "discarded", "discarded", "sent"]);
    let entries: i64 = one(&db.connect().await, "SELECT count(*) FROM outbox.held").await;
    assert_eq!(entries, 5, "an entry never leaves by an operator's hand");
}

#[tokio::test]
async fn nothing_named_is_not_everything() {
    let (_db, operator) = furnished().await;
    for call in ["outbox.retry()", "outbox.discard(NULL, NULL)"] {
        let sql = format!("SELECT {call}");
        assert_eq!(sqlstate(operator.query(&sql, &[]).await), "22004");
        assert!(words(operator.query(&sql, &[]).await).contains("needs seqs, topic or both"));
    }
    assert!(affected(&operator, "outbox.discard(ARRAY[]::bigint[])").await.is_empty());
}

#[tokio::test]
async fn a_mark_wins_over_a_discard() {
    let (db, operator) = furnished().await;
    let (relay, observer) = (db.connect_as("outbox_relay").await, db.connect().await);
    relay
        .batch_execute(
            "BEGIN; UPDATE outbox.message SET sent_at = pg_catalog.clock_timestamp() WHERE seq = 2; \
             DELETE FROM outbox.held WHERE source = 'outbox' AND row_id = '2'",
        )
        .await
        .unwrap();
    let operator_pid = crate::kit::pid(&operator).await;
    let discarding = crate::kit::start_and_block(&observer, operator_pid, async move {
        affected(&operator, "outbox.discard(ARRAY[2]::bigint[])").await
    })
    .await;
    relay.batch_execute("COMMIT").await.unwrap();
    assert!(discarding.await.unwrap().is_empty());
    let state: String = one(&observer, "SELECT state FROM outbox.message_status WHERE seq = 2").await;
    assert_eq!(state, "sent");
}
