//! Everything the relay can be told, already checked: units last in names, bounds as in the documentation.

use crate::decide::RetryPolicy;
use crate::intake::Intake;

/// What happens to a key behind a parked row (`on_park`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnPark {
    /// Its later rows go on.
    Continue,
    /// Its later rows wait until the parked row is retried or discarded.
    BlockKey,
}

/// Bounds and intervals of one relay.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `lease.ttl_ms`, at least 500.
    pub lease_ttl_ms: u64,
    /// `lease.renew_ms`, a third of the lease unless told otherwise.
    pub lease_renew_ms: u64,
    pub batch_rows_max: usize,
    pub batch_bytes_max: usize,
    /// Rows published and not durably marked, all lanes together: the bound of duplicates.
    pub in_flight_max: usize,
    pub poll_min_ms: u64,
    pub poll_max_ms: u64,
    pub retry: RetryPolicy,
    pub confirm_timeout_ms: u64,
    pub shutdown_grace_ms: u64,
    /// `None` keeps sent rows for ever.
    pub retention_s: Option<u64>,
    pub on_park: OnPark,
    /// Tables whose rows are taken over, in the order in which the adapter knows them.
    pub intakes: Vec<Intake>,
    /// Nothing but in a drill.
    pub drill: DrillShares,
}

/// `run --drill …`: shares of the confirmed rows, 0 to 1, that are published once more.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DrillShares {
    /// At once.
    pub duplicate: f64,
    /// After later messages.
    pub reorder: f64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            lease_ttl_ms: 10_000,
            lease_renew_ms: 3_333,
            batch_rows_max: 500,
            batch_bytes_max: 8 << 20,
            in_flight_max: 2_000,
            poll_min_ms: 5,
            poll_max_ms: 500,
            retry: RetryPolicy::default(),
            confirm_timeout_ms: 30_000,
            shutdown_grace_ms: 20_000,
            retention_s: Some(7 * 24 * 3_600),
            on_park: OnPark::Continue,
            intakes: Vec::new(),
            drill: DrillShares::default(),
        }
    }
}

impl Settings {
    /// Rows that one lane may keep in memory: a page in work and a page fetched ahead.
    #[must_use]
    pub const fn lane_rows_max(&self) -> usize {
        self.batch_rows_max * 2
    }

    /// Bytes of rows that all lanes together may keep in memory before they stop claiming.
    #[must_use]
    pub const fn memory_bytes_max(&self) -> usize {
        self.batch_bytes_max * 4
    }
}
