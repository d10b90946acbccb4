//! Returns of RabbitMQ: a row that came back is never taken for one that arrived, however its return and the confirms
//! of other rows mix, on one channel and over several.

use anyhow::{Result, ensure};
use outbox_tests::ack_merger::AckMerger;
use outbox_tests::relay::Launch;
use outbox_tests::wait;
use outbox_tests::writer::Row;

use crate::mutants::{must_be_caught, mutant};
use crate::scene::Scene;

/// Rows of a round, of which every second goes nowhere.
const ROWS: usize = 400;
const ROUNDS: usize = 3;
/// Addresses that nobody is bound to are tried again soon, and not so often that nothing else is done.
const RETRY: &str = "[retry]\ninitial_ms = 500\nmax_ms = 500\n";

/// A relay to which the broker confirms whole windows at once, returns first.
struct Late {
    scene: Scene,
    launch: Launch,
    _merger: AckMerger,
}

impl Late {
    async fn new() -> Result<Self> {
        let scene = Scene::rabbitmq().await?;
        let merger = AckMerger::start(scene.broker_port()?).await?;
        let broker = scene.broker_through(merger.port())?;
        let launch = scene.launch_at(scene.database.url(), &broker).config(RETRY);
        Ok(Self { scene, launch, _merger: merger })
    }

    /// A round's rows, without keys: none waits for another. Each that goes nowhere has an address of its own, so
    /// that many are written before the first comes back.
    fn mixed(&mut self, nowhere: &str) -> Vec<Row> {
        let row = |number| {
            let mut row = self.scene.row(1);
            row.key = None;
            if number % 2 == 1 {
                row.topic = format!("{nowhere}.{number}");
            }
            row
        };
        (0..ROWS).map(row).collect()
    }

    /// While nothing is bound to an address its rows wait; once something is they follow, and nothing came twice.
    async fn returns_are_no_confirms(mut self, launch: &Launch) -> Result<()> {
        let mut relay = launch.start()?;
        for round in 0..ROUNDS {
            let nowhere = format!("{}.nowhere-{round}", self.scene.topic);
            let rows = self.mixed(&nowhere);
            self.scene.commit_rows(&rows).await?;
            let settled = || async { Ok(self.scene.count("pending").await? == 0) };
            wait::until_true("every row to be sent or to wait", wait::SOON, settled).await?;
            let sql = "SELECT count(*) FROM outbox.message WHERE sent_at IS NOT NULL AND starts_with(topic, $1)";
            let sent: i64 = self.scene.client.query_one(sql, &[&nowhere]).await?.try_get(0)?;
            ensure!(sent == 0, "a promise was broken in round {round}: {sent} rows that went nowhere count as sent");
            self.scene.bind_also(&format!("{nowhere}.*")).await?;
            self.scene.finish(0).await?;
        }
        assert_eq!(self.scene.attempts().await?, 0, "an address that is missing uses up no attempt");
        assert_eq!(relay.stop(wait::SOON).await?, Some(0));
        Ok(())
    }
}

#[tokio::test]
async fn returns_among_confirms_are_laid_on_their_own_rows() -> Result<()> {
    let late = Late::new().await?;
    let launch = late.launch.clone();
    late.returns_are_no_confirms(&launch).await
}

#[tokio::test]
async fn a_relay_that_trusts_the_pairing_of_returns_is_caught() -> Result<()> {
    let late = Late::new().await?;
    let launch = mutant(&late.launch, "trust_pairing")?;
    must_be_caught("trust_pairing", late.returns_are_no_confirms(&launch).await, "rows that went nowhere count as sent")
}

/// A return that the other task gets is missing in its own window, whose row counts as sent, and makes the other's
/// doubtful, whose rows go twice.
#[tokio::test]
async fn a_relay_whose_tasks_share_a_channel_is_caught() -> Result<()> {
    let late = Late::new().await?;
    let launch = mutant(&late.launch, "two_tasks")?;
    must_be_caught("two_tasks", late.returns_are_no_confirms(&launch).await, "a promise was broken")
}
