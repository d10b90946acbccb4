//! The schedule of faults: drawn by lot from a seed, batch by batch, printed as text and read back.
//!
//! A batch is two to twenty draws of faults that overlap; between two batches the relays must clear the backlog.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

use anyhow::{Context, Result, bail, ensure};

use crate::options::{Mode, Options};

/// What is done. The names are those of the schedule's lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    Kill9,
    CrashPoint,
    Pause,
    CleanRestart,
    ClockSkew,
    OtherVersion,
    DatabaseCut,
    DatabaseStall,
    DatabaseDelay,
    DatabaseHalfOpen,
    DatabaseAway,
    BrokerCut,
    BrokerStall,
    BrokerDelay,
    BrokerHalfOpen,
    BrokerAway,
    BackendsKilled,
    ReadOnly,
    LanesLocked,
    PostgresCrash,
    BrokerRestart,
    BrokerKill,
    BrokerFrozen,
    MemoryAlarm,
    QueueSuspended,
    NackStorm,
    ExchangeDeleted,
    BindingLost,
    AddressMissing,
    AddressDeleted,
}

impl Kind {
    /// Name, weight in the lottery, shortest and longest duration in milliseconds.
    const ALL: [(Self, &'static str, u32, u64, u64); 30] = [
        (Self::Kill9, "kill9", 14, 0, 400),
        (Self::CrashPoint, "crash-point", 14, 1_500, 3_000),
        (Self::Pause, "pause", 8, 1_100, 9_000),
        (Self::CleanRestart, "clean-restart", 5, 0, 200),
        (Self::ClockSkew, "clock-skew", 6, 1_000, 3_000),
        (Self::OtherVersion, "other-version", 6, 1_000, 3_000),
        (Self::DatabaseCut, "database-cut", 6, 0, 0),
        (Self::DatabaseStall, "database-stall", 5, 200, 2_000),
        (Self::DatabaseDelay, "database-delay", 5, 300, 1_500),
        (Self::DatabaseHalfOpen, "database-half-open", 5, 300, 2_000),
        (Self::DatabaseAway, "database-away", 5, 200, 1_500),
        (Self::BrokerCut, "broker-cut", 6, 0, 0),
        (Self::BrokerStall, "broker-stall", 6, 200, 2_500),
        (Self::BrokerDelay, "broker-delay", 5, 300, 1_500),
        (Self::BrokerHalfOpen, "broker-half-open", 5, 300, 2_000),
        (Self::BrokerAway, "broker-away", 5, 200, 1_500),
        (Self::BackendsKilled, "backends-killed", 6, 0, 0),
        (Self::ReadOnly, "read-only", 6, 200, 1_000),
        (Self::LanesLocked, "lanes-locked", 6, 200, 1_500),
        (Self::PostgresCrash, "postgres-crash", 10, 0, 300),
        (Self::BrokerRestart, "broker-restart", 22, 2_500, 3_500),
        (Self::BrokerKill, "broker-kill", 22, 2_500, 3_500),
        (Self::BrokerFrozen, "broker-frozen", 6, 300, 2_500),
        (Self::MemoryAlarm, "memory-alarm", 22, 300, 1_500),
        // Longer than the relays wait for a confirm.
        (Self::QueueSuspended, "queue-suspended", 22, 2_500, 5_000),
        (Self::NackStorm, "nack-storm", 6, 1_500, 2_500),
        (Self::ExchangeDeleted, "exchange-deleted", 6, 200, 1_000),
        (Self::BindingLost, "binding-lost", 6, 100, 1_000),
        (Self::AddressMissing, "address-missing", 6, 300, 1_000),
        (Self::AddressDeleted, "address-deleted", 6, 300, 1_000),
    ];

    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|known| known.0 == self).map_or("", |known| known.1)
    }

    /// Ends a whole service, or has RabbitMQ's tools at work: one of each service in a batch, beside faults of relays
    /// and links.
    pub fn is_costly(self) -> bool {
        matches!(
            self,
            Self::PostgresCrash | Self::BrokerRestart | Self::BrokerKill | Self::MemoryAlarm | Self::QueueSuspended
        )
    }

    /// Ends a relay's process, or stops it for a while.
    fn is_of_process(self) -> bool {
        matches!(
            self,
            Self::Kill9 | Self::CrashPoint | Self::Pause | Self::CleanRestart | Self::ClockSkew | Self::OtherVersion
        )
    }

    /// Strikes the way between a relay and a service, in a proxy that needs neither.
    fn is_of_link(self) -> bool {
        self.name().starts_with("database-")
            || matches!(
                self,
                Self::BrokerCut | Self::BrokerStall | Self::BrokerDelay | Self::BrokerHalfOpen | Self::BrokerAway
            )
    }

    /// Whether a costly one may overlap with the other. For a queue that is suspended rows are written, which needs the
    /// database.
    fn goes_with(self, other: Self) -> bool {
        let one_of_each_service = (self == Self::PostgresCrash) != (other == Self::PostgresCrash);
        let writes = self == Self::QueueSuspended || other == Self::QueueSuspended;
        other.is_of_process() || other.is_of_link() || other.is_costly() && one_of_each_service && !writes
    }

    /// Asks the broker for something, which a frozen one never answers.
    fn asks_broker(self) -> bool {
        matches!(self, Self::ExchangeDeleted | Self::BindingLost | Self::AddressMissing | Self::AddressDeleted)
    }

    fn is_known_to(self, mode: Mode, other_version: bool) -> bool {
        match self {
            Self::OtherVersion => other_version,
            Self::MemoryAlarm | Self::QueueSuspended | Self::NackStorm | Self::ExchangeDeleted | Self::BindingLost => {
                mode != Mode::Kafka
            }
            _ => true,
        }
    }
}

/// Places between two steps of a row's journey where a relay can be made to die.
pub const CRASH_POINTS: [&str; 12] = [
    "after_acquire",
    "after_claim_read",
    "after_claim",
    "before_publish",
    "after_publish",
    "after_confirm",
    "before_mark",
    "after_mark",
    "before_hold",
    "after_hold",
    "after_renew",
    "before_release",
];

/// The ends of those names that a relay seldom passes.
const SELDOM: [&str; 4] = ["_acquire", "_hold", "_renew", "_release"];

/// How far a relay's clock is off: about a lease, and far more.
const CLOCKS: [&str; 4] = ["+2s", "-2s", "+3600s", "-3600s"];

/// How many are drawn for a batch; what cannot go together is left out.
const DRAWS: RangeInclusive<usize> = 2..=20;

/// One fault of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    pub kind: Kind,
    /// From the begin of the batch.
    pub offset_ms: u64,
    pub lasts_ms: u64,
    /// The relay it strikes, or whose links; `None`: all of them.
    pub relay: Option<usize>,
    /// A direction, a crash point with its count, a clock, or whose queue; `-` for the rest.
    pub detail: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let relay = self.relay.map_or_else(|| "all".to_owned(), |relay| relay.to_string());
        write!(f, "{} {} {} {relay} {}", self.offset_ms, self.kind.name(), self.lasts_ms, self.detail)
    }
}

impl FromStr for Fault {
    type Err = anyhow::Error;

    fn from_str(line: &str) -> Result<Self> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [offset, kind, lasts, relay, detail] = words[..] else {
            bail!("not a fault (offset kind lasts relay detail): {line}");
        };
        let known = Kind::ALL.iter().find(|known| known.1 == kind).with_context(|| format!("unknown kind {kind}"))?;
        Ok(Self {
            kind: known.0,
            offset_ms: offset.parse()?,
            lasts_ms: lasts.parse()?,
            relay: if relay == "all" { None } else { Some(relay.parse()?) },
            detail: detail.to_owned(),
        })
    }
}

/// Where batches come from.
pub struct Schedule {
    seed: u64,
    mode: Mode,
    relays: usize,
    kinds: Vec<(Kind, u32, u64, u64)>,
    given: Option<Vec<Vec<Fault>>>,
}

impl Schedule {
    pub fn drawn(seed: u64, options: &Options) -> Result<Self> {
        let (mode, relays, only) = (options.mode, usize::from(options.relays), options.only.as_deref());
        let other_version = options.other_version.is_some();
        let wanted = |name: &str| only.is_none_or(|only| only.split(',').any(|part| name.contains(part)));
        let kinds: Vec<_> = Kind::ALL
            .iter()
            .filter(|known| known.0.is_known_to(mode, other_version) && wanted(known.1))
            .map(|known| (known.0, known.2, known.3, known.4))
            .collect();
        ensure!(!kinds.is_empty(), "--only leaves no kind of fault");
        Ok(Self { seed, mode, relays, kinds, given: None })
    }

    /// Lines `batch offset kind lasts relay detail`; others are left out.
    pub fn read(text: &str, mode: Mode, relays: usize) -> Result<Self> {
        let mut given: Vec<(usize, Vec<Fault>)> = Vec::new();
        for line in text.lines() {
            let Some((batch, fault)) = line.trim().split_once(' ') else { continue };
            let Ok(batch) = batch.parse::<usize>() else { continue };
            if fault.starts_with("took") {
                continue;
            }
            let fault: Fault = fault.parse()?;
            ensure!(fault.relay.is_none_or(|relay| relay < relays), "the schedule needs more relays: {line}");
            match given.last_mut() {
                Some((number, faults)) if *number == batch => faults.push(fault),
                _ => given.push((batch, vec![fault])),
            }
        }
        let given = given.into_iter().map(|(_, faults)| faults).collect();
        Ok(Self { seed: 0, mode, relays, kinds: Vec::new(), given: Some(given) })
    }

    /// The batch of that number; `None` past the end of a given schedule.
    pub fn batch(&self, number: usize) -> Option<Vec<Fault>> {
        if let Some(given) = &self.given {
            return given.get(number).cloned();
        }
        // Each batch has a generator of its own, so that it does not depend on those before.
        let mut random = fastrand::Rng::with_seed(self.seed.wrapping_mul(1_000_003).wrapping_add(number as u64));
        let mut batch: Vec<Fault> = Vec::new();
        for _ in 0..random.usize(DRAWS) {
            // A service takes seconds to come back.
            let spread_ms = if batch.iter().any(|fault| fault.kind.is_costly()) { 4_000 } else { 900 };
            let fault = self.draw(&mut random, if batch.is_empty() { 0 } else { spread_ms });
            let freezes = |one: Kind, other: Kind| one == Kind::BrokerFrozen && other.asks_broker();
            let clash = |other: &Fault| {
                other.kind == fault.kind
                    || freezes(other.kind, fault.kind)
                    || freezes(fault.kind, other.kind)
                    || matches!((other.kind, fault.kind), (Kind::ExchangeDeleted, Kind::BindingLost))
                    || matches!((other.kind, fault.kind), (Kind::BindingLost, Kind::ExchangeDeleted))
                    || matches!((other.kind, fault.kind), (Kind::AddressMissing, Kind::AddressDeleted))
                    || matches!((other.kind, fault.kind), (Kind::AddressDeleted, Kind::AddressMissing))
                    || other.kind.is_of_process() && fault.kind.is_of_process() && other.relay == fault.relay
                    || other.kind.is_costly() && !other.kind.goes_with(fault.kind)
                    || fault.kind.is_costly() && !fault.kind.goes_with(other.kind)
            };
            if !batch.iter().any(clash) {
                batch.push(fault);
            }
        }
        batch.extend(self.cause_of_holds(&batch, &mut random));
        Some(batch)
    }

    /// Rows without a place to go, for a relay that is to die when it holds some.
    fn cause_of_holds(&self, batch: &[Fault], random: &mut fastrand::Rng) -> Option<Fault> {
        let kind = if self.mode == Mode::Kafka { Kind::AddressMissing } else { Kind::BindingLost };
        let dying = batch.iter().find(|fault| fault.kind == Kind::CrashPoint && fault.detail.contains("_hold"))?;
        let apart =
            |other: &Fault| other.kind.asks_broker() || !(other.kind.is_of_process() || other.kind.is_of_link());
        let known = self.kinds.iter().any(|known| known.0 == kind) && !batch.iter().any(apart);
        known.then(|| Fault {
            kind,
            offset_ms: dying.offset_ms + random.u64(0..700),
            lasts_ms: dying.lasts_ms,
            relay: None,
            detail: "-".to_owned(),
        })
    }

    fn draw(&self, random: &mut fastrand::Rng, spread_ms: u64) -> Fault {
        let sum: u32 = self.kinds.iter().map(|kind| kind.1).sum();
        let mut ticket = random.u32(0..sum);
        let mut drawn = self.kinds[0];
        for kind in &self.kinds {
            if ticket < kind.1 {
                drawn = *kind;
                break;
            }
            ticket -= kind.1;
        }
        let (kind, _, shortest, longest) = drawn;
        let one = kind.is_of_process() || random.u8(0..3) > 0;
        let detail = match kind {
            Kind::CrashPoint => {
                let point = CRASH_POINTS[random.usize(0..CRASH_POINTS.len())];
                // A row's steps are taken all the time; lanes are taken, kept and given away a few times.
                let doublings = if SELDOM.iter().any(|seldom| point.ends_with(seldom)) { 2 } else { 5 };
                format!("{point}:{}", 1 << random.u32(0..doublings))
            }
            Kind::ClockSkew => random.choice(CLOCKS).unwrap_or("+3600s").to_owned(),
            Kind::QueueSuspended => random.choice(["main", "side"]).unwrap_or("side").to_owned(),
            Kind::DatabaseStall | Kind::BrokerStall | Kind::DatabaseHalfOpen | Kind::BrokerHalfOpen => {
                random.choice(["requests", "replies", "both"]).unwrap_or("both").to_owned()
            }
            _ => "-".to_owned(),
        };
        Fault {
            kind,
            offset_ms: random.u64(0..=spread_ms),
            lasts_ms: random.u64(shortest..=longest),
            relay: one.then(|| random.usize(0..self.relays)),
            detail,
        }
    }

    pub fn mode(&self) -> Mode {
        self.mode
    }
}
