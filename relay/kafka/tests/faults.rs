//! Brokers that freeze, die, or break the producer's sequence.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use outbox_core::{Link, Outcome, Publisher as _};
use outbox_kafka::KafkaConfig;
use rdkafka::mocking::MockCluster;
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};

use crate::kit::{self, Bed};

/// A broker of this test alone, so that it may be frozen; made by the scripts that make the shared one.
struct OwnBroker {
    home: PathBuf,
    brokers: String,
    ports: [(&'static str, String); 2],
}

impl OwnBroker {
    fn start(name: &str, port: u16) -> Self {
        let home = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let ports = [("KAFKA_PORT", port.to_string()), ("KAFKA_CONTROLLER_PORT", (port + 1).to_string())];
        let broker = Self { home, brokers: format!("127.0.0.1:{port}"), ports };
        broker.script("down.sh", &["--clean"]);
        broker.up();
        broker
    }

    fn up(&self) {
        assert!(self.script("up.sh", &["kafka"]), "the test's own broker did not start");
    }

    fn script(&self, script: &str, arguments: &[&str]) -> bool {
        let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/services");
        let mut command = Command::new(scripts.join(script));
        command.args(arguments).env("SERVICES_DIR", &self.home).env("KAFKA_HEAP", "256m");
        command.envs(self.ports.iter().map(|(key, value)| (*key, value.as_str())));
        command.status().unwrap().success()
    }

    fn signal(&self, signal: &str) {
        let pid = std::fs::read_to_string(self.home.join("kafka.pid")).unwrap();
        assert!(Command::new("kill").args([signal, pid.trim()]).status().unwrap().success());
    }
}

impl Drop for OwnBroker {
    fn drop(&mut self) {
        self.script("down.sh", &["--clean"]);
    }
}

fn rows(topic: &str, from: i64, to: i64) -> Vec<Arc<outbox_core::Row>> {
    (from..to).map(|seq| Arc::new(kit::row(seq, topic, Some(&format!("k{}", seq % 5)), Some(b"x")))).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn f12_a_frozen_or_restarted_broker_makes_rows_unknown_and_all_arrive_in_order_later() {
    if kit::brokers().is_none() {
        return;
    }
    let own = OwnBroker::start("frozen-broker", 28_411);
    let topic = kit::unique("frozen");
    kit::create_topic(&own.brokers, &topic, 2, &[]).await;
    let config = KafkaConfig { confirm_timeout_ms: 10_000, ..KafkaConfig::new(&own.brokers) };
    let mut bed = Bed::up(config).await;
    kit::all_confirmed(&bed.publish_all(&rows(&topic, 0, 100)).await);

    own.signal("-STOP");
    let frozen = rows(&topic, 100, 600);
    let outcomes = bed.publish_all(&frozen).await;
    let said: Vec<_> = frozen.iter().map(|row| &outcomes[&row.id.seq]).collect();
    // Rows go in waves: what was still to leave when the link was given up never left, and all of it is behind.
    let (left, stayed) = said.split_at(said.iter().take_while(|said| matches!(said, Outcome::Unknown { .. })).count());
    assert!(!left.is_empty(), "a row that left is unknown, not {:?}", said[0]);
    assert!(stayed.iter().all(|said| **said == Outcome::NotSent), "behind {}: {stayed:?}", left.len());
    bed.wait_link("down", |link| !link.is_up()).await;
    own.signal("-CONT");
    bed.persist(&frozen).await;

    own.script("down.sh", &[]);
    bed.wait_link("down", |link| matches!(link, Link::Down { .. })).await;
    let refused = rows(&topic, 600, 700);
    let outcomes = bed.publish_all(&refused).await;
    assert!(outcomes.values().all(|outcome| *outcome == Outcome::NotSent), "rows stay while the link is down");
    own.up();
    bed.persist(&refused).await;

    let messages = kit::read(&own.brokers, &topic);
    kit::in_order(&messages);
    let arrived: HashSet<i64> = messages.iter().map(kit::seq).collect();
    assert_eq!(arrived.len(), 700);
    bed.publisher.stop(5_000).await;
}

async fn fatal(error: RDKafkaRespErr) {
    let cluster = MockCluster::new(1).unwrap();
    let brokers = cluster.bootstrap_servers();
    let topic = "fatal";
    cluster.create_topic(topic, 1, 1).unwrap();
    let mut bed = Bed::up(KafkaConfig::new(&brokers)).await;
    kit::all_confirmed(&bed.publish_all(&rows(topic, 0, 50)).await);
    cluster.request_errors(RDKafkaApiKey::Produce, &[error; 3]);
    let broken = rows(topic, 50, 150);
    let outcomes = bed.publish_all(&broken).await;
    let unknown = outcomes.values().filter(|outcome| matches!(outcome, Outcome::Unknown { .. })).count();
    assert!(unknown > 0, "{error:?} must leave rows unknown");
    let expected =
        |outcome: &Outcome| matches!(outcome, Outcome::Unknown { .. } | Outcome::NotSent | Outcome::Confirmed);
    assert!(outcomes.values().all(expected), "{error:?} is nobody's fault");
    let again: Vec<_> = broken.into_iter().filter(|row| outcomes[&row.id.seq] != Outcome::Confirmed).collect();
    bed.persist(&again).await;
    let messages = kit::read(&brokers, topic);
    kit::in_order(&messages);
    let arrived: HashSet<i64> = messages.iter().map(kit::seq).collect();
    assert_eq!(arrived.len(), 150);
}

#[tokio::test(flavor = "multi_thread")]
async fn f66_out_of_order_sequence_ends_the_producer_and_a_new_one_goes_on() {
    fatal(RDKafkaRespErr::RD_KAFKA_RESP_ERR_OUT_OF_ORDER_SEQUENCE_NUMBER).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn f66_invalid_producer_epoch_ends_the_producer_and_a_new_one_goes_on() {
    fatal(RDKafkaRespErr::RD_KAFKA_RESP_ERR_INVALID_PRODUCER_EPOCH).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn f30_retriable_errors_of_the_broker_are_nobodys_fault() {
    let cluster = MockCluster::new(1).unwrap();
    let brokers = cluster.bootstrap_servers();
    let topic = "retries";
    cluster.create_topic(topic, 1, 1).unwrap();
    let mut bed = Bed::up(KafkaConfig::new(&brokers)).await;
    kit::all_confirmed(&bed.publish_all(&rows(topic, 0, 10)).await);
    let errors = [
        RDKafkaRespErr::RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS,
        RDKafkaRespErr::RD_KAFKA_RESP_ERR_NOT_LEADER_FOR_PARTITION,
        RDKafkaRespErr::RD_KAFKA_RESP_ERR_REQUEST_TIMED_OUT,
        RDKafkaRespErr::RD_KAFKA_RESP_ERR__TRANSPORT,
    ];
    cluster.request_errors(RDKafkaApiKey::Produce, &errors);
    let rest = rows(topic, 10, 3_000);
    kit::all_confirmed(&bed.publish_all(&rest).await);
    // Not their order: unlike a broker the mock takes batches whose sequence has a gap.
    let arrived: HashSet<i64> = kit::read(&brokers, topic).iter().map(kit::seq).collect();
    assert_eq!(arrived.len(), 3_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn f31_a_full_queue_holds_rows_back_in_order() {
    let Some(brokers) = kit::brokers() else { return };
    let topic = kit::unique("full");
    kit::create_topic(&brokers, &topic, 1, &[]).await;
    let mut bed = Bed::up(KafkaConfig { in_flight_max: 100, ..KafkaConfig::new(&brokers) }).await;
    // Far more than the caller promised.
    bed.in_flight_max = 10_000;
    let rows: Vec<_> = (0..20_000).map(|seq| Arc::new(kit::row(seq, &topic, Some("k"), Some(b"x")))).collect();
    kit::all_confirmed(&bed.publish_all(&rows).await);
    kit::arrived_once_in_order(&kit::read(&brokers, &topic), &rows);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_login_that_is_refused_shows_as_refused() {
    let Some(brokers) = kit::brokers() else { return };
    let mut config = KafkaConfig { confirm_timeout_ms: 2_000, ..KafkaConfig::new(&brokers) };
    // A plain broker cannot answer a TLS handshake.
    config.properties.insert("security.protocol".to_owned(), "SSL".to_owned());
    let bed = Bed::start(config);
    bed.wait_link("refused", |link| matches!(link, Link::Refused { .. })).await;
    bed.publisher.stop(1_000).await;
}
