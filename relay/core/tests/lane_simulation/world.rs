//! One run: a database, two brokers, one or two relays, writers, an operator, and faults, in the order that a seed
//! says. After the faults everything must settle.

use outbox_core::{Outcome, Reason, Sink, Ticket};

use crate::broker::{Brokers, Message};
use crate::calls::{Ask, Call, Reply};
use crate::checks::{self, Ledger};
use crate::db::{Db, Standing};
use crate::met::Met;
use crate::relay::{Limits, Links, Relay};
use crate::variant::Variant;

const FAULTY_STEPS: usize = 420;
const CALM_STEPS: usize = 6_000;
const OPEN_MAX: usize = 3;

pub struct World {
    pub random: fastrand::Rng,
    pub variant: Variant,
    pub step: usize,
    pub faults: bool,
    pub db: Db,
    pub brokers: Brokers,
    pub relays: Vec<Relay>,
    pub calls: Vec<Call>,
    pub ledger: Ledger,
    pub met: Met,
    pub away: [bool; 2],
    pub answered: Vec<(u32, u64)>,
    pub next_owner: u32,
    pub next_session: u64,
    /// Tells what happens, for one seed run alone.
    trace: bool,
    rows_left: usize,
    keys: u8,
    /// Writers of a key take turns, as an application that locks the thing does.
    serialised: bool,
}

impl World {
    fn new(seed: u64, variant: Variant) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let block_key = random.u8(0..3) == 0;
        let limits = Limits { rows_max: random.usize(1..5), bytes_max: random.usize(1..6), block_key };
        let relays = random.u32(1..3);
        let mut brokers = Brokers::default();
        brokers.missing[2] = random.u8(0..3) == 0;
        Self {
            variant,
            step: 0,
            faults: true,
            db: Db::new(variant, block_key),
            brokers,
            relays: (0..relays).map(|owner| Relay::new(owner, variant, limits)).collect(),
            calls: Vec::new(),
            ledger: Ledger::default(),
            met: Met::default(),
            away: [false; 2],
            answered: Vec::new(),
            next_owner: relays,
            next_session: 1,
            trace: std::env::var_os("SIMULATION_SEED").is_some(),
            rows_left: random.usize(3..10),
            keys: random.u8(1..4),
            serialised: random.bool(),
            random,
        }
    }

    /// `Err` says which promise broke.
    pub fn run(seed: u64, variant: Variant) -> (Result<(), String>, Met) {
        let mut world = Self::new(seed, variant);
        let result = world.play();
        (result, world.met)
    }

    fn play(&mut self) -> Result<(), String> {
        while self.step < FAULTY_STEPS {
            self.one_step()?;
        }
        self.calm_down();
        let end = self.step + CALM_STEPS;
        while self.step < end {
            self.one_step()?;
            if self.step.is_multiple_of(16) && self.db.open.is_empty() && checks::unsettled(&self.db).is_empty() {
                return Ok(());
            }
        }
        Err(format!("stuck: {:?} with {:?}", checks::unsettled(&self.db), self.db.tables.held))
    }

    pub fn tell(&self, what: impl FnOnce() -> String) {
        if self.trace {
            eprintln!("{:>5} {:>6} ms  {}", self.step, self.db.now_ms, what());
        }
    }

    fn calm_down(&mut self) {
        self.faults = false;
        self.away = [false; 2];
        self.brokers.missing = [false; 3];
        self.rows_left = 0;
    }

    fn one_step(&mut self) -> Result<(), String> {
        self.step += 1;
        self.db.now_ms += self.random.u64(0..3);
        match self.random.u8(0..16) {
            0 | 1 => self.write(),
            2..=8 => {
                let at = self.random.usize(..self.relays.len());
                self.relay_step(at);
            }
            9 | 10 => self.run_call()?,
            11 | 12 => self.deliver(),
            13 | 14 => self.broker_step()?,
            _ if self.faults && self.random.u8(0..3) == 0 => self.fault()?,
            _ => {}
        }
        Ok(())
    }

    fn write(&mut self) {
        if self.rows_left > 0 && self.db.open.len() < OPEN_MAX && self.random.bool() {
            let key = Some(self.random.u8(0..=self.keys)).filter(|key| *key < self.keys);
            let topic = if self.random.bool() { 0 } else { self.random.u8(0..3) };
            let delayed = self.random.u8(0..6) == 0;
            let available_at = delayed.then(|| self.db.now_ms + self.random.u64(0..60));
            let taken = self.db.open.iter().any(|open| open.keys.contains(&key));
            if self.serialised && key.is_some() && taken {
                return;
            }
            self.rows_left -= 1;
            let again = !self.db.open.is_empty() && self.random.u8(0..3) == 0;
            let open = if again { self.random.usize(..self.db.open.len()) } else { self.db.begin() };
            let uid = self.db.insert(open, key, topic, available_at);
            self.tell(|| format!("insert {uid} key {key:?} topic {topic}"));
            if self.random.u8(0..8) == 0 {
                self.brokers.bad.insert(uid);
            }
        } else if !self.db.open.is_empty() {
            let open = self.random.usize(..self.db.open.len());
            if self.random.u8(0..8) == 0 {
                self.met.note("transaction rolled back");
                self.db.rollback(open);
                return;
            }
            if open != self.db.open.len() - 1 {
                self.met.note("row committed late");
            }
            let flush = self.random.u8(0..3) != 0;
            if !flush {
                self.met.note("row committed asynchronously");
            }
            self.tell(|| format!("commit, flush {flush}: {:?}", self.db.open[open]));
            self.db.commit(open, flush, self.step);
        }
    }

    pub fn links(&self, at: usize) -> Links {
        let relay = &self.relays[at];
        let sinks = [Sink::Rabbitmq, Sink::Kafka];
        let away = sinks.into_iter().zip(self.away).filter(|(_, away)| *away).map(|(sink, _)| sink).collect();
        Links { away, answered: self.answered.contains(&(relay.owner, relay.channel)) }
    }

    fn relay_step(&mut self, at: usize) {
        let now_ms = self.db.now_ms;
        let links = self.links(at);
        let relay = &mut self.relays[at];
        if relay.session.is_none() {
            relay.session = Some(self.next_session);
            self.next_session += 1;
            self.db.relays.insert(relay.owner);
            return;
        }
        match self.random.u8(0..8) {
            0 => {
                let ask = relay.heartbeat(now_ms);
                self.control(at, ask);
            }
            1 => {
                let ask = relay.ask_horizon();
                self.control(at, ask);
            }
            2 | 3 => self.publish(at, &links),
            4 => {
                relay.look |= self.random.bool();
                let turn = relay.turn(&links, self.random.u8(0..4) != 0, now_ms);
                if let Some((lease, ask)) = turn {
                    let ask = self.vary(ask);
                    self.call(at, lease.epoch, ask);
                }
            }
            5 => {
                if let Some((lease, ask)) = relay.mark() {
                    self.call(at, lease.epoch, ask);
                }
            }
            _ => self.answer(at),
        }
    }

    /// Some variants read a claim in more than one statement.
    fn vary(&mut self, mut ask: Ask) -> Ask {
        use crate::claim::Part::{Delayed, Fresh, Waiting};
        if let Ask::Claim { statements, .. } = &mut ask {
            match self.variant {
                Variant::HeldApart => *statements = vec![vec![Waiting], vec![Fresh, Delayed]],
                Variant::DelayedApart => *statements = vec![vec![Delayed], vec![Fresh, Waiting]],
                _ => {}
            }
            if self.random.bool() {
                statements.reverse();
            }
        }
        ask
    }

    pub fn control(&mut self, at: usize, ask: Option<Ask>) {
        if let Some(ask) = ask {
            self.call(at, 0, ask);
        }
    }

    fn call(&mut self, at: usize, epoch: i64, ask: Ask) {
        let relay = &self.relays[at];
        let Some(session) = relay.session else { return };
        self.calls.push(Call { owner: relay.owner, epoch, session, ask, reply: None, orphan: false });
    }

    fn publish(&mut self, at: usize, links: &Links) {
        for _ in 0..self.random.usize(1..4) {
            let relay = &mut self.relays[at];
            let Some(publication) = relay.next(links, self.db.now_ms) else { return };
            let claimed = relay.claims.get(&publication.row.id.seq).copied().unwrap_or_default();
            let mut message = Message::new(&publication, relay.owner, relay.channel, claimed);
            if self.variant == Variant::PipelinedUnknownTopic {
                // The client library has it already: a broken run does not keep it back.
                message.run = None;
            }
            if self.variant == Variant::MarkBeforeConfirm {
                relay.lane.answered(message.seq, message.serial);
                relay.lane.confirm(message.seq);
            }
            self.brokers.wire.push(message);
            self.tell(|| format!("publish {publication:?}"));
        }
    }

    fn answer(&mut self, at: usize) {
        let delay_ms = self.random.u64(1..30);
        let relay = &mut self.relays[at];
        let Some(answer) = relay.answers.pop_front() else { return };
        let owner = relay.owner;
        let text = self.trace.then(|| format!("{answer:?}"));
        let outcome = relay.confirm(answer, delay_ms, self.db.now_ms);
        self.tell(|| format!("relay {owner}: {text:?}"));
        self.met.note(match outcome {
            None => "answer: stale",
            Some(Outcome::Confirmed) => "answer: confirmed",
            Some(Outcome::NotSent) => "answer: not sent",
            Some(Outcome::Unknown { .. }) => "answer: unknown",
            Some(Outcome::AddressAway { .. }) => "answer: address away",
            Some(Outcome::Busy { .. }) => "answer: busy",
            Some(Outcome::Impossible { .. }) => "answer: impossible",
            Some(Outcome::Failed { .. }) => "answer: failed",
        });
    }

    fn run_call(&mut self) -> Result<(), String> {
        let waiting: Vec<usize> = (0..self.calls.len()).filter(|at| self.calls[*at].reply.is_none()).collect();
        let Some(at) = self.random.choice(&waiting).copied() else { return Ok(()) };
        // A statement whose client is gone is in no hurry: it waits for locks, or its server was swapped out.
        if self.calls[at].orphan && self.random.u8(0..8) != 0 {
            return Ok(());
        }
        let call = &mut self.calls[at];
        call.run(&mut self.db, self.step);
        let call = &self.calls[at];
        self.tell(|| format!("database: {call:?}"));
        if call.orphan {
            self.met.note("write ran after its session");
        }
        match (&call.reply, &call.ask) {
            (Some(Reply::Marked(false)), _) => self.met.note("stale mark"),
            (Some(Reply::Held(outbox_core::Fenced::Stale)), _) => self.met.note("stale hold"),
            (Some(Reply::Held(_)), Ask::Hold { entries, .. }) => {
                for entry in entries {
                    self.met.note(match (entry.state, entry.reason) {
                        (outbox_core::HoldState::Parked, _) => "row parked",
                        (outbox_core::HoldState::Waiting, Reason::Behind) => "row behind",
                        (outbox_core::HoldState::Waiting, _) => "row waiting",
                    });
                }
            }
            _ => {}
        }
        if call.orphan && call.reply.is_some() {
            self.calls.swap_remove(at);
        }
        checks::tables(&self.db, &self.brokers)
    }

    fn broker_step(&mut self) -> Result<(), String> {
        if !self.brokers.late.is_empty() && self.random.u8(0..4) == 0 {
            let message = self.brokers.late.swap_remove(self.random.usize(..self.brokers.late.len()));
            self.met.note("late arrival");
            return self.arrive(&message);
        }
        let Some(at) = self.brokers.pick(&mut self.random) else { return Ok(()) };
        let message = self.brokers.wire.remove(at);
        let handled = self.brokers.handle(&message, self.faults, &mut self.random);
        if handled.arrives {
            self.arrive(&message)?;
        }
        if message.sink == Sink::Kafka && handled.arrives {
            self.answered.push((message.owner, message.channel));
        }
        self.reply(&message, handled.outcome);
        if handled.later {
            self.brokers.late.push(message);
        }
        Ok(())
    }

    /// Answers through a real ticket, so that a run breaks as it does in a sink.
    pub fn reply(&mut self, message: &Message, outcome: Outcome) {
        let (nobody, _) = tokio::sync::mpsc::unbounded_channel();
        Ticket::new(message.seq, message.serial, nobody).in_run(message.run.clone()).answer(outcome.clone());
        let mut relays = self.relays.iter_mut();
        if let Some(relay) = relays.find(|relay| (relay.owner, relay.channel) == (message.owner, message.channel)) {
            relay.answers.push_back(message.answer(outcome));
        }
    }

    pub fn arrive(&mut self, message: &Message) -> Result<(), String> {
        self.tell(|| format!("arrives: {message:?}"));
        checks::arrival(message, &self.db, &self.brokers, &self.ledger)?;
        if !self.brokers.arrived.insert(message.uid) {
            self.met.note("message arrived twice");
        }
        Ok(())
    }

    pub fn held_in(&self, standings: &[Standing]) -> Vec<i64> {
        let held = self.db.tables.held.iter().filter(|(_, held)| standings.contains(&held.standing));
        held.map(|(seq, _)| *seq).collect()
    }
}
