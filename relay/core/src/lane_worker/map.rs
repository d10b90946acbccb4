//! map: finds a row's address. What cannot be mapped is parked, what came blocked goes behind its key.

use std::sync::Arc;

use crate::decide::Verdicted;
use crate::lane::Mapped;
use crate::outcome::Outcome;
use crate::reason::Reason;
use crate::route::Routes;
use crate::source::{Claimed, Content, HoldState};

/// Maps one claimed row.
pub(super) fn map(routes: &Routes, claimed: Claimed) -> Mapped {
    let target = match &claimed.content {
        Content::Row(row) => routes.resolve(row).map(Arc::new).map_err(parked),
        Content::Blocked => Err(Verdicted::waiting(Reason::Behind)),
        Content::Bad { detail } => {
            Err(parked(Outcome::Impossible { reason: Reason::Encoding, detail: detail.clone() }))
        }
    };
    Mapped { claimed, target }
}

fn parked(outcome: Outcome) -> Verdicted {
    let (reason, detail) = match outcome {
        Outcome::Impossible { reason, detail } => (reason, detail),
        other => (Reason::NoRoute, format!("{other:?}")),
    };
    Verdicted { state: HoldState::Parked, reason, detail, attempts: 0, delay_ms: None, opens: None }
}
