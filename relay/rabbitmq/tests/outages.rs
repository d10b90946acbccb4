//! Lost, silent and refused connections: unknown is said only of what may have left, and only once it is dead.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::Bytes;
use outbox_core::{BackoffPolicy, Link, Outcome, Publisher, Row};
use outbox_rabbitmq::RabbitmqOptions;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};

use crate::kit::{Broker, Rig, address, row, unique, url};
use crate::proxy::{Mode, Proxy};

fn quick(options: &mut RabbitmqOptions) {
    options.confirm_timeout_ms = 4_000;
    options.connect_timeout_ms = 2_000;
    options.reconnect = BackoffPolicy { initial_ms: 50, max_ms: 200 };
}

/// Failures 23, 50, 51: the broker takes everything and its replies vanish. The rows are unknown after the
/// time-out, by then the connection is gone, and the next one works.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f23_f50_swallowed_replies_end_in_unknown_and_a_new_connection() {
    let broker = Broker::connect(&url()).await;
    let exchange = broker.exchange().await;
    let queue = broker.queue(&exchange, "#", &[]).await;
    let proxy = Proxy::start(&url()).await;
    let change = |options: &mut RabbitmqOptions| {
        quick(options);
        // A second one would ask for the exchange, and no answer to that ends the connection too.
        options.channels = 1;
    };
    let mut rig = Rig::up(&proxy.url, change).await;
    let to = Arc::new(address(&exchange, "k"));
    assert_eq!(rig.one(row(0, "before"), &to).await, Outcome::Confirmed);
    proxy.set(Mode::SwallowReplies);
    let started = Instant::now();
    for seq in 0..100 {
        rig.publish(&Arc::new(row(seq, &seq.to_string())), &to);
    }
    let answers = rig.answers(100).await;
    assert!(started.elapsed() < Duration::from_secs(30), "bounded: {:?}", started.elapsed());
    for (seq, outcome) in &answers {
        assert!(matches!(outcome, Outcome::Unknown { .. } | Outcome::NotSent), "row {seq}: {outcome:?}");
    }
    assert!(answers.values().any(|outcome| matches!(outcome, Outcome::Unknown { .. })));
    proxy.set(Mode::Pass);
    rig.link(Link::is_up).await;
    assert_eq!(rig.one(row(1, "after"), &to).await, Outcome::Confirmed);
    assert!(rig.counts.reconnected.load(Ordering::SeqCst) >= 1);
    let ids = broker.ids(&queue).await;
    for (seq, outcome) in answers {
        let there = ids.contains_key(&seq.to_string());
        assert!(outcome != Outcome::NotSent || !there, "row {seq} was said not to have left");
    }
    rig.publisher.stop(1_000).await;
}

/// Failures 23 and 24: once a row is said to be unknown, nothing of its window leaves this process any more,
/// although lapin had it queued: the path thaws, and only what lay in kernel buffers comes through. On one thread, so
/// that the writer finds all rows at once and they make one window.
#[tokio::test]
async fn f24_nothing_leaves_after_unknown() {
    const ROWS: i64 = 60;
    const BODY: usize = 1_000_000;
    let broker = Broker::connect(&url()).await;
    let exchange = broker.exchange().await;
    let queue = broker.queue(&exchange, "#", &[]).await;
    let proxy = Proxy::start(&url()).await;
    let change = |options: &mut RabbitmqOptions| {
        quick(options);
        options.channels = 1;
        options.window_bytes_max = 100_000_000;
    };
    let mut rig = Rig::up(&proxy.url, change).await;
    let to = Arc::new(address(&exchange, "k"));
    let body = Bytes::from(vec![b'x'; BODY]);
    // A body of this size was taken once; else the first row would go alone and the others stay.
    let large = |seq: i64, id: &str| Row { payload: Some(body.clone()), ..row(seq, id) };
    assert_eq!(rig.one(large(0, "before"), &to).await, Outcome::Confirmed);
    let before = proxy.uploaded.load(Ordering::SeqCst);
    proxy.set(Mode::Freeze);
    for seq in 0..ROWS {
        rig.publish(&Arc::new(large(seq, &seq.to_string())), &to);
    }
    let answers = rig.answers(60).await;
    assert!(answers.values().all(|outcome| matches!(outcome, Outcome::Unknown { .. })), "one window: {answers:?}");
    let ended = proxy.ended.load(Ordering::SeqCst);
    proxy.set(Mode::Pass);
    tokio::time::timeout(Duration::from_secs(60), async {
        while proxy.ended.load(Ordering::SeqCst) == ended {
            tokio::task::yield_now().await;
        }
    })
    .await
    .expect("the old connection was dead when the rows were said to be unknown");
    rig.link(Link::is_up).await;
    let leaked = proxy.uploaded.load(Ordering::SeqCst) - before;
    assert!(leaked < 20_000_000, "{leaked} of 60,000,000 bytes came through after the window was given up");
    assert_eq!(rig.one(row(1, "after"), &to).await, Outcome::Confirmed);
    let ids = broker.ids(&queue).await;
    assert!(ids.len() < 22, "{} messages", ids.len());
    rig.publisher.stop(1_000).await;
}

/// Failure 65: the link is cut over and over; rows are never lost between the answers, and it comes back by itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f65_cuts_are_survived_without_a_loss() {
    let broker = Broker::connect(&url()).await;
    let exchange = broker.exchange().await;
    let queue = broker.queue(&exchange, "#", &[]).await;
    let proxy = Proxy::start(&url()).await;
    let change = |options: &mut RabbitmqOptions| {
        quick(options);
        // A second channel would ask for the exchange first.
        options.channels = 1;
    };
    let mut rig = Rig::up(&proxy.url, change).await;
    let to = Arc::new(address(&exchange, "k"));
    let mut confirmed = std::collections::HashSet::new();
    for round in 0..10 {
        // In every second round some rows have left and have not arrived.
        let frozen = round % 2 == 1;
        if frozen {
            let id = format!("{round}:first");
            assert_eq!(rig.one(row(0, &id), &to).await, Outcome::Confirmed);
            confirmed.insert(id);
            proxy.set(Mode::Freeze);
        }
        let before = proxy.uploaded.load(Ordering::SeqCst);
        for seq in 0..500 {
            rig.publish(&Arc::new(row(seq, &format!("{round}:{seq}"))), &to);
        }
        let leaves = async {
            // A row, unless a heartbeat or the close of a channel met the freeze.
            while frozen && proxy.uploaded.load(Ordering::SeqCst) == before {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), leaves).await.expect("a row leaves");
        proxy.set(Mode::Cut);
        for (seq, outcome) in rig.answers(500).await {
            match outcome {
                Outcome::Confirmed => assert!(confirmed.insert(format!("{round}:{seq}"))),
                Outcome::NotSent | Outcome::Unknown { .. } => {}
                other => panic!("row {seq}: {other:?}"),
            }
        }
        rig.link(|link| matches!(link, Link::Down { .. })).await;
        proxy.set(Mode::Pass);
        rig.link(Link::is_up).await;
    }
    let ids = broker.ids(&queue).await;
    for id in &confirmed {
        assert_eq!(ids.get(id), Some(&1), "{id} was confirmed");
    }
    assert_eq!(rig.one(row(1, "after"), &to).await, Outcome::Confirmed);
    rig.publisher.stop(1_000).await;
}

/// Failure 65: a link that breaks right after each confirm is not waited for longer and longer. Nine waits that double
/// from 200 ms on are 100 s together, nine first ones 2 s.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f65_a_link_on_which_rows_flow_comes_back_soon_each_time() {
    let broker = Broker::connect(&url()).await;
    let exchange = broker.exchange().await;
    broker.queue(&exchange, "#", &[]).await;
    let proxy = Proxy::start(&url()).await;
    let mut rig = Rig::up(&proxy.url, |options| options.channels = 1).await;
    let to = address(&exchange, "k");
    let mut away = Duration::ZERO;
    for seq in 0..9 {
        assert_eq!(rig.one(row(seq, &seq.to_string()), &to).await, Outcome::Confirmed);
        proxy.set(Mode::Cut);
        rig.link(|link| matches!(link, Link::Down { .. })).await;
        proxy.set(Mode::Pass);
        let since = Instant::now();
        rig.link(Link::is_up).await;
        away += since.elapsed();
    }
    assert!(away < Duration::from_secs(50), "waited {away:?}");
    rig.publisher.stop(1_000).await;
}

/// Rows handed over while the broker is away go straight back, and stopping does not wait for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_absent_broker_means_not_sent() {
    let mut rig = Rig::start("amqp://127.0.0.1:9/%2f", quick);
    let down = rig.link(|link| matches!(link, Link::Down { detail } if detail.contains("cannot connect"))).await;
    assert!(matches!(down, Link::Down { .. }));
    assert_eq!(rig.one(row(1, "1"), &address("amq.topic", "k")).await, Outcome::NotSent);
    assert!(rig.publisher.probe(&address("amq.topic", "k")).await.is_err());
    let started = Instant::now();
    rig.publisher.stop(60_000).await;
    assert!(started.elapsed() < Duration::from_secs(30));
}

/// A refused login and a missing virtual host are told apart from an absent broker, without the password.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusals_are_told() {
    let authority = url().split_once('@').expect("credentials").1.to_owned();
    let host = authority.split_once('/').expect("a virtual host").0.to_owned();
    let real = url();
    let credentials = real.split_once("://").expect("a URL").1.split_once('@').expect("credentials").0.to_owned();
    for bad in
        [format!("amqp://nobody:hunter2@{authority}"), format!("amqp://{credentials}@{host}/{}", unique("vhost"))]
    {
        let rig = Rig::start(&bad, quick);
        let link = rig.link(|link| matches!(link, Link::Refused { .. })).await;
        let Link::Refused { detail } = link else { panic!("{link:?}") };
        assert!(detail.contains("rabbitmq.url") && !detail.contains("hunter2"), "{detail}");
        rig.publisher.stop(1_000).await;
    }
}

/// Failure 19: a stop waits for what was written and sends nothing more, and one that meets a silent broker keeps its
/// grace.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopping_in_flight_answers_everything_within_the_grace() {
    let broker = Broker::connect(&url()).await;
    let exchange = broker.exchange().await;
    let queue = broker.queue(&exchange, "#", &[]).await;
    let proxy = Proxy::start(&url()).await;
    let mut rig = Rig::up(&proxy.url, |_| {}).await;
    let to = Arc::new(address(&exchange, "k"));
    assert_eq!(rig.one(row(0, "before"), &to).await, Outcome::Confirmed);
    for seq in 0..2_000 {
        rig.publish(&Arc::new(row(seq, &seq.to_string())), &to);
    }
    rig.publisher.stop(10_000).await;
    let answers = rig.answers(2_000).await;
    let ids = broker.ids(&queue).await;
    for (seq, outcome) in answers {
        let count = ids.get(&seq.to_string()).copied().unwrap_or(0);
        match outcome {
            Outcome::Confirmed => assert_eq!(count, 1, "row {seq}"),
            Outcome::NotSent => assert_eq!(count, 0, "row {seq}"),
            other => panic!("row {seq}: {other:?}"),
        }
    }
    let mut rig = Rig::up(&proxy.url, quick).await;
    assert_eq!(rig.one(row(0, "again"), &to).await, Outcome::Confirmed);
    proxy.set(Mode::SwallowReplies);
    rig.publish(&Arc::new(row(1, "1")), &to);
    let started = Instant::now();
    rig.publisher.stop(300).await;
    assert!(started.elapsed() < Duration::from_secs(15), "{:?}", started.elapsed());
    let outcome = rig.answers(1).await.remove(&1).expect("answered");
    assert!(matches!(outcome, Outcome::Unknown { .. } | Outcome::NotSent), "{outcome:?}");
}

/// A broker that goes away within the handshake or while channels are opened, as one that restarts does: after its
/// first answer, its second, and so on, again and again. lapin does not notice each, and would wait out a deadline.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_end_before_the_link_is_up_is_noticed_at_once() {
    const BROKEN: usize = 30;
    let broker_url = url();
    let (before, after) = broker_url.split_once('@').expect("credentials");
    let (host, vhost) = after.split_once('/').expect("a virtual host");
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let way = format!("{before}@{}/{vhost}", listener.local_addr().expect("bound"));
    let host = host.to_owned();
    tokio::spawn(async move {
        for attempt in 1.. {
            let (mut client, _) = listener.accept().await.expect("a client");
            let mut server = TcpStream::connect(&host).await.expect("the broker listens");
            let _ = if attempt <= BROKEN {
                pass_answers(&mut client, &mut server, 1 + attempt % 6).await
            } else {
                copy_bidirectional(&mut client, &mut server).await.map(drop)
            };
        }
    });
    let rig = Rig::start(&way, |options| {
        quick(options);
        options.connect_timeout_ms = 600_000;
        options.reconnect = BackoffPolicy { initial_ms: 1, max_ms: 5 };
    });
    rig.link(Link::is_up).await;
    rig.publisher.stop(1_000).await;
}

/// Passes on so many of the server's answers; the connection ends with it.
async fn pass_answers(client: &mut TcpStream, server: &mut TcpStream, most: usize) -> std::io::Result<()> {
    let (mut up, mut down) = (vec![0; 8_192], vec![0; 8_192]);
    let mut answers = 0;
    while answers < most {
        tokio::select! {
            count = client.read(&mut up) => match count? {
                0 => break,
                count => server.write_all(&up[..count]).await?,
            },
            count = server.read(&mut down) => {
                client.write_all(&down[..count?]).await?;
                answers += 1;
            }
        }
    }
    Ok(())
}

/// A broker that goes away in an orderly way with a row under way: the row is unknown at once, not after the time-out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_orderly_end_with_a_row_under_way_is_noticed_at_once() {
    let broker = Broker::connect(&url()).await;
    let exchange = broker.exchange().await;
    broker.queue(&exchange, "#", &[]).await;
    let proxy = Proxy::start(&url()).await;
    let mut rig = Rig::up(&proxy.url, |options| options.confirm_timeout_ms = 600_000).await;
    let to = Arc::new(address(&exchange, "k"));
    assert_eq!(rig.one(row(0, "before"), &to).await, Outcome::Confirmed);
    proxy.set(Mode::SwallowReplies);
    let uploaded = proxy.uploaded.load(Ordering::SeqCst);
    // The close of the channel that asked for the exchange leaves after the answer, at any time: not these many bytes.
    let body = Bytes::from(vec![b'x'; 8_000]);
    rig.publish(&Arc::new(Row { payload: Some(body.clone()), ..row(1, "under way") }), &to);
    while proxy.uploaded.load(Ordering::SeqCst) < uploaded + body.len() {
        tokio::task::yield_now().await;
    }
    proxy.set(Mode::Cut);
    let outcome = &rig.answers(1).await[&1];
    assert!(matches!(outcome, Outcome::Unknown { .. }), "{outcome:?}");
    rig.publisher.stop(1_000).await;
}
