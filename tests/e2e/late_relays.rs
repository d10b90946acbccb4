//! Relays that come too late: another one has taken their lanes over. What they still have in memory, their renewals
//! and their marks change nothing any more.

use std::time::Duration;

use anyhow::{Result, ensure};
use outbox_tests::database::Database;
use outbox_tests::proxy::{Direction, Proxy};
use outbox_tests::relay::{Launch, Relay};
use outbox_tests::wait;
use outbox_tests::writer::Row;
use tokio_postgres::Client;

use crate::mutants::{must_be_caught, mutant};
use crate::scene::{Broker, Scene};

/// What a scene does to each launch: nothing, or it makes a mutant of it.
type Altered<'a> = &'a dyn Fn(Launch) -> Result<Launch>;

fn true_relay(launch: Launch) -> Result<Launch> {
    Ok(launch)
}

const BROKEN: &str = "a promise was broken";

async fn database_proxy(database: &Database) -> Result<(Proxy, String)> {
    let proxy = Proxy::start(database.port()?).await?;
    let url = database.url_through(proxy.port())?;
    Ok((proxy, url))
}

/// Rows of one key: to RabbitMQ they go one after the other.
fn of_one_key(scene: &mut Scene, count: usize) -> Vec<Row> {
    (0..count).map(|_| scene.row(1).key("one")).collect()
}

/// A relay with the first row of a key at the broker and the others in memory is paused until its lease is over and
/// another relay has sent them all. When it wakes up, the confirm of the first row is there, and its database says
/// nothing: only its own clock tells it that the lease is over.
async fn pause_past_the_lease(altered: Altered<'_>) -> Result<()> {
    let mut scene = Scene::rabbitmq().await?;
    let (database, url) = database_proxy(&scene.database).await?;
    let broker = scene.broker_proxy().await?;
    // A question about the lease may take half of it.
    let lease = |launch: Launch| altered(launch.env("OUTBOX__LEASE__TTL_MS", "4000"));
    let mut late = lease(scene.launch_at(&url, &broker.address))?.start()?;
    scene.commit(10, 10).await?;
    scene.wait_sent(10, wait::SOON).await?;
    broker.stall(Direction::Replies);
    let rows = of_one_key(&mut scene, 50);
    scene.commit_rows(&rows).await?;
    scene.read_distinct(11, wait::SOON).await?;
    late.sigstop()?;
    broker.forward(Direction::Replies);
    let mut owner = lease(scene.launch())?.start()?;
    scene.wait_all_sent(wait::SOON * 2).await?;
    database.stall(Direction::Replies);
    late.sigcont()?;
    late.wait_log("no database session", wait::SOON).await?;
    database.heal();
    // The row that stood at the broker when the relay was paused, and no other.
    scene.finish(1).await?;
    assert_eq!(late.stop(wait::SOON).await?, Some(0));
    assert_eq!(owner.stop(wait::SOON).await?, Some(0));
    Ok(())
}

#[tokio::test]
async fn a_relay_that_was_paused_past_its_lease_publishes_nothing_under_it() -> Result<()> {
    pause_past_the_lease(&true_relay).await
}

#[tokio::test]
async fn a_relay_that_publishes_past_its_lease_is_caught() -> Result<()> {
    let checked = pause_past_the_lease(&|launch| mutant(&launch, "long_window")).await;
    must_be_caught("long_window", checked, BROKEN)
}

async fn wait_owns_all(relay: &Relay) -> Result<()> {
    let owns = || async { Ok(relay.metrics().await?.sum("outbox_lanes_owned", &[]) >= 16.0) };
    wait::until_true("the relay to own all lanes", wait::SOON, owns).await
}

/// How long a relay may take from its heartbeat to a second publication of what another has in flight.
const QUIET: Duration = Duration::from_secs(2);

/// An idle relay is paused until another one owns its lanes and has rows in flight there. When it wakes up it renews:
/// the lanes stay the other's, and the rows arrive once.
async fn renew_after_a_takeover(altered: Altered<'_>) -> Result<()> {
    let mut scene = Scene::rabbitmq().await?;
    let broker = scene.broker_proxy().await?;
    let mut late = altered(scene.launch())?.start()?;
    scene.commit(50, 50).await?;
    scene.wait_sent(50, wait::SOON).await?;
    wait_owns_all(&late).await?;
    late.sigstop()?;
    let mut owner = altered(scene.launch_at(scene.database.url(), &broker.address))?.start()?;
    wait_owns_all(&owner).await?;
    // The owner knows the broker before that falls silent.
    scene.commit(50, 50).await?;
    scene.wait_sent(100, wait::SOON).await?;
    broker.stall(Direction::Replies);
    let rows: Vec<Row> = (0..64).map(|key| scene.row(1).key(&format!("late-{key}"))).collect();
    scene.commit_rows(&rows).await?;
    scene.read_distinct(101, wait::SOON).await?;
    let claimed = || async { Ok(owner.metrics().await?.sum("outbox_claimed_messages_total", &[]) >= 114.0) };
    wait::until_true("the owner to claim all rows", wait::SOON, claimed).await?;
    let now = "SELECT clock_timestamp()";
    let woken: std::time::SystemTime = scene.client.query_one(now, &[]).await?.try_get(0)?;
    late.sigcont()?;
    let beaten = "SELECT count(*) = 2 FROM outbox.relay WHERE heartbeat_at > $1";
    let beats = || async { Ok(scene.client.query_one(beaten, &[&woken]).await?.try_get(0)?) };
    wait::until_true("both relays to renew", wait::SOON, beats).await?;
    scene.read_until_quiet(QUIET).await?;
    broker.forward(Direction::Replies);
    scene.finish(0).await?;
    assert_eq!(late.stop(wait::SOON).await?, Some(0));
    assert_eq!(owner.stop(wait::SOON).await?, Some(0));
    Ok(())
}

#[tokio::test]
async fn a_renewal_after_a_takeover_takes_nothing_back() -> Result<()> {
    renew_after_a_takeover(&true_relay).await
}

#[tokio::test]
async fn a_relay_that_renews_any_epoch_is_caught() -> Result<()> {
    let checked = renew_after_a_takeover(&|launch| mutant(&launch, "renew_any_epoch")).await;
    must_be_caught("renew_any_epoch", checked, BROKEN)
}

/// The first row of a key is marked by a relay that dies while its mark is under way. The next owner finds the row's
/// address missing and holds it; the mark comes in while that hold has looked at the row and not written yet.
async fn mark_after_a_takeover(altered: Altered<'_>) -> Result<()> {
    let mut scene = Scene::rabbitmq().await?;
    let (database, url) = database_proxy(&scene.database).await?;
    let broker = scene.broker_proxy().await?;
    let lease = |launch: Launch| {
        altered(launch.env("OUTBOX__LEASE__TTL_MS", "20000").config("[retry]\ninitial_ms = 500\nmax_ms = 500\n"))
    };
    let mut late = lease(scene.launch_at(&url, &broker.address))?.start()?;
    scene.commit(10, 10).await?;
    scene.wait_sent(10, wait::SOON).await?;
    let rows = of_one_key(&mut scene, 2);
    broker.stall(Direction::Replies);
    scene.commit_rows(&rows[..1]).await?;
    scene.read_distinct(11, wait::SOON).await?;
    database.look_for(Direction::Requests, "Called by: mark.rs");
    database.stall(Direction::Requests);
    broker.forward(Direction::Replies);
    let marks = || async { Ok(database.sightings() > 0) };
    wait::until_true("the mark to be under way", wait::SOON, marks).await?;
    late.kill9().await?;
    end_all_leases(&scene.client).await?;

    bind(&scene, false).await?;
    scene.commit_rows(&rows[1..]).await?;
    let mut client = scene.database.client().await?;
    let in_the_way = client.transaction().await?;
    let enter = "INSERT INTO outbox.held (source, row_id, seq, tx, lane, topic, ordering_key, state, reason)
                 SELECT 'outbox', seq::text, seq, tx, lane, topic, ordering_key, 'waiting', 'unroutable'
                   FROM outbox.message WHERE idempotency_key = $1";
    ensure!(in_the_way.execute(enter, &[&rows[0].id]).await? == 1, "the row is gone");
    let dead: Vec<i32> = scene.client.query_one(BACKENDS, &[]).await?.try_get(0)?;
    let mut owner = lease(scene.launch())?.start()?;
    let holds = || async { Ok(scene.client.query_one(HOLDS, &[]).await?.try_get(0)?) };
    wait::until_true("the hold to wait for the entry", wait::SOON, holds).await?;
    database.forward(Direction::Requests);
    let gone = || async {
        let left: Vec<i32> = scene.client.query_one(BACKENDS, &[]).await?.try_get(0)?;
        Ok(left.iter().all(|pid| !dead.contains(pid)))
    };
    wait::until_true("the dead relay's statements to end", wait::SOON, gone).await?;
    in_the_way.rollback().await?;

    let held = || async { Ok(scene.client.query("SELECT FROM outbox.held", &[]).await?.len() == 2) };
    wait::until_true("both rows to wait", wait::SOON, held).await?;
    let both = "SELECT count(*) FROM outbox.held JOIN outbox.message USING (seq) WHERE sent_at IS NOT NULL";
    let both: i64 = scene.client.query_one(both, &[]).await?.try_get(0)?;
    // Such a row is never taken, and it stands in the way of the probe that the row behind it waits for.
    ensure!(both == 0, "a row is both sent and waiting");
    bind(&scene, true).await?;
    // The row that stood at the broker when the relay died came again.
    scene.finish(1).await?;
    assert_eq!(owner.stop(wait::SOON).await?, Some(0));
    Ok(())
}

/// The server's processes for relays of this database.
const BACKENDS: &str = "SELECT coalesce(array_agg(pid), '{}') FROM pg_stat_activity
                         WHERE datname = current_database() AND application_name = 'outbox-relay'";

/// Whether a hold waits for somebody's transaction.
const HOLDS: &str = "SELECT count(*) > 0 FROM pg_stat_activity WHERE datname = current_database()
                        AND starts_with(query, '-- Called by: held.rs') AND wait_event_type = 'Lock'";

/// As time would.
async fn end_all_leases(client: &Client) -> Result<()> {
    let sql = "UPDATE outbox.lane SET expires_at = 'epoch'; UPDATE outbox.relay SET heartbeat_at = 'epoch'";
    Ok(client.batch_execute(sql).await?)
}

async fn bind(scene: &Scene, bound: bool) -> Result<()> {
    let Broker::Rabbitmq(rabbit) = &scene.broker else { return Ok(()) };
    if bound {
        rabbit.bind(&scene.topic, "amq.topic", &scene.topic).await
    } else {
        rabbit.unbind(&scene.topic, "amq.topic", &scene.topic).await
    }
}

#[tokio::test]
async fn a_mark_that_comes_in_after_a_takeover_changes_nothing() -> Result<()> {
    mark_after_a_takeover(&true_relay).await
}

#[tokio::test]
async fn a_relay_that_marks_under_any_epoch_is_caught() -> Result<()> {
    let checked = mark_after_a_takeover(&|launch| mutant(&launch, "mark_any_epoch")).await;
    must_be_caught("mark_any_epoch", checked, "a row is both sent and waiting")
}
