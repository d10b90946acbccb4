//! The outbox in PostgreSQL: one statement per file in `sql/`, and the session that runs them.
//!
//! It knows no broker. Every statement is sent unnamed (parameters typed here), so that it works behind a
//! transaction pooler and survives an `ALTER TABLE` in mid-flight.

mod config;
mod connection;
mod dialer;
mod errors;
mod session;
mod tls;
mod types;
mod wrong;

mod claim;
mod drain;
mod fence;
mod held;
mod intake;
mod lanes;
mod mark;
mod retention;

pub use config::{DurabilityFence, PostgresConfig};
pub use intake::{
    Body, IntakeFault, IntakeFaultKind, IntakeTable, Mark, Name, add_missing_mark, inspect as inspect_intake,
    retry_refused,
};
pub use session::{PostgresSession, PostgresSource, SESSION_CONNECTIONS};
pub use tls::{Database, Identity, Tls, TlsProblem, Trust, tls_problem};
