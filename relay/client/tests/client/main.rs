//! The client against a real PostgreSQL, and its consumer against a real RabbitMQ.
//!
//! `TEST_DATABASE_URL` and `TEST_AMQP_URL` name them. Without one its tests fail and say so. Both consumers, killed
//! between any two steps, are tested through the example (`schema/examples/tests`).

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod inbox;
mod kit;
mod rabbitmq;
mod testkit;
mod tls;
