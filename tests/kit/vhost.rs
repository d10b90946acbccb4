//! A virtual host of one test on the shared broker: for permissions, limits and policies. For
//! queues and exchanges alone unique names do, and cost nothing.

use anyhow::{Context, Result};

use crate::own_services::rabbitmqctl;
use crate::{cleanup, services};

/// It is deleted, with all that is in it, when the test ends.
pub struct Vhost {
    name: String,
    url: String,
}

impl Vhost {
    /// Makes a virtual host in which the user of `TEST_AMQP_URL` may do everything.
    ///
    /// # Errors
    /// When rabbitmqctl of `TEST_SERVICES_DIR` fails.
    pub async fn create() -> Result<Self> {
        let shared = services::amqp_url()?;
        let (authority, _) = shared
            .split_once("://")
            .and_then(|(_, rest)| rest.split_once('/').or(Some((rest, ""))))
            .context("TEST_AMQP_URL must be a URL: amqp://...")?;
        let user = authority.split_once(':').map_or("guest", |(user, _)| user);
        let name = format!("test-{}", uuid::Uuid::new_v4().simple());
        let vhost = Self { url: format!("amqp://{authority}/{name}"), name };
        rabbitmqctl(&["add_vhost", &vhost.name]).await?;
        rabbitmqctl(&["set_permissions", "-p", &vhost.name, user, ".*", ".*", ".*"]).await?;
        Ok(vhost)
    }

    /// The address to hand to the relay and to `Rabbit::connect_to`.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The name, for rabbitmqctl's `-p`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl Drop for Vhost {
    fn drop(&mut self) {
        if !cleanup::is_wanted() {
            return;
        }
        let name = self.name.clone();
        cleanup::run("the test's virtual host", async move { rabbitmqctl(&["delete_vhost", &name]).await.map(|_| ()) });
    }
}
