//! claim.sql, in parts, so that variants can read the parts at different instants.

use std::collections::BTreeMap;
use std::sync::Arc;

use outbox_core::{ClaimRequest, Claimed, Content, Headers, Origin, Page, Row, Timestamp};

use crate::db::{Db, DbRow, Held, Standing};
use crate::variant::Variant;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Fresh,
    Delayed,
    Waiting,
}

/// Rows read so far; `blocked` was judged in the snapshot that read the row.
#[derive(Clone, Debug, Default)]
pub struct Candidates(BTreeMap<i64, (Claimed, bool)>);

pub fn key_name(key: u8) -> Arc<str> {
    format!("k{key}").into()
}

impl Db {
    pub fn read(&self, request: &ClaimRequest, parts: &[Part], candidates: &mut Candidates) {
        for part in parts {
            let found: Vec<(i64, Origin)> = match part {
                Part::Fresh => self.fresh(request),
                Part::Delayed => self.delayed(request),
                Part::Waiting if request.with_held => self.waiting(request),
                Part::Waiting => Vec::new(),
            };
            for (seq, origin) in found {
                let Some(row) = self.tables.rows.get(&seq) else { continue };
                let blocked = !matches!(origin, Origin::Held { .. })
                    && self.variant != Variant::BlockedInMemoryOnly
                    && self.in_the_way(row, request);
                candidates.0.entry(seq).or_insert_with(|| (self.claimed(row, origin, blocked), blocked));
            }
        }
    }

    /// Merges by number, cuts by rows and by bytes.
    pub fn page(&self, request: &ClaimRequest, candidates: Candidates) -> Page {
        let found = candidates.0.len().min(request.rows_max);
        let beyond = self.variant == Variant::BeyondThePage;
        let mut bytes = 0;
        let mut rows = Vec::new();
        let mut whole_to = request.low;
        for (at, (seq, (claimed, blocked))) in candidates.0.into_iter().enumerate() {
            let cut = at >= found || bytes >= request.bytes_max;
            if cut && !(beyond && matches!(claimed.origin, Origin::Held { .. })) {
                continue;
            }
            bytes += usize::from(!blocked);
            if !cut {
                whole_to = seq;
            }
            rows.push(claimed);
        }
        let cut = found >= request.rows_max || rows.len() < found;
        Page {
            rows,
            whole_to: if cut { whole_to } else { i64::MAX },
            snapshot_xmin: self.xmin(),
            now: Timestamp(i64::try_from(self.now_ms).unwrap_or(0) * 1_000),
        }
    }

    fn fresh(&self, request: &ClaimRequest) -> Vec<(i64, Origin)> {
        let fresh = |row: &&DbRow| row.id.seq > request.low && row.available_at.is_none() && self.flows(row, request);
        let rows = self.tables.rows.values().filter(fresh);
        rows.map(|row| (row.id.seq, Origin::Fresh)).take(request.rows_max).collect()
    }

    fn delayed(&self, request: &ClaimRequest) -> Vec<(i64, Origin)> {
        let due = |row: &&DbRow| row.available_at.is_some_and(|at| at <= self.now_ms) && self.flows(row, request);
        let rows = self.tables.rows.values().filter(due);
        rows.map(|row| (row.id.seq, Origin::Delayed)).take(request.rows_max).collect()
    }

    fn flows(&self, row: &DbRow, request: &ClaimRequest) -> bool {
        let held = self.tables.held.contains_key(&row.id.seq) && self.variant != Variant::ClaimTakesHeld;
        !row.sent && !request.exclude.contains(&row.id.seq) && !held
    }

    fn waiting(&self, request: &ClaimRequest) -> Vec<(i64, Origin)> {
        if self.variant == Variant::NobodyClaimsHeld {
            return Vec::new();
        }
        let may = |seq: &i64, held: &Held| {
            let row = self.tables.rows.get(seq).filter(|row| row.id.tx == held.tx && !row.sent);
            row.is_some() && held.standing == Standing::Waiting && self.is_due(held) && !request.exclude.contains(seq)
        };
        let plain = self.tables.held.iter().filter(|(seq, held)| {
            may(seq, held)
                && !meets(held, &request.open_gates)
                && !meets(held, &request.probe_gates)
                && !self.lower(held.key, **seq).any(|lower| self.stops(lower, request))
        });
        let mut found: Vec<(i64, Origin)> =
            plain.map(|(seq, _)| (*seq, Origin::Held { probe: false })).take(request.rows_max).collect();
        for gate in &request.probe_gates {
            let probe = self.tables.held.iter().find(|(seq, held)| {
                may(seq, held)
                    && held.gates.contains(gate)
                    && !meets(held, &request.open_gates)
                    && (self.variant != Variant::ProbeOnlyNoted || held.reason == outbox_core::Reason::Unroutable)
                    && (self.variant == Variant::ProbeAny
                        || !self.lower(held.key, **seq).any(|lower| self.counts(lower)))
            });
            found.extend(probe.map(|(seq, _)| (*seq, Origin::Held { probe: true })));
        }
        found.sort_by_key(|(seq, _)| *seq);
        found.dedup_by_key(|(seq, _)| *seq);
        found
    }

    fn is_due(&self, held: &Held) -> bool {
        held.next_attempt_at.is_none_or(|at| at <= self.now_ms)
    }

    fn lower(&self, key: Option<u8>, seq: i64) -> impl Iterator<Item = &Held> {
        self.tables.held.range(..seq).map(|(_, held)| held).filter(move |held| key.is_some() && held.key == key)
    }

    /// Not sent, and not out of the key's way.
    fn counts(&self, held: &Held) -> bool {
        held.standing == Standing::Waiting || held.standing == Standing::Parked && self.block_key
    }

    /// A lower row that stops the later ones: it counts and is not takeable itself.
    fn stops(&self, held: &Held, request: &ClaimRequest) -> bool {
        match held.standing {
            Standing::Waiting => {
                !self.is_due(held) || meets(held, &request.open_gates) || meets(held, &request.probe_gates)
            }
            Standing::Parked => self.block_key,
            Standing::Discarded => false,
        }
    }

    fn in_the_way(&self, row: &DbRow, request: &ClaimRequest) -> bool {
        let lower = self.tables.held.range(..row.id.seq).filter(|(_, held)| row.key.is_some() && held.key == row.key);
        lower.into_iter().any(|(seq, held)| {
            let unlooked = !request.with_held && held.standing == Standing::Waiting;
            if unlooked { !request.exclude.contains(seq) } else { self.stops(held, request) }
        })
    }

    fn claimed(&self, row: &DbRow, origin: Origin, blocked: bool) -> Claimed {
        let ordering_key = row.key.map(key_name);
        let held = self.tables.held.get(&row.id.seq).filter(|_| matches!(origin, Origin::Held { .. }));
        let time = |ms: u64| Timestamp(i64::try_from(ms).unwrap_or(0) * 1_000);
        let content = Row {
            id: row.id,
            idempotency_key: row.uid.to_string(),
            topic: row.topic.to_string().into(),
            ordering_key: ordering_key.clone(),
            payload: None,
            content_type: "".into(),
            headers: Headers::default(),
            created_at: Timestamp(0),
            available_at: row.available_at.map(time),
            attempts: held.map_or(0, |held| held.attempts),
            held_since: held.map(|held| time(held.held_since)),
        };
        let content = if blocked { Content::Blocked } else { Content::Row(Arc::new(content)) };
        Claimed { id: row.id, origin, ordering_key, content }
    }
}

fn meets(held: &Held, gates: &[String]) -> bool {
    held.gates.iter().any(|gate| gates.contains(gate))
}
