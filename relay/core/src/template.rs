//! Templates of addresses: text with `{topic}`, `{ordering_key}`, `{idempotency_key}` and `{header.NAME}`;
//! `{{` and `}}` are braces.
//!
//! A template that exists can be rendered for any row that has the fields it names. What a row lacks is an error
//! and never an empty string: an address made of half a name would quietly lead somewhere else. An ordering key
//! that is set but empty is there, and renders as nothing.
//! Error texts name fields and never their values, so that no header value reaches a log through them.

use std::fmt;

use thiserror::Error;

use crate::headers::HeaderValue;
use crate::row::Row;

/// Bound on the text of a template.
pub const TEMPLATE_BYTES_MAX: usize = 1_024;

/// Bound on a rendered address part. It lies above what any broker takes (255 bytes for RabbitMQ, 249 for Kafka):
/// the adapters know the exact limit, this one only keeps a row from building a huge string.
pub const RENDERED_BYTES_MAX: usize = 4_096;

const NAMES: [&str; 4] = ["topic", "ordering_key", "idempotency_key", "header.NAME"];

/// A template that was checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    source: String,
    parts: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Literal(String),
    Topic,
    OrderingKey,
    IdempotencyKey,
    Header(String),
}

/// Why a text is no template. Positions count characters from 1.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TemplateError {
    #[error("unknown name '{{{name}}}' at character {position}; did you mean '{{{nearest}}}'?")]
    UnknownName { name: String, position: usize, nearest: &'static str },
    #[error("'{{header.}}' at character {position} lacks the header's name")]
    NoHeaderName { position: usize },
    #[error("'{{}}' at character {position} lacks the column's name")]
    NoColumnName { position: usize },
    #[error("the brace at character {position} is never closed; write '{{{{' for a brace")]
    Unclosed { position: usize },
    #[error("the closing brace at character {position} closes nothing; write '}}}}' for a brace")]
    Stray { position: usize },
    #[error("{bytes} bytes are more than the {TEMPLATE_BYTES_MAX} that a template may have")]
    TooLong { bytes: usize },
}

/// Why a row has no address under a template.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum RenderError {
    /// The row has no such field.
    #[error("the template '{template}' needs {field}, which the row does not have")]
    MissingField { template: String, field: String },
    /// The header is null, a list or an object, and so has no text.
    #[error("the template '{template}' needs {field} as text, a number or a boolean, and it is {found}")]
    NotText { template: String, field: String, found: &'static str },
    #[error("the template '{template}' gives more than {RENDERED_BYTES_MAX} bytes for the row")]
    TooLong { template: String },
}

impl Template {
    /// Checks a text.
    ///
    /// # Errors
    /// Unknown names, braces that do not pair up, a text above `TEMPLATE_BYTES_MAX`.
    pub fn parse(source: &str) -> Result<Self, TemplateError> {
        let mut parts = Vec::new();
        let mut literal = String::new();
        for piece in pieces(source)? {
            match piece {
                Piece::Literal(text) => literal.push_str(text),
                Piece::Name { name, position } => {
                    flush(&mut literal, &mut parts);
                    parts.push(placeholder(name, position)?);
                }
            }
        }
        flush(&mut literal, &mut parts);
        Ok(Self { source: source.to_owned(), parts })
    }

    /// The text as it was written.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The rendered text if it is the same for every row.
    #[must_use]
    pub fn literal(&self) -> Option<&str> {
        match self.parts.as_slice() {
            [] => Some(""),
            [Part::Literal(text)] => Some(text),
            _ => None,
        }
    }

    /// Whether the text depends on a row's headers, whose values must not reach a log.
    #[must_use]
    pub fn uses_headers(&self) -> bool {
        self.parts.iter().any(|part| matches!(part, Part::Header(_)))
    }

    /// The text for one row.
    ///
    /// # Errors
    /// A field that the row lacks, a header that has no text, or a result above `RENDERED_BYTES_MAX`.
    pub fn render(&self, row: &Row) -> Result<String, RenderError> {
        let mut text = String::new();
        for part in &self.parts {
            let piece = self.piece(part, row)?;
            if text.len() + piece.len() > RENDERED_BYTES_MAX {
                return Err(RenderError::TooLong { template: self.source.clone() });
            }
            text.push_str(piece);
        }
        Ok(text)
    }

    fn piece<'a>(&self, part: &'a Part, row: &'a Row) -> Result<&'a str, RenderError> {
        match part {
            Part::Literal(text) => Ok(text),
            Part::Topic => Ok(&row.topic),
            Part::IdempotencyKey => Ok(&row.idempotency_key),
            Part::OrderingKey => row.ordering_key.as_deref().ok_or_else(|| self.missing("an ordering key".to_owned())),
            Part::Header(name) => {
                let value = row.headers.get(name).ok_or_else(|| self.missing(format!("the header '{name}'")))?;
                header_text(value).map_err(|found| RenderError::NotText {
                    template: self.source.clone(),
                    field: format!("the header '{name}'"),
                    found,
                })
            }
        }
    }

    fn missing(&self, field: String) -> RenderError {
        RenderError::MissingField { template: self.source.clone(), field }
    }
}

impl fmt::Display for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.source)
    }
}

/// A piece of a template's text.
pub(crate) enum Piece<'a> {
    Literal(&'a str),
    /// What stands between braces, and the place of the first brace.
    Name {
        name: &'a str,
        position: usize,
    },
}

/// Takes a text apart; what the names mean is the caller's matter.
pub(crate) fn pieces(source: &str) -> Result<Vec<Piece<'_>>, TemplateError> {
    if source.len() > TEMPLATE_BYTES_MAX {
        return Err(TemplateError::TooLong { bytes: source.len() });
    }
    let mut pieces = Vec::new();
    let mut rest = source;
    while let Some(at) = rest.find(['{', '}']) {
        pieces.push(Piece::Literal(&rest[..at]));
        rest = &rest[at..];
        let position = source[..source.len() - rest.len()].chars().count() + 1;
        if let Some(after) = rest.strip_prefix("{{").or_else(|| rest.strip_prefix("}}")) {
            pieces.push(Piece::Literal(&rest[..1]));
            rest = after;
        } else if rest.starts_with('}') {
            return Err(TemplateError::Stray { position });
        } else {
            let end = rest.find('}').ok_or(TemplateError::Unclosed { position })?;
            pieces.push(Piece::Name { name: &rest[1..end], position });
            rest = &rest[end + 1..];
        }
    }
    pieces.push(Piece::Literal(rest));
    Ok(pieces)
}

fn flush(literal: &mut String, parts: &mut Vec<Part>) {
    if !literal.is_empty() {
        parts.push(Part::Literal(std::mem::take(literal)));
    }
}

fn placeholder(name: &str, position: usize) -> Result<Part, TemplateError> {
    match name {
        "topic" => Ok(Part::Topic),
        "ordering_key" => Ok(Part::OrderingKey),
        "idempotency_key" => Ok(Part::IdempotencyKey),
        "header." => Err(TemplateError::NoHeaderName { position }),
        _ => match name.strip_prefix("header.") {
            // A brace inside a name is a forgotten closing brace, not a header.
            Some(header) if !header.contains('{') => Ok(Part::Header(header.to_owned())),
            Some(_) => Err(TemplateError::Unclosed { position }),
            None if name.contains('{') => Err(TemplateError::Unclosed { position }),
            None => Err(TemplateError::UnknownName { name: name.to_owned(), position, nearest: nearest(name) }),
        },
    }
}

fn header_text(value: &HeaderValue) -> Result<&str, &'static str> {
    match value {
        HeaderValue::Text(text) | HeaderValue::Number(text) => Ok(text),
        HeaderValue::Bool(true) => Ok("true"),
        HeaderValue::Bool(false) => Ok("false"),
        HeaderValue::Null => Err("null"),
        HeaderValue::List(_) => Err("a list"),
        HeaderValue::Table(_) => Err("an object"),
    }
}

fn nearest(name: &str) -> &'static str {
    if name.starts_with("header") {
        return "header.NAME";
    }
    let mut best = NAMES[0];
    for candidate in NAMES {
        if distance(name, candidate) < distance(name, best) {
            best = candidate;
        }
    }
    best
}

/// Levenshtein's distance over bytes; both texts are short, a template's length at most.
fn distance(left: &str, right: &str) -> usize {
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (i, a) in left.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in right.bytes().enumerate() {
            let substituted = diagonal + usize::from(a != b);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[right.len()]
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::headers::Headers;
    use crate::row::{RowId, Timestamp, TxId};

    pub(crate) fn row() -> Row {
        Row {
            id: RowId { seq: 1, tx: TxId(1) },
            idempotency_key: "inv-1".to_owned(),
            topic: "billing.paid".into(),
            ordering_key: Some("cust_9".into()),
            payload: None,
            content_type: "application/json".into(),
            headers: Headers(vec![
                ("region".to_owned(), HeaderValue::Text("eu".to_owned())),
                ("version".to_owned(), HeaderValue::Number("3.10".to_owned())),
                ("live".to_owned(), HeaderValue::Bool(false)),
                ("nothing".to_owned(), HeaderValue::Null),
                ("list".to_owned(), HeaderValue::List(Vec::new())),
                ("a.b".to_owned(), HeaderValue::Text("dotted".to_owned())),
            ]),
            created_at: Timestamp(0),
            available_at: None,
            attempts: 0,
            held_since: None,
        }
    }

    fn render(source: &str) -> Result<String, RenderError> {
        Template::parse(source).unwrap().render(&row())
    }

    #[test]
    fn every_name_renders_its_field_as_text() {
        let text = render("{topic}/{ordering_key}/{idempotency_key}/{header.region}").unwrap();
        assert_eq!(text, "billing.paid/cust_9/inv-1/eu");
        assert_eq!(render("v{header.version}-{header.live}-{header.a.b}").unwrap(), "v3.10-false-dotted");
        assert_eq!(render("").unwrap(), "");
    }

    #[test]
    fn doubled_braces_are_braces() {
        assert_eq!(render("{{topic}}").unwrap(), "{topic}");
        assert_eq!(render("{{{topic}}}").unwrap(), "{billing.paid}");
        assert_eq!(Template::parse("a}}b").unwrap().literal(), Some("a}b"));
    }

    #[test]
    fn errors_name_the_position_and_the_nearest_name() {
        let message = |source: &str| Template::parse(source).unwrap_err().to_string();
        assert_eq!(message("é.{topik}"), "unknown name '{topik}' at character 3; did you mean '{topic}'?");
        assert_eq!(message("{key}"), "unknown name '{key}' at character 1; did you mean '{topic}'?");
        assert_eq!(
            message("{orderingkey}"),
            "unknown name '{orderingkey}' at character 1; did you mean '{ordering_key}'?"
        );
        assert_eq!(message("{headers.x}"), "unknown name '{headers.x}' at character 1; did you mean '{header.NAME}'?");
        assert_eq!(message("ab{topic"), "the brace at character 3 is never closed; write '{{' for a brace");
        assert_eq!(message("{topic{ordering_key}"), "the brace at character 1 is never closed; write '{{' for a brace");
        assert_eq!(message("topic}"), "the closing brace at character 6 closes nothing; write '}}' for a brace");
        assert_eq!(message("{header.}"), "'{header.}' at character 1 lacks the header's name");
        assert!(message(&"x".repeat(1_025)).starts_with("1025 bytes"));
    }

    #[test]
    fn a_missing_field_is_an_error_and_never_an_empty_text() {
        let mut row = row();
        row.ordering_key = None;
        let error = Template::parse("k.{ordering_key}").unwrap().render(&row).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the template 'k.{ordering_key}' needs an ordering key, which the row does not have"
        );
        row.ordering_key = Some("".into());
        assert_eq!(Template::parse("k.{ordering_key}").unwrap().render(&row).unwrap(), "k.");
        let error = render("{header.tenant}").unwrap_err();
        assert!(matches!(error, RenderError::MissingField { ref field, .. } if field == "the header 'tenant'"));
        let error = render("{header.list}").unwrap_err().to_string();
        assert!(error.ends_with("needs the header 'list' as text, a number or a boolean, and it is a list"), "{error}");
        assert!(matches!(render("{header.nothing}"), Err(RenderError::NotText { found: "null", .. })));
    }

    #[test]
    fn a_row_cannot_build_a_huge_address() {
        let mut row = row();
        row.topic = "t".repeat(RENDERED_BYTES_MAX).into();
        assert!(Template::parse("{topic}").unwrap().render(&row).is_ok());
        let error = Template::parse("x{topic}").unwrap().render(&row).unwrap_err();
        assert_eq!(error.to_string(), "the template 'x{topic}' gives more than 4096 bytes for the row");
    }

    /// Any text survives when its braces are doubled, and no text at all makes the parser panic.
    #[test]
    fn random_texts_round_trip_or_are_refused() {
        let seed = fastrand::u64(..);
        let mut random = fastrand::Rng::with_seed(seed);
        let alphabet = ['{', '}', 'a', 'é', '.', '*', 't', '\u{1F980}'];
        for _ in 0..20_000 {
            let text: String = (0..random.usize(0..12)).map(|_| alphabet[random.usize(0..alphabet.len())]).collect();
            let _ = Template::parse(&text);
            let escaped = text.replace('{', "{{").replace('}', "}}");
            let template = Template::parse(&escaped).unwrap_or_else(|error| panic!("seed {seed}: {escaped}: {error}"));
            assert_eq!(template.render(&row()).unwrap(), text, "seed {seed}");
            assert_eq!(template.source(), escaped, "seed {seed}");
        }
    }
}
