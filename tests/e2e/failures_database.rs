//! Databases as they are: a black hole, a switch to read-only, a failover, a transaction pooler, a long reader at the
//! start, a table that the application changes under load, other time zones and locales, a login with the relay's
//! own rights. In each the relay goes on, or goes on by itself soon after.

use std::time::Duration;

use anyhow::Result;
use outbox_tests::database::{self, Database};
use outbox_tests::own_services::{OwnServices, Service};
use outbox_tests::proxy::{Direction, Proxy};
use outbox_tests::rabbit::{QueueType, Rabbit};
use outbox_tests::relay::{Launch, Relay};
use outbox_tests::wait::{self, SOON};
use outbox_tests::writer::Row;
use outbox_tests::{metrics, services};

use crate::scene::{Broker, Scene};

/// What a relay may take to come back once its database is there again, and room for a loaded machine.
const BACK: Duration = Duration::from_secs(60);

async fn rabbit() -> Result<Broker> {
    Ok(Broker::Rabbitmq(Rabbit::connect().await?))
}

async fn lives(relay: &Relay) -> Result<bool> {
    Ok(metrics::get(relay.admin().await?, "/livez").await?.status == 200)
}

/// Packets vanish, connections stay open, and new ones get no answer either.
#[tokio::test]
async fn f56_a_database_that_swallows_everything_is_given_up_and_found_again() -> Result<()> {
    let mut scene = Scene::rabbitmq().await?;
    let proxy = Proxy::start(scene.database.port()?).await?;
    let url = scene.database.url_through(proxy.port())?;
    let mut relay = scene.launch_at(&url, &scene.broker_address()).start()?;
    scene.commit(10, 10).await?;
    scene.wait_sent(10, SOON).await?;
    let connections = proxy.connections();
    proxy.drop_bytes(Direction::Requests);
    proxy.drop_bytes(Direction::Replies);
    scene.commit(100, 10).await?;
    relay.wait_log("no database session", SOON).await?;
    let redials = || async { Ok(proxy.connections() > connections && lives(&relay).await?) };
    wait::until_true("a new connection to be tried", SOON, redials).await?;
    // Old connections stay broken for ever; nobody closes them for the relay.
    proxy.forward(Direction::Requests);
    proxy.forward(Direction::Replies);
    scene.wait_all_sent(BACK).await?;
    scene.finish(0).await?;
    assert_eq!(scene.attempts().await?, 0, "a lost database uses up no attempt");
    assert_eq!(relay.stop(SOON).await?, Some(0));
    Ok(())
}

/// The server turns read-only under the relay, and back.
#[tokio::test]
async fn f61_a_switch_to_read_only_and_back_is_survived() -> Result<()> {
    let mut scene = Scene::rabbitmq().await?;
    let mut relay = scene.launch().start()?;
    scene.commit(10, 10).await?;
    scene.wait_sent(10, SOON).await?;
    let admin = database::connect(&services::database_url()?).await?;
    let name = scene.database.name().to_owned();
    // For this database alone; sessions that are open do not hear of it, so they are ended.
    admin.batch_execute(&format!("ALTER DATABASE {name} SET default_transaction_read_only = on")).await?;
    let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
               WHERE datname = $1 AND application_name = 'outbox-relay'";
    admin.query(end, &[&name]).await?;
    scene.commit(100, 10).await?;
    relay.wait_log("does not allow writes", SOON).await?;
    let unsent = || async { Ok(lives(&relay).await? && scene.count("sent").await? == 10) };
    wait::holds("the relay lives and sends nothing", Duration::from_secs(2), unsent).await?;
    admin.batch_execute(&format!("ALTER DATABASE {name} RESET default_transaction_read_only")).await?;
    scene.wait_all_sent(BACK).await?;
    scene.finish(10).await?;
    assert_eq!(scene.attempts().await?, 0);
    assert_eq!(relay.stop(SOON).await?, Some(0));
    Ok(())
}

/// A primary dies, its standby is promoted, and the relay knows both from one URL.
#[tokio::test]
async fn f61_a_promoted_standby_is_found_by_a_url_with_several_hosts() -> Result<()> {
    let own = OwnServices::start(&[Service::Postgres, Service::Standby]).await?;
    let (primary, standby) = (own.address(Service::Postgres)?, own.address(Service::Standby)?);
    let mut client = database::connect(&primary).await?;
    outbox_schema::migrate(&mut client, &outbox_schema::Options::default()).await?;
    let rabbit = Rabbit::connect().await?;
    let topic = rabbit.unique("failover");
    rabbit.queue(&topic, QueueType::Classic, &[]).await?;
    rabbit.bind(&topic, "amq.topic", &topic).await?;
    let (before, database) = primary.rsplit_once('/').unwrap();
    let both = format!("{before},127.0.0.1:{}/{database}", database::port_of(&standby)?);
    let mut relay = Launch::run().database(&both).amqp(rabbit.url()).env("OUTBOX__LEASE__TTL_MS", "3000").start()?;
    for number in 0..100 {
        Row::new(&format!("before-{number}"), &topic).key(&format!("k{}", number % 7)).insert(&client).await?;
    }
    let mut reader = rabbit.reader(&topic, 100).await?;
    let received = reader.take(100, SOON).await?;
    // An asynchronous standby may lag; what it lacks would be lost, which is outside the promise.
    let lag = "SELECT coalesce(bool_and(replay_lsn >= pg_current_wal_flush_lsn()), false) FROM pg_stat_replication";
    let caught_up = || async { Ok(client.query_one(lag, &[]).await?.try_get::<_, bool>(0)?) };
    wait::until_true("the standby to catch up", SOON, caught_up).await?;
    own.crash(Service::Postgres).await?;
    relay.wait_log("no database session", SOON).await?;
    let promoted = database::connect(&standby).await?;
    let answer = promoted.query_one("SELECT pg_promote(true, 60)", &[]).await?;
    assert!(answer.try_get::<_, bool>(0)?);
    for number in 0..100 {
        Row::new(&format!("after-{number}"), &topic).key(&format!("k{}", number % 7)).insert(&promoted).await?;
    }
    let mut ids: std::collections::HashSet<_> = received.into_iter().filter_map(|message| message.message_id).collect();
    while ids.len() < 200 {
        let message = reader.next(BACK).await?;
        anyhow::ensure!(message.is_some(), "after the failover {} of 200 rows came", ids.len());
        ids.extend(message.and_then(|message| message.message_id));
    }
    assert!(lives(&relay).await?);
    assert_eq!(relay.stop(SOON).await?, Some(0));
    Ok(())
}

/// Four relays over two server connections that change hands after each transaction.
#[tokio::test]
async fn f70_f71_four_relays_work_through_a_transaction_pooler_with_two_connections() -> Result<()> {
    let own = OwnServices::start(&[Service::Postgres, Service::Pgbouncer]).await?;
    let mut scene = Scene::at(&own.address(Service::Postgres)?, rabbit().await?).await?;
    let pooled_url = Database::url_of(&own.address(Service::Pgbouncer)?, scene.database.name())?;
    let mut relays = Vec::new();
    for _ in 0..4 {
        relays
            .push(scene.launch_at(&pooled_url, &scene.broker_address()).env("OUTBOX__LEASE__TTL_MS", "10000").start()?);
    }
    for _ in 0..10 {
        scene.commit(200, 20).await?;
    }
    scene.finish(0).await?;
    // A clean stop gives its lanes back through the pooler too.
    assert_eq!(relays.remove(0).stop(SOON).await?, Some(0));
    scene.commit(200, 20).await?;
    scene.finish(0).await?;
    let idle = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
                AND pid <> pg_backend_pid() AND state LIKE 'idle in transaction%' \
                AND state_change < clock_timestamp() - interval '2 seconds'";
    assert_eq!(scene.client.query_one(idle, &[]).await?.try_get::<_, i64>(0)?, 0);
    for mut relay in relays {
        assert_eq!(relay.stop(SOON).await?, Some(0));
    }
    Ok(())
}

/// A reader that never ends is there before the relay, which must not ask for a lock that writers would queue behind.
#[tokio::test]
async fn f86_beside_a_long_reader_the_relay_starts_and_writers_go_on() -> Result<()> {
    let mut scene = Scene::rabbitmq().await?;
    let mut reader = scene.database.client().await?;
    let long = reader.transaction().await?;
    long.query("SELECT count(*) FROM outbox.message, outbox.held, outbox.lane, outbox.relay", &[]).await?;
    let migrate = Launch::new(["migrate"]).database(scene.database.url()).finish(SOON).await?;
    assert_eq!(migrate.code, Some(0), "{}", migrate.stderr);
    let mut relay = scene.launch().start()?;
    for _ in 0..5 {
        scene.commit(50, 10).await?;
    }
    scene.finish(0).await?;
    let strong = "SELECT count(*) FROM pg_locks WHERE database = (SELECT oid FROM pg_database WHERE datname = \
                  current_database()) AND locktype = 'relation' AND mode LIKE 'Access%Exclusive%'";
    assert_eq!(scene.client.query_one(strong, &[]).await?.try_get::<_, i64>(0)?, 0);
    long.rollback().await?;
    assert_eq!(relay.stop(SOON).await?, Some(0));
    Ok(())
}

/// The application adds a column, an index and a default while rows flow, and the table is vacuumed and analysed.
#[tokio::test]
async fn a_table_that_is_altered_and_vacuumed_under_load_loses_nothing() -> Result<()> {
    let mut scene = Scene::rabbitmq().await?;
    let mut relay = scene.launch().start()?;
    let changes = [
        "ALTER TABLE outbox.message ADD COLUMN tenant text",
        "VACUUM ANALYZE outbox.message",
        "ALTER TABLE outbox.message ADD COLUMN weight integer NOT NULL DEFAULT 7",
        "CREATE INDEX ON outbox.message (tenant)",
        "ALTER TABLE outbox.message DROP COLUMN tenant",
        "VACUUM FULL outbox.message",
        "REINDEX TABLE outbox.message",
    ];
    for change in changes {
        scene.commit(200, 20).await?;
        scene.client.batch_execute(change).await?;
        scene.commit(50, 20).await?;
    }
    // A claim that the change interrupted may cost its session, never a row.
    scene.finish(changes.len() * 250).await?;
    assert_eq!(scene.attempts().await?, 0);
    assert_eq!(relay.stop(SOON).await?, Some(0));
    Ok(())
}

/// A login that has only the relay's role, in a database with another time zone, date style, float format, isolation
/// and an empty search path.
#[tokio::test]
async fn odd_defaults_and_the_relays_own_rights_are_enough() -> Result<()> {
    let mut scene = Scene::rabbitmq().await?;
    scene.client.batch_execute(outbox_schema::ROLES_SQL).await?;
    let (name, login) = (scene.database.name().to_owned(), format!("login_{}", scene.database.name()));
    scene
        .client
        .batch_execute(&format!(
            "CREATE ROLE {login} LOGIN PASSWORD 'outbox' IN ROLE outbox_relay;
             ALTER DATABASE {name} SET timezone = 'Asia/Kathmandu';
             ALTER DATABASE {name} SET datestyle = 'German, DMY';
             ALTER DATABASE {name} SET intervalstyle = 'sql_standard';
             ALTER DATABASE {name} SET extra_float_digits = -5;
             ALTER DATABASE {name} SET bytea_output = 'escape';
             ALTER DATABASE {name} SET search_path = '';
             ALTER DATABASE {name} SET standard_conforming_strings = off;
             ALTER DATABASE {name} SET default_transaction_isolation = 'serializable'"
        ))
        .await?;
    let url = scene.database.url().replace("postgres:outbox@", &format!("{login}:outbox@"));
    anyhow::ensure!(url.contains(&login), "the address has no user to replace");
    let mut relay = scene.launch_at(&url, &scene.broker_address()).start()?;
    for _ in 0..5 {
        scene.commit(100, 20).await?;
    }
    let soon = scene.row(20).delayed(1.0);
    scene.commit_rows(&[soon]).await?;
    scene.finish(0).await?;
    relay.wait_ready(SOON).await?;
    let code = relay.stop(SOON).await?;
    scene.client.batch_execute(&format!("DROP OWNED BY {login}; DROP ROLE {login}")).await?;
    assert_eq!(code, Some(0));
    Ok(())
}

/// A collation that sorts and folds otherwise.
#[tokio::test]
async fn another_locale_of_the_database_changes_nothing() -> Result<()> {
    let admin = database::connect(&services::database_url()?).await?;
    let name = format!("test_{}", fastrand::u64(..));
    admin
        .batch_execute(&format!(
            "CREATE DATABASE {name} ENCODING 'UTF8' TEMPLATE template0 LOCALE_PROVIDER icu ICU_LOCALE 'tr-TR'"
        ))
        .await?;
    let url = Database::url_of(&services::database_url()?, &name)?;
    let mut client = database::connect(&url).await?;
    outbox_schema::migrate(&mut client, &outbox_schema::Options::default()).await?;
    let rabbit = Rabbit::connect().await?;
    let (exchange, queue) = (rabbit.unique("locale"), rabbit.unique("locale"));
    rabbit.exchange_with_queue(&exchange, &queue).await?;
    for (number, key) in ["I", "i", "ı", "İ", "ß", "ss"].iter().cycle().take(60).enumerate() {
        Row::new(&format!("{key}-{number}"), "t").key(key).insert(&client).await?;
    }
    let arguments = ["run", "--drain", "--admin-listen", "off"];
    let launch = Launch::new(arguments).database(&url).amqp(rabbit.url()).env("OUTBOX__RABBITMQ__EXCHANGE", &exchange);
    let finished = launch.finish(SOON * 3).await?;
    drop(client);
    admin.batch_execute(&format!("DROP DATABASE {name} WITH (FORCE)")).await?;
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    let received = rabbit.consume(&queue, 60, SOON).await?;
    let mut last = std::collections::HashMap::new();
    for message in &received {
        let id = message.message_id.clone().unwrap_or_default();
        let (key, number) = id.rsplit_once('-').unwrap();
        let number: usize = number.parse()?;
        assert!(last.insert(key.to_owned(), number).is_none_or(|before| before < number), "{id} is late");
    }
    Ok(())
}
