//! The simulated brokers: what arrived, what is under way, and what each publication is answered with.

use std::collections::HashSet;
use std::sync::Arc;

use outbox_core::{Answer, Outcome, Publication, Reason, Run, Scope, Sink};

use crate::db::Uid;
use crate::relay::Instant;

/// A message on the wire.
#[derive(Clone, Debug)]
pub struct Message {
    pub uid: Uid,
    pub seq: i64,
    pub serial: u64,
    pub key: Option<Arc<str>>,
    pub topic: usize,
    pub sink: Sink,
    pub owner: u32,
    pub channel: u64,
    /// When the claim that brought the row was read.
    pub claimed: Instant,
    /// Shared with the rows of its key that were handed over with it.
    pub run: Option<Run>,
}

impl Message {
    pub fn new(publication: &Publication, owner: u32, channel: u64, claimed: Instant) -> Self {
        Self {
            uid: publication.row.idempotency_key.parse().expect("a uid"),
            seq: publication.row.id.seq,
            serial: publication.serial,
            key: publication.row.ordering_key.clone(),
            topic: publication.row.topic.parse().expect("a topic"),
            sink: publication.address.sink,
            owner,
            channel,
            claimed,
            run: publication.run.clone(),
        }
    }

    pub const fn answer(&self, outcome: Outcome) -> Answer {
        Answer { seq: self.seq, serial: self.serial, outcome }
    }
}

#[derive(Default)]
pub struct Brokers {
    pub wire: Vec<Message>,
    /// Answered as unknown, and may still arrive.
    pub late: Vec<Message>,
    pub arrived: HashSet<Uid>,
    /// Whether each topic has somewhere to go.
    pub missing: [bool; 3],
    /// Rows that no broker ever takes.
    pub bad: HashSet<Uid>,
}

/// What happens to a message when its broker looks at it.
pub struct Handled {
    pub arrives: bool,
    pub later: bool,
    pub outcome: Outcome,
}

impl Brokers {
    /// The messages that may be handled next: any of the first broker, the oldest of a relay's link to the second.
    pub fn pick(&self, random: &mut fastrand::Rng) -> Option<usize> {
        if self.wire.is_empty() {
            return None;
        }
        let at = random.usize(..self.wire.len());
        let chosen = &self.wire[at];
        if chosen.sink == Sink::Rabbitmq {
            return Some(at);
        }
        let same = |message: &Message| message.sink == Sink::Kafka && message.channel == chosen.channel;
        self.wire.iter().position(|message| same(message) && message.owner == chosen.owner)
    }

    pub fn handle(&self, message: &Message, faults: bool, random: &mut fastrand::Rng) -> Handled {
        let handled = |arrives, outcome| Handled { arrives, later: false, outcome };
        let detail = String::new;
        if message.run.as_ref().is_some_and(Run::is_broken) {
            return handled(false, Outcome::NotSent);
        }
        if self.missing[message.topic] {
            let (scope, reason) = match message.sink {
                Sink::Rabbitmq => (Scope::Address, Reason::Unroutable),
                Sink::Kafka => (Scope::Destination, Reason::NoTopic),
            };
            return handled(false, Outcome::AddressAway { scope, reason, detail: detail() });
        }
        if self.bad.contains(&message.uid) {
            return handled(false, Outcome::Impossible { reason: Reason::Size, detail: detail() });
        }
        if !faults || message.sink == Sink::Kafka {
            return handled(true, Outcome::Confirmed);
        }
        match random.u8(0..16) {
            0 => handled(true, Outcome::Unknown { detail: detail() }),
            1 => handled(false, Outcome::Unknown { detail: detail() }),
            2 => Handled { arrives: false, later: true, outcome: Outcome::Unknown { detail: detail() } },
            3 | 4 => handled(false, Outcome::Busy { reason: Reason::Nack, detail: detail() }),
            5 => handled(false, Outcome::Failed { reason: Reason::Rejected, detail: detail() }),
            6 => handled(false, Outcome::NotSent),
            _ => handled(true, Outcome::Confirmed),
        }
    }
}
