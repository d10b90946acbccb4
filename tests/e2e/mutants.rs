//! A checker is proven by a relay that breaks the rule on purpose and must be caught.

use anyhow::{Result, bail};
use outbox_tests::relay::Launch;

/// The build with the cargo feature `mutants`, as `make test` makes it.
const BINARY: &str = "OUTBOX_MUTANT_BIN";

/// The same launch as a mutant; `None` outside CI where no mutants were built, told loudly.
pub fn mutant(launch: &Launch, name: &str) -> Result<Option<Launch>> {
    match std::env::var_os(BINARY) {
        Some(binary) => Ok(Some(launch.clone().binary(binary).env("OUTBOX_MUTANT", name))),
        None if std::env::var("CI").is_ok_and(|value| value == "true") => bail!("{BINARY} is not set"),
        None => {
            eprintln!("!!! NOT CHECKED: mutant {name}, since {BINARY} is not set !!!");
            Ok(None)
        }
    }
}

/// Fails unless the check failed, and for the right reason.
pub fn must_be_caught(name: &str, checked: Result<()>, reason: &str) -> Result<()> {
    match checked {
        Ok(()) => bail!("the mutant {name} was not caught"),
        Err(error) if format!("{error:#}").contains(reason) => Ok(()),
        Err(error) => Err(error.context(format!("the mutant {name} failed, but not because of: {reason}"))),
    }
}
