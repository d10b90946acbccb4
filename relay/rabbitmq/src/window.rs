//! One window: rows written together on one channel and awaited together, under one deadline.
//!
//! It guarantees that every row gets a verdict that is certain or `Undecided`, that a window which missed its
//! deadline has lost its connection before its verdicts are out, and that nothing waits without a bound. It
//! decides nothing about what follows.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use lapin::options::BasicPublishOptions;
use lapin::{Channel, Confirmation};
use outbox_core::{Address, Clock, Millis, Outgoing, mutant};
use tokio::time::Instant;

use crate::confirm::{Signal, Verdict, accuse, decide};
use crate::message::{self, Message};
use crate::session::Session;

/// How long lapin may take to reject what is pending once its socket is dead; it needs milliseconds.
const SETTLE: Duration = Duration::from_secs(3);

/// Every message must be routed, or it comes back.
const OPTIONS: BasicPublishOptions = BasicPublishOptions { mandatory: true, immediate: false };

/// A row on its way through the writer.
pub(crate) struct Job {
    pub(crate) outgoing: Outgoing,
    /// Taken when it is written.
    pub(crate) message: Option<Message>,
    /// Whether it may have left this process; then it can no longer be `NotSent`.
    pub(crate) written: bool,
    /// To be sent in a window of its own, to find out whether it is the culprit.
    pub(crate) alone: bool,
}

impl Job {
    pub(crate) fn exchange(&self) -> &str {
        &self.outgoing.address.destination
    }

    pub(crate) fn body_bytes(&self) -> usize {
        message::body(&self.outgoing.row).len()
    }

    pub(crate) fn must_stay(&self, now: Millis) -> bool {
        self.outgoing.must_stay(now)
    }
}

/// How a window ended.
pub(crate) enum End {
    /// Every confirm came in.
    Complete,
    /// The channel broke and the connection stands: one of the rows, or the exchange, is to blame.
    ChannelBroken(lapin::Error),
    /// The connection is gone.
    SessionEnded,
    /// The time was over and the connection was dropped. `answers`: the broker answered another question meanwhile.
    Late { answers: bool },
}

/// A window's verdicts, by row, and its returns.
pub(crate) struct Report {
    pub(crate) verdicts: Vec<Verdict>,
    pub(crate) returns: usize,
    pub(crate) end: End,
}

type Answer = lapin::Result<Confirmation>;

/// Writes the jobs in order and waits for their confirms. The leases were checked by the caller.
pub(crate) async fn publish(session: &Session, channel: &Channel, jobs: &mut [Job], confirm_ms: u64) -> Report {
    let deadline = Instant::now() + Duration::from_millis(confirm_ms);
    let mut messages = Vec::with_capacity(jobs.len());
    for job in jobs.iter_mut() {
        job.written = true;
        messages.push(job.message.take());
    }
    let mut sends: Vec<Pin<Box<_>>> = messages
        .into_iter()
        .zip(jobs.iter())
        .map(|(message, job)| Box::pin(send(channel, message, message::body(&job.outgoing.row))))
        .collect();
    let mut answers: Vec<Option<Answer>> = Vec::with_capacity(sends.len());
    answers.resize_with(sends.len(), || None);
    start(&mut sends, &mut answers);
    let mut late = None;
    tokio::select! {
        biased;
        () = settle(&mut sends, &mut answers) => {}
        broker_answers = time_out(session, deadline, confirm_ms) => {
            late = Some(broker_answers);
            session.fail(format!("the broker confirmed nothing more within {confirm_ms} ms"));
        }
        () = session.ended().cancelled() => {}
    }
    if answers.iter().any(Option::is_none) {
        // The socket is dead. Waiting for lapin to reject the rest makes the verdicts exact instead of a guess.
        let _ = tokio::time::timeout(SETTLE, settle(&mut sends, &mut answers)).await;
    }
    drop(sends);
    judge(session, jobs, answers, late)
}

/// Waits for the deadline. In its last quarter the broker is asked something else: whether it answered comes back.
async fn time_out(session: &Session, deadline: Instant, confirm_ms: u64) -> bool {
    tokio::time::sleep_until(deadline - Duration::from_millis(confirm_ms / 4)).await;
    let answers = tokio::time::timeout_at(deadline, session.answers()).await;
    tokio::time::sleep_until(deadline).await;
    answers.unwrap_or(false)
}

async fn send(channel: &Channel, message: Option<Message>, body: &[u8]) -> Answer {
    let Some(Message { exchange, routing_key, properties }) = message else {
        return Err(std::io::Error::other("the row was not mapped").into());
    };
    channel.basic_publish(exchange, routing_key, OPTIONS, body, properties).await?.await
}

/// The first poll of each, in order, hands all frames to lapin; delivery tags follow that order. No waker is left
/// behind, so that 500 socket writes do not wake this task 500 times.
fn start<F: Future<Output = Answer>>(sends: &mut [Pin<Box<F>>], answers: &mut [Option<Answer>]) {
    let mut context = Context::from_waker(Waker::noop());
    for (send, answer) in sends.iter_mut().zip(answers) {
        if let Poll::Ready(ready) = send.as_mut().poll(&mut context) {
            *answer = Some(ready);
        }
    }
}

/// Waits for all, one after the other: they all run already, and only the one waited for wakes this task.
async fn settle<F: Future<Output = Answer>>(sends: &mut [Pin<Box<F>>], answers: &mut [Option<Answer>]) {
    for (send, answer) in sends.iter_mut().zip(answers) {
        if answer.is_none() {
            *answer = Some(send.as_mut().await);
        }
    }
}

fn judge(session: &Session, jobs: &[Job], answers: Vec<Option<Answer>>, late: Option<bool>) -> Report {
    let mut signals = Vec::with_capacity(answers.len());
    let mut returns = Vec::new();
    let mut errors = Vec::new();
    let mut unconfirmed_channel = false;
    for (answer, job) in answers.into_iter().zip(jobs) {
        let (signal, returned) = match answer {
            Some(Ok(Confirmation::Ack(returned))) => (Signal::Ack, returned),
            Some(Ok(Confirmation::Nack(returned))) => (Signal::Nack, returned),
            Some(Ok(Confirmation::NotRequested)) => {
                unconfirmed_channel = true;
                (Signal::Broken, None)
            }
            Some(Err(error)) => {
                errors.push(error);
                (Signal::Broken, None)
            }
            None => (Signal::Open, None),
        };
        if returned.is_some() && mutant("trust_pairing") {
            returns.push(Some(job.outgoing.row.idempotency_key.clone()));
        } else if let Some(returned) = returned {
            returns.push(returned.delivery.properties.message_id().as_ref().map(ToString::to_string));
        }
        signals.push(signal);
    }
    if signals.iter().any(|signal| matches!(signal, Signal::Ack | Signal::Nack)) {
        session.note_answer();
    }
    if unconfirmed_channel {
        session.fail("a channel was not in confirm mode");
    }
    let ids: Vec<&str> = jobs.iter().map(|job| job.outgoing.row.idempotency_key.as_str()).collect();
    let mut verdicts = decide(&ids, &signals, &returns);
    let mut end = end(session, &signals, errors);
    if let (Some(answers), End::SessionEnded) = (late, &end) {
        end = End::Late { answers };
        if answers {
            let addresses: Vec<&Address> = jobs.iter().map(|job| &*job.outgoing.address).collect();
            accuse(&addresses, &signals, &mut verdicts);
        }
    }
    Report { verdicts, returns: returns.len(), end }
}

fn end(session: &Session, signals: &[Signal], errors: Vec<lapin::Error>) -> End {
    if signals.iter().all(|signal| matches!(signal, Signal::Ack | Signal::Nack)) {
        return End::Complete;
    }
    let hard = errors.iter().find(|error| error.is_amqp_hard_error());
    if let Some(error) = hard {
        session.fail(crate::session::words(error));
    } else if !session.alive() {
        session.fail(errors.first().map_or_else(|| "the connection ended".to_owned(), crate::session::words));
    } else if let Some(error) = errors.iter().find(|error| error.is_amqp_soft_error()).or(errors.first()) {
        return End::ChannelBroken(error.clone());
    }
    End::SessionEnded
}

/// Whether a lease has run out, by the clock that also counts a suspended machine's pause.
pub(crate) fn now() -> Millis {
    Clock.now()
}
