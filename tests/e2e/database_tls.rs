//! TLS to PostgreSQL: who is believed and who is not, in whose words; and certificates that change under a relay.

use std::time::Duration;

use anyhow::{Context, Result};
use outbox_tests::certificates::{Authority, Issued};
use outbox_tests::database::{self, Database};
use outbox_tests::metrics;
use outbox_tests::proxy::{Direction, Proxy};
use outbox_tests::rabbit::Rabbit;
use outbox_tests::relay::{Finished, Launch};
use outbox_tests::tls_postgres::TlsPostgres;
use outbox_tests::wait::{self, SOON};

use crate::scene::{Broker, Scene};

const BACK: Duration = Duration::from_secs(60);
const HERE: &str = "127.0.0.1";
/// What PostgreSQL's protocol begins such a request with.
const CANCEL_REQUEST: [u8; 4] = 80_877_102_u32.to_be_bytes();

/// Logins that get in by TLS alone: with a password, with a certificate, with both.
const LOGINS: &str = "CREATE ROLE secured SUPERUSER LOGIN PASSWORD 'outbox';
                      CREATE ROLE certified SUPERUSER LOGIN;
                      CREATE ROLE doubly SUPERUSER LOGIN PASSWORD 'outbox'";
const RULES: [&str; 3] = [
    "hostssl all secured 127.0.0.1/32 scram-sha-256",
    "hostssl all certified 127.0.0.1/32 cert",
    "hostssl all doubly 127.0.0.1/32 scram-sha-256 clientcert=verify-full",
];

async fn server() -> Result<TlsPostgres> {
    let server = TlsPostgres::start().await?;
    server.client().batch_execute(LOGINS).await?;
    server.allow(&RULES).await?;
    Ok(server)
}

/// The address of a login that has a password, whether it is asked for or not.
fn address(plain: &str, login: &str, parameters: &str) -> String {
    format!("{}?{parameters}", plain.replace("postgres:outbox@", &format!("{login}:outbox@")))
}

async fn status(url: &str) -> Result<Finished> {
    Launch::new(["status"]).database(url).finish(SOON).await
}

/// `status` gets in, or is refused for good in words that hold `expected`.
async fn expect(url: &str, expected: Option<&str>) -> Result<()> {
    let finished = status(url).await?;
    match expected {
        None => anyhow::ensure!(finished.code == Some(0), "{url}: {}", finished.stderr),
        Some(words) => {
            anyhow::ensure!(finished.code == Some(78), "{url}: {:?}: {}", finished.code, finished.stderr);
            anyhow::ensure!(finished.stderr.contains(words), "{url}: {}", finished.stderr);
            anyhow::ensure!(!finished.stderr.contains("outbox@"), "{url} shows its password: {}", finished.stderr);
        }
    }
    Ok(())
}

/// Every connection of every command and of a running relay is encrypted, also where plain text would be let in.
#[tokio::test]
async fn every_connection_to_a_verified_database_is_encrypted() -> Result<()> {
    let server = server().await?;
    let authority = Authority::new("authority")?;
    server.present(&authority.server(&[HERE])?, None).await?;
    server.client().batch_execute("ALTER SYSTEM SET log_connections = on").await?;
    server.allow(&["host all secured 127.0.0.1/32 scram-sha-256"]).await?;
    let roots = server.file("ca.pem", &authority.pem())?;
    let mut scene = Scene::at(&server.url()?, Broker::Rabbitmq(Rabbit::connect().await?)).await?;
    let url = address(scene.database.url(), "secured", &format!("sslmode=verify-full&sslrootcert={roots}"));
    for command in [["migrate"].as_slice(), &["status"], &["parked", "list"]] {
        let finished = Launch::new(command.iter().copied()).database(&url).finish(SOON).await?;
        assert_eq!(finished.code, Some(0), "{command:?}: {}", finished.stderr);
    }
    let check = Launch::new(["check"]).database(&url).amqp(&scene.broker_address()).finish(SOON).await?;
    assert!(!check.stderr.contains("cannot connect"), "{}", check.stderr);
    let mut relay = scene.launch_at(&url, &scene.broker_address()).start()?;
    relay.wait_ready(SOON).await?;
    scene.commit(200, 20).await?;
    scene.finish(0).await?;
    let mine = "SELECT count(*) FILTER (WHERE ssl), count(*) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) \
                WHERE application_name = 'outbox-relay'";
    let row = scene.client.query_one(mine, &[]).await?;
    let (encrypted, all): (i64, i64) = (row.try_get(0)?, row.try_get(1)?);
    assert!(all >= 6 && encrypted == all, "{encrypted} of {all}");
    assert_eq!(relay.stop(SOON).await?, Some(0));
    // The server's own word for everybody who was let in since.
    let log: String = server.client().query_one("SELECT pg_read_file('../log')", &[]).await?.try_get(0)?;
    let let_in: Vec<&str> = log.lines().filter(|line| line.contains("connection authorized: user=secured")).collect();
    let plain: Vec<&&str> = let_in.iter().filter(|line| !line.contains("SSL enabled")).collect();
    assert!(let_in.len() >= 10 && plain.is_empty(), "{} were let in, in plain text: {plain:?}", let_in.len());
    Ok(())
}

/// A statement that takes too long is stopped by a request on a connection of its own, and that one is encrypted too.
#[tokio::test]
async fn a_request_to_stop_a_statement_is_encrypted() -> Result<()> {
    let server = server().await?;
    let authority = Authority::new("authority")?;
    server.present(&authority.server(&[HERE])?, None).await?;
    let roots = server.file("ca.pem", &authority.pem())?;
    let mut scene = Scene::at(&server.url()?, Broker::Rabbitmq(Rabbit::connect().await?)).await?;
    let proxy = Proxy::start(scene.database.port()?).await?;
    let through = scene.database.url_through(proxy.port())?;
    let url = address(&through, "secured", &format!("sslmode=verify-full&sslrootcert={roots}"));
    let mut relay = scene.launch_at(&url, &scene.broker_address()).start()?;
    relay.wait_ready(SOON).await?;
    scene.commit(20, 5).await?;
    scene.wait_sent(20, SOON).await?;

    proxy.look_for(Direction::Requests, CANCEL_REQUEST);
    let locker = scene.database.client().await?;
    locker.batch_execute("BEGIN; LOCK TABLE outbox.message IN ACCESS EXCLUSIVE MODE").await?;
    relay.wait_log("no answer to a statement", BACK).await?;
    let stopped = || async {
        let log: String = server.client().query_one("SELECT pg_read_file('../log')", &[]).await?.try_get(0)?;
        Ok(log.contains("canceling statement due to user request"))
    };
    wait::until_true("the server to stop the statement", SOON, stopped).await?;
    assert_eq!(proxy.sightings(), 0, "a request to stop went in plain text");
    locker.batch_execute("ROLLBACK").await?;
    scene.commit(20, 5).await?;
    scene.wait_all_sent(BACK).await?;
    scene.finish(0).await?;
    assert_eq!(relay.stop(SOON).await?, Some(0));

    // In plain text it would have been seen.
    let plain = database::connect(&through).await?;
    plain.cancel_token().cancel_query(tokio_postgres::NoTls).await?;
    let seen = || async { Ok(proxy.sightings() == 1) };
    wait::until_true("the request to be seen", SOON, seen).await
}

#[tokio::test]
async fn a_server_that_cannot_be_believed_is_refused_and_the_words_say_why() -> Result<()> {
    let server = server().await?;
    let place = Database::migrated_on(&server.url()?).await?;
    let (authority, other) = (Authority::new("authority")?, Authority::new("authority")?);
    let (roots, others) = (server.file("ca.pem", &authority.pem())?, server.file("other.pem", &other.pem())?);
    let at = |parameters: &str| address(place.url(), "secured", parameters);
    let full = format!("sslmode=verify-full&sslrootcert={roots}");
    expect(&at(&full), Some("the server does not speak TLS")).await?;

    server.present(&authority.server(&[HERE])?, None).await?;
    expect(&at(&full), None).await?;
    expect(
        &at(&format!("sslmode=verify-full&sslrootcert={others}")),
        Some("is not trusted: no authority in sslrootcert"),
    )
    .await?;
    expect(&at(&format!("sslmode=require&sslrootcert={others}")), Some("is not trusted")).await?;
    expect(&at("sslmode=require"), None).await?;
    expect(&at("sslmode=verify-full"), Some("no authority in the system's trust store signed it")).await?;
    let system = Launch::new(["status"]).database(&at("sslmode=verify-full&sslrootcert=system"));
    let system = system.env("SSL_CERT_FILE", &roots).finish(SOON).await?;
    assert_eq!(system.code, Some(0), "{}", system.stderr);

    server.present(&authority.server(&["db.internal", "10.0.0.7"])?, None).await?;
    expect(&at(&full), Some("and not for '127.0.0.1'")).await?;
    expect(&at(&full), Some("db.internal")).await?;
    expect(&at(&format!("sslmode=verify-ca&sslrootcert={roots}")), None).await?;
    // By a name, with the address given apart, as libpq has it.
    let by_name = at(&full).replace(HERE, "db.internal") + "&hostaddr=127.0.0.1";
    expect(&by_name, None).await?;

    for (from, to, words) in [(2020, 2021, "has expired"), (2098, 2099, "is not valid yet")] {
        server.present(&authority.server_of_years(&[HERE], from, to)?, None).await?;
        expect(&at(&full), Some(words)).await?;
        expect(&at(&format!("sslmode=verify-ca&sslrootcert={roots}")), Some(words)).await?;
    }
    let authority_itself = Issued { certificate: authority.pem(), key: authority.key() };
    server.present(&authority_itself, None).await?;
    expect(&at(&full), Some("the server's certificate cannot be used")).await
}

#[tokio::test]
async fn a_client_certificate_and_a_bound_password_let_the_relay_in() -> Result<()> {
    let server = server().await?;
    let place = Database::migrated_on(&server.url()?).await?;
    let (authority, other) = (Authority::new("authority")?, Authority::new("other")?);
    server.present(&authority.server(&[HERE])?, Some(&authority.pem())).await?;
    let roots = server.file("ca.pem", &authority.pem())?;
    let keep = |name: &str, issued: &Issued| -> Result<String> {
        let certificate = server.file(&format!("{name}.crt"), &issued.certificate)?;
        let key = server.file(&format!("{name}.key"), &issued.key)?;
        Ok(format!("sslcert={certificate}&sslkey={key}"))
    };
    let full = format!("sslmode=verify-full&sslrootcert={roots}");
    let at = |login: &str, rest: &str| address(place.url(), login, &format!("{full}&{rest}"));
    let certified = keep("certified", &authority.client("certified")?)?;
    let doubly = keep("doubly", &authority.client("doubly")?)?;
    let stranger = keep("stranger", &other.client("certified")?)?;

    expect(&at("certified", &certified), None).await?;
    expect(&at("certified", ""), Some("connection requires a valid client certificate")).await?;
    expect(&at("certified", &doubly), Some("certificate authentication failed")).await?;
    // The server may hang up before its refusal is read; the words are in the rotation's test, which asks often.
    let refused = status(&at("certified", &stranger)).await?;
    assert!([Some(69), Some(78)].contains(&refused.code), "{:?}: {}", refused.code, refused.stderr);
    expect(&at("doubly", &format!("{doubly}&channel_binding=require")), None).await?;
    expect(&at("doubly", &certified), Some("password authentication failed")).await?;
    expect(&at("secured", "channel_binding=require"), None).await?;
    expect(&address(place.url(), "secured", "sslmode=require&channel_binding=require"), None).await?;
    // Without a password that is bound there is nothing to require.
    expect(&at("certified", &format!("{certified}&channel_binding=require")), Some("channel binding")).await?;

    let (ours, theirs) = (server.file("doubly.key", "no key")?, server.file("gone.key", "")?);
    expect(&at("doubly", &doubly), Some(&format!("sslkey '{ours}' has no private key in PEM form"))).await?;
    let mixed = certified.replace("certified.key", "stranger.key");
    expect(&at("certified", &mixed), Some("does not belong to sslcert '")).await?;
    std::fs::remove_file(&theirs)?;
    let gone = certified.replace("certified.key", "gone.key");
    expect(&at("certified", &gone), Some(&format!("sslkey '{theirs}' cannot be read: No such file"))).await
}

/// Authority, server and client certificate are replaced while rows flow; each is used at the next connect.
#[tokio::test]
async fn f68_a_rotated_certificate_is_used_at_the_next_connect() -> Result<()> {
    let server = server().await?;
    let (old, new) = (Authority::new("old")?, Authority::new("new")?);
    server.present(&old.server(&[HERE])?, Some(&old.pem())).await?;
    let roots = server.file("ca.pem", &old.pem())?;
    let client = old.client("certified")?;
    let (certificate, key) = (server.file("c.crt", &client.certificate)?, server.file("c.key", &client.key)?);
    let mut scene = Scene::at(&server.url()?, Broker::Rabbitmq(Rabbit::connect().await?)).await?;
    let parameters = format!("sslmode=verify-full&sslrootcert={roots}&sslcert={certificate}&sslkey={key}");
    let url = address(scene.database.url(), "certified", &parameters);
    let mut relay = scene.launch_at(&url, &scene.broker_address()).start()?;
    scene.commit(200, 20).await?;
    scene.wait_sent(200, SOON).await?;

    // The server has a new certificate of a new authority; what is connected stays so.
    server.present(&new.server(&[HERE])?, Some(&new.pem())).await?;
    scene.commit(200, 20).await?;
    scene.wait_sent(400, SOON).await?;
    cut(&scene).await?;
    scene.commit(200, 20).await?;
    relay.wait_log("no authority in sslrootcert", SOON).await?;
    let lives = metrics::get(relay.admin().await?, "/livez").await?.status == 200;
    assert!(lives && scene.count("sent").await? == 400, "the relay waits and believes nobody");

    // The relay's files follow, one after the other.
    server.file("ca.pem", &new.pem())?;
    relay.wait_log("the server refuses the client certificate", SOON).await?;
    let client = new.client("certified")?;
    server.file("c.key", &client.key)?;
    server.file("c.crt", &client.certificate)?;
    scene.wait_all_sent(BACK).await?;

    // With both authorities in one file a rotation is not even noticed.
    server.file("ca.pem", &format!("{}{}", new.pem(), old.pem()))?;
    server.present(&old.server(&[HERE])?, Some(&new.pem())).await?;
    let lost = lost_sessions(&relay.log());
    cut(&scene).await?;
    scene.commit(200, 20).await?;
    scene.wait_all_sent(BACK).await?;
    assert_eq!(lost_sessions(&relay.log()), lost, "{}", relay.log());
    scene.finish(800).await?;
    assert_eq!(scene.attempts().await?, 0);
    assert_eq!(relay.stop(SOON).await?, Some(0));
    Ok(())
}

/// How often a server was not believed.
fn lost_sessions(log: &str) -> usize {
    log.lines().filter(|line| line.contains("certificate")).count()
}

/// Ends the relay's sessions.
async fn cut(scene: &Scene) -> Result<()> {
    let sql = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'outbox-relay'";
    let cut: i64 = scene.client.query_one(sql, &[]).await?.try_get(0)?;
    anyhow::ensure!(cut >= 6, "only {cut} sessions were there");
    let gone = "SELECT count(*) = 0 FROM pg_stat_activity WHERE application_name = 'outbox-relay' AND \
                backend_start < $1";
    let now: std::time::SystemTime = scene.client.query_one("SELECT now()", &[]).await?.try_get(0)?;
    let ended = || async { Ok(scene.client.query_one(gone, &[&now]).await?.try_get::<_, bool>(0)?) };
    wait::until_true("the sessions to end", SOON, ended).await.context("cut")
}
