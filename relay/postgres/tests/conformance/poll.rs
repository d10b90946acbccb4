//! The poll for idle lanes says that a lane has work exactly when a claim would bring some.

use crate::kit::{Fixture, LANE, waiting};
use outbox_core::{HoldEntry, HoldState, Position, RowId};

const ROUNDS: u64 = 30;

#[tokio::test]
async fn the_poll_looks_past_what_is_in_memory_and_below_low() {
    let f = Fixture::new().await;
    assert!(!f.poll(|_| {}).await);
    let row = f.row(0).await;
    assert!(f.poll(|_| {}).await);
    assert!(!f.poll(|request| request.exclude = vec![row.seq]).await);
    assert!(!f.poll(|request| request.positions = vec![Position { lane: LANE, low: row.seq }]).await);
    assert!(!f.poll(|request| request.positions = vec![Position { lane: LANE + 1, low: 0 }]).await);
    f.wait(row).await;
    assert!(f.poll(|_| {}).await);
    assert!(!f.poll(|request| request.with_held = false).await);
    f.delayed(1, 60_000).await;
    assert!(!f.poll(|request| request.exclude = vec![row.seq]).await, "not due yet");
}

#[tokio::test]
async fn poll_and_claim_agree() {
    let f = Fixture::new().await;
    let seed = fastrand::u64(..);
    let mut random = fastrand::Rng::with_seed(seed);
    for round in 0..ROUNDS {
        let rows = random_rows(&f, &mut random).await;
        for _ in 0..4 {
            let low = random.choice(&rows).map_or(0, |row| row.seq) * random.i64(0..2);
            let gates: Vec<String> = ["a", "b"].into_iter().filter(|_| random.bool()).map(str::to_owned).collect();
            let (with_held, block_key, probing) = (random.u8(0..4) != 0, random.bool(), random.bool());
            // A gate whose probe is due is not shut for the poll, and one to probe for the claim. The poll cannot
            // know that a row in memory stands before the probe of its key; it then asks once too often.
            let in_memory = rows.iter().filter(|_| !probing && random.u8(0..4) == 0);
            let exclude: Vec<i64> = in_memory.map(|row| row.seq).collect();
            let (shut, probes) = if probing { (Vec::new(), gates) } else { (gates, Vec::new()) };
            let polled = f
                .poll(|request| {
                    request.positions = vec![Position { lane: LANE, low }];
                    (request.exclude, request.with_held) = (exclude.clone(), with_held);
                    (request.open_gates, request.block_key) = (shut.clone(), block_key);
                })
                .await;
            let claimed = f
                .claim(|request| {
                    (request.low, request.exclude, request.with_held) = (low, exclude.clone(), with_held);
                    (request.open_gates, request.probe_gates) = (shut.clone(), probes.clone());
                    request.block_key = block_key;
                })
                .await;
            assert_eq!(
                polled,
                !claimed.is_empty(),
                "seed {seed}, round {round}: low {low}, in memory {exclude:?}, held {with_held}, shut {shut:?}, \
                 probes {probes:?}, block_key {block_key}: a claim brings {claimed:?}"
            );
        }
        f.client.batch_execute("DELETE FROM outbox.held; DELETE FROM outbox.message").await.expect("clean");
    }
}

async fn random_rows(f: &Fixture, random: &mut fastrand::Rng) -> Vec<RowId> {
    let mut rows = Vec::new();
    for _ in 0..random.usize(1..6) {
        let key = random.usize(..2);
        rows.push(match random.u8(0..6) {
            0 => f.delayed(key, 60_000).await,
            1 => f.delayed(key, -1).await,
            _ => f.row(key).await,
        });
    }
    let mut entries = Vec::new();
    for row in &rows {
        if random.u8(0..3) != 0 {
            let state = if random.u8(0..4) == 0 { HoldState::Parked } else { HoldState::Waiting };
            let delay_ms = (random.u8(0..4) == 0).then_some(60_000);
            let gates = ["a", "b"].into_iter().filter(|_| random.u8(0..3) == 0).map(str::to_owned).collect();
            entries.push(HoldEntry { state, delay_ms, gates, ..waiting(*row) });
        }
    }
    f.hold(&entries).await;
    let sent: Vec<RowId> = rows.iter().copied().filter(|_| random.u8(0..5) == 0).collect();
    f.mark(&sent).await;
    rows
}
