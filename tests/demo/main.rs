//! `make demo`: real webhooks through a relay that is killed again and again, counted by a checker
//! that shares no code with it.
//!
//! Environment: `BROKER` (rabbitmq or kafka), `DEMO_KILLS`, `DEMO_RESULT` (a file for the last
//! line), and the test kit's variables for the services and the binary.

mod application;
mod consumer;
mod kill;
mod queue;
mod received;
mod screen;
mod stage;
mod webhooks;

use std::collections::HashSet;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use outbox_tests::journal::Journal;
use outbox_tests::relay::Relay;
use outbox_tests::tally::{Tally, grouped};
use outbox_tests::{ledger, services, wait};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::application::{Application, Counts};
use crate::consumer::Effects;
use crate::received::Received;
use crate::screen::Screen;
use crate::stage::Stage;

/// Lines of a relay's log that are shown when the demo fails.
const LOG_LINES_MAX: usize = 20;

#[tokio::main]
async fn main() -> ExitCode {
    let screen = Arc::new(Screen::new());
    let (kept, line) = match run(&screen).await {
        Ok(tally) => {
            screen.plain(&format!("\n{}\n", tally.table()));
            (tally.broken().is_empty(), tally.verdict())
        }
        Err(error) => (false, format!("the demo could not be played to its end: {error:#}")),
    };
    match std::env::var_os("DEMO_RESULT") {
        // The script says it last, after everything was stopped.
        Some(file) if std::fs::write(&file, format!("{line}\n")).is_ok() => {}
        _ => screen.verdict(kept, &line),
    }
    if kept { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

async fn run(screen: &Arc<Screen>) -> Result<Tally> {
    let broker = std::env::var("BROKER").unwrap_or_else(|_| "rabbitmq".to_owned());
    let kills: usize = std::env::var("DEMO_KILLS").map_or(Ok(5), |text| text.parse()).context("DEMO_KILLS")?;
    let mut play = Play::begin(&broker, screen).await?;
    let ticker = tokio::spawn(tick(Arc::clone(screen), Arc::clone(&play.counts), Arc::clone(&play.received)));
    let unmarked_at_kills = tokio::select! {
        unmarked = kill_again_and_again(&play.stage, kills, &play.received, screen) => unmarked?,
        ended = &mut play.consumer => {
            ended??;
            bail!("the consumer ended too early");
        }
        ended = &mut play.application => {
            ended??;
            bail!("the application ended before the relay was killed {kills} times");
        }
    };
    play.enough.cancel();
    finish(&play.stage, &mut play.application, screen).await?;
    let committed = play.counts.committed.load(Ordering::Relaxed);
    // Whether all came is the tally's to say; here it only is the end of waiting.
    let all = || async { Ok(play.received.ids() >= committed) };
    let _ = wait::until_true("all to arrive", Duration::from_secs(20), all).await;
    play.done.cancel();
    let effects = play.consumer.await??;
    ticker.abort();
    screen.line(&play.counts.text());
    let client = play.stage.shop.client().await?;
    let unmarked: i64 =
        client.query_one("SELECT count(*) FROM outbox.message WHERE sent_at IS NULL", &[]).await?.try_get(0)?;
    Ok(Tally {
        report: ledger::check(&play.journal.entries(), &play.received.arrivals()),
        kills,
        unmarked_at_kills,
        in_flight_max: stage::IN_FLIGHT_MAX,
        unmarked: usize::try_from(unmarked)?,
        effects: effects.done,
        effects_twice: effects.twice,
    })
}

/// The application and the consumer at work, and what they write down.
struct Play {
    stage: Arc<Stage>,
    received: Arc<Received>,
    counts: Arc<Counts>,
    journal: Journal,
    /// The application begins no further round.
    enough: CancellationToken,
    /// The consumer ends once nothing more comes.
    done: CancellationToken,
    consumer: JoinHandle<Result<Effects>>,
    application: JoinHandle<Result<()>>,
}

impl Play {
    async fn begin(broker: &str, screen: &Screen) -> Result<Self> {
        let path = services::workspace_root().join("tests/data/github-webhooks.ndjson.gz");
        let deliveries = Arc::new(webhooks::read(&path).await?);
        let stage = Arc::new(Stage::set(broker).await?);
        screen.line(&format!("{} real webhook deliveries go to {broker}, each posted twice", deliveries.len()));
        let (received, counts) = (Arc::new(Received::new()), Arc::<Counts>::default());
        let (journal, enough, done) = (Journal::default(), CancellationToken::new(), CancellationToken::new());
        let consumer = tokio::spawn({
            let (queue, ledger) = (stage.queue().await?, Arc::clone(&stage));
            let (received, done) = (Arc::clone(&received), done.clone());
            async move { consumer::consume(queue, received, &ledger.ledger, done).await }
        });
        let application = Application {
            deliveries,
            journal: journal.clone(),
            counts: Arc::clone(&counts),
            received: Arc::clone(&received),
            enough: enough.clone(),
        };
        let application = tokio::spawn({
            let stage = Arc::clone(&stage);
            async move { application.replay(&stage.shop).await }
        });
        Ok(Self { stage, received, counts, journal, enough, done, consumer, application })
    }
}

/// Returns how many rows were in flight at a kill: one that was in flight at two kills may have come again only after
/// the second.
async fn kill_again_and_again(stage: &Stage, kills: usize, received: &Received, screen: &Screen) -> Result<usize> {
    let shop = stage.shop.client().await?;
    let mut in_flight = HashSet::new();
    for number in 1..=kills {
        let mut relay = stage.relay(&[]).start()?;
        let kill = kill::with_rows_in_flight(&mut relay, &shop, received).await;
        let kill = kill.with_context(|| format!("the relay's log ends with:\n{}", tail(&relay)))?;
        screen.line(&format!(
            "kill -9 number {number}: {} committed, {} marked sent, {} in flight (at the consumer, not marked)",
            grouped(kill.committed),
            grouped(kill.marked),
            grouped(kill.in_flight.len())
        ));
        in_flight.extend(kill.in_flight);
    }
    Ok(in_flight.len())
}

/// A last relay works while the application ends and is stopped cleanly; then the rest is drained.
async fn finish(stage: &Stage, application: &mut JoinHandle<Result<()>>, screen: &Screen) -> Result<()> {
    let mut relay = stage.relay(&[]).start()?;
    application.await??;
    let code = relay.stop(Duration::from_secs(60)).await?;
    ensure!(code == Some(0), "a relay that was asked to stop ended with {code:?}; its log:\n{}", tail(&relay));
    screen.line("the application is done; the relay stopped cleanly; now: outbox-relay run --drain");
    let drain = stage.relay(&["--drain", "--drain-timeout", "60"]).finish(Duration::from_secs(90)).await?;
    ensure!(drain.code == Some(0), "the drain ended with {:?}:\n{}", drain.code, drain.stderr);
    Ok(())
}

fn tail(relay: &Relay) -> String {
    let log = relay.log();
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(LOG_LINES_MAX)..].join("\n")
}

async fn tick(screen: Arc<Screen>, counts: Arc<Counts>, received: Arc<Received>) {
    let mut interval = tokio::time::interval(Duration::from_millis(200));
    loop {
        interval.tick().await;
        let (ids, arrived) = (received.ids(), received.count());
        screen.progress(&format!(
            "committed {}, delivered {}, redelivered {}",
            grouped(counts.committed.load(Ordering::Relaxed)),
            grouped(ids),
            grouped(arrived.saturating_sub(ids))
        ));
    }
}
