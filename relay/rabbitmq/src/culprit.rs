//! Who is to blame for a closed channel. The broker's text names the exchange, the routing key or the size in the
//! cases that occur; where it does not, the rows are tried one by one, and a row that was alone is the culprit.
//!
//! Pure. A wrong guess from a text is harmless: it only groups the rows that are tried again, except for refused
//! access, where the text is compared with the whole sentence that the address would give.

use outbox_core::{Address, Outcome, Reason, Scope};

use crate::message;
use crate::session::{ACCESS_REFUSED, NOT_FOUND, PRECONDITION_FAILED};

/// What the broker's refusal says about the rows of a window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Blame {
    /// An exchange is missing: ask for each.
    MissingExchange,
    /// The user may not publish to an address that `refuses` recognises.
    Access,
    /// Messages above this many bytes are refused.
    Size { most: usize },
    /// It may be anyone.
    Anyone,
}

/// Reads a refusal.
pub(crate) fn blame(code: Option<u16>, text: &str) -> Blame {
    match code {
        Some(NOT_FOUND) => Blame::MissingExchange,
        Some(ACCESS_REFUSED) => Blame::Access,
        Some(PRECONDITION_FAILED) => size_limit(text).map_or(Blame::Anyone, |most| Blame::Size { most }),
        _ => Blame::Anyone,
    }
}

/// The limit in "message size 200 is larger than configured max size 100" (older brokers: "than max size").
fn size_limit(text: &str) -> Option<usize> {
    let (_, rest) = text.split_once("message size ")?;
    let (_, limit) = rest.split_once("max size ")?;
    let digits: String = limit.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}

/// How far a refusal of access reaches, if it is about this address.
pub(crate) fn refuses(text: &str, address: &Address) -> Option<Scope> {
    let Address { destination, routing_key, .. } = address;
    if text.contains(&format!("topic '{routing_key}' in exchange '{destination}' ")) {
        return Some(Scope::Address);
    }
    let exchange = format!("exchange '{destination}' ");
    (text.contains(&exchange) && !text.contains("topic '")).then_some(Scope::Destination)
}

/// The outcome of a row that is known to be the culprit.
pub(crate) fn verdict(code: Option<u16>, text: &str, address: &Address, body_bytes: usize) -> Outcome {
    match (code, blame(code, text)) {
        (Some(NOT_FOUND), _) => missing_exchange(&address.destination),
        (Some(ACCESS_REFUSED), _) => refused(text, refuses(text, address).unwrap_or(Scope::Address)),
        (_, Blame::Size { most }) => message::too_large(body_bytes, most),
        (_, Blame::MissingExchange | Blame::Access | Blame::Anyone) => {
            Outcome::Failed { reason: Reason::ChannelError, detail: format!("the broker closed the channel: {text}") }
        }
    }
}

pub(crate) fn missing_exchange(exchange: &str) -> Outcome {
    Outcome::AddressAway {
        scope: Scope::Destination,
        reason: Reason::NoExchange,
        detail: format!("exchange '{exchange}' does not exist; declare it, its rows then follow by themselves"),
    }
}

/// The address is away in the same sense as a missing exchange: an operator mends it at the broker.
pub(crate) fn refused(text: &str, scope: Scope) -> Outcome {
    Outcome::AddressAway {
        scope,
        reason: Reason::NoExchange,
        detail: format!("the broker refuses access: {text}; grant the relay's user write permission"),
    }
}

pub(crate) fn unroutable(address: &Address) -> Outcome {
    Outcome::AddressAway {
        scope: Scope::Address,
        reason: Reason::Unroutable,
        detail: format!("no queue is bound for {address}; bind one, its rows then follow by themselves"),
    }
}

/// It took rows and answers for none.
pub(crate) fn silent(address: &Address, why: &str) -> Outcome {
    Outcome::AddressAway {
        scope: Scope::Address,
        reason: Reason::Unknown,
        detail: format!("{address} takes messages and confirms none: {why}; see the state of its queues at the broker"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outbox_core::Sink;

    fn address(exchange: &str, key: &str) -> Address {
        Address { sink: Sink::Rabbitmq, destination: exchange.to_owned(), routing_key: key.to_owned() }
    }

    #[test]
    fn refusals_are_read() {
        let size = "PRECONDITION_FAILED - message size 200 is larger than configured max size 100";
        assert_eq!(blame(Some(406), size), Blame::Size { most: 100 });
        let older = "PRECONDITION_FAILED - message size 134217729 larger than max size 134217728";
        assert_eq!(blame(Some(406), older), Blame::Size { most: 134_217_728 });
        assert_eq!(blame(Some(406), "PRECONDITION_FAILED - invalid expiration"), Blame::Anyone);
        assert_eq!(blame(Some(404), "NOT_FOUND - no exchange 'x' in vhost '/'"), Blame::MissingExchange);
        assert_eq!(blame(None, "channel closed"), Blame::Anyone);
    }

    #[test]
    fn refused_access_reaches_as_far_as_it_says() {
        let exchange = "ACCESS_REFUSED - access to exchange 'e' in vhost '/' refused for user 'u'";
        assert_eq!(refuses(exchange, &address("e", "k")), Some(Scope::Destination));
        assert_eq!(refuses(exchange, &address("e2", "k")), None);
        let topic = "ACCESS_REFUSED - access to topic 'k' in exchange 'e' in vhost '/' refused for user 'u'";
        assert_eq!(refuses(topic, &address("e", "k")), Some(Scope::Address));
        assert_eq!(refuses(topic, &address("e", "other")), None);
    }

    #[test]
    fn a_lone_culprit_gets_the_outcome_of_its_kind() {
        let address = address("e", "k");
        let is = |code, text: &str| verdict(Some(code), text, &address, 200);
        assert_eq!(is(404, "NOT_FOUND"), missing_exchange("e"));
        assert!(matches!(
            is(406, "message size 200 larger than max size 100"),
            Outcome::Impossible { reason: Reason::Size, .. }
        ));
        assert!(matches!(is(406, "odd"), Outcome::Failed { reason: Reason::ChannelError, .. }));
        assert!(matches!(is(403, "odd"), Outcome::AddressAway { scope: Scope::Address, .. }));
    }
}
