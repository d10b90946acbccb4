//! Input without mercy: templates, patterns and routes get any text, and rows that no application should write.

use outbox_core::{
    Allowed, HeaderValue, Headers, Outcome, Pattern, Reason, Route, Routes, Row, RowId, Sink, Template, Timestamp, TxId,
};
use proptest::prelude::*;

/// No address is longer, whatever a row brings.
const RENDERED_BYTES_MAX: usize = 4_096;

/// A header as the generator sees it: values of rows cannot be printed, so that none is logged by mistake.
#[derive(Clone, Debug)]
enum Header {
    Null,
    Bool(bool),
    Number(i64),
    Text(String),
    List,
}

impl From<Header> for HeaderValue {
    fn from(header: Header) -> Self {
        match header {
            Header::Null => Self::Null,
            Header::Bool(truth) => Self::Bool(truth),
            Header::Number(number) => Self::Number(number.to_string()),
            Header::Text(text) => Self::Text(text),
            Header::List => Self::List(vec![Self::Null]),
        }
    }
}

fn header() -> impl Strategy<Value = Header> {
    prop_oneof![
        Just(Header::Null),
        any::<bool>().prop_map(Header::Bool),
        any::<i64>().prop_map(Header::Number),
        "\\PC{0,3000}".prop_map(Header::Text),
        Just(Header::List),
    ]
}

prop_compose! {
    fn row()(
        idempotency_key in any::<String>(),
        topic in "[a-c.*]{0,8}|\\PC{0,300}",
        ordering_key in prop::option::of(any::<String>()),
        headers in prop::collection::vec(("[ab]|\\PC{0,9}", header()), 0..4),
        content_type in any::<String>(),
        created_at in any::<i64>(),
        available_at in prop::option::of(any::<i64>()),
    ) -> Row {
        Row {
            id: RowId { seq: 1, tx: TxId(1) },
            idempotency_key,
            topic: topic.into(),
            ordering_key: ordering_key.map(Into::into),
            payload: None,
            content_type: content_type.into(),
            headers: Headers(headers.into_iter().map(|(name, value)| (name, value.into())).collect()),
            created_at: Timestamp(created_at),
            available_at: available_at.map(Timestamp),
            attempts: 0,
            held_since: None,
        }
    }
}

/// Texts that look like templates, and any others.
fn source() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        Just("{topic}".to_owned()),
        Just("{ordering_key}".to_owned()),
        Just("{idempotency_key}".to_owned()),
        Just("{header.a}".to_owned()),
        Just("{{".to_owned()),
        Just("}}".to_owned()),
        Just("{".to_owned()),
        Just("}".to_owned()),
        "\\PC{0,6}",
    ];
    prop::collection::vec(piece, 0..8).prop_map(|pieces| pieces.concat())
}

/// `*` by going through all ways to match it.
fn matches_slowly(pattern: &[char], text: &[char]) -> bool {
    match pattern {
        [] => text.is_empty(),
        ['*', rest @ ..] => (0..=text.len()).any(|from| matches_slowly(rest, &text[from..])),
        [letter, rest @ ..] => text.first() == Some(letter) && matches_slowly(rest, &text[1..]),
    }
}

proptest! {
    #[test]
    fn any_text_is_a_template_or_an_error_and_rendering_has_a_bound(source in source(), row in row()) {
        if let Ok(template) = Template::parse(&source) {
            prop_assert_eq!(template.source(), source);
            if let Ok(text) = template.render(&row) {
                prop_assert!(text.len() <= RENDERED_BYTES_MAX);
            }
        }
    }

    #[test]
    fn an_escaped_text_renders_as_itself(text in "\\PC{0,60}|[{}a]{0,20}", row in row()) {
        let escaped = text.replace('{', "{{").replace('}', "}}");
        let template = Template::parse(&escaped).unwrap();
        prop_assert_eq!(template.literal(), Some(text.as_str()));
        prop_assert_eq!(template.render(&row).unwrap(), text);
    }

    #[test]
    fn the_quick_match_agrees_with_the_slow_one(pattern in "[ab*]{0,7}", text in "[ab*]{0,9}") {
        let letters = |text: &str| text.chars().collect::<Vec<_>>();
        prop_assert_eq!(Pattern::new(&pattern).matches(&text), matches_slowly(&letters(&pattern), &letters(&text)));
    }

    #[test]
    fn any_row_has_an_address_that_is_allowed_or_is_parked(
        row in row(),
        destination in source(),
        routing_key in source(),
        pattern in "[a-c.*]{0,4}",
        allowed in prop::option::of("[a-c*]{1,3}(/[a-c*]{1,3})?"),
    ) {
        let (Ok(destination), Ok(routing_key)) = (Template::parse(&destination), Template::parse(&routing_key)) else {
            return Ok(());
        };
        let route = Route { pattern: Pattern::new(&pattern), sink: Sink::Rabbitmq, destination, routing_key };
        let allow: Vec<Allowed> = allowed.iter().map(|source| Allowed::new(source)).collect();
        let Ok(routes) = Routes::new(vec![route], allow, &[Sink::Rabbitmq]) else { return Ok(()) };
        match routes.resolve(&row) {
            Ok(address) => {
                let permitted = allowed.is_none_or(|source| {
                    let (destination, key) = source.split_once('/').unwrap_or((&source, "*"));
                    Pattern::new(destination).matches(&address.destination)
                        && Pattern::new(key).matches(&address.routing_key)
                });
                prop_assert!(permitted && Pattern::new(&pattern).matches(&row.topic));
            }
            Err(Outcome::Impossible { reason, .. }) => {
                prop_assert!(matches!(reason, Reason::NoRoute | Reason::Name));
            }
            Err(other) => prop_assert!(false, "{:?}", other),
        }
    }
}
