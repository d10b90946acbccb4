//! A fresh database for each test on the server of `TEST_DATABASE_URL`, dropped at its end.

use anyhow::{Context, Result};
use tokio_postgres::{Client, Config, NoTls};

use crate::{cleanup, services};

/// A database of one test.
pub struct Database {
    name: String,
    server: String,
    url: String,
}

impl Database {
    /// A database with the schemas `outbox` and `inbox`.
    ///
    /// # Errors
    /// When the server cannot be reached or a migration fails.
    pub async fn migrated() -> Result<Self> {
        Self::migrated_on(&services::database_url()?).await
    }

    /// Like [`Database::migrated`], on another server than the shared one.
    ///
    /// # Errors
    /// As [`Database::migrated`].
    pub async fn migrated_on(server_url: &str) -> Result<Self> {
        let database = Self::empty_on(server_url).await?;
        let mut client = database.client().await?;
        outbox_schema::migrate(&mut client, &outbox_schema::Options::default()).await?;
        Ok(database)
    }

    /// A database without any schema of ours.
    ///
    /// # Errors
    /// When the server cannot be reached.
    pub async fn empty() -> Result<Self> {
        Self::empty_on(&services::database_url()?).await
    }

    /// Like [`Database::empty`], on another server than the shared one.
    ///
    /// # Errors
    /// As [`Database::empty`].
    pub async fn empty_on(server_url: &str) -> Result<Self> {
        let name = format!("test_{}", uuid::Uuid::new_v4().simple());
        let server = connect(server_url).await?;
        server
            .batch_execute(&format!("CREATE DATABASE {name} ENCODING 'UTF8' TEMPLATE template0"))
            .await
            .with_context(|| format!("creating the database {name}"))?;
        let url = with_database(server_url, &name)?;
        Ok(Self { name, server: server_url.to_owned(), url })
    }

    /// The address to hand to the relay.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The same database reached through another port of this host: a fault proxy's.
    ///
    /// # Errors
    /// When the server's address has no port.
    pub fn url_through(&self, port: u16) -> Result<String> {
        let own = port_of(&self.url)?;
        Ok(self.url.replacen(&format!(":{own}/"), &format!(":{port}/"), 1))
    }

    /// The address of a server with another database.
    ///
    /// # Errors
    /// When it is no URL.
    pub fn url_of(server_url: &str, name: &str) -> Result<String> {
        with_database(server_url, name)
    }

    /// The database's name on its server.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The port of the server, to put a fault proxy before it.
    ///
    /// # Errors
    /// When the address has no port.
    pub fn port(&self) -> Result<u16> {
        port_of(&self.url)
    }

    /// A new session.
    ///
    /// # Errors
    /// When the server cannot be reached.
    pub async fn client(&self) -> Result<Client> {
        connect(&self.url).await
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        if !cleanup::is_wanted() {
            eprintln!("kept the database {}", self.url);
            return;
        }
        let (server, name) = (self.server.clone(), self.name.clone());
        cleanup::run(&self.name, async move {
            let client = connect(&server).await?;
            client.batch_execute(&format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)")).await?;
            Ok(())
        });
    }
}

/// A session whose connection is driven by a task that ends with it.
///
/// # Errors
/// When the server cannot be reached or refuses.
pub async fn connect(url: &str) -> Result<Client> {
    let (client, connection) = tokio_postgres::connect(url, NoTls)
        .await
        .with_context(|| format!("connecting to {}", without_password(url)))?;
    tokio::spawn(connection);
    Ok(client)
}

fn with_database(url: &str, name: &str) -> Result<String> {
    let (base, options) = url.split_once('?').map_or((url, ""), |(b, o)| (b, o));
    let scheme_end = base.find("://").context("TEST_DATABASE_URL must be a URL: postgres://...")? + 3;
    let authority_end = base[scheme_end..].find('/').map_or(base.len(), |index| scheme_end + index);
    let mut url = format!("{}/{name}", &base[..authority_end]);
    if !options.is_empty() {
        url.push('?');
        url.push_str(options);
    }
    Ok(url)
}

/// The port in a server's address.
///
/// # Errors
/// When it has none.
pub fn port_of(url: &str) -> Result<u16> {
    let config: Config = url.parse()?;
    config.get_ports().first().copied().context("the database's address has no port")
}

fn without_password(url: &str) -> &str {
    url.split_once('@').map_or(url, |(_, rest)| rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_database_is_exchanged_in_every_form_of_the_address() {
        for (given, expected) in [
            ("postgres://u:p@h:1/postgres", "postgres://u:p@h:1/x"),
            ("postgres://u:p@h:1", "postgres://u:p@h:1/x"),
            ("postgresql://h:1/a?sslmode=disable", "postgresql://h:1/x?sslmode=disable"),
        ] {
            assert_eq!(with_database(given, "x").unwrap(), expected);
        }
    }
}
