//! Two relays, the database, the broker between them, and every event that may come next.

use outbox_core::{HoldEntry, KeyOrder};

use crate::Variant;
use crate::database::{Database, Fate, ROWS, key};
use crate::events::{Action, Faults, Met, Orphan};
use crate::relay::{Relay, Said, Turn};

#[derive(Clone, Debug)]
pub struct World {
    variant: Variant,
    left: Faults,
    database: Database,
    relays: Vec<Relay>,
    /// In the order of first arrival.
    arrived: Vec<i64>,
    /// On broken links, told apart by a number; each may still come to the broker, or not.
    zombies: Vec<(u8, i64)>,
    links_broken: u8,
    orphans: Vec<Orphan>,
    next_owner: u8,
    pub inverted: bool,
    pub met: Met,
}

impl std::hash::Hash for World {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        (self.left, &self.database, &self.relays, &self.arrived, &self.zombies).hash(state);
        (self.next_owner, self.inverted, self.met, format!("{:?}", self.orphans)).hash(state);
    }
}

impl PartialEq for World {
    fn eq(&self, other: &Self) -> bool {
        format!("{self:?}") == format!("{other:?}")
    }
}

impl World {
    pub fn new(variant: Variant, left: Faults) -> Self {
        let order = if left.pipelined { KeyOrder::Pipelined } else { KeyOrder::Strict };
        Self {
            variant,
            left,
            database: Database::new(left.late),
            relays: (0..2).map(|owner| Relay::new(owner, order)).collect(),
            arrived: Vec::new(),
            zombies: Vec::new(),
            links_broken: 0,
            orphans: Vec::new(),
            next_owner: 2,
            inverted: false,
            met: Met::default(),
        }
    }

    pub fn sent_is_in_broker(&self) -> bool {
        self.database.sent.iter().all(|seq| self.arrived.contains(seq))
    }

    pub fn broker_is_committed(&self) -> bool {
        self.arrived.iter().all(|seq| self.database.is_committed(*seq))
    }

    pub fn sent_or_waiting(&self) -> bool {
        self.database.held.keys().all(|seq| !self.database.sent.contains(seq))
    }

    pub fn all_sent(&self) -> bool {
        (1..=ROWS).all(|seq| !self.database.is_committed(seq) || self.database.sent.contains(&seq))
    }

    /// What happens by itself.
    pub fn progress(&self) -> Vec<Action> {
        let mut actions = Vec::new();
        match self.database.state(3) {
            // A key's writers are serialised: row 3 begins after row 1 has committed.
            Fate::Absent if self.database.is_committed(1) => actions.push(Action::Begin(3)),
            _ => {}
        }
        for seq in (1..=ROWS).filter(|seq| self.database.state(*seq) == Fate::Open) {
            actions.push(Action::Commit(seq));
            // A roll-back and a fault in one case would only multiply.
            if seq == 2 && self.left == (Faults { late: true, ..Faults::default() }) {
                actions.push(Action::RollBack(seq));
            }
        }
        actions.extend(self.database.held.iter().filter(|(_, held)| !held.due).map(|(seq, _)| Action::Due(*seq)));
        if self.lease_may_end() {
            actions.push(Action::LeaseEnds);
        }
        actions.extend((0..self.orphans.len()).map(Action::Orphan));
        // What is on one link comes in its order.
        let first = |index: &usize| {
            let (link, seq) = self.zombies[*index];
            !self.zombies[..*index].iter().any(|before| before.0 == link && key(before.1) == key(seq))
        };
        actions.extend((0..self.zombies.len()).filter(first).map(Action::Zombie));
        for index in 0..self.relays.len() {
            self.relay_progress(index, &mut actions);
        }
        actions
    }

    fn relay_progress(&self, index: usize, actions: &mut Vec<Action>) {
        let (relay, database) = (&self.relays[index], &self.database);
        let mut may = |possible: bool, action: Action| {
            if possible {
                actions.push(action);
            }
        };
        may(!relay.session, Action::Reconnect(index));
        let ours = database.owner == Some(relay.owner);
        let free = database.owner.is_none() || database.expired || ours;
        // Two relays that wait alike are one case: the first goes first.
        let twin = index == 1 && database.owner.is_none();
        may(relay.session && relay.lease.is_none() && free && !twin, Action::Acquire(index));
        may(relay.lease.is_some() && !relay.valid, Action::Renew(index));
        may(!relay.channel.is_empty(), Action::Arrive(index));
        may(!relay.answers.is_empty(), Action::Answer(index));
        match &relay.marking {
            Some(mark) if mark.done.is_none() => may(true, Action::MarkRuns(index)),
            Some(_) => may(true, Action::MarkEnds(index)),
            None => {}
        }
        match &relay.turn {
            Some(Turn::Hold { done: None, .. }) => may(true, Action::TurnRuns(index)),
            Some(_) => may(true, Action::TurnEnds(index)),
            None if relay.lease.is_some() => {
                let known = relay.horizon.map_or(0, |horizon| horizon.last_seq);
                may(self.left.late && known < database.last_seq(), Action::Horizon(index));
                may(self.claim_brings_something(relay), Action::Claim(index));
            }
            None => {}
        }
    }

    /// Rows, or a higher `low`.
    fn claim_brings_something(&self, relay: &Relay) -> bool {
        let page = self.database.page(relay.lane.low(), &relay.lane.seqs());
        let raises =
            |horizon: outbox_core::Horizon| page.snapshot_xmin > horizon.xid && horizon.last_seq > relay.lane.low();
        !page.rows.is_empty() || relay.lane.is_empty() && relay.horizon.is_some_and(raises)
    }

    fn lease_may_end(&self) -> bool {
        let alive =
            |owner| self.relays.iter().any(|relay| relay.owner == owner && relay.lease.is_some() && relay.valid);
        self.database.owner.is_some_and(|owner| !alive(owner)) && !self.database.expired
    }

    pub fn possible_faults(&self) -> Vec<Action> {
        let mut actions = Vec::new();
        if self.left.in_all == 0 {
            return actions;
        }
        for (index, relay) in self.relays.iter().enumerate() {
            let owns = relay.lease.is_some();
            let busy = owns || !relay.channel.is_empty() || !relay.answers.is_empty();
            let mut may = |left: usize, possible: bool, action: Action| {
                if left > 0 && possible {
                    actions.push(action);
                }
            };
            may(self.left.crashes, busy, Action::Crash(index));
            may(self.left.sessions, owns, Action::SessionLost(index));
            may(self.left.cuts, !relay.channel.is_empty() || !relay.answers.is_empty(), Action::Cut(index));
            may(self.left.expiries, owns && relay.valid, Action::Expire(index));
            may(self.left.nacks, !relay.channel.is_empty(), Action::Nack(index));
            may(self.left.returns, !relay.channel.is_empty(), Action::Return(index));
        }
        actions
    }

    pub fn apply(&mut self, action: Action) {
        self.met = Met::default();
        self.happen(action);
        for relay in &mut self.relays {
            relay.work(self.variant);
        }
    }

    fn happen(&mut self, action: Action) {
        match action {
            Action::Begin(seq) => self.database.begin(seq),
            Action::Commit(seq) => {
                self.database.rows.insert(seq, Fate::Committed);
            }
            Action::RollBack(seq) => {
                self.database.rows.insert(seq, Fate::RolledBack);
            }
            Action::Due(seq) => {
                if let Some(held) = self.database.held.get_mut(&seq) {
                    held.due = true;
                }
            }
            Action::LeaseEnds => self.database.expired = true,
            Action::Orphan(index) => self.run_orphan(index),
            Action::Zombie(index) => {
                let (_, seq) = self.zombies.remove(index);
                self.arrive(seq);
            }
            Action::Acquire(index) => self.acquire(index),
            Action::Renew(index) => self.renew(index),
            Action::Reconnect(index) => self.relays[index].session = true,
            Action::Horizon(index) => self.relays[index].horizon = Some(self.database.horizon()),
            Action::Claim(index) => {
                let relay = &mut self.relays[index];
                let page = self.database.page(relay.lane.low(), &relay.lane.seqs());
                relay.turn = Some(Turn::Claimed { page, horizon: relay.horizon });
            }
            Action::TurnRuns(index) => self.turn_runs(index),
            Action::TurnEnds(index) => self.turn_ends(index),
            Action::Arrive(index) => {
                if let Some(seq) = self.relays[index].arrive() {
                    self.arrive(seq);
                }
            }
            Action::Answer(index) => {
                let (sent, said) = self.relays[index].answers.remove(0);
                self.relays[index].answer(sent, said, self.variant);
            }
            Action::MarkRuns(index) => self.mark_runs(index),
            Action::MarkEnds(index) => self.mark_ends(index),
            fault => {
                self.left.in_all -= 1;
                self.strike(fault);
            }
        }
    }

    fn strike(&mut self, fault: Action) {
        match fault {
            Action::Crash(index) => {
                self.left.crashes -= 1;
                let order = self.relays[index].order;
                self.leave_orphans(index);
                let owner = self.next_owner;
                self.next_owner += 1;
                let dead = std::mem::replace(&mut self.relays[index], Relay::new(owner, order));
                self.strand(dead.on_the_link());
            }
            Action::SessionLost(index) => {
                self.left.sessions -= 1;
                self.leave_orphans(index);
                self.relays[index].session_lost();
            }
            Action::Cut(index) => {
                self.left.cuts -= 1;
                let lost = self.relays[index].cut(self.variant);
                self.strand(lost);
            }
            Action::Expire(index) => {
                self.left.expiries -= 1;
                self.relays[index].valid = false;
            }
            Action::Nack(index) => {
                self.left.nacks -= 1;
                self.relays[index].refuse(Said::Nacked);
            }
            Action::Return(index) => {
                self.left.returns -= 1;
                self.relays[index].refuse(Said::Returned);
            }
            _ => {}
        }
    }

    /// A link breaks with these on it.
    fn strand(&mut self, rows: Vec<i64>) {
        self.links_broken += 1;
        let link = self.links_broken;
        self.zombies.extend(rows.into_iter().map(|seq| (link, seq)));
    }

    /// Writes that were sent and not carried out yet.
    fn leave_orphans(&mut self, index: usize) {
        let relay = &self.relays[index];
        let owner = relay.owner;
        if let Some(mark) = relay.marking.as_ref().filter(|mark| mark.done.is_none()) {
            self.orphans.push(Orphan::Mark { owner, epoch: mark.epoch, rows: mark.rows.clone() });
        }
        if let Some(Turn::Hold { epoch, order, done: None }) = &relay.turn {
            self.orphans.push(Orphan::Hold { owner, epoch: *epoch, entries: order.entries.clone() });
        }
    }

    fn run_orphan(&mut self, index: usize) {
        self.met.orphan = true;
        let done = match self.orphans.remove(index) {
            Orphan::Mark { owner, epoch, rows } => self.database.mark(owner, epoch, &rows),
            Orphan::Hold { owner, epoch, entries } => self.write_hold(owner, epoch, &entries),
        };
        self.met.refused |= !done;
    }

    fn write_hold(&mut self, owner: u8, epoch: i64, entries: &[HoldEntry]) -> bool {
        self.database.hold(owner, epoch, entries, self.variant != Variant::HoldNotFenced)
    }

    fn arrive(&mut self, seq: i64) {
        if self.arrived.contains(&seq) {
            self.met.twice = true;
            return;
        }
        self.inverted |= self.arrived.iter().any(|earlier| *earlier > seq && key(*earlier) == key(seq));
        self.met.late |= seq == 2 && self.arrived.contains(&3);
        self.arrived.push(seq);
    }

    fn acquire(&mut self, index: usize) {
        let other = &self.relays[1 - index];
        self.met.takeover |= !other.channel.is_empty();
        let (relay, database) = (&mut self.relays[index], &mut self.database);
        let continuous = database.owner == Some(relay.owner) && relay.known_epoch == Some(database.epoch);
        database.owner = Some(relay.owner);
        database.epoch += 1;
        database.expired = false;
        if continuous {
            let still = database.recheck(&relay.lane.kept());
            relay.retain(&still);
        } else {
            relay.lane.clear();
        }
        relay.lease = Some(database.epoch);
        relay.valid = true;
    }

    fn renew(&mut self, index: usize) {
        let relay = &mut self.relays[index];
        if relay.lease.is_some_and(|epoch| self.database.owns(relay.owner, epoch)) {
            self.database.expired = false;
            relay.valid = true;
        } else {
            relay.dropped();
        }
    }

    fn turn_runs(&mut self, index: usize) {
        let owner = self.relays[index].owner;
        let Some(Turn::Hold { epoch, order, .. }) = self.relays[index].turn.clone() else { return };
        let done = self.write_hold(owner, epoch, &order.entries);
        self.met.refused |= !done;
        self.relays[index].turn = Some(Turn::Hold { epoch, order, done: Some(done) });
    }

    fn turn_ends(&mut self, index: usize) {
        let relay = &mut self.relays[index];
        match relay.turn.take() {
            Some(Turn::Claimed { page, horizon }) => relay.claimed(page, horizon, self.variant),
            Some(Turn::Hold { order, done: Some(true), .. }) => {
                relay.lane.held(&order);
                self.met.waited = true;
            }
            Some(Turn::Hold { .. }) => relay.dropped(),
            None => {}
        }
    }

    fn mark_runs(&mut self, index: usize) {
        let owner = self.relays[index].owner;
        if let Some(mark) = &mut self.relays[index].marking {
            let done = self.database.mark(owner, mark.epoch, &mark.rows);
            mark.done = Some(done);
            self.met.refused |= !done;
        }
    }

    fn mark_ends(&mut self, index: usize) {
        let relay = &mut self.relays[index];
        match relay.marking.take() {
            Some(mark) if mark.done == Some(true) => relay.lane.marked(&mark.rows),
            _ => relay.dropped(),
        }
    }
}
