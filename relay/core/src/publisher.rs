//! What every broker adapter implements, and the handle through which it answers for each row.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::future::BoxFuture;
use tokio::sync::{mpsc, watch};

use crate::address::{Address, Sink};
use crate::clock::Millis;
use crate::outcome::Outcome;
use crate::row::Row;

/// The state of the way to a broker. Anything but `Up` closes the broker's gate: its rows stay where they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Link {
    Up,
    /// Not connected; the supervisor goes on trying. The text says what the last try met and what to do.
    Down {
        detail: String,
    },
    /// Connected, but the broker takes nothing now (RabbitMQ's memory or disk alarm).
    Blocked {
        detail: String,
    },
    /// The broker refused our credentials or our configuration; trying goes on, but an operator is needed.
    Refused {
        detail: String,
    },
}

impl Link {
    /// Whether rows may be handed over.
    #[must_use]
    pub const fn is_up(&self) -> bool {
        matches!(self, Self::Up)
    }
}

/// Something worth knowing of an address that exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remark {
    /// It takes so many bytes at once.
    BytesMax(usize),
    /// It keeps the last message of each key only, and takes none without a key.
    Compacted,
    /// A confirm is the word of one replica.
    OneConfirms,
}

/// How rows of one ordering key may overlap at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyOrder {
    /// At most one row of a key is unconfirmed at a time.
    Strict,
    /// Rows of a key follow each other without waiting; the sink keeps their order.
    Pipelined,
}

/// A row on its way to a broker. The sink must not write it to the broker once `must_stay` says so (it then
/// answers `NotSent`), and must answer through `ticket` exactly once.
pub struct Outgoing {
    pub row: Arc<Row>,
    pub address: Arc<Address>,
    /// By `Clock`; checked right before each window is written.
    pub lease_until: Millis,
    pub ticket: Ticket,
}

impl Outgoing {
    /// Asked right before the row is written: its lease has run out, or an earlier row of its run was not
    /// confirmed and goes again. The answer is then `NotSent`.
    #[must_use]
    pub fn must_stay(&self, now: Millis) -> bool {
        now >= self.lease_until || self.ticket.run.as_ref().is_some_and(Run::is_broken)
    }
}

/// Rows of one key that follow each other without waiting. Once one of them is answered with anything but
/// `Confirmed`, those still unwritten must stay, or they would overtake it.
#[derive(Clone, Debug, Default)]
pub struct Run(Arc<AtomicBool>);

impl Run {
    /// A row of it was answered with something else than `Confirmed`.
    #[must_use]
    pub fn is_broken(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// The duty to answer for one row. A dropped ticket answers `Unknown`: accepted is not durable.
pub struct Ticket {
    seq: i64,
    serial: u64,
    run: Option<Run>,
    answers: Option<mpsc::UnboundedSender<Answer>>,
}

/// An outcome on its way back to the row's lane. `serial` tells publications of one row apart.
#[derive(Debug)]
pub struct Answer {
    pub seq: i64,
    pub serial: u64,
    pub outcome: Outcome,
}

impl Ticket {
    /// The channel is bounded by the rows in flight: a ticket answers once.
    #[must_use]
    pub fn new(seq: i64, serial: u64, answers: mpsc::UnboundedSender<Answer>) -> Self {
        Self { seq, serial, run: None, answers: Some(answers) }
    }

    /// The row follows others of its key that are not answered yet, or others may follow it.
    #[must_use]
    pub fn in_run(mut self, run: Option<Run>) -> Self {
        self.run = run;
        self
    }

    /// Answers and ends the duty.
    pub fn answer(mut self, outcome: Outcome) {
        self.send(outcome);
    }

    fn send(&mut self, outcome: Outcome) {
        if let Some(answers) = self.answers.take() {
            if let Some(run) = &self.run
                && outcome != Outcome::Confirmed
            {
                run.0.store(true, Ordering::Release);
            }
            // A lane that is gone has nobody left to tell.
            let _ = answers.send(Answer { seq: self.seq, serial: self.serial, outcome });
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.send(Outcome::Unknown { detail: "the publication was dropped before the broker answered".to_owned() });
    }
}

/// A broker adapter. It owns its connection and reconnects by itself for ever; it classifies and never retries
/// a row on its own account.
pub trait Publisher: Send + Sync + 'static {
    fn sink(&self) -> Sink;

    /// How rows of one key may overlap at this address right now.
    fn order(&self, address: &Address) -> KeyOrder;

    /// Hands a row over. Never waits; rows of one key are written in the order of the calls. The number of rows
    /// handed over and unanswered is bounded by the caller (`in_flight_max`).
    fn publish(&self, outgoing: Outgoing);

    /// The state of the link, and a wake-up at each change.
    fn link(&self) -> watch::Receiver<Link>;

    /// Whether an address exists, for `check`: `Ok(None)` is yes, `Ok(Some(text))` says what is missing and what
    /// to do, `Err` that the broker could not be asked.
    fn probe<'a>(&'a self, address: &'a Address) -> BoxFuture<'a, Result<Option<String>, String>>;

    /// What there is to know of an address that exists, for `check`; nothing where the broker does not tell.
    fn remarks<'a>(&'a self, address: &'a Address) -> BoxFuture<'a, Vec<Remark>> {
        let _ = address;
        Box::pin(std::future::ready(Vec::new()))
    }

    /// Answers everything that is still open (waiting for confirms at most `grace_ms`), then closes. Idempotent.
    fn stop(&self, grace_ms: u64) -> BoxFuture<'_, ()>;
}
