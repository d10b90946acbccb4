//! Looks at the certificate files that are configured, so that their end is seen before it stops the relay.
//!
//! Guaranteed: files are read at a bounded rate, away from whoever scrapes, and one that hangs holds up no other; a
//! file that was replaced is seen without a restart; one that cannot be read is unknown, never its last good date.
//! Deliberately absent: judging the certificates. Only a connection does that.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use outbox_tls::{TlsError, earliest_end};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::config;
use crate::metrics::{CertificateLabels, Metrics};

/// Between two looks.
const INTERVAL: Duration = Duration::from_secs(10);
/// A file system that takes longer is as good as away.
const PATIENCE: Duration = Duration::from_secs(5);

/// Reads the files over and over.
pub struct Certificates {
    files: Vec<Watched>,
    metrics: Arc<Metrics>,
}

/// One file. A look that hangs goes on in its thread, and no second one is begun beside it.
struct Watched {
    labels: CertificateLabels,
    setting: &'static str,
    path: PathBuf,
    looking: Option<JoinHandle<Result<i64, TlsError>>>,
    failing: bool,
}

impl Certificates {
    /// For every certificate file of this configuration.
    pub fn new(configuration: &config::Relay, metrics: Arc<Metrics>) -> Self {
        let files: Vec<Watched> = configured(configuration).collect();
        for file in &files {
            metrics.certificates.ends(file.labels, None);
        }
        Self { files, metrics }
    }

    /// Looks until told to stop.
    pub async fn run(mut self, stop: CancellationToken) {
        if self.files.is_empty() {
            return;
        }
        let mut timer = tokio::time::interval(INTERVAL);
        timer.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                _ = timer.tick() => {}
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.run_once() => {}
            }
        }
    }

    async fn run_once(&mut self) {
        let ends = join_all(self.files.iter_mut().map(Watched::look)).await;
        let mut known: BTreeMap<CertificateLabels, Option<i64>> = BTreeMap::new();
        for (file, end) in self.files.iter().zip(ends) {
            // Where several files share a series, one that is unknown makes all of it so.
            let first = known.entry(file.labels).or_insert(Some(i64::MAX));
            *first = first.zip(end).map(|(first, end)| first.min(end));
        }
        for (labels, end) in known {
            self.metrics.certificates.ends(labels, end);
        }
    }
}

impl Watched {
    async fn look(&mut self) -> Option<i64> {
        let (setting, path) = (self.setting, self.path.clone());
        let looking =
            self.looking.get_or_insert_with(|| tokio::task::spawn_blocking(move || earliest_end(setting, &path)));
        let problem = match tokio::time::timeout(PATIENCE, looking).await {
            Err(_) => {
                format!("{setting} '{}' cannot be read: no answer for {} s", self.path.display(), PATIENCE.as_secs())
            }
            Ok(looked) => {
                self.looking = None;
                match looked {
                    Ok(Ok(end)) => {
                        if std::mem::take(&mut self.failing) {
                            debug!(setting, "the certificate's end is known again");
                        }
                        return Some(end);
                    }
                    Ok(Err(error)) => error.to_string(),
                    Err(error) => error.to_string(),
                }
            }
        };
        if !std::mem::replace(&mut self.failing, true) {
            warn!(error = %problem, "the end of a certificate is not known");
        }
        None
    }
}

fn configured(configuration: &config::Relay) -> impl Iterator<Item = Watched> {
    let tls = configuration.database.tls();
    let postgres = [
        ("ca", "sslrootcert", tls.and_then(|tls| tls.trust.file())),
        ("client", "sslcert", tls.and_then(|tls| tls.identity.as_ref()).map(|identity| &identity.certificate)),
    ];
    let rabbitmq = configuration.brokers.rabbitmq.as_ref();
    let rabbitmq = [
        ("ca", "rabbitmq.ca_file", rabbitmq.and_then(|rabbitmq| rabbitmq.ca_file())),
        ("client", "rabbitmq.certificate_file", rabbitmq.and_then(|rabbitmq| rabbitmq.certificate_file())),
    ];
    let property = |name: &str| {
        let path = configuration.brokers.kafka.as_ref()?.properties.get(name).map(PathBuf::from)?;
        // librdkafka takes a folder and the word "probe" as well, which name no file.
        (path.as_os_str() != "probe" && !path.is_dir()).then_some(path)
    };
    let kafka = [
        ("ca", "ssl.ca.location", property("ssl.ca.location")),
        ("client", "ssl.certificate.location", property("ssl.certificate.location")),
    ];
    let otel = configuration.otel.as_ref();
    let otel = [
        ("ca", "otel.ca_file", otel.and_then(|otel| otel.ca_file.as_ref())),
        ("client", "otel.certificate_file", otel.and_then(|otel| otel.identity.as_ref()).map(|own| &own.certificate)),
    ];
    let of = |peer, (certificate, setting, path): (_, _, Option<PathBuf>)| {
        let labels = CertificateLabels { peer, certificate };
        path.map(|path| Watched { labels, setting, path, looking: None, failing: false })
    };
    let cloned = |(certificate, setting, path): (_, _, Option<&PathBuf>)| (certificate, setting, path.cloned());
    let postgres = postgres.map(cloned).map(|file| of("postgres", file));
    let rabbitmq = rabbitmq.map(cloned).map(|file| of("rabbitmq", file));
    let kafka = kafka.map(|file| of("kafka", file));
    let otel = otel.map(cloned).map(|file| of("otlp", file));
    postgres.into_iter().chain(rabbitmq).chain(kafka).chain(otel).flatten()
}
