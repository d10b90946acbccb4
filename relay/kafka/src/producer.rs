//! One pair of idempotent producers from its making to its end.
//!
//! Two, because a refused batch leaves a gap that librdkafka would close by writing what lies behind it: the order
//! of keys is lost before anybody hears of the refusal. The *swift* producer has `enable.gapless.guarantee` and
//! stops at a gap instead. It would stop for every topic, so whatever is likely to be refused (the first row of a
//! topic, suspects, oversize rows) goes through the *lone* producer, one row of a topic at a time. Rows of one
//! topic are never in flight at both.
//!
//! `destroy` returns only when librdkafka's threads and connections are gone: what the next producer sends can then
//! not be overtaken by something that this one still had in its queues. Bytes that the kernel already took may
//! still reach the broker; they carry the same rows in the same order, so first arrivals stay in order.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use outbox_core::{Millis, Outgoing, Timestamp};
use rdkafka::ClientConfig;
use rdkafka::error::KafkaError;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer, PurgeConfig};
use rdkafka::types::RDKafkaErrorCode;

use crate::config::{ConfigError, Settings};
use crate::delivery::Reports;
use crate::flight::{Flight, InFlight, Load};
use crate::inbox::Inbox;
use crate::{message, partition};

/// How long purged records may take to report back; those that do not are answered without their report.
const PURGE_MS: u64 = 1_000;
/// How often a thread that serves reports looks whether it should end. Each look costs up to a millisecond: near its
/// deadline `BaseProducer::poll` asks again and again with what is left in whole milliseconds, none.
const POLL_MS: u64 = 300;

pub(crate) struct Line {
    swift: Polled,
    lone: Polled,
    flight: Arc<Mutex<Flight>>,
    stopping: Arc<AtomicBool>,
}

/// A producer and the thread that serves its reports.
struct Polled {
    producer: Arc<BaseProducer<Reports>>,
    poller: JoinHandle<()>,
}

impl Polled {
    fn open(config: &ClientConfig, reports: Reports, stopping: &Arc<AtomicBool>) -> Result<Self, ConfigError> {
        let producer: BaseProducer<Reports> = config.create_with_context(reports).map_err(ConfigError::from_kafka)?;
        let producer = Arc::new(producer);
        let (polled, stopping) = (Arc::clone(&producer), Arc::clone(stopping));
        let poller = std::thread::Builder::new()
            .name("kafka-reports".to_owned())
            .spawn(move || {
                while !stopping.load(Ordering::Acquire) {
                    polled.poll(Duration::from_millis(POLL_MS));
                }
            })
            .map_err(|error| ConfigError::Thread { detail: error.to_string() })?;
        Ok(Self { producer, poller })
    }
}

/// A row on its way into librdkafka.
pub(crate) struct Passenger {
    pub outgoing: Outgoing,
    pub topic: usize,
    pub bytes: usize,
    pub alone: bool,
}

impl Line {
    pub fn open(settings: &Settings, generation: u64, inbox: &Arc<Inbox>) -> Result<Self, ConfigError> {
        let flight = Arc::new(Mutex::new(Flight::default()));
        let reports = || Reports { generation, inbox: Arc::clone(inbox), flight: Arc::clone(&flight) };
        let stopping = Arc::new(AtomicBool::new(false));
        let lone = Polled::open(&settings.producer, reports(), &stopping)?;
        let mut gapless = settings.producer.clone();
        gapless.set("enable.gapless.guarantee", "true");
        let swift = Polled::open(&gapless, reports(), &stopping).inspect_err(|_| {
            // The poller of the first must not go on for ever.
            stopping.store(true, Ordering::Release);
        })?;
        Ok(Self { swift, lone, flight, stopping })
    }

    /// Gives a row to librdkafka, or gives it back with the reason.
    pub fn send(&self, passenger: Passenger, now: Millis) -> Result<(), (RDKafkaErrorCode, Outgoing)> {
        let Passenger { outgoing, topic, bytes, alone } = passenger;
        let (row, address) = (Arc::clone(&outgoing.row), Arc::clone(&outgoing.address));
        let slot = self.flight().board(InFlight { outgoing, topic, bytes, since: now, alone });
        let mut record = BaseRecord::with_opaque_to(&address.destination, slot).headers(message::headers(&row));
        if let Some(payload) = &row.payload {
            record = record.payload(&payload[..]);
        }
        if let Some(key) = &row.ordering_key {
            record = record.key(key.as_bytes());
        }
        if let Some(at) = timestamp(row.due_at()) {
            record = record.timestamp(at);
        }
        let through = if alone { &self.lone } else { &self.swift };
        let Err((error, _)) = through.producer.send(record) else {
            return Ok(());
        };
        let code = match error {
            KafkaError::MessageProduction(code) => code,
            _ => RDKafkaErrorCode::InvalidArgument,
        };
        match self.flight().land(slot, None) {
            Some((row, _)) => Err((code, row.outgoing)),
            None => Ok(()),
        }
    }

    /// What the topic has in flight, and whether a row of this key is the first of its partition.
    pub fn load(&self, topic: usize, key: Option<&str>, partitions: usize) -> Load {
        let partition = key.and_then(|key| partition::of_key(key.as_bytes(), partitions));
        let flight = self.flight();
        Load { fresh: partition.is_some_and(|partition| !flight.knows(topic, partition)), ..flight.load(topic) }
    }

    pub fn watch(&self, topic: usize, watched: bool) {
        self.flight().watch(topic, watched);
    }

    pub fn set_full(&self, full: bool) {
        self.flight().full = full;
    }

    pub fn is_empty(&self) -> bool {
        self.flight().is_empty()
    }

    /// Since when the oldest row waits, and its topic.
    pub fn oldest(&self) -> Option<(Millis, String)> {
        self.flight().oldest().map(|row| (row.since, row.outgoing.address.destination.clone()))
    }

    /// Makes librdkafka look again at a topic that it believes to be missing.
    pub fn look_again(&self, topic: &str, timeout_ms: u64) {
        for polled in self.both() {
            // The answer is not needed: what matters is that librdkafka has read it.
            let _ = polled.producer.client().fetch_metadata(Some(topic), Duration::from_millis(timeout_ms));
        }
    }

    /// The fatal error that ended a producer, if one did.
    pub fn fatal(&self) -> Option<(RDKafkaErrorCode, String)> {
        self.both().iter().find_map(|polled| polled.producer.client().fatal_error())
    }

    /// Lets records that linger leave at once.
    pub fn hurry(&self) {
        for polled in self.both() {
            // "Timed out" only says that some are still on their way.
            let _ = polled.producer.flush(Duration::ZERO);
        }
    }

    /// Takes everything out of librdkafka and gives back the rows that had no report.
    pub fn purge(&self) -> Vec<InFlight> {
        self.both().iter().for_each(|polled| polled.producer.purge(PurgeConfig::default().queue().inflight()));
        let until = Instant::now() + Duration::from_millis(PURGE_MS);
        while !self.is_empty() && Instant::now() < until {
            self.both().iter().for_each(|polled| polled.producer.poll(Duration::from_millis(5)));
        }
        self.flight().drain()
    }

    /// Ends librdkafka's threads and connections. May take as long as a look-up of a host's name.
    pub fn destroy(self) {
        self.stopping.store(true, Ordering::Release);
        for Polled { producer, poller } in [self.swift, self.lone] {
            // A poller that panicked has dropped its producer too.
            let _ = poller.join();
            drop(producer);
        }
    }

    const fn both(&self) -> [&Polled; 2] {
        [&self.swift, &self.lone]
    }

    fn flight(&self) -> MutexGuard<'_, Flight> {
        self.flight.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn timestamp(due_at: Timestamp) -> Option<i64> {
    #[expect(clippy::disallowed_methods, reason = "the broker refuses timestamps by its wall clock, not by ours")]
    let now = std::time::SystemTime::now();
    let now_ms = now.duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_millis());
    message::timestamp_ms(due_at, i64::try_from(now_ms).unwrap_or(i64::MAX))
}
