//! Rows that the broker would close a channel or a connection over are refused before they are sent.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use outbox_core::{HeaderValue, Headers, Outcome, Publisher, Reason};

use crate::kit::{Broker, Rig, address, row, url};

fn impossible(outcome: &Outcome) -> Option<Reason> {
    match outcome {
        Outcome::Impossible { reason, .. } => Some(*reason),
        _ => None,
    }
}

/// Failures 34, 36 and 37: large headers and bodies. Just below the limit they go, above they are impossible, and
/// the connection survives all of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f34_f37_sizes_are_refused_and_the_connection_survives() {
    let broker = Broker::connect(&url()).await;
    let exchange = broker.exchange().await;
    let queue = broker.queue(&exchange, "#", &[]).await;
    let mut rig = Rig::up(&url(), |options| options.message_bytes_max = Some(1_000_000)).await;
    let to = address(&exchange, "k");
    let text = |bytes: usize| Headers(vec![("h".to_owned(), HeaderValue::Text("x".repeat(bytes)))]);
    let many = |count: usize| {
        let entry = |index: usize| (format!("h{index:06}"), HeaderValue::Number(index.to_string()));
        Headers((0..count).map(entry).collect())
    };
    for (headers, fits) in [
        (text(100_000), true),
        (many(7_000), true),
        (text(131_000), false),
        (text(140_000), false),
        (text(5_000_000), false),
        (many(8_000), false),
    ] {
        let mut row = row(1, "h");
        row.headers = headers;
        let outcome = rig.one(row, &to).await;
        assert_eq!(impossible(&outcome), (!fits).then_some(Reason::Size), "{outcome:?}");
        assert!(!fits || outcome == Outcome::Confirmed, "{outcome:?}");
    }
    // Up to the last byte that the check lets through the broker takes it too.
    let mut largest = 0;
    for bytes in 130_800..131_073 {
        let mut row = row(1, "border");
        row.headers = text(bytes);
        let outcome = rig.one(row, &to).await;
        assert!(outcome == Outcome::Confirmed || impossible(&outcome) == Some(Reason::Size), "{bytes}: {outcome:?}");
        if outcome == Outcome::Confirmed {
            assert!(largest == 0 || largest == bytes - 1, "the border is one line");
            largest = bytes;
        }
    }
    assert!(largest > 130_800);
    for (bytes, fits) in [(90_000, true), (200_000, true), (1_000_000, true), (1_000_001, false)] {
        let mut row = row(1, "b");
        row.payload = Some(Bytes::from(vec![b'x'; bytes]));
        let outcome = rig.one(row, &to).await;
        assert_eq!(impossible(&outcome), (!fits).then_some(Reason::Size), "{bytes}: {outcome:?}");
        if fits {
            assert_eq!(outcome, Outcome::Confirmed);
        }
    }
    assert!(!broker.ids(&queue).await.is_empty());
    assert_eq!(rig.counts.reconnected.load(Ordering::SeqCst), 0, "the connection survived");
    rig.publisher.stop(1_000).await;
}

/// Failures 41 and 42: names at their border, in bytes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f41_f42_names_at_their_border() {
    let broker = Broker::connect(&url()).await;
    let exchange = broker.exchange().await;
    let queue = broker.queue(&exchange, "#", &[]).await;
    let mut rig = Rig::up(&url(), |_| {}).await;
    for (name, fits) in [("x".repeat(255), true), ("x".repeat(256), false), ("ä".repeat(128), false)] {
        let outcome = rig.one(row(1, &name), &address(&exchange, "k")).await;
        assert_eq!(outcome == Outcome::Confirmed, fits, "{outcome:?}");
        assert_eq!(impossible(&outcome), (!fits).then_some(Reason::Name));
        let outcome = rig.one(row(1, "key"), &address(&exchange, &name)).await;
        assert_eq!(outcome == Outcome::Confirmed, fits, "{outcome:?}");
        let outcome = rig.one(row(1, "exchange"), &address(&name, "k")).await;
        let expected = if fits { None } else { Some(Reason::Name) };
        assert_eq!(impossible(&outcome), expected, "{outcome:?}");
        let mut named = row(1, "header");
        named.headers = Headers(vec![(name, HeaderValue::Bool(true))]);
        assert_eq!(rig.one(named, &address(&exchange, "k")).await == Outcome::Confirmed, fits);
    }
    for key in ["", " ", "a b", "/", "#", "*.x", "line\nbreak"] {
        let outcome = rig.one(row(1, "odd"), &address(&exchange, key)).await;
        assert_eq!(outcome, Outcome::Confirmed, "routing key {key:?}");
    }
    assert!(!broker.ids(&queue).await.is_empty());
    assert_eq!(rig.counts.reconnected.load(Ordering::SeqCst), 0, "the connection survived");
    rig.publisher.stop(1_000).await;
}
