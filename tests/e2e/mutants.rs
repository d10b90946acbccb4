//! A checker is proven by a relay that breaks the rule on purpose and must be caught.

use anyhow::{Context as _, Result, bail};
use outbox_tests::relay::Launch;

/// The build with the cargo feature `mutants`, as `make test` makes it.
const BINARY: &str = "OUTBOX_MUTANT_BIN";

/// The same launch as a mutant.
///
/// # Errors
/// When no mutants were built: a check that cannot fail is not skipped silently.
pub fn mutant(launch: &Launch, name: &str) -> Result<Launch> {
    let binary = std::env::var_os(BINARY).with_context(|| {
        format!(
            "{BINARY} is not set: run `make test`, or build the relay with --features mutants, copy the binary and \
             set the variable to the copy"
        )
    })?;
    Ok(launch.clone().binary(binary).env("OUTBOX_MUTANT", name))
}

/// Fails unless the check failed, and for the right reason.
pub fn must_be_caught(name: &str, checked: Result<()>, reason: &str) -> Result<()> {
    match checked {
        Ok(()) => bail!("the mutant {name} was not caught"),
        Err(error) if format!("{error:#}").contains(reason) => Ok(()),
        Err(error) => Err(error.context(format!("the mutant {name} failed, but not because of: {reason}"))),
    }
}
