//! `check`: whether a relay could run here, before one does.
//!
//! Everything is looked at, so that one run shows all there is to mend. It changes nothing and publishes nothing.
//! Warnings end with 0, errors with 1; what keeps it from looking at all (configuration, a database that is away)
//! ends as in any other command.

use std::io::Write as _;
use std::sync::Arc;

use futures_util::future::join_all;
use outbox_core::{Address, NoObserver, Observer, Publisher, Routes};
use outbox_postgres::DurabilityFence;
use outbox_schema::{Schema, check_version};
use serde::Serialize;

use crate::cli::Output;
use crate::config::{self, Sources};
use crate::database::{answered, connect, explain};
use crate::exit::{Exit, Failure, Outcome};
use crate::{logging, output, publishers};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Level {
    Ok,
    Warning,
    Error,
}

/// One thing that was looked at. `detail` says what to do where something is wrong.
#[derive(Debug, Serialize)]
struct Finding {
    level: Level,
    about: &'static str,
    detail: String,
}

fn finding(level: Level, about: &'static str, detail: impl Into<String>) -> Finding {
    Finding { level, about, detail: detail.into() }
}

const SERVER_SQL: &str = "
    SELECT current_setting('server_version'), current_setting('server_version_num')::int,
           current_setting('server_encoding'), pg_is_in_recovery(),
           current_setting('transaction_read_only')::bool, current_setting('fsync')::bool,
           current_setting('synchronous_standby_names'), current_user::text,
           (SELECT rolsuper FROM pg_catalog.pg_roles WHERE rolname = current_user)";

const PRIVILEGES_SQL: &str = "
    SELECT what FROM (VALUES
        ('USAGE on schema outbox',             has_schema_privilege('outbox', 'USAGE')),
        ('SELECT on outbox.message',           has_table_privilege('outbox.message', 'SELECT')),
        ('UPDATE (sent_at) on outbox.message', has_column_privilege('outbox.message', 'sent_at', 'UPDATE')),
        ('DELETE on outbox.message',           has_table_privilege('outbox.message', 'DELETE')),
        ('SELECT on outbox.message_seq',       has_sequence_privilege('outbox.message_seq', 'SELECT')),
        ('SELECT on outbox.lane',              has_table_privilege('outbox.lane', 'SELECT')),
        ('UPDATE on outbox.lane',              has_table_privilege('outbox.lane', 'UPDATE')),
        ('SELECT on outbox.relay',             has_table_privilege('outbox.relay', 'SELECT')),
        ('INSERT on outbox.relay',             has_table_privilege('outbox.relay', 'INSERT')),
        ('UPDATE on outbox.relay',             has_table_privilege('outbox.relay', 'UPDATE')),
        ('DELETE on outbox.relay',             has_table_privilege('outbox.relay', 'DELETE')),
        ('SELECT on outbox.held',              has_table_privilege('outbox.held', 'SELECT')),
        ('INSERT on outbox.held',              has_table_privilege('outbox.held', 'INSERT')),
        ('UPDATE on outbox.held',              has_table_privilege('outbox.held', 'UPDATE')),
        ('DELETE on outbox.held',              has_table_privilege('outbox.held', 'DELETE'))
    ) AS needed(what, have) WHERE NOT have";

/// Looks and reports.
pub async fn check(sources: &Sources, form: Output, out: &mut Vec<u8>) -> Outcome<Exit> {
    let configuration = config::for_relay(sources)?;
    logging::start(&configuration.log)?;
    let mut findings = database(&configuration).await?;
    let observer: Arc<dyn Observer> = Arc::new(NoObserver);
    findings.extend(brokers(&publishers::start(&configuration.brokers, &observer)?, &configuration.routes).await);
    match form {
        Output::Json => output::json(out, &findings)?,
        Output::Text => {
            for Finding { level, about, detail } in &findings {
                let word = match level {
                    Level::Ok => "ok",
                    Level::Warning => "warning",
                    Level::Error => "error",
                };
                writeln!(out, "{word:<8} {about:<12} {detail}")?;
            }
        }
    }
    Ok(if findings.iter().any(|finding| finding.level == Level::Error) { Exit::Failed } else { Exit::Done })
}

async fn database(configuration: &config::Relay) -> Outcome<Vec<Finding>> {
    let client = connect(&configuration.database).await?;
    let mut findings = server(&client, configuration.settings.fence).await?;
    let verdict = check_version(&client, Schema::Outbox).await;
    let verdict = verdict.map_err(|error| Failure::new(Exit::Configuration, error))?;
    let usable = verdict.is_usable();
    findings.push(finding(if usable { Level::Ok } else { Level::Error }, "schema", verdict.to_string()));
    if usable {
        let what = "cannot look at the privileges";
        let rows = answered(what, client.query_typed(PRIVILEGES_SQL, &[])).await?;
        let missing: Result<Vec<String>, _> = rows.iter().map(|row| row.try_get(0)).collect();
        let missing = missing.map_err(|error| explain(what, error))?;
        findings.push(if missing.is_empty() {
            finding(Level::Ok, "privileges", "this login has all that a relay needs")
        } else {
            let text = format!("this login lacks {}; grant it the role outbox_relay", missing.join(", "));
            finding(Level::Error, "privileges", text)
        });
    }
    Ok(findings)
}

async fn server(client: &tokio_postgres::Client, fence: DurabilityFence) -> Outcome<Vec<Finding>> {
    let what = "cannot look at the server";
    let rows = answered(what, client.query_typed(SERVER_SQL, &[])).await?;
    let Some(row) = rows.first() else { return Err(Failure::text(Exit::Failed, what)) };
    let wrong = |error| explain(what, error);
    let (version, number): (String, i32) = (row.try_get(0).map_err(wrong)?, row.try_get(1).map_err(wrong)?);
    let encoding: String = row.try_get(2).map_err(wrong)?;
    let (standby, read_only): (bool, bool) = (row.try_get(3).map_err(wrong)?, row.try_get(4).map_err(wrong)?);
    let fsync: bool = row.try_get(5).map_err(wrong)?;
    let standbys: String = row.try_get(6).map_err(wrong)?;
    let (user, superuser): (String, bool) = (row.try_get(7).map_err(wrong)?, row.try_get(8).map_err(wrong)?);
    let mut findings = vec![match number / 10_000 {
        ..14 => finding(Level::Error, "server", format!("PostgreSQL {version} is too old; 14 or later is needed")),
        14..=18 => finding(Level::Ok, "server", format!("PostgreSQL {version}")),
        _ => finding(Level::Warning, "server", format!("PostgreSQL {version} is newer than what was tested (18)")),
    }];
    if encoding != "UTF8" {
        findings.push(finding(
            Level::Error,
            "encoding",
            format!("the database has encoding {encoding}; UTF8 is needed"),
        ));
    }
    if standby {
        findings.push(finding(Level::Error, "server", "this is a standby; connect to the primary"));
    } else if read_only {
        findings.push(finding(Level::Error, "server", "transactions are read-only; see default_transaction_read_only"));
    }
    if !fsync {
        findings.push(finding(Level::Warning, "server", "fsync is off: a crash may lose rows and whole databases"));
    }
    if fence == DurabilityFence::Sync && standbys.is_empty() {
        let text = "durability_fence is sync and synchronous_standby_names is empty; name standbys, or use local";
        findings.push(finding(Level::Error, "fence", text));
    }
    if superuser {
        let text = format!("{user} is a superuser; a relay needs only the role outbox_relay");
        findings.push(finding(Level::Warning, "privileges", text));
    }
    Ok(findings)
}

/// Asks for every exchange and topic that routes name. What depends on a row cannot be asked for.
async fn brokers(publishers: &[Arc<dyn Publisher>], routes: &Routes) -> Vec<Finding> {
    let mut findings = Vec::new();
    for publisher in publishers {
        let own = routes.as_slice().iter().filter(|route| route.sink == publisher.sink());
        let addresses: Vec<Address> = own
            .filter_map(|route| {
                let destination = route.destination.literal()?.to_owned();
                let routing_key = route.routing_key.literal().unwrap_or_default().to_owned();
                Some(Address { sink: route.sink, destination, routing_key })
            })
            .collect();
        for (address, answer) in addresses.iter().zip(join_all(addresses.iter().map(|a| publisher.probe(a))).await) {
            findings.push(match answer {
                Ok(None) => finding(Level::Ok, "address", format!("{address} exists")),
                Ok(Some(missing)) => finding(Level::Error, "address", format!("{address}: {missing}")),
                Err(away) => finding(Level::Error, "address", format!("{address} could not be asked for: {away}")),
            });
        }
        publisher.stop(0).await;
    }
    findings
}
