//! Routes: which broker, destination and routing key a row's topic leads to. The first route that matches wins.
//!
//! A `Routes` that exists is consistent with the brokers that are configured: no route leads to a broker that is
//! not there, none stands behind a catch-all, and with two brokers a catch-all decides where the rest goes.
//! Whether an exchange or topic *exists* is not known here; that is the sink's business.

use std::fmt;

use thiserror::Error;

use crate::address::{Address, Sink};
use crate::outcome::Outcome;
use crate::reason::Reason;
use crate::row::Row;
use crate::template::{RenderError, Template};

/// The exchange of a route that names none; every RabbitMQ virtual host has it.
pub const DEFAULT_EXCHANGE: &str = "amq.topic";

/// A text in which `*` stands for any run of characters, also none, and all else for itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    source: String,
    prefix_bytes: usize,
}

impl Pattern {
    /// Any text is a pattern.
    #[must_use]
    pub fn new(source: &str) -> Self {
        Self { source: source.to_owned(), prefix_bytes: source.find('*').unwrap_or(source.len()) }
    }

    /// Whether the pattern matches every text.
    #[must_use]
    pub fn is_catch_all(&self) -> bool {
        !self.source.is_empty() && self.source.bytes().all(|byte| byte == b'*')
    }

    /// Whether the whole text matches. Takes the leftmost place for each piece and never goes back, so that the
    /// time is linear in the text.
    #[must_use]
    pub fn matches(&self, text: &str) -> bool {
        let (prefix, wild) = self.source.split_at(self.prefix_bytes);
        let Some(mut rest) = text.strip_prefix(prefix) else { return false };
        let Some((middle, suffix)) = wild.rsplit_once('*') else { return rest.is_empty() };
        for piece in middle.split('*').filter(|piece| !piece.is_empty()) {
            let Some(at) = rest.find(piece) else { return false };
            rest = &rest[at + piece.len()..];
        }
        rest.ends_with(suffix)
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.source)
    }
}

/// An address that rows may go to: `DESTINATION`, or `EXCHANGE/ROUTING_KEY`, each side a pattern. The two sides are
/// matched apart, so that a routing key can never pass for an exchange.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allowed {
    destination: Pattern,
    routing_key: Option<Pattern>,
}

impl Allowed {
    /// Splits at the first slash. An exchange whose name has a slash is written with `*` in its place.
    #[must_use]
    pub fn new(source: &str) -> Self {
        match source.split_once('/') {
            Some((destination, key)) => {
                Self { destination: Pattern::new(destination), routing_key: Some(Pattern::new(key)) }
            }
            None => Self { destination: Pattern::new(source), routing_key: None },
        }
    }

    fn matches(&self, address: &Address) -> bool {
        self.destination.matches(&address.destination)
            && self.routing_key.as_ref().is_none_or(|pattern| pattern.matches(&address.routing_key))
    }
}

/// Where the rows of matching topics go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    pub pattern: Pattern,
    pub sink: Sink,
    /// The exchange or the topic.
    pub destination: Template,
    /// Empty for Kafka.
    pub routing_key: Template,
}

impl Route {
    /// The route of a broker that needs no configuration: exchange `amq.topic` with the row's topic as routing key,
    /// or the topic of that name.
    #[must_use]
    pub fn default_for(pattern: Pattern, sink: Sink) -> Self {
        let (destination, routing_key) = match sink {
            Sink::Rabbitmq => (DEFAULT_EXCHANGE, "{topic}"),
            Sink::Kafka => ("{topic}", ""),
        };
        Self { pattern, sink, destination: known(destination), routing_key: known(routing_key) }
    }
}

/// Why routes cannot be used. Routes are counted from 1.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum RouteError {
    #[error("no broker is configured")]
    NoBroker,
    #[error("with two brokers the last route must match everything; add one with match = \"*\"")]
    NoCatchAll,
    #[error("route {route} (match = \"{pattern}\") leads to {sink}, which is not configured")]
    SinkAway { route: usize, pattern: String, sink: Sink },
    #[error("route {route} (match = \"{pattern}\") can never match: route {catch_all} before it matches everything")]
    Unreachable { route: usize, pattern: String, catch_all: usize },
    #[error("route {route} (match = \"{pattern}\") leads to '{destination}', which the allow-list does not permit")]
    NotAllowed { route: usize, pattern: String, destination: String },
}

/// All routes of a relay, in order, and the addresses they may lead to.
#[derive(Clone, Debug)]
pub struct Routes {
    routes: Vec<Route>,
    allow: Vec<Allowed>,
}

impl Routes {
    /// Checks the routes against each other, the allow-list (empty: everything) and the brokers at hand.
    ///
    /// # Errors
    /// Every rule that is broken, in the order of the routes.
    pub fn new(routes: Vec<Route>, allow: Vec<Allowed>, brokers: &[Sink]) -> Result<Self, Vec<RouteError>> {
        let mut errors = Vec::new();
        if brokers.is_empty() {
            errors.push(RouteError::NoBroker);
        }
        let catch_all = routes.iter().position(|route| route.pattern.is_catch_all());
        for (index, route) in routes.iter().enumerate() {
            let (number, pattern) = (index + 1, route.pattern.to_string());
            if !brokers.is_empty() && !brokers.contains(&route.sink) {
                errors.push(RouteError::SinkAway { route: number, pattern: pattern.clone(), sink: route.sink });
            }
            if let Some(first) = catch_all.filter(|first| *first < index) {
                errors.push(RouteError::Unreachable { route: number, pattern: pattern.clone(), catch_all: first + 1 });
            }
            if let Some(destination) = route.destination.literal()
                && !allow.is_empty()
                && !allow.iter().any(|allowed| allowed.destination.matches(destination))
            {
                errors.push(RouteError::NotAllowed { route: number, pattern, destination: destination.to_owned() });
            }
        }
        if brokers.len() > 1 && catch_all.is_none() {
            errors.push(RouteError::NoCatchAll);
        }
        if errors.is_empty() { Ok(Self { routes, allow }) } else { Err(errors) }
    }

    /// The routes of a relay with one broker and no configuration.
    #[must_use]
    pub fn for_single(sink: Sink) -> Self {
        Self { routes: vec![Route::default_for(Pattern::new("*"), sink)], allow: Vec::new() }
    }

    /// The routes in order.
    #[must_use]
    pub fn as_slice(&self) -> &[Route] {
        &self.routes
    }

    /// Where a row goes.
    ///
    /// # Errors
    /// `Outcome::Impossible`: no route matches, the row lacks what the template needs, or the address is not on the
    /// allow-list. The detail holds no header value.
    pub fn resolve(&self, row: &Row) -> Result<Address, Outcome> {
        let Some(route) = self.routes.iter().find(|route| route.pattern.matches(&row.topic)) else {
            return Err(no_route(format!("no route matches the topic '{}'", row.topic)));
        };
        let address = Address {
            sink: route.sink,
            destination: route.destination.render(row).map_err(unrendered)?,
            routing_key: route.routing_key.render(row).map_err(unrendered)?,
        };
        if self.allow.is_empty() || self.allow.iter().any(|allowed| allowed.matches(&address)) {
            return Ok(address);
        }
        if route.destination.uses_headers() || route.routing_key.uses_headers() {
            let (destination, key) = (&route.destination, &route.routing_key);
            return Err(no_route(format!("an address of '{destination}', '{key}' is not on the allow-list")));
        }
        Err(no_route(format!("{address} is not on the allow-list")))
    }
}

fn no_route(detail: String) -> Outcome {
    Outcome::Impossible { reason: Reason::NoRoute, detail }
}

fn unrendered(error: RenderError) -> Outcome {
    let reason = match error {
        RenderError::MissingField { .. } | RenderError::NotText { .. } => Reason::NoRoute,
        RenderError::TooLong { .. } => Reason::Name,
    };
    Outcome::Impossible { reason, detail: error.to_string() }
}

/// A template of this file, which the tests parse.
fn known(source: &'static str) -> Template {
    Template::parse(source).unwrap_or_else(|error| unreachable!("the built-in template '{source}': {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::template::tests::row;

    fn route(pattern: &str, sink: Sink, destination: &str, routing_key: &str) -> Route {
        let parse = |source| Template::parse(source).unwrap();
        Route { pattern: Pattern::new(pattern), sink, destination: parse(destination), routing_key: parse(routing_key) }
    }

    fn detail(outcome: Result<Address, Outcome>, expected: Reason) -> String {
        match outcome {
            Err(Outcome::Impossible { reason, detail }) if reason == expected => detail,
            other => panic!("expected {expected}: {other:?}"),
        }
    }

    #[test]
    fn a_star_is_any_run_and_the_rest_is_literal() {
        for (pattern, text, expected) in [
            ("*", "", true),
            ("", "", true),
            ("", "a", false),
            ("a*a", "a", false),
            ("a*a", "aa", true),
            ("github.*", "github.push", true),
            ("github.*", "githubXpush", false),
            ("*.push", "github.push", true),
            ("*ab*ab", "ab", false),
            ("*ab*ab", "xabab", true),
            ("a?[b]", "a?[b]", true),
            ("**é*", "caféx", true),
        ] {
            assert_eq!(Pattern::new(pattern).matches(text), expected, "'{pattern}' on '{text}'");
        }
        assert!(Pattern::new("**").is_catch_all());
        assert!(!Pattern::new("").is_catch_all());
    }

    /// The obvious definition, exponential and right.
    fn matches_slowly(pattern: &[u8], text: &[u8]) -> bool {
        match pattern.split_first() {
            None => text.is_empty(),
            Some((b'*', rest)) => (0..=text.len()).any(|skip| matches_slowly(rest, &text[skip..])),
            Some((byte, rest)) => {
                text.split_first().is_some_and(|(head, tail)| head == byte && matches_slowly(rest, tail))
            }
        }
    }

    #[test]
    fn random_patterns_match_as_defined() {
        let seed = fastrand::u64(..);
        let mut random = fastrand::Rng::with_seed(seed);
        for _ in 0..50_000 {
            let pattern: String = (0..random.usize(0..8)).map(|_| ['a', 'b', '*'][random.usize(0..3)]).collect();
            let text: String = (0..random.usize(0..10)).map(|_| ['a', 'b'][random.usize(0..2)]).collect();
            let expected = matches_slowly(pattern.as_bytes(), text.as_bytes());
            assert_eq!(Pattern::new(&pattern).matches(&text), expected, "seed {seed}: '{pattern}' on '{text}'");
        }
    }

    #[test]
    fn the_first_route_that_matches_wins() {
        let routes = Routes::new(
            vec![
                route("billing.*", Sink::Kafka, "{topic}", ""),
                route("*", Sink::Rabbitmq, "events", "{topic}.{ordering_key}"),
            ],
            Vec::new(),
            &[Sink::Rabbitmq, Sink::Kafka],
        )
        .unwrap();
        let mut row = row();
        assert_eq!(routes.resolve(&row).unwrap().to_string(), "topic 'billing.paid'");
        row.topic = "user".into();
        assert_eq!(routes.resolve(&row).unwrap().to_string(), "exchange 'events', routing key 'user.cust_9'");
        row.ordering_key = None;
        let text = detail(routes.resolve(&row), Reason::NoRoute);
        assert_eq!(text, "the template '{topic}.{ordering_key}' needs an ordering key, which the row does not have");
    }

    #[test]
    fn one_broker_needs_no_routes() {
        let address = Routes::for_single(Sink::Rabbitmq).resolve(&row()).unwrap();
        assert_eq!(address.to_string(), "exchange 'amq.topic', routing key 'billing.paid'");
        let address = Routes::for_single(Sink::Kafka).resolve(&row()).unwrap();
        assert_eq!((address.destination.as_str(), address.routing_key.as_str()), ("billing.paid", ""));
    }

    #[test]
    fn a_row_without_route_is_impossible() {
        let routes = Routes::new(vec![route("user.*", Sink::Kafka, "u", "")], Vec::new(), &[Sink::Kafka]).unwrap();
        let text = detail(routes.resolve(&row()), Reason::NoRoute);
        assert_eq!(text, "no route matches the topic 'billing.paid'");
    }

    #[test]
    fn the_allow_list_bounds_what_a_row_can_choose_and_hides_header_values() {
        let build = |destination, key, allow: &[&str]| {
            let allow = allow.iter().map(|source| Allowed::new(source)).collect();
            Routes::new(vec![route("*", Sink::Rabbitmq, destination, key)], allow, &[Sink::Rabbitmq]).unwrap()
        };
        assert!(build("{header.region}", "k", &["us", "e*"]).resolve(&row()).is_ok());
        assert!(build("{header.region}", "k", &["eu/k"]).resolve(&row()).is_ok());
        let text = detail(build("{header.region}", "k", &["us", "*/x"]).resolve(&row()), Reason::NoRoute);
        assert_eq!(text, "an address of '{header.region}', 'k' is not on the allow-list");
        let text = detail(build("{topic}", "us", &["us"]).resolve(&row()), Reason::NoRoute);
        assert_eq!(text, "exchange 'billing.paid', routing key 'us' is not on the allow-list");
        // A routing key never passes for a destination, whatever it holds.
        assert!(build("{topic}", "us", &["*us"]).resolve(&row()).is_err());
    }

    #[test]
    fn an_endless_address_parks_by_name() {
        let mut row = row();
        row.topic = "t".repeat(5_000).into();
        let text = detail(Routes::for_single(Sink::Kafka).resolve(&row), Reason::Name);
        assert_eq!(text, "the template '{topic}' gives more than 4096 bytes for the row");
    }

    #[test]
    fn inconsistent_routes_are_refused_all_at_once() {
        let routes = vec![route("*", Sink::Kafka, "other", ""), route("late", Sink::Rabbitmq, "events", "{topic}")];
        let errors = Routes::new(routes, vec![Allowed::new("events")], &[Sink::Kafka]).unwrap_err();
        let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
        assert_eq!(
            texts,
            [
                "route 1 (match = \"*\") leads to 'other', which the allow-list does not permit",
                "route 2 (match = \"late\") leads to rabbitmq, which is not configured",
                "route 2 (match = \"late\") can never match: route 1 before it matches everything",
            ]
        );
        let both = [Sink::Rabbitmq, Sink::Kafka];
        let errors = Routes::new(vec![route("a", Sink::Kafka, "t", "")], Vec::new(), &both).unwrap_err();
        assert_eq!(errors, [RouteError::NoCatchAll]);
        assert_eq!(Routes::new(Vec::new(), Vec::new(), &[]).unwrap_err(), [RouteError::NoBroker]);
    }
}
