//! Tables of an application whose new rows the relay takes over into the outbox. The configuration calls such a table
//! a source; in here the word is taken by the trait of the database adapter.
//!
//! What is taken is an ordinary row of the outbox from then on, so the lanes know nothing of this.

use std::fmt;

/// One such table, as far as the core must know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Intake {
    /// As the configuration names it.
    pub name: String,
    /// Between two looks that find nothing.
    pub poll_ms: u64,
}

/// Why a row cannot become a message. Closed: metrics have it as a label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Refusal {
    MessageId,
    Topic,
    OrderingKey,
    Payload,
    Headers,
    OtherContent,
}

impl Refusal {
    pub const ALL: [Self; 6] =
        [Self::MessageId, Self::Topic, Self::OrderingKey, Self::Payload, Self::Headers, Self::OtherContent];

    /// As it stands in `outbox.source_row` and in metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::MessageId => "message_id",
            Self::Topic => "topic",
            Self::OrderingKey => "ordering_key",
            Self::Payload => "payload",
            Self::Headers => "headers",
            Self::OtherContent => "other_content",
        }
    }

    /// The refusal of this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|refusal| refusal.as_str() == name)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What came of one try to take rows over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Take {
    /// A look found no row that was not taken.
    Nothing,
    /// Another relay takes rows of this table right now.
    NotOurTurn,
    Took(Taken),
}

/// One batch, committed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// Rows whose message is in the outbox now, or was there with the same content.
    pub rows: usize,
    pub refused: Vec<(Refusal, usize)>,
    /// Lanes that have new rows.
    pub lanes: Vec<i16>,
    /// The batch was full: there may be more.
    pub more: bool,
}
