//! SASL OAUTHBEARER with Kafka: tokens come from an identity provider, and they end.

use std::time::Duration;

use anyhow::Result;
use outbox_tests::certificates::Authority;
use outbox_tests::http_server;
use outbox_tests::kafka::Kafka;
use outbox_tests::own_kafka::{Listener, OwnKafka};
use outbox_tests::relay::Launch;
use outbox_tests::services;
use outbox_tests::token_endpoint::{CLIENT, TokenEndpoint};
use outbox_tests::wait::SOON;

use crate::scene::{Broker, Scene};

const BACK: Duration = Duration::from_secs(120);
const SECRET: &str = "s3cret-of-the-client";
const HOUR_S: i64 = 3_600;
/// librdkafka asks for the next token after four fifths of this.
const SHORT_S: i64 = 10;

/// The broker ends a connection whose token has ended.
const ENDS: &[(&str, &str)] = &[("oauthbearer.connections.max.reauth.ms", "3600000")];

/// A broker that takes tokens, and whoever gives them out.
struct Stage {
    scene: Scene,
    cluster: OwnKafka,
    provider: TokenEndpoint,
    ca: String,
}

impl Stage {
    /// `None` without a Kafka.
    async fn set(test: &str, lifetime_s: i64) -> Result<Option<Self>> {
        if Kafka::connect_or_skip(test)?.is_none() {
            return Ok(None);
        }
        let module = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required \
                      unsecuredLoginStringClaim_sub=\"broker\";";
        let authority = Authority::new("authority")?;
        let server = authority.server(&["127.0.0.1"])?;
        let listener = Listener::new("TOKENS", "SASL_SSL", ENDS).logging_in("OAUTHBEARER", module);
        let cluster = OwnKafka::start(&[listener.showing(server.clone(), &authority)], "").await?;
        let scene = Scene::at(&services::database_url()?, Broker::Kafka(Kafka::at(&cluster.plain()?))).await?;
        let now = scene.client.query_one("SELECT extract(epoch FROM now())::bigint", &[]).await?;
        let tls = http_server::tls(&server, None)?;
        let provider = TokenEndpoint::start(Some(tls), SECRET, now.try_get(0)?, lifetime_s).await?;
        let ca = cluster.file("relay-ca.pem", &authority.pem())?;
        Ok(Some(Self { scene, cluster, provider, ca }))
    }

    /// The relay's properties, in a file.
    fn login(&self, secret: &str, https_ca: &str) -> Result<String> {
        let text = format!(
            "security.protocol=sasl_ssl\nssl.ca.location={}\nsasl.mechanism=OAUTHBEARER\n\
             sasl.oauthbearer.method=oidc\nsasl.oauthbearer.client.id={CLIENT}\n\
             sasl.oauthbearer.client.secret={secret}\nsasl.oauthbearer.token.endpoint.url={}\n\
             https.ca.location={https_ca}\n",
            self.ca,
            self.provider.url()
        );
        self.cluster.file("relay.properties", &text)
    }

    fn launch(&self) -> Result<Launch> {
        let file = self.login(SECRET, &self.ca)?;
        let launch = self.scene.launch_at(self.scene.database.url(), &self.cluster.address("TOKENS")?);
        Ok(launch.env("OUTBOX__KAFKA__PROPERTIES_FILE", file))
    }
}

#[tokio::test]
async fn the_relay_logs_in_with_a_token_and_is_told_when_it_gets_none() -> Result<()> {
    let test = "the_relay_logs_in_with_a_token_and_is_told_when_it_gets_none";
    let Some(mut stage) = Stage::set(test, HOUR_S).await? else { return Ok(()) };
    let other = stage.cluster.file("other.pem", &Authority::new("other")?.pem())?;
    let drain = Launch::new(["run", "--drain", "--admin-listen", "off"])
        .database(stage.scene.database.url())
        .kafka(&stage.cluster.address("TOKENS")?);
    for (secret, https_ca, refused) in [
        (SECRET, stage.ca.as_str(), None),
        ("s3cret-of-nobody", stage.ca.as_str(), Some("\"error\":\"invalid_client\"")),
        (SECRET, other.as_str(), Some("SSL certificate")),
    ] {
        stage.scene.commit(1, 1).await?;
        let launch = drain.clone().env("OUTBOX__KAFKA__PROPERTIES_FILE", stage.login(secret, https_ca)?);
        let finished = launch.env("OUTBOX__LOG__LEVEL", "trace").finish(BACK).await?;
        assert_eq!(finished.code, Some(if refused.is_some() { 78 } else { 0 }), "{}", finished.stderr);
        assert!(finished.stderr.contains(refused.unwrap_or_default()), "{}", finished.stderr);
        assert!(!finished.stderr.contains("s3cret"), "the secret is shown: {}", finished.stderr);
    }
    Ok(())
}

#[tokio::test]
async fn the_relay_waits_for_tokens_and_gets_the_next_in_time() -> Result<()> {
    let test = "the_relay_waits_for_tokens_and_gets_the_next_in_time";
    let Some(mut stage) = Stage::set(test, SHORT_S).await? else { return Ok(()) };
    stage.provider.set_away(true);
    stage.scene.commit(200, 20).await?;
    let mut relay = stage.launch()?.start()?;
    relay.wait_log("Failed to acquire SASL OAUTHBEARER token", SOON).await?;
    stage.provider.set_away(false);
    relay.wait_ready(BACK).await?;
    stage.scene.wait_sent(200, BACK).await?;
    // Two clients of the relay: one that sends, one that asks. The third generation of their tokens is in use.
    stage.provider.wait_given(7, BACK).await?;
    stage.scene.commit(200, 20).await?;
    stage.scene.wait_sent(400, BACK).await?;
    assert!(!relay.log().contains("broker refuses us"), "{}", relay.log());
    stage.scene.finish(0).await?;
    assert_eq!(relay.stop(SOON).await?, Some(0));
    Ok(())
}

#[tokio::test]
async fn f68_a_rotated_secret_of_the_client_needs_no_restart() -> Result<()> {
    let test = "f68_a_rotated_secret_of_the_client_needs_no_restart";
    let Some(mut stage) = Stage::set(test, SHORT_S).await? else { return Ok(()) };
    let mut relay = stage.launch()?.start()?;
    relay.wait_ready(SOON).await?;
    stage.scene.commit(200, 20).await?;
    stage.scene.wait_sent(200, SOON).await?;
    stage.provider.set_secret("s3cret-of-today");
    // The last token ends soon, and the connection with it.
    relay.wait_log("broker refuses us", BACK).await?;
    stage.scene.commit(2_000, 50).await?;
    stage.login("s3cret-of-today", &stage.ca)?;
    stage.scene.wait_all_sent(BACK).await?;
    stage.scene.finish(200).await?;
    assert_eq!(stage.scene.attempts().await?, 0);
    assert!(!relay.log().contains("s3cret"), "the secret is shown");
    assert_eq!(relay.stop(SOON).await?, Some(0));
    Ok(())
}
