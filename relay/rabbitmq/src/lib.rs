//! The RabbitMQ adapter: publishes rows over AMQP 0-9-1 and says for each what became of it.
//!
//! It guarantees that `Confirmed` is the broker's ack of that very message, which was not returned; that rows of
//! one key leave in the order in which they were handed over, on one channel; that a connection is dead before any
//! of its unanswered rows is reported as unknown; and that every wait has a bound. A row is refused before it is
//! sent where the broker would close a channel or the connection over it.
//!
//! It deliberately does not retry, count attempts, declare exchanges or queues, or know the database. It owns its
//! connection and does not use lapin's recovery.
//!
//! Logging: lapin writes returned messages with their body at `WARN` and the URL with its password at `TRACE`.
//! Whoever installs a subscriber must cap the targets `lapin`, `amq_protocol` and `async_rs` at `ERROR`.

mod config;
mod confirm;
mod connection;
mod culprit;
mod message;
mod probe;
mod publisher;
mod session;
mod socket;
mod suspects;
mod table;
mod url;
mod window;
mod writer;

pub use config::{ConfigError, MESSAGE_BYTES_MAX_DEFAULT, RabbitmqConfig, RabbitmqOptions};
pub use publisher::RabbitmqPublisher;
