//! Every test against real services, in one binary. `make test` starts what it needs.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod kit;
mod operate;
