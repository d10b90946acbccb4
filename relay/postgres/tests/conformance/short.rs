//! The short claim of a lane where only fresh rows matter: it finds what the full one does, and notices in its own
//! snapshot when that is no longer so. The first claim of a session is a full one.

use crate::kit::Fixture;

#[tokio::test]
async fn it_finds_what_the_full_one_does_under_every_bound() {
    let full = Fixture::new().await;
    let mut rows = Vec::new();
    for bytes in [10, 500, 10, 2_000, 10] {
        rows.push(full.row_with(0, None, &"x".repeat(bytes)).await);
    }
    // The first claim opens the way for the short one; what follows is compared with what must come.
    assert_eq!(full.claim(|_| {}).await.len(), 5);
    for (rows_max, bytes_max, expected) in [(5, 10_000, 5), (3, 10_000, 3), (5, 11, 2), (5, 510, 2), (5, 1, 1)] {
        let page = full
            .page(|request| {
                request.rows_max = rows_max;
                request.bytes_max = bytes_max;
            })
            .await;
        assert_eq!(page.rows.len(), expected, "{rows_max} rows, {bytes_max} bytes");
        // A page as long as it may be counts as cut off.
        let whole_to = if expected == 5 && rows_max > 5 { i64::MAX } else { rows[expected - 1].seq };
        assert_eq!(page.whole_to, whole_to, "{rows_max} rows, {bytes_max} bytes");
    }
    let page = full.page(|request| request.low = rows[1].seq).await;
    assert_eq!((page.rows.len(), page.whole_to), (3, i64::MAX));
    let page = full.page(|request| request.exclude = vec![rows[0].seq, rows[4].seq]).await;
    assert_eq!(page.rows.iter().map(|row| row.id.seq).collect::<Vec<_>>(), [rows[1].seq, rows[2].seq, rows[3].seq]);
}

#[tokio::test]
async fn it_notices_whatever_came_into_the_way_since() {
    let f = Fixture::new().await;
    let rows = [f.row(0).await, f.row(1).await, f.row(2).await];
    assert_eq!(f.claim(|_| {}).await.len(), 3);

    f.wait(rows[0]).await;
    assert_eq!(f.claim(|_| {}).await, [(rows[0].seq, "held"), (rows[1].seq, "fresh"), (rows[2].seq, "fresh")]);
    f.client.execute("DELETE FROM outbox.held", &[]).await.expect("empty the waiting room");
    assert_eq!(f.claim(|_| {}).await.len(), 3, "the full claim that finds the lane quiet again");

    f.park(rows[1]).await;
    assert_eq!(f.claim(|_| {}).await, [(rows[0].seq, "fresh"), (rows[2].seq, "fresh")]);
    assert_eq!(f.claim(|request| request.low = rows[1].seq).await, [(rows[2].seq, "fresh")]);
    f.client.execute("SELECT outbox.discard(ARRAY[$1::bigint])", &[&rows[1].seq]).await.expect("discard");
    assert_eq!(f.claim(|request| request.low = rows[0].seq).await, [(rows[2].seq, "fresh")]);
    f.client.execute("DELETE FROM outbox.held", &[]).await.expect("empty the waiting room");
    assert_eq!(f.claim(|_| {}).await.len(), 3);

    let due = f.delayed(3, -1).await;
    assert_eq!(f.claim(|request| request.low = rows[2].seq).await, [(due.seq, "delayed")]);
}
