//! What the value of a key may be. The reader judges by it and the JSON schema is made of it, so that they cannot
//! drift apart.

use std::ops::RangeInclusive;

/// One kind of value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Text,
    /// A whole number from the first to the second.
    Whole(u64, u64),
    /// Bytes, as a number or with a unit.
    Size(u64, u64),
    /// A number with a unit, 0, or off.
    Duration,
    /// One of these words.
    Choice(&'static [&'static str]),
    Flag,
    /// A list of texts.
    Texts,
}

impl Kind {
    /// What a number of this kind may be; every number where it is none.
    pub const fn range(self) -> RangeInclusive<u64> {
        match self {
            Self::Whole(least, most) | Self::Size(least, most) => least..=most,
            Self::Text | Self::Duration | Self::Choice(_) | Self::Flag | Self::Texts => 0..=u64::MAX,
        }
    }

    /// The words of a choice; none where it is none.
    pub const fn words(self) -> &'static [&'static str] {
        match self {
            Self::Choice(words) => words,
            Self::Flag => &["false", "true"],
            Self::Text | Self::Whole(..) | Self::Size(..) | Self::Duration | Self::Texts => &[],
        }
    }
}
