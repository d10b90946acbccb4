//! Gives merged settings their meaning, one key at a time, and collects what is wrong on the way.
//!
//! Every method returns a usable value even when the setting is wrong: the problem is noted, and `finish` refuses
//! the whole, so that no half-valid value gets out.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::ops::RangeInclusive;

use super::keys::{self, Key};
use super::kind::Kind;
use super::layers::{Merged, Origin, Setting};
use super::problem::{ConfigurationError, Problem};
use super::value::{self, Raw};

/// Merged settings on their way to domain values.
pub struct Reader {
    merged: Merged,
    problems: Vec<Problem>,
}

impl Reader {
    /// Starts with the problems that merging found.
    pub const fn new(merged: Merged, problems: Vec<Problem>) -> Self {
        Self { merged, problems }
    }

    /// The value if nothing was wrong.
    ///
    /// # Errors
    /// Everything that was wrong.
    pub fn finish<T>(self, value: T) -> Result<T, ConfigurationError> {
        if self.problems.is_empty() { Ok(value) } else { Err(ConfigurationError(self.problems)) }
    }

    /// Notes a broken rule of a key.
    pub fn refuse(&mut self, name: &str, rule: impl Display) {
        let origin = self.merged.get(name).map_or(Origin::Default, |setting| setting.origin.clone());
        self.problems.push(Problem::new(name, &origin, rule.to_string()));
    }

    /// Notes a value that the command cannot do without.
    pub fn miss(&mut self, name: &str, rule: &str) {
        self.problems.push(Problem::missing(name, rule));
    }

    /// What was set, if anything; defaults do not count.
    pub fn set(&self, name: &str) -> Option<&Setting> {
        self.merged.get(name)
    }

    /// All settings whose name starts with a prefix, without it.
    pub fn below(&self, prefix: &str) -> Vec<(String, Setting)> {
        let strip =
            |name: &String| name.strip_prefix(prefix).and_then(|rest| rest.strip_prefix('.')).map(str::to_owned);
        self.merged.iter().filter_map(|(name, setting)| Some((strip(name)?, setting.clone()))).collect()
    }

    /// One piece of text, trimmed; `None` where neither a value nor a default is there.
    pub fn text(&mut self, name: &str) -> Option<String> {
        let default = || keys::find(name).map(|key| key.default.trim_matches('"')).filter(|text| !text.is_empty());
        match self.merged.get(name).map(|setting| setting.raw.as_text()) {
            Some(Some(text)) => Some(text.trim().to_owned()),
            Some(None) => {
                self.refuse(name, "must be one value, not a list or a table");
                default().map(str::to_owned)
            }
            None => default().map(str::to_owned),
        }
    }

    /// A whole number within the key's bounds.
    pub fn integer(&mut self, name: &str) -> u64 {
        let range = kind(name).range();
        self.parsed(name, &range, |text| text.parse().ok(), || format!("must be a whole number, {}", bounds(&range)))
    }

    /// A number of bytes within the key's bounds.
    pub fn size_bytes(&mut self, name: &str) -> u64 {
        let range = kind(name).range();
        let rule = || format!("must be a size such as \"8MiB\" or 8388608, {}", bounds(&range));
        self.parsed(name, &range, value::size_bytes, rule)
    }

    fn parsed(
        &mut self,
        name: &str,
        range: &RangeInclusive<u64>,
        parse: impl Fn(&str) -> Option<u64>,
        rule: impl Fn() -> String,
    ) -> u64 {
        let text = self.text(name).unwrap_or_default();
        match parse(&text) {
            Some(number) if range.contains(&number) => number,
            _ => {
                self.refuse(name, format!("{}; it is '{text}'", rule()));
                *range.start()
            }
        }
    }

    /// One of the key's words, which `choices` gives their meaning, all of them.
    pub fn choice<T: Copy>(&mut self, name: &str, choices: &[(&str, T)]) -> T {
        debug_assert!(kind(name).words().iter().eq(choices.iter().map(|(word, _)| word)), "the words of {name}");
        let text = self.text(name).unwrap_or_default();
        if let Some((_, value)) = choices.iter().find(|(word, _)| *word == text) {
            return *value;
        }
        let words: Vec<&str> = choices.iter().map(|(word, _)| *word).collect();
        self.refuse(name, format!("must be {}; it is '{text}'", words.join(" or ")));
        choices[0].1
    }

    /// `true` or `false`.
    pub fn yes(&mut self, name: &str) -> bool {
        self.choice(name, &[("false", false), ("true", true)])
    }

    /// A list of texts; the environment writes it with commas.
    pub fn list(&mut self, name: &str) -> Vec<String> {
        let Some(setting) = self.merged.get(name) else { return Vec::new() };
        let items: Option<Vec<String>> = match &setting.raw {
            Raw::List(items) => items.iter().map(Raw::as_text).collect(),
            Raw::Text(text) => {
                Some(text.split(',').map(|item| item.trim().to_owned()).filter(|item| !item.is_empty()).collect())
            }
            _ => None,
        };
        items.unwrap_or_else(|| {
            self.refuse(name, "must be a list of texts");
            Vec::new()
        })
    }
}

impl Reader {
    /// The tables of a list with their numbers from 1. What is no table, and a key that is none of `known`, is noted.
    pub fn tables(&mut self, list: &str, known: &[Key]) -> Vec<(usize, BTreeMap<String, Raw>)> {
        let items = match self.merged.get(list).map(|setting| setting.raw.clone()) {
            None => Vec::new(),
            Some(Raw::List(items)) => items,
            Some(_) => {
                self.refuse(list, format!("must be a list; write [[{list}]] with two brackets"));
                Vec::new()
            }
        };
        let mut tables = Vec::new();
        for (number, item) in (1..).zip(items) {
            let Raw::Table(table) = item else {
                self.refuse(list, format!("{list} {number} must be a table"));
                continue;
            };
            let names = || known.iter().map(|key| key.name);
            for name in table.keys().filter(|name| names().all(|known| known != name.as_str())) {
                let all = || names().collect::<Vec<_>>().join(", ");
                let nearest = keys::nearest(name, names());
                let hint = nearest.map_or_else(all, |nearest| format!("did you mean {nearest}?"));
                self.refuse(list, format!("{list} {number} has the unknown key '{name}'; {hint}"));
            }
            tables.push((number, table));
        }
        tables
    }
}

/// Names come from the program, never from a configuration.
fn kind(name: &str) -> Kind {
    keys::find(name).map_or_else(|| unreachable!("{name} is not in the table of keys"), |key| key.kind)
}

fn bounds(range: &RangeInclusive<u64>) -> String {
    if *range.end() == u64::MAX {
        format!("at least {}", range.start())
    } else {
        format!("from {} to {}", range.start(), range.end())
    }
}
