//! What the adapter needs to know, checked whole before anything connects.
//!
//! A `RabbitmqConfig` that exists is valid. The URL is a secret: no `Debug`, error or log shows it, and errors
//! never repeat what was typed, because a password may stand anywhere in a mistyped URL.

use std::fmt;
use std::path::PathBuf;

use lapin::uri::{AMQPUri, SASLMechanism};
use outbox_core::{BackoffPolicy, Fresh};
use outbox_tls::Words;

use crate::url::{self, Target, Tls};

/// As the configuration calls things.
pub(crate) static WORDS: Words = Words {
    peer: "broker",
    roots: "rabbitmq.ca_file",
    certificate: "rabbitmq.certificate_file",
    key: "rabbitmq.key_file",
    peers_roots: "the broker's ssl_options.cacertfile",
};

/// RabbitMQ's default `max_message_size` up to 3.13; newer brokers default to 16 MiB and say so in their refusal,
/// which the adapter then remembers.
pub const MESSAGE_BYTES_MAX_DEFAULT: usize = 134_217_728;

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
    /// The URL as it is at each connect, if it may change: its user and password count, the rest stays as it was.
    pub fresh_url: Option<Fresh<String>>,
    /// PEM file with the certificate authorities to trust instead of the system's; read at each connect, so that a
    /// rotated file counts from the next connection on.
    pub ca_file: Option<PathBuf>,
    /// PEM file with the relay's own certificate and those between it and its authority; read like `ca_file`.
    pub certificate_file: Option<PathBuf>,
    /// PEM file with the key of that certificate: PKCS#8, PKCS#1 or SEC1, without a passphrase.
    pub key_file: Option<PathBuf>,
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
            fresh_url: None,
            ca_file: None,
            certificate_file: None,
            key_file: None,
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
    target: Target,
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
        let target = url::parse(&options)?;
        Ok(Self { target, options })
    }

    pub(crate) const fn uri(&self) -> &AMQPUri {
        &self.target.uri
    }

    /// With user and password as they are now.
    pub(crate) async fn fresh_uri(&self) -> AMQPUri {
        let mut uri = self.uri().clone();
        let Some(fresh) = &self.options.fresh_url else { return uri };
        let parsed = |text| url::parse(&RabbitmqOptions { url: text, ..self.options.clone() });
        match fresh.read_apart().await.and_then(|text| parsed(text).map_err(|error| error.to_string())) {
            Ok(target) => uri.authority.userinfo = target.uri.authority.userinfo,
            Err(error) => tracing::warn!(error, "the login of the broker cannot be read anew; the last one is used"),
        }
        uri
    }

    /// The file of the authorities, from its key or the URL.
    #[must_use]
    pub fn ca_file(&self) -> Option<&PathBuf> {
        self.tls()?.ca_file.as_ref()
    }

    /// The file of the relay's own certificate, from its key or the URL.
    #[must_use]
    pub fn certificate_file(&self) -> Option<&PathBuf> {
        Some(&self.tls()?.identity.as_ref()?.certificate)
    }

    /// Whether the login is the client certificate.
    pub(crate) fn is_external(&self) -> bool {
        self.uri().query.auth_mechanism == Some(SASLMechanism::External)
    }

    /// `None`: plain text.
    pub(crate) const fn tls(&self) -> Option<&Tls> {
        self.target.tls.as_ref()
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
        let uri = self.uri();
        let host = &uri.authority.host;
        let host = if host.contains(':') { format!("[{host}]") } else { host.clone() };
        format!("{host}:{} (virtual host '{}')", uri.authority.port, uri.vhost)
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

#[cfg(test)]
mod tests {
    use super::*;

    fn config(url: &str) -> Result<RabbitmqConfig, ConfigError> {
        RabbitmqConfig::new(RabbitmqOptions { allow_plaintext: true, ..RabbitmqOptions::new(url) })
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
