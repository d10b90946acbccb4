//! The load driver: how fast the relay drains a backlog beside a bare publisher in the same run, and what an idle
//! relay costs.
//!
//! It measures; it changes no setting of the services it is given, and a run with a loss or a disorder is void.

mod backlog;
mod check;
mod drain;
mod idle;
mod kafka;
mod load;
mod processes;
mod rabbitmq;
mod relay;
mod report;
mod result;

use std::path::PathBuf;

use anyhow::Result;
use clap::{Args, Parser, Subcommand, ValueEnum};

/// Measures the relay beside a bare publisher.
#[derive(Parser)]
#[command(name = "outbox-benches")]
struct Cli {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Preloads rows and drains them, with a bare publisher before and after.
    Drain(Drain),
    /// What a relay costs that has nothing to do.
    Idle(Idle),
    /// Writes the table of all results into the report.
    Report,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Broker {
    Rabbitmq,
    Kafka,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum QueueType {
    Quorum,
    Classic,
}

/// Where the services and the relay are.
#[derive(Args, Clone)]
struct Places {
    /// A role that may create databases, on this machine.
    #[arg(long, env = "TEST_DATABASE_URL", hide_env_values = true)]
    database_url: String,
    #[arg(long, env = "TEST_AMQP_URL", hide_env_values = true)]
    amqp_url: Option<String>,
    #[arg(long, env = "TEST_KAFKA_BROKERS")]
    kafka_brokers: Option<String>,
    /// The release build, unless told otherwise.
    #[arg(long, env = "OUTBOX_RELAY_BIN")]
    relay: Option<PathBuf>,
    /// A setting of the relay, as in its environment: `OUTBOX__BATCH__ROWS_MAX=1000`.
    #[arg(long = "set", value_name = "NAME=VALUE")]
    settings: Vec<String>,
}

#[derive(Args, Clone)]
struct Drain {
    #[command(flatten)]
    places: Places,
    #[arg(long, value_enum)]
    broker: Broker,
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(2..))]
    rows: u32,
    /// Ordering keys, in turn.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..))]
    keys: u32,
    /// Bytes of a body.
    #[arg(long, default_value_t = 256)]
    payload: usize,
    #[arg(long, value_enum, default_value = "quorum")]
    queue: QueueType,
    #[arg(long, default_value_t = 4)]
    partitions: i32,
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Rows that the bare publisher keeps unconfirmed: the relay's `in_flight_max`. One key always means one.
    #[arg(long, default_value_t = 2_000)]
    in_flight: usize,
    /// Folder for the JSON file; none is written without it.
    #[arg(long)]
    results: Option<PathBuf>,
}

#[derive(Args, Clone)]
struct Idle {
    #[command(flatten)]
    places: Places,
    #[arg(long, value_enum)]
    broker: Broker,
    #[arg(long, default_value_t = 20)]
    seconds: u64,
    /// Rows that were sent before.
    #[arg(long, default_value_t = 10_000)]
    rows: u32,
    #[arg(long)]
    results: Option<PathBuf>,
}

#[tokio::main]
async fn main() -> Result<()> {
    match Cli::parse().what {
        What::Drain(arguments) => drain::run(&arguments).await,
        What::Idle(arguments) => idle::run(&arguments).await,
        What::Report => report::write(),
    }
}
