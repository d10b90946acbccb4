//! A row's headers: a JSON object whose numbers keep their decimal text, so that nothing is rounded on the way.

/// One header value as JSON knows it.
#[derive(Clone, PartialEq)]
pub enum HeaderValue {
    Null,
    Bool(bool),
    /// Decimal text exactly as PostgreSQL's `jsonb` prints it.
    Number(String),
    Text(String),
    List(Vec<HeaderValue>),
    Table(Vec<(String, HeaderValue)>),
}

/// Headers in the order in which `jsonb` keeps them.
#[derive(Clone, Default, PartialEq)]
pub struct Headers(pub Vec<(String, HeaderValue)>);

/// Names that the relay sets itself; a row that brings one of them is parked (`reserved_header`).
pub const RESERVED: [&str; 4] = ["id", "content-type", "ordering-key", "tombstone"];

impl Headers {
    /// The value under a name, if there is one.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&HeaderValue> {
        self.0.iter().find(|(key, _)| key == name).map(|(_, value)| value)
    }

    /// The first name that belongs to the relay.
    #[must_use]
    pub fn reserved(&self) -> Option<&str> {
        self.0.iter().map(|(name, _)| name.as_str()).find(|name| RESERVED.contains(name))
    }

    pub(crate) fn weight_bytes(&self) -> usize {
        self.0.iter().map(|(name, value)| name.len() + value.weight_bytes()).sum()
    }
}

impl HeaderValue {
    fn weight_bytes(&self) -> usize {
        32 + match self {
            Self::Null | Self::Bool(_) => 0,
            Self::Number(text) | Self::Text(text) => text.len(),
            Self::List(items) => items.iter().map(Self::weight_bytes).sum(),
            Self::Table(items) => items.iter().map(|(name, value)| name.len() + value.weight_bytes()).sum(),
        }
    }
}
