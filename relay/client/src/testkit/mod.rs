//! Tries out a consumer: is its work of one message done once, whatever happens to its deliveries? (Feature `testkit`.)
//!
//! A message is delivered twice, twice at once, out of order, with another body, to two consumers, and by deliveries
//! that are killed before and after each statement that they send to the database, the commit included. After each, the
//! number of effects is asked for and must be one (a consumer). The rule's source is the Agent Wranglers scaling playbook, "Make every job
//! safe to run twice" (CC BY 4.0, <https://agentwranglers.se/playbook/scaling/background-jobs-and-queues/idempotent-jobs>).
//!
//! It wants a database for tests on which the consumer's tables exist, reached without TLS; what the consumer does
//! there stays there. Deliveries go in the process ([`Subject`]) or to a command ([`Command`], and the program
//! `outbox-try-consumer` around it). Effects outside this database are counted where the consumer's side says how many
//! there are ([`Subject::outside`]).

mod address;
mod checkpoint;
mod command;

use std::fmt;
use std::time::Duration;

use tokio_postgres::NoTls;
use tokio_postgres::types::{ToSql, Type};

use crate::error::BoxError;
use crate::inbox::Message;
use crate::testkit::address::{server_of, through};
use crate::testkit::checkpoint::{Checkpoint, Stop};

pub use command::Command;

/// No consumer sends more statements for one message.
const STATEMENTS_MAX: u32 = 200;

/// Deliveries after one that was killed or failed, as a broker would send them.
const REDELIVERIES_MAX: u32 = 3;

/// The consumer that is tried out.
pub trait Subject: Sync {
    /// One delivery from its begin to its commit, on connections to this URL that are its own. `Ok` is what the
    /// consumer acknowledges. A kill is the drop of this future.
    fn deliver(&self, database_url: &str, message: &Message) -> impl Future<Output = Result<(), BoxError>> + Send;

    /// Another consumer of the same messages, with a name of its own in the inbox. Its effects are counted with those of
    /// this one. `None`: [`Property::TwoConsumers`] is not tried.
    fn other(&self) -> Option<&Self> {
        None
    }

    /// The number of effects of the message with this id outside the database: the calls that another service took, the
    /// lines of a file. `None`: they are not counted.
    fn outside(&self, _id: &str) -> impl Future<Output = Result<Option<i64>, BoxError>> + Send {
        std::future::ready(Ok(None))
    }
}

/// What is tried, and how effects are counted.
pub struct Plan {
    /// `postgres://user:password@host:port/database`; the port may be left out.
    pub database_url: String,
    /// A query for the number of effects of the message with the id `$1` (text): one row, one bigint. `None`: all effects
    /// are outside the database, and [`Subject::outside`] counts them.
    pub effects: Option<String>,
    /// A statement that forgets the message with the id `$1`, as the retention of the inbox does; `None`: not tried.
    pub forget: Option<String>,
    /// Double deliveries at once, at least 1.
    pub rounds: u32,
    /// The longest that one delivery may take.
    pub patience: Duration,
    /// The n-th message, with an id and a body of its own.
    pub message: Box<dyn Fn(u64) -> Message + Send + Sync>,
}

/// One thing that must hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Property {
    Twice,
    AtOnce,
    KilledBefore,
    KilledAfter,
    OtherBody,
    OutOfOrder,
    TwoConsumers,
    Forgotten,
}

impl Property {
    const ALL: [Self; 8] = [
        Self::Twice,
        Self::AtOnce,
        Self::KilledBefore,
        Self::KilledAfter,
        Self::OtherBody,
        Self::OutOfOrder,
        Self::TwoConsumers,
        Self::Forgotten,
    ];
}

impl fmt::Display for Property {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Twice => "a second delivery does nothing",
            Self::AtOnce => "two deliveries at once do the work once",
            Self::KilledBefore => "killed before any statement, the work is done once by the next delivery",
            Self::KilledAfter => "killed after any statement, the commit included, the work is done once in the end",
            Self::OtherBody => "the same id with another body does nothing more",
            Self::OutOfOrder => "deliveries out of order, each repeated, do each work once",
            Self::TwoConsumers => "two consumers of one message each do their work once",
            Self::Forgotten => "a delivery after the inbox has forgotten it does nothing more",
        })
    }
}

/// What became of one property.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub property: Property,
    /// `None`: it held. Else what broke it.
    pub broken: Option<String>,
}

/// Tries everything in turn; each finding is handed to `told` as it comes in, since a thousand rounds take their time.
///
/// # Errors
/// When the database cannot be asked for the effects, or nothing counts them. A broken property is no error.
pub async fn try_out<S: Subject>(
    subject: &S,
    plan: &Plan,
    mut told: impl FnMut(&Finding),
) -> Result<Vec<Finding>, BoxError> {
    let client = connect(&plan.database_url).await?;
    let mut bench = Bench { subject, plan, server: server_of(&plan.database_url)?, client, next: 0 };
    let mut findings = Vec::new();
    for property in Property::ALL {
        let is_tried = match property {
            Property::Forgotten => plan.forget.is_some(),
            Property::TwoConsumers => subject.other().is_some(),
            _ => true,
        };
        if !is_tried {
            continue;
        }
        let broken = bench.look_at(property).await?;
        let finding = Finding { property, broken };
        told(&finding);
        findings.push(finding);
    }
    Ok(findings)
}

struct Bench<'a, S> {
    subject: &'a S,
    plan: &'a Plan,
    server: String,
    /// Asks for the effects.
    client: tokio_postgres::Client,
    next: u64,
}

impl<S: Subject> Bench<'_, S> {
    async fn look_at(&mut self, property: Property) -> Result<Option<String>, BoxError> {
        match property {
            Property::Twice => self.twice().await,
            Property::AtOnce => self.at_once().await,
            Property::KilledBefore => self.killed(Stop::Before).await,
            Property::KilledAfter => self.killed(Stop::After).await,
            Property::OtherBody => self.other_body().await,
            Property::OutOfOrder => self.out_of_order().await,
            Property::TwoConsumers => self.two_consumers().await,
            Property::Forgotten => self.forgotten().await,
        }
    }

    fn fresh(&mut self) -> Message {
        self.next += 1;
        (self.plan.message)(self.next)
    }

    async fn twice(&mut self) -> Result<Option<String>, BoxError> {
        let message = self.fresh();
        if let Err(error) = self.deliver(&message).await {
            return Ok(Some(format!("the first delivery of {} failed: {error}", message.id)));
        }
        if let Err(error) = self.deliver(&message).await {
            return Ok(Some(format!("the second delivery of {} failed, and would be repeated: {error}", message.id)));
        }
        self.one_effect(&message, "after two deliveries").await
    }

    async fn at_once(&mut self) -> Result<Option<String>, BoxError> {
        for _ in 0..self.plan.rounds.max(1) {
            let message = self.fresh();
            let (first, second) = tokio::join!(self.deliver(&message), self.deliver(&message));
            // The loser may have been told to come again.
            if (first.is_err() || second.is_err())
                && let Some(broken) = self.settle(self.subject, &message).await
            {
                return Ok(Some(broken));
            }
            let broken = self.one_effect(&message, "after two deliveries at once").await?;
            if broken.is_some() {
                return Ok(broken);
            }
        }
        Ok(None)
    }

    async fn killed(&mut self, stop: fn(u32) -> Stop) -> Result<Option<String>, BoxError> {
        for number in 1..=STATEMENTS_MAX {
            let message = self.fresh();
            let checkpoint = Checkpoint::before(&self.server, stop(number)).await?;
            let way = through(&self.plan.database_url, checkpoint.port())?;
            let ended = tokio::select! {
                biased;
                () = checkpoint.met() => None,
                ended = bounded(self.plan.patience, self.subject.deliver(&way, &message)) => Some(ended),
            };
            drop(checkpoint);
            match &ended {
                Some(Err(error)) => return Ok(Some(format!("a delivery that nothing was done to failed: {error}"))),
                // It went another way, so that nothing was tried.
                Some(Ok(())) if number == 1 => {
                    return Ok(Some("a delivery sent no statement to the database URL that it was given".to_owned()));
                }
                _ => {}
            }
            if let Some(broken) = self.settle(self.subject, &message).await {
                return Ok(Some(broken));
            }
            let at = format!("killed at its statement {number} and delivered again");
            let broken = self.one_effect(&message, &at).await?;
            if broken.is_some() || ended.is_some() {
                return Ok(broken);
            }
        }
        Ok(Some(format!("a delivery sent more than {STATEMENTS_MAX} statements")))
    }

    async fn other_body(&mut self) -> Result<Option<String>, BoxError> {
        let message = self.fresh();
        if let Err(error) = self.deliver(&message).await {
            return Ok(Some(format!("the delivery of {} failed: {error}", message.id)));
        }
        let mut other = message.clone();
        other.body.push(b' ');
        // Refused or repeated: either is right.
        drop(self.deliver(&other).await);
        self.one_effect(&message, "after another body under its id").await
    }

    async fn out_of_order(&mut self) -> Result<Option<String>, BoxError> {
        let (earlier, later) = (self.fresh(), self.fresh());
        for message in [&later, &earlier, &later, &earlier] {
            if let Err(error) = self.deliver(message).await {
                return Ok(Some(format!("a delivery of {} failed: {error}", message.id)));
            }
        }
        let broken = self.one_effect(&earlier, "delivered after a later one").await?;
        Ok(broken.or(self.one_effect(&later, "delivered before an earlier one").await?))
    }

    async fn two_consumers(&mut self) -> Result<Option<String>, BoxError> {
        let first = self.subject;
        let Some(other) = first.other() else { return Ok(None) };
        let (in_turn, at_once) = (self.fresh(), self.fresh());
        for consumer in [first, other] {
            if let Err(error) = self.deliver_to(consumer, &in_turn).await {
                return Ok(Some(format!("a delivery of {} failed: {error}", in_turn.id)));
            }
        }
        // Who is told to come again does so below.
        drop(tokio::join!(self.deliver_to(first, &at_once), self.deliver_to(other, &at_once)));
        for (message, when) in [(in_turn, "in turn"), (at_once, "at once")] {
            for consumer in [first, other] {
                if let Some(broken) = self.settle(consumer, &message).await {
                    return Ok(Some(broken));
                }
            }
            let when = format!("delivered to two consumers {when}, and again to each");
            let broken = self.effects(&message, 2, &when).await?;
            if broken.is_some() {
                return Ok(broken);
            }
        }
        Ok(None)
    }

    async fn forgotten(&mut self) -> Result<Option<String>, BoxError> {
        let message = self.fresh();
        if let Err(error) = self.deliver(&message).await {
            return Ok(Some(format!("the delivery of {} failed: {error}", message.id)));
        }
        let forget = self.plan.forget.as_deref().unwrap_or_default();
        self.client.execute_typed(forget, &[(&message.id, Type::TEXT)]).await?;
        // Refused or repeated: either is right.
        drop(self.deliver(&message).await);
        self.one_effect(&message, "after the inbox had forgotten it").await
    }

    async fn deliver(&self, message: &Message) -> Result<(), BoxError> {
        self.deliver_to(self.subject, message).await
    }

    async fn deliver_to(&self, consumer: &S, message: &Message) -> Result<(), BoxError> {
        bounded(self.plan.patience, consumer.deliver(&self.plan.database_url, message)).await
    }

    /// Delivers again until it is acknowledged.
    async fn settle(&self, consumer: &S, message: &Message) -> Option<String> {
        let mut last = String::new();
        for _ in 0..REDELIVERIES_MAX {
            match self.deliver_to(consumer, message).await {
                Ok(()) => return None,
                Err(error) => last = error.to_string(),
            }
        }
        Some(format!("{} was not acknowledged by {REDELIVERIES_MAX} more deliveries: {last}", message.id))
    }

    async fn one_effect(&self, message: &Message, when: &str) -> Result<Option<String>, BoxError> {
        self.effects(message, 1, when).await
    }

    /// Those inside and those outside the database, each for itself: a consumer may have both.
    async fn effects(&self, message: &Message, expected: i64, when: &str) -> Result<Option<String>, BoxError> {
        let inside = self.inside(message).await?;
        let asking = tokio::time::timeout(self.plan.patience, self.subject.outside(&message.id)).await;
        let outside = asking.map_err(|_| "counting the effects outside the database hangs")??;
        if inside.is_none() && outside.is_none() {
            return Err("nothing counts the effects, neither a query nor something outside the database".into());
        }
        let wrong = [(inside, ""), (outside, " outside the database")];
        let wrong =
            wrong.into_iter().find_map(|(count, place)| Some((count.filter(|count| *count != expected)?, place)));
        Ok(wrong.map(|(count, place)| format!("{} {when}: {count} effects{place} instead of {expected}", message.id)))
    }

    async fn inside(&self, message: &Message) -> Result<Option<i64>, BoxError> {
        let Some(query) = &self.plan.effects else { return Ok(None) };
        let parameters = [(&message.id as &(dyn ToSql + Sync), Type::TEXT)];
        let asking = self.client.query_typed_one(query, &parameters);
        let row = tokio::time::timeout(self.plan.patience, asking).await.map_err(|_| "the query for effects hangs")?;
        let wrong = |error| format!("the query for effects must give one row with one bigint, as count(*): {error}");
        Ok(Some(row.and_then(|row| row.try_get(0)).map_err(wrong)?))
    }
}

async fn bounded(patience: Duration, delivery: impl Future<Output = Result<(), BoxError>>) -> Result<(), BoxError> {
    match tokio::time::timeout(patience, delivery).await {
        Ok(result) => result,
        Err(_) => Err(format!("the delivery did not end within {} s", patience.as_secs()).into()),
    }
}

async fn connect(url: &str) -> Result<tokio_postgres::Client, BoxError> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(async move { drop(connection.await) });
    Ok(client)
}
