//! One file a command. A command gets what it needs as values and returns data or a failure; none ends the process.

mod check;
mod completions;
mod config;
mod migrate;
mod parked;
mod refused;
mod run;
mod status;

use std::io::Write as _;
use std::process::ExitCode;

use crate::cli::{Cli, Command};
use crate::config::DatabaseOnly;
use crate::exit::Outcome;
use crate::logging;
use crate::signals::Stop;

/// Does what the command line asks for. A command that runs once is cut short by the first stop signal; `run` gets
/// the signal itself.
pub async fn execute(cli: Cli, stop: &Stop) -> Outcome<ExitCode> {
    if let Command::Run(arguments) = &cli.command {
        let sources = cli.sources()?;
        return Box::pin(run::run(&sources, arguments, stop)).await.map(ExitCode::from);
    }
    let token = stop.token();
    tokio::select! {
        biased;
        () = token.cancelled() => Ok(ExitCode::from(stop.exit_code())),
        done = once(&cli) => done,
    }
}

async fn once(cli: &Cli) -> Outcome<ExitCode> {
    let mut out = Vec::new();
    let form = cli.common.output;
    let exit = match &cli.command {
        Command::Completions { shell } => completions::completions(*shell, &mut out),
        Command::Man => completions::man(&mut out)?,
        Command::Config(arguments) => config::config(cli, arguments, form, &mut out)?,
        Command::Migrate(arguments) => {
            let DatabaseOnly { database, tables, .. } = configuration(cli)?;
            migrate::migrate(&database, &tables, arguments, form, &mut out).await?
        }
        Command::Status => {
            let DatabaseOnly { database, block_key, .. } = configuration(cli)?;
            status::status(&database, block_key, form, &mut out).await?
        }
        Command::Parked { action } => parked::parked(&configuration(cli)?.database, action, form, &mut out).await?,
        Command::Refused { action } => {
            let DatabaseOnly { database, tables, .. } = configuration(cli)?;
            refused::refused(&database, &tables, action, form, &mut out).await?
        }
        Command::Check(_) => check::check(&cli.sources()?, form, &mut out).await?,
        Command::Run(_) => unreachable!("run is not a command that runs once"),
    };
    // Written in one piece, so that a reader sees a whole document or none.
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(&out)?;
    stdout.flush()?;
    Ok(exit.into())
}

fn configuration(cli: &Cli) -> Outcome<DatabaseOnly> {
    let configuration = crate::config::for_database(&cli.sources()?)?;
    logging::start(&configuration.log)?;
    Ok(configuration)
}
