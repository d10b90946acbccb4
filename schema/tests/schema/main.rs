//! The schema against a real PostgreSQL: one test binary, a database of its own for each test.
//!
//! `TEST_DATABASE_URL` names a server and a superuser on it. Without it every test fails and says so.

// In a test a failed call is a failed test, in its helpers too.
#![allow(clippy::unwrap_used)]

mod documentation;
mod enqueue;
mod enqueue_races;
mod inbox;
mod inbox_races;
mod inbox_steps;
mod kit;
mod message;
mod migrate;
mod operator;
mod roles;
