use std::time::Duration;

use anyhow::Result;
use lapin::BasicProperties;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::types::{AMQPValue, FieldTable};
use outbox_tests::kafka::Kafka;
use outbox_tests::own_services::{kafka_tool, rabbitmqctl};
use outbox_tests::rabbit::{QueueType, Rabbit};
use outbox_tests::vhost::Vhost;
use outbox_tests::wait;
use rdkafka::config::ClientConfig;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord};

async fn publish(rabbit: &Rabbit, exchange: &str, routing_key: &str, ids: &[&str]) -> Result<()> {
    let channel = rabbit.channel().await?;
    channel.confirm_select(ConfirmSelectOptions::default()).await?;
    let mut headers = FieldTable::default();
    headers.insert("h".into(), AMQPValue::LongString("v".into()));
    for id in ids {
        let properties = BasicProperties::default()
            .with_message_id((*id).into())
            .with_content_type("text/plain".into())
            .with_timestamp(1_700_000_000)
            .with_delivery_mode(2)
            .with_headers(headers.clone());
        let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        let confirm =
            channel.basic_publish(exchange.into(), routing_key.into(), options, id.as_bytes(), properties).await?;
        assert!(confirm.await?.is_ack());
    }
    Ok(())
}

#[tokio::test]
async fn rabbit_reads_what_was_published_from_every_type_of_queue() -> Result<()> {
    let rabbit = Rabbit::connect().await?;
    let exchange = rabbit.unique("kit");
    rabbit.exchange(&exchange).await?;
    for (name, kind) in [("classic", QueueType::Classic), ("quorum", QueueType::Quorum), ("stream", QueueType::Stream)]
    {
        let queue = rabbit.unique(name);
        rabbit.queue(&queue, kind, &[]).await?;
        rabbit.bind(&queue, &exchange, &format!("{name}.#")).await?;
        publish(&rabbit, &exchange, &format!("{name}.x"), &["one", "two"]).await?;
        let received = match kind {
            QueueType::Stream => rabbit.stream_reader(&queue).await?.take(2, wait::SOON).await?,
            _ => rabbit.consume(&queue, 2, wait::SOON).await?,
        };
        let ids: Vec<_> = received.iter().map(|message| message.message_id.as_deref().unwrap()).collect();
        assert_eq!(ids, ["one", "two"], "{name}");
        assert_eq!(received[1].body, b"two");
        assert_eq!(received[0].header_text("h").as_deref(), Some("v"));
        assert_eq!(received[0].timestamp, Some(1_700_000_000));
        assert_eq!(received[0].content_type.as_deref(), Some("text/plain"));
        assert_eq!(received[0].delivery_mode, Some(2));
        assert_eq!(received[0].routing_key, format!("{name}.x"));
        assert!(!received[0].redelivered);
    }
    Ok(())
}

#[tokio::test]
async fn rabbit_says_how_many_messages_were_missing() -> Result<()> {
    let rabbit = Rabbit::connect().await?;
    let (exchange, queue) = (rabbit.unique("kit"), rabbit.unique("few"));
    rabbit.exchange_with_queue(&exchange, &queue).await?;
    publish(&rabbit, &exchange, "x", &["only"]).await?;
    wait::until_true("a ready message", wait::SOON, || async { Ok(rabbit.depth(&queue).await? == 1) }).await?;
    let error = rabbit.consume(&queue, 2, Duration::from_millis(300)).await.unwrap_err();
    assert!(format!("{error:#}").contains("1 came"), "{error:#}");
    publish(&rabbit, &exchange, "x", &["a", "b", "c"]).await?;
    assert_eq!(rabbit.consume_all(&queue, Duration::from_millis(300)).await?.len(), 3);
    rabbit.unbind(&queue, &exchange, "#").await?;
    assert_eq!(rabbit.purge(&queue).await?, 0);
    Ok(())
}

#[tokio::test]
async fn rabbitmqctl_talks_to_the_shared_node() -> Result<()> {
    assert!(rabbitmqctl(&["list_vhosts"]).await?.contains('/'));
    Ok(())
}

#[tokio::test]
async fn a_virtual_host_is_usable_and_goes_away() -> Result<()> {
    let vhost = Vhost::create().await?;
    let rabbit = Rabbit::connect_to(vhost.url()).await?;
    rabbit.exchange_with_queue("events", "all").await?;
    publish(&rabbit, "events", "x", &["inside"]).await?;
    assert_eq!(rabbit.consume("all", 1, wait::SOON).await?.len(), 1);
    drop(rabbit);
    let name = vhost.name().to_owned();
    drop(vhost);
    assert!(!rabbitmqctl(&["list_vhosts"]).await?.contains(&name));
    Ok(())
}

#[tokio::test]
async fn kafkas_own_programs_talk_to_the_shared_broker() -> Result<()> {
    let Some(kafka) = Kafka::connect_or_skip("kafkas_own_programs_talk_to_the_shared_broker")? else {
        return Ok(());
    };
    let topic = kafka.unique("tool");
    kafka.create_topic(&topic, 1, &[]).await?;
    let producer = "org.apache.kafka.tools.ConsoleProducer";
    let arguments = [
        producer,
        "--bootstrap-server",
        kafka.brokers(),
        "--topic",
        &topic,
        "--reader-property",
        "parse.key=true",
        "--reader-property",
        "key.separator=:",
    ];
    kafka_tool(&arguments, "k:v\n").await?;
    let received = kafka.consume(&topic, 1, wait::SOON).await?;
    assert_eq!((received[0].key.as_deref(), received[0].value.as_deref()), (Some(&b"k"[..]), Some(&b"v"[..])));
    Ok(())
}

#[tokio::test]
async fn kafka_reads_what_was_produced_nulls_included() -> Result<()> {
    let Some(kafka) = Kafka::connect_or_skip("kafka_reads_what_was_produced_nulls_included")? else {
        return Ok(());
    };
    let topic = kafka.unique("kit");
    kafka.create_topic(&topic, 3, &[("max.message.bytes", "2000")]).await?;
    assert!(kafka.consume_all(&topic).await?.is_empty());
    let producer: FutureProducer = ClientConfig::new().set("bootstrap.servers", kafka.brokers()).create()?;
    let headers = OwnedHeaders::new()
        .insert(Header { key: "id", value: Some("one") })
        .insert(Header { key: "nothing", value: None::<&str> });
    let record = FutureRecord::to(&topic).key("k").payload("value").partition(2).timestamp(1_700_000_000_123);
    producer.send(record.headers(headers), wait::SOON).await.map_err(|(error, _)| error)?;
    let tombstone = FutureRecord::<[u8], [u8]>::to(&topic).partition(0);
    producer.send(tombstone, wait::SOON).await.map_err(|(error, _)| error)?;
    let empty = FutureRecord::<[u8], [u8]>::to(&topic).partition(1).key(b"").payload(b"");
    producer.send(empty, wait::SOON).await.map_err(|(error, _)| error)?;

    let mut received = kafka.consume(&topic, 3, wait::SOON).await?;
    received.sort_by_key(|record| record.partition);
    assert_eq!((&received[0].key, &received[0].value), (&None, &None));
    assert_eq!((&received[1].key, &received[1].value), (&Some(vec![]), &Some(vec![])));
    assert_eq!(received[2].key.as_deref(), Some(b"k".as_slice()));
    assert_eq!(received[2].id().as_deref(), Some("one"));
    assert_eq!(received[2].header("nothing"), [None]);
    assert_eq!(received[2].timestamp, Some(1_700_000_000_123));
    assert_eq!(kafka.consume_all(&topic).await?.len(), 3);
    Ok(())
}
