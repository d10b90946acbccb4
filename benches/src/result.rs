//! One run as a JSON file, and as lines for human eyes.

use std::path::Path;
use std::process::Command;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::check::Seen;

/// CPU-seconds a million messages.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Cpu {
    pub relay: f64,
    pub database: f64,
    pub broker: f64,
}

/// The relay's own histograms and counters, as far as they could be read before it ended.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Statements {
    pub claims: f64,
    pub claim_ms_mean: f64,
    pub rows_per_claim: f64,
    pub marks: f64,
    pub mark_ms_mean: f64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Drained {
    pub name: String,
    pub rows: u32,
    pub keys: u32,
    pub payload_bytes: usize,
    pub seed: u64,
    pub settings: Vec<String>,
    /// From the first claim to the last mark.
    pub messages_per_second: f64,
    pub bare_messages_per_second: f64,
    pub ratio: f64,
    pub cpu_seconds_per_million: Cpu,
    pub bare_cpu_seconds_per_million: f64,
    pub bare_broker_cpu_seconds_per_million: f64,
    pub relay_memory_peak_mb: f64,
    pub database_memory_peak_mb: f64,
    pub statements: Statements,
    pub seen: Seen,
    pub origin: Origin,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Idled {
    pub name: String,
    pub seconds: f64,
    pub relay_percent_of_a_core: f64,
    pub database_percent_of_a_core: f64,
    pub database_alone_percent_of_a_core: f64,
    pub relay_memory_mb: f64,
    pub origin: Origin,
}

/// Where numbers come from.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Origin {
    pub command: String,
    pub commit: String,
    pub cores: usize,
    /// Runnable processes, averaged over a minute, when the run began: other work disturbs.
    pub load_before: f64,
}

impl Origin {
    pub fn now() -> Self {
        let arguments: Vec<String> = std::env::args().skip(1).collect();
        let git = Command::new("git").args(["describe", "--always", "--dirty", "--abbrev=10"]).output();
        let commit = git.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default();
        let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
        Self {
            command: format!("outbox-benches {}", without_places(&arguments).join(" ")),
            commit,
            cores: std::thread::available_parallelism().map_or(0, std::num::NonZero::get),
            load_before: load.split(' ').next().and_then(|text| text.parse().ok()).unwrap_or(0.0),
        }
    }
}

/// Addresses and paths are this machine's own and no part of a result.
fn without_places(arguments: &[String]) -> Vec<&str> {
    let places = ["--database-url", "--amqp-url", "--kafka-brokers", "--relay", "--results"];
    let mut kept = Vec::new();
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        if places.contains(&argument.as_str()) {
            rest.next();
        } else if !places.iter().any(|place| argument.starts_with(&format!("{place}="))) {
            kept.push(argument.as_str());
        }
    }
    kept
}

/// Writes one run into a folder; an earlier run of the same name is replaced.
pub fn save<T: Serialize>(folder: &Path, name: &str, result: &T) -> Result<()> {
    std::fs::create_dir_all(folder)?;
    let mut text = serde_json::to_string_pretty(result)?;
    text.push('\n');
    std::fs::write(folder.join(format!("{name}.json")), text)?;
    Ok(())
}
