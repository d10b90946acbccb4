//! Failure 73: a call that is dropped anywhere leaves no transaction open and no wrong answer for the next one.

use std::time::Duration;

use outbox_core::{Fenced, MarkOrder, RowId, Session as _};

use crate::kit::{Fixture, waiting};

const CALLS: u64 = 1_000;

/// One of the session's calls, dropped unless it is done within a random time. A lane never marks a row whose hold is
/// under way, so the two are about different rows.
async fn dropped(f: &Fixture, random: &mut fastrand::Rng, [sent, held]: [RowId; 2]) {
    let (which, within) = (random.u8(..6), Duration::from_micros(random.u64(..1_500)));
    let call = async {
        match which {
            0 => drop(f.session.claim(f.request()).await.expect("a claim")),
            1 => drop(f.session.mark(&[MarkOrder { lease: f.lease, rows: vec![sent] }]).await.expect("a mark")),
            2 => assert_eq!(f.session.hold(f.lease, &[waiting(held)]).await.expect("a hold"), Fenced::Done),
            3 => drop(f.session.heartbeat(&[f.lease]).await.expect("a heartbeat")),
            4 => drop(f.session.horizon().await.expect("a horizon")),
            _ => assert!(f.session.prune(3_600).await.is_ok()),
        }
    };
    // Whether it was done or dropped makes no difference to what follows.
    let _ = tokio::time::timeout(within, call).await;
}

#[tokio::test]
async fn f73_calls_that_are_dropped_anywhere_leave_no_transaction_behind() {
    let seed = fastrand::u64(..);
    eprintln!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let f = Fixture::new().await;
    for round in 0..CALLS / 20 {
        let rows = [f.row(0).await, f.row(1).await];
        for _ in 0..20 {
            dropped(&f, &mut random, rows).await;
        }
        // The statements of dropped calls run to their end, before the next on their connection. Then all is as if
        // they had been waited for.
        f.session.hold(f.lease, &[]).await.expect("a hold");
        f.session.heartbeat(&[f.lease]).await.expect("a heartbeat");
        f.session.claim(f.request()).await.expect("a claim");
        assert!(f.mark(&rows).await.is_empty(), "round {round}");
        for row in rows {
            assert_eq!(f.state(row).await, "sent", "round {round}");
        }
        let open = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
                    AND pid <> pg_backend_pid() AND state LIKE 'idle in transaction%'";
        assert_eq!(f.count(open).await, 0, "round {round}: a transaction was left open");
    }
    assert_eq!(f.count("SELECT count(*) FROM outbox.held").await, 0, "a row is sent and waits");
    assert_eq!(f.claim(|_| {}).await, []);
}
