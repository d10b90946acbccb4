//! Marks: fenced, by number and transaction, and out of the waiting room in one statement.

use crate::kit::{Fixture, LANE};
use outbox_core::{Lease, MarkOrder, RowId, Session, SourceError, TxId};

#[tokio::test]
async fn a_mark_names_number_and_transaction() {
    let f = Fixture::new().await;
    let row = f.row(0).await;
    let other = RowId { tx: TxId(row.tx.0 + 1), ..row };
    assert_eq!(f.mark(&[other, RowId { seq: 999, ..row }]).await, [], "rows that are gone are no stale lease");
    assert_eq!(f.state(row).await, "pending");
    assert_eq!(f.mark(&[row]).await, []);
    assert_eq!(f.state(row).await, "sent");
}

#[tokio::test]
async fn a_mark_ends_the_wait_and_wins_over_a_discard() {
    let f = Fixture::new().await;
    let rows = [f.row(0).await, f.row(1).await];
    f.wait(rows[0]).await;
    f.wait(rows[1]).await;
    f.client.execute("SELECT outbox.discard(ARRAY[$1::bigint])", &[&rows[1].seq]).await.expect("discard");
    f.mark(&rows).await;
    assert_eq!(f.count("SELECT count(*) FROM outbox.held").await, 0);
    assert_eq!(f.count("SELECT count(*) FROM outbox.message WHERE sent_at IS NULL").await, 0);
}

#[tokio::test]
async fn a_mark_of_another_epoch_or_owner_changes_nothing_and_says_so() {
    let f = Fixture::new().await;
    let rows = [f.row(0).await, f.row(0).await];
    f.wait(rows[1]).await;
    let old = Lease { epoch: f.lease.epoch - 1, ..f.lease };
    let orders = [MarkOrder { lease: old, rows: vec![rows[0]] }, MarkOrder { lease: f.lease, rows: vec![] }];
    assert_eq!(f.session.mark(&orders).await.expect("a mark"), [old]);
    assert_eq!(f.state(rows[0]).await, "pending");
    f.take_over().await;
    assert_eq!(f.mark(&rows).await, [f.lease]);
    assert_eq!((f.state(rows[0]).await.as_str(), f.state(rows[1]).await.as_str()), ("pending", "waiting"));
}

/// A takeover that is under way: the mark waits for it, and then sees that the lane is lost.
#[tokio::test]
async fn a_takeover_cannot_slip_between_check_and_write() {
    let f = Fixture::new().await;
    let row = f.row(0).await;
    let mut other = f.database.client().await;
    let takeover = other.transaction().await.expect("begin");
    let sql = "UPDATE outbox.lane SET owner = gen_random_uuid(), epoch = epoch + 1 WHERE lane = $1";
    takeover.execute(sql, &[&LANE]).await.expect("take over");
    let session = f.session.clone();
    let order = MarkOrder { lease: f.lease, rows: vec![row] };
    let marking = tokio::spawn(async move { session.mark(&[order]).await });
    let blocked = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '-- Called by: mark.rs%' \
                   AND datname = current_database()";
    while f.count(blocked).await == 0 {
        assert!(!marking.is_finished(), "the mark did not wait for the lane's row");
    }
    takeover.commit().await.expect("commit");
    assert_eq!(marking.await.expect("a task").expect("a mark"), [f.lease]);
    assert_eq!(f.state(row).await, "pending");
}

/// The other way round: while a mark is not committed nobody can take the lane.
#[tokio::test]
async fn a_lane_whose_mark_is_under_way_is_not_taken() {
    let f = Fixture::new().await;
    f.client.execute("UPDATE outbox.lane SET expires_at = 'epoch' WHERE lane = $1", &[&LANE]).await.expect("expire");
    let mut holder = f.database.client().await;
    let under_way = holder.transaction().await.expect("begin");
    under_way.execute("SELECT FROM outbox.lane WHERE lane = $1 FOR SHARE", &[&LANE]).await.expect("lock");
    let other = f.database.session(uuid::Uuid::new_v4(), "").await;
    assert_eq!(other.acquire(&[(LANE, None)]).await.expect("acquire"), []);
    under_way.rollback().await.expect("rollback");
    assert_eq!(other.acquire(&[(LANE, None)]).await.expect("acquire").len(), 1);
}

#[tokio::test]
async fn a_lock_that_is_held_too_long_asks_to_try_again() {
    let f = Fixture::new().await;
    let row = f.row(0).await;
    let mut holder = f.database.client().await;
    let locked = holder.transaction().await.expect("begin");
    locked.execute("SELECT FROM outbox.lane WHERE lane = $1 FOR UPDATE", &[&LANE]).await.expect("lock");
    let order = MarkOrder { lease: f.lease, rows: vec![row] };
    let refused = f.session.mark(std::slice::from_ref(&order)).await;
    assert!(matches!(refused, Err(SourceError::Again(_))), "{refused:?}");
    locked.rollback().await.expect("rollback");
    assert_eq!(f.session.mark(&[order]).await.expect("the session goes on"), []);
}

#[tokio::test]
async fn rows_are_read_again_by_number_transaction_and_key() {
    let f = Fixture::new().await;
    let rows = [f.row(0).await, f.row(0).await, f.row(0).await, f.row(0).await];
    f.mark(&[rows[0]]).await;
    let kept = [
        (rows[0], "work:0".to_owned()),
        (rows[1], "work:1".to_owned()),
        (RowId { tx: TxId(1), ..rows[2] }, "work:2".to_owned()),
        (rows[3], "work:other".to_owned()),
    ];
    assert_eq!(f.session.recheck(&kept).await.expect("a recheck"), [rows[1]]);
}
