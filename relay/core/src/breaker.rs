//! Breakers of addresses: an open one keeps every row of its address in the waiting room but one probe an interval.
//!
//! They are an economy, not a record: forgetting one costs a failed publication and nothing else, so their
//! number is bounded and a restart starts with none.

use std::collections::HashMap;

use crate::address::Address;
use crate::backoff::BackoffPolicy;
use crate::clock::Millis;
use crate::outcome::Scope;
use crate::reason::Reason;

/// More open addresses than this are forgotten, the longest open first.
const OPEN_MAX: usize = 2_000;

#[derive(Debug)]
struct Open {
    reason: Reason,
    tries: u32,
    next_probe_at: Millis,
    /// The lane that has the probe in hand, and until when it is believed.
    probing: Option<(i16, Millis)>,
    opened_at: Millis,
}

/// All breakers of the process.
#[derive(Debug)]
pub struct Breakers {
    open: HashMap<String, Open>,
    policy: BackoffPolicy,
    /// How long a probe may take before another lane may try.
    probe_timeout_ms: u64,
}

impl Breakers {
    /// Starts with every breaker closed.
    #[must_use]
    pub fn new(policy: BackoffPolicy, probe_timeout_ms: u64) -> Self {
        Self { open: HashMap::new(), policy, probe_timeout_ms }
    }

    /// An address did not exist: its breaker opens, or waits longer.
    pub fn trip(&mut self, address: &Address, scope: Scope, reason: Reason, now: Millis) {
        let gate = match scope {
            Scope::Destination => address.destination_gate(),
            Scope::Address => address.full_gate(),
        };
        if !self.open.contains_key(&gate) && self.open.len() >= OPEN_MAX {
            let oldest = self.open.iter().min_by_key(|(_, open)| open.opened_at).map(|(gate, _)| gate.clone());
            if let Some(oldest) = oldest {
                self.open.remove(&oldest);
            }
        }
        let policy = self.policy;
        let open = self.open.entry(gate).or_insert(Open {
            reason,
            tries: 0,
            next_probe_at: now,
            probing: None,
            opened_at: now,
        });
        // Rows that were under way together fail together; only the probe's failure lengthens the wait.
        if open.next_probe_at <= now {
            open.next_probe_at = now.plus(policy.delay_ms(open.tries));
            open.tries = open.tries.saturating_add(1);
        }
        open.reason = reason;
        open.probing = None;
    }

    /// The address answered about a row (ack, nack or refusal): it exists. True if a breaker was open.
    pub fn answered(&mut self, address: &Address) -> bool {
        if self.open.is_empty() {
            return false;
        }
        let destination = self.open.remove(&address.destination_gate()).is_some();
        self.open.remove(&address.full_gate()).is_some() || destination
    }

    /// Why rows of this address must wait, if they must.
    #[must_use]
    pub fn blocks(&self, address: &Address) -> Option<Reason> {
        if self.open.is_empty() {
            return None;
        }
        let open = self.open.get(&address.destination_gate()).or_else(|| self.open.get(&address.full_gate()));
        open.map(|open| open.reason)
    }

    /// Splits the open gates for a claim of this lane: those that stay shut, and those of which it may take a
    /// probe. Taking a probe is noted until the answer or the time-out.
    pub fn take_probes(&mut self, lane: i16, now: Millis) -> (Vec<String>, Vec<String>) {
        let (mut shut, mut probes) = (Vec::new(), Vec::new());
        for (gate, open) in &mut self.open {
            let busy = open.probing.is_some_and(|(_, until)| until > now);
            if open.next_probe_at <= now && !busy {
                open.probing = Some((lane, now.plus(self.probe_timeout_ms)));
                probes.push(gate.clone());
            } else {
                shut.push(gate.clone());
            }
        }
        (shut, probes)
    }

    /// The lane has rows in hand for these probes only: any other that it took is free again, at once.
    pub fn keep_probes(&mut self, lane: i16, in_hand: &[String]) {
        for (gate, open) in &mut self.open {
            if open.probing.is_some_and(|(owner, _)| owner == lane) && !in_hand.contains(gate) {
                open.probing = None;
            }
        }
    }

    /// The gates that are shut for a poll: those whose probe is not due, or under way.
    #[must_use]
    pub fn shut(&self, now: Millis) -> Vec<String> {
        let shut = |open: &Open| open.next_probe_at > now || open.probing.is_some_and(|(_, until)| until > now);
        self.open.iter().filter(|(_, open)| shut(open)).map(|(gate, _)| gate.clone()).collect()
    }

    /// Number of open breakers.
    #[must_use]
    pub fn len(&self) -> usize {
        self.open.len()
    }

    /// Whether every breaker is closed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.open.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::Sink;

    fn address(key: &str) -> Address {
        Address { sink: Sink::Rabbitmq, destination: "events".to_owned(), routing_key: key.to_owned() }
    }

    #[test]
    fn one_probe_an_interval_and_an_answer_closes() {
        let mut breakers = Breakers::new(BackoffPolicy { initial_ms: 100, max_ms: 1_000 }, 30_000);
        breakers.trip(&address("a"), Scope::Address, Reason::Unroutable, Millis(0));
        assert_eq!(breakers.blocks(&address("a")), Some(Reason::Unroutable));
        assert_eq!(breakers.blocks(&address("b")), None);
        assert_eq!(breakers.take_probes(1, Millis(10)).1.len(), 0);
        assert_eq!(breakers.take_probes(1, Millis(200)).1, vec!["rabbitmq/events/a".to_owned()]);
        assert_eq!(breakers.take_probes(2, Millis(201)).0.len(), 1, "the probe is under way");
        breakers.keep_probes(1, &["rabbitmq/events/a".to_owned()]);
        assert_eq!(breakers.take_probes(2, Millis(202)).1.len(), 0, "its row is in hand");
        breakers.keep_probes(1, &[]);
        assert_eq!(breakers.take_probes(2, Millis(202)).1.len(), 1);
        breakers.keep_probes(1, &[]);
        assert_eq!(breakers.take_probes(1, Millis(203)).1.len(), 0, "the probe is the other lane's");
        breakers.keep_probes(2, &[]);
        assert_eq!(breakers.take_probes(1, Millis(204)).1.len(), 1, "a lane without its row probes no more");
        assert!(breakers.answered(&address("a")));
        assert!(breakers.is_empty());
    }

    #[test]
    fn a_missing_exchange_shuts_all_its_routing_keys() {
        let mut breakers = Breakers::new(BackoffPolicy::default(), 30_000);
        breakers.trip(&address("a"), Scope::Destination, Reason::NoExchange, Millis(0));
        assert_eq!(breakers.blocks(&address("b")), Some(Reason::NoExchange));
        assert!(breakers.answered(&address("c")));
        assert_eq!(breakers.blocks(&address("a")), None);
    }

    #[test]
    fn the_number_of_breakers_is_bounded() {
        let mut breakers = Breakers::new(BackoffPolicy::default(), 30_000);
        for n in 0..(OPEN_MAX as u64 + 50) {
            breakers.trip(&address(&n.to_string()), Scope::Address, Reason::Unroutable, Millis(n));
        }
        assert_eq!(breakers.len(), OPEN_MAX);
        assert_eq!(breakers.blocks(&address("0")), None);
    }
}
