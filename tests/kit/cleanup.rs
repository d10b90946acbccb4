//! Asynchronous clean-up from `Drop`: on a thread with a runtime of its own, waited for, so
//! that it works under every runtime flavour and also while a panic unwinds.

use std::time::Duration;

use anyhow::Result;

/// A clean-up that hangs must not hang the test run.
const DEADLINE: Duration = Duration::from_secs(20);

/// Runs to its end or to the deadline; a failure is told and does not fail the test.
pub fn run<F>(what: &str, future: F)
where
    F: Future<Output = Result<()>> + Send + 'static,
{
    let thread = std::thread::spawn(move || -> Result<()> {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?
            .block_on(async { tokio::time::timeout(DEADLINE, future).await? })
    });
    match thread.join() {
        Ok(Ok(())) => {}
        Ok(Err(error)) => eprintln!("{what} was not cleaned up: {error:#}"),
        Err(_) => eprintln!("{what} was not cleaned up: its thread panicked"),
    }
}

/// With `OUTBOX_TEST_KEEP=1` nothing is removed, to look at after a failure.
pub(crate) fn is_wanted() -> bool {
    std::env::var("OUTBOX_TEST_KEEP").is_err()
}
