//! How fast the bare adapter is beside bare lapin with the same window. Ignored: it measures, it checks little.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use futures_util::future::join_all;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions, QueueDeleteOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Connection, ConnectionProperties};
use outbox_core::{Outcome, Publisher};

use crate::kit::{Broker, Random, Rig, address, row, short, unique, url};

const ROWS: i64 = 200_000;
const WINDOW: usize = 500;
const IN_FLIGHT: i64 = 2_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement; run it alone, with --release"]
async fn adapter_beside_bare_lapin() {
    let broker = Broker::connect(&url()).await;
    for round in 0..3 {
        for contender in ["lapin, 2 channels", "adapter, 2 channels", "adapter, 4 channels"] {
            let queue = quorum_queue(&broker).await;
            let (rate, cpu) = match contender {
                "lapin, 2 channels" => bare(&queue).await,
                "adapter, 2 channels" => adapter(&queue, 2).await,
                _ => adapter(&queue, 4).await,
            };
            eprintln!("round {round}: {contender}: {rate:.0}/s, {cpu:.1} CPU-s/M");
            drop_queue(&broker, &queue).await;
        }
    }
}

async fn quorum_queue(broker: &Broker) -> String {
    let name = unique("quorum");
    let mut arguments = FieldTable::default();
    arguments.insert(short("x-queue-type"), AMQPValue::LongString("quorum".into()));
    let options = QueueDeclareOptions { durable: true, ..Default::default() };
    broker.channel.queue_declare(short(&name), options, arguments).await.expect("declared");
    name
}

async fn drop_queue(broker: &Broker, queue: &str) {
    broker.channel.queue_delete(short(queue), QueueDeleteOptions::default()).await.expect("deleted");
}

fn payload(random: &mut Random) -> Bytes {
    Bytes::from((0..256).map(|_| u8::try_from(random.below(256)).expect("fits")).collect::<Vec<_>>())
}

async fn adapter(queue: &str, channels: usize) -> (f64, f64) {
    let mut random = Random::seeded();
    let body = payload(&mut random);
    let mut rig = Rig::up(&url(), |options| options.channels = channels).await;
    let to = Arc::new(address("", queue));
    let rows: Vec<_> = (0..ROWS)
        .map(|seq| {
            let mut row = row(seq, &format!("order:{seq}"));
            row.payload = Some(body.clone());
            row.ordering_key = Some(format!("key {}", seq % 1_000).into());
            Arc::new(row)
        })
        .collect();
    let (started, cpu) = (Instant::now(), cpu_seconds());
    let mut next = rows.iter();
    for row in next.by_ref().take(usize::try_from(IN_FLIGHT).expect("fits")) {
        rig.publish(row, &to);
    }
    let mut confirmed = 0;
    while confirmed < ROWS {
        for answer in rig.some_answers().await {
            assert_eq!(answer.outcome, Outcome::Confirmed);
            confirmed += 1;
            if let Some(row) = next.next() {
                rig.publish(row, &to);
            }
        }
    }
    let rates = rates(started, cpu);
    rig.publisher.stop(1_000).await;
    rates
}

async fn bare(queue: &str) -> (f64, f64) {
    let mut random = Random::seeded();
    let body = payload(&mut random);
    let connection = Connection::connect(&url(), ConnectionProperties::default()).await.expect("connected");
    let (started, cpu) = (Instant::now(), cpu_seconds());
    let channels = (0..2).map(|index| {
        let (connection, body) = (&connection, &body);
        async move {
            let channel = connection.create_channel().await.expect("a channel");
            channel.confirm_select(ConfirmSelectOptions::default()).await.expect("confirms");
            let mut seq = index;
            while seq < ROWS {
                let window = (0..WINDOW).map_while(|_| {
                    let id = format!("order:{seq}");
                    seq += 2;
                    let properties = properties(&id, seq % 1_000);
                    let options = BasicPublishOptions { mandatory: true, immediate: false };
                    (seq - 2 < ROWS).then(|| channel.basic_publish(short(""), short(queue), options, body, properties))
                });
                let confirms = join_all(window).await.into_iter().map(|confirm| confirm.expect("sent"));
                for confirm in join_all(confirms).await {
                    assert!(confirm.expect("confirmed").is_ack());
                }
            }
        }
    });
    join_all(channels).await;
    let rates = rates(started, cpu);
    // lapin refuses a close while its dropped channels are still closing; the process ends either way.
    let _ = connection.close(200, short("done")).await;
    rates
}

/// What the adapter sends too, so that both do the same work.
fn properties(id: &str, key: i64) -> BasicProperties {
    let mut headers = FieldTable::default();
    headers.insert(short("ordering-key"), AMQPValue::LongString(format!("key {key}").into()));
    BasicProperties::default()
        .with_message_id(short(id))
        .with_content_type(short("application/json"))
        .with_app_id(short("outbox-relay"))
        .with_timestamp(1_700_000_000)
        .with_delivery_mode(2)
        .with_headers(headers)
}

#[expect(clippy::cast_precision_loss, reason = "a rate for human eyes")]
fn rates(started: Instant, cpu: f64) -> (f64, f64) {
    let rows = ROWS as f64;
    (rows / started.elapsed().as_secs_f64(), (cpu_seconds() - cpu) / rows * 1e6)
}

/// User and system time of this process, from the kernel's hundredths of seconds.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("Linux");
    let fields: Vec<&str> = stat.rsplit_once(") ").expect("a name").1.split(' ').collect();
    let ticks = |index: usize| fields[index].parse::<f64>().expect("a number");
    (ticks(11) + ticks(12)) / 100.0
}
