//! Asks the cluster, on a thread and over a connection of its own: whether it answers, whether a topic is there,
//! and how large its batches may be. So a slow answer never holds up what is being sent.
//!
//! It decides nothing and sends no record; topics are never created by asking for them.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use rdkafka::admin::{AdminClient, AdminOptions, ResourceSpecifier};
use rdkafka::client::DefaultClientContext;
use rdkafka::metadata::Metadata;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tracing::debug;

use crate::config::{ConfigError, Settings};
use crate::inbox::{Event, Inbox};
use crate::topics::{self, Limits, Standing};

/// Every cluster that has consumers has it, and asking for it costs little; it need not exist.
const WELL_KNOWN_TOPIC: &str = "__consumer_offsets";
const CHECK_UP_MS: u64 = 5_000;
const CHECK_DOWN_MS: u64 = 250;
const ANSWER_MAX_MS: u64 = 10_000;
/// A client that got no answer for so long is replaced.
const CLIENT_LIFE_MIN: Duration = Duration::from_millis(500);

pub(crate) enum Ask {
    /// Whether the cluster answers.
    Check,
    Topic(String),
    /// The same for somebody who is not the sender.
    Probe(String, oneshot::Sender<Standing>),
    /// Read certificates and names anew.
    Renew,
    End,
}

pub(crate) struct Scout {
    settings: Settings,
    admin: AdminClient<DefaultClientContext>,
    runtime: Runtime,
    inbox: Arc<Inbox>,
    answer_max: Duration,
    answered: bool,
}

impl Scout {
    /// Starts the thread; it ends by `Ask::End` or when nobody can ask any more.
    pub fn start(settings: &Settings, inbox: &Arc<Inbox>) -> Result<Sender<Ask>, ConfigError> {
        let thread_fault = |error: std::io::Error| ConfigError::Thread { detail: error.to_string() };
        let (asks, asked) = std::sync::mpsc::channel();
        let scout = Self {
            settings: settings.clone(),
            admin: settings.admin.create().map_err(ConfigError::from_kafka)?,
            runtime: tokio::runtime::Builder::new_current_thread().enable_time().build().map_err(thread_fault)?,
            inbox: Arc::clone(inbox),
            answer_max: Duration::from_millis(settings.config.confirm_timeout_ms.clamp(1_000, ANSWER_MAX_MS)),
            answered: false,
        };
        std::thread::Builder::new()
            .name("kafka-scout".to_owned())
            .spawn(move || scout.run(&asked))
            .map_err(thread_fault)?;
        Ok(asks)
    }

    fn run(mut self, asked: &Receiver<Ask>) {
        loop {
            let pause = if self.answered { CHECK_UP_MS } else { CHECK_DOWN_MS };
            match asked.recv_timeout(Duration::from_millis(pause)) {
                Ok(Ask::Check) | Err(RecvTimeoutError::Timeout) => self.check(),
                Ok(Ask::Topic(topic)) => {
                    let standing = self.topic(&topic);
                    self.inbox.event(Event::Asked { topic, standing });
                }
                Ok(Ask::Probe(topic, reply)) => {
                    // Whoever asked may have gone.
                    let _ = reply.send(self.topic(&topic));
                }
                Ok(Ask::Renew) => self.renew(),
                Ok(Ask::End) | Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn check(&mut self) {
        let since = Instant::now();
        let answer = self.metadata(WELL_KNOWN_TOPIC).map(drop);
        self.answered = answer.is_ok();
        self.inbox.event(Event::Checked(answer));
        // Not after one that failed at once: a client is a handful of threads.
        if !self.answered && since.elapsed() >= CLIENT_LIFE_MIN {
            self.renew();
        }
    }

    /// A new client asks the bootstrap servers again. librdkafka 2.12 was seen, after a restart of the only broker,
    /// with no thread for any broker left; it then never connected again.
    fn renew(&mut self) {
        self.settings.renew();
        match self.settings.admin.create() {
            Ok(admin) => self.admin = admin,
            // The old one goes on; the sender meets the same fault and shows it.
            Err(error) => debug!(sink = "kafka", %error, "the admin client could not be made anew"),
        }
    }

    fn topic(&self, name: &str) -> Standing {
        let metadata = match self.metadata(name) {
            Ok(metadata) => metadata,
            Err(detail) => return Standing::Unasked(detail),
        };
        if let Some(fault) = topics::fault(&metadata, name) {
            return Standing::Away(fault);
        }
        let limits = Limits { partitions: topics::partitions(&metadata, name), ..self.limits(name) };
        match topics::starved(&metadata, name, limits) {
            Some(fault) => Standing::Away(fault),
            None => Standing::Exists(limits),
        }
    }

    fn metadata(&self, topic: &str) -> Result<Metadata, String> {
        self.admin.inner().fetch_metadata(Some(topic), self.answer_max).map_err(|error| {
            match error.rdkafka_error_code() {
                Some(code) => format!("no broker answered within {} ms: {code}", self.answer_max.as_millis()),
                None => error.to_string(),
            }
        })
    }

    /// The topic's rules, as far as we may see them: `DescribeConfigs` is a permission of its own.
    fn limits(&self, name: &str) -> Limits {
        let resource = [ResourceSpecifier::Topic(name)];
        let options = AdminOptions::new().request_timeout(Some(self.answer_max));
        // librdkafka ends a request in time; the thread must not depend on it.
        let asking = async {
            let asked = self.admin.describe_configs(&resource, &options);
            tokio::time::timeout(self.answer_max * 2, asked).await
        };
        let described = self.runtime.block_on(asking).ok().and_then(Result::ok);
        let Some(Ok(config)) = described.and_then(|mut all| all.pop()) else {
            debug!(sink = "kafka", destination = name, "the topic's limits cannot be seen; its keys go strictly");
            return Limits::default();
        };
        let number = |key: &str| config.get(key)?.value.as_ref()?.parse().ok();
        let policy = config.get("cleanup.policy").and_then(|entry| entry.value.as_deref());
        Limits {
            batch_max_bytes: number("max.message.bytes"),
            in_sync_min: number("min.insync.replicas"),
            compacted: policy.is_some_and(|policy| policy.contains("compact")),
            partitions: 0,
        }
    }
}
