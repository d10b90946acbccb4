//! Missing and forbidden addresses: exactly their rows are told so, and no neighbour pays.

use std::collections::HashSet;
use std::sync::Arc;

use lapin::ExchangeKind;
use lapin::options::{ExchangeDeclareOptions, ExchangeDeleteOptions};
use lapin::types::FieldTable;
use outbox_core::{Outcome, Publisher, Reason, Scope};

use crate::kit::{Broker, Rig, address, row, short, unique, url};

/// Failures 18 and 38: one of a hundred rows goes to a missing exchange, ten times over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f18_f38_a_missing_exchange_harms_only_its_row() {
    let broker = Broker::connect(&url()).await;
    let exchange = broker.exchange().await;
    let queue = broker.queue(&exchange, "#", &[]).await;
    let mut rig = Rig::up(&url(), |_| {}).await;
    let good = Arc::new(address(&exchange, "k"));
    let missing = Arc::new(address(&unique("missing"), "k"));
    for pass in 0..10 {
        for seq in 0..100 {
            rig.publish(&Arc::new(row(seq, &format!("{pass}:{seq}"))), if seq == 50 { &missing } else { &good });
        }
        for (seq, outcome) in rig.answers(100).await {
            let away =
                matches!(outcome, Outcome::AddressAway { scope: Scope::Destination, reason: Reason::NoExchange, .. });
            assert_eq!(away, seq == 50, "pass {pass}, row {seq}: {outcome:?}");
            assert!(away || outcome == Outcome::Confirmed, "pass {pass}, row {seq}: {outcome:?}");
        }
    }
    let ids = broker.ids(&queue).await;
    assert_eq!(ids.len(), 990);
    assert!(ids.values().all(|count| *count == 1), "good rows arrive exactly once");
    broker.declare_exchange(&missing.destination, ExchangeDeclareOptions::default()).await;
    broker.bind(&queue, &missing.destination, "#").await;
    assert_eq!(rig.one(row(1, "after"), &missing).await, Outcome::Confirmed, "it goes once the exchange is there");
    rig.publisher.stop(1_000).await;
}

/// An exchange deleted under way closes the channel with all that is in flight. No row is lost, and the row of the
/// missing exchange is told apart. Failure 07: twenty closed channels later an unroutable row is still unroutable.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f07_twenty_channel_errors_leave_confirms_on() {
    let broker = Broker::connect(&url()).await;
    let exchange = broker.exchange().await;
    let queue = broker.queue(&exchange, "good", &[]).await;
    let mut rig = Rig::up(&url(), |options| options.channels = 1).await;
    let good = Arc::new(address(&exchange, "good"));
    let going = Arc::new(address(&unique("going"), "k"));
    let mut wanted = HashSet::new();
    for round in 0..20 {
        broker.declare_exchange(&going.destination, ExchangeDeclareOptions::default()).await;
        broker.bind(&queue, &going.destination, "#").await;
        assert_eq!(rig.one(row(1, &format!("{round}:first")), &going).await, Outcome::Confirmed);
        wanted.insert(format!("{round}:first"));
        let deleted = broker.channel.exchange_delete(short(&going.destination), ExchangeDeleteOptions::default());
        deleted.await.expect("deleted");
        for seq in 0..20 {
            rig.publish(&Arc::new(row(seq, &format!("{round}:{seq}"))), if seq == 10 { &going } else { &good });
        }
        for (seq, outcome) in rig.answers(20).await {
            match outcome {
                Outcome::AddressAway { reason: Reason::NoExchange, .. } => assert_eq!(seq, 10),
                Outcome::Confirmed => assert_ne!(seq, 10),
                other => panic!("round {round}, row {seq}: {other:?}"),
            }
            if seq != 10 {
                wanted.insert(format!("{round}:{seq}"));
            }
        }
    }
    let outcome = rig.one(row(1, "lost"), &address(&exchange, "lost")).await;
    assert!(matches!(outcome, Outcome::AddressAway { reason: Reason::Unroutable, .. }), "{outcome:?}");
    let ids = broker.ids(&queue).await;
    assert_eq!(ids.keys().cloned().collect::<HashSet<_>>(), wanted, "nothing is lost and nothing else came");
    assert_eq!(rig.counts.reconnected.load(std::sync::atomic::Ordering::SeqCst), 0, "the connection stayed");
    rig.publisher.stop(1_000).await;
}

/// An internal exchange refuses every publisher: its rows are away, its neighbours arrive exactly once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_access_harms_only_its_rows() {
    let broker = Broker::connect(&url()).await;
    let exchange = broker.exchange().await;
    let queue = broker.queue(&exchange, "#", &[]).await;
    let internal = unique("internal");
    let options = ExchangeDeclareOptions { internal: true, ..Default::default() };
    let declared =
        broker.channel.exchange_declare(short(&internal), ExchangeKind::Topic, options, FieldTable::default());
    declared.await.expect("declared");
    let mut rig = Rig::up(&url(), |_| {}).await;
    let good = Arc::new(address(&exchange, "k"));
    let refused = Arc::new(address(&internal, "k"));
    for pass in 0..5 {
        for seq in 0..100 {
            rig.publish(&Arc::new(row(seq, &format!("{pass}:{seq}"))), if seq % 10 == 5 { &refused } else { &good });
        }
        for (seq, outcome) in rig.answers(100).await {
            let away = matches!(outcome, Outcome::AddressAway { .. });
            assert_eq!(away, seq % 10 == 5, "pass {pass}, row {seq}: {outcome:?}");
            assert!(away || outcome == Outcome::Confirmed, "pass {pass}, row {seq}: {outcome:?}");
        }
    }
    let ids = broker.ids(&queue).await;
    assert_eq!(ids.len(), 450);
    assert!(ids.values().all(|count| *count == 1), "good rows arrive exactly once");
    rig.publisher.stop(1_000).await;
}

/// The default exchange leads to the queue named by the routing key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_default_exchange_works() {
    let broker = Broker::connect(&url()).await;
    let queue = broker.queue("amq.topic", &unique("unused"), &[]).await;
    let mut rig = Rig::up(&url(), |_| {}).await;
    assert_eq!(rig.one(row(1, "1"), &address("", &queue)).await, Outcome::Confirmed);
    let outcome = rig.one(row(2, "2"), &address("", "no-such-queue")).await;
    assert!(matches!(outcome, Outcome::AddressAway { reason: Reason::Unroutable, .. }), "{outcome:?}");
    rig.publisher.stop(1_000).await;
}

/// `probe` tells what is missing and what to do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn probes_answer() {
    let broker = Broker::connect(&url()).await;
    let exchange = broker.exchange().await;
    let queue = broker.queue(&exchange, "#", &[]).await;
    let rig = Rig::start(&url(), |_| {});
    assert_eq!(rig.publisher.probe(&address(&exchange, "k")).await, Ok(None));
    assert_eq!(rig.publisher.probe(&address("amq.topic", "k")).await, Ok(None));
    assert_eq!(rig.publisher.probe(&address("", &queue)).await, Ok(None));
    let missing = rig.publisher.probe(&address("no-such-exchange", "k")).await.expect("asked").expect("missing");
    assert!(missing.contains("declare"), "{missing}");
    let missing = rig.publisher.probe(&address("", "no-such-queue")).await.expect("asked").expect("missing");
    assert!(missing.contains("declare"), "{missing}");
    rig.publisher.stop(1_000).await;
}
