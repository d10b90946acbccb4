//! Writing data for people and for programs.

use std::fmt::Write as _;
use std::io::{self, Write};

use serde::Serialize;

/// A text that cannot move a terminal's cursor or colour it: keys and topics come from applications.
pub fn printable(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        if letter.is_control() {
            let _ = write!(out, "{}", letter.escape_default());
        } else {
            out.push(letter);
        }
    }
    out
}

/// Rows under a header, columns padded to their widest cell.
pub fn table(out: &mut impl Write, header: &[&str], rows: &[Vec<String>]) -> io::Result<()> {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
        cells.chain([header[column].len()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..header.len()).map(width).collect();
    let header: Vec<String> = header.iter().map(|name| (*name).to_owned()).collect();
    for row in std::iter::once(&header).chain(rows) {
        let cells: Vec<String> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        writeln!(out, "{}", cells.join("  ").trim_end())?;
    }
    Ok(())
}

/// One JSON document and a line end.
pub fn json(out: &mut impl Write, value: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut *out, value)?;
    writeln!(out)
}

/// Seconds as people say them.
pub fn seconds(seconds: f64) -> String {
    if seconds < 0.0 {
        return "0 s".to_owned();
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "ages are small and not negative")]
    let whole = seconds as u64;
    match whole {
        0..60 => format!("{seconds:.1} s"),
        60..3_600 => format!("{} min {} s", whole / 60, whole % 60),
        3_600..86_400 => format!("{} h {} min", whole / 3_600, whole % 3_600 / 60),
        _ => format!("{} d {} h", whole / 86_400, whole % 86_400 / 3_600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_control_characters_do_not_reach_a_terminal() {
        let mut out = Vec::new();
        table(
            &mut out,
            &["seq", "topic"],
            &[vec!["1".to_owned(), printable("a\u{1b}[31m")], vec!["1000".to_owned(), "é".to_owned()]],
        )
        .unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "seq   topic\n1     a\\u{1b}[31m\n1000  é\n");
        assert_eq!(
            (seconds(0.25), seconds(75.0), seconds(90_061.0)),
            ("0.2 s".to_owned(), "1 min 15 s".to_owned(), "1 d 1 h".to_owned())
        );
    }
}
