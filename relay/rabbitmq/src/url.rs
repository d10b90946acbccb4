//! What `rabbitmq.url` says, in the words of RabbitMQ's own URI format, and what follows for TLS.
//!
//! Guaranteed: a parameter that is about TLS is understood or refused, never passed over; none of them makes the
//! connection less verified. Errors never repeat what was typed.

use std::path::PathBuf;

use lapin::uri::{AMQPScheme, AMQPUri, SASLMechanism};
use outbox_core::is_loopback;
use outbox_tls::Identity;

use crate::config::{ConfigError, RabbitmqOptions};

/// The smallest frame AMQP allows a peer to ask for.
const FRAME_BYTES_MIN: u32 = 4_096;

/// Parts of names of parameters that are about TLS, whoever understands them.
const ABOUT_TLS: [&str; 6] = ["ssl", "tls", "cert", "key", "verify", "sni"];

/// Where the broker is and how it is spoken to.
#[derive(Clone)]
pub(crate) struct Target {
    pub uri: AMQPUri,
    /// `None`: plain text.
    pub tls: Option<Tls>,
}

/// How TLS is spoken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tls {
    /// `None`: the system's authorities.
    pub ca_file: Option<PathBuf>,
    pub identity: Option<Identity>,
    /// The name that the broker's certificate must have.
    pub server_name: String,
}

/// Reads the URL and the options beside it, which win over it.
///
/// # Errors
/// The first rule that is broken.
pub(crate) fn parse(options: &RabbitmqOptions) -> Result<Target, ConfigError> {
    let text = options.url.trim();
    if !(text.starts_with("amqp://") || text.starts_with("amqps://")) {
        return Err(refuse("must begin with amqp:// or amqps://"));
    }
    let mut uri: AMQPUri = text.parse().map_err(|_| {
        refuse(
            "is no AMQP URL; it looks like amqp://user:password@host:5672/vhost, with special characters \
                percent-encoded (a '/' in a password is %2F)",
        )
    })?;
    if let Some(host) = ipv6_host(text) {
        // lapin's parser takes an IPv6 literal for a missing host and goes to localhost instead.
        uri.authority.host =
            host.parse::<std::net::Ipv6Addr>().map_err(|_| refuse("has no valid IPv6 host"))?.to_string();
    }
    if uri.authority.host.is_empty() || uri.authority.port == 0 {
        return Err(refuse("must name a host and a port above 0"));
    }
    if uri.scheme == AMQPScheme::AMQP && !options.allow_plaintext && !is_loopback(&uri.authority.host) {
        return Err(refuse(
            "would go to another machine in plain text; write amqps:// (with rabbitmq.ca_file where its authority is \
             your own), or, on a network you trust, set rabbitmq.allow_plaintext = true",
        ));
    }
    if uri.vhost.is_empty() {
        // "amqp://host/" names the virtual host "" by the letter; nobody has one, and everybody means "/".
        "/".clone_into(&mut uri.vhost);
    }
    let long = [&uri.vhost, &uri.authority.userinfo.username].iter().any(|part| part.len() > 255);
    if long {
        return Err(refuse("has a virtual host or a user of more than 255 bytes"));
    }
    if uri.query.frame_max.is_some_and(|bytes| bytes != 0 && bytes < FRAME_BYTES_MIN) {
        return Err(refuse("has a frame_max below 4,096"));
    }
    if uri.query.channel_max.is_some_and(|most| most != 0 && usize::from(most) < options.channels + 2) {
        return Err(refuse("has a channel_max below rabbitmq.channels + 2"));
    }
    uri.query.heartbeat = uri.query.heartbeat.filter(|seconds| *seconds > 0).or(Some(options.heartbeat_s));
    let tls = Written::read(text)?.decide(options, &uri)?;
    Ok(Target { uri, tls })
}

fn refuse(rule: &'static str) -> ConfigError {
    ConfigError { key: "rabbitmq.url", rule }
}

fn ipv6_host(url: &str) -> Option<&str> {
    let (_, rest) = url.split_once("://")?;
    let authority = rest.split(['/', '?', '#']).next()?;
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    host.strip_prefix('[')?.split_once(']').map(|(host, _)| host)
}

/// What the URL says of TLS.
#[derive(Default)]
struct Written {
    ca_file: Option<PathBuf>,
    certificate_file: Option<PathBuf>,
    key_file: Option<PathBuf>,
    server_name: Option<String>,
    asked: bool,
}

impl Written {
    fn read(url: &str) -> Result<Self, ConfigError> {
        let mut written = Self::default();
        let query = url.split_once('?').map_or("", |(_, query)| query);
        let query = query.split('#').next().unwrap_or("");
        let mut mechanisms = 0;
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            mechanisms += usize::from(name == "auth_mechanism");
            written.take(&name, &value)?;
        }
        if mechanisms > 1 {
            return Err(refuse("names several auth_mechanism; name the one to use"));
        }
        Ok(written)
    }

    fn take(&mut self, name: &str, value: &str) -> Result<(), ConfigError> {
        let path = || Some(PathBuf::from(value)).filter(|_| !value.is_empty());
        match (name, value) {
            ("cacertfile", _) => self.ca_file = path(),
            ("certfile", _) => self.certificate_file = path(),
            ("keyfile", _) => self.key_file = path(),
            // In RabbitMQ's own clients this word switches the check of the name off.
            ("server_name_indication", "disable") => {
                return Err(refuse(
                    "has server_name_indication=disable, and the broker's name is always verified; name the host of \
                     its certificate",
                ));
            }
            ("server_name_indication", _) => self.server_name = Some(value.to_owned()).filter(|name| !name.is_empty()),
            ("verify", "verify_peer") | ("fail_if_no_peer_cert", "true") => {}
            ("verify" | "fail_if_no_peer_cert", _) => {
                return Err(refuse(
                    "asks for a broker that is not verified, and it always is; leave the parameter out, and name its \
                     authority with rabbitmq.ca_file or cacertfile",
                ));
            }
            ("password", _) => {
                return Err(refuse(
                    "has a passphrase for keyfile, which is not read; write the key without one, readable for the \
                     relay alone",
                ));
            }
            ("depth", _) => return Err(refuse("has depth, which is not supported; leave it out")),
            _ if ABOUT_TLS.iter().any(|part| name.contains(part)) => {
                return Err(refuse(
                    "has an unknown parameter about TLS; known are cacertfile, certfile, keyfile, verify, \
                     fail_if_no_peer_cert, server_name_indication and auth_mechanism",
                ));
            }
            _ => return Ok(()),
        }
        self.asked = true;
        Ok(())
    }

    fn decide(self, options: &RabbitmqOptions, uri: &AMQPUri) -> Result<Option<Tls>, ConfigError> {
        let needs_tls = |key| ConfigError { key, rule: "needs an amqps:// URL" };
        let external = uri.query.auth_mechanism == Some(SASLMechanism::External);
        if uri.scheme == AMQPScheme::AMQP {
            let given = [
                (options.ca_file.is_some(), "rabbitmq.ca_file"),
                (options.certificate_file.is_some(), "rabbitmq.certificate_file"),
                (options.key_file.is_some(), "rabbitmq.key_file"),
            ];
            if let Some((_, key)) = given.iter().find(|(given, _)| *given) {
                return Err(needs_tls(key));
            }
            if self.asked || external {
                return Err(refuse("has parameters about TLS, which need amqps://"));
            }
            return Ok(None);
        }
        let certificate = options.certificate_file.clone().or(self.certificate_file);
        let key = options.key_file.clone().or(self.key_file);
        let identity = match (certificate, key) {
            (Some(certificate), Some(key)) => Some(Identity { certificate, key }),
            (None, None) if external => {
                return Err(refuse(
                    "has auth_mechanism=external, which is a login by certificate; set rabbitmq.certificate_file and \
                     rabbitmq.key_file (certfile and keyfile in the URL)",
                ));
            }
            (None, None) => None,
            (Some(_), None) => {
                let rule = "is missing: rabbitmq.certificate_file (certfile in the URL) needs its key";
                return Err(ConfigError { key: "rabbitmq.key_file", rule });
            }
            (None, Some(_)) => {
                let rule = "is missing: rabbitmq.key_file (keyfile in the URL) is the key of a certificate";
                return Err(ConfigError { key: "rabbitmq.certificate_file", rule });
            }
        };
        let server_name = self.server_name.unwrap_or_else(|| uri.authority.host.clone());
        Ok(Some(Tls { ca_file: options.ca_file.clone().or(self.ca_file), identity, server_name }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::RabbitmqConfig;

    fn config(url: &str) -> Result<RabbitmqConfig, ConfigError> {
        RabbitmqConfig::new(RabbitmqOptions { allow_plaintext: true, ..RabbitmqOptions::new(url) })
    }

    #[test]
    fn plain_text_goes_to_this_machine_alone_unless_somebody_says_so() {
        let unsaid = |url: &str| RabbitmqConfig::new(RabbitmqOptions::new(url)).map(|_| ());
        for url in ["amqp://localhost", "amqp://u:p@127.0.0.1:5673/x", "amqp://[::1]", "amqps://rabbit"] {
            assert_eq!(unsaid(url), Ok(()), "{url}");
        }
        for url in ["amqp://rabbit", "amqp://u:secret@10.0.0.1/x", "amqp://[fe80::1]:5672"] {
            let error = unsaid(url).expect_err(url);
            assert_eq!(error.key, "rabbitmq.url");
            assert!(error.rule.contains("rabbitmq.allow_plaintext = true"), "{error}");
        }
    }

    #[test]
    fn urls_that_people_paste_are_understood() {
        for (url, endpoint) in [
            ("amqp://h", "h:5672 (virtual host '/')"),
            ("amqp://h/", "h:5672 (virtual host '/')"),
            ("amqp://u:p%40ss@h:1234/%2f", "h:1234 (virtual host '/')"),
            ("amqps://u:p@h/orders", "h:5671 (virtual host 'orders')"),
            ("amqp://u:p@[::1]:7000/x", "[::1]:7000 (virtual host 'x')"),
            (" amqp://127.0.0.1 ", "127.0.0.1:5672 (virtual host '/')"),
        ] {
            assert_eq!(config(url).map(|c| c.endpoint()), Ok(endpoint.to_owned()), "{url}");
        }
    }

    #[test]
    fn odd_urls_are_refused_by_key_and_never_repeated() {
        for url in [
            "",
            "secret",
            "http://secret",
            "amqp:secret",
            "amqp://u:secret@h:99999",
            "amqp://u:se/cret@h:x/",
            "amqp://h?heartbeat=secret",
            "amqp://h?frame_max=10",
            "amqp://h?channel_max=2",
            "amqp://[secret]/",
            "amqps://h?verify=verify_none",
            "amqp://h?cacertfile=/ca.pem",
            "amqp://u:%ff@h",
            "amqp://h:0",
        ] {
            let error = config(url).expect_err(url);
            assert!(error.key.starts_with("rabbitmq."), "{url}: {error}");
            assert!(!error.to_string().contains("secret"), "{error}");
        }
    }

    fn tls(url: &str, change: impl FnOnce(&mut RabbitmqOptions)) -> Result<Tls, ConfigError> {
        let mut options = RabbitmqOptions::new(url);
        change(&mut options);
        RabbitmqConfig::new(options).map(|config| config.tls().expect("TLS").clone())
    }

    #[test]
    fn rabbitmqs_own_parameters_for_tls_are_understood() {
        let identity =
            |certificate: &str, key: &str| Some(Identity { certificate: certificate.into(), key: key.into() });
        let url = "amqps://rabbit/orders?cacertfile=%2Fetc/my+ca.pem&certfile=/c.pem&keyfile=/k.pem\
                   &verify=verify_peer&fail_if_no_peer_cert=true&server_name_indication=broker.internal\
                   &auth_mechanism=EXTERNAL&heartbeat=5#x";
        let all = Tls {
            ca_file: Some("/etc/my ca.pem".into()),
            identity: identity("/c.pem", "/k.pem"),
            server_name: "broker.internal".into(),
        };
        assert_eq!(tls(url, |_| ()), Ok(all.clone()));
        let keys = |options: &mut RabbitmqOptions| {
            options.ca_file = Some("/ca".into());
            options.certificate_file = Some("/c".into());
            options.key_file = Some("/k".into());
        };
        let by_keys = Tls { ca_file: Some("/ca".into()), identity: identity("/c", "/k"), ..all };
        assert_eq!(tls(url, keys), Ok(by_keys.clone()), "the keys win");
        let plain = Tls { server_name: "rabbit".into(), ..by_keys };
        assert_eq!(tls("amqps://rabbit?auth_mechanism=external", keys), Ok(plain.clone()));
        assert_eq!(
            tls("amqps://rabbit?certfile=&keyfile=", |_| ()),
            Ok(Tls { ca_file: None, identity: None, ..plain })
        );
    }

    #[test]
    fn what_would_weaken_a_connection_or_log_in_unseen_is_refused() {
        for (url, words) in [
            ("amqps://h?verify=verify_none", "always is; leave the parameter out"),
            ("amqps://h?verify=", "always is"),
            ("amqps://h?fail_if_no_peer_cert=false", "always is"),
            ("amqps://h?server_name_indication=disable", "server_name_indication=disable"),
            ("amqps://h?certfile=/c&keyfile=/k&password=hunter2", "passphrase"),
            ("amqps://h?depth=2", "depth"),
            ("amqps://h?ssl_options=%7B%7D", "unknown parameter about TLS"),
            ("amqps://h?cert_file=/c", "unknown parameter about TLS"),
            ("amqps://h?auth_mechanism=external", "login by certificate"),
            ("amqps://h?auth_mechanism=plain&auth_mechanism=external&certfile=/c&keyfile=/k", "several"),
            ("amqps://h?certfile=/c", "rabbitmq.key_file: is missing"),
            ("amqps://h?keyfile=/k", "rabbitmq.certificate_file: is missing"),
            ("amqp://h?auth_mechanism=external", "which need amqps://"),
            ("amqp://h?certfile=/c&keyfile=/k", "which need amqps://"),
            ("amqp://h?verify=verify_peer", "which need amqps://"),
        ] {
            let error = config(url).expect_err(url).to_string();
            assert!(error.contains(words) && !error.contains("hunter2"), "{url}: {error}");
        }
        let mut options = RabbitmqOptions::new("amqp://localhost");
        options.key_file = Some("/k".into());
        let error = RabbitmqConfig::new(options).expect_err("plain text").to_string();
        assert_eq!(error, "rabbitmq.key_file: needs an amqps:// URL");
    }
}
