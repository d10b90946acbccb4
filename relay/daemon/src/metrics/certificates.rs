//! When certificates end. What cannot be read is NaN: a missing series would look like a certificate that nobody has.

use prometheus::{GaugeVec, Opts, Registry};

use super::registered;

/// Whose certificate it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CertificateLabels {
    /// postgres, rabbitmq, kafka.
    pub peer: &'static str,
    /// ca: by which the peer is believed; client: the relay's own.
    pub certificate: &'static str,
}

/// Cheap to clone; all clones are one.
#[derive(Clone)]
pub struct Certificates(GaugeVec);

impl Certificates {
    pub(super) fn new(registry: &Registry) -> prometheus::Result<Self> {
        let opts = Opts::new(
            "outbox_certificate_not_after_timestamp_seconds",
            "When the first certificate of the configured files ends; NaN: one cannot be read.",
        );
        Ok(Self(registered(registry, GaugeVec::new(opts, &["peer", "certificate"])?)?))
    }

    /// `None`: unknown.
    pub fn ends(&self, labels: CertificateLabels, seconds: Option<i64>) {
        let gauge = self.0.with_label_values(&[labels.peer, labels.certificate]);
        gauge.set(seconds.map_or(f64::NAN, |seconds| seconds as f64));
    }
}
