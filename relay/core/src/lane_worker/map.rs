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
