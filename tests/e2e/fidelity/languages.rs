//! A plain INSERT from any language keeps JSON as it was written, byte for byte.

use std::process::Stdio;

use anyhow::{Context, Result, bail};
use outbox_tests::journal::{Journal, Outcome};
use outbox_tests::wait;
use outbox_tests::writer::Row;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use super::values::Both;
use crate::stage;

/// Texts that something on the way could parse, normalise or unescape.
const TEXTS: [&str; 10] = [
    r#"{"path":"C:\\temp\\new"}"#,
    r#"{"said":"\"hello\" it's"}"#,
    r#"{"escaped":"\u00e9\u20ac\ud83e\udd80"}"#,
    r#"{"plain":"é€🦀 grüße"}"#,
    "{\"lines\": 1,\n\t\"more\":\r\n  2 }\n",
    r#"{"b":1,"a":2,"a":3}"#,
    r#"{"number":1.0e+2,"long":12345678901234567890.10}"#,
    r#"{"sql":"'); DROP TABLE x; -- $1 %s %(name)s :'v' {}"}"#,
    r"not JSON at all: \x41 \101 \\ \n",
    "  \n",
];

const INSERT_IN_PYTHON: &str = r#"
import json, os, sys, psycopg2
connection = psycopg2.connect(os.environ["DATABASE_URL"])
with connection, connection.cursor() as cursor:
    for row in json.load(sys.stdin):
        cursor.execute("INSERT INTO outbox.message (idempotency_key, topic, payload) VALUES (%s, %s, %s)", row)
"#;

fn rows(language: &str) -> Vec<Row> {
    let topics = ["to-rabbit", "to-kafka"].into_iter();
    let row = |topic: &str, number, text| Row::new(&format!("{language}-{topic}-{number}"), topic).text(text);
    topics.flat_map(|topic| TEXTS.iter().enumerate().map(move |(number, text)| row(topic, number, text))).collect()
}

fn text_of(row: &Row) -> Result<&str> {
    Ok(std::str::from_utf8(row.body.bytes().context("a row without body")?)?)
}

async fn feed(program: &str, arguments: &[&str], url: &str, input: &str) -> Result<()> {
    let mut command = Command::new(program);
    command.args(arguments).env("DATABASE_URL", url).stdin(Stdio::piped()).stdout(Stdio::piped());
    command.stderr(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn().with_context(|| format!("starting {program}; see tests/services/install.sh"))?;
    let mut stdin = child.stdin.take().context("no standard input")?;
    stdin.write_all(input.as_bytes()).await?;
    drop(stdin);
    let output = wait::bounded(program, wait::SOON, child.wait_with_output()).await??;
    if !output.status.success() {
        bail!("{program} failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}

#[tokio::test]
async fn json_through_plain_inserts_from_rust_python_and_psql_stays_as_it_was_written() -> Result<()> {
    let Some(both) = Both::new("fidelity::languages").await? else { return Ok(()) };
    let url = both.stage.database.url();
    let journal = Journal::default();
    let mut expected = 0;
    for language in ["rust", "python", "psql"] {
        let rows = rows(language);
        match language {
            "rust" => {
                let client = both.stage.database.client().await?;
                let insert = "INSERT INTO outbox.message (idempotency_key, topic, payload) VALUES ($1, $2, $3)";
                for row in &rows {
                    client.execute(insert, &[&row.id, &row.topic, &text_of(row)?]).await?;
                }
            }
            "python" => {
                let rows: Vec<_> =
                    rows.iter().map(|row| Ok([&row.id, &row.topic, text_of(row)?])).collect::<Result<_>>()?;
                // Debian's interpreter, since Debian's package brings the driver for that one.
                feed("/usr/bin/python3", &["-c", INSERT_IN_PYTHON], url, &serde_json::to_string(&rows)?).await?;
            }
            _ => {
                let mut script = String::new();
                for row in &rows {
                    let text = text_of(row)?.replace('\'', "''");
                    script.push_str("INSERT INTO outbox.message (idempotency_key, topic, payload) VALUES ");
                    script.push_str(&format!("('{}', '{}', '{text}');\n", row.id, row.topic));
                }
                feed("psql", &["-X", "-q", "-v", "ON_ERROR_STOP=1", url], url, &script).await?;
            }
        }
        expected += rows.len();
        rows.iter().enumerate().for_each(|(at, row)| journal.record(row.entry(at as u64, Outcome::Committed)));
    }
    let (from_rabbit, from_kafka) = both.read(expected / 2, expected / 2).await?;
    let mut arrivals = from_rabbit.iter().map(stage::rabbit_arrival).collect::<Result<Vec<_>>>()?;
    arrivals.extend(from_kafka.iter().map(stage::kafka_arrival).collect::<Result<Vec<_>>>()?);
    outbox_tests::ledger::check(&journal.entries(), &arrivals).require(0)
}
