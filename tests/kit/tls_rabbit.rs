//! A RabbitMQ of one test that speaks TLS and takes client certificates as logins. The test itself talks to it in
//! plain text.

use anyhow::Result;

use crate::certificates::{Authority, Issued};
use crate::files::Files;
use crate::own_services::{OwnServices, Service};

/// The user that a client certificate of this common name is. It has no password.
pub const LOGIN: &str = "certified";

/// See the module.
pub struct TlsRabbit {
    own: OwnServices,
    /// Outside the set's folder, since the broker wants them at its start. They go after the broker.
    files: Files,
}

impl TlsRabbit {
    /// With this certificate; it takes client certificates of `clients`, and lets nobody in without one where it
    /// demands them.
    ///
    /// # Errors
    /// When it does not start.
    pub async fn start(server: &Issued, clients: &Authority, demand: bool) -> Result<Self> {
        let files = Files::new("tls")?;
        files.write("server.crt", &server.certificate)?;
        files.write("server.key", &server.key)?;
        files.write("ca.pem", &clients.pem())?;
        let folder = files.path("")?;
        let environment =
            [("RABBITMQ_TLS", folder.as_str()), ("RABBITMQ_TLS_DEMAND", ["false", "true"][usize::from(demand)])];
        let own = OwnServices::start_with(&[Service::Rabbitmq], &environment).await?;
        own.rabbitmqctl(&["add_user", LOGIN, "not a password"]).await?;
        own.rabbitmqctl(&["clear_password", LOGIN]).await?;
        own.rabbitmqctl(&["set_permissions", LOGIN, ".*", ".*", ".*"]).await?;
        Ok(Self { own, files })
    }

    /// Guest's address, in plain text.
    ///
    /// # Errors
    /// When the broker is stopped.
    pub fn plain_url(&self) -> Result<String> {
        self.own.address(Service::Rabbitmq)
    }

    /// Guest's address, with TLS.
    ///
    /// # Errors
    /// When the broker is stopped.
    pub fn url(&self) -> Result<String> {
        self.own.rabbitmq_tls_address()
    }

    /// A file for the relay, written anew; its path.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn file(&self, name: &str, text: &str) -> Result<String> {
        self.files.write(name, text)
    }

    /// Shows this certificate to everybody who connects from now on, and takes client certificates of `clients`.
    ///
    /// # Errors
    /// When the broker does not take it.
    pub async fn present(&self, server: &Issued, clients: &Authority) -> Result<()> {
        self.files.write("server.crt", &server.certificate)?;
        self.files.write("server.key", &server.key)?;
        self.files.write("ca.pem", &clients.pem())?;
        // Erlang keeps what it read for two minutes.
        self.own.rabbitmqctl(&["eval", "ssl:clear_pem_cache()."]).await.map(|_| ())
    }

    /// Ends all connections that came by TLS.
    ///
    /// # Errors
    /// When the broker does not answer.
    pub async fn cut(&self) -> Result<()> {
        let script = "[exit(P, kill) || {P, true} <- [{proplists:get_value(pid, C), proplists:get_value(ssl, C)} || \
                      C <- rabbit_networking:connection_info_all([pid, ssl])]].";
        self.own.rabbitmqctl(&["eval", script]).await.map(|_| ())
    }
}
