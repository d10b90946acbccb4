//! `config`: the configuration in effect, a file to start from, or what a file may say.

use std::io::Write as _;

use crate::cli::{self, Cli, Output};
use crate::config;
use crate::exit::{Exit, Outcome};
use crate::output;

/// Prints; secrets are hidden.
pub fn config(cli: &Cli, arguments: &cli::Config, form: Output, out: &mut Vec<u8>) -> Outcome<Exit> {
    if arguments.default {
        out.write_all(config::default_file().as_bytes())?;
        return Ok(Exit::Done);
    }
    if arguments.schema {
        output::json(out, &config::schema())?;
        return Ok(Exit::Done);
    }
    let effective = config::effective(&cli.sources()?)?;
    match form {
        Output::Text => out.write_all(effective.to_toml().as_bytes())?,
        Output::Json => output::json(out, &effective.to_json())?,
    }
    Ok(Exit::Done)
}
