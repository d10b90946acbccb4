//! The `[[route]]` tables and the allow-list, as the core's routes.

use std::collections::BTreeMap;

use outbox_core::{Allowed, DEFAULT_EXCHANGE, Pattern, Route, Routes, Sink, Template};

use super::keys;
use super::reader::Reader;
use super::value::Raw;

/// Routes whose own form is right; whether they suit the brokers is asked apart, since commands that only need the
/// database read no broker's settings.
pub struct RouteTables {
    routes: Vec<Route>,
    allow: Vec<Allowed>,
}

impl RouteTables {
    pub(super) fn read(reader: &mut Reader) -> Self {
        let exchange = template(reader, "rabbitmq.exchange", None).unwrap_or_else(|| literal(DEFAULT_EXCHANGE));
        let tables = reader.tables("route", &keys::ROUTE);
        let routes = tables.iter().filter_map(|(number, table)| one(reader, *number, table, &exchange)).collect();
        let allow = reader.list("allow").iter().map(|source| Allowed::new(source)).collect();
        Self { routes, allow }
    }

    /// The routes of a relay with these brokers. Without any `[[route]]` and with one broker all rows go there.
    pub(super) fn for_brokers(self, reader: &mut Reader, brokers: &[Sink]) -> Option<Routes> {
        let mut routes = self.routes;
        if routes.is_empty() && reader.set("route").is_none() && brokers.len() == 1 {
            let mut route = Route::default_for(Pattern::new("*"), brokers[0]);
            if route.sink == Sink::Rabbitmq
                && let Some(exchange) = template(reader, "rabbitmq.exchange", None)
            {
                route.destination = exchange;
            }
            routes.push(route);
        }
        match Routes::new(routes, self.allow, brokers) {
            Ok(routes) => return Some(routes),
            Err(errors) => errors.iter().for_each(|error| reader.refuse("route", error)),
        }
        None
    }
}

fn one(reader: &mut Reader, number: usize, table: &BTreeMap<String, Raw>, exchange: &Template) -> Option<Route> {
    let text = |name: &str| table.get(name).and_then(Raw::as_text);
    let Some(pattern) = text("match").filter(|pattern| !pattern.is_empty()) else {
        reader.refuse("route", format!("route {number} lacks match, such as match = \"*\""));
        return None;
    };
    let sink = match text("sink").as_deref() {
        Some("rabbitmq") => Sink::Rabbitmq,
        Some("kafka") => Sink::Kafka,
        _ => {
            reader.refuse("route", format!("route {number} needs sink = \"rabbitmq\" or sink = \"kafka\""));
            return None;
        }
    };
    let (destination, foreign): (_, &[&str]) = match sink {
        Sink::Rabbitmq => ("exchange", &["topic"]),
        Sink::Kafka => ("topic", &["exchange", "routing_key"]),
    };
    for name in foreign.iter().filter(|name| table.contains_key(**name)) {
        reader.refuse("route", format!("route {number} goes to {sink}, which has no '{name}'; it has '{destination}'"));
    }
    let mut part = |name: &str, default: Template| match table.get(name).map(Raw::as_text) {
        None => Some(default),
        Some(None) => {
            reader.refuse("route", format!("route {number}: {name} must be a text"));
            None
        }
        Some(Some(source)) => template(reader, "route", Some((number, name, source))),
    };
    let defaults = Route::default_for(Pattern::new(&pattern), sink);
    let (destination, routing_key) = match sink {
        Sink::Rabbitmq => (part("exchange", exchange.clone()), part("routing_key", defaults.routing_key)),
        Sink::Kafka => (part("topic", defaults.destination), Some(defaults.routing_key)),
    };
    Some(Route { pattern: Pattern::new(&pattern), sink, destination: destination?, routing_key: routing_key? })
}

/// A template from a key of its own, or from a part of a route.
fn template(reader: &mut Reader, key: &str, part: Option<(usize, &str, String)>) -> Option<Template> {
    let (place, source) = match part {
        Some((number, name, source)) => (format!("route {number}: {name} = \"{source}\": "), source),
        None => (String::new(), reader.text(key)?),
    };
    match Template::parse(&source) {
        Ok(template) => return Some(template),
        Err(error) => reader.refuse(key, format!("{place}{error}")),
    }
    None
}

fn literal(text: &str) -> Template {
    Template::parse(text).unwrap_or_else(|error| unreachable!("the built-in template '{text}': {error}"))
}
