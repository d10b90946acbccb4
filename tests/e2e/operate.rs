//! What an operator and an application see: routes to two brokers, delayed rows, parked rows and what becomes of
//! them, retention, exit codes, and endpoints that tell the truth.

use anyhow::{Context, Result};
use lapin::types::AMQPValue;
use outbox_tests::database::Database;
use outbox_tests::kafka::Kafka;
use outbox_tests::metrics;
use outbox_tests::rabbit::{QueueType, Rabbit};
use outbox_tests::relay::{Finished, Launch};
use outbox_tests::wait::{self, SOON};
use outbox_tests::writer::Row;
use tokio_postgres::Client;

/// A database, an exchange with one queue, and how to start a relay between them.
struct Place {
    database: Database,
    client: Client,
    rabbit: Rabbit,
    exchange: String,
    queue: String,
}

impl Place {
    async fn new() -> Result<Self> {
        let database = Database::migrated().await?;
        let client = database.client().await?;
        let rabbit = Rabbit::connect().await?;
        let (exchange, queue) = (rabbit.unique("operate"), rabbit.unique("operate"));
        rabbit.exchange_with_queue(&exchange, &queue).await?;
        Ok(Self { database, client, rabbit, exchange, queue })
    }

    fn launch(&self, arguments: &[&str]) -> Launch {
        Launch::new(arguments.iter().copied())
            .database(self.database.url())
            .amqp(self.rabbit.url())
            .env("OUTBOX__RABBITMQ__EXCHANGE", &self.exchange)
            .env("OUTBOX__POLL__MAX_MS", "50")
    }

    async fn drain(&self) -> Result<Finished> {
        self.launch(&["run", "--drain", "--drain-timeout", "60", "--admin-listen", "off"]).finish(SOON * 3).await
    }

    async fn one_shot(&self, arguments: &[&str]) -> Result<Finished> {
        Launch::new(arguments.iter().copied()).database(self.database.url()).finish(SOON).await
    }

    async fn states(&self) -> Result<Vec<(String, String, Option<String>)>> {
        let sql = "SELECT idempotency_key, state, reason FROM outbox.message_status ORDER BY seq";
        let rows = self.client.query(sql, &[]).await?;
        Ok(rows.iter().map(|row| (row.get(0), row.get(1), row.get(2))).collect())
    }

    async fn ids(&self, count: usize) -> Result<Vec<String>> {
        let received = self.rabbit.consume(&self.queue, count, SOON).await?;
        received.into_iter().map(|message| message.message_id.context("a message without id")).collect()
    }
}

fn must_exit(finished: &Finished, code: i32) {
    assert_eq!(finished.code, Some(code), "{}\n{}", finished.stdout, finished.stderr);
}

#[tokio::test]
async fn routes_lead_each_topic_to_its_broker() -> Result<()> {
    let Some(kafka) = Kafka::connect_or_skip("routes_lead_each_topic_to_its_broker")? else { return Ok(()) };
    let place = Place::new().await?;
    let topic = kafka.unique("github.push");
    kafka.create_topic(&topic, 1, &[]).await?;
    for n in 0..20 {
        let to = if n % 2 == 0 { topic.as_str() } else { "billing.paid" };
        Row::new(&format!("id-{n}"), to).key("one").text("{}").insert(&place.client).await?;
    }
    let config = format!(
        "[[route]]\nmatch = \"github.*\"\nsink = \"kafka\"\ntopic = \"{{topic}}\"\n\
         [[route]]\nmatch = \"*\"\nsink = \"rabbitmq\"\nexchange = \"{}\"\nrouting_key = \"{{topic}}.{{ordering_key}}\"\n",
        place.exchange
    );
    let finished = place
        .launch(&["run", "--drain", "--drain-timeout", "60", "--admin-listen", "off"])
        .kafka(kafka.brokers())
        .config(&config)
        .finish(SOON * 3)
        .await?;
    must_exit(&finished, 0);
    let records = kafka.consume(&topic, 10, SOON).await?;
    assert_eq!(records.iter().filter_map(outbox_tests::kafka::Received::id).collect::<Vec<_>>(), even());
    let messages = place.rabbit.consume(&place.queue, 10, SOON).await?;
    assert!(messages.iter().all(|message| message.routing_key == "billing.paid.one"));
    Ok(())
}

fn even() -> Vec<String> {
    (0..20).step_by(2).map(|n| format!("id-{n}")).collect()
}

#[tokio::test]
async fn a_delayed_row_waits_for_its_time_and_holds_no_drain_up() -> Result<()> {
    let place = Place::new().await?;
    Row::new("later", "t").key("k").text("1").delayed(3_600.0).insert(&place.client).await?;
    Row::new("now", "t").key("k").text("3").insert(&place.client).await?;
    must_exit(&place.drain().await?, 0);
    assert_eq!(place.states().await?.iter().filter(|(_, state, _)| state == "pending").count(), 1);
    let relay = place.launch(&["run", "--admin-listen", "127.0.0.1:0"]).start()?;
    relay.wait_ready(SOON).await?;
    Row::new("soon", "t").key("k").text("2").delayed(1.5).insert(&place.client).await?;
    assert_eq!(place.ids(2).await?, ["now", "soon"]);
    let early = "SELECT count(*) FROM outbox.message WHERE sent_at < available_at";
    wait::until_true("the delayed row to be marked", SOON, || async {
        let sent = place.states().await?;
        Ok(sent.iter().any(|(id, state, _)| id == "soon" && state == "sent"))
    })
    .await?;
    assert_eq!(place.client.query_one(early, &[]).await?.get::<_, i64>(0), 0);
    drop(relay);
    Ok(())
}

#[tokio::test]
async fn parked_rows_are_listed_retried_and_discarded_with_and_without_a_relay() -> Result<()> {
    let place = Place::new().await?;
    for id in ["a", "b"] {
        Row::new(id, "t").headers(serde_json::json!({"id": "mine"})).text("{}").insert(&place.client).await?;
    }
    must_exit(&place.drain().await?, 0);
    let parked = |id: &str| (id.to_owned(), "parked".to_owned(), Some("reserved_header".to_owned()));
    assert_eq!(place.states().await?, [parked("a"), parked("b")]);
    let list = place.one_shot(&["parked", "list", "--output", "json"]).await?;
    must_exit(&list, 0);
    assert!(list.stdout.contains("reserved_header"), "{}", list.stdout);

    // Without a relay: both change state at once, and a retried row that was mended goes.
    place.client.execute("UPDATE outbox.message SET headers = '{}' WHERE idempotency_key = 'a'", &[]).await?;
    must_exit(&place.one_shot(&["parked", "retry", "--topic", "t", "--yes"]).await?, 0);
    must_exit(&place.one_shot(&["parked", "retry", "--topic", "nothing", "--yes"]).await?, 0);
    must_exit(&place.drain().await?, 0);
    assert_eq!(place.ids(1).await?, ["a"]);
    assert_eq!(place.states().await?[1], parked("b"));

    // With a relay: taken up within a second, and a discarded row is never sent.
    let relay = place.launch(&["run", "--admin-listen", "127.0.0.1:0"]).start()?;
    relay.wait_ready(SOON).await?;
    Row::new("c", "t").headers(serde_json::json!({"tombstone": 1})).text("{}").insert(&place.client).await?;
    wait::until_true("c to be parked", SOON, || async { Ok(place.states().await?[2].1 == "parked") }).await?;
    place.client.execute("UPDATE outbox.message SET headers = '{}' WHERE idempotency_key = 'c'", &[]).await?;
    let seq: i64 =
        place.client.query_one("SELECT seq FROM outbox.message WHERE idempotency_key = 'c'", &[]).await?.get(0);
    must_exit(&place.one_shot(&["parked", "retry", &seq.to_string(), "--yes"]).await?, 0);
    assert_eq!(place.ids(1).await?, ["c"]);
    must_exit(&place.one_shot(&["parked", "discard", "--topic", "t", "--yes"]).await?, 0);
    assert_eq!(place.states().await?[1].1, "discarded");
    must_exit(&place.drain().await?, 0);
    drop(relay);
    Ok(())
}

#[tokio::test]
async fn sent_rows_leave_after_their_retention() -> Result<()> {
    let place = Place::new().await?;
    for n in 0..2_500 {
        Row::new(&format!("r{n}"), "t").text("{}").insert(&place.client).await?;
    }
    let relay = place.launch(&["run", "--admin-listen", "127.0.0.1:0"]).env("OUTBOX__RETENTION", "0").start()?;
    wait::until_true("sent rows to be removed", SOON, || async {
        let left = place.client.query_one("SELECT count(*) FROM outbox.message", &[]).await?;
        Ok(left.get::<_, i64>(0) == 0)
    })
    .await?;
    assert_eq!(place.rabbit.depth(&place.queue).await?, 2_500);
    let pruned = relay.metrics().await?;
    wait::until_true("the counter of removed rows", SOON, || async {
        Ok(relay.metrics().await?.value("outbox_pruned_messages_total", &[]) == Some(2_500.0))
    })
    .await?;
    assert_eq!(pruned.sum("outbox_publish_failures_total", &[]), 0.0);
    Ok(())
}

#[tokio::test]
async fn f38_f39_exactly_the_rows_of_a_missing_exchange_are_held() -> Result<()> {
    let place = Place::new().await?;
    let missing = place.rabbit.unique("missing");
    // A row that is blamed for another's exchange is let go soon: it must not have been held at all.
    let note = "CREATE TABLE ever_held (row_id text PRIMARY KEY);
         CREATE FUNCTION note_held() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS
             'BEGIN INSERT INTO public.ever_held VALUES (NEW.row_id) ON CONFLICT DO NOTHING; RETURN NULL; END';
         CREATE TRIGGER note_held AFTER INSERT ON outbox.held FOR EACH ROW EXECUTE FUNCTION note_held()";
    place.client.batch_execute(note).await?;
    for n in 0..1_000 {
        let topic = if n == 500 { "bad" } else { "good" };
        Row::new(&format!("x{n}"), topic).key(&format!("k{}", n % 50)).text("{}").insert(&place.client).await?;
    }
    let config = format!(
        "[retry]\nattempts_max = 3\nattempts_min_age_ms = 0\n\
         [[route]]\nmatch = \"bad\"\nsink = \"rabbitmq\"\nexchange = \"{missing}\"\nrouting_key = \"{{topic}}\"\n\
         [[route]]\nmatch = \"*\"\nsink = \"rabbitmq\"\nexchange = \"{}\"\nrouting_key = \"{{topic}}\"\n",
        place.exchange
    );
    let relay = place.launch(&["run", "--admin-listen", "127.0.0.1:0"]).config(&config).start()?;
    // One key waits behind its bad row; every other row arrives once.
    let expected = 1_000 - (500..1_000).step_by(50).count();
    let mut ids = place.ids(expected).await?;
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), expected);
    let bad = "SELECT count(*) FILTER (WHERE reason = 'no_exchange' AND attempts = 0 AND state = 'waiting'), count(*)
                 FROM outbox.held";
    wait::until_true("the bad row and those behind it to be held", SOON, || async {
        let row = place.client.query_one(bad, &[]).await?;
        Ok((row.get::<_, i64>(0), row.get::<_, i64>(1)) == (1, 10))
    })
    .await?;
    // Once the exchange exists they all follow, in order, however often the probe had failed.
    place.rabbit.exchange_with_queue(&missing, &place.queue).await?;
    let rest = place.ids(10).await?;
    let order: Vec<String> = (500..1_000).step_by(50).map(|n| format!("x{n}")).collect();
    assert_eq!(rest, order);
    let held = place.client.query_one("SELECT count(*) FROM ever_held", &[]).await?;
    assert_eq!(held.get::<_, i64>(0), 10, "rows ever held");
    drop(relay);
    Ok(())
}

#[tokio::test]
async fn f41_ids_are_counted_in_bytes() -> Result<()> {
    let place = Place::new().await?;
    let longest = "i".repeat(255);
    Row::new(&longest, "t").text("{}").insert(&place.client).await?;
    for too_long in ["i".repeat(256), "é".repeat(128)] {
        assert!(Row::new(&too_long, "t").text("{}").insert(&place.client).await.is_err());
    }
    // A table that was changed around its check must not stop the relay.
    let drop = "ALTER TABLE outbox.message DROP CONSTRAINT message_idempotency_key_check";
    place.client.batch_execute(drop).await?;
    Row::new(&"j".repeat(256), "t").text("{}").insert(&place.client).await?;
    Row::new("after", "t").text("{}").insert(&place.client).await?;
    must_exit(&place.drain().await?, 0);
    let states = place.states().await?;
    assert_eq!((states[0].1.as_str(), states[1].1.as_str(), states[2].1.as_str()), ("sent", "parked", "sent"));
    assert_eq!(states[1].2.as_deref(), Some("name"));
    let mut ids = place.ids(2).await?;
    ids.sort();
    assert_eq!(ids, ["after".to_owned(), longest]);
    Ok(())
}

#[tokio::test]
async fn what_an_operator_must_mend_ends_with_78_and_publishes_nothing() -> Result<()> {
    let place = Place::new().await?;
    Row::new("never", "t").text("{}").insert(&place.client).await?;
    let empty = Database::empty().await?;
    let wrong_password = place.database.url().replace(":outbox@", ":wrong@");
    let wrong_login = place.rabbit.url().replace("guest:guest", "guest:wrong");
    let run = ["run", "--drain", "--admin-listen", "off"];
    let cases = [
        (Launch::new(run).database(empty.url()).amqp(place.rabbit.url()), "outbox-relay migrate"),
        (Launch::new(run).database(&wrong_password).amqp(place.rabbit.url()), "password"),
        (place.launch(&run).config("[leese]\nttl_ms = 1\n"), "lease"),
        (place.launch(&run).env("OUTBOX__LEASE__TTL_MS", "1"), "lease.ttl_ms"),
        (Launch::new(run).database(place.database.url()), "AMQP_URL"),
        (Launch::new(run).database(place.database.url()).amqp(&wrong_login), "rabbitmq"),
    ];
    for (launch, word) in cases {
        let finished = launch.finish(SOON).await?;
        must_exit(&finished, 78);
        assert!(finished.stderr.contains(word), "no '{word}' in:\n{}", finished.stderr);
    }
    assert_eq!(place.rabbit.depth(&place.queue).await?, 0);
    assert_eq!(place.states().await?[0].1, "pending");
    Ok(())
}

#[tokio::test]
async fn endpoints_and_status_tell_what_is() -> Result<()> {
    let place = Place::new().await?;
    let full = place.rabbit.unique("full");
    let arguments =
        [("x-max-length", AMQPValue::LongInt(1)), ("x-overflow", AMQPValue::LongString("reject-publish".into()))];
    place.rabbit.queue(&full, QueueType::Classic, &arguments).await?;
    let relay = place.launch(&["run", "--admin-listen", "127.0.0.1:0"]).start()?;
    relay.wait_ready(SOON).await?;
    let admin = relay.admin().await?;
    assert_eq!(metrics::get(admin, "/livez").await?.status, 200);
    let before = relay.metrics().await?;
    for name in ["outbox_claimed_messages_total", "outbox_publish_unknown_total", "outbox_returned_messages_total"] {
        assert_eq!(before.value(name, &[]), Some(0.0), "{name}");
    }
    for n in 0..5 {
        Row::new(&format!("m{n}"), "t").text("12345678").insert(&place.client).await?;
    }
    assert_eq!(place.ids(5).await?.len(), 5);
    wait::until_true("the counters to follow", SOON, || async {
        let now = relay.metrics().await?;
        Ok(now.sum("outbox_published_messages_total", &[]) == 5.0
            && now.value("outbox_published_bytes_total", &[]) == Some(40.0)
            && now.value("outbox_lanes_owned", &[]) == Some(16.0)
            && now.value("outbox_sink_connected", &[("sink", "rabbitmq")]) == Some(1.0))
    })
    .await?;
    let status = place.one_shot(&["status", "--output", "json"]).await?;
    must_exit(&status, 0);
    let json: serde_json::Value = serde_json::from_str(&status.stdout)?;
    assert_eq!(json["lanes"].as_array().map(Vec::len), Some(16), "{json}");
    let check = place.launch(&["check"]).finish(SOON).await?;
    must_exit(&check, 0);
    let missing = place.launch(&["check"]).env("OUTBOX__RABBITMQ__EXCHANGE", "no-such-exchange").finish(SOON).await?;
    must_exit(&missing, 1);
    Ok(())
}

#[tokio::test]
async fn an_away_broker_starves_nobody_and_its_rows_follow() -> Result<()> {
    let Some(kafka) = Kafka::connect_or_skip("an_away_broker_starves_nobody_and_its_rows_follow")? else {
        return Ok(());
    };
    let place = Place::new().await?;
    let proxy = outbox_tests::proxy::Proxy::start(service_port(place.rabbit.url())?).await?;
    proxy.refuse(true);
    let topic = kafka.unique("flows");
    kafka.create_topic(&topic, 1, &[]).await?;
    for n in 0..600 {
        let to = if n % 3 == 0 { topic.as_str() } else { "stuck" };
        Row::new(&format!("s{n:04}"), to).key(&format!("k{}", n % 7)).text("{}").insert(&place.client).await?;
    }
    let config = format!(
        "[[route]]\nmatch = \"stuck\"\nsink = \"rabbitmq\"\nexchange = \"{}\"\nrouting_key = \"t\"\n\
         [[route]]\nmatch = \"*\"\nsink = \"kafka\"\ntopic = \"{{topic}}\"\n",
        place.exchange
    );
    let url = place.rabbit.url().replace(&service_port(place.rabbit.url())?.to_string(), &proxy.port().to_string());
    let relay = Launch::new(["run", "--admin-listen", "127.0.0.1:0"])
        .database(place.database.url())
        .amqp(&url)
        .kafka(kafka.brokers())
        .config(&config)
        .env("OUTBOX__POLL__MAX_MS", "50")
        .start()?;
    // A key over both brokers waits as a whole; those with rows of Kafka first must get them.
    wait::until_true("Kafka's first rows to flow", SOON, || async { Ok(kafka.stored(&topic).await? >= 3) }).await?;
    wait::until_true("RabbitMQ's rows to wait", SOON, || async {
        let held = place.client.query_one("SELECT count(*) FROM outbox.held WHERE reason = 'broker'", &[]).await?;
        Ok(held.get::<_, i64>(0) >= 7)
    })
    .await?;
    proxy.heal();
    assert_eq!(place.ids(400).await?.len(), 400);
    assert_eq!(kafka.consume(&topic, 200, SOON).await?.len(), 200);
    drop(relay);
    Ok(())
}

fn service_port(url: &str) -> Result<u16> {
    let after_host = url.rsplit_once('@').map_or(url, |(_, rest)| rest);
    let port = after_host.split(['/', '?']).next().and_then(|host| host.rsplit_once(':'));
    Ok(port.context("no port in the broker's URL")?.1.parse()?)
}

#[tokio::test]
async fn a_drain_that_cannot_end_says_what_remains() -> Result<()> {
    let place = Place::new().await?;
    Row::new("lost", "t").text("{}").insert(&place.client).await?;
    let finished = place
        .launch(&["run", "--drain", "--drain-timeout", "10", "--admin-listen", "off"])
        .env("OUTBOX__RABBITMQ__EXCHANGE", place.rabbit.unique("nowhere"))
        .finish(SOON)
        .await?;
    must_exit(&finished, 1);
    assert!(finished.stderr.contains("no_exchange"), "{}", finished.stderr);
    Ok(())
}
