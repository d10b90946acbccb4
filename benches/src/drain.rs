//! One drain: half of the rows by a bare publisher, all of them by the relay, the other half bare. What else runs on
//! the machine so weighs on both alike.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use outbox_tests::metrics::Samples;

use crate::backlog::Backlog;
use crate::check::Seen;
use crate::kafka::Topic;
use crate::load::Load;
use crate::processes::{self, Tree};
use crate::rabbitmq::Queue;
use crate::relay::{Cost, Relay};
use crate::result::{Cpu, Drained, Origin, Statements, save};
use crate::{Broker, Drain, report};

/// Enough for a million rows on a machine ten times slower.
const DRAIN_TIMEOUT_S: &str = "1800";
const DRAIN_MAX: Duration = Duration::from_secs(1_900);
/// With one key the bare publisher waits for each confirm: fewer rows say as much.
const ONE_KEY_BARE_ROWS_MAX: u32 = 20_000;

/// The place at the broker that one contender fills.
enum Target {
    Rabbitmq(Box<Queue>),
    Kafka(Topic),
}

impl Target {
    async fn make(arguments: &Drain) -> Result<Self> {
        let places = &arguments.places;
        match arguments.broker {
            Broker::Rabbitmq => {
                let url = places.amqp_url.as_deref().context("set TEST_AMQP_URL or --amqp-url")?;
                Ok(Self::Rabbitmq(Box::new(Queue::declare(url, arguments.queue).await?)))
            }
            Broker::Kafka => {
                let brokers = places.kafka_brokers.as_deref().context("set TEST_KAFKA_BROKERS or --kafka-brokers")?;
                Ok(Self::Kafka(Topic::create(brokers, arguments.partitions).await?))
            }
        }
    }

    fn name(&self) -> &str {
        match self {
            Self::Rabbitmq(queue) => &queue.name,
            Self::Kafka(topic) => &topic.name,
        }
    }

    async fn bare(&self, load: &Arc<Load>, rows: std::ops::Range<u32>, in_flight: usize) -> Result<f64> {
        match self {
            Self::Rabbitmq(queue) => queue.bare(load, rows).await,
            Self::Kafka(topic) => topic.bare(Arc::clone(load), rows, in_flight).await,
        }
    }

    async fn check(&self, load: &Arc<Load>) -> Result<Seen> {
        match self {
            Self::Rabbitmq(queue) => queue.check(load).await,
            Self::Kafka(topic) => topic.check(Arc::clone(load)).await,
        }
    }

    async fn delete(self) -> Result<()> {
        match self {
            Self::Rabbitmq(queue) => queue.delete().await,
            Self::Kafka(topic) => topic.delete().await,
        }
    }
}

#[derive(Default)]
struct Bare {
    rows: u32,
    seconds: f64,
    cpu_seconds: f64,
    broker_cpu_seconds: f64,
}

impl Bare {
    async fn publish(
        &mut self,
        arguments: &Drain,
        load: &Arc<Load>,
        rows: std::ops::Range<u32>,
        broker: Option<Tree>,
    ) -> Result<()> {
        let target = Target::make(arguments).await?;
        let count = rows.end - rows.start;
        let broker_cpu = || broker.map_or(0.0, Tree::cpu_seconds);
        let (own, others) = (processes::own_cpu_seconds(), broker_cpu());
        self.seconds += target.bare(load, rows, arguments.in_flight).await?;
        self.cpu_seconds += processes::own_cpu_seconds() - own;
        self.broker_cpu_seconds += broker_cpu() - others;
        self.rows += count;
        target.delete().await
    }
}

struct Drove {
    seconds: f64,
    cost: Cost,
    database_cpu_seconds: f64,
    broker_cpu_seconds: f64,
    seen: Seen,
}

/// Measures, prints and saves.
pub async fn run(arguments: &Drain) -> Result<()> {
    let origin = Origin::now();
    let load = Arc::new(Load::new(arguments.rows, arguments.keys, arguments.payload, arguments.seed));
    let broker = broker_tree(arguments);
    let bare_rows = if arguments.keys == 1 { arguments.rows.min(ONE_KEY_BARE_ROWS_MAX) } else { arguments.rows };
    let mut bare = Bare::default();
    bare.publish(arguments, &load, 0..bare_rows / 2, broker).await?;
    let drove = drive(arguments, &load, broker).await?;
    bare.publish(arguments, &load, bare_rows / 2..bare_rows, broker).await?;
    let drained = put_together(arguments, origin, &bare, &drove);
    report::show(&drained);
    // A void run is shown, and not kept.
    drove.seen.must_be_whole(arguments.rows)?;
    if let Some(folder) = &arguments.results {
        save(folder, &drained.name, &drained)?;
    }
    Ok(())
}

async fn drive(arguments: &Drain, load: &Arc<Load>, broker: Option<Tree>) -> Result<Drove> {
    let target = Target::make(arguments).await?;
    let places = &arguments.places;
    let backlog = Backlog::preload(&places.database_url, load, target.name()).await?;
    let database = Tree(processes::parent(backlog.backend_pid().await?)?);
    let broker_cpu = || broker.map_or(0.0, Tree::cpu_seconds);
    let (database_before, broker_before) = (database.cpu_seconds(), broker_cpu());
    let arguments_of_drain = ["--drain", "--drain-timeout", DRAIN_TIMEOUT_S];
    let relay = Relay::start(places, arguments.broker, backlog.url(), &arguments_of_drain).await?;
    let began = first_claim(&relay, &backlog).await?;
    let cost = relay.finish(database, DRAIN_MAX).await?;
    let database_cpu_seconds = database.cpu_seconds() - database_before;
    let broker_cpu_seconds = broker_cpu() - broker_before;
    let (ended, unsent) = backlog.marked().await?;
    if unsent > 0 {
        bail!("the relay ended as drained, and {unsent} rows are unsent");
    }
    let seen = target.check(load).await?;
    target.delete().await?;
    Ok(Drove { seconds: ended - began, cost, database_cpu_seconds, broker_cpu_seconds, seen })
}

/// By the database's clock, and rather too early than too late.
async fn first_claim(relay: &Relay, backlog: &Backlog) -> Result<f64> {
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        let before = backlog.clock().await?;
        match relay.metrics().await {
            Some(samples) if samples.sum("outbox_claimed_messages_total", &[]) > 0.0 => return Ok(before),
            _ if Instant::now() > until => bail!("the relay claimed nothing for a minute"),
            // A short drain may be over before it was seen at work.
            None if processes::has_ended(relay.pid()) => return Ok(before),
            _ => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}

fn broker_tree(arguments: &Drain) -> Option<Tree> {
    let address = match arguments.broker {
        Broker::Rabbitmq => arguments.places.amqp_url.as_deref()?,
        Broker::Kafka => arguments.places.kafka_brokers.as_deref()?,
    };
    let port: String = address.rsplit_once(':')?.1.chars().take_while(char::is_ascii_digit).collect();
    processes::listener(port.parse().ok()?).map(Tree)
}

fn put_together(arguments: &Drain, origin: Origin, bare: &Bare, drove: &Drove) -> Drained {
    let rows = f64::from(arguments.rows);
    let (rate, bare_rate) = (rows / drove.seconds, f64::from(bare.rows) / bare.seconds);
    let millions = rows / 1e6;
    let bare_millions = f64::from(bare.rows) / 1e6;
    Drained {
        name: name(arguments),
        rows: arguments.rows,
        keys: arguments.keys,
        payload_bytes: arguments.payload,
        seed: arguments.seed,
        settings: arguments.places.settings.clone(),
        messages_per_second: rate,
        bare_messages_per_second: bare_rate,
        ratio: rate / bare_rate,
        cpu_seconds_per_million: Cpu {
            relay: drove.cost.cpu_seconds / millions,
            database: drove.database_cpu_seconds / millions,
            broker: drove.broker_cpu_seconds / millions,
        },
        bare_cpu_seconds_per_million: bare.cpu_seconds / bare_millions,
        bare_broker_cpu_seconds_per_million: bare.broker_cpu_seconds / bare_millions,
        relay_memory_peak_mb: megabytes(drove.cost.memory_peak_bytes),
        database_memory_peak_mb: megabytes(drove.cost.database_memory_peak_bytes),
        statements: drove.cost.last.as_ref().map(statements).unwrap_or_default(),
        seen: drove.seen,
        origin,
    }
}

fn statements(samples: &Samples) -> Statements {
    let sum = |name: &str| samples.sum(name, &[]);
    let mean_ms = |name: &str| sum(&format!("{name}_sum")) / sum(&format!("{name}_count")).max(1.0) * 1_000.0;
    Statements {
        claims: sum("outbox_claim_duration_seconds_count"),
        claim_ms_mean: mean_ms("outbox_claim_duration_seconds"),
        rows_per_claim: sum("outbox_claimed_messages_total") / sum("outbox_claim_duration_seconds_count").max(1.0),
        marks: sum("outbox_mark_duration_seconds_count"),
        mark_ms_mean: mean_ms("outbox_mark_duration_seconds"),
    }
}

fn name(arguments: &Drain) -> String {
    let broker = match (arguments.broker, arguments.queue) {
        (Broker::Kafka, _) => "kafka".to_owned(),
        (Broker::Rabbitmq, queue) => format!("rabbitmq-{}", format!("{queue:?}").to_lowercase()),
    };
    format!("drain-{broker}-{}-rows-{}-keys-{}-bytes", arguments.rows, arguments.keys, arguments.payload)
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^52, and for human eyes")]
pub fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}
