//! Everything that a campaign plays on: services, database, broker, relays, and the settling after each batch.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use outbox_tests::database::{self, Database};
use outbox_tests::journal::Outcome;
use outbox_tests::own_services::{OwnServices, Service};
use outbox_tests::proxy::Proxy;
use outbox_tests::relay::{Launch, binary};
use outbox_tests::verdict::{Breach, Rule, Stored};
use outbox_tests::wait;
use tokio::sync::RwLock;
use tokio::task::JoinHandle;
use tokio_postgres::Client;

use crate::brokers::Broker;
use crate::evidence::Notes;
use crate::fleet::Member;
use crate::options::{Mode, Options};
use crate::writers::{self, Writer};

/// The relays' bound on duplicates: small, so that it is tight.
pub const IN_FLIGHT_MAX: usize = 64;
const WRITERS: usize = 8;
/// A backlog must be gone so long after the last fault has ended; the machine may be busy.
const BACKLOG_DEADLINE: Duration = Duration::from_secs(180);
const ARRIVAL_DEADLINE: Duration = Duration::from_secs(120);
/// Rows that each test of a missing address writes.
const SIDE_ROWS: usize = 12;
/// Their keys, so that most relays own one.
const SIDE_KEYS: usize = 6;

/// See the module. Fields are dropped in this order: whoever uses a service goes before it.
pub struct Stage {
    pub relays: Vec<Member>,
    pub broker: Broker,
    writers: Vec<JoinHandle<()>>,
    client: Option<Client>,
    /// The broker on its way down and up again.
    pub restarting: Option<JoinHandle<Result<()>>>,
    /// Holds the lanes' locks while that fault lasts.
    pub locker: Option<Client>,
    pub database: Database,
    pub services: Arc<OwnServices>,
    pub notes: Notes,
    pub gate: Arc<RwLock<()>>,
    pub sides: usize,
    random: fastrand::Rng,
}

impl Stage {
    pub async fn set(options: &Options, seed: u64, lease_ms: u64) -> Result<Self> {
        let service = if options.mode == Mode::Kafka { Service::Kafka } else { Service::Rabbitmq };
        let services = match &options.services {
            Some(folder) => OwnServices::given(folder),
            None => OwnServices::start(&[Service::Postgres, service]).await?,
        };
        let database = Database::migrated_on(&services.address(Service::Postgres)?).await?;
        let client = database.client().await?;
        let counter = "CREATE SCHEMA campaign; CREATE TABLE campaign.counter (key text PRIMARY KEY, n bigint NOT NULL)";
        client.batch_execute(counter).await?;
        let notes = Notes::new();
        let broker = Broker::set(options.mode, services.address(service)?, notes.clone()).await?;
        if options.mode == Mode::RabbitmqQuorum {
            // RabbitMQ 3.10 writes down late that a quorum queue exists: killed before, it finds no leader for it ever
            // after. A stop in order writes it down.
            services.stop(service).await?;
            services.resume(service).await?;
        }
        let mut stage = Self {
            relays: Vec::new(),
            broker,
            writers: Vec::new(),
            client: Some(client),
            restarting: None,
            locker: None,
            database,
            services: Arc::new(services),
            notes,
            gate: Arc::default(),
            sides: 0,
            random: fastrand::Rng::with_seed(seed),
        };
        for number in 0..usize::from(options.relays) {
            let member = stage.member(options, number, lease_ms).await?;
            stage.relays.push(member);
        }
        stage.start_relays()?;
        stage.start_writers();
        Ok(stage)
    }

    async fn member(&self, options: &Options, number: usize, lease_ms: u64) -> Result<Member> {
        let database = Proxy::start(self.database.port()?).await?;
        let ports = if options.mode == Mode::Kafka { self.services.kafka_fault_ports()? } else { Vec::new() };
        let broker = self.broker.link(&ports, number).await?;
        // A broker under load answers late; each time-out repeats what was in flight.
        let confirm_ms = if options.mode == Mode::Kafka { "5000" } else { "2000" };
        let launch = Launch::run()
            .database(&self.database.url_through(database.port())?)
            .env("OUTBOX__LEASE__TTL_MS", lease_ms.to_string())
            .env("OUTBOX__IN_FLIGHT_MAX", IN_FLIGHT_MAX.to_string())
            .env("OUTBOX__POLL__MAX_MS", "50")
            .env("OUTBOX__RETRY__INITIAL_MS", "50")
            .env("OUTBOX__RETRY__MAX_MS", "500")
            .env("OUTBOX__CONFIRM__TIMEOUT_MS", confirm_ms)
            .env("OUTBOX__SHUTDOWN__GRACE_MS", "5000")
            .env("OUTBOX__LOG__LEVEL", std::env::var("CAMPAIGN_LOG").unwrap_or_else(|_| "warn".to_owned()));
        let mut launch = self.broker.launch(launch, &broker)?.quiet();
        let crashing = std::env::var_os("OUTBOX_MUTANT_BIN").map(|binary| launch.clone().binary(binary));
        if let Some(mutant) = &options.mutant {
            launch = crashing.clone().context("OUTBOX_MUTANT_BIN is not set")?.env("OUTBOX_MUTANT", mutant);
        } else {
            launch = launch.binary(binary());
        }
        let crashing = if options.mutant.is_some() { Some(launch.clone()) } else { crashing };
        let other_version = options.other_version.as_ref().map(|binary| launch.clone().binary(binary));
        Ok(Member::new(launch, database, broker).with(crashing, other_version))
    }

    fn start_writers(&mut self) {
        for number in 0..WRITERS {
            let writer = Writer {
                number,
                url: self.database.url().to_owned(),
                topics: self.broker.topics(),
                notes: self.notes.clone(),
                gate: Arc::clone(&self.gate),
                random: self.random.fork(),
                pause_ms: 80,
            };
            self.writers.push(tokio::spawn(writer.run()));
        }
    }

    pub fn start_relays(&mut self) -> Result<()> {
        for relay in &mut self.relays {
            relay.has_died()?;
            relay.start()?;
        }
        Ok(())
    }

    /// A session for questions; a new one after the database was away.
    pub async fn client(&mut self) -> Result<&Client> {
        if self.client.as_ref().is_none_or(Client::is_closed) {
            let url = self.database.url();
            let connect = || async {
                let client = database::connect(url).await?;
                client.batch_execute("SET default_transaction_read_only = off").await?;
                Ok(Some(client))
            };
            self.client = Some(wait::until("the database to take a session", wait::SOON, connect).await?);
        }
        self.client.as_ref().context("just made")
    }

    /// Writes a few rows of some keys to an address that is not there.
    pub async fn write_side(&mut self, topic: &str) -> Result<()> {
        let client = database::connect(self.database.url()).await?;
        client.batch_execute("SET default_transaction_read_only = off").await?;
        let mut entries = Vec::new();
        for index in 0..SIDE_ROWS {
            let (key, at) = (format!("{topic}.{}", index % SIDE_KEYS), self.notes.now_ms());
            client.batch_execute("BEGIN").await?;
            let number = writers::next_number(&client, Some(&key)).await?;
            let row = writers::row(&format!("{topic}-{at}-{index}"), topic, Some(&key), number, &mut self.random);
            row.insert(&client).await?;
            let committed = client.batch_execute("COMMIT").await.is_ok();
            entries.push(row.entry(number, if committed { Outcome::Committed } else { Outcome::Unknown }));
        }
        self.notes.wrote(entries, false);
        Ok(())
    }

    /// Waits until what was committed by now is marked sent, and what is marked sent has arrived.
    pub async fn settle(&mut self) -> Result<Vec<Breach>> {
        for relay in &mut self.relays {
            relay.left().await?;
        }
        self.start_relays()?;
        let notes = self.notes.clone();
        let client = self.client().await?;
        let last: i64 = client.query_one("SELECT last_value FROM outbox.message_seq", &[]).await?.try_get(0)?;
        let open = "SELECT FROM outbox.message WHERE sent_at IS NULL AND seq <= $1 LIMIT 1";
        let cleared = || async { Ok(client.query(open, &[&last]).await?.is_empty()) };
        if wait::until_true("the backlog to clear", BACKLOG_DEADLINE, cleared).await.is_err() {
            return Ok(vec![Breach { rule: Rule::Backlog, detail: backlog(client, last).await? }]);
        }
        let sent = "SELECT idempotency_key FROM outbox.message WHERE sent_at IS NOT NULL";
        let ids: Vec<String> =
            client.query(sent, &[]).await?.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?;
        let arrived = || async { Ok(notes.has_all(&ids)) };
        if wait::until_true("what is marked sent to arrive", ARRIVAL_DEADLINE, arrived).await.is_err() {
            let breach = |id| Breach { rule: Rule::SentButAbsent, detail: id };
            return Ok(notes.missing(&ids).into_iter().map(breach).collect());
        }
        Ok(Vec::new())
    }

    /// The whole table.
    pub async fn table(&mut self) -> Result<std::collections::HashMap<String, Stored>> {
        let rows =
            self.client().await?.query("SELECT idempotency_key, sent_at IS NOT NULL FROM outbox.message", &[]).await?;
        rows.iter().map(|row| Ok((row.try_get(0)?, Stored { sent: row.try_get(1)? }))).collect()
    }

    /// The table in words, for whoever looks into a breach.
    pub async fn rows(&mut self) -> Result<String> {
        let sql = "SELECT format('row seq=%s tx=%s lane=%s %s %s created=%s sent=%s', seq, tx, lane, idempotency_key,
                                 coalesce(ordering_key, '-'), created_at, sent_at) FROM outbox.message ORDER BY seq";
        let rows = self.client().await?.query(sql, &[]).await?;
        let lines: Vec<String> = rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?;
        Ok(lines.join("\n"))
    }

    /// As retention would: what was judged leaves the table.
    pub async fn forget(&mut self) -> Result<()> {
        self.client().await?.execute("DELETE FROM outbox.message WHERE sent_at IS NOT NULL", &[]).await?;
        self.notes.clear();
        Ok(())
    }

    /// Connections to the broker and deaths so far: each may repeat what was in flight.
    pub fn interruptions(&self) -> usize {
        let of = |relay: &Member| relay.deaths + usize::try_from(relay.broker.connections()).unwrap_or(usize::MAX);
        self.relays.iter().map(of).sum()
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        for writer in &self.writers {
            writer.abort();
        }
        if let Some(restarting) = &self.restarting {
            restarting.abort();
        }
        // A campaign that ended in the middle of a batch leaves nothing frozen behind.
        let _ = self.services.thaw(self.broker.service());
    }
}

/// What is unsent, by state and reason.
async fn backlog(client: &Client, last: i64) -> Result<String> {
    let sql =
        "SELECT state, reason, count(*), min(seq), min(idempotency_key), max(attempts), min(next_attempt_at)::text
                 FROM outbox.message_status WHERE state <> 'sent' AND seq <= $1 GROUP BY state, reason";
    let mut told = String::new();
    for row in client.query(sql, &[&last]).await? {
        let (state, reason): (String, Option<String>) = (row.try_get(0)?, row.try_get(1)?);
        let (count, seq, id): (i64, i64, String) = (row.try_get(2)?, row.try_get(3)?, row.try_get(4)?);
        let next: Option<String> = row.try_get(6)?;
        told += &format!("{count} {state} ({reason:?}) from {seq} ({id}), next attempt {next:?}; ");
    }
    let lanes =
        "SELECT string_agg(lane || ':' || coalesce(left(owner::text, 4), '-') || '/' || epoch, ' ' ORDER BY lane)
                   FROM outbox.lane";
    let lanes: Option<String> = client.query_one(lanes, &[]).await?.try_get(0)?;
    Ok(format!("{told}lanes {}", lanes.unwrap_or_default()))
}
