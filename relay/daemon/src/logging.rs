//! Log lines to standard error, as text or JSON, with RFC 3339 times in UTC.
//!
//! Libraries that print message bodies or passwords are held at `error` or off whatever level is asked for: lapin logs
//! returned messages with their body at warn and its URI with the password at debug; the database driver logs
//! statements at debug. Only a directive that names such a target itself gets more from it.

use std::io::IsTerminal as _;

use anyhow::{Context as _, Result, anyhow};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::config::{Log, LogFormat};

/// Targets whose lines may hold payloads or secrets.
const QUIET: [&str; 8] = [
    "lapin=off",
    "amq_protocol=error",
    "async_rs=error",
    "tokio_postgres=error",
    "rdkafka=error",
    "librdkafka=error",
    "hyper=error",
    "rustls=error",
];

/// The filter of a level or of a list of `target=level`.
///
/// # Errors
/// What is wrong with the text.
pub fn filter(level: &str) -> Result<EnvFilter> {
    let directives = QUIET.iter().copied().chain([level]).collect::<Vec<_>>().join(",");
    EnvFilter::builder().parse(directives).map_err(|error| anyhow!("{error}"))
}

/// Starts logging; once a process.
///
/// # Errors
/// A filter that was not checked before, or logging that was started already.
pub fn start(log: &Log) -> Result<()> {
    let registry = tracing_subscriber::registry().with(filter(&log.level)?);
    match log.format {
        LogFormat::Text => {
            let coloured =
                std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
            let layer = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_ansi(coloured);
            registry.with(layer.with_timer(time())).try_init()
        }
        LogFormat::Json => {
            let layer = tracing_subscriber::fmt::layer().json().flatten_event(true).with_writer(std::io::stderr);
            let layer = layer.with_current_span(false).with_span_list(false);
            registry.with(layer.with_timer(time())).try_init()
        }
    }
    .context("logging was started twice")
}

/// RFC 3339 in UTC with microseconds.
const fn time() -> impl FormatTime {
    SystemTime
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_keeps_the_talkative_targets_quiet_unless_they_are_named() {
        let text = filter("trace").unwrap().to_string();
        assert!(text.contains("lapin=off") && text.contains("trace"), "{text}");
        let text = filter("info,lapin=debug").unwrap().to_string();
        assert!(text.contains("lapin=debug") && !text.contains("lapin=off"), "{text}");
        assert!(filter("loud").is_err() || filter("loud=x").is_err());
    }
}
