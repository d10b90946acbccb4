//! The way into the waiting room.

use crate::kit::{Fixture, waiting};
use outbox_core::{Fenced, HoldEntry, HoldState, Lease, RowId, Session, TxId};

#[tokio::test]
async fn only_unsent_rows_enter() {
    let f = Fixture::new().await;
    let (sent, other) = (f.row(0).await, f.row(1).await);
    assert_eq!(f.mark(&[sent]).await, []);
    f.hold(&[waiting(sent), waiting(RowId { tx: TxId(other.tx.0 + 1), ..other })]).await;
    assert_eq!(f.count("SELECT count(*) FROM outbox.held").await, 0);
    f.hold(&[waiting(other)]).await;
    assert_eq!(f.state(other).await, "waiting");
}

#[tokio::test]
async fn an_operators_word_stands() {
    let f = Fixture::new().await;
    let rows = [f.row(0).await, f.row(1).await];
    f.park(rows[0]).await;
    f.wait(rows[1]).await;
    f.client.execute("SELECT outbox.discard(ARRAY[$1::bigint])", &[&rows[1].seq]).await.expect("discard");
    f.hold(&[waiting(rows[0]), waiting(rows[1])]).await;
    assert_eq!((f.state(rows[0]).await.as_str(), f.state(rows[1]).await.as_str()), ("parked", "discarded"));
}

#[tokio::test]
async fn a_waiting_entry_is_brought_up_to_date() {
    let f = Fixture::new().await;
    let row = f.row(0).await;
    f.wait(row).await;
    let entry = HoldEntry { state: HoldState::Parked, attempts: 7, detail: "no\0 way".to_owned(), ..waiting(row) };
    f.hold(&[entry]).await;
    let found = f.client.query_one("SELECT state, attempts, last_error FROM outbox.held", &[]).await.expect("one");
    let found: (String, i32, String) = (found.get(0), found.get(1), found.get(2));
    assert_eq!(found, ("parked".to_owned(), 7, "no  way".to_owned()));
}

#[tokio::test]
async fn a_hold_of_another_epoch_or_owner_changes_nothing() {
    let f = Fixture::new().await;
    let row = f.row(0).await;
    let old = Lease { epoch: f.lease.epoch - 1, ..f.lease };
    assert_eq!(f.session.hold(old, &[waiting(row)]).await.expect("a hold"), Fenced::Stale);
    f.take_over().await;
    for epoch in [f.lease.epoch, f.lease.epoch + 1] {
        let lease = Lease { epoch, ..f.lease };
        assert_eq!(f.session.hold(lease, &[waiting(row)]).await.expect("a hold"), Fenced::Stale);
    }
    assert_eq!(f.count("SELECT count(*) FROM outbox.held").await, 0);
}

#[tokio::test]
async fn an_empty_hold_still_says_whose_the_lane_is() {
    let f = Fixture::new().await;
    assert_eq!(f.session.hold(f.lease, &[]).await.expect("a hold"), Fenced::Done);
    f.take_over().await;
    assert_eq!(f.session.hold(f.lease, &[]).await.expect("a hold"), Fenced::Stale);
}
