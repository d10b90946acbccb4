//! TLS to Kafka: who is believed and who is let in, in whose words; and certificates and passwords that change under a
//! relay.

use std::time::Duration;

use anyhow::Result;
use outbox_tests::certificates::{Authority, Issued};
use outbox_tests::kafka::Kafka;
use outbox_tests::own_kafka::{Listener, OwnKafka};
use outbox_tests::relay::Launch;
use outbox_tests::services;
use outbox_tests::wait::SOON;

use crate::scene::{Broker, Scene};

const HERE: &str = "127.0.0.1";
/// A link that is refused is looked at again every few seconds; the machine may be busy.
const BACK: Duration = Duration::from_secs(120);

/// One listener, which takes client certificates of the authority alone.
async fn mutual(authority: &Authority) -> Result<OwnKafka> {
    OwnKafka::start(&[Listener::tls("MUTUAL", authority.server(&[HERE])?, authority).demanding()], "").await
}

/// One listener with TLS, at which clients log in.
async fn with_logins(authority: &Authority, mechanism: &str, module: &str) -> Result<OwnKafka> {
    let login = Listener::new("LOGIN", "SASL_SSL", &[]).logging_in(mechanism, module);
    OwnKafka::start(&[login.showing(authority.server(&[HERE])?, authority)], "").await
}

async fn scene(cluster: &OwnKafka) -> Result<Scene> {
    Scene::at(&services::database_url()?, Broker::Kafka(Kafka::at(&cluster.plain()?))).await
}

/// Properties of the relay.
#[derive(Clone)]
struct Way(Vec<(&'static str, String)>);

impl Way {
    fn trusting(roots: &str) -> Self {
        Self(vec![("security.protocol", "ssl".to_owned()), ("ssl.ca.location", roots.to_owned())])
    }

    fn with(mut self, property: &'static str, value: &str) -> Self {
        self.0.retain(|(known, _)| *known != property);
        self.0.push((property, value.to_owned()));
        self
    }

    fn identity(self, cluster: &OwnKafka, name: &str, issued: &Issued) -> Result<Self> {
        let certificate = cluster.file(&format!("{name}.crt"), &issued.certificate)?;
        let key = cluster.file(&format!("{name}.key"), &issued.key)?;
        Ok(self.with("ssl.certificate.location", &certificate).with("ssl.key.location", &key))
    }

    /// In a file of properties.
    fn apply(&self, launch: Launch, cluster: &OwnKafka) -> Result<Launch> {
        let text: String = self.0.iter().map(|(name, value)| format!("{name}={value}\n")).collect();
        Ok(launch.env("OUTBOX__KAFKA__PROPERTIES_FILE", cluster.file("relay.properties", &text)?))
    }
}

/// The relay gets in, or is refused for good in words that hold `expected`.
async fn expect(scene: &mut Scene, cluster: &OwnKafka, at: &str, way: &Way, expected: Option<&str>) -> Result<()> {
    scene.commit(1, 1).await?;
    let launch = Launch::new(["run", "--drain", "--admin-listen", "off"]).database(scene.database.url()).kafka(at);
    let finished = way.apply(launch, cluster)?.finish(BACK).await?;
    let said = format!("{:?}: {:?}: {}", way.0, finished.code, finished.stderr);
    match expected {
        None => anyhow::ensure!(finished.code == Some(0), "{said}"),
        Some(words) => anyhow::ensure!(finished.code == Some(78) && finished.stderr.contains(words), "{said}"),
    }
    Ok(())
}

#[tokio::test]
async fn a_cluster_that_cannot_be_believed_is_refused_and_the_words_say_why() -> Result<()> {
    if Kafka::connect_or_skip("a_cluster_that_cannot_be_believed_is_refused_and_the_words_say_why")?.is_none() {
        return Ok(());
    }
    let (authority, other) = (Authority::new("authority")?, Authority::new("authority")?);
    let listeners = [
        Listener::tls("GOOD", authority.server(&[HERE])?, &authority),
        Listener::tls("NAMED", authority.server(&["broker.internal"])?, &authority),
        Listener::tls("EXPIRED", authority.server_of_years(&[HERE], 2020, 2021)?, &authority),
        Listener::tls("EARLY", authority.server_of_years(&[HERE], 2098, 2099)?, &authority),
    ];
    let cluster = OwnKafka::start(&listeners, "").await?;
    let mut scene = scene(&cluster).await?;
    let full = Way::trusting(&cluster.file("relay-ca.pem", &authority.pem())?);
    let others = cluster.file("other.pem", &other.pem())?;
    let system = Way(vec![("security.protocol", "ssl".to_owned())]);
    let plain = Way(vec![("security.protocol", "plaintext".to_owned())]);
    let missing = full.clone().with("ssl.ca.location", "/nonexistent/ca.pem");

    for (listener, way, expected) in [
        ("GOOD", &full, None),
        (
            "GOOD",
            &Way::trusting(&others),
            Some("the broker's certificate is not trusted: no authority in ssl.ca.locat"),
        ),
        ("GOOD", &system, Some("no authority in the system's trust store signed it")),
        (
            "GOOD",
            &missing,
            Some("kafka.properties: ssl.ca.location '/nonexistent/ca.pem' cannot be read: No such file"),
        ),
        ("GOOD", &plain, Some("it speaks TLS; set security.protocol to ssl or sasl_ssl")),
        ("NAMED", &full, Some("is for DnsName(\"broker.internal\") and not for '127.0.0.1'")),
        ("EXPIRED", &full, Some("the broker's certificate has expired")),
        ("EARLY", &full, Some("the broker's certificate is not valid yet")),
    ] {
        expect(&mut scene, &cluster, &cluster.address(listener)?, way, expected).await?;
    }
    expect(&mut scene, &cluster, &cluster.plain()?, &full, Some("connecting to a PLAINTEXT broker listener?")).await
}

#[tokio::test]
async fn kafka_lets_the_relay_in_by_its_certificate() -> Result<()> {
    if Kafka::connect_or_skip("kafka_lets_the_relay_in_by_its_certificate")?.is_none() {
        return Ok(());
    }
    let (authority, other) = (Authority::new("authority")?, Authority::new("other")?);
    let cluster = mutual(&authority).await?;
    let mut scene = scene(&cluster).await?;
    let at = cluster.address("MUTUAL")?;
    let full = Way::trusting(&cluster.file("relay-ca.pem", &authority.pem())?);
    let with = |name: &str, issued: &Issued| full.clone().identity(&cluster, name, issued);
    let right = with("right", &authority.client("relay")?)?;
    let stranger = with("stranger", &other.client("relay")?)?;
    let expired = with("expired", &authority.client_of_years("relay", 2020, 2021)?)?;
    let mixed = right.clone().with("ssl.key.location", &cluster.file("mixed.key", &other.client("relay")?.key)?);
    let certificate = authority.client("relay")?.certificate;
    let garbage = with("garbage", &Issued { certificate, key: "x".to_owned() })?;

    // What our handshake cannot mirror is told in librdkafka's words.
    let unseen = full.clone().with("ssl.key.password", "none");
    let demanded = "the broker demands a client certificate; name one with ssl.certificate.location and ssl.key.locat";
    for (way, expected) in [
        (&right, None),
        (&full, Some(demanded)),
        (&unseen, Some("bad certificate: SSL alert number 42")),
        (&stranger, Some("the broker refuses the client certificate (")),
        (&expired, Some("the broker refuses the client certificate (")),
        (&mixed, Some("mixed.key' does not belong to ssl.certificate.location '")),
        (&garbage, Some("garbage.key' has no private key in PEM form without a passphrase")),
    ] {
        expect(&mut scene, &cluster, &at, way, expected).await?;
    }
    Ok(())
}

/// Authority, broker's and client certificate are replaced while rows flow; each is used at the next connect.
#[tokio::test]
async fn f68_a_rotated_certificate_is_used_at_the_next_connect_to_kafka() -> Result<()> {
    if Kafka::connect_or_skip("f68_a_rotated_certificate_is_used_at_the_next_connect_to_kafka")?.is_none() {
        return Ok(());
    }
    let (old, new) = (Authority::new("old")?, Authority::new("new")?);
    let cluster = mutual(&old).await?;
    let mut scene = scene(&cluster).await?;
    let way = Way::trusting(&cluster.file("relay-ca.pem", &old.pem())?);
    let way = way.identity(&cluster, "relay", &old.client("relay")?)?;
    let launch = scene.launch_at(scene.database.url(), &cluster.address("MUTUAL")?);
    let mut relay = way.apply(launch, &cluster)?.start()?;
    relay.wait_ready(SOON).await?;
    scene.commit(200, 20).await?;
    scene.wait_sent(200, SOON).await?;

    // The broker has a certificate of a new authority from its next start on, and takes that one's clients alone.
    cluster.show("MUTUAL", &new.server(&[HERE])?, &new)?;
    scene.commit(2_000, 50).await?;
    cluster.restart().await?;
    scene.commit(200, 20).await?;
    relay.wait_log("no authority in ssl.ca.location", BACK).await?;
    let sent = scene.count("sent").await?;

    // The relay's files follow, one after the other.
    cluster.file("relay-ca.pem", &new.pem())?;
    relay.wait_log("the broker refuses the client certificate", BACK).await?;
    assert_eq!(scene.count("sent").await?, sent, "the relay waits and believes nobody");
    way.identity(&cluster, "relay", &new.client("relay")?)?;
    scene.wait_all_sent(BACK).await?;
    scene.finish(2_000).await?;
    assert_eq!(scene.attempts().await?, 0);
    assert_eq!(relay.stop(SOON).await?, Some(0));
    Ok(())
}

#[tokio::test]
async fn kafka_lets_the_relay_in_by_a_plain_password_over_tls() -> Result<()> {
    if Kafka::connect_or_skip("kafka_lets_the_relay_in_by_a_plain_password_over_tls")?.is_none() {
        return Ok(());
    }
    let authority = Authority::new("authority")?;
    let users = "org.apache.kafka.common.security.plain.PlainLoginModule required user_relay=\"right\";";
    let cluster = with_logins(&authority, "PLAIN", users).await?;
    let mut scene = scene(&cluster).await?;
    let at = cluster.address("LOGIN")?;
    let way = Way::trusting(&cluster.file("relay-ca.pem", &authority.pem())?)
        .with("security.protocol", "sasl_ssl")
        .with("sasl.mechanism", "PLAIN")
        .with("sasl.username", "relay");
    let refused = "Invalid username or password";
    for (password, expected) in [("right", None), ("wrong", Some(refused))] {
        expect(&mut scene, &cluster, &at, &way.clone().with("sasl.password", password), expected).await?;
    }
    Ok(())
}

/// The user's password is replaced, at the broker first; the relay reads its file again when it is refused.
#[tokio::test]
async fn f68_a_rotated_password_is_used_at_the_next_connect_to_kafka() -> Result<()> {
    if Kafka::connect_or_skip("f68_a_rotated_password_is_used_at_the_next_connect_to_kafka")?.is_none() {
        return Ok(());
    }
    let authority = Authority::new("authority")?;
    let module = "org.apache.kafka.common.security.scram.ScramLoginModule required;";
    let cluster = with_logins(&authority, "SCRAM-SHA-256", module).await?;
    cluster.set_password("relay", "the-old-one").await?;
    let mut scene = scene(&cluster).await?;
    let way = Way::trusting(&cluster.file("relay-ca.pem", &authority.pem())?)
        .with("security.protocol", "sasl_ssl")
        .with("sasl.mechanism", "SCRAM-SHA-256")
        .with("sasl.username", "relay")
        .with("sasl.password", "the-old-one");
    let launch = scene.launch_at(scene.database.url(), &cluster.address("LOGIN")?);
    let mut relay = way.apply(launch, &cluster)?.start()?;
    relay.wait_ready(SOON).await?;
    scene.commit(200, 20).await?;
    scene.wait_sent(200, SOON).await?;

    cluster.set_password("relay", "the-new-one").await?;
    scene.commit(2_000, 50).await?;
    cluster.restart().await?;
    scene.commit(200, 20).await?;
    relay.wait_log("broker refuses us", BACK).await?;
    way.with("sasl.password", "the-new-one").apply(Launch::run(), &cluster)?;
    scene.wait_all_sent(BACK).await?;
    scene.finish(2_000).await?;
    assert_eq!(scene.attempts().await?, 0);
    assert!(!relay.log().contains("-one"), "a password is shown");
    assert_eq!(relay.stop(SOON).await?, Some(0));
    Ok(())
}
