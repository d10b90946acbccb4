//! A relay that dies while it takes rows over, several relays at once, and a table that breaks.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use outbox_tests::journal::{Journal, Outcome};
use outbox_tests::ledger::{self, Arrival, Report};
use outbox_tests::metrics;
use outbox_tests::wait::{self, SOON};
use outbox_tests::writer::Row;
use tokio_postgres::Client;

use super::bed::{Bed, PLAIN, SOURCE};
use crate::mutants;
use crate::scene::Kind;

const KEYS: usize = 5;
const UNTAKEN: &str = "SELECT count(*) FROM outbox WHERE taken_at IS NULL";

/// One application that writes the table, a transaction a row; every seventh rolls back.
struct Application {
    client: Client,
    journal: Journal,
    topic: String,
    written: usize,
}

impl Application {
    async fn new(bed: &Bed) -> Result<Self> {
        let (client, topic) = (bed.scene.database.client().await?, bed.scene.topic.clone());
        Ok(Self { client, journal: Journal::default(), topic, written: 0 })
    }

    async fn write(&mut self, rows: usize) -> Result<()> {
        for _ in 0..rows {
            let n = self.written;
            self.written += 1;
            let (kind, end) = (format!("k{}", n % KEYS), if n % 7 == 6 { "ROLLBACK" } else { "COMMIT" });
            self.client
                .batch_execute(&format!("BEGIN; INSERT INTO outbox (kind, ref) VALUES ('{kind}', '{n}'); {end}"))
                .await?;
            let body = format!(r#"{{"kind" : "{kind}", "ref" : "{n}"}}"#);
            let row = Row::new(&format!("{kind}:{n}"), &self.topic).key(&kind).text(&body);
            let outcome = if end == "COMMIT" { Outcome::Committed } else { Outcome::RolledBack };
            self.journal.record(row.entry(n as u64, outcome));
        }
        Ok(())
    }

    fn committed(&self) -> usize {
        self.journal.count(Outcome::Committed)
    }
}

/// Everything that was committed has arrived; what the ledger says of it.
async fn finish(bed: &mut Bed, application: &Application, arrivals: &mut Vec<Arrival>) -> Result<Report> {
    bed.wait_number(UNTAKEN, 0).await?;
    bed.scene.wait_all_sent(SOON * 2).await?;
    while bed.scene.distinct() < application.committed() {
        arrivals.push(bed.scene.next(SOON).await?.context("a committed row did not arrive")?);
    }
    while let Some(arrival) = bed.scene.next(Duration::from_millis(300)).await? {
        arrivals.push(arrival);
    }
    Ok(ledger::check(&application.journal.entries(), arrivals))
}

async fn kill_while_it_takes(kind: Kind, test: &str) -> Result<()> {
    let config = format!("{SOURCE}batch_rows = 3\n");
    let Some(mut bed) = Bed::new(kind, test, PLAIN, &config).await? else { return Ok(()) };
    let mut application = Application::new(&bed).await?;
    let mut arrivals = Vec::new();
    let (kills, mut within) = (12, 0);
    for _ in 0..kills {
        application.write(60).await?;
        let before = arrivals.len();
        let mut relay = bed.launch().env("OUTBOX__LEASE__TTL_MS", "500").start()?;
        let wanted = before + fastrand::usize(1..40);
        while arrivals.len() < wanted {
            arrivals.push(bed.scene.next(SOON).await?.context("nothing came")?);
        }
        relay.kill9().await?;
        within += usize::from(bed.number(UNTAKEN).await? > 0);
    }
    ensure!(within > 0, "no kill fell into the taking");
    let mut relay = bed.launch().start()?;
    let report = finish(&mut bed, &application, &mut arrivals).await?;
    report.require(kills * 2_000)?;
    eprintln!("{kind:?}: {within} of {kills} kills with rows untaken: {report}");
    assert_eq!(bed.number("SELECT count(*) FROM outbox.message").await?, i64::try_from(application.committed())?);
    assert_eq!(relay.stop(SOON).await?, Some(0));
    Ok(())
}

#[tokio::test]
async fn kill9_while_rows_are_taken_loses_and_invents_nothing_with_rabbitmq() -> Result<()> {
    kill_while_it_takes(Kind::Rabbitmq, "kill9_while_rows_are_taken_loses_and_invents_nothing_with_rabbitmq").await
}

#[tokio::test]
async fn kill9_while_rows_are_taken_loses_and_invents_nothing_with_kafka() -> Result<()> {
    kill_while_it_takes(Kind::Kafka, "kill9_while_rows_are_taken_loses_and_invents_nothing_with_kafka").await
}

/// Between the statement and its commit nothing has happened, after the commit all of it has.
#[tokio::test]
async fn a_crash_around_the_commit_of_a_batch_takes_all_of_it_or_nothing() -> Result<()> {
    let config = format!("{SOURCE}batch_rows = 10\n");
    let mut bed = Bed::rabbitmq(PLAIN, &config).await?;
    let mut application = Application::new(&bed).await?;
    let mut arrivals = Vec::new();
    for (point, taken) in [("before_take_commit", 0), ("after_take", 10)] {
        application.write(35).await?;
        let (untaken, messages) =
            (bed.number(UNTAKEN).await?, bed.number("SELECT count(*) FROM outbox.message").await?);
        let launch = mutants::mutant(&bed.launch(), "none")?.env("OUTBOX_CRASH_POINT", format!("{point}:1"));
        let mut relay = launch.start()?;
        relay.wait_exit(SOON).await?;
        // The server rolls back once it notices that nobody is there.
        bed.wait_number("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'outbox-relay' AND datname = current_database()", 0)
            .await?;
        assert_eq!(bed.number(UNTAKEN).await?, untaken - taken, "{point}");
        assert_eq!(bed.number("SELECT count(*) FROM outbox.message").await?, messages + taken, "{point}");
    }
    let mut relay = bed.launch().start()?;
    finish(&mut bed, &application, &mut arrivals).await?.require(0)?;
    assert_eq!(relay.stop(SOON).await?, Some(0));
    Ok(())
}

#[tokio::test]
async fn two_relays_take_each_row_once_in_the_order_of_its_key() -> Result<()> {
    let config = format!("{SOURCE}batch_rows = 4\n").replace("poll_ms = 20", "poll_ms = 1");
    let mut bed = Bed::rabbitmq(PLAIN, &config).await?;
    let mut application = Application::new(&bed).await?;
    let mut relays = [bed.launch().start()?, bed.launch().start()?];
    for relay in &relays {
        relay.wait_ready(SOON).await?;
    }
    let mut arrivals = Vec::new();
    application.write(700).await?;
    let report = finish(&mut bed, &application, &mut arrivals).await?;
    report.require(0)?;
    let mut taken = 0.0;
    for relay in &mut relays {
        taken += relay.metrics().await?.sum("outbox_source_taken_rows_total", &[]);
        assert_eq!(relay.stop(SOON).await?, Some(0));
    }
    assert_eq!(taken, application.committed() as f64, "each row is taken by one of them");
    Ok(())
}

#[tokio::test]
async fn a_table_that_breaks_is_told_of_and_stops_nothing_else() -> Result<()> {
    let mut bed = Bed::rabbitmq(PLAIN, SOURCE).await?;
    let mut relay = bed.launch().start()?;
    relay.wait_ready(SOON).await?;
    bed.sql("ALTER TABLE outbox RENAME TO away").await?;
    relay.wait_log("rows of a source cannot be taken", SOON).await?;
    let admin = relay.admin().await?;
    let said = wait::until("readiness to name the source", SOON, || async {
        let answer = metrics::get(admin, "/readyz").await?;
        Ok((answer.status == 503).then_some(answer.body))
    })
    .await?;
    assert!(said.contains("source invoices: ") && said.contains("does not exist"), "{said}");
    assert_eq!(relay.metrics().await?.value("outbox_source_failing", &[("source", "invoices")]), Some(1.0));
    let topic = bed.scene.topic.clone();
    bed.sql(&format!("SELECT outbox.enqueue('ours', '{topic}', '{{}}')")).await?;
    assert_eq!(bed.arrived(1).await?, ["ours"]);
    bed.sql("ALTER TABLE away RENAME TO outbox; INSERT INTO outbox (kind, ref) VALUES ('theirs', '1')").await?;
    assert_eq!(bed.arrived(1).await?, ["theirs:1"]);
    relay.wait_ready(SOON).await?;
    assert_eq!(relay.metrics().await?.value("outbox_source_failing", &[("source", "invoices")]), Some(0.0));
    assert_eq!(relay.stop(SOON).await?, Some(0));
    Ok(())
}

#[tokio::test]
async fn a_drain_takes_what_is_there_first() -> Result<()> {
    let mut bed = Bed::rabbitmq(PLAIN, &format!("{SOURCE}batch_rows = 10\n")).await?;
    bed.sql("INSERT INTO outbox (kind, ref) SELECT 'k', n::text FROM generate_series(1, 95) AS n").await?;
    let drain = bed.launch().arg("--drain").finish(SOON * 2).await?;
    assert_eq!(drain.code, Some(0), "{}", drain.stderr);
    assert_eq!(bed.number("SELECT count(*) FROM outbox.message_status WHERE state = 'sent'").await?, 95);
    assert_eq!(bed.arrived(95).await?.len(), 95);
    Ok(())
}
