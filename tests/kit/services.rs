//! Where the services are: addresses from the environment, with a message that says how to set
//! them. Only Kafka may be missing, only outside CI, and then loudly.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// The workspace's root, from which the scripts and the default binary are found.
#[must_use]
pub fn workspace_root() -> PathBuf {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    tests.parent().unwrap_or(tests).to_path_buf()
}

/// Cargo's target folder.
#[must_use]
pub fn target_dir() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| workspace_root().join("target"), PathBuf::from)
}

/// `TEST_DATABASE_URL`: a role that may create databases.
///
/// # Errors
/// When it is not set.
pub fn database_url() -> Result<String> {
    required("TEST_DATABASE_URL")
}

/// `TEST_AMQP_URL`.
///
/// # Errors
/// When it is not set.
pub fn amqp_url() -> Result<String> {
    required("TEST_AMQP_URL")
}

/// `TEST_KAFKA_BROKERS`; `None` outside CI when it is not set: the test then returns early with
/// [`skip_kafka`]'s loud line.
///
/// # Errors
/// In CI, when it is not set.
pub fn kafka_brokers() -> Result<Option<String>> {
    match std::env::var("TEST_KAFKA_BROKERS") {
        Ok(brokers) if !brokers.is_empty() => Ok(Some(brokers)),
        _ if in_ci() => bail!("{}", how_to_set("TEST_KAFKA_BROKERS")),
        _ => Ok(None),
    }
}

/// `TEST_SERVICES_DIR`: the folder of the services that the scripts started.
///
/// # Errors
/// When it is not set.
pub fn services_dir() -> Result<PathBuf> {
    required("TEST_SERVICES_DIR").map(PathBuf::from)
}

/// `TEST_KAFKA_FAULT_PORTS`: pairs of (port where the broker listens, port it advertises).
///
/// # Errors
/// When it is not set or not of the form `28094:28095,...`.
pub fn kafka_fault_ports() -> Result<Vec<(u16, u16)>> {
    parse_fault_ports(&required("TEST_KAFKA_FAULT_PORTS")?)
}

pub(crate) fn parse_fault_ports(pairs: &str) -> Result<Vec<(u16, u16)>> {
    pairs
        .split(',')
        .map(|pair| {
            let (listens, advertised) = pair.split_once(':')?;
            Some((listens.parse().ok()?, advertised.parse().ok()?))
        })
        .collect::<Option<_>>()
        .with_context(|| format!("Kafka's fault ports are not a list of pairs: {pairs}"))
}

/// Says loudly that a test was skipped, and counts it for the runner's summary.
pub fn skip_kafka(test: &str) {
    eprintln!("!!! SKIPPED {test}: TEST_KAFKA_BROKERS is not set !!!");
    let Ok(file) = std::env::var("OUTBOX_TEST_SKIPS") else {
        return;
    };
    let appended =
        std::fs::OpenOptions::new().create(true).append(true).open(&file).and_then(|mut file| writeln!(file, "{test}"));
    if let Err(error) = appended {
        eprintln!("the skip could not be counted in {file}: {error}");
    }
}

fn in_ci() -> bool {
    std::env::var("CI").is_ok_and(|value| value == "true")
}

fn required(variable: &str) -> Result<String> {
    match std::env::var(variable) {
        Ok(value) if !value.is_empty() => Ok(value),
        _ => bail!("{}", how_to_set(variable)),
    }
}

fn how_to_set(variable: &str) -> String {
    format!(
        "{variable} is not set. Run `make test`, or start the services and set it: \
         tests/services/up.sh && eval \"$(tests/services/env.sh)\""
    )
}
