//! `PostgresSession` against a real PostgreSQL, with the rights of the role `outbox_relay` only. Needs
//! `TEST_DATABASE_URL`: a server and a superuser on it; each test has a database of its own.

mod aborts;
mod claim;
mod gates;
mod hold;
mod intake;
mod intake_side;
mod kit;
mod lanes;
mod mark;
mod plans;
mod poll;
mod retention;
mod rights;
mod short;
