//! The least that Kafka must grant the relay, as SECURITY.md names it: with it rows flow, without it they wait.

use anyhow::Result;
use outbox_tests::kafka::Kafka;
use outbox_tests::own_kafka::{Listener, OwnKafka};
use outbox_tests::relay::{Launch, Relay};
use outbox_tests::services;
use outbox_tests::wait::{self, SOON};
use outbox_tests::writer::Row;

use crate::scene::{Broker, Scene};

const ROWS: usize = 50;

fn login(password: &str) -> String {
    format!(
        "[kafka.properties]\n\"security.protocol\" = \"sasl_plaintext\"\n\"sasl.mechanism\" = \"PLAIN\"\n\
         \"sasl.username\" = \"relay\"\n\"sasl.password\" = \"{password}\"\n"
    )
}

/// Whoever comes without a login is the administrator; the relay's login grants nothing by itself.
async fn guarded() -> Result<OwnKafka> {
    let user = "org.apache.kafka.common.security.plain.PlainLoginModule required user_relay=\"secret\";";
    let settings = "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer\n\
                    super.users=User:ANONYMOUS\n";
    OwnKafka::start(&[Listener::new("LOGIN", "SASL_PLAINTEXT", &[]).logging_in("PLAIN", user)], settings).await
}

async fn grant(own: &OwnKafka, operations: &[&str], topic: &str) -> Result<()> {
    let mut arguments = vec!["--add", "--allow-principal", "User:relay", "--topic", topic];
    for operation in operations {
        arguments.extend(["--operation", operation]);
    }
    own.administer("org.apache.kafka.tools.AclCommand", &arguments).await.map(|_| ())
}

fn with_login(scene: &Scene, own: &OwnKafka, password: &str) -> Result<Launch> {
    Ok(logged_in(scene.launch_at(scene.database.url(), &own.address("LOGIN")?), password))
}

fn logged_in(launch: Launch, password: &str) -> Launch {
    launch.config(&login(password)).env("OUTBOX__RETRY__MAX_MS", "500")
}

/// Rows of a topic that the relay may not write to wait with the word of what to grant, and go once it is granted.
async fn waits_for_its_right(scene: &Scene, own: &OwnKafka, kafka: &Kafka, relay: &Relay) -> Result<()> {
    let closed = kafka.unique("closed");
    kafka.create_topic(&closed, 1, &[]).await?;
    for number in 0..ROWS {
        Row::new(&format!("closed-{number}"), &closed).key(&format!("closed-{number}")).insert(&scene.client).await?;
    }
    let error = wait::until("a row to wait", SOON, || async {
        // Rows behind the first ones wait for the same reason, and only those that were tried have words.
        let waits = "SELECT last_error FROM outbox.message_status WHERE state = 'waiting' AND last_error <> ''";
        Ok(scene.client.query(waits, &[]).await?.first().map(|row| row.get::<_, String>(0)))
    })
    .await?;
    assert!(error.contains(&closed) && error.contains("Write and Describe"), "{error}");
    grant(own, &["Write", "Describe"], &closed).await?;
    assert_eq!(kafka.consume(&closed, ROWS, SOON).await?.len(), ROWS);
    assert_eq!(relay.metrics().await?.sum("outbox_parked_messages_total", &[]), 0.0);
    Ok(())
}

#[tokio::test]
async fn write_and_describe_on_its_topics_are_all_that_kafka_must_grant() -> Result<()> {
    if Kafka::connect_or_skip("write_and_describe_on_its_topics_are_all_that_kafka_must_grant")?.is_none() {
        return Ok(());
    }
    let own = guarded().await?;
    let kafka = Kafka::at(&own.plain()?);
    let mut scene = Scene::at(&services::database_url()?, Broker::Kafka(Kafka::at(kafka.brokers()))).await?;
    grant(&own, &["Write", "Describe"], &scene.topic).await?;

    let refused = with_login(&scene, &own, "another")?.finish(SOON).await?;
    assert_eq!(refused.code, Some(78), "{}", refused.stderr);
    assert!(!refused.stderr.contains("another"), "{}", refused.stderr);

    let check = Launch::new(["check"]).database(scene.database.url()).kafka(&own.address("LOGIN")?);
    let checked = logged_in(check, "secret").finish(SOON).await?;
    assert_eq!(checked.code, Some(0), "{}{}", checked.stdout, checked.stderr);

    let mut relay = with_login(&scene, &own, "secret")?.start()?;
    scene.commit(ROWS, 10).await?;
    let written = scene.written();
    scene.read_distinct(written, SOON).await?;
    waits_for_its_right(&scene, &own, &kafka, &relay).await?;
    scene.finish(0).await?;
    relay.wait_ready(SOON).await?;
    assert_eq!(relay.stop(SOON).await?, Some(0));
    Ok(())
}
