//! What is wrong with a configuration. All problems are collected, so that one start shows them all.

use std::fmt;

use thiserror::Error;

use super::layers::Origin;

/// One broken rule: the key, where its value came from, and the rule. Values that may be secret are not in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    key: String,
    origin: Option<String>,
    rule: String,
}

impl Problem {
    /// A value that breaks a rule.
    pub fn new(key: &str, origin: &Origin, rule: String) -> Self {
        let origin = (*origin != Origin::Default).then(|| origin.to_string()).filter(|origin| origin != key);
        Self { key: key.to_owned(), origin, rule }
    }

    /// A value that is missing.
    pub fn missing(key: &str, rule: &str) -> Self {
        Self { key: key.to_owned(), origin: None, rule: rule.to_owned() }
    }

    /// A key that nobody knows.
    pub fn unknown(key: &str, nearest: Option<&str>, origin: &Origin) -> Self {
        let rule = match nearest {
            Some(nearest) => format!("unknown key; did you mean {nearest}?"),
            None => "unknown key; `outbox-relay config --default` prints all that exist".to_owned(),
        };
        let origin = matches!(origin, Origin::File(_)).then(|| origin.to_string());
        Self { key: key.to_owned(), origin, rule }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.origin {
            Some(origin) => write!(f, "{} ({origin}): {}", self.key, self.rule),
            None => write!(f, "{}: {}", self.key, self.rule),
        }
    }
}

/// A configuration that cannot be used, with every reason.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("the configuration cannot be used:{}", listed(.0))]
pub struct ConfigurationError(pub Vec<Problem>);

fn listed(problems: &[Problem]) -> String {
    problems.iter().map(|problem| format!("\n  {problem}")).collect()
}
