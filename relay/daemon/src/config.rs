//! The whole configuration: read from all sources, checked whole, and turned into values that are valid because they
//! exist.
//!
//! Guaranteed: nothing is connected to and no port is bound before everything is checked; all problems are shown at
//! once, each with its key, its source and the rule; unknown keys are problems; no secret is in a message or a
//! `Debug`. A command reads only the secrets it needs, so `status` works for an operator who may not read the
//! broker's password. What lies in files of secrets is read again at each connect. Deliberately absent: reloading
//! anything else while running; restart instead.

mod brokers;
mod database_tls;
mod database_url;
mod effective;
mod intakes;
mod keys;
mod kind;
mod layers;
mod otel;
mod problem;
mod reader;
mod routes;
mod schema;
mod secret;
mod settings;
mod value;

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;

use outbox_core::{Fresh, OnPark, Routes};
use secrecy::ExposeSecret as _;

pub use brokers::Brokers;
pub use effective::{Effective, default_file};
pub use intakes::SourceTable;
#[cfg(test)]
pub use keys::{KEYS, ROUTE, SOURCE};
pub use layers::Sources;
pub use otel::Otel;
pub use outbox_postgres::Database;
pub use problem::ConfigurationError;
pub use schema::schema;
pub use settings::Settings;

use layers::{Merged, merge};
use reader::Reader;
use routes::RouteTables;

/// How log lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    Text,
    Json,
}

/// What is logged and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Log {
    pub format: LogFormat,
    /// A level or a list of `target=level`.
    pub level: String,
}

/// What a command needs that only talks to the database.
#[derive(Debug)]
pub struct DatabaseOnly {
    pub database: Database,
    /// `on_park = "block_key"`, which changes what counts as late.
    pub block_key: bool,
    pub tables: Vec<SourceTable>,
    pub log: Log,
}

/// What a relay needs.
#[derive(Debug)]
pub struct Relay {
    pub database: Database,
    pub brokers: Brokers,
    pub routes: Routes,
    pub settings: Settings,
    /// Tables of an application whose rows are taken over.
    pub tables: Vec<SourceTable>,
    /// `None`: no endpoint.
    pub admin_listen: Option<SocketAddr>,
    /// `None`: no spans.
    pub otel: Option<Otel>,
    pub log: Log,
}

/// The configuration of a command that only talks to the database.
///
/// # Errors
/// Everything that is wrong, also in keys that the command does not use.
pub fn for_database(sources: &Sources) -> Result<DatabaseOnly, ConfigurationError> {
    let (mut reader, _) = start(sources);
    let database = database(&mut reader);
    let log = log(&mut reader);
    let block_key = Settings::read(&mut reader).relay.on_park == OnPark::BlockKey;
    let tables = intakes::read(&mut reader);
    let _ = (RouteTables::read(&mut reader), admin_listen(&mut reader));
    let database = reader.finish(database)?;
    database
        .map(|database| DatabaseOnly { database, block_key, tables, log })
        .ok_or_else(|| ConfigurationError(Vec::new()))
}

/// The configuration of `run` and `check`.
///
/// # Errors
/// Everything that is wrong.
pub fn for_relay(sources: &Sources) -> Result<Relay, ConfigurationError> {
    let (mut reader, _) = start(sources);
    let database = database(&mut reader);
    let mut settings = Settings::read(&mut reader);
    let tables = intakes::read(&mut reader);
    settings.relay.intakes = tables.iter().map(|source| source.intake.clone()).collect();
    let brokers = Brokers::read(&mut reader, &settings);
    let route_tables = RouteTables::read(&mut reader);
    let admin_listen = admin_listen(&mut reader);
    let otel = otel::read(&mut reader);
    let log = log(&mut reader);
    let asked = Brokers::asked(&mut reader);
    if asked.is_empty() {
        let rule = "no broker is configured; set AMQP_URL or KAFKA_BROKERS, --amqp-url or --kafka-brokers";
        reader.miss("rabbitmq.url or kafka.brokers", rule);
    }
    let routes = if asked.is_empty() { None } else { route_tables.for_brokers(&mut reader, &asked) };
    let (database, routes) = reader.finish((database, routes))?;
    let (Some(database), Some(routes)) = (database, routes) else { return Err(ConfigurationError(Vec::new())) };
    Ok(Relay { database, brokers, routes, settings, tables, admin_listen, otel, log })
}

/// What would be used, for printing. A broker or a database need not be there.
///
/// # Errors
/// Everything that is wrong with what is set.
pub fn effective(sources: &Sources) -> Result<Effective, ConfigurationError> {
    let (mut reader, merged) = start(sources);
    if reader.set("database.url").is_some() || reader.set("database.url_file").is_some() {
        let _ = database(&mut reader);
    }
    let settings = Settings::read(&mut reader);
    let _ = Brokers::read(&mut reader, &settings);
    let tables = RouteTables::read(&mut reader);
    let asked = Brokers::asked(&mut reader);
    if !asked.is_empty() {
        let _ = tables.for_brokers(&mut reader, &asked);
    }
    let _ = (intakes::read(&mut reader), admin_listen(&mut reader), otel::read(&mut reader), log(&mut reader));
    reader.finish(Effective::new(merged))
}

fn start(sources: &Sources) -> (Reader, Merged) {
    let mut problems = Vec::new();
    let merged = merge(sources, &mut problems);
    (Reader::new(merged.clone(), problems), merged)
}

fn database(reader: &mut Reader) -> Option<Database> {
    let from_file = reader.set("database.url_file").is_some();
    let key = if from_file { "database.url_file" } else { "database.url" };
    let Some(url) = secret::read(reader, "database.url") else {
        if !from_file {
            reader.miss(
                "database.url",
                "no database is configured; set DATABASE_URL, --database-url or database.url_file",
            );
        }
        return None;
    };
    match database_url::parse(url.expose_secret()) {
        Ok(database) => {
            let Some(path) = secret::file(reader, "database.url") else { return Some(database) };
            let login = move || Ok(database_url::parse(&secret::text_of(&path)?)?.config().clone());
            return Some(database.with_login(Fresh::new(login)));
        }
        Err(rule) => reader.refuse(key, rule),
    }
    None
}

fn admin_listen(reader: &mut Reader) -> Option<SocketAddr> {
    let text = reader.text("admin.listen").unwrap_or_default();
    if text == "off" {
        return None;
    }
    let address = text.replace("localhost:", "127.0.0.1:").parse();
    if address.is_err() {
        reader.refuse("admin.listen", format!("must be IP:PORT such as 127.0.0.1:9645, or \"off\"; it is '{text}'"));
    }
    address.ok()
}

fn log(reader: &mut Reader) -> Log {
    let format = reader.choice("log.format", &[("text", LogFormat::Text), ("json", LogFormat::Json)]);
    let level = reader.text("log.level").unwrap_or_default();
    if let Err(error) = crate::logging::filter(&level) {
        reader.refuse(
            "log.level",
            format!("must be error, warn, info, debug or trace, or a list of target=level: {error}"),
        );
    }
    Log { format, level }
}
