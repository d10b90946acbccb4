//! Tests of the kit itself: what it observes and what it breaks must be so.

mod brokers;
mod databases;
mod own_services;
mod processes;
mod proxies;
