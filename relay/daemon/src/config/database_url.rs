//! Database URLs as people paste them, turned into what the driver knows; the one place that decides about TLS.
//!
//! The driver refuses parameters that libpq and other tools understand. Here they are translated where they have a
//! meaning for us, left out where leaving out changes nothing, and refused with a word of advice otherwise.
//! TLS to the database comes with a later release: until then what asks for it is refused, and nothing falls back to
//! plain text silently. Plain text goes to this machine only, unless the URL says `sslmode=disable` itself.

use std::net::IpAddr;
use std::time::Duration;

use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode, TargetSessionAttrs};

/// A database that can be connected to without TLS.
#[derive(Clone, Debug)]
pub struct Database {
    /// Dial it with `NoTls`. Its `Debug` shows no password.
    pub config: Config,
}

/// Parameters of other tools that change nothing for us, with the values that may be left out ("" is any).
const LEFT_OUT: [(&str, &[&str]); 7] = [
    ("gssencmode", &["disable", "prefer"]),
    ("client_encoding", &["utf8", "utf-8", "auto"]),
    ("fallback_application_name", &[""]),
    ("schema", &[""]),
    ("connection_limit", &[""]),
    ("pool_timeout", &[""]),
    ("pgbouncer", &[""]),
];

const TLS_FILES: [&str; 4] = ["sslrootcert", "sslcert", "sslkey", "sslcrl"];
const TLS_MODES: [&str; 3] = ["require", "verify-ca", "verify-full"];
const LATER: &str = "TLS to PostgreSQL is not in this release; connect over a unix socket, through a tunnel on \
                     127.0.0.1, or, on a network you trust, with sslmode=disable";

/// Checks a URL or a `key=value` text.
///
/// # Errors
/// The rule that is broken; the text has no password in it.
pub fn parse(text: &str) -> Result<Database, String> {
    let (base, parameters) = split(text)?;
    let mut kept = Vec::new();
    let mut explicit_mode = false;
    for (name, value) in parameters {
        let plain = value.trim_matches('\'').to_lowercase();
        let left_out = LEFT_OUT.iter().find(|(known, _)| *known == name).map(|(_, values)| *values);
        match left_out {
            Some(values) if values == [""] || values.contains(&plain.as_str()) => continue,
            Some(values) => return Err(format!("{name} can be {} here", values.join(" or "))),
            None => {}
        }
        if TLS_FILES.contains(&name.as_str()) {
            // Without TLS its files mean nothing; whether TLS is asked for the mode says.
            continue;
        }
        if name == "sslmode" {
            explicit_mode = plain == "disable";
            match plain.as_str() {
                mode if TLS_MODES.contains(&mode) => return Err(format!("sslmode={mode} asks for TLS. {LATER}")),
                "disable" | "allow" | "prefer" => continue,
                _ => return Err("sslmode must be disable, allow, prefer, require, verify-ca or verify-full".to_owned()),
            }
        }
        kept.push((name, value));
    }
    let mut config: Config = joined(&base, &kept).parse().map_err(|error| explained(&error))?;
    if !explicit_mode && let Some(host) = config.get_hosts().iter().find(|host| is_remote(host, &config)) {
        return Err(format!("{} is another machine, and TLS is wanted there. {LATER}", shown(host)));
    }
    config.ssl_mode(SslMode::Disable);
    // Of several hosts the primary is meant, whichever it is by now: the outbox is never read from a replica.
    if config.get_hosts().len() > 1 && config.get_target_session_attrs() == TargetSessionAttrs::Any {
        config.target_session_attrs(TargetSessionAttrs::ReadWrite);
    }
    with_deadlines(&mut config);
    Ok(Database { config })
}

/// The driver waits for ever in all of these; a dead peer must be noticed within half a minute.
fn with_deadlines(config: &mut Config) {
    if config.get_application_name().is_none() {
        config.application_name("outbox-relay");
    }
    if config.get_connect_timeout().is_none() {
        config.connect_timeout(Duration::from_secs(5));
    }
    if config.get_tcp_user_timeout().is_none() {
        config.tcp_user_timeout(Duration::from_secs(20));
    }
    if config.get_keepalives() && config.get_keepalives_idle() == Duration::from_secs(2 * 60 * 60) {
        config.keepalives_idle(Duration::from_secs(10));
        config.keepalives_interval(Duration::from_secs(5));
        config.keepalives_retries(3);
    }
}

type Parameters = Vec<(String, String)>;

/// A URL's part before the question mark, or nothing for a `key=value` text, and the parameters.
fn split(text: &str) -> Result<(String, Parameters), String> {
    let form = "must be postgres://user:password@host:port/database";
    let Some((scheme, rest)) = text.split_once("://") else {
        if !text.contains('=') {
            return Err(form.to_owned());
        }
        // Values with spaces are quoted; such texts are rare, and the driver reads them itself.
        if text.contains('\'') {
            return Ok((text.to_owned(), Vec::new()));
        }
        let pairs = text.split_whitespace().map(|pair| pair.split_once('=').ok_or_else(|| form.to_owned()));
        let pairs: Result<Parameters, String> =
            pairs.map(|pair| pair.map(|(name, value)| (name.to_owned(), value.to_owned()))).collect();
        return Ok((String::new(), pairs?));
    };
    // SQLAlchemy and others name their driver in the scheme.
    let family = scheme.split_once('+').map_or(scheme, |(family, _)| family);
    if !["postgres", "postgresql"].contains(&family) {
        return Err(form.to_owned());
    }
    let (base, query) = rest.split_once('?').map_or((rest, ""), |(base, query)| (base, query));
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    let pairs = pairs.map(|pair| pair.split_once('=').map_or((pair, ""), |(name, value)| (name, value)));
    Ok((format!("postgres://{base}"), pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()))
}

fn joined(base: &str, parameters: &[(String, String)]) -> String {
    let pairs: Vec<String> = parameters.iter().map(|(name, value)| format!("{name}={value}")).collect();
    match (base.is_empty(), pairs.is_empty()) {
        (true, _) => pairs.join(" "),
        (false, true) => base.to_owned(),
        (false, false) => format!("{base}?{}", pairs.join("&")),
    }
}

/// The driver's own text names the parameter in its cause and never a value.
fn explained(error: &tokio_postgres::Error) -> String {
    let cause = std::error::Error::source(error).map(|cause| format!(": {cause}")).unwrap_or_default();
    format!("{error}{cause}; must be postgres://user:password@host:port/database")
}

fn is_remote(host: &Host, config: &Config) -> bool {
    match host {
        Host::Unix(_) => false,
        Host::Tcp(name) => {
            let given = config.get_hostaddrs();
            let is_loopback = |name: &str| name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
            let local = name == "localhost" || is_loopback(name.trim_matches(['[', ']']));
            if given.is_empty() { !local } else { !given.iter().all(IpAddr::is_loopback) }
        }
    }
}

fn shown(host: &Host) -> String {
    match host {
        Host::Tcp(name) => format!("'{name}'"),
        Host::Unix(path) => path.display().to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        parse(text).map(|_| ()).unwrap_err()
    }

    #[test]
    fn local_databases_need_no_tls() {
        for text in [
            "postgres://app:secret@localhost:5433/shop",
            "postgresql://app@127.0.0.1/shop?sslmode=prefer&gssencmode=disable",
            "postgres://app@[::1]/shop?sslmode=disable&sslrootcert=/x&schema=public",
            "postgresql+psycopg2://app@localhost/shop?client_encoding=UTF8",
            "postgres:///shop?host=/run/postgresql&user=app",
            "host=/run/postgresql dbname=shop user=app sslmode=prefer",
            "postgres://app@db.internal/shop?sslmode=disable",
        ] {
            let database = parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(database.config.get_dbname(), Some("shop"), "{text}");
            assert_eq!(database.config.get_user(), Some("app"), "{text}");
            assert_eq!(database.config.get_application_name(), Some("outbox-relay"));
            assert_eq!(database.config.get_keepalives_idle(), Duration::from_secs(10));
        }
    }

    #[test]
    fn of_several_hosts_the_primary_is_meant() {
        let attributes = |text: &str| parse(text).unwrap().config.get_target_session_attrs();
        assert_eq!(attributes("postgres://a@localhost:1,localhost:2/x"), TargetSessionAttrs::ReadWrite);
        assert_eq!(attributes("postgres://a@localhost:1/x"), TargetSessionAttrs::Any);
    }

    #[test]
    fn what_needs_tls_is_refused_and_never_sent_in_plain_text() {
        let message = refused("postgres://app:hunter2@localhost/shop?sslmode=verify-full&sslrootcert=/ca.pem");
        assert!(message.starts_with("sslmode=verify-full asks for TLS. TLS to PostgreSQL is not in this release"));
        let message = refused("postgres://app:hunter2@db.internal/shop");
        assert!(message.starts_with("'db.internal' is another machine, and TLS is wanted there."), "{message}");
        assert!(refused("host=10.0.0.1 user=a sslmode=prefer").starts_with("'10.0.0.1' is another machine"));
        assert!(refused("postgres://a@localhost,db2/x").starts_with("'db2' is another machine"));
    }

    #[test]
    fn nonsense_is_explained_without_the_password() {
        for (text, expected) in [
            ("hunter2", "must be postgres://"),
            ("mysql://app:hunter2@localhost/x", "must be postgres://"),
            ("postgres://app:hunter2@localhost/x?sslmode=always", "sslmode must be disable"),
            ("postgres://app:hunter2@localhost/x?gssencmode=require", "gssencmode can be disable or prefer here"),
            ("postgres://app:hunter2@localhost/x?colour=red", "unknown option `colour`"),
            ("postgres://app:hunter2@localhost:abc/x", "port"),
        ] {
            let message = refused(text);
            assert!(message.contains(expected) && !message.contains("hunter2"), "{text}: {message}");
        }
    }
}
