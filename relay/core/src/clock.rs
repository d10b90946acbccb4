//! Time as the pure parts see it: milliseconds since an arbitrary start, never going backwards.

/// Milliseconds of a clock that also runs while the machine is suspended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Millis(pub u64);

impl Millis {
    /// This instant and a number of milliseconds later.
    #[must_use]
    pub const fn plus(self, ms: u64) -> Self {
        Self(self.0.saturating_add(ms))
    }

    /// Milliseconds from `earlier` to this instant, 0 if it lies after it.
    #[must_use]
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// The boot-time clock: unlike the monotonic one it counts a suspended laptop's or a migrated machine's pause,
/// so that a lease cannot look fresh after one.
#[derive(Clone, Copy, Debug, Default)]
pub struct Clock;

impl Clock {
    /// Now.
    #[must_use]
    pub fn now(self) -> Millis {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
        let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
        Millis(seconds * 1_000 + nanos / 1_000_000)
    }
}
