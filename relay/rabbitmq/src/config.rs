//! What the adapter needs to know, checked whole before anything connects.
//!
//! A `RabbitmqConfig` that exists is valid. The URL is a secret: no `Debug`, error or log shows it, and errors
//! never repeat what was typed, because a password may stand anywhere in a mistyped URL.

use std::fmt;
use std::path::PathBuf;

use lapin::uri::{AMQPScheme, AMQPUri};
use outbox_core::{BackoffPolicy, is_loopback};

/// RabbitMQ's default `max_message_size` up to 3.13; newer brokers default to 16 MiB and say so in their refusal,
/// which the adapter then remembers.
pub const MESSAGE_BYTES_MAX_DEFAULT: usize = 134_217_728;

/// The smallest frame AMQP allows a peer to ask for.
const FRAME_BYTES_MIN: u32 = 4_096;

/// Options of the official URI format that lapin would ignore without a word, TLS checks among them.
const UNSUPPORTED_QUERY: [&str; 8] =
    ["certfile", "keyfile", "verify", "fail_if_no_peer_cert", "password", "server_name_indication", "depth", "sni"];

/// A setting that cannot be used: the key and the rule it breaks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {rule}")]
pub struct ConfigError {
    /// The key as in the configuration file.
    pub key: &'static str,
    /// What must hold.
    pub rule: &'static str,
}

/// The settings as given, not checked yet. Start from `RabbitmqOptions::new`.
#[derive(Clone)]
pub struct RabbitmqOptions {
    /// `amqp://user:password@host:port/vhost` or `amqps://…`; a secret.
    pub url: String,
    /// PEM file with the certificate authorities to trust instead of the system's; read at each connect, so that a
    /// rotated file counts from the next connection on.
    pub ca_file: Option<PathBuf>,
    /// Whether an `amqp://` URL may name another machine.
    pub allow_plaintext: bool,
    /// Channels per connection, each with a window of its own.
    pub channels: usize,
    /// Unconfirmed rows per channel.
    pub window_max: usize,
    /// Payload, header and key bytes per channel that may be unconfirmed; one row always may.
    pub window_bytes_max: usize,
    /// How long a window may wait for its confirms before the connection is dropped.
    pub confirm_timeout_ms: u64,
    /// How long one try to connect, and each question to the broker, may take.
    pub connect_timeout_ms: u64,
    /// Used when the URL has no `heartbeat`.
    pub heartbeat_s: u16,
    /// The broker's `max_message_size`; `None` is the default of the broker.
    pub message_bytes_max: Option<usize>,
    /// False keeps at most one row of a key unconfirmed (`order = "strict"`).
    pub pipelined: bool,
    /// Waits between tries to connect.
    pub reconnect: BackoffPolicy,
}

impl RabbitmqOptions {
    /// The documented defaults for a broker.
    #[must_use]
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            ca_file: None,
            allow_plaintext: false,
            channels: 2,
            window_max: 500,
            window_bytes_max: 8 * 1_024 * 1_024,
            confirm_timeout_ms: 30_000,
            connect_timeout_ms: 10_000,
            heartbeat_s: 10,
            message_bytes_max: None,
            pipelined: false,
            reconnect: BackoffPolicy::default(),
        }
    }
}

impl fmt::Debug for RabbitmqOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RabbitmqOptions")
            .field("url", &"***")
            .field("channels", &self.channels)
            .field("window_max", &self.window_max)
            .field("pipelined", &self.pipelined)
            .finish_non_exhaustive()
    }
}

/// Checked settings.
#[derive(Clone)]
pub struct RabbitmqConfig {
    uri: AMQPUri,
    ca_file: Option<PathBuf>,
    options: RabbitmqOptions,
}

impl RabbitmqConfig {
    /// Checks the settings.
    ///
    /// # Errors
    /// The first setting that cannot be used, by its key.
    pub fn new(options: RabbitmqOptions) -> Result<Self, ConfigError> {
        let rules = [
            ((1..=64).contains(&options.channels), "rabbitmq.channels", "must lie between 1 and 64"),
            ((1..=10_000).contains(&options.window_max), "rabbitmq.window_max", "must lie between 1 and 10,000"),
            (options.window_bytes_max >= 1, "rabbitmq.window_bytes_max", "must be at least 1"),
            (
                (100..=3_600_000).contains(&options.confirm_timeout_ms),
                "confirm.timeout_ms",
                "must lie between 100 and 3,600,000",
            ),
            (
                (100..=600_000).contains(&options.connect_timeout_ms),
                "rabbitmq.connect_timeout_ms",
                "must lie between 100 and 600,000",
            ),
            (
                options.heartbeat_s >= 1,
                "rabbitmq.heartbeat_s",
                "must be at least 1: a frozen broker shows no other way",
            ),
            (options.message_bytes_max != Some(0), "rabbitmq.message_bytes_max", "must be at least 1"),
            (options.reconnect.initial_ms >= 1, "retry.initial_ms", "must be at least 1"),
            (
                options.reconnect.max_ms >= options.reconnect.initial_ms,
                "retry.max_ms",
                "must be at least retry.initial_ms",
            ),
        ];
        for (holds, key, rule) in rules {
            if !holds {
                return Err(ConfigError { key, rule });
            }
        }
        let (uri, ca_in_url) = parse_url(&options)?;
        let ca_file = options.ca_file.clone().or(ca_in_url);
        Ok(Self { uri, ca_file, options })
    }

    pub(crate) const fn uri(&self) -> &AMQPUri {
        &self.uri
    }

    pub(crate) const fn ca_file(&self) -> Option<&PathBuf> {
        self.ca_file.as_ref()
    }

    pub(crate) const fn options(&self) -> &RabbitmqOptions {
        &self.options
    }

    /// `rabbitmq.order = "pipelined"`.
    #[must_use]
    pub const fn is_pipelined(&self) -> bool {
        self.options.pipelined
    }

    /// The largest body that is sent, unless the broker says that it takes less.
    #[must_use]
    pub fn message_bytes_max(&self) -> usize {
        self.options.message_bytes_max.unwrap_or(MESSAGE_BYTES_MAX_DEFAULT)
    }

    /// Where the broker is, fit for logs: no user, no password.
    #[must_use]
    pub fn endpoint(&self) -> String {
        let host = &self.uri.authority.host;
        let host = if host.contains(':') { format!("[{host}]") } else { host.clone() };
        format!("{host}:{} (virtual host '{}')", self.uri.authority.port, self.uri.vhost)
    }
}

impl fmt::Debug for RabbitmqConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RabbitmqConfig")
            .field("endpoint", &self.endpoint())
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

/// The URL, and the CA file it may name (`cacertfile`, as in RabbitMQ's own URI format).
fn parse_url(options: &RabbitmqOptions) -> Result<(AMQPUri, Option<PathBuf>), ConfigError> {
    let refuse = |rule| ConfigError { key: "rabbitmq.url", rule };
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
    let pairs = query_pairs(text);
    if pairs.iter().any(|(name, _)| UNSUPPORTED_QUERY.contains(&name.as_str())) {
        return Err(refuse("has a TLS option that is not supported; only cacertfile is"));
    }
    let ca_file = pairs.into_iter().find(|(name, _)| name == "cacertfile").map(|(_, path)| PathBuf::from(path));
    if uri.scheme == AMQPScheme::AMQP && (ca_file.is_some() || options.ca_file.is_some()) {
        return Err(ConfigError { key: "rabbitmq.ca_file", rule: "needs an amqps:// URL" });
    }
    uri.query.heartbeat = uri.query.heartbeat.filter(|seconds| *seconds > 0).or(Some(options.heartbeat_s));
    Ok((uri, ca_file))
}

fn ipv6_host(url: &str) -> Option<&str> {
    let (_, rest) = url.split_once("://")?;
    let authority = rest.split(['/', '?', '#']).next()?;
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    host.strip_prefix('[')?.split_once(']').map(|(host, _)| host)
}

fn query_pairs(url: &str) -> Vec<(String, String)> {
    let Some((_, query)) = url.split_once('?') else { return Vec::new() };
    let query = query.split('#').next().unwrap_or("");
    query
        .split('&')
        .filter_map(|pair| pair.split_once('=').or(Some((pair, ""))))
        .map(|(name, value)| (name.to_owned(), value.replace("%2F", "/").replace("%2f", "/").replace("%20", " ")))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn debug_hides_the_password() {
        let config = config("amqp://user:hunter2@h/v").expect("valid");
        assert!(!format!("{config:?}{:?}", config.options()).contains("hunter2"));
    }

    #[test]
    fn heartbeat_of_the_url_wins_unless_it_switches_it_off() {
        for (url, seconds) in [("amqp://h", 10), ("amqp://h?heartbeat=7", 7), ("amqp://h?heartbeat=0", 10)] {
            assert_eq!(config(url).expect(url).uri().query.heartbeat, Some(seconds), "{url}");
        }
    }

    #[test]
    fn numbers_out_of_range_name_their_key() {
        let bad = |change: fn(&mut RabbitmqOptions)| {
            let mut options = RabbitmqOptions::new("amqps://h");
            change(&mut options);
            RabbitmqConfig::new(options).expect_err("must be refused").key
        };
        assert_eq!(bad(|o| o.channels = 0), "rabbitmq.channels");
        assert_eq!(bad(|o| o.window_max = 0), "rabbitmq.window_max");
        assert_eq!(bad(|o| o.confirm_timeout_ms = 0), "confirm.timeout_ms");
        assert_eq!(bad(|o| o.message_bytes_max = Some(0)), "rabbitmq.message_bytes_max");
        assert_eq!(bad(|o| o.reconnect.max_ms = 1), "retry.max_ms");
    }
}
