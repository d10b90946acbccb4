//! `make campaign`: the real relay, real services, writers at work, and faults from a seeded schedule. The checker
//! shares no code with the relay. The last line is the result; on a failure the seed, the schedule and the first
//! broken rule are told, and `--schedule FILE` plays the same faults again.

#![allow(clippy::print_stdout, reason = "what it says is for people and scripts")]

mod brokers;
mod consumers;
mod evidence;
mod faults;
mod fleet;
mod options;
mod rounds;
mod schedule;
mod stage;
mod summary;
mod writers;

use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Parser;
use outbox_tests::services;

use crate::options::Options;
use crate::rounds::Campaign;
use crate::schedule::Schedule;
use crate::stage::Stage;

#[tokio::main]
async fn main() -> ExitCode {
    let options = Options::parse();
    match run(&options).await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            println!("the campaign could not be played to its end: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Whether every promise was kept.
async fn run(options: &Options) -> Result<bool> {
    let seed = options.seed.unwrap_or_else(|| fastrand::u64(..1_000_000));
    let mut random = fastrand::Rng::with_seed(seed);
    let lease_ms = options.lease_ms.unwrap_or_else(|| random.u64(6..=12) * 100);
    let relays = usize::from(options.relays);
    let schedule = match &options.schedule {
        Some(file) => {
            let text = std::fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
            Schedule::read(&text, options.mode, relays)?
        }
        None => Schedule::drawn(seed, options)?,
    };
    println!("campaign: mode {}, seed {seed}, {relays} relays, lease {lease_ms} ms", options.mode.name());
    let record = options
        .record
        .clone()
        .unwrap_or_else(|| services::target_dir().join(format!("campaign-{}-{seed}.schedule", options.mode.name())));
    let stage = Stage::set(options, seed, lease_ms).await?;
    let mut campaign = Campaign::new(stage, schedule, record, options.round);
    let kept = campaign.play(options).await?;
    // The database may be what is broken; the verdict is told all the same.
    if !kept && let Err(error) = campaign.keep_evidence().await {
        println!("the evidence could not be kept: {error:#}");
    }
    campaign.tell(seed, kept);
    Ok(kept)
}
