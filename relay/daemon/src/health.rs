//! What `/livez` and `/readyz` go by: the relay's own progress, and whether it can do its work right now.
//!
//! The two are kept apart on purpose. Liveness knows no dependency: restarting a relay does not bring a database or
//! a broker back. Readiness knows them all.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use outbox_core::{Clock, Link, Millis, Sink};
use tokio::sync::watch;

/// The send loop's heartbeat, by the boot-time clock. The loop must tick at least every few seconds, also while it
/// waits for a database, a broker or a lease; nothing else may tick for it.
#[derive(Debug)]
pub struct Progress {
    last_ms: AtomicU64,
    bound_ms: u64,
}

impl Progress {
    /// Starts as if the loop had just ticked. `bound_ms` is the longest silence of a loop that is alive.
    pub fn new(bound_ms: u64) -> Self {
        Self { last_ms: AtomicU64::new(Clock.now().0), bound_ms }
    }

    /// A loop that has been silent for a while.
    #[cfg(test)]
    pub fn silent_for(silent_ms: u64, bound_ms: u64) -> Self {
        Self { last_ms: AtomicU64::new(Clock.now().0.saturating_sub(silent_ms)), bound_ms }
    }

    /// The loop went round.
    pub fn tick(&self) {
        self.last_ms.store(Clock.now().0, Ordering::Relaxed);
    }

    /// Milliseconds since the last tick.
    pub fn silent_ms(&self) -> u64 {
        Clock.now().since(Millis(self.last_ms.load(Ordering::Relaxed)))
    }

    /// Whether the last tick is recent enough.
    ///
    /// # Errors
    /// What to tell whoever asks.
    pub fn alive(&self) -> Result<(), String> {
        let silent_ms = self.silent_ms();
        if silent_ms <= self.bound_ms {
            return Ok(());
        }
        Err(format!("the send loop has made no progress for {silent_ms} ms; the bound is {} ms", self.bound_ms))
    }
}

/// What readiness depends on. `None` is not known yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct State {
    database: Option<Result<(), String>>,
    schema: Option<Result<(), String>>,
    sinks: BTreeMap<Sink, Option<Link>>,
    /// What is wrong with sources, by their names.
    intakes: BTreeMap<String, String>,
    sampled: bool,
    stopping: bool,
}

/// Whether the relay could publish a row now. Its parts report to it.
#[derive(Debug)]
pub struct Readiness(watch::Sender<State>);

impl Readiness {
    /// Nothing is known yet; all these brokers must be up.
    pub fn new(sinks: &[Sink]) -> Self {
        let sinks = sinks.iter().map(|sink| (*sink, None)).collect();
        Self(watch::Sender::new(State { sinks, ..State::default() }))
    }

    /// The way to the database, with the reason when it is away.
    pub fn database(&self, state: Result<(), String>) {
        self.change(|all| all.database = Some(state));
    }

    /// Whether the schema fits this program, with what to do when it does not.
    pub fn schema(&self, state: Result<(), String>) {
        self.change(|all| all.schema = Some(state));
    }

    /// The way to a broker.
    pub fn sink(&self, sink: Sink, link: Link) {
        self.change(|all| drop(all.sinks.insert(sink, Some(link))));
    }

    /// What is wrong with tables whose rows are taken over, by the source's name.
    pub fn intakes(&self, errors: BTreeMap<String, String>) {
        self.change(|all| all.intakes = errors);
    }

    /// Whether the state gauges were sampled lately.
    pub fn sampled(&self, fresh: bool) {
        self.change(|all| all.sampled = fresh);
    }

    /// The relay stops: nothing new should be expected of it.
    pub fn stopping(&self) {
        self.change(|all| all.stopping = true);
    }

    /// Why the relay is not ready; empty when it is.
    pub fn reasons(&self) -> Vec<String> {
        self.0.borrow().reasons()
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        self.0.send_if_modified(|state| {
            let before = state.clone();
            change(state);
            *state != before
        });
    }
}

impl State {
    fn reasons(&self) -> Vec<String> {
        let mut reasons = Vec::new();
        if self.stopping {
            reasons.push("the relay is stopping".to_owned());
        }
        match &self.database {
            None => reasons.push("database: not connected yet".to_owned()),
            Some(Err(why)) => reasons.push(format!("database: {why}")),
            Some(Ok(())) => {}
        }
        match &self.schema {
            None => reasons.push("schema: not looked at yet".to_owned()),
            Some(Err(why)) => reasons.push(format!("schema: {why}")),
            Some(Ok(())) => {}
        }
        for (sink, link) in &self.sinks {
            match link {
                None => reasons.push(format!("{sink}: not connected yet")),
                Some(Link::Up) => {}
                Some(Link::Down { detail } | Link::Blocked { detail } | Link::Refused { detail }) => {
                    reasons.push(format!("{sink}: {detail}"));
                }
            }
        }
        reasons.extend(self.intakes.iter().map(|(name, why)| format!("source {name}: {why}")));
        if !self.sampled {
            reasons.push("metrics: the state of the outbox could not be sampled lately".to_owned());
        }
        reasons
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_relay_is_ready_when_everything_it_needs_is_there() {
        let readiness = Readiness::new(&[Sink::Kafka]);
        assert_eq!(readiness.reasons().len(), 4);
        readiness.database(Ok(()));
        readiness.schema(Ok(()));
        readiness.sampled(true);
        readiness.sink(Sink::Kafka, Link::Blocked { detail: "alarm".to_owned() });
        assert_eq!(readiness.reasons(), ["kafka: alarm"]);
        readiness.sink(Sink::Kafka, Link::Up);
        assert!(readiness.reasons().is_empty());
        readiness.intakes(BTreeMap::from([("invoices".to_owned(), "no such table".to_owned())]));
        assert_eq!(readiness.reasons(), ["source invoices: no such table"]);
        readiness.intakes(BTreeMap::new());
        readiness.stopping();
        assert_eq!(readiness.reasons(), ["the relay is stopping"]);
    }

    #[test]
    fn silence_beyond_the_bound_is_death() {
        assert!(Progress::new(5_000).alive().is_ok());
        let progress = Progress::silent_for(6_000, 5_000);
        assert!(progress.alive().unwrap_err().starts_with("the send loop has made no progress for 6"));
        progress.tick();
        assert!(progress.alive().is_ok());
    }
}
