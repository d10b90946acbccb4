//! The driver at work on a few rows, so that it never rots. It says nothing about speed.

use std::path::PathBuf;
use std::process::Command;

/// The debug build, unless told otherwise: a release build would take minutes.
fn relay() -> PathBuf {
    let debug = || outbox_tests::services::target_dir().join("debug/outbox-relay");
    std::env::var_os("OUTBOX_RELAY_BIN").map_or_else(debug, PathBuf::from)
}

fn drain(arguments: &[&str]) {
    let results = std::env::temp_dir().join(format!("outbox-smoke-{}", uuid::Uuid::new_v4().simple()));
    let output = Command::new(env!("CARGO_BIN_EXE_outbox-benches"))
        .args(["drain", "--rows", "2000", "--keys", "50", "--payload", "64"])
        .args(arguments)
        .arg("--results")
        .arg(&results)
        .arg("--relay")
        .arg(relay())
        .output()
        .expect("the driver starts");
    let (said, failed) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}{failed}");
    assert!(said.contains("ratio"), "{said}");
    let files: Vec<_> = std::fs::read_dir(&results).expect("a folder of results").flatten().collect();
    let json = std::fs::read_to_string(files.first().expect("a result").path()).expect("readable");
    let result: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(result["seen"]["distinct"], 2_000, "{json}");
    assert!(!json.contains("://"), "addresses are no part of a result: {json}");
    std::fs::remove_dir_all(&results).expect("removed");
}

#[test]
fn drains_to_rabbitmq() {
    drain(&["--broker", "rabbitmq"]);
}

#[test]
fn drains_to_kafka() {
    match outbox_tests::services::kafka_brokers() {
        Ok(Some(_)) => drain(&["--broker", "kafka"]),
        Ok(None) => outbox_tests::services::skip_kafka("drains_to_kafka"),
        Err(error) => panic!("{error:#}"),
    }
}
