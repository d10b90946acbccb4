//! The links to brokers: each change of one is told to lanes and to the log.

use std::sync::Arc;

use crate::publisher::Link;
use crate::shared::Shared;

/// Runs until all publishers are gone.
pub(super) async fn watch(shared: Arc<Shared>) {
    let tell = |sink, link: &Link| {
        shared.link_changes.send_modify(|changes| *changes += 1);
        match link {
            Link::Up => tracing::info!(sink = %sink, "broker link is up"),
            _ if shared.sinks_are_stopping() => {}
            Link::Down { detail } => tracing::warn!(sink = %sink, error = %detail, "broker link is down"),
            Link::Blocked { detail } => tracing::warn!(sink = %sink, error = %detail, "broker blocks publishers"),
            Link::Refused { detail } => tracing::error!(sink = %sink, error = %detail, "broker refuses us"),
        }
    };
    let watches = shared.sinks.links().into_iter().map(|(sink, mut link)| async move {
        // Not being connected yet is no news; what came of it before this look is.
        let changed = link.has_changed().unwrap_or(false);
        let first = link.borrow_and_update().clone();
        if changed || first.is_up() {
            tell(sink, &first);
        }
        while link.changed().await.is_ok() {
            let now = link.borrow_and_update().clone();
            tell(sink, &now);
        }
    });
    futures_util::future::join_all(watches).await;
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::future::BoxFuture;
    use tokio::sync::watch;

    use super::*;
    use crate::{Address, KeyOrder, NoObserver, Outgoing, Publisher, Routes, Settings, Sink, Sinks};

    struct Broker(watch::Receiver<Link>);

    impl Publisher for Broker {
        fn sink(&self) -> Sink {
            Sink::Kafka
        }

        fn order(&self, _: &Address) -> KeyOrder {
            KeyOrder::Strict
        }

        fn publish(&self, _: Outgoing) {}

        fn link(&self) -> watch::Receiver<Link> {
            self.0.clone()
        }

        fn probe<'a>(&'a self, _: &'a Address) -> BoxFuture<'a, Result<Option<String>, String>> {
            Box::pin(std::future::ready(Ok(None)))
        }

        fn stop(&self, _: u64) -> BoxFuture<'_, ()> {
            Box::pin(std::future::ready(()))
        }
    }

    /// A publisher that fails at once is faster than whoever watches it, and says the same ever after.
    #[tokio::test]
    async fn what_a_link_met_before_the_first_look_is_told() {
        let down = |detail: &str| Link::Down { detail: detail.to_owned() };
        let (link, seen) = watch::channel(down("connecting"));
        let sinks = Sinks::new(vec![Arc::new(Broker(seen))]);
        let shared = Shared::new(Settings::default(), Routes::for_single(Sink::Kafka), sinks, Arc::new(NoObserver));
        let mut told = shared.link_changes.subscribe();
        link.send_replace(down("no route to host"));
        let watching = tokio::spawn(watch(Arc::new(shared)));
        let first = tokio::time::timeout(Duration::from_secs(10), told.wait_for(|changes| *changes == 1)).await;
        assert!(matches!(first, Ok(Ok(_))), "nothing was told");
        watching.abort();
    }
}
