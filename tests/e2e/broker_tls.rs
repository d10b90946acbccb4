//! TLS to RabbitMQ: who is believed and who is let in, in whose words; and certificates that change under a relay.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use outbox_tests::certificates::{Authority, Issued};
use outbox_tests::rabbit::Rabbit;
use outbox_tests::relay::{Finished, Launch};
use outbox_tests::services;
use outbox_tests::tls_rabbit::{LOGIN, TlsRabbit};
use outbox_tests::wait::{self, SOON};

use crate::scene::{Broker, Scene};

const HERE: &str = "127.0.0.1";
/// The relay waits up to half a minute between tries.
const BACK: Duration = Duration::from_secs(120);
const EXTERNAL: &str = "auth_mechanism=external";

async fn scene(broker: &TlsRabbit) -> Result<Scene> {
    let rabbit = Broker::Rabbitmq(Rabbit::connect_to(&broker.plain_url()?).await?);
    Scene::at(&services::database_url()?, rabbit).await
}

/// Settings of the relay, and parameters of its URL.
#[derive(Clone, Default)]
struct Way {
    keys: Vec<(&'static str, String)>,
    parameters: String,
}

impl Way {
    fn key(mut self, name: &'static str, path: &str) -> Self {
        self.keys.push((name, path.to_owned()));
        self
    }

    fn identity(self, broker: &TlsRabbit, name: &str, issued: &Issued) -> Result<Self> {
        let certificate = broker.file(&format!("{name}.crt"), &issued.certificate)?;
        let key = broker.file(&format!("{name}.key"), &issued.key)?;
        Ok(self.key("CERTIFICATE_FILE", &certificate).key("KEY_FILE", &key))
    }

    fn parameters(mut self, parameters: &str) -> Self {
        parameters.clone_into(&mut self.parameters);
        self
    }

    fn apply(&self, launch: Launch, url: &str) -> Launch {
        let launch =
            self.keys.iter().fold(launch, |launch, (name, path)| launch.env(format!("OUTBOX__RABBITMQ__{name}"), path));
        launch.amqp(&format!("{url}?{}", self.parameters))
    }
}

/// Publishes one row by this way and ends.
async fn drain(scene: &mut Scene, broker: &TlsRabbit, way: &Way) -> Result<Finished> {
    scene.commit(1, 1).await?;
    let launch = Launch::new(["run", "--drain", "--admin-listen", "off"]).database(scene.database.url());
    way.apply(launch, &broker.url()?).finish(BACK).await
}

/// The relay gets in, or is refused for good in words that hold `expected`.
async fn expect(scene: &mut Scene, broker: &TlsRabbit, way: &Way, expected: Option<&str>) -> Result<()> {
    let finished = drain(scene, broker, way).await?;
    let said = format!("{:?} {}: {:?}: {}", way.keys, way.parameters, finished.code, finished.stderr);
    match expected {
        None => anyhow::ensure!(finished.code == Some(0), "{said}"),
        Some(words) => anyhow::ensure!(finished.code == Some(78) && finished.stderr.contains(words), "{said}"),
    }
    anyhow::ensure!(!finished.stderr.contains("guest:guest"), "a password is shown: {said}");
    Ok(())
}

#[tokio::test]
async fn a_broker_that_cannot_be_believed_is_refused_and_the_words_say_why() -> Result<()> {
    let (authority, other) = (Authority::new("authority")?, Authority::new("authority")?);
    let broker = TlsRabbit::start(&authority.server(&[HERE])?, &authority, false).await?;
    let mut scene = scene(&broker).await?;
    let scene = &mut scene;
    let roots = broker.file("relay-ca.pem", &authority.pem())?;
    let others = broker.file("other.pem", &other.pem())?;
    let trusting = |path: &str| Way::default().key("CA_FILE", path);
    let full = trusting(&roots);

    expect(scene, &broker, &full, None).await?;
    let by_url = Way::default().parameters(&format!("cacertfile={roots}&verify=verify_peer"));
    expect(scene, &broker, &by_url, None).await?;
    let untrusted = "the broker's certificate is not trusted: no authority in rabbitmq.ca_file";
    expect(scene, &broker, &trusting(&others), Some(untrusted)).await?;
    expect(scene, &broker, &Way::default(), Some("no authority in the system's trust store signed it")).await?;
    let missing = Some("rabbitmq.ca_file '/nonexistent/ca.pem' cannot be read: No such file");
    expect(scene, &broker, &trusting("/nonexistent/ca.pem"), missing).await?;
    // A file of authorities stands in the place of the system's and not beside them.
    scene.commit(1, 1).await?;
    let launch = Launch::new(["run", "--drain", "--admin-listen", "off"]).database(scene.database.url());
    let beside = trusting(&others).apply(launch, &broker.url()?).env("SSL_CERT_FILE", &roots).finish(BACK).await?;
    anyhow::ensure!(beside.code == Some(78) && beside.stderr.contains(untrusted), "{}", beside.stderr);

    broker.present(&authority.server(&["broker.internal"])?, &authority).await?;
    expect(scene, &broker, &full, Some("is for DnsName(\"broker.internal\") and not for '127.0.0.1'")).await?;
    expect(scene, &broker, &full.clone().parameters("server_name_indication=broker.internal"), None).await?;
    for (from, to, words) in [(2020, 2021, "certificate has expired"), (2098, 2099, "is not valid yet")] {
        broker.present(&authority.server_of_years(&[HERE], from, to)?, &authority).await?;
        expect(scene, &broker, &full, Some(words)).await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_client_certificate_lets_the_relay_in_and_is_its_login_if_asked() -> Result<()> {
    let (authority, other) = (Authority::new("authority")?, Authority::new("other")?);
    let broker = TlsRabbit::start(&authority.server(&[HERE])?, &authority, true).await?;
    let mut scene = scene(&broker).await?;
    let scene = &mut scene;
    let full = Way::default().key("CA_FILE", &broker.file("relay-ca.pem", &authority.pem())?);
    let with = |name: &str, issued: &Issued| full.clone().identity(&broker, name, issued);
    let right = with("right", &authority.client(LOGIN)?)?;

    expect(scene, &broker, &right, None).await?;
    expect(scene, &broker, &right.clone().parameters(EXTERNAL), None).await?;
    expect(scene, &broker, &full, Some("the broker demands a client certificate; name one with rabbitmq.cert")).await?;
    let stranger = with("stranger", &other.client(LOGIN)?)?;
    expect(scene, &broker, &stranger, Some("it trusts no authority that signed it")).await?;
    let expired = with("expired", &authority.client_of_years(LOGIN, 2020, 2021)?)?;
    expect(scene, &broker, &expired, Some("(it has expired: CertificateExpired)")).await?;
    let nobody = with("nobody", &authority.client("nobody")?)?;
    expect(scene, &broker, &nobody, None).await?;
    let unknown = Some("give the broker a user of the certificate's name");
    expect(scene, &broker, &nobody.clone().parameters(EXTERNAL), unknown).await?;

    let mixed = full.clone().key("CERTIFICATE_FILE", &right.keys[1].1).key("KEY_FILE", &nobody.keys[2].1);
    expect(scene, &broker, &mixed, Some("does not belong to rabbitmq.certificate_file '")).await?;
    let garbage = with("garbage", &Issued { certificate: authority.client(LOGIN)?.certificate, key: "x".to_owned() })?;
    expect(scene, &broker, &garbage, Some("garbage.key' has no private key in PEM form without a passphrase")).await
}

/// As `openssl` writes keys, in each of the forms that people have.
#[tokio::test]
async fn keys_of_all_usual_forms_are_read() -> Result<()> {
    let authority = Authority::new("authority")?;
    let broker = TlsRabbit::start(&authority.server(&[HERE])?, &authority, true).await?;
    let mut scene = scene(&broker).await?;
    let full = Way::default().key("CA_FILE", &broker.file("relay-ca.pem", &authority.pem())?).parameters(EXTERNAL);
    let rsa = ["genrsa", "-traditional", "2048"].as_slice();
    let ec = ["ecparam", "-name", "prime256v1", "-genkey", "-noout"].as_slice();
    for (name, arguments, head) in [("pkcs1", rsa, "BEGIN RSA PRIVATE KEY"), ("sec1", ec, "BEGIN EC PRIVATE KEY")] {
        let key = openssl(arguments)?;
        anyhow::ensure!(key.contains(head), "{name}: not in the form that is meant");
        let path = broker.file(&format!("{name}.key"), &key)?;
        let pkcs8 = openssl(&["pkcs8", "-topk8", "-nocrypt", "-in", &path])?;
        let issued = Issued { key, ..authority.client_with_key(LOGIN, &pkcs8)? };
        expect(&mut scene, &broker, &full.clone().identity(&broker, name, &issued)?, None).await?;
        // One file may hold both.
        let both = broker.file(&format!("{name}.pem"), &format!("{}{pkcs8}", issued.certificate))?;
        let both = full.clone().key("CERTIFICATE_FILE", &both).key("KEY_FILE", &both);
        expect(&mut scene, &broker, &both, None).await?;
    }
    Ok(())
}

fn openssl(arguments: &[&str]) -> Result<String> {
    let output = Command::new("openssl").args(arguments).output().context("starting openssl")?;
    anyhow::ensure!(output.status.success(), "openssl {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}

/// Authority, broker's and client certificate are replaced while rows flow; each is used at the next connect.
#[tokio::test]
async fn f68_a_rotated_certificate_is_used_at_the_next_connect_to_rabbitmq() -> Result<()> {
    let (old, new) = (Authority::new("old")?, Authority::new("new")?);
    let broker = TlsRabbit::start(&old.server(&[HERE])?, &old, true).await?;
    let mut scene = scene(&broker).await?;
    let way = Way::default().key("CA_FILE", &broker.file("relay-ca.pem", &old.pem())?).parameters(EXTERNAL);
    let way = way.identity(&broker, "relay", &old.client(LOGIN)?)?;
    let mut relay = way.apply(scene.launch(), &broker.url()?).start()?;
    relay.wait_ready(SOON).await?;
    scene.commit(200, 20).await?;
    scene.wait_sent(200, SOON).await?;

    // Client certificates of the same authority follow each other while the link breaks under load.
    for round in 0..3 {
        let next = old.client(LOGIN)?;
        broker.file("relay.key", &next.key)?;
        broker.file("relay.crt", &next.certificate)?;
        scene.commit(1_000, 50).await?;
        broker.cut().await?;
        scene.wait_sent(1_200 + round * 1_000, BACK).await?;
        // All rows may have gone before the cut: what follows must not meet the relay on its way back.
        let back = || async { Ok(relay.log().matches("broker link is up").count() >= round + 2) };
        wait::until_true("the link to be up again", BACK, back).await?;
    }

    // The broker has a new certificate of a new authority and takes its clients alone; what is connected stays so.
    broker.present(&new.server(&[HERE])?, &new).await?;
    scene.commit(200, 20).await?;
    scene.wait_sent(3_400, SOON).await?;
    broker.cut().await?;
    scene.commit(200, 20).await?;
    relay.wait_log("no authority in rabbitmq.ca_file", BACK).await?;
    assert_eq!(scene.count("sent").await?, 3_400, "the relay waits and believes nobody");

    // The relay's files follow, one after the other.
    broker.file("relay-ca.pem", &new.pem())?;
    relay.wait_log("it trusts no authority that signed it", BACK).await?;
    let client = new.client(LOGIN)?;
    broker.file("relay.key", &client.key)?;
    broker.file("relay.crt", &client.certificate)?;
    scene.wait_all_sent(BACK).await?;
    scene.finish(2_000).await?;
    assert_eq!(scene.attempts().await?, 0);
    assert_eq!(relay.stop(SOON).await?, Some(0));
    Ok(())
}
