//! Templates over the columns of an application's table: text with `{column}`; `{{` and `}}` are braces.
//!
//! The syntax is that of [`Template`](crate::Template), and any name may stand between braces. Whether the table has
//! such a column is for the database to say.

use std::fmt;

use crate::template::{Piece, TemplateError, pieces};

/// A template that was checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ColumnTemplate {
    source: String,
    parts: Vec<ColumnPart>,
}

/// A part of a template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ColumnPart {
    Literal(String),
    Column(String),
}

impl ColumnTemplate {
    /// Checks a text.
    ///
    /// # Errors
    /// Braces that do not pair up or have nothing between them, a text above `TEMPLATE_BYTES_MAX`.
    pub fn parse(source: &str) -> Result<Self, TemplateError> {
        let mut parts = Vec::new();
        for piece in pieces(source)? {
            match (piece, parts.last_mut()) {
                (Piece::Literal(""), _) => {}
                (Piece::Literal(text), Some(ColumnPart::Literal(before))) => before.push_str(text),
                (Piece::Literal(text), _) => parts.push(ColumnPart::Literal(text.to_owned())),
                (Piece::Name { name: "", position }, _) => return Err(TemplateError::NoColumnName { position }),
                // A brace inside a name is a forgotten closing brace.
                (Piece::Name { name, position }, _) if name.contains('{') => {
                    return Err(TemplateError::Unclosed { position });
                }
                (Piece::Name { name, .. }, _) => parts.push(ColumnPart::Column(name.to_owned())),
            }
        }
        Ok(Self { source: source.to_owned(), parts })
    }

    /// The parts in their order; no two literals stand side by side.
    #[must_use]
    pub fn parts(&self) -> &[ColumnPart] {
        &self.parts
    }

    /// The columns it names, in their order.
    pub fn columns(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().filter_map(|part| match part {
            ColumnPart::Literal(_) => None,
            ColumnPart::Column(name) => Some(name.as_str()),
        })
    }

    /// Whether it is one column and nothing else.
    #[must_use]
    pub fn is_one_column(&self) -> bool {
        matches!(self.parts.as_slice(), [ColumnPart::Column(_)])
    }
}

impl fmt::Display for ColumnTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.source)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_of_any_name_stand_between_braces() {
        let template = ColumnTemplate::parse("{{x}}{kind}:{Order \"No\"}").unwrap();
        let column = |name: &str| ColumnPart::Column(name.to_owned());
        let literal = |text: &str| ColumnPart::Literal(text.to_owned());
        assert_eq!(template.parts(), [literal("{x}"), column("kind"), literal(":"), column("Order \"No\"")]);
        assert_eq!(template.columns().collect::<Vec<_>>(), ["kind", "Order \"No\""]);
        assert!(!template.is_one_column());
        assert!(ColumnTemplate::parse("{ref}").unwrap().is_one_column());
        assert!(ColumnTemplate::parse("invoice.email").unwrap().columns().next().is_none());
    }

    #[test]
    fn what_is_no_template_is_refused_with_its_place() {
        for (text, error) in [
            ("a{}", TemplateError::NoColumnName { position: 2 }),
            ("{kind", TemplateError::Unclosed { position: 1 }),
            ("{a{b}", TemplateError::Unclosed { position: 1 }),
            ("kind}", TemplateError::Stray { position: 5 }),
        ] {
            assert_eq!(ColumnTemplate::parse(text), Err(error), "{text}");
        }
    }
}
