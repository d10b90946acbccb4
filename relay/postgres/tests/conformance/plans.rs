//! However many rows were sent, a claim and a poll from the very beginning cost the same.

use outbox_core::Session as _;
use tokio_postgres::IsolationLevel;

use crate::kit::{Fixture, LANE};

const SENT: i64 = 300_000;

#[tokio::test]
async fn sent_rows_cost_a_claim_and_a_poll_nothing() {
    let f = Fixture::new().await;
    let fill = format!(
        "INSERT INTO outbox.message (idempotency_key, topic, ordering_key, sent_at) \
         SELECT 'sent:' || n, 't', 'k' || n % 1000, clock_timestamp() FROM generate_series(1, {SENT}) n"
    );
    f.client.batch_execute(&fill).await.expect("fill");
    let row = f.row(0).await;
    for analyzed in [false, true] {
        if analyzed {
            f.client.batch_execute("VACUUM ANALYZE outbox.message").await.expect("analyze");
        }
        assert_eq!(f.claim(|_| {}).await, [(row.seq, "fresh")]);
        assert!(f.poll(|_| {}).await);
        for (name, blocks) in [("claim", claim_plan(&f, 0).await), ("poll", poll_plan(&f, 0).await)] {
            let (plan, blocks) = blocks;
            assert!(plan.contains("message_unsent"), "{name}, analyzed {analyzed}: {plan}");
            assert!(!plan.contains("Seq Scan on message"), "{name}, analyzed {analyzed}: {plan}");
            assert!(!plan.contains("using message_pkey on outbox.message m"), "{name}, analyzed {analyzed}: {plan}");
            assert!(blocks < 200, "{name}, analyzed {analyzed}: {blocks} blocks\n{plan}");
        }
    }
}

/// Failure 75: an old snapshot keeps what was sent in the index; a claim and a poll begin behind it.
#[tokio::test]
async fn f75_an_old_snapshot_costs_a_claim_and_a_poll_nothing() {
    let f = Fixture::new().await;
    let mut reader = f.database.client().await;
    let old = reader.build_transaction().isolation_level(IsolationLevel::RepeatableRead).start().await.expect("begin");
    let fill = format!(
        "INSERT INTO outbox.message (idempotency_key, topic, ordering_key) \
         SELECT 'sent:' || n, 't', '{}' FROM generate_series(1, 50000) n",
        f.keys[0]
    );
    f.client.batch_execute(&fill).await.expect("fill");
    old.query_one("SELECT count(*) FROM outbox.message", &[]).await.expect("a snapshot");
    f.client.batch_execute("UPDATE outbox.message SET sent_at = clock_timestamp()").await.expect("mark");
    f.client.batch_execute("VACUUM ANALYZE outbox.message").await.expect("vacuum");
    let low = f.session.last_seq().await.expect("the last number");
    let row = f.row(0).await;
    assert_eq!(f.claim(|request| request.low = low).await, [(row.seq, "fresh")]);
    assert!(f.poll(|request| request.positions[0].low = low).await);
    let (plan, whole) = claim_plan(&f, 0).await;
    assert!(whole > 1_000, "the sent rows are not in the way at all: {whole} blocks\n{plan}");
    for (name, (plan, blocks)) in [("claim", claim_plan(&f, low).await), ("poll", poll_plan(&f, low).await)] {
        assert!(blocks < 200, "{name}: {blocks} blocks\n{plan}");
    }
    old.rollback().await.expect("rollback");
}

/// Plan and blocks touched, as the session would run it: parameters are put in by the server.
async fn explain(f: &Fixture, sql: &str, arguments: &[&str]) -> (String, i64) {
    let mut sql = sql.to_owned();
    for (at, argument) in arguments.iter().enumerate().rev() {
        sql = sql.replace(&format!("${}", at + 1), argument);
    }
    let explain = format!("EXPLAIN (ANALYZE, BUFFERS, FORMAT TEXT) {sql}");
    let lines = f.client.query(&explain, &[]).await.expect("explain");
    let plan: Vec<String> = lines.iter().map(|line| line.get(0)).collect();
    let buffers = plan.iter().find(|line| line.trim_start().starts_with("Buffers:")).expect("a count of blocks");
    let blocks = buffers.split(' ').filter_map(|word| word.split_once('='));
    let touched = |(kind, count): (&str, &str)| matches!(kind, "hit" | "read").then(|| count.parse::<i64>());
    let blocks = blocks.filter_map(touched).map(|count| count.expect("a number")).sum();
    (plan.join("\n"), blocks)
}

async fn claim_plan(f: &Fixture, low: i64) -> (String, i64) {
    let lane = format!("{LANE}::smallint");
    let relay = format!("'{}'::uuid", f.relay_id);
    let none = "'{}'::text[]";
    let low = format!("{low}::bigint");
    let arguments = [
        "'outbox'",
        &lane,
        &low,
        "'{}'::bigint[]",
        "500::bigint",
        "8388608::bigint",
        "true",
        none,
        none,
        "false",
        &relay,
    ];
    explain(f, include_str!("../../src/sql/claim.sql"), &arguments).await
}

async fn poll_plan(f: &Fixture, low: i64) -> (String, i64) {
    let lanes = "'{0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15}'::smallint[]";
    let lows = format!("array_fill({low}::bigint, ARRAY[16])");
    let relay = format!("'{}'::uuid", f.relay_id);
    let arguments = ["'outbox'", lanes, &lows, "'{}'::bigint[]", "true", "'{}'::text[]", "false", &relay];
    explain(f, include_str!("../../src/sql/poll.sql"), &arguments).await
}
