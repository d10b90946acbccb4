//! A short campaign against each broker, with services of its own: the program must not rot, and neither must the
//! promises. Always the same schedule, so that a failure is of this change; `make campaign` draws others, and longer
//! ones.

use std::time::Duration;

use outbox_tests::{relay, services, wait};
use tokio::process::Command;
use tokio::sync::Mutex;

const FAULTS: &str = "18";
const SEED: &str = "20261129";
/// Side by side they would starve each other on a small machine.
static TURN: Mutex<()> = Mutex::const_new(());

async fn play(mode: &str) {
    let _turn = TURN.lock().await;
    let mut campaign = Command::new(env!("CARGO_BIN_EXE_campaign"));
    campaign
        .args(["--mode", mode, "--faults", FAULTS, "--seed", SEED])
        .env("OUTBOX_RELAY_BIN", relay::binary())
        .kill_on_drop(true);
    let output = wait::bounded("the campaign to end", Duration::from_secs(600), campaign.output());
    let output = output.await.unwrap().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    let last = said.lines().last().unwrap_or_default();
    assert!(last.starts_with("every promise kept: ") && !last.contains(" 0 committed"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_campaign_against_classic_queues_breaks_no_promise() {
    play("rabbitmq-classic").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_campaign_against_quorum_queues_breaks_no_promise() {
    play("rabbitmq-quorum").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_campaign_against_kafka_breaks_no_promise() {
    if services::kafka_brokers().unwrap().is_none() {
        services::skip_kafka("a_campaign_against_kafka_breaks_no_promise");
        return;
    }
    play("kafka").await;
}
