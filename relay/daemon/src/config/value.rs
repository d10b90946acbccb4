//! Configuration values before they have a meaning, and the human forms of durations and sizes.

use std::collections::BTreeMap;
use std::fmt;

use config::{Value, ValueKind};

/// A value as a file, the environment or a flag gives it. The environment and flags only know text.
#[derive(Clone, Debug, PartialEq)]
pub enum Raw {
    Text(String),
    Integer(i64),
    Float(f64),
    Bool(bool),
    List(Vec<Self>),
    Table(BTreeMap<String, Self>),
}

impl Raw {
    /// The value as one piece of text, where it is one.
    pub fn as_text(&self) -> Option<String> {
        match self {
            Self::Text(text) => Some(text.clone()),
            Self::Integer(number) => Some(number.to_string()),
            Self::Float(number) => Some(number.to_string()),
            Self::Bool(yes) => Some(yes.to_string()),
            Self::List(_) | Self::Table(_) => None,
        }
    }
}

/// As TOML writes it.
impl fmt::Display for Raw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.write_str(&quoted(text)),
            Self::Integer(number) => write!(f, "{number}"),
            Self::Float(number) => write!(f, "{number:?}"),
            Self::Bool(yes) => write!(f, "{yes}"),
            Self::List(items) => {
                let items: Vec<String> = items.iter().map(ToString::to_string).collect();
                write!(f, "[{}]", items.join(", "))
            }
            Self::Table(table) => {
                let items: Vec<String> = table.iter().map(|(key, value)| format!("{key} = {value}")).collect();
                write!(f, "{{ {} }}", items.join(", "))
            }
        }
    }
}

impl From<Value> for Raw {
    fn from(value: Value) -> Self {
        match value.kind {
            ValueKind::Nil => Self::Text(String::new()),
            ValueKind::Boolean(yes) => Self::Bool(yes),
            ValueKind::I64(number) => Self::Integer(number),
            // TOML's integers fit; wider ones come from no source of ours and are told apart by their text.
            ValueKind::I128(number) => Self::Text(number.to_string()),
            ValueKind::U64(number) => Self::Text(number.to_string()),
            ValueKind::U128(number) => Self::Text(number.to_string()),
            ValueKind::Float(number) => Self::Float(number),
            ValueKind::String(text) => Self::Text(text),
            ValueKind::Table(table) => Self::Table(table.into_iter().map(|(key, value)| (key, value.into())).collect()),
            ValueKind::Array(items) => Self::List(items.into_iter().map(Self::from).collect()),
        }
    }
}

/// A TOML basic string.
pub fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for letter in text.chars() {
        match letter {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            control if control.is_control() => out.push_str(&format!("\\u{:04X}", u32::from(control))),
            other => out.push(other),
        }
    }
    out.push('"');
    out
}

/// Seconds of `7d`, `12h`, `30m`, `90s` or `0`.
pub fn duration_s(text: &str) -> Option<u64> {
    if text == "0" {
        return Some(0);
    }
    let (number, unit) = split_unit(text)?;
    let factor = match unit {
        "s" => 1,
        "m" | "min" => 60,
        "h" => 3_600,
        "d" => 86_400,
        "w" => 604_800,
        _ => return None,
    };
    number.checked_mul(factor)
}

/// Bytes of `8MiB`, `512KiB`, `8MB`, or a plain number.
pub fn size_bytes(text: &str) -> Option<u64> {
    if let Ok(number) = text.parse() {
        return Some(number);
    }
    let (number, unit) = split_unit(text)?;
    let factor = match unit {
        "B" => 1,
        "kB" | "KB" => 1_000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        _ => return None,
    };
    number.checked_mul(factor)
}

/// What a percent-encoded value stands for; what is no code stays as it is.
pub fn percent_decoded(value: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = value.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let code = after.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        match code.and_then(|digits| u8::from_str_radix(digits, 16).ok()).filter(|_| *first == b'%') {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn split_unit(text: &str) -> Option<(u64, &str)> {
    let at = text.find(|letter: char| !letter.is_ascii_digit())?;
    let (number, unit) = text.split_at(at);
    Some((number.parse().ok()?, unit.trim_start()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_and_sizes_need_a_known_unit() {
        assert_eq!(duration_s("7d"), Some(604_800));
        assert_eq!(duration_s("90 s"), Some(90));
        assert_eq!(duration_s("0"), Some(0));
        assert_eq!(duration_s("7"), None);
        assert_eq!(duration_s("d"), None);
        assert_eq!(duration_s("99999999999999999999d"), None);
        assert_eq!(size_bytes("8MiB"), Some(8_388_608));
        assert_eq!(size_bytes("8 MB"), Some(8_000_000));
        assert_eq!(size_bytes("4096"), Some(4_096));
        assert_eq!(size_bytes("8mib"), None);
        assert_eq!(size_bytes("18446744073709551615GiB"), None);
    }

    #[test]
    fn text_is_quoted_as_toml_reads_it() {
        assert_eq!(quoted("a\"b\\c\nd\u{1}"), r#""a\"b\\c\nd\u0001""#);
    }
}
