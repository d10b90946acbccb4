//! One claim: one snapshot, one page.

use crate::kit::{Fixture, waiting};
use outbox_core::{Content, HoldEntry, HoldState, Session};

#[tokio::test]
async fn fresh_delayed_and_waiting_rows_come_merged_by_number() {
    let f = Fixture::new().await;
    let rows = [f.row(0).await, f.delayed(1, -1).await, f.row(2).await, f.row(3).await, f.delayed(4, -1).await];
    f.wait(rows[0]).await;
    f.wait(rows[3]).await;
    let all = f.claim(|_| {}).await;
    let s = |at: usize| rows[at].seq;
    assert_eq!(all, [(s(0), "held"), (s(1), "delayed"), (s(2), "fresh"), (s(3), "held"), (s(4), "delayed")]);
    for rows_max in 1..=5 {
        let page = f.page(|request| request.rows_max = rows_max).await;
        let found: Vec<i64> = page.rows.iter().map(|row| row.id.seq).collect();
        assert_eq!(found, rows[..rows_max].iter().map(|row| row.seq).collect::<Vec<_>>(), "the limit is the union's");
        assert_eq!(page.whole_to, rows[rows_max - 1].seq);
    }
    assert_eq!(f.page(|_| {}).await.whole_to, i64::MAX);
}

#[tokio::test]
async fn the_byte_bound_cuts_and_always_lets_one_row_pass() {
    let f = Fixture::new().await;
    let mut rows = Vec::new();
    for bytes in [1_000, 300, 300, 300] {
        rows.push(f.row_with(0, None, &"x".repeat(bytes)).await);
    }
    for (bytes_max, expected) in [(1, 1), (999, 1), (1_001, 2), (1_301, 3), (10_000, 4)] {
        let page = f.page(|request| request.bytes_max = bytes_max).await;
        assert_eq!(page.rows.len(), expected, "{bytes_max} bytes");
        let whole_to = if expected == 4 { i64::MAX } else { rows[expected - 1].seq };
        assert_eq!(page.whole_to, whole_to, "{bytes_max} bytes");
    }
}

/// PostgreSQL keeps headers of a depth that no reader of JSON goes down to.
#[tokio::test]
async fn headers_that_are_too_deep_are_the_rows_own_fault() {
    let f = Fixture::new().await;
    let rows = [f.row(0).await, f.row(0).await, f.row(0).await];
    let nested = |levels: usize| format!("{{\"a\": {}{}}}", "[".repeat(levels), "]".repeat(levels));
    for (row, levels) in [(rows[0], 100), (rows[1], 5_000)] {
        let sql = "UPDATE outbox.message SET headers = $2::text::jsonb WHERE seq = $1";
        f.client.execute(sql, &[&row.seq, &nested(levels)]).await.expect("update");
    }
    let expected = [(rows[0].seq, "fresh"), (rows[1].seq, "bad"), (rows[2].seq, "fresh")];
    // By the whole statement first, and then by the short one.
    for _ in 0..2 {
        assert_eq!(f.claim(|_| {}).await, expected);
    }
}

/// Topics and content types are shared by the rows of a page, each with those that are its own.
#[tokio::test]
async fn each_row_has_its_own_words() {
    let f = Fixture::new().await;
    for _ in 0..4 {
        f.row(0).await;
    }
    let sql = "UPDATE outbox.message SET topic = 't' || seq / 2 % 2, content_type = 'c' || seq % 2";
    f.client.execute(sql, &[]).await.expect("update");
    // By the whole statement first, and then by the short one.
    for _ in 0..2 {
        let page = f.page(|_| {}).await;
        assert_eq!(page.rows.len(), 4);
        for claimed in &page.rows {
            let Content::Row(row) = &claimed.content else { panic!("a row without content") };
            assert_eq!(*row.topic, *format!("t{}", row.id.seq / 2 % 2));
            assert_eq!(*row.content_type, *format!("c{}", row.id.seq % 2));
        }
    }
}

#[tokio::test]
async fn low_and_the_rows_in_memory_are_left_out() {
    let f = Fixture::new().await;
    let rows = [f.row(0).await, f.row(1).await, f.row(2).await, f.delayed(3, -1).await];
    f.wait(rows[2]).await;
    let found = f.claim(|request| request.low = rows[2].seq).await;
    assert_eq!(found, [(rows[2].seq, "held"), (rows[3].seq, "delayed")], "both are outside low");
    let found = f.claim(|request| request.exclude = vec![rows[0].seq, rows[2].seq, rows[3].seq]).await;
    assert_eq!(found, [(rows[1].seq, "fresh")]);
}

#[tokio::test]
async fn a_row_in_the_waiting_room_is_not_fresh_whatever_its_state() {
    let f = Fixture::new().await;
    let rows = [f.row(0).await, f.row(1).await, f.row(2).await];
    f.wait(rows[0]).await;
    f.park(rows[1]).await;
    f.park(rows[2]).await;
    f.client.execute("SELECT outbox.discard(ARRAY[$1::bigint])", &[&rows[2].seq]).await.expect("discard");
    assert_eq!(f.claim(|request| request.with_held = false).await, []);
    assert_eq!(f.claim(|_| {}).await, [(rows[0].seq, "held")]);
}

#[tokio::test]
async fn a_row_behind_one_that_cannot_go_comes_blocked_and_bare() {
    let f = Fixture::new().await;
    let rows = [f.row(0).await, f.row(0).await, f.delayed(0, -1).await, f.row(1).await];
    f.hold(&[HoldEntry { delay_ms: Some(60_000), ..waiting(rows[0]) }]).await;
    let page = f.page(|_| {}).await;
    let labels: Vec<&str> = page.rows.iter().map(|row| crate::kit::label(row.origin, &row.content)).collect();
    assert_eq!(labels, ["blocked", "blocked", "fresh"]);
    assert!(matches!(page.rows[0].content, Content::Blocked));
    assert_eq!(page.rows[0].ordering_key.as_deref(), Some(f.keys[0].as_str()));
    let late = f.claim(|request| request.exclude = vec![rows[2].seq, rows[3].seq]).await;
    assert_eq!(late, [(rows[1].seq, "blocked")]);
}

#[tokio::test]
async fn a_waiting_row_does_not_block_a_lower_one_of_its_key() {
    let f = Fixture::new().await;
    let rows = [f.row(0).await, f.row(0).await];
    f.hold(&[HoldEntry { delay_ms: Some(60_000), ..waiting(rows[1]) }]).await;
    assert_eq!(f.claim(|_| {}).await, [(rows[0].seq, "fresh")]);
}

/// Every lower waiting row that may go comes in the same page, so the later ones may come with it.
#[tokio::test]
async fn a_key_that_may_go_comes_whole() {
    let f = Fixture::new().await;
    let rows = [f.row(0).await, f.row(0).await, f.row(0).await];
    f.hold(&[waiting(rows[0]), waiting(rows[1])]).await;
    let s = |at: usize| rows[at].seq;
    assert_eq!(f.claim(|_| {}).await, [(s(0), "held"), (s(1), "held"), (s(2), "fresh")]);
    let unlooked = f.claim(|request| request.with_held = false).await;
    assert_eq!(unlooked, [(s(2), "blocked")], "the waiting room was not looked at");
    let in_memory = |request: &mut outbox_core::ClaimRequest| {
        request.with_held = false;
        request.exclude = vec![rows[0].seq, rows[1].seq];
    };
    assert_eq!(f.claim(in_memory).await, [(s(2), "fresh")], "both lower rows are in memory, in order");
    f.hold(&[HoldEntry { delay_ms: Some(60_000), ..waiting(rows[0]) }]).await;
    assert_eq!(f.claim(|_| {}).await, [(s(2), "blocked")], "the first is not due, so nothing of the key may go");
}

#[tokio::test]
async fn behind_a_parked_row_the_key_goes_on_or_waits_as_chosen() {
    let f = Fixture::new().await;
    let rows = [f.row(0).await, f.row(0).await, f.row(0).await];
    f.hold(&[HoldEntry { state: HoldState::Parked, ..waiting(rows[0]) }, waiting(rows[1])]).await;
    let s = |at: usize| rows[at].seq;
    assert_eq!(f.claim(|_| {}).await, [(s(1), "held"), (s(2), "fresh")]);
    assert_eq!(f.claim(|request| request.block_key = true).await, [(s(2), "blocked")]);
    f.client.execute("SELECT outbox.retry(ARRAY[$1::bigint])", &[&s(0)]).await.expect("retry");
    let all = [(s(0), "held"), (s(1), "held"), (s(2), "fresh")];
    assert_eq!(f.claim(|request| request.block_key = true).await, all, "a retried row goes first");
    f.client.execute("SELECT outbox.discard(ARRAY[$1::bigint])", &[&s(0)]).await.expect("discard");
    assert_eq!(f.claim(|request| request.block_key = true).await, all[1..], "a discarded row is in nobody's way");
}

#[tokio::test]
async fn a_claim_says_how_old_the_oldest_open_transaction_is() {
    let f = Fixture::new().await;
    let mut other = f.database.client().await;
    let open = other.transaction().await.expect("begin");
    let late =
        "INSERT INTO outbox.message (idempotency_key, topic, ordering_key) VALUES ('late', 't', $1) RETURNING seq";
    let late: i64 = open.query_one(late, &[&f.keys[0]]).await.expect("insert").get(0);
    let row = f.row(0).await;
    let horizon = f.session.horizon().await.expect("a horizon");
    assert!(horizon.last_seq >= row.seq);
    let page = f.page(|_| {}).await;
    assert_eq!(page.rows.len(), 1);
    assert!(page.snapshot_xmin <= horizon.xid, "the open transaction may still bring a lower number");
    open.commit().await.expect("commit");
    let page = f.page(|_| {}).await;
    assert_eq!(page.rows.iter().map(|row| row.id.seq).collect::<Vec<_>>(), [late, row.seq]);
    assert!(page.snapshot_xmin > horizon.xid);
    assert_eq!(f.session.last_seq().await.expect("the last number"), horizon.last_seq);
}
