//! Retention, and when a drain is done.

use crate::kit::Fixture;
use outbox_core::Session;

#[tokio::test]
async fn old_sent_rows_go_in_small_batches() {
    let f = Fixture::new().await;
    let sql = "INSERT INTO outbox.message (idempotency_key, topic, sent_at) \
               SELECT 'old:' || n, 't', clock_timestamp() - interval '1 hour' FROM generate_series(1, 2500) n";
    f.client.execute(sql, &[]).await.expect("insert");
    let (young, unsent) = (f.row(0).await, f.row(0).await);
    f.mark(&[young]).await;
    let mut removed = Vec::new();
    while let n @ 1.. = f.session.prune(60).await.expect("prune") {
        removed.push(n);
    }
    assert_eq!(removed, [1000, 1000, 500]);
    assert_eq!((f.state(young).await.as_str(), f.state(unsent).await.as_str()), ("sent", "pending"));
}

#[tokio::test]
async fn a_discarded_row_and_its_entry_go_together() {
    let f = Fixture::new().await;
    let rows = [f.row(0).await, f.row(1).await, f.row(2).await];
    for row in rows {
        f.park(row).await;
    }
    f.client.execute("SELECT outbox.discard(ARRAY[$1::bigint])", &[&rows[0].seq]).await.expect("discard");
    assert_eq!(f.session.prune(60).await.expect("prune"), 0, "not old enough");
    f.client.execute("UPDATE outbox.held SET held_since = 'epoch'", &[]).await.expect("age");
    assert_eq!(f.session.prune(60).await.expect("prune"), 1);
    let left = f.count("SELECT count(*) FROM outbox.message m JOIN outbox.held h ON h.seq = m.seq").await;
    assert_eq!((left, f.count("SELECT count(*) FROM outbox.held").await), (2, 2), "parked rows stay for ever");
}

#[tokio::test]
async fn a_drain_is_done_when_nothing_of_its_start_is_left() {
    let f = Fixture::new().await;
    let rows = [f.row(0).await, f.row(1).await, f.row(2).await, f.row(2).await];
    f.delayed(3, 60_000).await;
    let goal = f.session.drain_goal().await.expect("a goal");
    f.row(4).await;
    let done = async |block_key| f.session.drained(&goal, block_key).await.expect("an answer");
    assert!(!done(false).await);
    f.mark(&rows[..1]).await;
    f.park(rows[1]).await;
    f.park(rows[2]).await;
    assert!(!done(false).await, "the last row is not sent");
    assert!(done(true).await, "under block_key it rests behind a parked one");
    f.wait(rows[3]).await;
    assert!(!done(false).await, "a waiting row is not done");
    f.client.execute("SELECT outbox.discard(ARRAY[$1::bigint])", &[&rows[3].seq]).await.expect("discard");
    assert!(done(false).await);
}
