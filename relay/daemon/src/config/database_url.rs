//! Database URLs as people paste them, turned into what the driver knows.
//!
//! The driver refuses parameters that libpq and other tools understand. Here they are translated where they have a
//! meaning for us, left out where leaving out changes nothing, and refused with a word of advice otherwise. What they
//! say about TLS is for `database_tls` to judge.

use std::time::Duration;

use outbox_core::is_loopback;
use outbox_postgres::Database;
use tokio_postgres::Config;
use tokio_postgres::config::{ChannelBinding, Host, SslNegotiation, TargetSessionAttrs};

use super::database_tls::Written;
use super::value::percent_decoded;

/// Parameters of other tools that change nothing for us, with the values that may be left out ("" is any).
const LEFT_OUT: [(&str, &[&str]); 10] = [
    ("gssencmode", &["disable", "prefer"]),
    ("client_encoding", &["utf8", "utf-8", "auto"]),
    ("sslcompression", &["0"]),
    ("sslsni", &["1"]),
    ("ssl_min_protocol_version", &["tlsv1", "tlsv1.1", "tlsv1.2"]),
    ("fallback_application_name", &[""]),
    ("schema", &[""]),
    ("connection_limit", &[""]),
    ("pool_timeout", &[""]),
    ("pgbouncer", &[""]),
];

/// Checks a URL or a `key=value` text.
///
/// # Errors
/// The rule that is broken; the text has no password in it.
pub fn parse(text: &str) -> Result<Database, String> {
    let (base, parameters) = split(text)?;
    let mut kept = Vec::new();
    let mut written = Written::default();
    for (name, value) in parameters {
        let meant = if base.is_empty() { unquoted(&value) } else { percent_decoded(&value) };
        let plain = meant.to_lowercase();
        let left_out = LEFT_OUT.iter().find(|(known, _)| *known == name).map(|(_, values)| *values);
        match left_out {
            Some(values) if values == [""] || values.contains(&plain.as_str()) => continue,
            Some(values) => return Err(format!("{name} can be {} here", values.join(" or "))),
            None => {}
        }
        if !written.take(&name, &meant) {
            kept.push((name, value));
        }
    }
    let mut config: Config = joined(&base, &kept).parse().map_err(|error| explained(&error))?;
    let tls = written.decide(remote(&config).as_deref())?;
    match &tls {
        None if config.get_channel_binding() == ChannelBinding::Require => {
            return Err("channel_binding=require needs TLS; write sslmode=verify-full beside it".to_owned());
        }
        None if config.get_ssl_negotiation() == SslNegotiation::Direct => {
            return Err("sslnegotiation=direct needs TLS; write sslmode=verify-full beside it".to_owned());
        }
        Some(_) if config.get_hosts().is_empty() => {
            return Err("hostaddr alone has no name to verify; give the name as host beside it".to_owned());
        }
        Some(_) if config.get_hosts().iter().any(|host| matches!(host, Host::Unix(_))) => {
            return Err("PostgreSQL speaks no TLS over a Unix socket; leave sslmode out, or name hosts only".to_owned());
        }
        None | Some(_) => {}
    }
    // Of several hosts the primary is meant, whichever it is by now: the outbox is never read from a replica.
    if config.get_hosts().len() > 1 && config.get_target_session_attrs() == TargetSessionAttrs::Any {
        config.target_session_attrs(TargetSessionAttrs::ReadWrite);
    }
    with_deadlines(&mut config);
    Ok(Database::new(config, tls))
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
        return Ok((String::new(), pairs(text).ok_or_else(|| form.to_owned())?));
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

/// The pairs of a `key=value` text, values as they are written: in quotes where they have spaces, with a backslash
/// before what would end them. `None`: it is no such text.
fn pairs(text: &str) -> Option<Parameters> {
    let mut pairs = Vec::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        let (name, value) = rest.split_once('=')?;
        let value = value.trim_start();
        let end = end_of_value(value)?;
        pairs.push((name.trim_end().to_owned(), value[..end].to_owned()));
        rest = value[end..].trim_start();
    }
    Some(pairs)
}

fn end_of_value(value: &str) -> Option<usize> {
    let quoted = value.starts_with('\'');
    let mut escaped = false;
    for (index, letter) in value.char_indices().skip(usize::from(quoted)) {
        match letter {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '\'' if quoted => return Some(index + 1),
            letter if !quoted && letter.is_whitespace() => return Some(index),
            _ => {}
        }
    }
    (!quoted && !escaped).then_some(value.len())
}

/// What the value of a `key=value` text stands for.
fn unquoted(value: &str) -> String {
    let inner = value.strip_prefix('\'').and_then(|value| value.strip_suffix('\'')).unwrap_or(value);
    let mut meant = String::new();
    let mut letters = inner.chars();
    while let Some(letter) = letters.next() {
        meant.extend(if letter == '\\' { letters.next() } else { Some(letter) });
    }
    meant
}

/// The first host that is another machine, for messages.
fn remote(config: &Config) -> Option<String> {
    let (hosts, addresses) = (config.get_hosts(), config.get_hostaddrs());
    // What is dialled is the address, where there is one.
    if let Some(index) = addresses.iter().position(|address| !address.is_loopback()) {
        return Some(hosts.get(index).map_or_else(|| format!("'{}'", addresses[index]), shown));
    }
    hosts.iter().find(|host| addresses.is_empty() && is_remote(host)).map(shown)
}

fn is_remote(host: &Host) -> bool {
    match host {
        Host::Unix(_) => false,
        Host::Tcp(name) => !is_loopback(name),
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
    use outbox_postgres::Trust;
    use tokio_postgres::config::SslMode;

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
            "host = db.internal dbname='shop' user=app password='hun\\'t er2' sslmode = 'disable'",
        ] {
            let database = parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
            let config = database.config();
            assert_eq!(config.get_dbname(), Some("shop"), "{text}");
            assert_eq!(config.get_user(), Some("app"), "{text}");
            assert_eq!(config.get_application_name(), Some("outbox-relay"));
            assert_eq!(config.get_keepalives_idle(), Duration::from_secs(10));
            assert_eq!((config.get_ssl_mode(), database.tls()), (SslMode::Disable, None), "{text}");
        }
    }

    #[test]
    fn of_several_hosts_the_primary_is_meant() {
        let attributes = |text: &str| parse(text).unwrap().config().get_target_session_attrs();
        assert_eq!(attributes("postgres://a@localhost:1,localhost:2/x"), TargetSessionAttrs::ReadWrite);
        assert_eq!(attributes("postgres://a@localhost:1/x"), TargetSessionAttrs::Any);
    }

    #[test]
    fn another_machine_is_reached_with_tls_or_not_at_all() {
        let verified = |roots: Option<&str>| Trust::AuthorityAndName(roots.map(Into::into));
        for (text, trust) in [
            ("postgres://app:hunter2@db.internal/shop", verified(None)),
            ("host=10.0.0.1 user=a", verified(None)),
            ("host=db user=a password='x y'", verified(None)),
            ("hostaddr=10.0.0.1 host=db user=a", verified(None)),
            ("postgres://a@localhost,db2/x", verified(None)),
            ("postgres://a@db/x?sslmode=verify-full&sslrootcert=%2Fetc%2Fca%20x.pem", verified(Some("/etc/ca x.pem"))),
            ("host=db user=a sslrootcert='/etc/ca x.pem'", verified(Some("/etc/ca x.pem"))),
            ("postgres://a@db/x?sslmode=require&sslsni=1&ssl_min_protocol_version=TLSv1.2", Trust::Anybody),
            ("postgres://a@localhost/x?sslmode=verify-full&channel_binding=require", verified(None)),
        ] {
            let database = parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(database.config().get_ssl_mode(), SslMode::Require, "{text}");
            assert_eq!(database.tls().map(|tls| &tls.trust), Some(&trust), "{text}");
        }
        for (text, expected) in [
            ("host=10.0.0.1 user=a sslmode=prefer", "and '10.0.0.1' is another machine"),
            ("host=localhost hostaddr=10.0.0.1 user=a sslmode=prefer", "and 'localhost' is another machine"),
            ("hostaddr=10.0.0.1 user=a sslmode=prefer", "and '10.0.0.1' is another machine"),
            ("postgres://a@localhost,db2/x?sslmode=allow", "and 'db2' is another machine"),
            ("hostaddr=10.0.0.1 user=a", "hostaddr alone has no name to verify"),
            ("host=/run,db user=a", "no TLS over a Unix socket"),
            ("postgres://a@localhost/x?channel_binding=require", "channel_binding=require needs TLS"),
            ("postgres://a@localhost/x?sslnegotiation=direct", "sslnegotiation=direct needs TLS"),
        ] {
            let message = refused(text);
            assert!(message.contains(expected), "{text}: {message}");
        }
    }

    #[test]
    fn nonsense_is_explained_without_the_password() {
        for (text, expected) in [
            ("hunter2", "must be postgres://"),
            ("mysql://app:hunter2@localhost/x", "must be postgres://"),
            ("postgres://app:hunter2@localhost/x?sslmode=always", "sslmode must be disable"),
            ("host=localhost password='hunter2", "must be postgres://"),
            ("postgres://app:hunter2@localhost/x?gssencmode=require", "gssencmode can be disable or prefer here"),
            ("postgres://app:hunter2@localhost/x?colour=red", "unknown option `colour`"),
            ("postgres://app:hunter2@localhost:abc/x", "port"),
        ] {
            let message = refused(text);
            assert!(message.contains(expected) && !message.contains("hunter2"), "{text}: {message}");
        }
    }
}
