//! Passwords that change under a relay: the file of a login is read again at the next connect. Kafka's is with its TLS.

use std::time::Duration;

use anyhow::{Context, Result};
use outbox_tests::files::Files;
use outbox_tests::own_services::rabbitmqctl;
use outbox_tests::wait::{self, SOON};

use crate::scene::Scene;

/// The relay waits up to half a minute between tries.
const BACK: Duration = Duration::from_secs(120);

fn as_user(url: &str, user: &str, password: &str) -> Result<String> {
    let (scheme, rest) = url.split_once("://").context("no URL")?;
    let (_, place) = rest.rsplit_once('@').context("no user")?;
    Ok(format!("{scheme}://{user}:{password}@{place}"))
}

fn unique(name: &str) -> String {
    format!("{name}_{}", &uuid::Uuid::new_v4().simple().to_string()[..12])
}

#[tokio::test]
async fn f68_a_rotated_password_is_used_at_the_next_connect_to_the_database() -> Result<()> {
    let mut scene = Scene::rabbitmq().await?;
    let user = unique("rotating");
    scene.client.batch_execute(&format!("CREATE ROLE {user} LOGIN SUPERUSER PASSWORD 'the-old-one'")).await?;
    let files = Files::new("passwords")?;
    let path = files.write("url", &as_user(scene.database.url(), &user, "the-old-one")?)?;
    let mut relay = scene.launch().env("OUTBOX__DATABASE__URL_FILE", path).start()?;
    relay.wait_ready(SOON).await?;
    scene.commit(200, 20).await?;
    scene.wait_sent(200, SOON).await?;

    let rotate = format!(
        "ALTER ROLE {user} PASSWORD 'the-new-one';
         SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{user}'"
    );
    scene.client.batch_execute(&rotate).await?;
    scene.commit(200, 20).await?;
    relay.wait_log("password authentication failed", SOON).await?;
    assert_eq!(scene.count("sent").await?, 200, "it waits");
    // One that is written badly at first changes nothing.
    files.write("url", "")?;
    relay.wait_log("the login of the database cannot be read anew", BACK).await?;
    files.write("url", &as_user(scene.database.url(), &user, "the-new-one")?)?;
    scene.wait_all_sent(BACK).await?;
    scene.finish(200).await?;
    assert_eq!(scene.attempts().await?, 0);
    assert!(!relay.log().contains("-one"), "a password is shown");
    assert_eq!(relay.stop(SOON).await?, Some(0));
    scene.client.batch_execute(&format!("DROP ROLE {user}")).await?;
    Ok(())
}

#[tokio::test]
async fn f68_a_rotated_password_is_used_at_the_next_connect_to_rabbitmq() -> Result<()> {
    let mut scene = Scene::rabbitmq().await?;
    let user = unique("rotating");
    rabbitmqctl(&["add_user", &user, "the-old-one"]).await?;
    rabbitmqctl(&["set_permissions", &user, ".*", ".*", ".*"]).await?;
    let files = Files::new("passwords")?;
    let path = files.write("url", &as_user(&scene.broker_address(), &user, "the-old-one")?)?;
    let mut relay = scene.launch().env("OUTBOX__RABBITMQ__URL_FILE", path).start()?;
    relay.wait_ready(SOON).await?;
    scene.commit(200, 20).await?;
    scene.wait_sent(200, SOON).await?;

    rabbitmqctl(&["change_password", &user, "the-new-one"]).await?;
    scene.commit(2_000, 50).await?;
    rabbitmqctl(&["close_all_user_connections", &user, "its password was replaced"]).await?;
    relay.wait_log("broker refuses us", BACK).await?;
    files.write("url", &as_user(&scene.broker_address(), &user, "the-new-one")?)?;
    let back = || async { Ok(relay.log().matches("broker link is up").count() >= 2) };
    wait::until_true("the link to be up again", BACK, back).await?;
    scene.wait_all_sent(BACK).await?;
    scene.finish(2_000).await?;
    assert_eq!(scene.attempts().await?, 0);
    assert!(!relay.log().contains("-one"), "a password is shown");
    assert_eq!(relay.stop(SOON).await?, Some(0));
    rabbitmqctl(&["delete_user", &user]).await?;
    Ok(())
}
