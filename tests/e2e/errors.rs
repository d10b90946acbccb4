//! Errors that teach: every error that a person can meet, provoked in the real program and held against
//! `relay/ERRORS.md`, which is written by this test (`OUTBOX_TEST_BLESS=1`) and read by people: each names what
//! happened, where, and what to do.

use std::fmt::Write as _;

use anyhow::{Context, Result};
use outbox_tests::database::{self, Database};
use outbox_tests::kafka::Kafka;
use outbox_tests::rabbit::Rabbit;
use outbox_tests::relay::Launch;
use outbox_tests::services;
use outbox_tests::wait::{self, SOON};
use outbox_tests::writer::Row;
use serde_json::json;

use crate::mutants;

/// Never in any output.
const PASSWORD: &str = "hunter2";
const HEAD: &str = "# Errors\n\nWhat `outbox-relay` says where something is wrong, in its own words, with the exit \
                    code. This file is compared with the program by `tests/e2e/errors.rs`, which also writes it; \
                    names and ports that differ from run to run are in capitals.\n";

/// What is said, by the name of the case.
struct Book {
    text: String,
    replacements: Vec<(String, &'static str)>,
}

impl Book {
    fn section(&mut self, title: &str) {
        let _ = write!(self.text, "\n## {title}\n");
    }

    async fn command(&mut self, title: &str, launch: Launch) -> Result<()> {
        let finished = launch.finish(SOON * 2).await.with_context(|| title.to_owned())?;
        let code = finished.code.with_context(|| format!("{title}: ended by a signal"))?;
        assert!(code != 0, "{title} is no error: {}{}", finished.stdout, finished.stderr);
        // Lines with a time stamp are the log's, which has tests of its own.
        let said = finished.stderr.lines().filter(|line| !line.starts_with("20"));
        let said: Vec<&str> = said.map(str::trim_end).filter(|line| !line.is_empty()).collect();
        assert!(!said.is_empty(), "{title} says nothing");
        self.entry(&format!("{title} (exit code {code})"), &said.join("\n"));
        Ok(())
    }

    fn entry(&mut self, title: &str, said: &str) {
        let mut said = said.to_owned();
        for (found, shown) in &self.replacements {
            said = said.replace(found.as_str(), shown);
        }
        assert!(!said.contains(PASSWORD), "{title} shows a password: {said}");
        let _ = write!(self.text, "\n{title}:\n\n```text\n{said}\n```\n");
    }
}

fn run(arguments: &[&str]) -> Launch {
    Launch::new(arguments.iter().copied())
}

const RUN: [&str; 4] = ["run", "--drain", "--admin-listen", "off"];

async fn command_line(book: &mut Book) -> Result<()> {
    book.section("The command line");
    book.command("An unknown command", run(&["launch"])).await?;
    book.command("An unknown flag", run(&["run", "--drian"])).await?;
    book.command("A number that is none", run(&["parked", "show", "seven"])).await?;
    book.command("Retry of nothing in particular", run(&["parked", "retry"])).await
}

async fn configuration(book: &mut Book, database: &str, amqp: &str) -> Result<()> {
    book.section("The configuration");
    let base = || run(&RUN).database(database).amqp(amqp);
    book.command("Nothing is configured", run(&RUN)).await?;
    book.command("A file that is not there", base().arg("--config").arg("/nonexistent/relay.toml")).await?;
    let cases = [
        ("No TOML", "[database\n"),
        ("An unknown key and one out of bounds", "[leese]\nttl_ms = 1\n[poll]\nmax_ms = 0\n"),
        ("A duration and a size that are none", "retention = \"soon\"\n[batch]\nbytes_max = \"much\"\n"),
        ("A choice that does not exist", "on_park = \"wait\"\n"),
        ("A lease that is renewed too late", "[lease]\nttl_ms = 1000\nrenew_ms = 900\n"),
        ("A template with an unknown name", "[[route]]\nmatch = \"*\"\nsink = \"rabbitmq\"\nexchange = \"{topc}\"\n"),
        ("A template that is not closed", "[[route]]\nmatch = \"*\"\nsink = \"rabbitmq\"\nexchange = \"{topic\"\n"),
        ("A route to a broker that is not configured", "[[route]]\nmatch = \"*\"\nsink = \"kafka\"\n"),
        (
            "A route behind one that matches everything",
            "[[route]]\nmatch = \"*\"\nsink = \"rabbitmq\"\n[[route]]\nmatch = \"a\"\nsink = \"rabbitmq\"\n",
        ),
        ("A source that lacks most of its keys", "[[source]]\nname = \"a\"\ntable = \"outbox\"\nmessage_id = \"{\"\n"),
        (
            "A route that the allow-list does not permit",
            "allow = [\"events\"]\n[[route]]\nmatch = \"*\"\nsink = \"rabbitmq\"\nexchange = \"other\"\n",
        ),
    ];
    for (title, config) in cases {
        // A file's name differs from run to run.
        let launch = base().config(config);
        book.command(title, launch).await?;
    }
    let kafka = || run(&RUN).database(database).kafka("127.0.0.1:1");
    book.command(
        "Two brokers and no last route",
        base().kafka("127.0.0.1:1").config("[[route]]\nmatch = \"a\"\nsink = \"kafka\"\n"),
    )
    .await?;
    let property = |line: &str| kafka().config(&format!("[kafka.properties]\n{line}\n"));
    book.command("A property of Kafka that would break a promise", property("acks = \"1\"")).await?;
    book.command("A property that Kafka does not know", property("\"linger.msec\" = \"5\"")).await?;
    book.command(
        "A database URL that may fall back to plain text",
        run(&RUN).amqp(amqp).database(&format!("postgres://app:{PASSWORD}@db/x?sslmode=prefer")),
    )
    .await?;
    book.command("No database URL", run(&RUN).amqp(amqp).database(&format!("mysql://app:{PASSWORD}@db/x"))).await?;
    book.command("No AMQP URL", run(&RUN).database(database).amqp(&format!("http://app:{PASSWORD}@rabbit"))).await?;
    let secure = |rest: &str| run(&RUN).database(database).amqp(&format!("amqps://app:{PASSWORD}@rabbit/x?{rest}"));
    book.command("A broker that is not to be verified", secure("verify=verify_none")).await?;
    book.command("A login by a certificate that is not there", secure("auth_mechanism=external")).await?;
    book.command("A client certificate without its key", secure("certfile=/etc/relay.crt")).await?;
    let plain = run(&RUN).database(database).amqp(&format!("amqp://app:{PASSWORD}@rabbit")).kafka("kafka:9092");
    book.command(
        "Brokers on another machine without TLS",
        plain.config("[[route]]\nmatch = \"*\"\nsink = \"kafka\"\n"),
    )
    .await?;
    spans(book, base()).await?;
    let file = base().env("OUTBOX__DATABASE__URL_FILE", "/nonexistent/url");
    book.command("A secret's file that is not there", file).await
}

async fn spans(book: &mut Book, base: Launch) -> Result<()> {
    let to = |endpoint: &str| base.clone().env("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint);
    book.command("An endpoint for spans with a login", to(&format!("http://app:{PASSWORD}@collector:4318"))).await?;
    let grpc = to("http://collector:4317").env("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc");
    book.command("Spans by gRPC", grpc.env("OTEL_EXPORTER_OTLP_HEADERS", PASSWORD)).await?;
    // The mutants' build has none.
    let without = mutants::mutant(&to("http://collector:4318"), "none")?;
    book.command("An endpoint for spans in a build without them", without).await
}

async fn services_that_refuse(book: &mut Book, place: &Database, rabbit: &Rabbit) -> Result<()> {
    book.section("Databases and brokers");
    let url = place.url();
    let wrong_password = url.replace(":outbox@", &format!(":{PASSWORD}@"));
    let away = "postgres://app:x@127.0.0.1:1/shop";
    book.command("The database is away", run(&["status"]).database(away)).await?;
    book.command("The database refuses the password", run(&["status"]).database(&wrong_password)).await?;
    let missing = Database::url_of(url, "no_such_database")?;
    let tls = |mode: &str| run(&["status"]).database(&format!("{url}?sslmode={mode}"));
    book.command("The database speaks no TLS", tls("require")).await?;
    let file = "verify-full&sslrootcert=/nonexistent/ca.pem";
    book.command("The file of the authorities is not there", tls(file)).await?;
    book.command("There is no such database", run(&["status"]).database(&missing)).await?;
    let empty = Database::empty().await?;
    book.replacements.push((empty.name().to_owned(), "DATABASE"));
    book.command("The schema is missing, for status", run(&["status"]).database(empty.url())).await?;
    book.command("The schema is missing, for run", run(&RUN).database(empty.url()).amqp(rabbit.url())).await?;
    let admin = database::connect(url).await?;
    let login = format!("login_{}", place.name());
    admin.batch_execute(&format!("CREATE ROLE {login} LOGIN PASSWORD 'outbox'")).await?;
    let poor = url.replace("postgres:outbox@", &format!("{login}:outbox@"));
    book.replacements.push((login.clone(), "LOGIN"));
    let status = book.command("The login may not look", run(&["status"]).database(&poor)).await;
    let relay = book.command("The login may not run", run(&RUN).database(&poor).amqp(rabbit.url())).await;
    let migrate = book
        .command("The login may not migrate", run(&["migrate"]).database(&Database::url_of(&poor, "postgres")?))
        .await;
    admin.batch_execute(&format!("DROP ROLE {login}")).await?;
    status.and(relay).and(migrate)?;
    let wrong_login = rabbit.url().replace("guest:guest", &format!("guest:{PASSWORD}"));
    book.command("RabbitMQ refuses the password", run(&RUN).database(url).amqp(&wrong_login)).await?;
    let (server, _) = rabbit.url().rsplit_once('/').context("no virtual host")?;
    let nowhere = format!("{server}/no-such-vhost");
    let authorities = run(&RUN).database(url).amqp("amqps://127.0.0.1:1");
    let authorities = authorities.env("OUTBOX__RABBITMQ__CA_FILE", "/nonexistent/ca.pem");
    book.command("The file of RabbitMQ's authorities is not there", authorities).await?;
    book.command("There is no such virtual host", run(&RUN).database(url).amqp(&nowhere)).await?;
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    let taken = listener.local_addr()?.to_string();
    book.replacements.push((taken.clone(), "ADDRESS"));
    let busy = run(&["run", "--admin-listen", &taken]).database(url).amqp(rabbit.url());
    book.command("The port for metrics is taken", busy).await?;
    let changed = "UPDATE outbox.migration SET version = version + 97, compatible_from = version + 97";
    let other = Database::migrated().await?;
    other.client().await?.batch_execute(changed).await?;
    book.command("The schema is newer than the program", run(&RUN).database(other.url()).amqp(rabbit.url())).await
}

/// A source and its table disagree.
async fn sources(book: &mut Book, place: &Database, rabbit: &Rabbit) -> Result<()> {
    book.section("Sources");
    let client = place.client().await?;
    client.batch_execute("CREATE TABLE jobs (id bigint PRIMARY KEY, kind text)").await?;
    let source = |table: &str, columns: &str| {
        format!(
            "[[source]]\nname = \"jobs\"\ntable = \"public.{table}\"\nmessage_id = \"{columns}\"\ntopic = \"{{kind}}\"\n\
             body = [\"kind\"]\nmark_column = \"taken_at\"\n"
        )
    };
    let run = |config: String| run(&RUN).database(place.url()).amqp(rabbit.url()).config(&config);
    book.command("A source's table that is not there", run(source("job", "{id}"))).await?;
    book.command("A source whose table lacks columns", run(source("jobs", "{ref}"))).await
}

/// What `parked show` says of rows that wait or were given up.
async fn rows(book: &mut Book, place: &Database, rabbit: &Rabbit, kafka: &Kafka) -> Result<()> {
    book.section("Rows that wait or are parked");
    let client = place.client().await?;
    let config = "[rabbitmq]\nmessage_bytes_max = 1000\n[[route]]\nmatch = \"k.*\"\nsink = \"kafka\"\n\
                  topic = \"{header.to}\"\n[[route]]\nmatch = \"r.*\"\nsink = \"rabbitmq\"\n\
                  exchange = \"{header.to}\"\nrouting_key = \"nowhere\"\n[[route]]\nmatch = \"*\"\nsink = \"rabbitmq\"\n\
                  exchange = \"{ordering_key}\"\nrouting_key = \"x\"\n";
    let row = |id: &str, topic: &str| Row::new(id, topic).text("{}");
    let to = |to: &str| json!({"to": to});
    row("An exchange that does not exist", "r.a").headers(to("no-such-exchange")).insert(&client).await?;
    // Nobody else goes to this address: while its breaker is open its rows wait, whatever is wrong with them.
    row("A message that no queue takes", "r.b").headers(to("amq.direct")).insert(&client).await?;
    row("A topic that does not exist", "k.a").headers(to("no-such-topic")).insert(&client).await?;
    row("A topic that Kafka cannot have", "k.b").headers(to("a b")).insert(&client).await?;
    row("An exchange's name that is too long", "r.c").headers(to(&"x".repeat(256))).insert(&client).await?;
    row("A header with a reserved name", "r.d").headers(json!({"to": "amq.fanout", "id": "x"})).insert(&client).await?;
    row("A row without what its route names", "r.e").insert(&client).await?;
    row("A header that is no text", "r.f").headers(json!({"to": []})).insert(&client).await?;
    row("A row without ordering key for a route that needs it", "other").insert(&client).await?;
    row("A body that is too large for RabbitMQ", "r.g")
        .headers(to("amq.headers"))
        .text(&"x".repeat(1_001))
        .insert(&client)
        .await?;
    let noise: String = std::iter::repeat_with(fastrand::alphanumeric).take(20_000).collect();
    let small = kafka.unique("small");
    kafka.create_topic(&small, 1, &[("max.message.bytes", "10000")]).await?;
    book.replacements.push((small.clone(), "TOPIC"));
    row("A body that is too large for Kafka's topic", "k.c").headers(to(&small)).text(&noise).insert(&client).await?;
    let mut relay =
        Launch::run().database(place.url()).amqp(rabbit.url()).kafka(kafka.brokers()).config(config).start()?;
    let sql = "SELECT idempotency_key, state, reason, last_error, seq FROM outbox.message_status
                WHERE state IN ('waiting', 'parked') ORDER BY seq";
    let held = || async { Ok(Some(client.query(sql, &[]).await?).filter(|rows| rows.len() == 11)) };
    for found in wait::until("all rows to be held", SOON, held).await? {
        let (id, state, reason): (String, String, String) = (found.try_get(0)?, found.try_get(1)?, found.try_get(2)?);
        let error: Option<String> = found.try_get(3)?;
        let show = run(&["parked", "show", &found.try_get::<_, i64>(4)?.to_string(), "--output", "json"]);
        let show: serde_json::Value = serde_json::from_str(&show.database(place.url()).finish(SOON).await?.stdout)?;
        let action = show[0]["action"].as_str().context("no word of what to do")?;
        let said = format!("{}\nwhat to do: {action}", error.unwrap_or_default());
        book.entry(&format!("{id} ({state} as `{reason}`)"), &said);
    }
    assert_eq!(relay.stop(SOON).await?, Some(0));
    let drain = run(&["run", "--drain", "--drain-timeout", "1", "--admin-listen", "off"]);
    let drain = drain.database(place.url()).amqp(rabbit.url()).kafka(kafka.brokers()).config(config);
    book.command("A drain that cannot end", drain).await
}

/// Of paths and ports, which differ from run to run.
fn without_numbers(text: &str) -> String {
    let mut out = String::new();
    for line in text.lines() {
        let mut line = line.to_owned();
        while let Some(start) = line.find("outbox-relay-").filter(|start| line[*start..].contains(".toml")) {
            let end = start + line[start..].find(".toml").unwrap_or(0) + ".toml".len();
            let before = line[..start].rfind(|letter: char| " '\"(`".contains(letter)).map_or(0, |index| index + 1);
            line.replace_range(before..end, "FILE");
        }
        let _ = writeln!(out, "{line}");
    }
    out
}

#[tokio::test]
async fn every_error_says_what_happened_where_and_what_to_do() -> Result<()> {
    let Some(kafka) = Kafka::connect_or_skip("every_error_says_what_happened_where_and_what_to_do")? else {
        return Ok(());
    };
    let place = Database::migrated().await?;
    let rabbit = Rabbit::connect().await?;
    let replacements = vec![
        (place.name().to_owned(), "DATABASE"),
        (format!("127.0.0.1:{}", place.port()?), "POSTGRES"),
        (rabbit.url().split('@').nth(1).and_then(|rest| rest.split('/').next()).unwrap_or("-").to_owned(), "RABBITMQ"),
        (kafka.brokers().to_owned(), "KAFKA"),
    ];
    let mut book = Book { text: HEAD.to_owned(), replacements };
    command_line(&mut book).await?;
    configuration(&mut book, place.url(), rabbit.url()).await?;
    services_that_refuse(&mut book, &place, &rabbit).await?;
    sources(&mut book, &place, &rabbit).await?;
    rows(&mut book, &place, &rabbit, &kafka).await?;
    let said = without_numbers(&book.text);
    let path = services::workspace_root().join("relay/ERRORS.md");
    if std::env::var_os("OUTBOX_TEST_BLESS").is_some() {
        std::fs::write(&path, &said)?;
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    for (number, (found, expected)) in said.lines().zip(expected.lines()).enumerate() {
        assert_eq!(found, expected, "line {} of relay/ERRORS.md; OUTBOX_TEST_BLESS=1 writes it anew", number + 1);
    }
    assert_eq!(said.lines().count(), expected.lines().count(), "relay/ERRORS.md has other entries");
    Ok(())
}
