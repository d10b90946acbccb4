//! The supervisor: keeps one connection up for ever, and says how it stands.
//!
//! It guarantees that a lost connection is dead before the next one is opened, and that trying never ends. It does
//! not use lapin's recovery, which gives up.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use lapin::Event;
use outbox_core::{Backoff, Link, Observer, Peer, Sink};
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use crate::config::RabbitmqConfig;
use crate::session::{ACCESS_REFUSED, NOT_ALLOWED, Session, SessionError, is_cut, tls_error, words};

/// A connection that lived this long is no failed try in any case, and one that did not even live so long always is.
const STABLE: Duration = Duration::from_secs(5);
const FLEETING: Duration = Duration::from_secs(1);

/// How often the state is looked at beside lapin's events, which tell nothing of some endings.
const LOOK: Duration = Duration::from_secs(1);

/// How long a close in AMQP's own way may take.
pub(crate) const CLOSE: Duration = Duration::from_secs(1);

/// See the module.
pub(crate) struct Supervisor {
    pub(crate) config: Arc<RabbitmqConfig>,
    pub(crate) observer: Arc<dyn Observer>,
    pub(crate) link: watch::Sender<Link>,
    pub(crate) sessions: watch::Sender<Option<Arc<Session>>>,
    /// Cancelled once all writers are done.
    pub(crate) closing: CancellationToken,
}

impl Supervisor {
    /// Runs until `closing`.
    pub(crate) async fn run(self) {
        let mut backoff = Backoff::new(self.config.options().reconnect);
        let mut connected_before = false;
        let mut wait = Duration::ZERO;
        loop {
            let session = tokio::select! {
                biased;
                () = self.closing.cancelled() => break,
                session = Session::open(&self.config) => session,
            };
            match session {
                Ok(session) => {
                    tracing::debug!(broker = %self.config.endpoint(), "connected to RabbitMQ");
                    if connected_before {
                        self.observer.reconnected(Peer::Broker(Sink::Rabbitmq));
                    }
                    connected_before = true;
                    let since = Instant::now();
                    self.serve(&session).await;
                    if session.has_answered() || was_stable(since.elapsed(), wait) {
                        backoff.reset();
                    }
                }
                Err(error) => self.tell(self.describe(&error)),
            }
            if self.closing.is_cancelled() {
                break;
            }
            wait = Duration::from_millis(backoff.next_ms());
            tokio::select! {
                () = self.closing.cancelled() => break,
                () = tokio::time::sleep(wait) => {}
            }
        }
        self.tell(Link::Down { detail: "stopped".to_owned() });
    }

    /// Watches one connection until it ends; then it is dead and nobody can take it any more.
    async fn serve(&self, session: &Arc<Session>) {
        let mut events = Box::pin(session.connection().events_listener());
        self.sessions.send_replace(Some(Arc::clone(session)));
        self.tell(Link::Up);
        let mut look = tokio::time::interval(LOOK);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut last_error = "the connection was lost".to_owned();
        let mut listening = true;
        while session.alive() {
            tokio::select! {
                () = self.closing.cancelled() => {
                    session.close(CLOSE).await;
                    break;
                }
                () = session.ended().cancelled() => {}
                _ = look.tick() => self.look_at_block(session),
                event = events.next(), if listening => match event {
                    Some(Event::ConnectionBlocked(reason)) => self.blocked(session, &reason),
                    Some(Event::ConnectionUnblocked) => self.unblocked(session),
                    // A closed channel is told here too; it ends no connection.
                    Some(Event::Error(error)) => last_error = words(&error),
                    Some(_) => {}
                    None => listening = false,
                },
            }
        }
        session.fail(last_error);
        self.sessions.send_replace(None);
        let detail = format!("lost the connection to {}: {}", self.config.endpoint(), session.why());
        self.tell(Link::Down { detail });
    }

    /// The broker may have blocked the connection before anybody listened.
    fn look_at_block(&self, session: &Session) {
        let blocked = session.connection().status().blocked();
        let told = matches!(*self.link.borrow(), Link::Blocked { .. });
        if blocked && !told {
            self.blocked(session, "an alarm");
        } else if !blocked && told {
            self.unblocked(session);
        }
    }

    fn blocked(&self, session: &Session, reason: &str) {
        session.set_blocked(true);
        let detail = format!("RabbitMQ takes nothing now ({reason}); free memory or disk space at the broker");
        self.tell(Link::Blocked { detail });
    }

    fn unblocked(&self, session: &Session) {
        session.set_blocked(false);
        self.tell(Link::Up);
    }

    /// Says how the link stands: metrics first, so that whoever acts on the change finds them told. The core logs it.
    fn tell(&self, link: Link) {
        if *self.link.borrow() == link {
            return;
        }
        let blocked = matches!(link, Link::Blocked { .. });
        self.observer.link(Sink::Rabbitmq, link.is_up() || blocked, blocked);
        self.link.send_replace(link);
    }

    fn describe(&self, error: &SessionError) -> Link {
        let endpoint = self.config.endpoint();
        let text = match error {
            SessionError::Amqp(error) => words(error),
            SessionError::Ended(_)
            | SessionError::Blocked
            | SessionError::Late { .. }
            | SessionError::NotConfirming => error.to_string(),
        };
        if matches!(error, SessionError::Amqp(error) if tls_error(error).is_some_and(|problem| problem.lasts())) {
            return Link::Refused { detail: format!("cannot connect to {endpoint}: {text}") };
        }
        match error.code() {
            Some(ACCESS_REFUSED) => {
                let advice = if self.config.is_external() {
                    "give the broker a user of the certificate's name (see its ssl_cert_login_from)"
                } else {
                    "check user and password in rabbitmq.url"
                };
                Link::Refused { detail: format!("{endpoint} refuses the login: {text}; {advice}") }
            }
            Some(NOT_ALLOWED) => Link::Refused {
                detail: format!(
                    "{endpoint} refuses the virtual host: {text}; check rabbitmq.url and the user's permissions"
                ),
            },
            _ => {
                let question = self.question(error);
                Link::Down { detail: format!("cannot connect to {endpoint}: {text}; is the broker running{question}?") }
            }
        }
    }

    /// With TLS 1.3 a broker judges the client's certificate after the handshake, and it may have reset the connection
    /// before its verdict was read.
    fn question(&self, error: &SessionError) -> &'static str {
        let cut = match error {
            SessionError::Amqp(error) => is_cut(error),
            SessionError::Ended(_) => true,
            SessionError::Blocked | SessionError::Late { .. } | SessionError::NotConfirming => false,
        };
        match self.config.tls().filter(|_| cut) {
            None => "",
            Some(tls) if tls.identity.is_none() => ", and does it demand a client certificate",
            Some(_) => ", and does it take the client certificate",
        }
    }
}

/// A connection that outlived the wait before it was no failed try, and neither was one on which the broker answered
/// for a row. Else a link that breaks every few seconds would be waited for longer and longer, although rows flow.
fn was_stable(lived: Duration, waited: Duration) -> bool {
    lived >= waited.clamp(FLEETING, STABLE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_that_breaks_every_few_seconds_is_not_waited_for_longer_and_longer() {
        let ms = Duration::from_millis;
        assert!(was_stable(ms(3_000), ms(800)), "it outlived its wait");
        assert!(was_stable(ms(6_000), ms(30_000)), "long enough in any case");
        assert!(!was_stable(ms(3_000), ms(4_000)), "shorter than its wait");
        assert!(!was_stable(ms(300), ms(100)), "a broker that drops us at once is left alone for longer");
    }
}
