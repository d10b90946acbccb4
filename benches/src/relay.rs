//! The relay as a process: started, watched for its memory and its counters, and waited for.

use std::fs::File;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use outbox_tests::metrics::{self, Samples};
use outbox_tests::services;

use crate::processes::{self, Status, Tree};
use crate::{Broker, Places};

/// Fine enough for the peak of a process that grows steadily.
const LOOK: Duration = Duration::from_millis(100);
const START: Duration = Duration::from_secs(20);

pub struct Relay {
    child: Child,
    log: PathBuf,
    pub admin: SocketAddr,
}

/// What the relay cost, start and end included.
#[derive(Clone, Debug, Default)]
pub struct Cost {
    pub cpu_seconds: f64,
    pub memory_peak_bytes: u64,
    pub database_memory_peak_bytes: u64,
    /// The last counters that could be read.
    pub last: Option<Samples>,
}

impl Relay {
    pub async fn start(places: &Places, broker: Broker, database_url: &str, arguments: &[&str]) -> Result<Self> {
        let binary = places.relay.clone().unwrap_or_else(|| services::target_dir().join("release/outbox-relay"));
        let log = std::env::temp_dir().join(format!("outbox-bench-{}.log", uuid::Uuid::new_v4().simple()));
        let mut command = Command::new(&binary);
        command.args(["run", "--database-url", database_url, "--admin-listen", "127.0.0.1:0"]).args(arguments);
        command.env_remove("DATABASE_URL").env_remove("AMQP_URL").env_remove("KAFKA_BROKERS");
        match (broker, &places.amqp_url, &places.kafka_brokers) {
            (Broker::Rabbitmq, Some(url), _) => command.env("AMQP_URL", url),
            (Broker::Kafka, _, Some(brokers)) => command.env("KAFKA_BROKERS", brokers),
            _ => bail!("the broker's address is missing; set TEST_AMQP_URL or TEST_KAFKA_BROKERS"),
        };
        for setting in &places.settings {
            let (name, value) = setting.split_once('=').context("--set takes NAME=VALUE")?;
            command.env(name, value);
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(&log)?);
        let child = command.spawn().with_context(|| format!("starting {}", binary.display()))?;
        let mut relay = Self { child, log, admin: SocketAddr::from(([0, 0, 0, 0], 0)) };
        relay.admin = relay.wait_admin().await?;
        Ok(relay)
    }

    async fn wait_admin(&self) -> Result<SocketAddr> {
        let until = Instant::now() + START;
        while Instant::now() < until && !processes::has_ended(self.pid()) {
            let log = std::fs::read_to_string(&self.log).unwrap_or_default();
            let line = log.lines().find(|line| line.contains("admin endpoint listening"));
            let address = line.and_then(|line| {
                let from = line.find("127.0.0.1:")?;
                line[from..].split(|letter: char| !letter.is_ascii_digit() && !".:".contains(letter)).next()
            });
            if let Some(address) = address {
                return address.parse().with_context(|| format!("no address: {address}"));
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        bail!("the relay did not start:\n{}", std::fs::read_to_string(&self.log).unwrap_or_default())
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub async fn metrics(&self) -> Option<Samples> {
        metrics::scrape(self.admin).await.ok()
    }

    /// Waits for the end of a drain and counts what it took.
    pub async fn finish(mut self, database: Tree, within: Duration) -> Result<Cost> {
        let until = Instant::now() + within;
        let mut cost = Cost::default();
        let mut looks = 0_u32;
        while !processes::has_ended(self.pid()) {
            if Instant::now() > until {
                bail!("the relay did not end within {} s", within.as_secs());
            }
            cost.memory_peak_bytes = cost.memory_peak_bytes.max(Status::read(self.pid()).bytes("VmHWM"));
            if looks.is_multiple_of(5) {
                cost.database_memory_peak_bytes = cost.database_memory_peak_bytes.max(database.memory_bytes());
                cost.last = self.metrics().await.or(cost.last);
            }
            looks += 1;
            tokio::time::sleep(LOOK).await;
        }
        // Before it is waited for: afterwards the kernel has forgotten.
        cost.cpu_seconds = processes::cpu_seconds(self.pid());
        let status = self.child.wait()?;
        if !status.success() {
            bail!("the relay ended with {status}:\n{}", std::fs::read_to_string(&self.log).unwrap_or_default());
        }
        Ok(cost)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        // It has ended already unless something failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.log);
    }
}
