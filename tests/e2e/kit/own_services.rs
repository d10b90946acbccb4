use anyhow::Result;
use outbox_tests::database::{self, Database};
use outbox_tests::own_services::{OwnServices, Service};
use outbox_tests::rabbit::Rabbit;
use outbox_tests::wait;

#[tokio::test]
async fn an_own_postgres_survives_a_crash() -> Result<()> {
    let own = OwnServices::start(&[Service::Postgres]).await?;
    let url = own.address(Service::Postgres)?;
    let database = Database::empty_on(&url).await?;
    let client = database.client().await?;
    client.batch_execute("CREATE TABLE kept (id int); INSERT INTO kept VALUES (1)").await?;
    own.crash(Service::Postgres).await?;
    assert!(database::connect(&url).await.is_err());
    own.resume(Service::Postgres).await?;
    let row = database.client().await?.query_one("SELECT count(*) FROM kept", &[]).await?;
    assert_eq!(row.try_get::<_, i64>(0)?, 1);
    Ok(())
}

/// While a service of a set is down, nothing listens on its ports, and they are still the set's.
#[tokio::test]
async fn a_crashed_set_keeps_its_ports() -> Result<()> {
    let crashed = OwnServices::start(&[Service::Postgres]).await?;
    let url = crashed.address(Service::Postgres)?;
    crashed.crash(Service::Postgres).await?;
    let other = OwnServices::start(&[Service::Postgres]).await?;
    assert_ne!(other.address(Service::Postgres)?, url);
    crashed.resume(Service::Postgres).await?;
    database::connect(&url).await?;
    Ok(())
}

#[tokio::test]
async fn an_own_rabbitmq_can_be_frozen_and_have_an_alarm() -> Result<()> {
    let own = OwnServices::start(&[Service::Rabbitmq]).await?;
    let rabbit = Rabbit::connect_to(&own.address(Service::Rabbitmq)?).await?;
    own.rabbitmqctl(&["set_vm_memory_high_watermark", "0.00001"]).await?;
    own.rabbitmqctl(&["set_vm_memory_high_watermark", "0.4"]).await?;
    own.freeze(Service::Rabbitmq)?;
    let silent = wait::bounded("a frozen broker", std::time::Duration::from_millis(300), rabbit.channel()).await;
    assert!(silent.is_err());
    own.thaw(Service::Rabbitmq)?;
    wait::bounded("a channel", wait::SOON, rabbit.channel()).await??;
    Ok(())
}
