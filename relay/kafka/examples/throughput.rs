//! The adapter beside a bare rdkafka producer with the same settings: messages a second and CPU-seconds a
//! million, 256 random bytes, 1,000 keys, a bounded number in flight.
//!
//! `throughput BROKERS TOPIC bare|adapter ROWS IN_FLIGHT [KEY=VALUE]…`; the topic must exist. It measures and
//! asserts only that every row was confirmed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::Instant;

use bytes::Bytes;
use outbox_core::{
    Address, Clock, Headers, Link, NoObserver, Outcome, Outgoing, Publisher, Row, RowId, Sink, Ticket, Timestamp, TxId,
};
use outbox_kafka::{KafkaConfig, KafkaPublisher};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseRecord, DeliveryResult, ProducerContext, ThreadedProducer};
use rdkafka::{ClientConfig, ClientContext};

/// Rows of one refill; the relay's claims bring up to 500.
const PAGE: usize = 250;

struct Load {
    brokers: String,
    topic: String,
    rows: usize,
    in_flight: usize,
    properties: BTreeMap<String, String>,
}

#[tokio::main]
async fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [brokers, topic, what, rows, in_flight, properties @ ..] = &arguments[..] else {
        eprintln!("throughput BROKERS TOPIC bare|adapter ROWS IN_FLIGHT [KEY=VALUE]...");
        return;
    };
    let pairs = properties.iter().filter_map(|pair| pair.split_once('='));
    let load = Load {
        brokers: brokers.clone(),
        topic: topic.clone(),
        rows: rows.parse().expect("a number of rows"),
        in_flight: in_flight.parse().expect("a number in flight"),
        properties: pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect(),
    };
    let payloads = (0..1_000).map(|_| (0..256).map(|_| fastrand::u8(..)).collect::<Vec<u8>>().into()).collect();
    let mut latencies = match what.as_str() {
        "bare" => bare(&load, payloads),
        _ => adapter(&load, payloads).await,
    };
    latencies.sort_unstable();
    let at = |part: usize| latencies[(latencies.len() - 1) * part / 100];
    eprintln!("latency µs p50 {} p99 {}", at(50), at(99));
}

fn report(what: &str, rows: usize, started: Instant, cpu_before: f64) {
    let seconds = started.elapsed().as_secs_f64();
    #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
    let rows = rows as f64;
    eprintln!("{what}: {:.0}/s, {:.2} CPU-s/M", rows / seconds, (cpu_seconds() - cpu_before) / rows * 1e6);
}

/// User and system time of this process, in seconds.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("/proc");
    let ticks = stat.rsplit(')').next().expect("a name").split_whitespace().skip(11).take(2);
    ticks.map(|text| text.parse::<f64>().expect("a number")).sum::<f64>() / 100.0
}

struct Tell(Sender<usize>);

impl ClientContext for Tell {}

impl ProducerContext for Tell {
    type DeliveryOpaque = usize;

    fn delivery(&self, result: &DeliveryResult<'_>, row: usize) {
        assert!(result.is_ok(), "not delivered");
        let _ = self.0.send(row);
    }
}

fn bare(load: &Load, payloads: Vec<Bytes>) -> Vec<u128> {
    let (sender, receiver) = channel();
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", &load.brokers).set("enable.idempotence", "true").set("linger.ms", "1");
    config.set("partitioner", "murmur2_random");
    load.properties.iter().for_each(|(key, value)| {
        config.set(key, value);
    });
    let producer: ThreadedProducer<Tell> = config.create_with_context(Tell(sender)).expect("a producer");
    let send = |row: usize| {
        let id = format!("work:{row}");
        let headers = OwnedHeaders::new_with_capacity(2)
            .insert(Header { key: "id", value: Some(&id) })
            .insert(Header { key: "content-type", value: Some("application/json") });
        let key = format!("key-{}", row % 1_000);
        let record = BaseRecord::with_opaque_to(&load.topic, row).key(&key).headers(headers);
        producer.send(record.payload(&payloads[row % payloads.len()][..])).map_err(|(error, _)| error).expect("room");
    };
    send(0);
    receiver.recv().expect("a report");
    let (started, cpu) = (Instant::now(), cpu_seconds());
    let mut sent_at = Vec::with_capacity(load.rows);
    let mut latencies = Vec::with_capacity(load.rows);
    for row in 0..load.rows {
        if row - latencies.len() >= load.in_flight {
            let row: usize = receiver.recv().expect("a report");
            latencies.push(Instant::now().duration_since(sent_at[row]).as_micros());
        }
        sent_at.push(Instant::now());
        send(row);
    }
    while latencies.len() < load.rows {
        let row: usize = receiver.recv().expect("a report");
        latencies.push(Instant::now().duration_since(sent_at[row]).as_micros());
    }
    report("bare", load.rows, started, cpu);
    latencies
}

async fn adapter(load: &Load, payloads: Vec<Bytes>) -> Vec<u128> {
    let mut config = KafkaConfig::new(&load.brokers);
    config.properties.clone_from(&load.properties);
    config.in_flight_max = load.in_flight;
    let publisher = KafkaPublisher::start(config, Arc::new(NoObserver)).expect("a publisher");
    publisher.link().wait_for(Link::is_up).await.expect("a link");
    let address = Arc::new(Address { sink: Sink::Kafka, destination: load.topic.clone(), routing_key: String::new() });
    let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel();
    let lease_until = Clock.now().plus(600_000);
    let send = |seq: usize| {
        let number = i64::try_from(seq).expect("a number");
        let row = Row {
            id: RowId { seq: number, tx: TxId(1) },
            idempotency_key: format!("work:{seq}"),
            topic: "".into(),
            ordering_key: Some(format!("key-{}", seq % 1_000).into()),
            payload: Some(payloads[seq % payloads.len()].clone()),
            content_type: "application/json".into(),
            headers: Headers::default(),
            created_at: Timestamp(1_700_000_000_000_000),
            available_at: None,
            attempts: 0,
            held_since: None,
        };
        publisher.publish(Outgoing {
            row: Arc::new(row),
            address: Arc::clone(&address),
            lease_until,
            ticket: Ticket::new(number, 1, sender.clone()),
        });
    };
    send(0);
    assert_eq!(receiver.recv().await.expect("an answer").outcome, Outcome::Confirmed);
    let (started, cpu) = (Instant::now(), cpu_seconds());
    let mut sent_at = Vec::with_capacity(load.rows);
    let mut latencies = Vec::with_capacity(load.rows);
    let mut answers = Vec::new();
    while latencies.len() < load.rows {
        // Like the core: pages of rows as room comes free, not one row for each answer.
        let open = sent_at.len() - latencies.len();
        if load.in_flight - open >= PAGE.min(load.in_flight) {
            for row in sent_at.len()..load.rows.min(latencies.len() + load.in_flight) {
                sent_at.push(Instant::now());
                send(row);
            }
        }
        receiver.recv_many(&mut answers, load.in_flight).await;
        for answer in answers.drain(..) {
            assert_eq!(answer.outcome, Outcome::Confirmed);
            let row = usize::try_from(answer.seq).expect("a number");
            latencies.push(Instant::now().duration_since(sent_at[row]).as_micros());
        }
    }
    report("adapter", load.rows, started, cpu);
    publisher.stop(10_000).await;
    latencies
}
