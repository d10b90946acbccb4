//! The demo itself, against the services at hand: it must not rot between two looks at it.

use std::time::Duration;

use outbox_tests::{relay, services, wait};
use tokio::process::Command;

/// Plays it with two kills and returns all it said.
async fn play(broker: &str) -> String {
    let mut demo = Command::new(env!("CARGO_BIN_EXE_demo"));
    demo.env("BROKER", broker).env("DEMO_KILLS", "2").env("OUTBOX_RELAY_BIN", relay::binary()).kill_on_drop(true);
    demo.env_remove("DEMO_RESULT");
    let output = wait::bounded("the demo to end", Duration::from_secs(300), demo.output()).await.unwrap().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    said
}

fn judge(said: &str) {
    let last = said.lines().last().unwrap_or_default();
    assert!(last.starts_with("every promise kept: ") && last.contains(", 0 lost, 0 phantom, "), "{said}");
    assert!(last.ends_with(" 2 kills") && !last.contains(" 0 redelivered"), "{said}");
    assert!(!said.contains('\x1b'), "colours or a rewritten line where there is no terminal: {said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_demo_keeps_every_promise_with_rabbitmq() {
    services::amqp_url().unwrap();
    judge(&play("rabbitmq").await);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_demo_keeps_every_promise_with_kafka() {
    if services::kafka_brokers().unwrap().is_none() {
        services::skip_kafka("the_demo_keeps_every_promise_with_kafka");
        return;
    }
    judge(&play("kafka").await);
}
