//! Whether an address exists, for `check` and for an operator's eyes. It publishes nothing, so it cannot tell
//! whether a binding matches a routing key: only a publication shows that.

use std::sync::Arc;
use std::time::Duration;

use outbox_core::{Address, Link};
use tokio::sync::watch;

use crate::session::Session;

/// See `Publisher::probe`. Waits for the first connection, at most `wait`.
pub(crate) async fn probe(
    sessions: watch::Receiver<Option<Arc<Session>>>,
    link: watch::Receiver<Link>,
    wait: Duration,
    address: &Address,
) -> Result<Option<String>, String> {
    let Some(session) = connected(sessions, wait).await else {
        return Err(state(&link.borrow()));
    };
    let exchange = &address.destination;
    if exchange.is_empty() {
        let queue = &address.routing_key;
        let exists = session.queue_exists(queue).await.map_err(|error| error.to_string())?;
        return Ok((!exists).then(|| {
            format!(
                "queue '{queue}' does not exist, and the default exchange leads to the queue named like the routing \
                 key; declare the queue, or name an exchange in the route"
            )
        }));
    }
    let exists = session.exchange_exists(exchange).await.map_err(|error| error.to_string())?;
    Ok((!exists).then(|| format!("exchange '{exchange}' does not exist; declare it, or change the route")))
}

async fn connected(mut sessions: watch::Receiver<Option<Arc<Session>>>, wait: Duration) -> Option<Arc<Session>> {
    tokio::time::timeout(wait, sessions.wait_for(Option::is_some)).await.ok()?.ok()?.clone()
}

fn state(link: &Link) -> String {
    match link {
        Link::Up => "the connection was lost just now".to_owned(),
        Link::Down { detail } | Link::Blocked { detail } | Link::Refused { detail } => detail.clone(),
    }
}
