//! Addresses that took rows and confirmed none, while the broker answered other questions: a quorum queue without a
//! majority is such a one.
//!
//! Whoever waits for such a row waits in vain, and its connection is dropped after it. So a row to a suspect goes on a
//! connection of its own, one row an address at a time and few at once, where it holds up nobody; its rows wait
//! behind the core's breaker meanwhile. The first answer about a row of the address ends the suspicion. Like a breaker it
//! is an economy: a suspect that is forgotten costs one more time-out.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use outbox_core::{Address, Observer, Outcome, Outgoing};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config::RabbitmqConfig;
use crate::connection::CLOSE;
use crate::culprit;
use crate::session::Session;
use crate::writer::Writer;

/// More are not remembered.
const SUSPECTS_MAX: usize = 1_000;
/// Connections at a time.
const TRIES_MAX: usize = 4;

/// A row under way to a suspect. However it ends, by a panic too, the next row may be tried after it.
struct Try {
    suspects: Arc<Suspects>,
    address: Arc<Address>,
}

impl Try {
    async fn run(self, outgoing: Outgoing) {
        self.suspects.try_out(outgoing).await;
    }
}

impl Drop for Try {
    fn drop(&mut self) {
        if let Some(tried) = self.suspects.known().get_mut(&*self.address) {
            *tried = false;
        }
    }
}

/// See the module.
pub(crate) struct Suspects {
    pub(crate) config: Arc<RabbitmqConfig>,
    pub(crate) observer: Arc<dyn Observer>,
    pub(crate) stopping: CancellationToken,
    pub(crate) tries: TaskTracker,
    /// Whether a row is being tried.
    known: Mutex<HashMap<Address, bool>>,
}

impl Suspects {
    pub(crate) fn new(
        config: Arc<RabbitmqConfig>,
        observer: Arc<dyn Observer>,
        stopping: CancellationToken,
        tries: TaskTracker,
    ) -> Arc<Self> {
        Arc::new(Self { config, observer, stopping, tries, known: Mutex::default() })
    }

    /// The address confirmed nothing in time.
    pub(crate) fn accuse(&self, address: &Address) {
        let mut known = self.known();
        if known.contains_key(address) || known.len() >= SUSPECTS_MAX {
            return;
        }
        known.insert(address.clone(), false);
        drop(known);
        tracing::warn!(
            exchange = address.destination,
            routing_key = address.routing_key,
            timeout_ms = self.config.options().confirm_timeout_ms,
            "RabbitMQ answers, and confirms nothing for this address; its rows wait, and one at a time is tried"
        );
    }

    /// The address answered about a row.
    pub(crate) fn clear(&self, address: &Address) {
        let mut known = self.known();
        if !known.is_empty() {
            known.remove(address);
        }
    }

    /// Takes the row if its address is a suspect; else it comes back.
    pub(crate) fn take(self: &Arc<Self>, outgoing: Outgoing) -> Option<Outgoing> {
        let mut known = self.known();
        if known.is_empty() {
            return Some(outgoing);
        }
        let trying = known.values().filter(|trying| **trying).count();
        let Some(tried) = known.get_mut(&*outgoing.address) else { return Some(outgoing) };
        if *tried || trying >= TRIES_MAX {
            drop(known);
            let outcome = culprit::silent(&outgoing.address, "earlier rows to it are waited for");
            outgoing.ticket.answer(outcome);
            return None;
        }
        *tried = true;
        drop(known);
        let trying = Try { suspects: Arc::clone(self), address: Arc::clone(&outgoing.address) };
        self.tries.spawn(trying.run(outgoing));
        None
    }

    /// Publishes one row on a connection of its own and answers for it.
    async fn try_out(self: &Arc<Self>, outgoing: Outgoing) {
        let opened = tokio::select! {
            biased;
            () = self.stopping.cancelled() => return outgoing.ticket.answer(Outcome::NotSent),
            opened = Session::open(&self.config) => opened,
        };
        let session = match opened {
            Ok(session) => session,
            Err(error) => {
                let outcome = culprit::silent(&outgoing.address, &format!("cannot connect to try again: {error}"));
                return outgoing.ticket.answer(outcome);
            }
        };
        let (_, rows) = mpsc::unbounded_channel();
        let (_sender, sessions) = watch::channel(Some(Arc::clone(&session)));
        let mut writer = Writer::new(0, Arc::clone(self), rows, sessions);
        let mut row = vec![outgoing];
        let stop = async {
            self.stopping.cancelled().await;
            session.fail("stopped before the broker answered");
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = writer.serve(&mut row) => {}
            () = stop => {}
        }
        session.close(CLOSE).await;
    }

    fn known(&self) -> MutexGuard<'_, HashMap<Address, bool>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use outbox_core::{NoObserver, Sink};

    use super::*;
    use crate::config::RabbitmqOptions;

    #[test]
    fn a_try_that_ends_by_a_panic_leaves_the_next_one_free() {
        let config = RabbitmqConfig::new(RabbitmqOptions::new("amqp://127.0.0.1:1")).expect("valid");
        let suspects =
            Suspects::new(Arc::new(config), Arc::new(NoObserver), CancellationToken::new(), TaskTracker::new());
        let address =
            Arc::new(Address { sink: Sink::Rabbitmq, destination: "e".to_owned(), routing_key: "k".to_owned() });
        suspects.accuse(&address);
        suspects.known().insert(Address::clone(&address), true);
        let trying = Try { suspects: Arc::clone(&suspects), address: Arc::clone(&address) };
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _trying = trying;
            panic!("as a bug would");
        }));
        assert!(ended.is_err());
        assert_eq!(suspects.known().get(&*address), Some(&false));
    }
}
