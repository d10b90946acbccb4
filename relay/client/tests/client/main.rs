//! The client against a real PostgreSQL, and its consumers against a real RabbitMQ and a real Kafka.
//!
//! `TEST_DATABASE_URL`, `TEST_AMQP_URL` and `TEST_KAFKA_BROKERS` name them. Without one of the first two its tests fail
//! and say so; tests/README.md says when a missing Kafka is skipped. Both consumers, killed between any two steps, are
//! tested through the example (`schema/examples/tests`).

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod inbox;
mod kafka;
mod kit;
mod rabbitmq;
mod testkit;
mod tls;
