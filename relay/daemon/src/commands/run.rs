//! `run`: the relay itself.

use crate::cli;
use crate::config::{self, Sources};
use crate::exit::{Exit, Failure, Outcome};
use crate::logging;
use crate::signals::Stop;

/// Runs until stopped or drained.
#[expect(clippy::unused_async, reason = "the relay is not wired in yet")]
pub async fn run(sources: &Sources, _arguments: &cli::Run, _stop: &Stop) -> Outcome<Exit> {
    let configuration = config::for_relay(sources)?;
    logging::start(&configuration.log)?;
    Err(Failure::text(Exit::Failed, "this build cannot run a relay yet"))
}
