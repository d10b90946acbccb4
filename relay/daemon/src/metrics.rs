//! All metrics of the relay, defined here and in the files below, in a registry of their own.
//!
//! Guaranteed: names, labels and units are a contract; every label value that can be known at start has its series
//! from the start, so that a first increase is seen; label sets are closed, and destinations are capped.
//! What the send loop does is counted as it happens (`flow`); the state of the database comes from a sampler of its
//! own (`state`), and is gone when it is stale rather than stuck at its last good value.

mod certificates;
mod flow;
mod intakes;
mod spans;
mod state;

use std::sync::Arc;

use outbox_core::Sink;
use prometheus::core::Collector;
use prometheus::process_collector::ProcessCollector;
use prometheus::{IntGauge, IntGaugeVec, Opts, Registry, TextEncoder};

pub use certificates::{CertificateLabels, Certificates};
pub use flow::Flow;
pub use spans::Spans;
pub use state::{State, StateSample};

/// The registry and what is in it.
pub struct Metrics {
    registry: Registry,
    /// Counts what the relay does; it is the core's `Observer`.
    pub flow: Arc<Flow>,
    /// Takes the sampler's findings.
    pub state: State,
    /// Takes the ends of certificates.
    pub certificates: Certificates,
    /// Counts what becomes of spans.
    #[cfg_attr(not(feature = "otel"), allow(dead_code, reason = "a build without spans only registers them"))]
    pub spans: Spans,
    pool: IntGaugeVec,
    listener: IntGauge,
}

impl Metrics {
    /// Registers everything. `destinations` are the exchanges and topics that are known at start, `intakes` the names of
    /// sources; a sample that is older than `stale_after_ms` no longer counts.
    ///
    /// # Errors
    /// A name that is taken twice, which only a mistake in these files can bring about.
    pub fn new(
        sinks: &[Sink],
        destinations: &[(Sink, String)],
        intakes: &[&str],
        stale_after_ms: u64,
    ) -> prometheus::Result<Self> {
        let registry = Registry::new();
        let flow = Arc::new(Flow::new(&registry, sinks, destinations, intakes)?);
        let state = State::new(stale_after_ms)?;
        registry.register(Box::new(state.clone()))?;
        let certificates = Certificates::new(&registry)?;
        let spans = Spans::new(&registry)?;
        let pool = Opts::new("outbox_db_pool_connections", "Database connections of this relay, by state.");
        let pool = registered(&registry, IntGaugeVec::new(pool, &["state"])?)?;
        let listener = IntGauge::new("outbox_listener_connected", "Whether the connection for notifications is up.")?;
        let listener = registered(&registry, listener)?;
        let build = Opts::new("outbox_build_info", "Always 1; the labels say what is running.");
        let build = registered(&registry, IntGaugeVec::new(build, &["version"])?)?;
        build.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
        registry.register(Box::new(ProcessCollector::for_self()))?;
        let metrics = Self { registry, flow, state, certificates, spans, pool, listener };
        metrics.pool_connections(0, 0);
        metrics.listener_connected(false);
        Ok(metrics)
    }

    /// How many database connections are in use and how many wait for use.
    pub fn pool_connections(&self, used: usize, idle: usize) {
        self.pool.with_label_values(&["used"]).set(i64::try_from(used).unwrap_or(i64::MAX));
        self.pool.with_label_values(&["idle"]).set(i64::try_from(idle).unwrap_or(i64::MAX));
    }

    /// Whether notifications of the database can arrive.
    pub fn listener_connected(&self, connected: bool) {
        self.listener.set(i64::from(connected));
    }

    /// Everything in Prometheus' text form.
    ///
    /// # Errors
    /// A family that the encoder refuses.
    pub fn text(&self) -> prometheus::Result<String> {
        TextEncoder::new().encode_to_string(&self.registry.gather())
    }
}

/// Registers a metric and gives it back.
fn registered<C: Collector + Clone + 'static>(registry: &Registry, metric: C) -> prometheus::Result<C> {
    registry.register(Box::new(metric.clone()))?;
    Ok(metric)
}

/// Seconds since the Unix epoch, for metrics that export a point in time. Nothing is decided by it.
#[expect(clippy::disallowed_methods, reason = "Prometheus compares exported points in time with its own wall clock")]
pub fn wall_clock_seconds() -> f64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0.0, |since| since.as_secs_f64())
}

#[cfg(test)]
mod tests;
