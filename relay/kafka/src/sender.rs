//! The one thread that gives rows to librdkafka. Whatever changes the way a row goes (answers of the cluster,
//! refusals, the end of a producer) happens on it too, between two rows, so the order of rows is the order in
//! which they were handed over.
//!
//! Guarantees: a producer is replaced only after it is dead; while the link is not up, rows are answered
//! `NotSent` at once. Deliberately absent: waiting for a broker, except when a topic came back from the dead.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::mpsc::Sender as Asks;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use outbox_core::{Backoff, BackoffPolicy, Clock, Link, Millis, Observer, Outcome, Outgoing, Reason, Scope};
use rdkafka::types::RDKafkaErrorCode;
use tokio::sync::watch;

use crate::config::{ConfigError, Settings};
use crate::delivery::{self, Effect};
use crate::gate::{Admission, Gate};
use crate::inbox::{Event, Inbox, Mail};
use crate::message;
use crate::producer::{Line, Passenger};
use crate::round::Rounds;
use crate::scout::Ask;
use crate::topics::{self, Standing};

/// How long the thread may stand still for a topic that came back.
const LOOK_AGAIN_MS: u64 = 2_000;
/// How often rows that wait are looked at when nothing is heard.
const WAITING_TICK: Duration = Duration::from_millis(10);
/// A linger is cut short this often while stopping.
const HURRY_MS: u64 = 2;

mod link;

struct Topic {
    name: String,
    gate: Gate,
}

pub(crate) struct Sender {
    settings: Settings,
    inbox: Arc<Inbox>,
    link: watch::Sender<Link>,
    observer: Arc<dyn Observer>,
    pipelined: Arc<RwLock<HashSet<String>>>,
    asks: Asks<Ask>,
    line: Option<Line>,
    /// The link's state as the rest of the process sees it.
    up: bool,
    generation: u64,
    reopen_at: Millis,
    tick_at: Millis,
    rounds: Rounds,
    backoff: Backoff,
    /// What was last heard against the cluster, until it answers again.
    trouble: Option<Link>,
    /// When its reason was looked for last.
    looked_at: Option<Millis>,
    /// Topics are never forgotten: their number is bounded by what routes and the allow-list let through.
    topics: Vec<Topic>,
    names: HashMap<String, usize>,
    waiting: BTreeSet<usize>,
}

impl Sender {
    pub fn new(
        settings: Settings,
        inbox: Arc<Inbox>,
        link: watch::Sender<Link>,
        observer: Arc<dyn Observer>,
        pipelined: Arc<RwLock<HashSet<String>>>,
        asks: Asks<Ask>,
    ) -> Result<Self, ConfigError> {
        // The first producer is made here, so that a wrong configuration is an error of `start`.
        let line = Some(Line::open(&settings, 0, &inbox)?);
        let backoff = Backoff::new(BackoffPolicy { initial_ms: 100, max_ms: 10_000 });
        let sender = Self {
            settings,
            inbox,
            link,
            observer,
            pipelined,
            asks,
            line,
            up: false,
            generation: 0,
            reopen_at: Millis(0),
            tick_at: Millis(0),
            rounds: Rounds::new(),
            backoff,
            trouble: None,
            looked_at: None,
            topics: Vec::new(),
            names: HashMap::new(),
            waiting: BTreeSet::new(),
        };
        sender.ask(Ask::Check);
        Ok(sender)
    }

    pub fn run(mut self) {
        let tick = Duration::from_millis(self.tick_ms());
        let mut mail = Mail::default();
        loop {
            // librdkafka may free room a moment after the report that was waited for.
            let pause = if self.waiting.is_empty() { tick } else { tick.min(WAITING_TICK) };
            self.inbox.take(&mut mail, pause);
            self.rounds.next();
            if mail.is_empty() {
                self.pump_waiting();
            }
            for event in mail.events.drain(..) {
                if let Event::Stop { grace_ms } = event {
                    mail.rows.drain(..).for_each(not_sent);
                    return self.stop(grace_ms);
                }
                self.event(event);
            }
            for outgoing in mail.rows.drain(..) {
                self.row(outgoing);
            }
            self.tick();
        }
    }

    fn event(&mut self, event: Event) {
        match event {
            Event::Landed { generation, topic, confirmed, effect } if generation == self.generation => {
                self.landed(topic, confirmed, effect);
            }
            Event::Trouble { generation, code, detail } if generation == self.generation => self.heard(code, detail),
            Event::Asked { topic, standing } => self.asked(&topic, standing),
            Event::Checked(answer) => self.checked(answer),
            Event::Looked { generation, why } => self.looked(generation, why),
            // Of a producer that is gone.
            Event::Landed { .. } | Event::Trouble { .. } | Event::Stop { .. } => {}
        }
    }

    fn row(&mut self, outgoing: Outgoing) {
        if !self.up {
            return not_sent(outgoing);
        }
        let row = &outgoing.row;
        if let Some(name) = row.headers.reserved() {
            let detail = format!("header '{name}' is one that the relay sets itself; rename it");
            return impossible(outgoing, Reason::ReservedHeader, detail);
        }
        let topic = match self.names.get(&outgoing.address.destination) {
            Some(topic) => *topic,
            None => match topics::name_fault(&outgoing.address.destination) {
                Some(fault) => return impossible(outgoing, Reason::Name, fault.to_owned()),
                None => self.add_topic(&outgoing.address.destination),
            },
        };
        if self.topics[topic].gate.queue.is_empty() {
            if let Some(outgoing) = self.offer(topic, outgoing) {
                self.wait(topic, outgoing);
                // Once more, now that reports are announced: the one that makes room may just have come.
                self.pump(topic);
            }
        } else {
            self.topics[topic].gate.queue.push_back(outgoing);
        }
    }

    fn add_topic(&mut self, name: &str) -> usize {
        let topic = self.topics.len();
        self.topics.push(Topic { name: name.to_owned(), gate: Gate::default() });
        self.names.insert(name.to_owned(), topic);
        topic
    }

    fn wait(&mut self, topic: usize, outgoing: Outgoing) {
        self.topics[topic].gate.queue.push_front(outgoing);
        self.waiting.insert(topic);
    }

    /// Sends or answers a row, or gives it back because it has to wait.
    fn offer(&mut self, topic: usize, outgoing: Outgoing) -> Option<Outgoing> {
        let Some(line) = &self.line else {
            not_sent(outgoing);
            return None;
        };
        let now = Clock.now();
        if outgoing.must_stay(now) {
            not_sent(outgoing);
            return None;
        }
        let Topic { name, gate } = &mut self.topics[topic];
        let bytes = message::batch_bytes(&outgoing.row);
        let load = line.load(topic, outgoing.row.ordering_key.as_deref(), gate.limits.partitions);
        match gate.admit(bytes, load, self.rounds.turn(now), self.settings.batching) {
            Admission::Wait => Some(outgoing),
            Admission::Ask => {
                gate.asking = true;
                let ask = Ask::Topic(name.clone());
                self.ask(ask);
                Some(outgoing)
            }
            Admission::TooLarge { limit_bytes } => {
                let detail = format!("{} (it is {bytes} bytes, the limit {limit_bytes})", delivery::too_large(name));
                impossible(outgoing, Reason::Size, detail);
                None
            }
            Admission::Go { alone } => match line.send(Passenger { outgoing, topic, bytes, alone }, now) {
                Ok(()) => None,
                Err((code, outgoing)) => self.turned_away(topic, code, outgoing),
            },
        }
    }

    /// librdkafka did not take a row; only a full queue is a reason to wait.
    fn turned_away(&mut self, topic: usize, code: RDKafkaErrorCode, outgoing: Outgoing) -> Option<Outgoing> {
        if code == RDKafkaErrorCode::QueueFull {
            if let Some(line) = &self.line {
                line.set_full(true);
            }
            return Some(outgoing);
        }
        let (outcome, effect) = delivery::judge(code, true, &self.topics[topic].name);
        // Whatever the reason, the row did not leave.
        let outcome = if matches!(outcome, Outcome::Unknown { .. }) { Outcome::NotSent } else { outcome };
        outgoing.ticket.answer(outcome);
        if effect != Effect::None {
            // Not here: the caller holds a row of this topic's queue.
            let event = Event::Landed { generation: self.generation, topic, confirmed: false, effect };
            self.inbox.event(event);
        }
        None
    }

    fn pump(&mut self, topic: usize) {
        if let Some(line) = &self.line {
            line.watch(topic, true);
        }
        while let Some(outgoing) = self.topics[topic].gate.queue.pop_front() {
            if let Some(outgoing) = self.offer(topic, outgoing) {
                return self.wait(topic, outgoing);
            }
        }
        self.waiting.remove(&topic);
        if let Some(line) = &self.line {
            line.watch(topic, false);
        }
    }

    fn landed(&mut self, topic: usize, confirmed: bool, effect: Effect) {
        let now = Clock.now();
        let Topic { name, gate } = &mut self.topics[topic];
        match effect {
            Effect::None => {}
            Effect::Gone => {
                let detail = topics::missing(name);
                gate.forget();
                gate.stale = true;
                self.set_order(topic, now);
                self.refuse_queue(topic, &detail);
            }
            Effect::Crowded => {
                let overlapped = gate.may_pipeline(now) && !self.settings.config.strict;
                gate.beware(now);
                self.set_order(topic, now);
                if overlapped {
                    let name = &self.topics[topic].name;
                    let detail = format!("a batch to topic '{name}' was refused while later rows of its keys went on");
                    return self.ruin(&detail, false);
                }
            }
            Effect::Ruined => return self.end_by_fatal("the producer's sequence was refused"),
        }
        if confirmed && !self.topics[topic].gate.proven {
            self.topics[topic].gate.proven = true;
            self.backoff.reset();
            self.set_order(topic, now);
        }
        self.pump_after(topic);
    }

    /// Room in librdkafka's queue is everybody's.
    fn pump_after(&mut self, topic: usize) {
        self.pump(topic);
        self.pump_waiting();
    }

    fn pump_waiting(&mut self) {
        for topic in std::mem::take(&mut self.waiting) {
            self.pump(topic);
        }
        // As long as a row waits, every report is announced: none can slip by between a refusal and the wish.
        if let Some(line) = &self.line
            && self.waiting.is_empty()
        {
            line.set_full(false);
        }
    }

    fn set_order(&self, topic: usize, now: Millis) {
        let Topic { name, gate } = &self.topics[topic];
        let mut pipelined = self.pipelined.write().unwrap_or_else(PoisonError::into_inner);
        if gate.may_pipeline(now) && !self.settings.config.strict {
            pipelined.insert(name.clone());
        } else {
            pipelined.remove(name);
        }
    }

    fn refuse_queue(&mut self, topic: usize, detail: &str) {
        self.waiting.remove(&topic);
        for outgoing in std::mem::take(&mut self.topics[topic].gate.queue) {
            let (scope, reason, detail) = (Scope::Destination, Reason::NoTopic, detail.to_owned());
            outgoing.ticket.answer(Outcome::AddressAway { scope, reason, detail });
        }
    }

    fn asked(&mut self, name: &str, standing: Standing) {
        let Some(topic) = self.names.get(name).copied() else {
            return;
        };
        let gate = &mut self.topics[topic].gate;
        match standing {
            Standing::Exists(limits) => {
                gate.opened(limits, Clock.now());
                if std::mem::take(&mut gate.stale)
                    && let Some(line) = &self.line
                {
                    line.look_again(name, LOOK_AGAIN_MS);
                }
                self.set_order(topic, Clock.now());
                self.pump(topic);
            }
            // Beside the traffic it decides nothing: reports of rows that are on their way say more.
            Standing::Away(_) | Standing::Unasked(_) if gate.background => gate.background = false,
            Standing::Away(detail) => {
                gate.forget();
                self.set_order(topic, Clock.now());
                self.refuse_queue(topic, &detail);
            }
            Standing::Unasked(_) => {
                gate.forget();
                self.set_order(topic, Clock.now());
                std::mem::take(&mut self.topics[topic].gate.queue).into_iter().for_each(not_sent);
                self.waiting.remove(&topic);
                self.ask(Ask::Check);
            }
        }
    }

    fn tick(&mut self) {
        let now = Clock.now();
        if now < self.tick_at {
            return;
        }
        self.tick_at = now.plus(self.tick_ms());
        let Some(line) = &self.line else {
            if now >= self.reopen_at {
                self.reopen(now);
            }
            return;
        };
        if let Some((since, topic)) = line.oldest()
            && now.since(since) > self.settings.config.confirm_timeout_ms
        {
            let limit_ms = self.settings.config.confirm_timeout_ms;
            let detail = format!("no delivery report within {limit_ms} ms for a record to topic '{topic}'");
            return self.ruin(&detail, false);
        }
        self.pump_waiting();
        for topic in 0..self.topics.len() {
            let Topic { name, gate } = &mut self.topics[topic];
            let relaxed = gate.relax(now);
            if gate.is_stale(now) && gate.proven {
                gate.background = true;
                let ask = Ask::Topic(name.clone());
                self.ask(ask);
            }
            if relaxed {
                self.set_order(topic, now);
            }
        }
    }

    fn tick_ms(&self) -> u64 {
        (self.settings.config.confirm_timeout_ms / 20).clamp(10, 250)
    }

    fn ask(&self, ask: Ask) {
        // The scout ends only after this thread asked it to.
        let _ = self.asks.send(ask);
    }
}

fn not_sent(outgoing: Outgoing) {
    outgoing.ticket.answer(Outcome::NotSent);
}

fn impossible(outgoing: Outgoing, reason: Reason, detail: String) {
    outgoing.ticket.answer(Outcome::Impossible { reason, detail });
}
