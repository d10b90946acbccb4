//! What becomes of spans. Without an endpoint, and in a build without spans, both stay 0.

use prometheus::{IntCounter, Registry};

use super::registered;

/// Two counters.
#[derive(Clone)]
#[cfg_attr(not(feature = "otel"), allow(dead_code, reason = "a build without spans only registers them"))]
pub struct Spans {
    exported: IntCounter,
    dropped: IntCounter,
}

impl Spans {
    pub(super) fn new(registry: &Registry) -> prometheus::Result<Self> {
        let counter = |name: &str, help: &str| registered(registry, IntCounter::new(name, help)?);
        Ok(Self {
            exported: counter("outbox_spans_exported_total", "Spans that the OTLP receiver took.")?,
            dropped: counter(
                "outbox_spans_dropped_total",
                "Spans that found no room in the queue, or that the OTLP receiver did not take.",
            )?,
        })
    }
}

#[cfg(feature = "otel")]
impl Spans {
    /// The receiver took so many.
    pub fn exported(&self, spans: u64) {
        self.exported.inc_by(spans);
    }

    /// So many are lost.
    pub fn dropped(&self, spans: u64) {
        self.dropped.inc_by(spans);
    }
}
