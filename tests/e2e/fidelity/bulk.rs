//! 10,000 rows of every size and kind through each broker.

use std::time::Duration;

use anyhow::{Context, Result};
use fastrand::Rng;
use outbox_tests::database::Database;
use outbox_tests::journal::{Journal, Outcome};
use outbox_tests::kafka::Kafka;
use outbox_tests::ledger;
use outbox_tests::relay::Launch;
use outbox_tests::wait;
use outbox_tests::writer::{Body, Row, Writer};
use serde_json::{Value, json};

use crate::stage::{self, Stage, expected_in_kafka, expected_in_rabbit};

const WRITERS: usize = 4;
const ROWS_PER_WRITER: usize = 2_500;
const ROWS: usize = WRITERS * ROWS_PER_WRITER;
const BYTES_MAX: usize = 1_000_000;
const PATIENCE: Duration = Duration::from_secs(240);

/// Random content is made once and cut from, since making 100 MB letter by letter takes longer than sending it.
struct Material {
    text: String,
    bytes: Vec<u8>,
}

impl Material {
    fn new(random: &mut Rng) -> Self {
        const PIECES: [&str; 12] = ["a", "Z", "0", " ", "\\", "\"", "\n", "\t", "\\u00e9", "é", "€", "🦀"];
        let mut text = String::with_capacity(2 * BYTES_MAX + 8);
        while text.len() < 2 * BYTES_MAX {
            text.push_str(PIECES[random.usize(..PIECES.len())]);
        }
        let bytes = (0..2 * BYTES_MAX).map(|_| random.u8(..)).collect();
        Self { text, bytes }
    }

    fn body(&self, random: &mut Rng, size: usize) -> Body {
        let start = random.usize(..BYTES_MAX);
        if random.bool() {
            return Body::Bytes(self.bytes[start..start + size].to_vec());
        }
        let from = letter_start(&self.text, start);
        let to = letter_start(&self.text, from + size);
        // Cutting at letters loses up to three bytes, which dots make good.
        let mut text = self.text[from..to].to_owned();
        text.extend(std::iter::repeat_n('.', size - text.len()));
        Body::Text(text)
    }
}

fn letter_start(text: &str, mut at: usize) -> usize {
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

/// Log-uniform over the whole range for every eighth row and up to 10 kB for the others: so the volume stays near
/// 100 MB instead of 700 MB.
fn size(random: &mut Rng) -> usize {
    let largest: f64 = if random.u8(..8) == 0 { BYTES_MAX as f64 } else { 10_000.0 };
    // From e^0 - 1 = 0 up to the largest.
    let size = ((largest + 1.0).ln() * random.f64()).exp() - 1.0;
    size as usize
}

/// As text, because numbers must reach Kafka with the digits that they were written with.
const ALL_HEADERS: &str = r#"{"text": "grüße \"and\" \\ more\n", "empty": "", "whole": -7, "large": 9223372036854775807,
    "half": 0.5, "tiny": 0.0000000015, "yes": true, "no": false, "nothing": null, "list": [1, "two", null, [3.5]],
    "table": {"b": {"deep": [true]}, "a": "x"},
    "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}"#;

fn headers(random: &mut Rng, number: usize) -> Result<Value> {
    let mut all: Value = serde_json::from_str(ALL_HEADERS).context("the headers are JSON")?;
    all["number"] = json!(number);
    Ok(match random.u8(..4) {
        0 => json!({}),
        1 => all,
        _ => {
            let one = random.usize(..12);
            let object = all.as_object().into_iter().flatten().skip(one).take(2);
            Value::Object(object.map(|(name, value)| (name.clone(), value.clone())).collect())
        }
    })
}

type Expected = fn(&Value) -> std::collections::BTreeMap<String, String>;

/// The rows of one writer; its keys are its own, so that numbers follow the order of commits.
fn rows(seed: u64, writer: usize, topic: &str, expected: Expected) -> Result<Vec<Row>> {
    let mut random = Rng::with_seed(seed.wrapping_add(writer as u64));
    let material = Material::new(&mut random);
    (0..ROWS_PER_WRITER)
        .map(|number| {
            let body = match number {
                0 => Body::Text(String::new()),
                1 => Body::Bytes(Vec::new()),
                2 => material.body(&mut random, BYTES_MAX),
                3 => Body::Bytes(material.bytes[..BYTES_MAX].to_vec()),
                _ if random.u8(..50) == 0 => Body::Tombstone,
                _ => {
                    let size = size(&mut random);
                    material.body(&mut random, size)
                }
            };
            let headers = headers(&mut random, number)?;
            let mut row = Row::new(&format!("w{writer}-{number}"), topic).body(body);
            row.expected_headers = expected(&headers);
            if headers.as_object().is_some_and(|map| !map.is_empty()) {
                row = row.headers(headers);
            }
            Ok(match random.u8(..10) {
                0 => row,
                1..4 => row.key(&format!("w{writer}-hot")),
                _ => row.key(&format!("w{writer}-{}", random.u8(..60))),
            })
        })
        .collect()
}

async fn write_all(database: &Database, journal: &Journal, writers: Vec<Vec<Row>>) -> Result<()> {
    let mut tasks = tokio::task::JoinSet::new();
    for rows in writers {
        let mut writer = Writer::new(database.client().await?, journal.clone());
        tasks.spawn(async move {
            for batch in rows.chunks(20) {
                writer.commit(batch).await?;
            }
            anyhow::Ok(())
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    assert_eq!(journal.count(Outcome::Committed), ROWS);
    Ok(())
}

#[tokio::test]
async fn rows_of_every_size_arrive_once_unchanged_and_in_order_in_rabbitmq() -> Result<()> {
    let seed = fastrand::u64(..);
    eprintln!("seed {seed}");
    let stage = Stage::new().await?;
    let mut reader = stage.rabbit.reader(&stage.queue, 200).await?;
    let relay = stage.launch().start()?;
    let journal = Journal::default();
    let writers = (0..WRITERS).map(|writer| rows(seed, writer, "a.b", expected_in_rabbit)).collect::<Result<_>>()?;
    let reading = async {
        let mut arrivals = Vec::with_capacity(ROWS);
        while arrivals.len() < ROWS {
            let message = reader.next(PATIENCE).await?.with_context(|| format!("only {} came", arrivals.len()))?;
            assert_eq!(message.delivery_mode, Some(2));
            assert_eq!(message.app_id.as_deref(), Some("outbox-relay"));
            assert_eq!(message.content_type.as_deref(), Some("application/json"));
            arrivals.push(stage::rabbit_arrival(&message)?);
        }
        anyhow::Ok(arrivals)
    };
    let (written, arrivals) = tokio::join!(write_all(&stage.database, &journal, writers), reading);
    written?;
    let mut arrivals = arrivals?;
    // A duplicate would come behind the last row.
    require_all_marked(&stage.database).await?;
    while let Some(message) = reader.next(Duration::from_millis(200)).await? {
        arrivals.push(stage::rabbit_arrival(&message)?);
    }
    drop(relay);
    ledger::check(&journal.entries(), &arrivals).require(0)
}

#[tokio::test]
async fn rows_of_every_size_arrive_once_unchanged_and_in_order_in_kafka() -> Result<()> {
    let Some(kafka) = Kafka::connect_or_skip("fidelity::bulk in Kafka")? else { return Ok(()) };
    let seed = fastrand::u64(..);
    eprintln!("seed {seed}");
    let database = Database::migrated().await?;
    let topic = kafka.unique("fidelity");
    kafka.create_topic(&topic, 3, &[]).await?;
    let reader = kafka.reader(&topic).await?;
    let relay = Launch::run().database(database.url()).kafka(kafka.brokers()).start()?;
    let journal = Journal::default();
    let writers = (0..WRITERS).map(|writer| rows(seed, writer, &topic, expected_in_kafka)).collect::<Result<_>>()?;
    let reading = async {
        let mut arrivals = Vec::with_capacity(ROWS);
        while arrivals.len() < ROWS {
            let record = reader.next(PATIENCE).await?.with_context(|| format!("only {} came", arrivals.len()))?;
            assert_eq!(record.header("content-type"), [Some(b"application/json".as_slice())]);
            arrivals.push(stage::kafka_arrival(&record)?);
        }
        anyhow::Ok(arrivals)
    };
    let (written, arrivals) = tokio::join!(write_all(&database, &journal, writers), reading);
    written?;
    let arrivals = arrivals?;
    require_all_marked(&database).await?;
    drop(relay);
    assert_eq!(kafka.stored(&topic).await?, ROWS, "a duplicate came behind the last row");
    ledger::check(&journal.entries(), &arrivals).require(0)
}

async fn require_all_marked(database: &Database) -> Result<()> {
    let client = &database.client().await?;
    wait::until_true("all rows to be marked sent", wait::SOON, || async move {
        let unsent = client.query_one("SELECT count(*) FROM outbox.message WHERE sent_at IS NULL", &[]).await?;
        Ok(unsent.try_get::<_, i64>(0)? == 0)
    })
    .await
}
