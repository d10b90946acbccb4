//! What goes wrong, what an operator does, and what replies do to a relay.

use outbox_core::{Origin, Outcome, Sink};

use crate::calls::{Ask, Call, Reply};
use crate::checks;
use crate::db::Standing;
use crate::relay::{LEASE_MS, Relay};
use crate::variant::Variant;
use crate::world::World;

impl World {
    pub fn fault(&mut self) -> Result<(), String> {
        let at = self.random.usize(..self.relays.len());
        let kind = self.random.u8(0..20);
        self.tell(|| format!("fault {kind} at relay {at}"));
        match kind {
            0 => self.crash_relay(at),
            1..=3 => self.lose_session(at),
            4 | 5 => return self.crash_database(),
            6 => {
                self.met.note("lease run out");
                self.db.now_ms += LEASE_MS + self.random.u64(0..20);
            }
            7 | 8 => {
                let sink = self.random.usize(..2);
                self.away[sink] = !self.away[sink];
                self.met.note("broker away");
            }
            9 | 10 => {
                let topic = self.random.usize(..2);
                self.brokers.missing[topic] = !self.brokers.missing[topic];
                self.met.note("address missing");
            }
            11 => self.brokers.missing[2] = false,
            12 | 13 => return self.lose_link(at),
            14 | 15 => self.retry(),
            16 | 17 => self.discard(),
            18 => {
                let gone = self.db.prune();
                if !gone.is_empty() {
                    self.met.note("rows pruned");
                }
                self.ledger.pruned.extend(gone);
            }
            _ => self.db.flush(),
        }
        Ok(())
    }

    fn retry(&mut self) {
        // Broker limits are raised now and then, or a retry would meet the same refusal.
        if self.random.bool() {
            self.brokers.bad.clear();
        }
        for seq in self.held_in(&[Standing::Parked]) {
            self.ledger.retried.insert(self.db.tables.held[&seq].uid);
            self.db.retry(seq);
            self.met.note("operator retried");
        }
    }

    fn discard(&mut self) {
        let may = self.held_in(&[Standing::Parked, Standing::Waiting]);
        if let Some(seq) = self.random.choice(&may).copied() {
            self.db.discard(seq);
            self.met.note("operator discarded");
        }
    }

    /// Statements of a client that is gone run late or never; what only reads is of no interest.
    fn orphan(&mut self, at: usize) {
        let owner = self.relays[at].owner;
        let mut lost = Vec::new();
        for call in self.calls.iter_mut().filter(|call| call.owner == owner && !call.orphan) {
            lost.push(match call.ask {
                Ask::Claim { .. } => "session lost with a claim under way",
                Ask::Hold { .. } => "session lost with a hold under way",
                Ask::Mark { .. } | Ask::Leave { .. } => "session lost with a mark under way",
                Ask::Heartbeat { .. } | Ask::Acquire { .. } | Ask::Recheck { .. } | Ask::Horizon { .. } => {
                    "session lost"
                }
            });
            call.orphan = true;
        }
        for what in lost {
            self.met.note(what);
        }
        let random = &mut self.random;
        let before = self.calls.len();
        let sharing = |calls: &[Call]| calls.iter().filter(|call| call.ask.is_half_done()).count();
        let half_done = sharing(&self.calls);
        self.calls
            .retain(|call| !call.orphan || call.reply.is_none() && call.ask.may_run_late() && random.u8(0..3) != 0);
        // What is rolled back lets go of the lane.
        self.db.sharing = self.db.sharing.saturating_sub(half_done - sharing(&self.calls));
        if self.calls.len() < before {
            self.met.note("write was lost with its session");
        }
    }

    fn lose_session(&mut self, at: usize) {
        if self.relays[at].session.is_some() {
            self.orphan(at);
            self.relays[at].session_lost();
            self.met.note("session lost");
        }
    }

    fn crash_relay(&mut self, at: usize) {
        self.orphan(at);
        let limits = self.relays[at].limits;
        self.relays[at] = Relay::new(self.next_owner, self.variant, limits);
        self.next_owner += 1;
        self.met.note("relay crashed");
    }

    fn crash_database(&mut self) -> Result<(), String> {
        self.met.note("database crashed");
        let unflushed = self.db.tables.rows.values().filter(|row| !self.db.is_durable(row)).count();
        let last_seq = self.db.last_seq();
        self.db.crash();
        if unflushed > 0 {
            self.met.note("database crashed with an unflushed row");
        }
        if self.db.last_seq() < last_seq {
            self.met.note("number given out twice");
        }
        // What ran is answered or not; what did not run is gone with its connection.
        self.calls.retain(|call| call.reply.is_some() && !call.orphan);
        let unseen = self.variant == Variant::ConnectionReplacedUnseen;
        for at in 0..self.relays.len() {
            // A pooler hides the crash now and then; what was under way is lost to the relay all the same.
            let relay = &mut self.relays[at];
            let busy = relay.turn_busy || relay.control_busy || relay.marking.is_some();
            if relay.session.is_some() && (!unseen && self.random.bool() || busy) {
                self.calls.retain(|call| call.owner != relay.owner);
                if unseen {
                    relay.turn_busy = false;
                    relay.control_busy = false;
                    relay.order = None;
                    relay.marking = None;
                } else {
                    relay.session_lost();
                }
            }
        }
        checks::after_crash(&self.db, &self.brokers, &self.ledger)
    }

    /// A link breaks: of what is under way a first part arrives, nobody is told, and all of it is unknown.
    fn lose_link(&mut self, at: usize) -> Result<(), String> {
        let (owner, channel) = (self.relays[at].owner, self.relays[at].channel);
        let sink = if self.random.bool() { Sink::Rabbitmq } else { Sink::Kafka };
        let (lost, kept): (Vec<_>, Vec<_>) = self
            .brokers
            .wire
            .drain(..)
            .partition(|message| (message.owner, message.channel, message.sink) == (owner, channel, sink));
        self.brokers.wire = kept;
        if lost.is_empty() {
            return Ok(());
        }
        self.met.note("link lost with rows under way");
        let arriving = self.random.usize(..=lost.len());
        for message in &lost[..arriving] {
            if !self.brokers.missing[message.topic] && !self.brokers.bad.contains(&message.uid) {
                self.arrive(message)?;
            }
        }
        let mut lost = lost;
        self.random.shuffle(&mut lost);
        for message in &lost {
            self.reply(message, Outcome::Unknown { detail: String::new() });
        }
        Ok(())
    }

    /// Hands one reply to its relay.
    pub fn deliver(&mut self) {
        let ready: Vec<usize> = (0..self.calls.len()).filter(|at| self.calls[*at].reply.is_some()).collect();
        let Some(chosen) = self.random.choice(&ready).copied() else { return };
        let call = self.calls.swap_remove(chosen);
        let of_session = |relay: &Relay| relay.owner == call.owner && relay.session == Some(call.session);
        let Some(at) = self.relays.iter().position(of_session) else { return };
        let Some(reply) = call.reply else { return };
        let now_ms = self.db.now_ms;
        let low = self.relays[at].lane.low();
        match (reply, call.ask) {
            (Reply::Lost, _) => {
                self.met.note("relay's entry was gone");
                self.lose_session(at);
                return;
            }
            (Reply::Page { page, request, asked, at: read }, _) => {
                // A reply to a lease that ended meanwhile has no worker any more.
                if self.relays[at].lease.is_some_and(|(lease, _)| lease == request.lease) {
                    if page.rows.iter().any(|row| row.origin == (Origin::Held { probe: true })) {
                        self.met.note("row probed");
                    }
                    self.relays[at].claimed(page, &asked, read);
                }
            }
            (Reply::Held(fenced), _) => {
                if self.relays[at].lease.is_some_and(|(lease, _)| lease.epoch == call.epoch) {
                    self.relays[at].held(fenced);
                }
            }
            (Reply::Marked(marked), _) => {
                let relay = &mut self.relays[at];
                if relay.lease.is_some_and(|(lease, _)| lease.epoch == call.epoch) {
                    match relay.marking.take() {
                        Some(rows) if marked => relay.lane.marked(&rows),
                        _ => relay.dropped(),
                    }
                }
            }
            (reply, _) => {
                match &reply {
                    Reply::Acquired { acquired: Some(acquired), .. } if acquired.continuous => {
                        self.met.note("lane taken again, rows kept");
                    }
                    Reply::Acquired { acquired: Some(_), .. } => self.met.note("lane taken over"),
                    Reply::Rechecked { still, .. } if still.len() < self.relays[at].lane.len() => {
                        self.met.note("kept row was gone");
                    }
                    _ => {}
                }
                let ask = self.relays[at].controlled(reply, now_ms);
                self.control(at, ask);
            }
        }
        if self.relays[at].lane.low() > low {
            self.met.note("low moved");
        }
    }
}
