//! map: finds a row's address. What cannot be mapped is parked, what came blocked goes behind its key.

use std::sync::Arc;

use crate::address::Address;
use crate::decide::Verdicted;
use crate::lane::Mapped;
use crate::outcome::Outcome;
use crate::reason::Reason;
use crate::route::Routes;
use crate::source::{Claimed, Content, HoldState};

/// Maps the rows of a page.
pub(super) fn map(routes: &Routes, rows: Vec<Claimed>) -> Vec<Mapped> {
    // Neighbours mostly go to one address, which they then share.
    let mut last: Option<Arc<Address>> = None;
    let mut target = |claimed: &Claimed| match &claimed.content {
        Content::Row(row) => {
            let address = routes.resolve(row).map_err(parked)?;
            if let Some(last) = last.as_ref().filter(|last| ***last == address) {
                return Ok(last.clone());
            }
            Ok(last.insert(Arc::new(address)).clone())
        }
        Content::Blocked => Err(Verdicted::waiting(Reason::Behind)),
        Content::Bad { detail } => {
            Err(parked(Outcome::Impossible { reason: Reason::Encoding, detail: detail.clone() }))
        }
    };
    rows.into_iter().map(|claimed| Mapped { target: target(&claimed), claimed }).collect()
}

fn parked(outcome: Outcome) -> Verdicted {
    let (reason, detail) = match outcome {
        Outcome::Impossible { reason, detail } => (reason, detail),
        other => (Reason::NoRoute, format!("{other:?}")),
    };
    Verdicted { state: HoldState::Parked, reason, detail, attempts: 0, delay_ms: None, opens: None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::Sink;
    use crate::headers::Headers;
    use crate::row::{Row, RowId, Timestamp, TxId};
    use crate::source::Origin;

    fn claimed(seq: i64, topic: &str) -> Claimed {
        let id = RowId { seq, tx: TxId(1) };
        let row = Row {
            id,
            idempotency_key: format!("work:{seq}"),
            topic: topic.into(),
            ordering_key: None,
            payload: None,
            content_type: "text/plain".into(),
            headers: Headers::default(),
            created_at: Timestamp(0),
            available_at: None,
            attempts: 0,
            held_since: None,
        };
        Claimed { id, origin: Origin::Fresh, ordering_key: None, content: Content::Row(Arc::new(row)) }
    }

    #[test]
    fn rows_share_an_address_only_where_it_is_theirs() {
        let topics = ["a", "a", "b", "a"];
        let rows = (1..).zip(topics).map(|(seq, topic)| claimed(seq, topic)).collect();
        let mapped = map(&Routes::for_single(Sink::Rabbitmq), rows);
        let addresses: Vec<&Arc<Address>> = mapped.iter().map(|row| row.target.as_ref().expect("an address")).collect();
        let keys: Vec<&str> = addresses.iter().map(|address| address.routing_key.as_str()).collect();
        assert_eq!(keys, topics);
        assert!(Arc::ptr_eq(addresses[0], addresses[1]));
    }
}
