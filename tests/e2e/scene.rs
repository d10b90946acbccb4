//! What most fault tests start from: a database, a topic at one broker, a writer with its
//! journal, and a consumer whose arrivals the ledger judges.

use std::collections::{BTreeMap, HashSet};
use std::ops::Deref;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use outbox_tests::database::Database;
use outbox_tests::journal::Journal;
use outbox_tests::kafka::{self, Kafka};
use outbox_tests::kafka_proxy::KafkaProxy;
use outbox_tests::ledger::{self, Arrival, Report};
use outbox_tests::proxy::Proxy;
use outbox_tests::rabbit::{self, QueueType, Rabbit};
use outbox_tests::relay::Launch;
use outbox_tests::services;
use outbox_tests::wait;
use outbox_tests::writer::{Row, Writer};
use serde_json::json;
use tokio::time::Instant;
use tokio_postgres::Client;

/// A configuration under which each row names its exchange, and addresses are tried again soon.
pub const ROUTE_BY_HEADER: &str = r#"
[retry]
initial_ms = 50
max_ms = 100
[[route]]
match = "*"
sink = "rabbitmq"
exchange = "{header.exchange}"
routing_key = "{topic}"
"#;

/// The broker of a scene.
#[expect(clippy::large_enum_variant, reason = "a test has one, and a box would be in the way")]
pub enum Broker {
    Rabbitmq(Rabbit),
    Kafka(Kafka),
}

/// An open consumer.
#[expect(clippy::large_enum_variant, reason = "a test has one, and a box would be in the way")]
enum Reader {
    Rabbitmq(rabbit::Reader),
    Kafka(kafka::Reader),
}

/// See the module.
pub struct Scene {
    pub database: Database,
    pub broker: Broker,
    /// The rows' topic, and the name of the queue or topic that gets them.
    pub topic: String,
    /// For questions about the database, beside the relay and the writer.
    pub client: Client,
    writer: Writer,
    journal: Journal,
    written: usize,
    reader: Option<Reader>,
    /// Kept to the end, since they take their queues and topics with them.
    former: Vec<Broker>,
    arrivals: Vec<Arrival>,
    distinct: HashSet<String>,
}

/// Which of the shared brokers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Rabbitmq,
    Kafka,
}

/// The waiting room forgets a row's attempts when the row is sent, so they are written down as they are used up.
const NOTE_ATTEMPTS: &str = "
    CREATE TABLE public.used_up (row_id text, attempts integer);
    CREATE FUNCTION public.note_attempts() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS
        'BEGIN INSERT INTO public.used_up VALUES (NEW.row_id, NEW.attempts); RETURN NULL; END';
    CREATE TRIGGER note_attempts AFTER INSERT OR UPDATE ON outbox.held
        FOR EACH ROW WHEN (NEW.attempts > 0) EXECUTE FUNCTION public.note_attempts();";

impl Scene {
    /// On the shared services; `None` where Kafka may be missing and is.
    pub async fn new(kind: Kind, test: &str) -> Result<Option<Self>> {
        let broker = match kind {
            Kind::Rabbitmq => Broker::Rabbitmq(Rabbit::connect().await?),
            Kind::Kafka => match Kafka::connect_or_skip(test)? {
                Some(kafka) => Broker::Kafka(kafka),
                None => return Ok(None),
            },
        };
        Self::at(&services::database_url()?, broker).await.map(Some)
    }

    /// On the shared RabbitMQ.
    pub async fn rabbitmq() -> Result<Self> {
        Self::at(&services::database_url()?, Broker::Rabbitmq(Rabbit::connect().await?)).await
    }

    /// On any services. The rows take the default way: `amq.topic` with the topic as routing key,
    /// or the Kafka topic of that name.
    pub async fn at(database_url: &str, broker: Broker) -> Result<Self> {
        Self::on(Database::migrated_on(database_url).await?, broker).await
    }

    /// On a database whose schema is there.
    pub async fn on(database: Database, broker: Broker) -> Result<Self> {
        let topic = match &broker {
            Broker::Rabbitmq(rabbit) => {
                let topic = rabbit.unique("scene");
                rabbit.queue(&topic, QueueType::Classic, &[]).await?;
                rabbit.bind(&topic, "amq.topic", &topic).await?;
                topic
            }
            Broker::Kafka(kafka) => {
                let topic = kafka.unique("scene");
                kafka.create_topic(&topic, 3, &[]).await?;
                topic
            }
        };
        let journal = Journal::default();
        let writer = Writer::new(database.client().await?, journal.clone());
        let client = database.client().await?;
        client.batch_execute(NOTE_ATTEMPTS).await?;
        let (arrivals, distinct) = (Vec::new(), HashSet::new());
        Ok(Self {
            database,
            broker,
            topic,
            client,
            writer,
            journal,
            written: 0,
            reader: None,
            former: Vec::new(),
            arrivals,
            distinct,
        })
    }

    /// The address of the broker.
    pub fn broker_address(&self) -> String {
        match &self.broker {
            Broker::Rabbitmq(rabbit) => rabbit.url().to_owned(),
            Broker::Kafka(kafka) => kafka.brokers().to_owned(),
        }
    }

    /// The port of RabbitMQ.
    pub fn broker_port(&self) -> Result<u16> {
        let address = self.broker_address();
        let (_, port) = address.rsplit_once(':').context("the broker's address has no port")?;
        Ok(port.split('/').next().unwrap_or(port).parse()?)
    }

    /// The address of RabbitMQ through another port of this host.
    pub fn broker_through(&self, port: u16) -> Result<String> {
        let address = self.broker_address();
        let (before, after) = address.rsplit_once(':').context("the broker's address has no port")?;
        let (_, vhost) = after.split_once('/').unwrap_or((after, ""));
        Ok(format!("{before}:{port}/{vhost}"))
    }

    /// A way to the shared broker that a test can break.
    pub async fn broker_proxy(&self) -> Result<BrokerProxy> {
        match &self.broker {
            Broker::Rabbitmq(_) => {
                let proxy = Proxy::start(self.broker_port()?).await?;
                Ok(BrokerProxy { address: self.broker_through(proxy.port())?, proxy: Way::Rabbitmq(proxy) })
            }
            Broker::Kafka(_) => {
                let proxy = KafkaProxy::start().await?;
                Ok(BrokerProxy { address: proxy.brokers(), proxy: Way::Kafka(proxy) })
            }
        }
    }

    /// The relay as this scene wants it: with a lease that a killed relay leaves soon, and that a
    /// loaded machine still renews.
    pub fn launch(&self) -> Launch {
        self.launch_at(self.database.url(), &self.broker_address())
    }

    /// Like [`Scene::launch`] with the ways to the services given, for fault proxies.
    pub fn launch_at(&self, database_url: &str, broker: &str) -> Launch {
        let launch = Launch::run()
            .database(database_url)
            .env("OUTBOX__LEASE__TTL_MS", "3000")
            .env("OUTBOX__LOG__LEVEL", "info,outbox_core=debug");
        match &self.broker {
            Broker::Rabbitmq(_) => launch.amqp(broker),
            Broker::Kafka(_) => launch.kafka(broker),
        }
    }

    /// Commits `count` rows over `keys` ordering keys in one transaction; every tenth has no key.
    pub async fn commit(&mut self, count: usize, keys: usize) -> Result<()> {
        let rows: Vec<Row> = (0..count).map(|_| self.row(keys)).collect();
        self.commit_rows(&rows).await
    }

    /// Commits rows of the test's own.
    pub async fn commit_rows(&mut self, rows: &[Row]) -> Result<()> {
        self.writer.commit(rows).await
    }

    /// The next row of this scene; its id is unique in the scene.
    pub fn row(&mut self, keys: usize) -> Row {
        let number = self.written;
        self.written += 1;
        let mut row = Row::new(&format!("row-{number}"), &self.topic).headers(json!({"number": number.to_string()}));
        row.expected_headers = BTreeMap::from([("number".to_owned(), number.to_string())]);
        if number % 10 == 9 { row } else { row.key(&format!("key-{}", number % keys)) }
    }

    /// The next row, addressed to this exchange under [`ROUTE_BY_HEADER`].
    pub fn row_to(&mut self, exchange: &str, keys: usize) -> Row {
        let mut row = self.row(keys);
        row.expected_headers.insert("exchange".to_owned(), exchange.to_owned());
        let headers = json!(row.expected_headers);
        row.headers(headers)
    }

    /// The queue takes these routing keys too.
    pub async fn bind_also(&self, routing_key: &str) -> Result<()> {
        let Broker::Rabbitmq(rabbit) = &self.broker else { bail!("only RabbitMQ has bindings") };
        rabbit.bind(&self.topic, "amq.topic", routing_key).await
    }

    /// Rows written so far, whatever became of them.
    pub fn written(&self) -> usize {
        self.written
    }

    /// Different ids that arrived so far, as far as they were read.
    pub fn distinct(&self) -> usize {
        self.distinct.len()
    }

    /// Arrivals that were read so far, repeated ones included.
    pub fn arrivals(&self) -> usize {
        self.arrivals.len()
    }

    /// Reads the next arrival, if one comes in time.
    pub async fn next(&mut self, within: Duration) -> Result<Option<Arrival>> {
        if self.reader.is_none() {
            self.reader = Some(match &self.broker {
                Broker::Rabbitmq(rabbit) => Reader::Rabbitmq(rabbit.reader(&self.topic, 1_000).await?),
                Broker::Kafka(kafka) => Reader::Kafka(kafka.reader(&self.topic).await?),
            });
        }
        let arrival = match &mut self.reader {
            Some(Reader::Rabbitmq(reader)) => reader.next(within).await?.map(|message| message.arrival()),
            Some(Reader::Kafka(reader)) => reader.next(within).await?.map(|record| record.arrival()),
            None => None,
        };
        let arrival = arrival.transpose()?;
        if let Some(arrival) = &arrival {
            self.distinct.insert(arrival.id.clone());
            self.arrivals.push(arrival.clone());
        }
        Ok(arrival)
    }

    /// Reads until `count` different ids have arrived since the scene began.
    pub async fn read_distinct(&mut self, count: usize, within: Duration) -> Result<()> {
        let deadline = Instant::now() + within;
        while self.distinct.len() < count {
            let left = deadline.saturating_duration_since(Instant::now());
            if self.next(left).await?.is_none() {
                bail!("waited {} ms for {count} different rows: {} came", within.as_millis(), self.distinct.len());
            }
        }
        Ok(())
    }

    /// Reads until nothing came for `quiet`.
    pub async fn read_until_quiet(&mut self, quiet: Duration) -> Result<()> {
        while self.next(quiet).await?.is_some() {}
        Ok(())
    }

    /// New sessions with database and broker, after one of them was away.
    pub async fn reconnect(&mut self) -> Result<()> {
        self.reader = None;
        let connect = || async { Ok(Some(self.database.client().await?)) };
        self.client = wait::until("the database to take a session", wait::SOON, connect).await?;
        self.writer = Writer::new(self.database.client().await?, self.journal.clone());
        let broker = match &self.broker {
            Broker::Rabbitmq(rabbit) => {
                let url = rabbit.url().to_owned();
                let connect = || async { Ok(Some(Rabbit::connect_to(&url).await?)) };
                Broker::Rabbitmq(wait::until("the broker to take a consumer", wait::SOON, connect).await?)
            }
            Broker::Kafka(kafka) => Broker::Kafka(Kafka::at(kafka.brokers())),
        };
        self.former.push(std::mem::replace(&mut self.broker, broker));
        Ok(())
    }

    /// Rows by `state` of the status view.
    pub async fn count(&self, state: &str) -> Result<usize> {
        let sql = "SELECT count(*) FROM outbox.message_status WHERE state = $1";
        let row = self.client.query_one(sql, &[&state]).await?;
        Ok(usize::try_from(row.try_get::<_, i64>(0)?)?)
    }

    /// Waits until exactly this many rows are marked.
    pub async fn wait_sent(&self, count: usize, within: Duration) -> Result<()> {
        let sent = || async { Ok(self.count("sent").await? == count) };
        wait::until_true(&format!("{count} rows to be sent"), within, sent).await
    }

    /// Rows in the waiting room for this reason.
    pub async fn waiting(&self, reason: &str) -> Result<usize> {
        let sql = "SELECT count(*) FROM outbox.message_status WHERE state = 'waiting' AND reason = $1";
        let row = self.client.query_one(sql, &[&reason]).await?;
        Ok(usize::try_from(row.try_get::<_, i64>(0)?)?)
    }

    /// Waits until exactly this many rows wait for this reason.
    pub async fn wait_waiting(&self, reason: &str, count: usize) -> Result<()> {
        let waiting = || async { Ok(self.waiting(reason).await? == count) };
        wait::until_true(&format!("{count} rows to wait for {reason}"), wait::SOON, waiting).await
    }

    /// The sum of all attempts that rows have ever used up, also those that were sent since.
    pub async fn attempts(&self) -> Result<i64> {
        let sql = "SELECT coalesce(sum(most), 0)::bigint \
                   FROM (SELECT max(attempts) AS most FROM public.used_up GROUP BY row_id) AS rows";
        Ok(self.client.query_one(sql, &[]).await?.try_get(0)?)
    }

    /// Waits until the status view says sent for every row.
    pub async fn wait_all_sent(&self, within: Duration) -> Result<()> {
        let sql = "SELECT state, count(*), min(seq), min(reason) FROM outbox.message_status GROUP BY state";
        let mut states = String::new();
        let done = wait::until_true("every row to be sent", within, || async {
            let rows =
                self.client.query("SELECT FROM outbox.message_status WHERE state <> 'sent' LIMIT 1", &[]).await?;
            Ok(rows.is_empty())
        })
        .await;
        if done.is_err() {
            for row in self.client.query(sql, &[]).await? {
                let (state, count): (String, i64) = (row.try_get(0)?, row.try_get(1)?);
                let (seq, reason): (i64, Option<String>) = (row.try_get(2)?, row.try_get(3)?);
                states.push_str(&format!(" {state}: {count} from {seq} ({reason:?});"));
            }
        }
        done.with_context(|| format!("the states are:{states}"))
    }

    /// Waits for the end of the work, reads what is there, and judges it.
    pub async fn finish(&mut self, duplicates_max: usize) -> Result<Report> {
        self.wait_all_sent(wait::SOON * 2).await?;
        let committed = self.journal.count(outbox_tests::journal::Outcome::Committed);
        self.read_distinct(committed, wait::SOON).await?;
        self.read_until_quiet(Duration::from_millis(300)).await?;
        let report = self.report();
        report.require(duplicates_max)?;
        Ok(report)
    }

    /// What the ledger says of the arrivals that were read so far.
    pub fn report(&self) -> Report {
        ledger::check(&self.journal.entries(), &self.arrivals)
    }
}

/// A proxy before the broker, whichever it is.
pub struct BrokerProxy {
    pub address: String,
    proxy: Way,
}

enum Way {
    Rabbitmq(Proxy),
    Kafka(KafkaProxy),
}

impl Deref for BrokerProxy {
    type Target = Proxy;

    fn deref(&self) -> &Proxy {
        match &self.proxy {
            Way::Rabbitmq(proxy) => proxy,
            Way::Kafka(proxy) => proxy,
        }
    }
}
