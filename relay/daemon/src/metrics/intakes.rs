//! What is taken over from an application's tables. The label is the source's name, of which the configuration has few.

use outbox_core::{Refusal, Taken};
use prometheus::{IntCounterVec, IntGaugeVec, Opts, Registry};

use super::registered;

/// Counters and gauges of all sources.
pub(super) struct Intakes {
    taken: IntCounterVec,
    refused: IntCounterVec,
    failing: IntGaugeVec,
}

impl Intakes {
    pub(super) fn new(registry: &Registry, names: &[&str]) -> prometheus::Result<Self> {
        let counters = |name: &str, help: &str, labels: &[&str]| {
            registered(registry, IntCounterVec::new(Opts::new(name, help), labels)?)
        };
        let failing = Opts::new("outbox_source_failing", "Whether rows of a source cannot be taken.");
        let intakes = Self {
            taken: counters("outbox_source_taken_rows_total", "Rows of a source taken into the outbox.", &["source"])?,
            refused: counters(
                "outbox_source_refused_rows_total",
                "Rows of a source that cannot become a message, by reason.",
                &["source", "reason"],
            )?,
            failing: registered(registry, IntGaugeVec::new(failing, &["source"])?)?,
        };
        for name in names {
            intakes.taken.with_label_values(&[*name]).reset();
            intakes.failing.with_label_values(&[*name]).set(0);
            for reason in Refusal::ALL {
                intakes.refused.with_label_values(&[*name, reason.as_str()]).reset();
            }
        }
        Ok(intakes)
    }

    pub(super) fn taken(&self, name: &str, taken: &Taken) {
        self.taken.with_label_values(&[name]).inc_by(taken.rows as u64);
        for (reason, rows) in &taken.refused {
            self.refused.with_label_values(&[name, reason.as_str()]).inc_by(*rows as u64);
        }
    }

    pub(super) fn failing(&self, name: &str, failing: bool) {
        self.failing.with_label_values(&[name]).set(i64::from(failing));
    }
}
