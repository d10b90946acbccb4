//! Every test against real services, in one binary. `make test` starts what it needs.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod broker_tls;
mod brokers;
mod campaign;
mod catalogue;
mod certificates;
mod check;
mod database_tls;
mod demo;
mod deploy;
mod drill;
mod errors;
mod failures_backlog;
mod failures_blame;
mod failures_database;
mod failures_duplicates;
mod failures_hangs;
mod failures_kafka;
mod failures_loss;
mod failures_sizes;
mod fidelity;
mod kafka_tls;
mod kafka_tokens;
mod kill9;
mod kit;
mod late_commits;
mod late_relays;
mod metrics_truth;
mod mutants;
mod operate;
mod order;
mod passwords;
mod phantom;
mod plain_table;
mod recovery;
mod replicas;
mod returns;
mod rights;
mod rolling_update;
mod scene;
mod shared_lanes;
mod silent_queue;
mod spans;
mod stage;
mod structure;
