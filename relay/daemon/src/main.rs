//! `outbox-relay`: maps a command line to a command and its result to an exit code.
//!
//! Data goes to standard output, everything else to standard error.

mod admin;
mod backlog;
mod certificates;
mod cli;
mod commands;
mod config;
mod database;
#[cfg(test)]
mod documentation;
mod drill;
mod exit;
mod health;
mod logging;
mod metrics;
#[cfg(feature = "otel")]
mod otel;
mod output;
mod publishers;
mod sampler;
mod service_manager;
mod signals;

use std::io::Write as _;
use std::process::ExitCode;

use clap::Parser as _;

use crate::cli::Cli;
use crate::exit::{Exit, Failure};
use crate::signals::Stop;

/// Rows are allocated on one thread and freed on another, which took glibc's allocator a quarter of the relay's time
/// (`benches/README.md`).
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    outbox_kafka::prepare_process();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return complain(&Failure::text(Exit::Failed, format!("cannot start the runtime: {error}"))),
    };
    let code = runtime.block_on(async {
        // Before anything else, the command line included.
        let stop = match Stop::install() {
            Ok(stop) => stop,
            Err(error) => return complain(&Failure::text(Exit::Failed, format!("cannot handle signals: {error}"))),
        };
        let cli = match Cli::try_parse() {
            Ok(cli) => cli,
            Err(error) => {
                // Help and version are answers, not errors, and clap knows which is which.
                let _ = error.print();
                return u8::try_from(error.exit_code()).map_or(ExitCode::FAILURE, ExitCode::from);
            }
        };
        match commands::execute(cli, &stop).await {
            Ok(exit) => exit,
            Err(failure) if failure.exit == Exit::Done => ExitCode::SUCCESS,
            Err(failure) => complain(&failure),
        }
    });
    // A thread that waits for an answer on the terminal would hold the end up.
    runtime.shutdown_background();
    code
}

fn complain(failure: &Failure) -> ExitCode {
    // Nobody is left to tell when standard error is closed.
    let _ = writeln!(std::io::stderr().lock(), "outbox-relay: {failure}");
    failure.exit.into()
}
