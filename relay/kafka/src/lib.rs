//! The Kafka adapter: rows become records of an idempotent producer, and only a positive delivery report of the
//! very row confirms it.
//!
//! Guarantees: rows of a key are written in the order of the calls; a row is answered exactly once; nothing of
//! an old producer leaves this process once its successor exists; librdkafka never gives up on a record by
//! itself while later ones of its key go on (its own time-out lies far beyond ours).
//! Deliberately absent: retries of a row (the core decides), transactions, creation of topics, and any logging
//! of payloads, headers or property values.
//!
//! Reading order: `publisher` (the trait), `sender` (the one thread that sends), `gate` (when a topic may take a row;
//! `round`, `partition`), `producer` (one producer's life), `delivery` (what its reports mean), `scout` (what is asked
//! of the cluster), `message` (how a row is written), `topics` (names and limits), `config`.

mod config;
mod delivery;
mod flight;
mod gate;
mod handshake;
mod inbox;
mod message;
mod partition;
mod producer;
mod publisher;
mod round;
mod scout;
mod sender;
mod topics;

pub use config::{ConfigError, KafkaConfig, refused_properties};
pub use publisher::KafkaPublisher;

/// To be called once, before anything else of this crate: OpenSSL then has no clean-up at exit. That clean-up waits for
/// nobody, and a client of librdkafka's that is just shaking hands ends the process by a segmentation fault, whatever
/// its exit code was to be.
pub fn prepare_process() {
    openssl_sys::init();
}
