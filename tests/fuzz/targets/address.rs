//! Any texts as patterns, templates and allow-list, and any row: an address that is allowed and bounded, or a reason.

#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use outbox_core::{Allowed, Outcome, Pattern, Reason, Route, Routes, Sink, Template};
use rows::AnyRow;

/// No address is longer, whatever a row brings.
const RENDERED_BYTES_MAX: usize = 4_096;

#[derive(Arbitrary, Debug)]
struct Input {
    pattern: String,
    destination: String,
    routing_key: String,
    allow: Vec<String>,
    row: AnyRow,
}

fuzz_target!(|input: Input| {
    let row = input.row.row();
    let (Ok(destination), Ok(routing_key)) = (Template::parse(&input.destination), Template::parse(&input.routing_key))
    else {
        return;
    };
    assert_eq!(destination.source(), input.destination);
    let pattern = Pattern::new(&input.pattern);
    let route = Route { pattern: pattern.clone(), sink: Sink::Rabbitmq, destination, routing_key };
    let allow = input.allow.iter().map(|source| Allowed::new(source)).collect();
    let Ok(routes) = Routes::new(vec![route], allow, &[Sink::Rabbitmq]) else { return };
    match routes.resolve(&row) {
        Ok(address) => {
            assert!(pattern.matches(&row.topic));
            assert!(address.destination.len() <= RENDERED_BYTES_MAX && address.routing_key.len() <= RENDERED_BYTES_MAX);
        }
        Err(Outcome::Impossible { reason: Reason::NoRoute | Reason::Name, .. }) => {}
        Err(other) => panic!("{other:?}"),
    }
});
