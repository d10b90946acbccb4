//! One relay with one lane: the turns of `lane_worker` around the real `Lane`, one event at a time.

use std::fmt::Write;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use outbox_core::{
    Address, BackoffPolicy, Content, Gate, HoldOrder, Horizon, KeyOrder, Lane, Mapped, Millis, Outcome, Page,
    PageFacts, Reason, RetryPolicy, RowId, Sink, Verdict, Verdicted, decide,
};

use crate::Variant;
use crate::database::key;

const NOW: Millis = Millis(0);

/// One statement between the worker and the database.
#[derive(Clone, Debug)]
pub enum Turn {
    Claimed { page: Page, horizon: Option<Horizon> },
    Hold { epoch: i64, order: HoldOrder, done: Option<bool> },
}

#[derive(Clone, Debug, Hash, PartialEq, Eq)]
pub struct Mark {
    pub epoch: i64,
    pub rows: Vec<RowId>,
    pub done: Option<bool>,
}

/// A publication on its way, or its answer.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub struct Sent {
    pub seq: i64,
    pub serial: u64,
    /// The serial of the first row of its run (`Run`, which a copy of a state would share).
    run: u64,
}

/// What a sink says of a row.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub enum Said {
    Acked,
    Nacked,
    /// It was not written.
    Returned,
    /// The link broke.
    Nothing,
}

#[derive(Clone, Debug)]
pub struct Relay {
    /// A new one for each process.
    pub owner: u8,
    pub session: bool,
    pub lease: Option<i64>,
    /// By its own clock the lease still holds.
    pub valid: bool,
    pub known_epoch: Option<i64>,
    pub horizon: Option<Horizon>,
    pub lane: Lane,
    pub turn: Option<Turn>,
    pub marking: Option<Mark>,
    pub channel: Vec<Sent>,
    pub answers: Vec<(Sent, Said)>,
    pub order: KeyOrder,
    /// Of the one key that has several rows: how many are in flight by the lane's book, their run, runs that broke.
    flying: usize,
    run: u64,
    broken: Vec<u64>,
}

/// Two relays are the same when nothing could tell them apart; the lane shows all it has.
impl Hash for Relay {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let _ = write!(Prints(state), "{self:?}");
    }
}

/// Hashes what is printed, without a copy of it.
struct Prints<'a, H>(&'a mut H);

impl<H: Hasher> Write for Prints<'_, H> {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        self.0.write(text.as_bytes());
        Ok(())
    }
}

impl PartialEq for Relay {
    fn eq(&self, other: &Self) -> bool {
        format!("{self:?}") == format!("{other:?}")
    }
}

impl Relay {
    pub fn new(owner: u8, order: KeyOrder) -> Self {
        Self {
            owner,
            session: true,
            lease: None,
            valid: false,
            known_epoch: None,
            horizon: None,
            lane: Lane::new(false),
            turn: None,
            marking: None,
            channel: Vec::new(),
            answers: Vec::new(),
            order,
            flying: 0,
            run: 0,
            broken: Vec::new(),
        }
    }

    /// Rule 7: what was published is kept, the rest dies with the session.
    pub fn session_lost(&mut self) {
        self.lane.session_lost();
        self.known_epoch = self.lease.take();
        self.session = false;
        self.valid = false;
        self.horizon = None;
        self.turn = None;
        self.marking = None;
    }

    /// Somebody else owns the lane.
    pub fn dropped(&mut self) {
        self.lane.clear();
        self.flying = 0;
        self.lease = None;
        self.valid = false;
        self.known_epoch = None;
        self.turn = None;
        self.marking = None;
    }

    /// What the worker does before it waits for the next event: it publishes what may go, starts a hold that is due
    /// (rule 4: before the next claim), and hands over what was confirmed.
    pub fn work(&mut self, variant: Variant) {
        let Some(epoch) = self.lease else { return };
        while self.valid && self.lane.has_ready() {
            let Some(sent) = self.next() else { break };
            self.channel.push(sent);
            if variant == Variant::MarkBeforeConfirm && self.lane.answered(sent.seq, sent.serial).is_some() {
                self.lane.confirm(sent.seq);
            }
        }
        if self.turn.is_none()
            && let Some(order) = self.lane.take_hold()
        {
            self.turn = Some(Turn::Hold { epoch, order, done: None });
        }
        if self.marking.is_none() {
            let rows = self.lane.take_marks();
            if !rows.is_empty() {
                self.marking = Some(Mark { epoch, rows, done: None });
            }
        }
    }

    pub fn claimed(&mut self, page: Page, horizon: Option<Horizon>, variant: Variant) {
        let facts = PageFacts::from(&page);
        let horizon = horizon.map(|horizon| match variant {
            Variant::NoOwnXid => Horizon { xid: 0, ..horizon },
            _ => horizon,
        });
        self.lane.on_page(page.rows.into_iter().map(map).collect(), &facts, horizon);
    }

    /// Of the rows in memory only these are still there.
    pub fn retain(&mut self, still: &[RowId]) {
        self.lane.retain(still);
        let known = self.lane.seqs();
        let answers = self.answers.iter().map(|(sent, _)| sent);
        let flying = self.channel.iter().chain(answers).filter(|sent| sent.run > 0 && known.contains(&sent.seq));
        self.flying = flying.count();
    }

    fn next(&mut self) -> Option<Sent> {
        let order = self.order;
        let published = self.lane.next_publication(|_| order, |_| Gate::Open, NOW)?;
        let (seq, serial) = (published.row.id.seq, published.serial);
        if key(seq).is_none() {
            return Some(Sent { seq, serial, run: 0 });
        }
        if self.flying == 0 {
            self.run = serial;
        }
        self.flying += 1;
        Some(Sent { seq, serial, run: self.run })
    }

    /// The sink says something else than "confirmed" of the first row on its way.
    pub fn refuse(&mut self, said: Said) {
        let first = self.channel.remove(0);
        self.answers.push((first, said));
        self.broken.extend((first.run > 0).then_some(first.run));
    }

    /// The first row on its way comes to the broker, unless an earlier one of its run was not confirmed.
    pub fn arrive(&mut self) -> Option<i64> {
        if self.broken.contains(&self.channel[0].run) {
            self.refuse(Said::Returned);
            return None;
        }
        let first = self.channel.remove(0);
        self.answers.push((first, Said::Acked));
        Some(first.seq)
    }

    /// The sink's word reaches the lane.
    pub fn answer(&mut self, sent: Sent, said: Said, variant: Variant) {
        let Some(answered) = self.lane.answered(sent.seq, sent.serial) else { return };
        self.flying -= usize::from(sent.run > 0);
        let outcome = match said {
            Said::Acked => Outcome::Confirmed,
            Said::Nacked => Outcome::Busy { reason: Reason::Nack, detail: String::new() },
            Said::Returned => Outcome::NotSent,
            Said::Nothing if variant == Variant::UnknownCountsAsSent => Outcome::Confirmed,
            Said::Nothing => Outcome::Unknown { detail: String::new() },
        };
        let unknown = matches!(outcome, Outcome::Unknown { .. });
        let backoff = BackoffPolicy { initial_ms: 1, max_ms: 1 };
        let policy = RetryPolicy { backoff, attempts_max: 9, attempts_min_age_ms: 0 };
        match decide(outcome, answered.history, &policy) {
            Verdict::Mark => self.lane.confirm(sent.seq),
            Verdict::Again => self.lane.again(sent.seq, unknown),
            Verdict::Hold(mut verdict) => {
                // Its jitter is no part of the state.
                verdict.delay_ms = Some(1);
                self.lane.fail(sent.seq, verdict);
            }
        }
    }

    /// What is on the link if it breaks now: a row behind one that came back unwritten was not written either.
    pub fn on_the_link(&self) -> Vec<i64> {
        self.channel.iter().filter(|sent| !self.broken.contains(&sent.run)).map(|sent| sent.seq).collect()
    }

    /// The link breaks: nothing that was sent is answered any more.
    pub fn cut(&mut self, variant: Variant) -> Vec<i64> {
        let lost = self.on_the_link();
        let channel = std::mem::take(&mut self.channel);
        let answers = std::mem::take(&mut self.answers);
        for sent in answers.iter().map(|(sent, _)| sent).chain(&channel) {
            self.answer(*sent, Said::Nothing, variant);
        }
        lost
    }
}

fn map(claimed: outbox_core::Claimed) -> Mapped {
    let address = Address { sink: Sink::Rabbitmq, destination: "x".to_owned(), routing_key: "t".to_owned() };
    let target = match &claimed.content {
        Content::Row(_) => Ok(Arc::new(address)),
        Content::Blocked | Content::Bad { .. } => Err(Verdicted::waiting(Reason::Behind)),
    };
    Mapped { claimed, target }
}
