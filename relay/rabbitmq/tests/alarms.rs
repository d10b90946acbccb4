//! A frozen broker and a memory alarm. These need a node of their own.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use outbox_core::{BackoffPolicy, Link, Outcome, Publisher};

use crate::kit::{Broker, Rig, address, row, url};
use crate::node::Node;

/// The node is frozen or starved for one test at a time.
static NODE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// Failures 12 and 51: the broker stands still for longer than the time-out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "freezes its broker"]
async fn f12_f51_a_frozen_broker_is_unknown_and_comes_back() {
    let _alone = NODE.lock().await;
    let node = Node::own();
    let broker = Broker::connect(&url()).await;
    let exchange = broker.exchange().await;
    let queue = broker.queue(&exchange, "#", &[]).await;
    let mut rig = Rig::up(&url(), |options| {
        options.confirm_timeout_ms = 4_000;
        options.connect_timeout_ms = 2_000;
        options.reconnect = BackoffPolicy { initial_ms: 50, max_ms: 500 };
    })
    .await;
    let to = Arc::new(address(&exchange, "k"));
    for seq in 0..2 {
        assert_eq!(rig.one(row(seq, &format!("before:{seq}")), &to).await, Outcome::Confirmed);
    }
    let frozen = node.freeze().await;
    let started = Instant::now();
    for seq in 0..500 {
        rig.publish(&Arc::new(row(seq, &seq.to_string())), &to);
    }
    let answers = rig.answers(500).await;
    let waited = started.elapsed();
    assert!(waited >= Duration::from_millis(3_900) && waited < Duration::from_secs(30), "{waited:?}");
    assert!(answers.values().all(|outcome| matches!(outcome, Outcome::Unknown { .. } | Outcome::NotSent)));
    rig.link(|link| matches!(link, Link::Down { .. })).await;
    assert_eq!(rig.one(row(1, "meanwhile"), &to).await, Outcome::NotSent);
    frozen.thaw().await;
    rig.link(Link::is_up).await;
    assert_eq!(rig.one(row(1, "after"), &to).await, Outcome::Confirmed);
    let first = broker.ids(&queue).await;
    assert!(!first.contains_key("meanwhile"));
    assert!(first.values().all(|count| *count == 1), "at most one copy of the window");
    assert_eq!(rig.one(row(2, "later"), &to).await, Outcome::Confirmed);
    assert_eq!(broker.order(&queue).await, ["later"], "nothing of the old window comes after the new connection works");
    rig.publisher.stop(1_000).await;
}

/// Failures 24, 52, 53: under a memory alarm publishing pauses visibly, a stop keeps its grace, and after the alarm
/// all goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "starves its broker"]
async fn f52_f53_a_memory_alarm_pauses_and_stops_within_the_grace() {
    let _alone = NODE.lock().await;
    let node = Node::own();
    let broker = Broker::connect(&url()).await;
    let exchange = broker.exchange().await;
    let queue = broker.queue(&exchange, "#", &[]).await;
    let change = |options: &mut outbox_rabbitmq::RabbitmqOptions| {
        options.confirm_timeout_ms = 4_000;
        options.reconnect = BackoffPolicy { initial_ms: 50, max_ms: 500 };
    };
    let mut rig = Rig::up(&url(), change).await;
    let mut second = Rig::up(&url(), |options| options.confirm_timeout_ms = 30_000).await;
    let to = Arc::new(address(&exchange, "k"));
    assert_eq!(rig.one(row(0, "before"), &to).await, Outcome::Confirmed);
    assert_eq!(second.one(row(0, "before too"), &to).await, Outcome::Confirmed);
    node.raise_alarm().await;
    // The broker blocks a connection at its first publication under the alarm.
    rig.publish(&Arc::new(row(1, "hangs")), &to);
    rig.link(|link| matches!(link, Link::Blocked { .. })).await;
    assert!(rig.counts.blocked.load(Ordering::SeqCst) >= 1);
    assert_eq!(rig.one(row(2, "waits"), &to).await, Outcome::NotSent);
    let outcome = rig.answers(1).await.remove(&1).expect("answered by the deadline");
    assert!(matches!(outcome, Outcome::Unknown { .. } | Outcome::Confirmed), "{outcome:?}");
    second.publish(&Arc::new(row(1, "hangs too")), &to);
    second.link(|link| matches!(link, Link::Blocked { .. })).await;
    let started = Instant::now();
    second.publisher.stop(1_000).await;
    assert!(started.elapsed() < Duration::from_secs(15), "{:?}", started.elapsed());
    let outcome = second.answers(1).await.remove(&1).expect("answered");
    assert!(matches!(outcome, Outcome::Unknown { .. } | Outcome::Confirmed), "{outcome:?}");
    node.clear_alarm().await;
    rig.link(Link::is_up).await;
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        match rig.one(row(3, "after"), &to).await {
            Outcome::Confirmed => break,
            other => assert!(Instant::now() < deadline, "{other:?}"),
        }
        rig.link(Link::is_up).await;
    }
    let ids = broker.ids(&queue).await;
    assert!(!ids.contains_key("waits"), "a row that was not sent did not arrive");
    rig.publisher.stop(1_000).await;
}
