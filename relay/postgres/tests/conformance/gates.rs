//! Breakers as a claim sees them: shut gates and probes.

use crate::kit::{Fixture, gated, waiting};
use outbox_core::{ClaimRequest, HoldEntry, HoldState};

fn gates(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

#[tokio::test]
async fn a_shut_gate_keeps_its_rows_and_no_others() {
    let f = Fixture::new().await;
    let rows = [f.row(0).await, f.row(1).await, f.row(2).await];
    f.hold(&[gated(rows[0], &["rabbitmq", "rabbitmq/x"]), gated(rows[1], &["kafka", "kafka/t"])]).await;
    let shut = f.claim(|request| request.open_gates = gates(&["rabbitmq/x"])).await;
    assert_eq!(shut, [(rows[1].seq, "held"), (rows[2].seq, "fresh")]);
    let both = f.claim(|request| request.open_gates = gates(&["rabbitmq", "kafka/t"])).await;
    assert_eq!(both, [(rows[2].seq, "fresh")]);
}

#[tokio::test]
async fn each_gate_gives_one_probe_the_lowest_of_its_key() {
    let f = Fixture::new().await;
    let mut rows = Vec::new();
    for key in [0, 0, 1, 2, 3] {
        rows.push(f.row(key).await);
    }
    let a = |at: usize| gated(rows[at], &["a"]);
    f.hold(&[a(1), a(2), gated(rows[3], &["b"]), gated(rows[4], &["a", "b"])]).await;
    f.hold(&[HoldEntry { delay_ms: Some(60_000), ..waiting(rows[0]) }]).await;
    let probe = |request: &mut ClaimRequest| request.probe_gates = gates(&["a", "b"]);
    let s = |at: usize| rows[at].seq;
    assert_eq!(f.claim(probe).await, [(s(2), "probe"), (s(3), "probe")], "row 1 is not the first of its key");
    let one = |request: &mut ClaimRequest| {
        request.probe_gates = gates(&["a"]);
        request.open_gates = gates(&["b"]);
        request.exclude = vec![rows[2].seq];
    };
    assert_eq!(f.claim(one).await, [], "the last row's other gate stays shut");
}

#[tokio::test]
async fn a_probe_may_have_been_noted_with_another_reason() {
    let f = Fixture::new().await;
    let rows = [f.row(0).await, f.row(0).await];
    f.hold(&[
        HoldEntry { state: HoldState::Parked, ..gated(rows[0], &["a"]) },
        HoldEntry { reason: outbox_core::Reason::Behind, ..gated(rows[1], &["a"]) },
    ])
    .await;
    let probe = |request: &mut ClaimRequest| request.probe_gates = gates(&["a"]);
    assert_eq!(f.claim(probe).await, [(rows[1].seq, "probe")]);
    let blocking = |request: &mut ClaimRequest| {
        request.probe_gates = gates(&["a"]);
        request.block_key = true;
    };
    assert_eq!(f.claim(blocking).await, []);
}

#[tokio::test]
async fn behind_a_probe_the_key_waits() {
    let f = Fixture::new().await;
    let rows = [f.row(0).await, f.row(0).await, f.row(0).await];
    f.hold(&[gated(rows[0], &["a"]), waiting(rows[1])]).await;
    let found = f.claim(|request| request.probe_gates = gates(&["a"])).await;
    assert_eq!(found, [(rows[0].seq, "probe"), (rows[2].seq, "blocked")]);
}
