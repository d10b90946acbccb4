//! The numbers and choices that steer the relay, checked against their bounds and against each other.

use outbox_core::{BackoffPolicy, OnPark, RetryPolicy};
use outbox_postgres::DurabilityFence;

use super::reader::Reader;
use super::value;

/// Settings without addresses and secrets.
#[derive(Clone, Debug)]
pub struct Settings {
    pub relay: outbox_core::Settings,
    pub fence: DurabilityFence,
}

impl Settings {
    /// Reads all of them.
    pub(super) fn read(reader: &mut Reader) -> Self {
        let lease_ttl_ms = reader.integer("lease.ttl_ms");
        let lease_renew_ms = match reader.set("lease.renew_ms") {
            Some(_) => reader.integer("lease.renew_ms"),
            None => lease_ttl_ms / 3,
        };
        if lease_renew_ms > lease_ttl_ms / 2 {
            reader
                .refuse("lease.renew_ms", "must be at most half of lease.ttl_ms, or one slow renewal loses the lease");
        }
        let (poll_min_ms, poll_max_ms) = ordered(reader, "poll.min_ms", "poll.max_ms");
        let (initial_ms, max_ms) = ordered(reader, "retry.initial_ms", "retry.max_ms");
        let retry = RetryPolicy {
            backoff: BackoffPolicy { initial_ms, max_ms },
            attempts_max: u32::try_from(reader.integer("retry.attempts_max")).unwrap_or(1_000_000),
            attempts_min_age_ms: reader.integer("retry.attempts_min_age_ms"),
        };
        let relay = outbox_core::Settings {
            lease_ttl_ms,
            lease_renew_ms,
            batch_rows_max: count(reader, "batch.rows_max"),
            batch_bytes_max: usize::try_from(reader.size_bytes("batch.bytes_max")).unwrap_or(1 << 30),
            in_flight_max: count(reader, "in_flight_max"),
            poll_min_ms,
            poll_max_ms,
            retry,
            confirm_timeout_ms: reader.integer("confirm.timeout_ms"),
            shutdown_grace_ms: reader.integer("shutdown.grace_ms"),
            retention_s: retention(reader),
            // Read apart, with what the database adapter must know of them.
            intakes: Vec::new(),
            on_park: reader.choice("on_park", &[("continue", OnPark::Continue), ("block_key", OnPark::BlockKey)]),
            // A flag of `run` alone: no file and no variable may begin a drill.
            drill: outbox_core::DrillShares::default(),
        };
        let fences =
            [("local", DurabilityFence::Local), ("sync", DurabilityFence::Sync), ("none", DurabilityFence::None)];
        Self { relay, fence: reader.choice("durability_fence", &fences) }
    }
}

fn count(reader: &mut Reader, name: &str) -> usize {
    usize::try_from(reader.integer(name)).unwrap_or(1)
}

fn ordered(reader: &mut Reader, low: &str, high: &str) -> (u64, u64) {
    let values = (reader.integer(low), reader.integer(high));
    if values.0 > values.1 {
        reader.refuse(high, format!("must be at least {low}, which is {}", values.0));
    }
    values
}

fn retention(reader: &mut Reader) -> Option<u64> {
    let text = reader.text("retention").unwrap_or_default();
    if text == "off" {
        return None;
    }
    // A hundred years: beyond it the database's intervals and our milliseconds are not worth the worry.
    let seconds = value::duration_s(&text).filter(|seconds| *seconds <= 3_153_600_000);
    if seconds.is_none() {
        let rule = "must be a duration such as \"7d\" or \"12h\" (units s, m, h, d, w), \"0\" or \"off\"";
        reader.refuse("retention", format!("{rule}; it is '{text}'"));
    }
    seconds
}
