//! The adapter against a real broker (`TEST_KAFKA_BROKERS`) and, where a broker's faults have to be made to
//! measure, against librdkafka's mock cluster.
//!
//! Without the variable each test says so and passes, except in CI, where that is a failure.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where it stood")]

mod kit;

mod content;
mod faults;
mod limits;
mod placement;
mod stop;
mod topics;
