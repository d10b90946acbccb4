//! What the relay does, counted as it happens. This is the core's `Observer`.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use outbox_core::{Address, Observer, Peer, Reason, Sink, Taken, Wakeup};
use prometheus::{Gauge, Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry};

use super::intakes::Intakes;
use super::{registered, wall_clock_seconds};
use crate::health::Progress;

/// Destinations with a series of their own; the rest is counted as `other`.
pub const DESTINATIONS_MAX: usize = 200;

const OTHER: &str = "other";

/// From a fast local confirm to a broker that hangs.
const DURATION_BUCKETS: [f64; 14] =
    [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 15.0, 60.0];

/// From milliseconds to a backlog of a day.
const LATENCY_BUCKETS: [f64; 16] =
    [0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 1_800.0, 7_200.0, 86_400.0];

const BATCH_BUCKETS: [f64; 10] = [1.0, 2.0, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1_000.0];

/// Counters, histograms and gauges of the send loop.
pub struct Flow {
    claimed: IntCounter,
    published: Destinations,
    published_bytes: IntCounter,
    failures: IntCounterVec,
    unknown: IntCounter,
    drilled: IntCounter,
    returned: IntCounter,
    parked: IntCounterVec,
    fenced: IntCounter,
    pruned: IntCounter,
    publish_duration: Histogram,
    delivery_latency: Histogram,
    claim_duration: Histogram,
    mark_duration: Histogram,
    batch: Histogram,
    connected: IntGaugeVec,
    blocked: IntGaugeVec,
    breakers_open: IntGauge,
    lanes_owned: IntGauge,
    last_publish: Gauge,
    reconnects: IntCounterVec,
    wakeups: IntCounterVec,
    intakes: Intakes,
    listeners: Listeners,
}

/// Who hears of it beside the counters.
#[derive(Default)]
struct Listeners {
    progress: RwLock<Option<Arc<Progress>>>,
    #[cfg(feature = "otel")]
    spans: std::sync::OnceLock<crate::otel::Recorder>,
}

impl Flow {
    pub(super) fn new(
        registry: &Registry,
        sinks: &[Sink],
        destinations: &[(Sink, String)],
        intakes: &[&str],
    ) -> prometheus::Result<Self> {
        let counter = |name: &str, help: &str| registered(registry, IntCounter::new(name, help)?);
        let counters = |name: &str, help: &str, labels: &[&str]| {
            registered(registry, IntCounterVec::new(Opts::new(name, help), labels)?)
        };
        let gauge = |name: &str, help: &str| registered(registry, IntGauge::new(name, help)?);
        let gauges = |name: &str, help: &str| registered(registry, IntGaugeVec::new(Opts::new(name, help), &["sink"])?);
        let histogram = |name: &str, help: &str, buckets: &[f64]| {
            let options = HistogramOpts::new(name, help).buckets(buckets.to_vec());
            registered(registry, Histogram::with_opts(options)?)
        };
        let published = counters(
            "outbox_published_messages_total",
            "Messages that a broker confirmed, by exchange or topic.",
            &["sink", "destination"],
        )?;
        let flow = Self {
            claimed: counter("outbox_claimed_messages_total", "Rows read for publishing.")?,
            published: Destinations::new(published),
            published_bytes: counter("outbox_published_bytes_total", "Payload bytes that a broker confirmed.")?,
            failures: counters(
                "outbox_publish_failures_total",
                "Publications that failed, by reason.",
                &["sink", "reason"],
            )?,
            unknown: counter(
                "outbox_publish_unknown_total",
                "Publications whose outcome is unknown; they go again with the same id.",
            )?,
            drilled: counter(
                "outbox_drill_messages_total",
                "Confirmed messages that a drill published once more, on purpose.",
            )?,
            returned: counter("outbox_returned_messages_total", "Messages that RabbitMQ could not route.")?,
            parked: counters("outbox_parked_messages_total", "Rows given up until an operator acts.", &["reason"])?,
            fenced: counter(
                "outbox_marks_fenced_total",
                "Lanes whose marks came under an old epoch and changed nothing.",
            )?,
            pruned: counter("outbox_pruned_messages_total", "Rows removed after their retention.")?,
            publish_duration: histogram(
                "outbox_publish_duration_seconds",
                "From handing a row over to the broker's answer, failures included.",
                &DURATION_BUCKETS,
            )?,
            delivery_latency: histogram(
                "outbox_delivery_latency_seconds",
                "From the row's creation, or when it was due, to the broker's confirm.",
                &LATENCY_BUCKETS,
            )?,
            claim_duration: histogram("outbox_claim_duration_seconds", "One claim.", &DURATION_BUCKETS)?,
            mark_duration: histogram("outbox_mark_duration_seconds", "One statement of marks.", &DURATION_BUCKETS)?,
            batch: histogram("outbox_batch_messages", "Rows of one claim.", &BATCH_BUCKETS)?,
            connected: gauges("outbox_sink_connected", "Whether the way to the broker is up.")?,
            blocked: gauges("outbox_sink_blocked", "Whether the broker takes nothing now.")?,
            breakers_open: gauge("outbox_breaker_open", "Breakers of brokers and addresses that are open.")?,
            lanes_owned: gauge("outbox_lanes_owned", "Lanes that this relay owns.")?,
            last_publish: registered(
                registry,
                Gauge::new(
                    "outbox_last_publish_timestamp_seconds",
                    "When a broker last confirmed a message; 0: never.",
                )?,
            )?,
            reconnects: counters("outbox_reconnects_total", "Connections made again.", &["peer"])?,
            wakeups: counters("outbox_wakeups_total", "What made a lane look for rows.", &["source"])?,
            intakes: Intakes::new(registry, intakes)?,
            listeners: Listeners::default(),
        };
        flow.begin_at_zero(sinks, destinations);
        Ok(flow)
    }

    /// A series that appears with its first increase hides that increase.
    fn begin_at_zero(&self, sinks: &[Sink], destinations: &[(Sink, String)]) {
        for sink in sinks {
            self.published.begin(*sink, OTHER);
            for reason in Reason::ALL {
                self.failures.with_label_values(&[sink.as_str(), reason.as_str()]).reset();
            }
            self.connected.with_label_values(&[sink.as_str()]).set(0);
            self.blocked.with_label_values(&[sink.as_str()]).set(0);
            self.reconnects.with_label_values(&[sink.as_str()]).reset();
        }
        for (sink, destination) in destinations {
            self.published.begin(*sink, destination);
        }
        for reason in Reason::ALL {
            self.parked.with_label_values(&[reason.as_str()]).reset();
        }
        for source in [Wakeup::Notify, Wakeup::Poll, Wakeup::Drain] {
            self.wakeups.with_label_values(&[wakeup_label(source)]).reset();
        }
        self.reconnects.with_label_values(&[peer_label(Peer::Postgres)]).reset();
    }

    /// Where answers of brokers go beside the counters; once.
    #[cfg(feature = "otel")]
    pub fn record(&self, recorder: crate::otel::Recorder) {
        let _ = self.listeners.spans.set(recorder);
    }

    /// Where the loop's heartbeat goes.
    pub fn beat(&self, progress: Arc<Progress>) {
        *self.listeners.progress.write().unwrap_or_else(PoisonError::into_inner) = Some(progress);
    }
}

impl Observer for Flow {
    fn claimed(&self, rows: usize, seconds: f64) {
        self.claimed.inc_by(rows as u64);
        self.claim_duration.observe(seconds);
    }

    fn batch(&self, rows: usize) {
        self.batch.observe(rows as f64);
    }

    fn published(&self, address: &Address, bytes: usize, publish_seconds: f64, delivery_seconds: f64) {
        self.published.inc(address.sink, &address.destination);
        self.published_bytes.inc_by(bytes as u64);
        self.publish_duration.observe(publish_seconds);
        // The database's clock and ours may disagree by a little.
        self.delivery_latency.observe(delivery_seconds.max(0.0));
        self.last_publish.set(wall_clock_seconds());
    }

    fn publish_failed(&self, sink: Sink, reason: Reason, publish_seconds: f64) {
        self.failures.with_label_values(&[sink.as_str(), reason.as_str()]).inc();
        self.publish_duration.observe(publish_seconds);
    }

    fn unknown(&self, _sink: Sink) {
        self.unknown.inc();
    }

    #[cfg(feature = "otel")]
    fn answered(&self, answered: &outbox_core::Answered, outcome: &outbox_core::Outcome, now: outbox_core::Millis) {
        if let Some(recorder) = self.listeners.spans.get() {
            recorder.record(answered, outcome, now);
        }
    }

    fn drilled(&self, _sink: Sink) {
        self.drilled.inc();
    }

    fn returned(&self, _sink: Sink) {
        self.returned.inc();
    }

    fn parked(&self, reason: Reason, rows: usize) {
        self.parked.with_label_values(&[reason.as_str()]).inc_by(rows as u64);
    }

    fn marked(&self, _rows: usize, seconds: f64) {
        self.mark_duration.observe(seconds);
    }

    fn fenced(&self, lanes: usize) {
        self.fenced.inc_by(lanes as u64);
    }

    fn pruned(&self, rows: usize) {
        self.pruned.inc_by(rows as u64);
    }

    fn taken(&self, intake: &str, taken: &Taken) {
        self.intakes.taken(intake, taken);
    }

    fn intake_failing(&self, intake: &str, failing: bool) {
        self.intakes.failing(intake, failing);
    }

    fn link(&self, sink: Sink, connected: bool, blocked: bool) {
        self.connected.with_label_values(&[sink.as_str()]).set(i64::from(connected));
        self.blocked.with_label_values(&[sink.as_str()]).set(i64::from(blocked));
    }

    fn breakers_open(&self, open: usize) {
        self.breakers_open.set(i64::try_from(open).unwrap_or(i64::MAX));
    }

    fn lanes_owned(&self, lanes: usize) {
        self.lanes_owned.set(i64::try_from(lanes).unwrap_or(i64::MAX));
    }

    fn reconnected(&self, peer: Peer) {
        self.reconnects.with_label_values(&[peer_label(peer)]).inc();
    }

    fn wakeup(&self, source: Wakeup) {
        self.wakeups.with_label_values(&[wakeup_label(source)]).inc();
    }

    fn progress(&self) {
        if let Some(progress) = self.listeners.progress.read().unwrap_or_else(PoisonError::into_inner).as_ref() {
            progress.tick();
        }
    }
}

const fn wakeup_label(source: Wakeup) -> &'static str {
    match source {
        Wakeup::Notify => "notify",
        Wakeup::Poll => "poll",
        Wakeup::Drain => "drain",
    }
}

const fn peer_label(peer: Peer) -> &'static str {
    match peer {
        Peer::Postgres => "postgres",
        Peer::Broker(sink) => sink.as_str(),
    }
}

/// Counters by destination, a bounded number of them: a row may choose its topic.
struct Destinations {
    counters: IntCounterVec,
    known: RwLock<HashMap<Sink, HashMap<String, IntCounter>>>,
}

impl Destinations {
    fn new(counters: IntCounterVec) -> Self {
        Self { counters, known: RwLock::new(HashMap::new()) }
    }

    fn inc(&self, sink: Sink, destination: &str) {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        match known.get(&sink).and_then(|own| own.get(destination)) {
            Some(counter) => counter.inc(),
            None => {
                drop(known);
                self.begin(sink, destination).inc();
            }
        }
    }

    /// The counter of a destination, made if there is room for it.
    fn begin(&self, sink: Sink, destination: &str) -> IntCounter {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        let full = known.values().map(HashMap::len).sum::<usize>() >= DESTINATIONS_MAX;
        let own = known.entry(sink).or_default();
        if let Some(counter) = own.get(destination) {
            return counter.clone();
        }
        if full || destination == OTHER {
            return self.counters.with_label_values(&[sink.as_str(), OTHER]);
        }
        let counter = self.counters.with_label_values(&[sink.as_str(), destination]);
        own.insert(destination.to_owned(), counter.clone());
        counter
    }
}
