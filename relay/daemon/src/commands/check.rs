//! `check`: whether a relay could run here, before one does.
//!
//! Everything is looked at, so that one run shows all there is to mend. It changes nothing and publishes nothing.
//! Notes and warnings end with 0, errors with 1; what keeps it from looking at all (configuration, a database that is
//! away) ends as in any other command.

mod activity;
mod brokers;
mod finding;
mod schema;
mod server;
mod sources;

use std::io::Write as _;

use outbox_postgres::{DurabilityFence, SESSION_CONNECTIONS};

use self::finding::{FENCE_NONE, Finding, ORDER_PIPELINED, SCHEMA_WRONG, Severity};
use crate::cli::Output;
use crate::config::{self, Sources};
use crate::database::connect;
use crate::exit::{Exit, Outcome};
use crate::{logging, output};

/// Looks and reports.
pub async fn check(sources: &Sources, form: Output, out: &mut Vec<u8>) -> Outcome<Exit> {
    let configuration = config::for_relay(sources)?;
    logging::start(&configuration.log)?;
    let client = connect(&configuration.database).await?;
    let mut findings = server::look(&client, configuration.settings.fence, connections(&configuration)).await?;
    findings.extend(activity::look(&client, &configuration.database, configuration.settings.relay.lease_ttl_ms).await?);
    findings.extend(schema::look(&client).await?);
    // What a source needs of the outbox can only be asked where it is.
    if findings.iter().all(|finding| finding.kind.name != SCHEMA_WRONG.name) {
        findings.extend(sources::look(&client, &configuration.tables).await?);
    }
    findings.extend(choices(&configuration));
    findings.extend(brokers::look(&configuration.brokers, &configuration.routes).await?);
    match form {
        Output::Json => output::json(out, &findings)?,
        Output::Text => text(out, &findings)?,
    }
    let failed = findings.iter().any(|finding| finding.severity == Severity::Error);
    Ok(if failed { Exit::Failed } else { Exit::Done })
}

/// Connections of a relay: those of its session, and the sampler's.
fn connections(configuration: &config::Relay) -> i32 {
    let intakes = i32::from(!configuration.tables.is_empty());
    i32::try_from(SESSION_CONNECTIONS).unwrap_or(i32::MAX - 2) + intakes + 1
}

/// What somebody chose although a promise gets weaker by it.
fn choices(configuration: &config::Relay) -> Vec<Finding> {
    let mut findings = Vec::new();
    if configuration.settings.fence == DurabilityFence::None {
        findings.push(FENCE_NONE.found("durability_fence is none"));
    }
    if configuration.brokers.rabbitmq.as_ref().is_some_and(outbox_rabbitmq::RabbitmqConfig::is_pipelined) {
        findings.push(ORDER_PIPELINED.found("rabbitmq.order is pipelined"));
    }
    findings
}

fn text(out: &mut Vec<u8>, findings: &[Finding]) -> std::io::Result<()> {
    for Finding { kind, severity, detail, action, statements } in findings {
        let word = match severity {
            Severity::Ok => "ok",
            Severity::Note => "note",
            Severity::Warning => "warning",
            Severity::Error => "error",
        };
        writeln!(out, "{word:<8} {:<22} {}", kind.name, output::printable(detail))?;
        if !action.is_empty() {
            writeln!(out, "{:<31} {action}", "")?;
        }
        for statement in statements {
            writeln!(out, "{:<31} {}", "", output::printable(statement))?;
        }
    }
    Ok(())
}
