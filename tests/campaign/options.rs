//! What a campaign is told.

use std::path::PathBuf;

use clap::{Parser, ValueEnum};

/// Runs the real relay against real services under a seeded schedule of faults, and judges what arrived.
#[derive(Clone, Debug, Parser)]
pub struct Options {
    /// The broker and its kind of queue.
    #[arg(long, value_enum, default_value = "rabbitmq-classic")]
    pub mode: Mode,
    /// Decides everything that is drawn by lot; told at the begin.
    #[arg(long)]
    pub seed: Option<u64>,
    /// Ends after this time; the round under way is judged first.
    #[arg(long, conflicts_with = "faults")]
    pub minutes: Option<f64>,
    /// Ends after this many faults.
    #[arg(long)]
    pub faults: Option<usize>,
    /// How many relays share the outbox.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=4))]
    pub relays: u8,
    /// Plays this schedule instead of one drawn by lot. Lines as the campaign prints them.
    #[arg(long)]
    pub schedule: Option<PathBuf>,
    /// Batches of faults between two judgements of everything.
    #[arg(long, default_value_t = 15)]
    pub round: usize,
    /// Only kinds whose name contains one of these, divided by commas.
    #[arg(long)]
    pub only: Option<String>,
    /// The relays break this rule on purpose (needs OUTBOX_MUTANT_BIN).
    #[arg(long)]
    pub mutant: Option<String>,
    /// A relay of another version, which takes the place of one for a while.
    #[arg(long)]
    pub other_version: Option<PathBuf>,
    /// A folder of running services to use, as `tests/services/up.sh` makes it. They are crashed and restarted.
    #[arg(long)]
    pub services: Option<PathBuf>,
    /// Where the schedule played is written.
    #[arg(long)]
    pub record: Option<PathBuf>,
    /// `lease.ttl_ms` of the relays; drawn by lot if not given.
    #[arg(long)]
    pub lease_ms: Option<u64>,
}

/// See [`Options::mode`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    RabbitmqClassic,
    RabbitmqQuorum,
    Kafka,
}

impl Mode {
    pub fn name(self) -> &'static str {
        match self {
            Self::RabbitmqClassic => "rabbitmq-classic",
            Self::RabbitmqQuorum => "rabbitmq-quorum",
            Self::Kafka => "kafka",
        }
    }
}
