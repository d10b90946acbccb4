//! The rights of the role `outbox_relay` are enough, and the server's default isolation does not matter.

use crate::kit::{Fixture, LANE};
use outbox_core::{MarkOrder, Session, SourceError};

/// Every test runs as this role; here every statement once under the strictest default.
#[tokio::test]
async fn every_statement_works_under_serializable_isolation() {
    let f = Fixture::with("-c default_transaction_isolation=serializable").await;
    let rows = [f.row(0).await, f.row(0).await, f.row(1).await];
    assert_eq!(f.claim(|_| {}).await.len(), 3);
    f.wait(rows[0]).await;
    f.park(rows[2]).await;
    assert!(f.poll(|_| {}).await);
    assert_eq!(f.mark(&[rows[0]]).await, []);
    assert_eq!(f.session.heartbeat(&[f.lease]).await.expect("a heartbeat").kept, [f.lease]);
    f.session.horizon().await.expect("a horizon");
    let goal = f.session.drain_goal().await.expect("a goal");
    f.session.drained(&goal, false).await.expect("an answer");
    f.session.prune(0).await.expect("prune");
    f.session.release(&[f.lease]).await.expect("release");
    assert_eq!(f.session.acquire(&[(LANE, None)]).await.expect("acquire").len(), 1);
    f.session.leave().await.expect("leave");
}

#[tokio::test]
async fn a_mark_that_met_a_renewal_under_serializable_isolation_only_asks_to_try_again() {
    let f = Fixture::with("-c default_transaction_isolation=serializable").await;
    let row = f.row(0).await;
    // Under READ COMMITTED it would look at the lane again by itself; here it changes nothing and is repeated.
    let mut other = f.database.client().await;
    let renewal = other.transaction().await.expect("begin");
    renewal.execute("UPDATE outbox.lane SET expires_at = expires_at WHERE lane = $1", &[&LANE]).await.expect("renew");
    let (session, order) = (f.session.clone(), MarkOrder { lease: f.lease, rows: vec![row] });
    let marking = tokio::spawn(async move { session.mark(&[order]).await });
    let blocked = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '-- Called by: mark.rs%' \
                   AND datname = current_database()";
    while f.count(blocked).await == 0 {
        assert!(!marking.is_finished(), "the mark did not wait for the lane's row");
    }
    renewal.commit().await.expect("commit");
    let met = marking.await.expect("a task");
    assert!(matches!(met, Err(SourceError::Again(_))), "{met:?}");
    assert_eq!(f.state(row).await, "pending");
    assert_eq!(f.mark(&[row]).await, []);
    assert_eq!(f.state(row).await, "sent");
}
