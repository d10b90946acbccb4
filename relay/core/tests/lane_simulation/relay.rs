//! One relay with one lane: a small driver that takes the turns of `lane_worker` and `relay/session` around the
//! real `Lane`, `decide` and `Breakers`.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use outbox_core::{
    Address, Answer, BackoffPolicy, Breakers, ClaimRequest, Claimed, Content, Fenced, Gate, HoldEntry, HoldOrder,
    HoldState, Horizon, KeyOrder, Lane, Lease, Mapped, Millis, Outcome, Page, PageFacts, Publication, Reason,
    RetryPolicy, RowId, Sink, Verdict, Verdicted, decide,
};

use crate::calls::{Ask, Asked, Reply};
use crate::db::LANE;
use crate::variant::Variant;

pub const LEASE_MS: u64 = 200;
const POLICY: BackoffPolicy = BackoffPolicy { initial_ms: 1, max_ms: 1 };
const RETRY: RetryPolicy = RetryPolicy { backoff: POLICY, attempts_max: 2, attempts_min_age_ms: 0 };

/// When the claim that brought a row was read.
#[derive(Clone, Copy, Debug, Default)]
pub struct Instant {
    pub step: usize,
    pub now_ms: u64,
}

/// Bounds of this run's claims.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub rows_max: usize,
    pub bytes_max: usize,
    pub block_key: bool,
}

/// What the relay sees of its brokers.
pub struct Links {
    pub away: Vec<Sink>,
    /// Kafka has answered this producer about the topic.
    pub answered: bool,
}

pub struct Relay {
    pub owner: u32,
    pub variant: Variant,
    pub limits: Limits,
    /// `None` while there is no database session.
    pub session: Option<u64>,
    pub lease: Option<(Lease, u64)>,
    pub lane: Lane,
    known_epoch: Option<i64>,
    pub horizon: Option<Horizon>,
    breakers: Breakers,
    pub look: bool,
    pub turn_busy: bool,
    pub order: Option<HoldOrder>,
    pub marking: Option<Vec<RowId>>,
    pub control_busy: bool,
    pub claims: HashMap<i64, Instant>,
    /// Answers of an older channel reach nobody.
    pub channel: u64,
    pub answers: VecDeque<Answer>,
    /// Only variants use these.
    low_kept: i64,
    cursor: i64,
    pub released: bool,
    pub repeat: Option<Vec<HoldEntry>>,
}

impl Relay {
    pub fn new(owner: u32, variant: Variant, limits: Limits) -> Self {
        Self {
            owner,
            variant,
            limits,
            session: None,
            lease: None,
            lane: Lane::new(limits.block_key),
            known_epoch: None,
            horizon: None,
            breakers: Breakers::new(POLICY, 50),
            look: true,
            turn_busy: false,
            order: None,
            marking: None,
            control_busy: false,
            claims: HashMap::new(),
            channel: 0,
            answers: VecDeque::new(),
            low_kept: 0,
            cursor: 0,
            released: false,
            repeat: None,
        }
    }

    /// The session is over; what was published is kept for the next one.
    pub fn session_lost(&mut self) {
        if self.variant == Variant::PositionsKept {
            self.low_kept = self.low_kept.max(self.lane.low());
        }
        if self.variant == Variant::HoldTakesSent {
            self.repeat = self.order.take().map(|order| order.entries);
        }
        self.lane.session_lost();
        if let Some((lease, _)) = self.lease.take() {
            self.known_epoch = Some(lease.epoch);
        }
        self.session = None;
        // Only the session's end stops what its control connection was asked.
        self.control_busy = false;
        self.leave_turns();
        self.horizon = None;
        self.cursor = 0;
    }

    /// Somebody else owns the lane: memory is void.
    pub fn dropped(&mut self) {
        self.lane = Lane::new(self.limits.block_key);
        self.lease = None;
        self.known_epoch = None;
        self.channel += 1;
        self.answers.clear();
        self.leave_turns();
        self.cursor = 0;
        self.low_kept = 0;
    }

    fn leave_turns(&mut self) {
        self.turn_busy = false;
        self.order = None;
        self.marking = None;
        self.look = true;
    }

    pub fn heartbeat(&mut self, now_ms: u64) -> Option<Ask> {
        if self.control_busy || self.session.is_none() {
            return None;
        }
        self.control_busy = true;
        Some(Ask::Heartbeat { epoch: self.lease.map(|(lease, _)| lease.epoch), asked_at_ms: now_ms })
    }

    pub fn ask_horizon(&mut self) -> Option<Ask> {
        if self.control_busy || self.lease.is_none() {
            return None;
        }
        self.control_busy = true;
        Some(Ask::Horizon { last_seq: None })
    }

    pub fn next(&mut self, links: &Links, now_ms: u64) -> Option<Publication> {
        let (_, until_ms) = self.lease?;
        if now_ms >= until_ms || !self.lane.has_ready() || links.away.len() == 2 {
            return None;
        }
        let (variant, block_key) = (self.variant, self.limits.block_key);
        let order = |address: &Address| match address.sink {
            Sink::Rabbitmq if variant == Variant::PipelinedBadRow => KeyOrder::Pipelined,
            Sink::Kafka if !block_key && (links.answered || variant == Variant::PipelinedUnknownTopic) => {
                KeyOrder::Pipelined
            }
            Sink::Rabbitmq | Sink::Kafka => KeyOrder::Strict,
        };
        let breakers = &self.breakers;
        let gate = |address: &Address| {
            if links.away.contains(&address.sink) {
                return Gate::Hold { reason: Reason::Broker, probe_passes: false };
            }
            let blocks = breakers.blocks(address);
            blocks.map_or(Gate::Open, |reason| Gate::Hold { reason, probe_passes: true })
        };
        self.lane.next_publication(order, gate, Millis(now_ms))
    }

    /// Starts the next turn with the database: a hold first, else a claim.
    pub fn turn(&mut self, links: &Links, with_held: bool, now_ms: u64) -> Option<(Lease, Ask)> {
        let (lease, _) = self.lease?;
        let beside = self.variant == Variant::ClaimBesideHold && self.order.is_some();
        if self.turn_busy && !beside {
            return None;
        }
        if let Some(entries) = self.repeat.take() {
            return Some((lease, Ask::hold(entries)));
        }
        if self.order.is_none()
            && let Some(order) = self.lane.take_hold()
        {
            self.turn_busy = true;
            let ask = Ask::hold(order.entries.clone());
            self.order = Some(order);
            return Some((lease, ask));
        }
        let room = (self.limits.rows_max * 2).saturating_sub(self.lane.len()).min(self.limits.rows_max);
        if !self.look || room == 0 || links.away.len() == 2 {
            return None;
        }
        self.turn_busy = true;
        self.look = false;
        Some((lease, self.claim(lease, room, links, with_held, now_ms)))
    }

    fn claim(&mut self, lease: Lease, rows_max: usize, links: &Links, with_held: bool, now_ms: u64) -> Ask {
        let with_held = with_held && (self.variant != Variant::ReleaseByEvent || self.released);
        let (mut open_gates, probe_gates) =
            if with_held { self.breakers.take_probes(LANE, Millis(now_ms)) } else { Default::default() };
        open_gates.sort();
        let mut probe_gates = probe_gates;
        probe_gates.sort();
        open_gates.extend(links.away.iter().map(|sink| sink.as_str().to_owned()));
        let low = match self.variant {
            Variant::Cursor => self.cursor,
            _ => self.lane.low().max(self.low_kept),
        };
        let request = ClaimRequest {
            lease,
            low,
            exclude: self.lane.seqs(),
            rows_max,
            bytes_max: self.limits.bytes_max,
            with_held,
            open_gates,
            probe_gates,
            block_key: self.limits.block_key,
        };
        let mut horizon = self.horizon;
        if let (Variant::NoOwnXid, Some(horizon)) = (self.variant, horizon.as_mut()) {
            horizon.xid = 0;
        }
        Ask::claim(request, Asked { horizon })
    }

    pub fn mark(&mut self) -> Option<(Lease, Ask)> {
        let (lease, _) = self.lease?;
        if self.marking.is_some() {
            return None;
        }
        let rows = self.lane.take_marks();
        if rows.is_empty() {
            return None;
        }
        self.marking = Some(rows.clone());
        Some((lease, Ask::Mark { rows }))
    }

    /// Takes in a page.
    pub fn claimed(&mut self, page: Page, asked: &Asked, at: Instant) {
        self.turn_busy = self.order.is_some();
        self.look |= page.whole_to != i64::MAX;
        let known = self.lane.seqs();
        for row in page.rows.iter().filter(|row| !known.contains(&row.id.seq)) {
            self.claims.insert(row.id.seq, at);
        }
        self.cursor = page.rows.iter().map(|row| row.id.seq).fold(self.cursor, i64::max);
        let facts = PageFacts::from(&page);
        self.lane.on_page(page.rows.into_iter().map(map).collect(), &facts, asked.horizon);
        self.breakers.keep_probes(LANE, &self.lane.probe_gates());
    }

    /// Takes in one answer; `delay_ms` replaces the jittered backoff, so that a seed repeats.
    pub fn confirm(&mut self, answer: Answer, delay_ms: u64, now_ms: u64) -> Option<Outcome> {
        let answered = self.lane.answered(answer.seq, answer.serial)?;
        let met = answer.outcome.clone();
        let unknown = matches!(answer.outcome, Outcome::Unknown { .. });
        let outcome = match answer.outcome {
            Outcome::Unknown { .. } if self.variant == Variant::MarkOnTimeout => Outcome::Confirmed,
            outcome => outcome,
        };
        match decide(outcome, answered.history, &RETRY) {
            Verdict::Mark => {
                self.look |= self.breakers.answered(&answered.address);
                self.lane.confirm(answer.seq);
            }
            Verdict::Again => self.lane.again(answer.seq, unknown),
            Verdict::Hold(mut verdict) => {
                match verdict.opens {
                    Some(scope) => self.breakers.trip(&answered.address, scope, verdict.reason, Millis(now_ms)),
                    None => self.look |= self.breakers.answered(&answered.address),
                }
                verdict.delay_ms = verdict.delay_ms.map(|_| delay_ms);
                if self.variant == Variant::ParkNotAwaited && verdict.state == HoldState::Parked {
                    self.repeat = Some(vec![entry(answered.row.id, &verdict)]);
                    self.lane.forget(answer.seq);
                    return Some(met);
                }
                self.lane.fail(answer.seq, verdict);
            }
        }
        Some(met)
    }

    /// Takes in what the control connection answered; the next question, if one follows.
    pub fn controlled(&mut self, reply: Reply, now_ms: u64) -> Option<Ask> {
        self.control_busy = false;
        match reply {
            Reply::Beat { kept, free, asked_at_ms } => {
                match self.lease.as_mut() {
                    Some((_, until_ms)) if kept => *until_ms = asked_at_ms + LEASE_MS * 9 / 10,
                    Some(_) => self.dropped(),
                    None if free => {
                        self.control_busy = true;
                        let known = self.known_epoch.filter(|_| !self.lane.is_empty());
                        return Some(Ask::Acquire { known, asked_at_ms: now_ms });
                    }
                    None => {}
                }
                None
            }
            Reply::Acquired { acquired: None, .. } => None,
            Reply::Acquired { acquired: Some(acquired), asked_at_ms } => {
                self.known_epoch = Some(acquired.lease.epoch);
                if !acquired.continuous {
                    self.lane.clear();
                } else if !self.lane.is_empty() {
                    self.control_busy = true;
                    return Some(Ask::Recheck { lease: acquired.lease, rows: self.lane.kept(), asked_at_ms });
                }
                self.lease = Some((acquired.lease, asked_at_ms + LEASE_MS * 9 / 10));
                None
            }
            Reply::Rechecked { lease, still, asked_at_ms } => {
                self.lane.retain(&still);
                self.lease = Some((lease, asked_at_ms + LEASE_MS * 9 / 10));
                None
            }
            Reply::Horizon(horizon) => {
                self.horizon = Some(horizon);
                self.look = true;
                None
            }
            Reply::Lost | Reply::Page { .. } | Reply::Held(_) | Reply::Marked(_) => None,
        }
    }

    /// False when the lane has another owner.
    pub fn held(&mut self, fenced: Fenced) -> bool {
        self.turn_busy = false;
        self.look = true;
        self.released = true;
        let order = self.order.take();
        if fenced == Fenced::Stale {
            self.dropped();
            return false;
        }
        if let Some(order) = order {
            self.lane.held(&order);
            self.breakers.keep_probes(LANE, &self.lane.probe_gates());
        }
        true
    }
}

/// Topics 0 and 1 go to two addresses of one broker, topic 2 to the other broker.
pub fn address(topic: &str) -> Address {
    let (sink, destination, routing_key) = match topic {
        "2" => (Sink::Kafka, "c", ""),
        other => (Sink::Rabbitmq, "x", other),
    };
    Address { sink, destination: destination.to_owned(), routing_key: routing_key.to_owned() }
}

fn entry(id: RowId, verdict: &Verdicted) -> HoldEntry {
    HoldEntry {
        id,
        state: verdict.state,
        reason: verdict.reason,
        detail: String::new(),
        attempts: verdict.attempts,
        delay_ms: verdict.delay_ms,
        gates: Vec::new(),
    }
}

fn map(claimed: Claimed) -> Mapped {
    let target = match &claimed.content {
        Content::Row(row) => Ok(Arc::new(address(&row.topic))),
        Content::Blocked | Content::Bad { .. } => Err(Verdicted::waiting(Reason::Behind)),
    };
    Mapped { claimed, target }
}
