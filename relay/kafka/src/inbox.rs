//! What the sending thread is told, by callers and by librdkafka's callbacks. Nobody waits to put something in.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use outbox_core::{Outcome, Outgoing};
use rdkafka::types::RDKafkaErrorCode;

use crate::delivery::Effect;
use crate::topics::Standing;

pub(crate) enum Event {
    /// A delivery report that the sender waited for or must act upon.
    Landed {
        generation: u64,
        topic: usize,
        confirmed: bool,
        effect: Effect,
    },
    /// librdkafka's word on a producer as a whole.
    Trouble {
        generation: u64,
        code: RDKafkaErrorCode,
        detail: String,
    },
    /// What a handshake of ours says of the brokers, after librdkafka's failed.
    Looked {
        generation: u64,
        why: Option<String>,
    },
    /// What the cluster said about a topic.
    Asked {
        topic: String,
        standing: Standing,
    },
    /// Whether the cluster answers at all.
    Checked(Result<(), String>),
    Stop {
        grace_ms: u64,
    },
}

/// Rows and events since the last look.
#[derive(Default)]
pub(crate) struct Mail {
    pub rows: Vec<Outgoing>,
    pub events: Vec<Event>,
}

impl Mail {
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.events.is_empty()
    }
}

#[derive(Default)]
struct State {
    mail: Mail,
    asleep: bool,
    closed: bool,
}

#[derive(Default)]
pub(crate) struct Inbox {
    state: Mutex<State>,
    arrived: Condvar,
}

impl Inbox {
    pub fn row(&self, outgoing: Outgoing) {
        let mut state = self.lock();
        if state.closed {
            drop(state);
            return outgoing.ticket.answer(Outcome::NotSent);
        }
        state.mail.rows.push(outgoing);
        self.wake(state);
    }

    pub fn event(&self, event: Event) {
        let mut state = self.lock();
        if !state.closed {
            state.mail.events.push(event);
            self.wake(state);
        }
    }

    /// Waits at most `timeout` for mail and exchanges it for `empty`, whose memory is used again.
    pub fn take(&self, empty: &mut Mail, timeout: Duration) {
        let mut state = self.lock();
        if state.mail.is_empty() {
            state.asleep = true;
            let waited = self.arrived.wait_timeout_while(state, timeout, |state| state.mail.is_empty());
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
            state.asleep = false;
        }
        std::mem::swap(&mut state.mail, empty);
    }

    /// From now on rows are answered at once and events are dropped; gives back what was not taken.
    pub fn close(&self) -> Mail {
        let mut state = self.lock();
        state.closed = true;
        std::mem::take(&mut state.mail)
    }

    fn wake(&self, state: MutexGuard<'_, State>) {
        let asleep = state.asleep;
        drop(state);
        if asleep {
            self.arrived.notify_one();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
