//! Single values that relays elsewhere changed on the way.

use std::collections::HashMap;

use anyhow::{Context, Result};
use lapin::types::AMQPValue;
use outbox_tests::kafka::{self, Kafka};
use outbox_tests::rabbit::Received;
use outbox_tests::relay::Relay;
use outbox_tests::wait;
use outbox_tests::writer::{Body, Row};

use crate::stage::{self, Stage, expected_in_kafka, expected_in_rabbit};

/// One relay that serves both brokers: the topic `to-rabbit` goes to one, `to-kafka` to the other.
pub struct Both {
    pub stage: Stage,
    kafka: Kafka,
    topic: String,
    _relay: Relay,
}

impl Both {
    /// `None` where Kafka may be missing and is.
    pub async fn new(test: &str) -> Result<Option<Self>> {
        let Some(kafka) = Kafka::connect_or_skip(test)? else { return Ok(None) };
        let stage = Stage::new().await?;
        let topic = kafka.unique("values");
        kafka.create_topic(&topic, 1, &[]).await?;
        let routes = format!(
            "[[route]]\nmatch = \"to-kafka\"\nsink = \"kafka\"\ntopic = \"{topic}\"\n\
             [[route]]\nmatch = \"*\"\nsink = \"rabbitmq\"\nexchange = \"{}\"\nrouting_key = \"x\"\n",
            stage.exchange
        );
        let relay = stage.launch().kafka(kafka.brokers()).config(&routes).start()?;
        Ok(Some(Self { stage, kafka, topic, _relay: relay }))
    }

    /// What arrived at each broker, once so many did.
    pub async fn read(&self, in_rabbit: usize, in_kafka: usize) -> Result<(Vec<Received>, Vec<kafka::Received>)> {
        let from_rabbit = self.stage.rabbit.consume(&self.stage.queue, in_rabbit, wait::SOON).await?;
        let from_kafka = self.kafka.consume(&self.topic, in_kafka, wait::SOON).await?;
        Ok((from_rabbit, from_kafka))
    }
}

#[tokio::test]
async fn f47_null_empty_and_the_word_null_are_different_bodies() -> Result<()> {
    let Some(both) = Both::new("fidelity::values f47").await? else { return Ok(()) };
    let bodies = [
        ("null", Body::Tombstone, None),
        ("empty", Body::Text(String::new()), Some("")),
        ("no bytes", Body::Bytes(Vec::new()), Some("")),
        ("word", Body::Text("null".to_owned()), Some("null")),
        ("object", Body::Text("{}".to_owned()), Some("{}")),
    ];
    let client = both.stage.database.client().await?;
    for topic in ["to-rabbit", "to-kafka"] {
        for (name, body, _) in &bodies {
            Row::new(&format!("{topic} {name}"), topic).body(body.clone()).insert(&client).await?;
        }
    }
    let (from_rabbit, from_kafka) = both.read(bodies.len(), bodies.len()).await?;
    for (name, _, expected) in &bodies {
        let id = format!("to-rabbit {name}");
        let found = from_rabbit.iter().find(|message| message.message_id.as_deref() == Some(&id)).context(id)?;
        assert_eq!(found.body, expected.unwrap_or_default().as_bytes(), "{name}");
        let tombstone = expected.is_none().then_some(&AMQPValue::Boolean(true));
        assert_eq!(found.header("tombstone"), tombstone, "{name}");

        let id = format!("to-kafka {name}");
        let found = from_kafka.iter().find(|record| record.id().as_deref() == Some(&id)).context(id)?;
        assert_eq!(found.value.as_deref(), expected.map(str::as_bytes), "{name}");
        assert_eq!(found.key, None, "{name}");
    }
    Ok(())
}

/// Thirty values as JSON text; jsonb keeps the digits of numbers.
const VALUES: [&str; 30] = [
    r#""""#,
    r#""text""#,
    r#""  blanks  ""#,
    r#""é€🦀""#,
    r#""\u00e9 \u20ac""#,
    r#""quote \" backslash \\ slash \/""#,
    r#""line\nbreak\ttab""#,
    r#""null""#,
    r#""1""#,
    r#""true""#,
    r#""{\"json\":\"in text\"}""#,
    "0",
    "1",
    "-1",
    "9223372036854775807",
    "-9223372036854775808",
    "2147483648",
    "0.5",
    "-0.25",
    "1.10",
    "123456789.125",
    "0.000001",
    "true",
    "false",
    "null",
    "[]",
    "{}",
    r#"[1, "two", null, true, [2.5]]"#,
    r#"{"b": {"c": [1, {"d": null}]}, "a": "x"}"#,
    r#""00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01""#,
];

#[tokio::test]
async fn f48_headers_round_trip_by_a_written_rule() -> Result<()> {
    let Some(both) = Both::new("fidelity::values f48").await? else { return Ok(()) };
    let client = both.stage.database.client().await?;
    let mut headers = HashMap::new();
    for (number, value) in VALUES.iter().enumerate() {
        let header: serde_json::Value = serde_json::from_str(&format!(r#"{{"x-value": {value}, "y": "{number}"}}"#))?;
        for topic in ["to-rabbit", "to-kafka"] {
            let id = format!("{topic} {number}");
            Row::new(&id, topic).key("k").headers(header.clone()).insert(&client).await?;
            headers.insert(id, header.clone());
        }
    }
    let (from_rabbit, from_kafka) = both.read(VALUES.len(), VALUES.len()).await?;
    for message in &from_rabbit {
        let arrival = stage::rabbit_arrival(message)?;
        let written = headers.remove(&arrival.id).with_context(|| format!("{} came twice", arrival.id))?;
        assert_eq!(arrival.content.headers, expected_in_rabbit(&written), "{written}");
        assert_eq!(arrival.content.key.as_deref(), Some("k"));
    }
    for record in &from_kafka {
        let arrival = stage::kafka_arrival(record)?;
        let written = headers.remove(&arrival.id).with_context(|| format!("{} came twice", arrival.id))?;
        assert_eq!(arrival.content.headers, expected_in_kafka(&written), "{written}");
        assert_eq!(arrival.content.key.as_deref(), Some("k"));
    }
    assert!(headers.is_empty(), "{:?} never came", headers.keys());
    Ok(())
}
