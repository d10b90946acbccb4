//! The state of the outbox, from a sampler that is independent of the send loop.
//!
//! When a sample fails, or none comes for too long, the gauges are gone from the output: a stuck value would lie, and
//! a missing one can be alerted on. The oldest age is the exception. Whatever waited at the last good sample goes on
//! waiting while database, broker or sampler are down, so it keeps growing by the clock until a sample says otherwise.

use std::sync::{Arc, Mutex, PoisonError};

use outbox_core::{Clock, Millis};
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{Gauge, GaugeVec, Opts};

use super::wall_clock_seconds;

/// What one look at the database found. All of it is by the database's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StateSample {
    /// Due rows that are neither sent nor held, counted up to a bound.
    pub pending_messages: u64,
    /// Age of the oldest due row that is neither sent nor parked; 0 where there is none.
    pub oldest_pending_age_seconds: f64,
    pub held_waiting: u64,
    pub held_parked: u64,
    pub held_keys: u64,
    pub table_bytes: u64,
    pub dead_tuples: u64,
    /// `None` where this login may not see other logins' transactions.
    pub oldest_transaction_age_seconds: Option<f64>,
}

#[derive(Clone, Copy, Debug)]
struct Last {
    sample: StateSample,
    at: Millis,
    stale: bool,
}

/// Cheap to clone; all clones are one.
#[derive(Clone)]
pub struct State(Arc<Inner>);

struct Inner {
    clock: Clock,
    stale_after_ms: u64,
    last: Mutex<Option<Last>>,
    pending: Gauge,
    oldest_age: Gauge,
    held: GaugeVec,
    held_keys: Gauge,
    table_bytes: Gauge,
    dead_tuples: Gauge,
    oldest_transaction: Gauge,
    last_success: Gauge,
}

impl State {
    pub(super) fn new(stale_after_ms: u64) -> prometheus::Result<Self> {
        let held = Opts::new("outbox_held_messages", "Rows in the waiting room, by state.");
        Ok(Self(Arc::new(Inner {
            clock: Clock,
            stale_after_ms,
            last: Mutex::new(None),
            pending: Gauge::new("outbox_pending_messages", "Due rows that are neither sent nor held, up to a bound.")?,
            oldest_age: Gauge::new(
                "outbox_oldest_pending_age_seconds",
                "Lag: age of the oldest due row that is neither sent nor parked.",
            )?,
            held: GaugeVec::new(held, &["state"])?,
            held_keys: Gauge::new("outbox_held_keys", "Ordering keys with rows in the waiting room.")?,
            table_bytes: Gauge::new("outbox_table_bytes", "Size of the outbox table, indexes included.")?,
            dead_tuples: Gauge::new(
                "outbox_dead_tuples",
                "Dead rows in the outbox table, as estimated by PostgreSQL.",
            )?,
            oldest_transaction: Gauge::new(
                "outbox_oldest_transaction_age_seconds",
                "Age of the oldest open transaction of the database.",
            )?,
            last_success: Gauge::new(
                "outbox_stats_last_success_timestamp_seconds",
                "When the state was last sampled; 0: never.",
            )?,
        })))
    }

    /// A sample came in.
    pub fn sample(&self, sample: StateSample) {
        let at = self.0.clock.now();
        *self.last() = Some(Last { sample, at, stale: false });
        self.0.last_success.set(wall_clock_seconds());
    }

    /// A sample failed: what is known is no longer true.
    pub fn stale(&self) {
        if let Some(last) = self.last().as_mut() {
            last.stale = true;
        }
    }

    fn last(&self) -> std::sync::MutexGuard<'_, Option<Last>> {
        self.0.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn collect_at(&self, now: Millis) -> Vec<MetricFamily> {
        let inner = &self.0;
        let mut families = inner.last_success.collect();
        let Some(last) = *self.last() else { return families };
        let silent_ms = now.since(last.at);
        let stale = last.stale || silent_ms > inner.stale_after_ms;
        let sample = last.sample;
        let waits = sample.pending_messages > 0 || sample.oldest_pending_age_seconds > 0.0;
        if !stale {
            inner.oldest_age.set(sample.oldest_pending_age_seconds);
            families.extend(inner.oldest_age.collect());
        } else if waits {
            inner.oldest_age.set(sample.oldest_pending_age_seconds + silent_ms as f64 / 1_000.0);
            families.extend(inner.oldest_age.collect());
        }
        if stale {
            return families;
        }
        inner.pending.set(sample.pending_messages as f64);
        inner.held.with_label_values(&["waiting"]).set(sample.held_waiting as f64);
        inner.held.with_label_values(&["parked"]).set(sample.held_parked as f64);
        inner.held_keys.set(sample.held_keys as f64);
        inner.table_bytes.set(sample.table_bytes as f64);
        inner.dead_tuples.set(sample.dead_tuples as f64);
        if let Some(age) = sample.oldest_transaction_age_seconds {
            inner.oldest_transaction.set(age);
            families.extend(inner.oldest_transaction.collect());
        }
        for gauge in [&inner.pending, &inner.held_keys, &inner.table_bytes, &inner.dead_tuples] {
            families.extend(gauge.collect());
        }
        families.extend(inner.held.collect());
        families
    }
}

impl Collector for State {
    fn desc(&self) -> Vec<&Desc> {
        let inner = &self.0;
        let gauges = [
            &inner.pending,
            &inner.oldest_age,
            &inner.held_keys,
            &inner.table_bytes,
            &inner.dead_tuples,
            &inner.oldest_transaction,
            &inner.last_success,
        ];
        gauges.into_iter().flat_map(Collector::desc).chain(inner.held.desc()).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        self.collect_at(self.0.clock.now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(families: &[MetricFamily], name: &str) -> Option<f64> {
        let family = families.iter().find(|family| family.name() == name)?;
        Some(family.get_metric()[0].get_gauge().get_value())
    }

    #[test]
    fn stale_gauges_are_gone_and_the_lag_keeps_growing() {
        let state = State::new(30_000).unwrap();
        assert_eq!(state.collect().len(), 1, "before the first sample only its time stamp is there");
        assert_eq!(value(&state.collect(), "outbox_stats_last_success_timestamp_seconds"), Some(0.0));

        state.sample(StateSample { pending_messages: 3, oldest_pending_age_seconds: 2.0, ..StateSample::default() });
        let at = state.last().unwrap().at;
        let fresh = state.collect_at(at.plus(1_000));
        assert_eq!(value(&fresh, "outbox_pending_messages"), Some(3.0));
        assert_eq!(value(&fresh, "outbox_oldest_pending_age_seconds"), Some(2.0));
        assert_eq!(value(&fresh, "outbox_held_messages"), Some(0.0));

        state.stale();
        let failed = state.collect_at(at.plus(5_000));
        assert_eq!(value(&failed, "outbox_pending_messages"), None);
        assert_eq!(value(&failed, "outbox_oldest_pending_age_seconds"), Some(7.0));
        assert!(value(&failed, "outbox_stats_last_success_timestamp_seconds") > Some(1.0e9));
    }

    #[test]
    fn a_sampler_that_hangs_is_noticed_and_an_empty_outbox_does_not_age() {
        let state = State::new(30_000).unwrap();
        state.sample(StateSample::default());
        let at = state.last().unwrap().at;
        assert_eq!(value(&state.collect_at(at), "outbox_oldest_pending_age_seconds"), Some(0.0));
        let hung = state.collect_at(at.plus(30_001));
        assert_eq!(value(&hung, "outbox_pending_messages"), None);
        assert_eq!(value(&hung, "outbox_oldest_pending_age_seconds"), None);
    }
}
