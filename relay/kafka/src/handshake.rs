//! Why a cluster cannot be believed, or does not believe us. librdkafka says the same of a wrong authority, a wrong
//! name and an expired certificate, and of plain text that is spoken to TLS it says nothing of the kind.
//!
//! It looks only after librdkafka has failed, with a handshake of its own that it ends at once, and gives words. What
//! it cannot mirror (keystores, folders of authorities, less verification) it does not judge.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use outbox_tls::{Identity, TlsError, Words};
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

use crate::config::KafkaConfig;
use crate::inbox::{Event, Inbox};

/// As librdkafka's properties call things.
static WORDS: Words = Words {
    peer: "broker",
    roots: "ssl.ca.location",
    certificate: "ssl.certificate.location",
    key: "ssl.key.location",
    peers_roots: "the listener's ssl.truststore.location",
};

/// For one broker, all of it.
const LOOK_MAX: Duration = Duration::from_secs(3);
/// With TLS 1.3 a broker says only after the handshake that it dislikes our certificate.
const ALERT_MAX: Duration = Duration::from_millis(500);
const BROKERS_MAX: usize = 3;

/// Properties under which a handshake of ours would not be librdkafka's, unless they have this value.
const NOT_MIRRORED: [(&str, &str); 8] = [
    ("ssl.ca.pem", ""),
    ("ssl.certificate.pem", ""),
    ("ssl.key.pem", ""),
    ("ssl.key.password", ""),
    ("ssl.keystore.location", ""),
    ("ssl.endpoint.identification.algorithm", "https"),
    ("enable.ssl.certificate.verification", "true"),
    ("ssl.ca.certificate.stores", ""),
];

/// What there is to look at.
struct Target {
    /// Host and port of each broker.
    brokers: Vec<(String, u16)>,
    secure: bool,
    roots: Option<PathBuf>,
    identity: Option<Identity>,
}

impl Target {
    fn of(config: &KafkaConfig) -> Option<Self> {
        let property =
            |name: &str| config.properties.get(name).map(|value| value.trim()).filter(|value| !value.is_empty());
        let differs = |(name, as_ours): &(&str, &str)| property(name).is_some_and(|value| value != *as_ours);
        if NOT_MIRRORED.iter().any(differs) {
            return None;
        }
        let roots = property("ssl.ca.location").map(PathBuf::from);
        if roots.as_deref().is_some_and(|roots| roots == Path::new("probe") || roots.is_dir()) {
            return None;
        }
        let certificate = property("ssl.certificate.location").map(PathBuf::from);
        let key = property("ssl.key.location").map(PathBuf::from);
        let identity = certificate.zip(key).map(|(certificate, key)| Identity { certificate, key });
        let secure = property("security.protocol").is_some_and(|protocol| protocol.to_lowercase().ends_with("ssl"));
        let brokers = config.brokers.split(',').filter_map(place).take(BROKERS_MAX).collect();
        Some(Self { brokers, secure, roots, identity })
    }

    fn connector(&self) -> Result<TlsConnector, TlsError> {
        let (builder, _) = outbox_tls::builder()?;
        let builder = builder.with_root_certificates(outbox_tls::roots(self.roots.as_deref(), &WORDS)?);
        let config = outbox_tls::with_identity(builder, self.identity.as_ref(), &WORDS)?;
        Ok(TlsConnector::from(Arc::new(config)))
    }

    /// What is wrong with the first broker with which something is.
    async fn look(&self) -> Option<String> {
        let connector = match self.connector() {
            Ok(connector) => connector,
            Err(error) => return self.secure.then(|| error.to_string()),
        };
        for (host, port) in &self.brokers {
            let looked = tokio::time::timeout(LOOK_MAX, self.look_at(&connector, host, *port)).await;
            if let Ok(Some(said)) = looked {
                return Some(format!("{host}:{port}: {said}"));
            }
        }
        None
    }

    async fn look_at(&self, connector: &TlsConnector, host: &str, port: u16) -> Option<String> {
        let stream = TcpStream::connect((host, port)).await.ok()?;
        let name = ServerName::try_from(host.to_owned()).ok()?;
        let error = match connector.connect(name, stream).await {
            Ok(mut stream) => {
                let read = tokio::time::timeout(ALERT_MAX, stream.read_u8()).await;
                read.ok().and_then(Result::err).and_then(|error| TlsError::of_alert_in(&error, &WORDS))
            }
            Err(error) => Some(self.of_handshake(&error, host)),
        };
        if self.secure {
            return error.filter(TlsError::lasts).map(|error| self.demanded(error).to_string());
        }
        let speaks = error.as_ref().is_none_or(TlsError::lasts);
        speaks.then(|| "it speaks TLS; set security.protocol to ssl or sasl_ssl in kafka.properties".to_owned())
    }

    fn of_handshake(&self, error: &io::Error, host: &str) -> TlsError {
        TlsError::of_handshake(error, host, &outbox_tls::shown_roots(self.roots.as_deref(), &WORDS), &WORDS)
    }

    /// Java says "bad certificate" of none at all.
    fn demanded(&self, error: TlsError) -> TlsError {
        match error {
            TlsError::Refused { .. } if self.identity.is_none() => TlsError::Demanded { words: &WORDS },
            other => other,
        }
    }
}

/// Host and port of an entry of `kafka.brokers`.
fn place(entry: &str) -> Option<(String, u16)> {
    let entry = entry.trim();
    let place = entry.split_once("://").map_or(entry, |(_, place)| place);
    let (host, port) = place.rsplit_once(':').map_or((place, Some(9_092)), |(host, port)| (host, port.parse().ok()));
    Some((host.trim_matches(['[', ']']).to_owned(), port?))
}

/// What is wrong with the files that the properties name; `None`: nothing that is seen from here.
pub(crate) fn fault_of_files(config: &KafkaConfig) -> Option<String> {
    let target = Target::of(config).filter(|target| target.secure)?;
    target.connector().err().map(|error| error.to_string())
}

/// Looks on a thread of its own and tells the inbox.
pub(crate) fn look(config: &KafkaConfig, generation: u64, inbox: &Arc<Inbox>) {
    let (target, told) = (Target::of(config), Arc::clone(inbox));
    let looking = move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok();
        let why = runtime.zip(target).and_then(|(runtime, target)| {
            let why = runtime.block_on(target.look());
            // A look-up of a name that hangs is not waited for.
            runtime.shutdown_background();
            why
        });
        told.event(Event::Looked { generation, why });
    };
    if std::thread::Builder::new().name("kafka-look".to_owned()).spawn(looking).is_err() {
        inbox.event(Event::Looked { generation, why: None });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_has_a_host_and_a_port() {
        let at = |host: &str, port| Some((host.to_owned(), port));
        assert_eq!(place("k:1"), at("k", 1));
        assert_eq!(place(" ssl://k.internal "), at("k.internal", 9_092));
        assert_eq!(place("[::1]:9093"), at("::1", 9_093));
        assert_eq!(place("k:x"), None);
    }

    #[test]
    fn what_cannot_be_mirrored_is_not_judged() {
        let mut config = KafkaConfig::new("localhost:1");
        config.properties.insert("security.protocol".to_owned(), "SASL_SSL".to_owned());
        config.properties.insert("ssl.ca.location".to_owned(), "/nonexistent/ca.pem".to_owned());
        let fault = fault_of_files(&config);
        assert!(
            fault
                .as_ref()
                .is_some_and(|fault| fault.starts_with("ssl.ca.location '/nonexistent/ca.pem' cannot be read"))
        );
        let usual =
            [("ssl.endpoint.identification.algorithm", "https"), ("enable.ssl.certificate.verification", "true")];
        config.properties.extend(usual.map(|(name, value)| (name.to_owned(), value.to_owned())));
        assert_eq!(fault_of_files(&config), fault);
        for (name, value) in [
            ("ssl.ca.location", "probe"),
            ("ssl.ca.location", "/"),
            ("ssl.keystore.location", "x"),
            ("ssl.endpoint.identification.algorithm", "none"),
        ] {
            let mut config = config.clone();
            config.properties.insert(name.to_owned(), value.to_owned());
            assert_eq!(fault_of_files(&config), None, "{name}");
        }
        config.properties.insert("security.protocol".to_owned(), "sasl_plaintext".to_owned());
        assert_eq!(fault_of_files(&config), None);
    }
}
