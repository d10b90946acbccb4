//! The consumer of a queue with TLS to its database, brought by the application.

use std::sync::{Arc, Mutex};

use outbox_client::{BoxError, Handler, Message, Outcome, Settings};
use outbox_schema::{Options, migrate};
use outbox_tests::certificates::Authority;
use outbox_tests::tls_postgres::TlsPostgres;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};
use tokio::sync::Notify;
use tokio_postgres::{Config, Transaction};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::rabbitmq::{Queues, WAIT_MAX};

/// Believes who has a certificate of this authority.
fn believing(authority: &Authority) -> MakeRustlsConnect {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(authority.pem().as_bytes()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    MakeRustlsConnect::new(config.with_root_certificates(roots).with_no_client_auth())
}

/// Writes down whether its connection is encrypted.
#[derive(Default)]
struct Noting {
    failures: Mutex<Vec<String>>,
    failed: Notify,
    done: Notify,
}

impl Handler for Noting {
    async fn handle(&self, transaction: &Transaction<'_>, message: &Message) -> Result<(), BoxError> {
        let note = "INSERT INTO effect SELECT $1, ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()";
        transaction.execute(note, &[&message.id]).await?;
        Ok(())
    }

    async fn committed(&self, _message: &Message, _outcome: Outcome<()>) {
        self.done.notify_one();
    }

    async fn failed(&self, _message: &Message, error: &(dyn std::error::Error + Send + Sync)) {
        self.failures.lock().unwrap().push(error.to_string());
        self.failed.notify_one();
    }
}

#[tokio::test]
async fn a_consumer_speaks_the_tls_that_the_application_brings_and_nothing_less() {
    let server = TlsPostgres::start().await.unwrap();
    let admin = server.client();
    admin.batch_execute("CREATE ROLE secured SUPERUSER LOGIN PASSWORD 'outbox'").await.unwrap();
    server.allow(&["host all secured 127.0.0.1/32 scram-sha-256"]).await.unwrap();
    admin.batch_execute("CREATE TABLE effect (id text, encrypted bool)").await.unwrap();
    let url = server.url().unwrap();
    let (mut owner, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(async move { drop(connection.await) });
    migrate(&mut owner, &Options::default()).await.unwrap();
    let config: Config = url.replace("postgres:outbox@", "secured:outbox@").parse().unwrap();
    let (authority, other) = (Authority::new("authority").unwrap(), Authority::new("other").unwrap());
    let queues = Queues::new().await;
    queues.publish(Some("a"), "x").await;

    // A server without TLS is never spoken to, though plain text would be let in.
    let settings = Settings::new(config.clone(), "c").with_tls(believing(&authority));
    let consumer = queues.consumer_with(settings);
    let handler = Noting::default();
    let run = tokio::time::timeout(WAIT_MAX, consumer.run(&handler, handler.failed.notified())).await;
    run.expect("no attempt failed").unwrap();
    let said = handler.failures.lock().unwrap().concat();
    assert!(said.contains("server does not support TLS"), "{said}");

    // Nor is one that the application does not believe.
    server.present(&authority.server(&["127.0.0.1"]).unwrap(), None).await.unwrap();
    let stranger = queues.consumer_with(Settings::new(config.clone(), "c").with_tls(believing(&other)));
    let handler = Noting::default();
    let run = tokio::time::timeout(WAIT_MAX, stranger.run(&handler, handler.failed.notified())).await;
    run.expect("no attempt failed").unwrap();
    let said = handler.failures.lock().unwrap().concat();
    assert!(said.contains("UnknownIssuer"), "{said}");

    // A configuration that asks for TLS which nobody brought ends the consumer.
    let mut asking = config.clone();
    asking.ssl_mode(tokio_postgres::config::SslMode::Require);
    let asking = queues.consumer_with(Settings::new(asking, "c"));
    let run = tokio::time::timeout(WAIT_MAX, asking.run(&Noting::default(), std::future::pending())).await;
    let error = run.expect("the consumer goes on").unwrap_err().to_string();
    assert!(error.contains("Settings::with_tls brought none"), "{error}");

    let handler = Noting::default();
    let run = tokio::time::timeout(WAIT_MAX, consumer.run(&handler, handler.done.notified())).await;
    let failures = handler.failures.lock().unwrap().join("; ");
    run.unwrap_or_else(|_| panic!("the message was not worked on: {failures}")).unwrap();
    let rows = admin.query("SELECT id, encrypted FROM effect", &[]).await.unwrap();
    let rows: Vec<(String, bool)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    assert_eq!(rows, [("a".to_owned(), true)]);
    assert!(queues.dead_letter().await.is_none(), "the message is not to blame");
    queues.delete().await;
}
