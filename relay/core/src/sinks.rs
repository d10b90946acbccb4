//! The brokers that this process serves.

use std::sync::Arc;

use tokio::sync::watch;

use crate::address::{Address, Sink};
use crate::lane::Gate;
use crate::publisher::{KeyOrder, Link, Publisher};
use crate::reason::Reason;

/// One publisher a broker, at least one.
pub struct Sinks {
    publishers: Vec<Arc<dyn Publisher>>,
    links: Vec<watch::Receiver<Link>>,
}

impl Sinks {
    /// Sinks in the order given.
    #[must_use]
    pub fn new(publishers: Vec<Arc<dyn Publisher>>) -> Self {
        let links = publishers.iter().map(|publisher| publisher.link()).collect();
        Self { publishers, links }
    }

    /// The publisher of a kind of broker.
    #[must_use]
    pub fn get(&self, sink: Sink) -> Option<&Arc<dyn Publisher>> {
        self.publishers.iter().find(|publisher| publisher.sink() == sink)
    }

    /// All of them.
    #[must_use]
    pub fn all(&self) -> &[Arc<dyn Publisher>] {
        &self.publishers
    }

    /// A watch on each link.
    #[must_use]
    pub fn links(&self) -> Vec<(Sink, watch::Receiver<Link>)> {
        self.publishers.iter().map(|publisher| publisher.sink()).zip(self.links.iter().cloned()).collect()
    }

    pub(crate) fn order(&self, address: &Address) -> KeyOrder {
        self.get(address.sink).map_or(KeyOrder::Strict, |publisher| publisher.order(address))
    }

    /// Brokers that take nothing now.
    #[must_use]
    pub fn away(&self) -> Vec<Sink> {
        let away = |(publisher, link): (&Arc<dyn Publisher>, &watch::Receiver<Link>)| {
            (!link.borrow().is_up()).then(|| publisher.sink())
        };
        self.publishers.iter().zip(&self.links).filter_map(away).collect()
    }

    /// Whether no broker takes anything now, so that claiming has no purpose.
    #[must_use]
    pub fn all_away(&self) -> bool {
        self.links.iter().all(|link| !link.borrow().is_up())
    }

    /// A broker's own breaker. Where it is the only one its rows stay where they are; where several are served
    /// they go to the waiting room, so that nobody else starves.
    pub(crate) fn gate(&self, sink: Sink, away: &[Sink]) -> Gate {
        match (away.contains(&sink), self.publishers.len()) {
            (false, _) => Gate::Open,
            (true, 1) => Gate::Wait,
            (true, _) => Gate::Hold { reason: Reason::Broker, probe_passes: false },
        }
    }
}
