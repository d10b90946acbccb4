//! The test kit: real services, the real binary, scripted faults, and a checker that shares no
//! code with the relay.
//!
//! Guarantees: every test has a database, queues and topics of its own, so tests run side by
//! side; every wait has a deadline and says what it waited for; nothing that a test started
//! outlives it. It deliberately does not retry a failed test and does not skip silently.

pub mod services;
pub mod wait;

pub mod database;
pub mod kafka;
pub mod rabbit;
mod rabbit_reader;
pub mod vhost;

pub mod journal;
pub mod ledger;
pub mod tally;
pub mod verdict;
pub mod writer;

pub mod ack_merger;
pub mod kafka_proxy;
pub mod proxy;

pub mod certificates;
pub mod files;
pub mod http_server;
pub mod metrics;
pub mod otlp;
pub mod own_kafka;
pub mod own_services;
pub mod relay;
pub mod tls_postgres;
pub mod tls_rabbit;
pub mod token_endpoint;

pub mod cleanup;
mod output;
