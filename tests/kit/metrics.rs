//! Asking the relay's admin endpoint, over plain HTTP/1.1 by hand: an HTTP client of the
//! product's kind could share its mistakes.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::wait;

const DEADLINE: Duration = Duration::from_secs(5);

/// An answer: the status code and the body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    pub status: u16,
    pub body: String,
}

/// `GET path`.
///
/// # Errors
/// When nobody answers within five seconds or the answer is no HTTP.
pub async fn get(address: SocketAddr, path: &str) -> Result<Response> {
    let exchange = async {
        let mut stream = TcpStream::connect(address).await?;
        let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await?;
        anyhow::Ok(answer)
    };
    let answer = wait::bounded(&format!("an answer to GET {path}"), DEADLINE, exchange).await??;
    parse_response(&answer)
}

fn parse_response(answer: &[u8]) -> Result<Response> {
    let text = std::str::from_utf8(answer).context("the answer is no text")?;
    let (head, body) = text.split_once("\r\n\r\n").context("the answer has no head")?;
    let status = head.split(' ').nth(1).context("the answer has no status")?.parse()?;
    let chunked = head.lines().any(|line| line.eq_ignore_ascii_case("transfer-encoding: chunked"));
    let body = if chunked { dechunk(body)? } else { body.to_owned() };
    Ok(Response { status, body })
}

fn dechunk(mut rest: &str) -> Result<String> {
    let mut body = String::new();
    loop {
        let (size, after) = rest.split_once("\r\n").context("a chunk without size")?;
        let size = usize::from_str_radix(size.trim(), 16)?;
        if size == 0 {
            return Ok(body);
        }
        body.push_str(after.get(..size).context("a chunk is cut off")?);
        rest = after.get(size + 2..).context("a chunk has no end")?;
    }
}

/// One reading of `/metrics`.
#[derive(Clone, Debug)]
pub struct Samples(Vec<Sample>);

#[derive(Clone, Debug, PartialEq)]
struct Sample {
    name: String,
    labels: Vec<(String, String)>,
    value: f64,
}

/// Reads `/metrics`.
///
/// # Errors
/// When the endpoint does not answer 200 or a line is not in the text format.
pub async fn scrape(address: SocketAddr) -> Result<Samples> {
    let response = get(address, "/metrics").await?;
    if response.status != 200 {
        bail!("/metrics answered {}", response.status);
    }
    Samples::parse(&response.body)
}

impl Samples {
    /// # Errors
    /// When a line is not in the text format.
    pub fn parse(text: &str) -> Result<Self> {
        let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        let samples = lines.map(|line| parse_sample(line).with_context(|| format!("not a sample: {line}")));
        Ok(Self(samples.collect::<Result<_>>()?))
    }

    /// The value of the one sample with this name and at least these labels.
    #[must_use]
    pub fn value(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let mut found = self.matching(name, labels);
        let first = found.next()?;
        assert!(found.next().is_none(), "several samples match {name} {labels:?}");
        Some(first)
    }

    /// The sum over all samples with this name and at least these labels; 0 when there is none.
    #[must_use]
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        self.matching(name, labels).sum()
    }

    /// All names, to check that a series exists before anything happened.
    #[must_use]
    pub fn names(&self) -> std::collections::BTreeSet<&str> {
        self.0.iter().map(|sample| sample.name.as_str()).collect()
    }

    fn matching(&self, name: &str, labels: &[(&str, &str)]) -> impl Iterator<Item = f64> {
        let fits = move |sample: &&Sample| {
            let has = |(key, value): &(&str, &str)| sample.labels.iter().any(|(k, v)| k == key && v == value);
            sample.name == name && labels.iter().all(has)
        };
        self.0.iter().filter(fits).map(|sample| sample.value)
    }
}

fn parse_sample(line: &str) -> Option<Sample> {
    let name_end = line.find(['{', ' '])?;
    let (name, mut rest) = line.split_at(name_end);
    let mut labels = Vec::new();
    if let Some(after) = rest.strip_prefix('{') {
        rest = after;
        while !rest.starts_with('}') {
            let (label, after) = rest.split_once("=\"")?;
            let (value, after) = quoted(after)?;
            labels.push((label.trim_start_matches(',').to_owned(), value));
            rest = after;
        }
        rest = &rest[1..];
    }
    let value = rest.split_whitespace().next()?.parse().ok()?;
    Some(Sample { name: name.to_owned(), labels, value })
}

/// The text up to the closing quote, unescaped, and what follows it.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut letters = text.char_indices();
    while let Some((index, letter)) = letters.next() {
        match letter {
            '"' => return Some((value, &text[index + 1..])),
            '\\' => match letters.next()?.1 {
                'n' => value.push('\n'),
                other => value.push(other),
            },
            other => value.push(other),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# HELP a help\n# TYPE a counter\na_total{sink=\"kafka\",destination=\"x,y}\\\"z\"} 3\n\
                        a_total{sink=\"rabbitmq\",destination=\"q\"} 4\nb 1.5e3\nc{le=\"+Inf\"} +Inf\n";

    #[test]
    fn samples_are_found_by_name_and_labels() {
        let samples = Samples::parse(TEXT).unwrap();
        assert_eq!(samples.value("a_total", &[("sink", "kafka")]), Some(3.0));
        assert_eq!(samples.value("a_total", &[("destination", "x,y}\"z")]), Some(3.0));
        assert_eq!(samples.value("a_total", &[("sink", "other")]), None);
        assert_eq!(samples.sum("a_total", &[]), 7.0);
        assert_eq!(samples.value("b", &[]), Some(1500.0));
        assert_eq!(samples.value("c", &[("le", "+Inf")]), Some(f64::INFINITY));
        assert!(samples.names().contains("b"));
    }

    #[test]
    fn chunked_answers_are_read() {
        let answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n";
        assert_eq!(parse_response(answer).unwrap(), Response { status: 200, body: "abcde".to_owned() });
    }
}
