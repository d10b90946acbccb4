//! Spans over OTLP: one a publication of a row with a sampled `traceparent`, true to its outcome, and of no weight to
//! delivery, whatever the receiver does.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use outbox_tests::certificates::Authority;
use outbox_tests::files::Files;
use outbox_tests::otlp::{Mode, Receiver, Span, SpanKind, StatusCode, attribute, hex};
use outbox_tests::proxy::Direction;
use outbox_tests::relay::{Launch, Relay};
use outbox_tests::wait::{self, SOON};
use outbox_tests::writer::Row;
use serde_json::json;

use crate::scene::{Broker, Kind, Scene};

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "b7ad6b7169203331";
const STATE: &str = "vendor=opaque";
/// Of payloads, headers and the receiver's token: in no span, in no log, and the token only where it belongs.
const PRIVATE: &str = "hunter2";

fn traceparent(flags: &str) -> String {
    format!("00-{TRACE}-{PARENT}-{flags}")
}

/// The scene's next row with this `traceparent`, which must arrive as it is.
fn row(scene: &mut Scene, traceparent: Option<&str>) -> Row {
    let mut row = scene.row(1_000).text(&format!("{{\"card\": \"{PRIVATE}\"}}"));
    let mut headers = BTreeMap::from([("cookie".to_owned(), PRIVATE.to_owned())]);
    if let Some(traceparent) = traceparent {
        headers.insert("traceparent".to_owned(), traceparent.to_owned());
        headers.insert("tracestate".to_owned(), STATE.to_owned());
    }
    row.expected_headers = headers.clone();
    row.headers = Some(json!(headers));
    row
}

fn with_spans(launch: Launch, receiver: &Receiver) -> Launch {
    launch.env("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint())
}

async fn counted(relay: &Relay, what: &str) -> Result<f64> {
    Ok(relay.metrics().await?.value(&format!("outbox_spans_{what}_total"), &[]).unwrap_or(f64::NAN))
}

async fn wait_counted(relay: &Relay, what: &str, count: f64) -> Result<()> {
    let enough = || async { Ok(counted(relay, what).await? >= count) };
    wait::until_true(&format!("{count} spans to be {what}"), SOON, enough).await
}

fn of<'a>(spans: &'a [Span], id: &str) -> Vec<&'a Span> {
    let is = |span: &&Span| attribute(&span.attributes, "messaging.message.id").as_deref() == Some(id);
    spans.iter().filter(is).collect()
}

fn must_belong_to_the_row(span: &Span) {
    assert_eq!((hex(&span.trace_id), hex(&span.parent_span_id)), (TRACE.to_owned(), PARENT.to_owned()));
    assert_eq!(span.links.len(), 1);
    assert_eq!((hex(&span.links[0].trace_id), hex(&span.links[0].span_id)), (TRACE.to_owned(), PARENT.to_owned()));
    assert_eq!((span.trace_state.as_str(), span.links[0].trace_state.as_str()), (STATE, STATE));
    assert_eq!(span.flags & 1, 1, "sampled");
    assert_eq!(span.kind(), SpanKind::Client);
    assert!(
        span.end_time_unix_nano >= span.start_time_unix_nano && span.start_time_unix_nano > 1_700_000_000_000_000_000
    );
}

fn must_be_ok(span: &Span) {
    must_belong_to_the_row(span);
    assert_eq!(span.status.as_ref().map_or(StatusCode::Unset, |status| status.code()), StatusCode::Unset);
    assert_eq!(attribute(&span.attributes, "error.type"), None);
}

fn must_say(span: &Span, reason: &str) {
    must_belong_to_the_row(span);
    assert_eq!(attribute(&span.attributes, "error.type").as_deref(), Some(reason), "{span:?}");
    let status = span.status.clone().unwrap_or_default();
    assert_eq!(status.code(), StatusCode::Error, "{span:?}");
    assert!(!status.message.is_empty(), "a reason without words");
}

/// Rows of every kind, of which one is sampled.
async fn only_the_sampled_row_has_a_span(kind: Kind, test: &str) -> Result<()> {
    let Some(mut scene) = Scene::new(kind, test).await? else { return Ok(()) };
    let receiver = Receiver::start().await?;
    let (sampled, unsampled) = (traceparent("01"), traceparent("00"));
    let sampled = row(&mut scene, Some(&sampled));
    let (id, key) = (sampled.id.clone(), sampled.key.clone().context("the row has a key")?);
    let others = [Some(unsampled.as_str()), Some("00-not-a-trace-01"), None].map(|text| row(&mut scene, text));
    let rows: Vec<Row> = others.into_iter().chain([sampled]).collect();
    scene.commit_rows(&rows).await?;
    let launch = with_spans(scene.launch(), &receiver)
        .env("OTEL_EXPORTER_OTLP_HEADERS", format!("authorization=Bearer%20{PRIVATE}"))
        .env("OTEL_SERVICE_NAME", "shop")
        .env("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test,service.name=other")
        .env("OUTBOX__LOG__LEVEL", "trace");
    let mut relay = launch.start()?;
    // What arrives is what was inserted, `traceparent` and all.
    scene.finish(0).await?;
    wait_counted(&relay, "exported", 1.0).await?;
    assert_eq!(counted(&relay, "dropped").await?, 0.0);
    assert_eq!(relay.stop(SOON).await?, Some(0));

    let spans = receiver.spans();
    assert_eq!(spans.len(), 1, "{spans:?}");
    let span = &spans[0];
    must_be_ok(span);
    let says = |name: &str| attribute(&span.attributes, name).unwrap_or_default();
    assert_eq!((says("messaging.message.id"), says("outbox.attempt")), (id, "1".to_owned()));
    assert_eq!((says("messaging.operation.type"), says("messaging.operation.name")), ("send".into(), "send".into()));
    let topic = scene.topic.clone();
    match kind {
        Kind::Rabbitmq => {
            assert_eq!((span.name.as_str(), says("messaging.system")), ("send amq.topic", "rabbitmq".into()));
            assert_eq!(says("messaging.destination.name"), format!("amq.topic:{topic}"));
            assert_eq!(says("messaging.rabbitmq.destination.routing_key"), topic);
        }
        Kind::Kafka => {
            assert_eq!((span.name.clone(), says("messaging.system")), (format!("send {topic}"), "kafka".into()));
            assert_eq!((says("messaging.destination.name"), says("messaging.kafka.message.key")), (topic, key));
        }
    }
    let request = &receiver.requests()[0];
    let resource = request.message.resource_spans[0].resource.clone().unwrap_or_default().attributes;
    assert_eq!(attribute(&resource, "service.name").as_deref(), Some("shop"));
    assert_eq!(attribute(&resource, "deployment.environment.name").as_deref(), Some("test"));
    assert!(attribute(&resource, "service.instance.id").is_some());
    assert!(request.head.starts_with("POST /v1/traces HTTP/1.1"), "{}", request.head);
    assert!(request.head.contains(&format!("authorization: Bearer {PRIVATE}")), "{}", request.head);
    assert!(!request.body.windows(PRIVATE.len()).any(|part| part == PRIVATE.as_bytes()), "a span tells too much");
    assert!(!relay.log().contains(PRIVATE), "the log tells too much");
    Ok(())
}

#[tokio::test]
async fn rabbitmq_only_a_row_in_a_sampled_trace_has_a_span() -> Result<()> {
    only_the_sampled_row_has_a_span(Kind::Rabbitmq, "rabbitmq_only_a_row_in_a_sampled_trace_has_a_span").await
}

#[tokio::test]
async fn kafka_only_a_row_in_a_sampled_trace_has_a_span() -> Result<()> {
    only_the_sampled_row_has_a_span(Kind::Kafka, "kafka_only_a_row_in_a_sampled_trace_has_a_span").await
}

#[tokio::test]
async fn a_row_that_comes_back_has_spans_of_errors_until_it_goes() -> Result<()> {
    let mut scene = Scene::rabbitmq().await?;
    let receiver = Receiver::start().await?;
    let mut nowhere = row(&mut scene, Some(&traceparent("01")));
    nowhere.topic = format!("{}.nowhere", scene.topic);
    let id = nowhere.id.clone();
    scene.commit_rows(&[nowhere]).await?;
    let launch = with_spans(scene.launch(), &receiver).config("[retry]\ninitial_ms = 50\nmax_ms = 100\n");
    let mut relay = launch.start()?;
    receiver.wait_spans(2, SOON).await?;
    scene.bind_also(&format!("{}.nowhere", scene.topic)).await?;
    scene.finish(0).await?;
    assert_eq!(relay.stop(SOON).await?, Some(0));

    let spans = receiver.spans();
    assert_eq!(of(&spans, &id).len(), spans.len());
    let (last, before) = spans.split_last().context("no span")?;
    must_be_ok(last);
    for span in before {
        must_say(span, "unroutable");
        // An address that is missing uses up no attempt.
        assert_eq!(attribute(&span.attributes, "outbox.attempt").as_deref(), Some("1"));
    }
    let ids: std::collections::HashSet<_> = spans.iter().map(|span| &span.span_id).collect();
    assert_eq!(ids.len(), spans.len(), "each publication has a span of its own");
    Ok(())
}

#[tokio::test]
async fn a_row_without_an_answer_has_a_span_that_says_so() -> Result<()> {
    let mut scene = Scene::rabbitmq().await?;
    let receiver = Receiver::start().await?;
    let proxy = scene.broker_proxy().await?;
    let launch = scene.launch_at(scene.database.url(), &proxy.address).env("OUTBOX__CONFIRM__TIMEOUT_MS", "1000");
    let mut relay = with_spans(launch, &receiver).start()?;
    // Every channel is open before the broker falls silent.
    scene.commit(200, 200).await?;
    scene.wait_sent(200, SOON).await?;
    proxy.drop_bytes(Direction::Replies);
    traced(&mut scene).await?;
    let spans = receiver.wait_spans(1, SOON).await?;
    must_say(&spans[0], "unknown");
    proxy.heal();
    proxy.cut();
    scene.finish(10).await?;
    assert_eq!(relay.stop(SOON).await?, Some(0));
    must_be_ok(receiver.spans().last().context("no span")?);
    Ok(())
}

/// A compacted topic takes no record without key, which is the row's own fault.
#[tokio::test]
async fn spans_number_the_attempts_of_a_row() -> Result<()> {
    let Some(mut scene) = Scene::new(Kind::Kafka, "spans_number_the_attempts_of_a_row").await? else { return Ok(()) };
    let receiver = Receiver::start().await?;
    let Broker::Kafka(kafka) = &scene.broker else { anyhow::bail!("Kafka is meant") };
    let topic = kafka.unique("compacted");
    kafka.create_topic(&topic, 1, &[("cleanup.policy", "compact")]).await?;
    let mut refused = row(&mut scene, Some(&traceparent("01")));
    (refused.topic, refused.key) = (topic, None);
    refused.insert(&scene.client).await?;
    let config = "[retry]\nattempts_max = 3\nattempts_min_age_ms = 0\ninitial_ms = 50\nmax_ms = 100\n";
    let mut relay = with_spans(scene.launch(), &receiver).config(config).start()?;
    let parked = || async { Ok(scene.count("parked").await? == 1) };
    wait::until_true("the row to be parked", SOON, parked).await?;
    assert_eq!(relay.stop(SOON).await?, Some(0));
    let spans = receiver.spans();
    let attempts: Vec<_> = spans.iter().filter_map(|span| attribute(&span.attributes, "outbox.attempt")).collect();
    assert_eq!(attempts, ["1", "2", "3"]);
    for span in &spans {
        must_say(span, "rejected");
    }
    Ok(())
}

const TOLD: &str = "spans cannot be exported";

fn told(relay: &Relay) -> usize {
    relay.log().lines().filter(|line| line.contains(TOLD)).count()
}

/// Commits one row in a sampled trace.
async fn traced(scene: &mut Scene) -> Result<()> {
    let traced = row(scene, Some(&traceparent("01")));
    scene.commit_rows(&[traced]).await
}

/// More traced rows than wait for their export.
async fn insert_many(scene: &Scene, rows: usize) -> Result<()> {
    let sql = "INSERT INTO outbox.message (idempotency_key, topic, payload, headers)
               SELECT 'many-' || n, $1, '{}', jsonb_build_object('traceparent', $2::text)
                 FROM generate_series(1, $3::bigint) n";
    scene.client.execute(sql, &[&scene.topic, &traceparent("01"), &i64::try_from(rows)?]).await?;
    Ok(())
}

/// Ten thousand rows go while not one span is taken, and a stop waits within its grace.
#[tokio::test]
async fn a_receiver_that_hangs_holds_up_no_row_and_no_stop() -> Result<()> {
    let scene = Scene::rabbitmq().await?;
    let receiver = Receiver::start().await?;
    receiver.set(Mode::Hang);
    insert_many(&scene, 12_000).await?;
    let launch = with_spans(scene.launch(), &receiver).env("OUTBOX__SHUTDOWN__GRACE_MS", "3000");
    let mut relay = launch.start()?;
    scene.wait_sent(12_000, SOON * 2).await?;
    let (exported, dropped) = (counted(&relay, "exported").await?, counted(&relay, "dropped").await?);
    assert!(exported == 0.0 && dropped > 0.0, "{exported} exported, {dropped} dropped");
    assert!(receiver.seen() > 0, "the receiver was never asked");
    // Whoever waits for the receiver itself hears of its silence instead.
    assert_eq!(relay.stop(SOON).await?, Some(0));
    assert!(relay.log().contains("spans are lost"), "the end waited for the receiver");
    Ok(())
}

#[tokio::test]
async fn a_receiver_that_is_away_or_refuses_is_told_of_once_and_gets_spans_later() -> Result<()> {
    let mut scene = Scene::rabbitmq().await?;
    let receiver = Receiver::start().await?;
    receiver.set(Mode::Refuse(503));
    let mut relay = with_spans(scene.launch(), &receiver).start()?;
    traced(&mut scene).await?;
    let line = relay.wait_log(TOLD, SOON).await?;
    assert!(line.contains("the receiver answered 503"), "{line}");
    wait::until_true("a second try", SOON, || async { Ok(receiver.seen() >= 2) }).await?;
    assert_eq!(told(&relay), 1);
    receiver.set(Mode::Take);
    traced(&mut scene).await?;
    relay.wait_log("takes them again", SOON).await?;
    receiver.wait_spans(1, SOON).await?;
    // What will not be taken later either is not kept, and what is rejected is not exported.
    for mode in [Mode::Refuse(400), Mode::Reject(1)] {
        receiver.set(mode);
        let before = counted(&relay, "dropped").await?;
        traced(&mut scene).await?;
        wait_counted(&relay, "dropped", before + 1.0).await?;
    }
    assert_eq!(told(&relay), 2);
    drop(receiver);
    traced(&mut scene).await?;
    let away = || async { Ok(told(&relay) == 3) };
    wait::until_true("the receiver to be missed", SOON, away).await?;
    scene.finish(0).await?;
    assert_eq!(relay.stop(SOON).await?, Some(0));
    assert_eq!(told(&relay), 3);
    Ok(())
}

/// One traced row under this environment: its span comes, or the relay says why it cannot.
async fn expect(scene: &mut Scene, receiver: &Receiver, env: &[(&str, &String)], refused: Option<&str>) -> Result<()> {
    let before = receiver.spans().len();
    traced(scene).await?;
    let launch = with_spans(scene.launch(), receiver);
    let mut relay = env.iter().fold(launch, |launch, (name, value)| launch.env(*name, *value)).start()?;
    scene.wait_all_sent(SOON).await?;
    match refused {
        Some(words) => {
            let line = relay.wait_log(TOLD, SOON).await?;
            ensure!(line.contains(words), "{line}");
        }
        None => must_be_ok(receiver.wait_spans(before + 1, SOON).await?.last().context("no span")?),
    }
    for (certificate, variable) in [("ca", CA), ("client", CERTIFICATE)] {
        let labels = [("peer", "otlp"), ("certificate", certificate)];
        let ends = relay.metrics().await?.value("outbox_certificate_not_after_timestamp_seconds", &labels);
        ensure!(ends.is_some() == env.iter().any(|(name, _)| *name == variable), "{certificate}: {ends:?}");
    }
    assert_eq!(relay.stop(SOON).await?, Some(0));
    assert_eq!(receiver.spans().len(), before + usize::from(refused.is_none()));
    Ok(())
}

const CA: &str = "OTEL_EXPORTER_OTLP_CERTIFICATE";
const CERTIFICATE: &str = "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE";
const KEY: &str = "OTEL_EXPORTER_OTLP_CLIENT_KEY";

#[tokio::test]
async fn spans_go_over_tls_to_a_receiver_that_can_be_believed() -> Result<()> {
    let (authority, other, files) = (Authority::new("authority")?, Authority::new("other")?, Files::new("spans")?);
    let (right, wrong) = (files.write("right", &authority.pem())?, files.write("wrong", &other.pem())?);
    let server = authority.server(&["127.0.0.1"])?;
    let mut scene = Scene::rabbitmq().await?;

    let receiver = Receiver::start_tls(&server, None).await?;
    let untrusted = "the receiver's certificate is not trusted: no authority in otel.ca_file";
    expect(&mut scene, &receiver, &[(CA, &wrong)], Some(untrusted)).await?;
    let untrusted = "no authority in the system's trust store signed it";
    expect(&mut scene, &receiver, &[("SSL_CERT_FILE", &wrong)], Some(untrusted)).await?;
    expect(&mut scene, &receiver, &[(CA, &right)], None).await?;
    expect(&mut scene, &receiver, &[("SSL_CERT_FILE", &right)], None).await?;

    let receiver = Receiver::start_tls(&server, Some(&authority)).await?;
    let own = authority.client("relay")?;
    let (certificate, key) = (files.write("certificate", &own.certificate)?, files.write("key", &own.key)?);
    expect(&mut scene, &receiver, &[(CA, &right)], Some("")).await?;
    expect(&mut scene, &receiver, &[(CA, &right), (CERTIFICATE, &certificate), (KEY, &key)], None).await?;
    scene.finish(0).await.map(|_| ())
}
