//! Waiting for a condition, with a deadline that names what was waited for.
//!
//! This is the only place of the tests that sleeps: between two looks at something that cannot
//! announce itself.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::time::Instant;

/// How long a look that found nothing waits before the next one.
const INTERVAL: Duration = Duration::from_millis(20);

/// A deadline generous enough for a loaded machine: what is waited for normally takes far less.
pub const SOON: Duration = Duration::from_secs(60);

/// Looks until `probe` returns a value; an error of the probe counts as "not yet" and is told
/// when the deadline has passed.
///
/// # Errors
/// When `within` has passed: names `what` and the last error.
pub async fn until<T, F, Fut>(what: &str, within: Duration, mut probe: F) -> Result<T>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<Option<T>>>,
{
    let deadline = Instant::now() + within;
    let mut last_error = None;
    loop {
        match tokio::time::timeout_at(deadline, probe()).await {
            Ok(Ok(Some(value))) => return Ok(value),
            Ok(Ok(None)) => last_error = None,
            Ok(Err(error)) => last_error = Some(error),
            Err(_) => {}
        }
        if Instant::now() >= deadline {
            let message = format!("waited {} ms in vain for {what}", within.as_millis());
            return match last_error {
                Some(error) => Err(error).context(message),
                None => bail!(message),
            };
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

/// Like [`until`] for a condition without a value.
///
/// # Errors
/// As [`until`].
pub async fn until_true<F, Fut>(what: &str, within: Duration, mut probe: F) -> Result<()>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<bool>>,
{
    until(what, within, || {
        let look = probe();
        async move { Ok(look.await?.then_some(())) }
    })
    .await
}

/// Lets `window` pass, failing as soon as `probe` says false: for "this must not happen".
///
/// # Errors
/// When the probe fails or says false within the window; names `what`.
pub async fn holds<F, Fut>(what: &str, window: Duration, mut probe: F) -> Result<()>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<bool>>,
{
    let end = Instant::now() + window;
    loop {
        if !probe().await? {
            bail!("did not hold for {} ms: {what}", window.as_millis());
        }
        if Instant::now() >= end {
            return Ok(());
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

/// Bounds any future, naming what was waited for.
///
/// # Errors
/// When `within` has passed.
pub async fn bounded<T>(what: &str, within: Duration, future: impl Future<Output = T>) -> Result<T> {
    tokio::time::timeout(within, future)
        .await
        .with_context(|| format!("waited {} ms in vain for {what}", within.as_millis()))
}
