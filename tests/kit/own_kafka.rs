//! A Kafka of one test with addresses of its own: of several certificates, with logins, with rights. The test itself
//! talks to it in plain text, as its administrator.

use anyhow::Result;

use crate::certificates::{Authority, Issued};
use crate::files::Files;
use crate::own_services::{OwnServices, Service};

/// See the module.
pub struct OwnKafka {
    own: OwnServices,
    /// Outside the set's folder, since the broker wants them at its start. They go after the broker.
    files: Files,
}

/// An address with a protocol, and what the broker must know of it.
pub struct Listener {
    name: &'static str,
    protocol: &'static str,
    settings: Vec<(String, String)>,
    shown: Option<(Issued, String)>,
}

impl Listener {
    /// Of one of Kafka's protocols, with settings of this listener. Names are capital letters.
    #[must_use]
    pub fn new(name: &'static str, protocol: &'static str, settings: &[(&str, &str)]) -> Self {
        let settings = settings.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        Self { name, protocol, settings, shown: None }
    }

    /// Whoever comes logs in by this mechanism of SASL, which Kafka's login module of that line checks.
    #[must_use]
    pub fn logging_in(mut self, mechanism: &str, module: &str) -> Self {
        self.settings.push(("sasl.enabled.mechanisms".to_owned(), mechanism.to_owned()));
        self.settings.push((format!("{}.sasl.jaas.config", mechanism.to_lowercase()), module.to_owned()));
        self
    }

    /// With TLS: it shows this certificate.
    #[must_use]
    pub fn tls(name: &'static str, server: Issued, clients: &Authority) -> Self {
        Self::new(name, "SSL", &[]).showing(server, clients)
    }

    /// The certificate that it shows, and whose clients it takes.
    #[must_use]
    pub fn showing(mut self, server: Issued, clients: &Authority) -> Self {
        self.shown = Some((server, clients.pem()));
        self
    }

    /// Whoever comes must have a certificate of the authority whose clients it takes.
    #[must_use]
    pub fn demanding(mut self) -> Self {
        self.settings.push(("ssl.client.auth".to_owned(), "required".to_owned()));
        self
    }

    fn lines(&self, files: &Files) -> Result<String> {
        let mut settings = self.settings.clone();
        if let Some((server, clients)) = &self.shown {
            show(files, self.name, server, clients)?;
            let stores = [("keystore", server_file(self.name)), ("truststore", clients_file(self.name))];
            for (store, file) in stores {
                settings.push((format!("ssl.{store}.type"), "PEM".to_owned()));
                settings.push((format!("ssl.{store}.location"), files.path(&file)?));
            }
        }
        let listener = self.name.to_lowercase();
        let line = |(key, value): &(String, String)| format!("listener.name.{listener}.{key}={value}\n");
        Ok(settings.iter().map(line).collect())
    }
}

fn server_file(listener: &str) -> String {
    format!("{listener}.server.pem")
}

fn clients_file(listener: &str) -> String {
    format!("{listener}.clients.pem")
}

fn show(files: &Files, listener: &str, server: &Issued, clients: &str) -> Result<()> {
    files.write(&server_file(listener), &format!("{}{}", server.key, server.certificate))?;
    files.write(&clients_file(listener), clients)?;
    Ok(())
}

impl OwnKafka {
    /// With these listeners, and further settings of the broker.
    ///
    /// # Errors
    /// When it does not start.
    pub async fn start(listeners: &[Listener], settings: &str) -> Result<Self> {
        let files = Files::new("kafka")?;
        let mut text = settings.to_owned();
        for listener in listeners {
            text += &listener.lines(&files)?;
        }
        let path = files.write("kafka.settings", &text)?;
        let names: Vec<String> =
            listeners.iter().map(|listener| format!("{}:{}", listener.name, listener.protocol)).collect();
        let environment = [("KAFKA_LISTENERS", names.join(" ")), ("KAFKA_SETTINGS", path)];
        let environment = environment.each_ref().map(|(name, value)| (*name, value.as_str()));
        let own = OwnServices::start_with(&[Service::Kafka], &environment).await?;
        Ok(Self { own, files })
    }

    /// The administrator's bootstrap servers, in plain text.
    ///
    /// # Errors
    /// When the broker is stopped.
    pub fn plain(&self) -> Result<String> {
        self.own.address(Service::Kafka)
    }

    /// The bootstrap servers of a listener.
    ///
    /// # Errors
    /// When there is none of that name.
    pub fn address(&self, listener: &str) -> Result<String> {
        self.own.kafka_listener(listener)
    }

    /// A file for the relay, written anew; its path.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn file(&self, name: &str, text: &str) -> Result<String> {
        self.files.write(name, text)
    }

    /// From its next start on a listener shows this certificate and takes those of `clients`.
    ///
    /// # Errors
    /// When the files cannot be written.
    pub fn show(&self, listener: &str, server: &Issued, clients: &Authority) -> Result<()> {
        show(&self.files, listener, server, &clients.pem())
    }

    /// Ends all connections by stopping the broker in order and starting it again.
    ///
    /// # Errors
    /// When it does not.
    pub async fn restart(&self) -> Result<()> {
        self.own.stop(Service::Kafka).await?;
        self.own.resume(Service::Kafka).await
    }

    /// Runs a program of Kafka's own as the administrator; `arguments` follow the address.
    ///
    /// # Errors
    /// When it fails, with what it said.
    pub async fn administer(&self, program: &str, arguments: &[&str]) -> Result<String> {
        let address = self.plain()?;
        self.own.kafka_tool(&[&[program, "--bootstrap-server", &address], arguments].concat()).await
    }

    /// Makes a user with a password (SASL SCRAM), or changes it.
    ///
    /// # Errors
    /// When the broker refuses.
    pub async fn set_password(&self, user: &str, password: &str) -> Result<()> {
        let credentials = format!("SCRAM-SHA-256=[password={password}]");
        let arguments = ["--alter", "--add-config", &credentials, "--entity-type", "users", "--entity-name", user];
        self.administer("org.apache.kafka.tools.ConfigCommand", &arguments).await.map(|_| ())
    }
}
