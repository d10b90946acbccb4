//! A PostgreSQL of one test that speaks TLS. The test itself talks to it in plain text, as superuser; its files are
//! written by the server, which owns them.

use anyhow::{Context, Result};
use tokio_postgres::Client;

use crate::certificates::Issued;
use crate::files::Files;
use crate::own_services::{OwnServices, Service};
use crate::{database, wait};

/// See the module.
pub struct TlsPostgres {
    own: OwnServices,
    client: Client,
    files: Files,
}

impl TlsPostgres {
    /// With `ssl` off until [`TlsPostgres::present`].
    ///
    /// # Errors
    /// When it does not start.
    pub async fn start() -> Result<Self> {
        let own = OwnServices::start(&[Service::Postgres]).await?;
        let client = database::connect(&own.address(Service::Postgres)?).await?;
        let files = Files::new("tls")?;
        Ok(Self { own, client, files })
    }

    /// The superuser's address, in plain text.
    ///
    /// # Errors
    /// When the server is stopped.
    pub fn url(&self) -> Result<String> {
        self.own.address(Service::Postgres)
    }

    #[must_use]
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// A file for the relay's `sslrootcert` and the like, written anew; its path.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn file(&self, name: &str, text: &str) -> Result<String> {
        self.files.write(name, text)
    }

    /// Shows this certificate to everybody who connects from now on, and takes client certificates of `clients`, an
    /// authority's PEM.
    ///
    /// # Errors
    /// When the server does not take it.
    pub async fn present(&self, issued: &Issued, clients: Option<&str>) -> Result<()> {
        self.write("server.crt", &issued.certificate).await?;
        self.write("server.key", &issued.key).await?;
        self.write("clients.crt", clients.unwrap_or_default()).await?;
        let file = if clients.is_some() { "clients.crt" } else { "" };
        self.client.batch_execute(&format!("ALTER SYSTEM SET ssl_ca_file = '{file}'")).await?;
        self.client.batch_execute("ALTER SYSTEM SET ssl = on").await?;
        self.reload().await
    }

    /// Replaces `pg_hba.conf`.
    ///
    /// # Errors
    /// When the server does not take it.
    pub async fn allow(&self, lines: &[&str]) -> Result<()> {
        let own = "host all postgres 127.0.0.1/32 scram-sha-256";
        self.write("pg_hba.conf", &[&[own], lines].concat().join("\n")).await?;
        self.reload().await?;
        // It minds a hostssl that comes before the certificate does.
        let errors = "SELECT string_agg(error, '; ') FROM pg_hba_file_rules WHERE error NOT LIKE '%SSL is disabled'";
        let errors: Option<String> = self.client.query_one(errors, &[]).await?.try_get(0)?;
        errors.map_or(Ok(()), |errors| anyhow::bail!("pg_hba.conf: {errors}"))
    }

    /// The server's own process reads everything in one go and hands it on, so what a new session knows all have.
    async fn reload(&self) -> Result<()> {
        let before = self.loaded().await?;
        self.client.query("SELECT pg_reload_conf()", &[]).await?;
        let again = || async { Ok(self.loaded().await? > before) };
        wait::until_true("the server to read its configuration", wait::SOON, again).await
    }

    async fn loaded(&self) -> Result<f64> {
        let new = database::connect(&self.url()?).await?;
        let sql = "SELECT extract(epoch FROM pg_conf_load_time())::double precision";
        Ok(new.query_one(sql, &[]).await?.try_get(0)?)
    }

    /// Into the server's data folder, where its programs are started.
    async fn write(&self, name: &str, text: &str) -> Result<()> {
        let lines = text.trim_end().replace('\'', "''");
        let sql = format!(
            "COPY (SELECT unnest(string_to_array('{lines}', E'\\n'))) TO PROGRAM 'umask 077; cat >{name}.new && mv \
             {name}.new {name}'"
        );
        self.client.batch_execute(&sql).await.with_context(|| format!("writing {name}"))
    }
}
