//! The one task that publishes on one channel.
//!
//! It takes what is queued, answers at once for rows that cannot go, and writes the rest window by window, in the
//! order in which they were handed over. It guarantees that each row is answered exactly once; that an exchange is
//! known to exist before a row goes to it; that the first row to each exchange, and each row larger than any before,
//! goes alone, so that a refusal hits no neighbour (and so that under an alarm that the broker has not announced yet
//! only one row hangs); and that after a closed channel the culprit is found without blaming its neighbours. It does
//! not retry on its own account: rows are written a second time only to find a culprit.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use lapin::Channel;
use outbox_core::{Outcome, Outgoing, Reason, Sink, mutant};
use tokio::sync::{mpsc, watch};

use crate::confirm::Verdict;
use crate::culprit::{self, Blame};
use crate::message;
use crate::session::{Session, SessionError, code, words};
use crate::suspects::Suspects;
use crate::window::{self, End, Job};

/// See the module.
pub(crate) struct Writer {
    index: usize,
    suspects: Arc<Suspects>,
    rows: mpsc::UnboundedReceiver<Outgoing>,
    sessions: watch::Receiver<Option<Arc<Session>>>,
    line: Option<Line>,
    /// What was trusted on a connection that was dropped for rows that were not confirmed. Else only one row after each
    /// time-out would be waited for, and of many silent addresses one found.
    carried: Option<Trusted>,
}

/// This task's channel on the current connection.
struct Line {
    session: Arc<Session>,
    channel: Channel,
    trusted: Trusted,
}

/// What the broker took on this connection without a refusal.
#[derive(Default)]
struct Trusted {
    exchanges: HashSet<String>,
    /// The largest body.
    body_bytes: usize,
}

/// Bodies up to here are small for any broker: its own limit is 16 MiB unless it is set (`max_message_size`).
const SMALL_BODY_BYTES: usize = 16 << 10;

impl Trusted {
    fn takes(&self, job: &Job) -> bool {
        self.exchanges.contains(job.exchange()) && job.body_bytes() <= self.body_bytes.max(SMALL_BODY_BYTES)
    }

    fn add(&mut self, job: &Job) {
        self.body_bytes = self.body_bytes.max(job.body_bytes());
        if !self.exchanges.contains(job.exchange()) {
            self.exchanges.insert(job.exchange().to_owned());
        }
    }
}

impl Writer {
    pub(crate) fn new(
        index: usize,
        suspects: Arc<Suspects>,
        rows: mpsc::UnboundedReceiver<Outgoing>,
        sessions: watch::Receiver<Option<Arc<Session>>>,
    ) -> Self {
        Self { index, suspects, rows, sessions, line: None, carried: None }
    }

    /// Serves rows until told to stop, then answers what is left.
    pub(crate) async fn run(mut self) {
        let window_max = self.suspects.config.options().window_max;
        let mut batch = Vec::with_capacity(window_max);
        loop {
            tokio::select! {
                biased;
                () = self.suspects.stopping.cancelled() => break,
                taken = self.rows.recv_many(&mut batch, window_max) => {
                    if taken == 0 {
                        break;
                    }
                }
            }
            self.serve(&mut batch).await;
        }
        self.rows.close();
        while let Some(outgoing) = self.rows.recv().await {
            outgoing.ticket.answer(Outcome::NotSent);
        }
    }

    /// Publishes these rows and answers for each.
    pub(crate) async fn serve(&mut self, batch: &mut Vec<Outgoing>) {
        let Some(mut line) = self.take_line().await else {
            for outgoing in batch.drain(..) {
                outgoing.ticket.answer(Outcome::NotSent);
            }
            return;
        };
        let jobs: Vec<Job> =
            batch.drain(..).map(|outgoing| Job { outgoing, message: None, written: false, alone: false }).collect();
        let mut jobs = map_all(jobs, &line.session);
        let mut open = look_up_exchanges(&line, &mut jobs).await;
        while !jobs.is_empty() {
            if !open || self.suspects.stopping.is_cancelled() || !line.session.usable() {
                give_back(jobs.drain(..), &line.session);
                break;
            }
            open = self.write_window(&mut line, &mut jobs).await;
        }
        if line.session.alive() {
            self.line = Some(line);
        }
    }

    /// The channel to publish on, if rows may be written now.
    async fn take_line(&mut self) -> Option<Line> {
        let session = self.sessions.borrow().clone().filter(|session| session.usable())?;
        if let Some(line) = self.line.take().filter(|line| Arc::ptr_eq(&line.session, &session)) {
            if line.channel.status().connected() {
                return Some(line);
            }
            // Closed while nothing was in flight, so nobody is to blame.
            return open_line(session).await;
        }
        let channel = session.channel(if mutant("two_tasks") { 0 } else { self.index })?;
        Some(Line { session, channel, trusted: self.carried.take().unwrap_or_default() })
    }

    /// Writes the next window and answers for it; false: nothing may be written any more.
    async fn write_window(&mut self, line: &mut Line, jobs: &mut VecDeque<Job>) -> bool {
        let options = self.suspects.config.options();
        let mut window = cut(jobs, &line.trusted, options.window_max, options.window_bytes_max);
        let now = window::now();
        let (late, in_time): (Vec<Job>, Vec<Job>) = window.drain(..).partition(|job| job.must_stay(now));
        give_back(late, &line.session);
        window = in_time;
        if window.is_empty() {
            return true;
        }
        let report = window::publish(&line.session, &line.channel, &mut window, options.confirm_timeout_ms).await;
        for _ in 0..report.returns {
            self.suspects.observer.returned(Sink::Rabbitmq);
        }
        // Also where no confirm came in: a refusal would have come by now.
        if matches!(report.end, End::Complete | End::Late { answers: true }) {
            window.iter().for_each(|job| line.trusted.add(job));
        }
        let undecided = self.answer(window, &report.verdicts);
        match report.end {
            End::Complete => {
                give_back(undecided, &line.session);
                true
            }
            End::SessionEnded => {
                give_back(undecided, &line.session);
                false
            }
            End::Late { answers } => {
                // A window full of such rows stops the whole connection (RabbitMQ's flow control, some hundreds to a
                // quorum queue), and the broker answers nothing. Then a row goes alone again, and tells.
                self.carried = answers.then(|| std::mem::take(&mut line.trusted));
                give_back(undecided, &line.session);
                false
            }
            End::ChannelBroken(error) => isolate(line, undecided, &error, jobs).await,
        }
    }

    /// Answers what is certain; the rest comes back in order.
    fn answer(&self, window: Vec<Job>, verdicts: &[Verdict]) -> Vec<Job> {
        let mut undecided = Vec::new();
        for (job, verdict) in window.into_iter().zip(verdicts) {
            let address = &job.outgoing.address;
            let outcome = match verdict {
                Verdict::Confirmed => Outcome::Confirmed,
                Verdict::Returned => culprit::unroutable(address),
                Verdict::Nacked => Outcome::Busy {
                    reason: Reason::Nack,
                    detail: format!("the broker refused it (a full queue?) at {address}"),
                },
                Verdict::Silent => {
                    let ms = self.suspects.config.options().confirm_timeout_ms;
                    culprit::silent(
                        address,
                        &format!("no answer within {ms} ms, while the broker answered other questions"),
                    )
                }
                Verdict::Undecided => {
                    undecided.push(job);
                    continue;
                }
            };
            if *verdict == Verdict::Silent {
                self.suspects.accuse(address);
            } else {
                self.suspects.clear(address);
            }
            job.outgoing.ticket.answer(outcome);
        }
        undecided
    }
}

async fn open_line(session: Arc<Session>) -> Option<Line> {
    match session.confirming_channel().await {
        Ok(channel) => Some(Line { session, channel, trusted: Trusted::default() }),
        Err(error) => {
            if session.usable() {
                session.fail(error.to_string());
            }
            None
        }
    }
}

/// Maps what is not mapped yet and answers for rows that can never go.
fn map_all(jobs: Vec<Job>, session: &Session) -> VecDeque<Job> {
    let limits = session.limits();
    let mut mapped = VecDeque::with_capacity(jobs.len());
    for mut job in jobs {
        match message::map(&job.outgoing.row, &job.outgoing.address, limits) {
            Ok(message) => {
                job.message = Some(message);
                mapped.push_back(job);
            }
            Err(outcome) => job.outgoing.ticket.answer(outcome),
        }
    }
    mapped
}

/// Asks for each exchange that is new on this connection and answers for rows whose exchange is missing. False: the
/// broker could not be asked, and nothing may be written.
async fn look_up_exchanges(line: &Line, jobs: &mut VecDeque<Job>) -> bool {
    let mut new: Vec<String> = Vec::new();
    for job in jobs.iter() {
        let exchange = job.exchange();
        if !line.trusted.exchanges.contains(exchange) && !new.iter().any(|known| known == exchange) {
            new.push(exchange.to_owned());
        }
    }
    for exchange in new {
        match line.session.exchange_exists(&exchange).await {
            Ok(true) => {}
            Ok(false) => {
                take_where(jobs, |job| job.exchange() == exchange, |_| culprit::missing_exchange(&exchange));
            }
            Err(SessionError::Blocked | SessionError::Ended(_)) => return false,
            Err(error) => {
                line.session.fail(error.to_string());
                return false;
            }
        }
    }
    true
}

/// Answers for the rows that match, in order, and leaves the others.
fn take_where(jobs: &mut VecDeque<Job>, matches: impl Fn(&Job) -> bool, outcome: impl Fn(&Job) -> Outcome) {
    for job in std::mem::take(jobs) {
        if matches(&job) {
            let outcome = outcome(&job);
            job.outgoing.ticket.answer(outcome);
        } else {
            jobs.push_back(job);
        }
    }
}

/// The next window: from the front, bounded in rows and bytes, at least one row; a row that is to go alone, or that
/// nothing like it went before, makes a window of its own.
fn cut(jobs: &mut VecDeque<Job>, trusted: &Trusted, rows_max: usize, bytes_max: usize) -> Vec<Job> {
    let solitary = |job: &Job| job.alone || !trusted.takes(job);
    let mut bytes = 0_usize;
    let mut rows = 0;
    for job in jobs.iter().take(rows_max) {
        bytes += job.outgoing.row.weight_bytes();
        if rows > 0 && (bytes > bytes_max || solitary(job)) {
            break;
        }
        rows += 1;
        if solitary(job) {
            break;
        }
    }
    jobs.drain(..rows).collect()
}

/// Rows that go no further: unknown if they may have left this process, else certainly not sent.
fn give_back(jobs: impl IntoIterator<Item = Job>, session: &Session) {
    let why = session.why();
    for job in jobs {
        let outcome = if job.written {
            let detail = if why.is_empty() { "the broker's answer did not come in" } else { &why };
            Outcome::Unknown { detail: detail.to_owned() }
        } else {
            Outcome::NotSent
        };
        job.outgoing.ticket.answer(outcome);
    }
}

/// After a closed channel: opens a new one, answers for the culprits that the refusal names, and puts the others
/// back in front, to be written again. False: nothing may be written any more.
async fn isolate(line: &mut Line, mut undecided: Vec<Job>, error: &lapin::Error, jobs: &mut VecDeque<Job>) -> bool {
    let (code, text) = (code(error), words(error));
    tracing::warn!(code, reason = %text, rows = undecided.len(), "RabbitMQ closed a channel; looking for the culprit");
    if undecided.len() == 1 {
        undecided.drain(..).for_each(|job| condemn(job, code, &text, jobs));
    }
    let Some(fresh) = open_line(Arc::clone(&line.session)).await else {
        give_back(undecided, &line.session);
        return false;
    };
    *line = fresh;
    let blame = culprit::blame(code, &text);
    if let Blame::Size { most } = blame {
        line.session.learn_message_bytes_max(most);
    }
    let before = undecided.len();
    let mut again = map_all(undecided, &line.session);
    if !look_up_exchanges(line, &mut again).await {
        give_back(again, &line.session);
        return false;
    }
    if blame == Blame::Access {
        take_refused(&mut again, &text);
    }
    if again.len() == before {
        // The refusal named nobody: each row is tried alone.
        again.iter_mut().for_each(|job| job.alone = true);
    }
    while let Some(job) = again.pop_back() {
        jobs.push_front(job);
    }
    true
}

/// Answers for a row that was alone when the channel was closed, and for rows that share its fate but were not
/// written yet.
fn condemn(job: Job, code: Option<u16>, text: &str, jobs: &mut VecDeque<Job>) {
    let outcome = culprit::verdict(code, text, &job.outgoing.address, job.body_bytes());
    match culprit::blame(code, text) {
        Blame::Access => take_refused(jobs, text),
        Blame::MissingExchange => take_where(jobs, |other| other.exchange() == job.exchange(), |_| outcome.clone()),
        Blame::Size { .. } | Blame::Anyone => {}
    }
    job.outgoing.ticket.answer(outcome);
}

/// Answers for the rows whose address the broker's words refuse.
fn take_refused(jobs: &mut VecDeque<Job>, text: &str) {
    for job in std::mem::take(jobs) {
        match culprit::refuses(text, &job.outgoing.address) {
            Some(scope) => job.outgoing.ticket.answer(culprit::refused(text, scope)),
            None => jobs.push_back(job),
        }
    }
}
