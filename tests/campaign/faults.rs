//! Each kind of fault: how it begins and how it ends.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use outbox_tests::database;
use outbox_tests::own_services::Service;
use outbox_tests::proxy::Proxy;
use outbox_tests::rabbit;
use tokio::time::Instant;

use crate::fleet::directions;
use crate::schedule::{Fault, Kind};
use crate::stage::Stage;

/// Plays the batch's begins and ends in the order of time; how many faults were injected, and the crash points met.
pub async fn play(stage: &mut Stage, batch: &[Fault]) -> Result<Played> {
    let mut events: Vec<(u64, bool, usize)> = Vec::new();
    for (index, fault) in batch.iter().enumerate() {
        events.push((fault.offset_ms, false, index));
        events.push((fault.offset_ms + fault.lasts_ms, true, index));
    }
    events.sort_unstable();
    let begun = Instant::now();
    let mut played = Played::default();
    for (at_ms, ends, index) in events {
        tokio::time::sleep_until(begun + Duration::from_millis(at_ms)).await;
        let fault = &batch[index];
        if ends {
            end(stage, fault, &mut played).await?;
        } else {
            begin(stage, fault).await?;
        }
    }
    Ok(played)
}

/// What came of a batch.
#[derive(Default)]
pub struct Played {
    /// Crash points at which a relay died.
    pub crashed_at: Vec<String>,
    /// Messages that the broker may hand out again without saying so, marks that a crash undid.
    pub forgiven_since_ms: Option<u64>,
}

async fn begin(stage: &mut Stage, fault: &Fault) -> Result<()> {
    let broker = stage.broker.service();
    match fault.kind {
        Kind::Kill9 => member(stage, fault).kill().await,
        Kind::CrashPoint => {
            // Its lanes are free at once, so that the next process soon comes to the point.
            let relay = member(stage, fault);
            relay.end().await?;
            relay.start_crashing(&fault.detail)
        }
        Kind::ClockSkew => {
            let relay = member(stage, fault);
            relay.end().await?;
            relay.start_skewed(&fault.detail)
        }
        Kind::OtherVersion => {
            let relay = member(stage, fault);
            relay.end().await?;
            relay.start_other_version()
        }
        // A relay that died in this very batch cannot be paused.
        Kind::Pause => {
            let _ = member(stage, fault).pause();
            Ok(())
        }
        Kind::CleanRestart => {
            // It is waited for when the other faults are over.
            member(stage, fault).leave()
        }
        Kind::DatabaseCut | Kind::DatabaseStall | Kind::DatabaseDelay | Kind::DatabaseHalfOpen | Kind::DatabaseAway => {
            links(stage, fault, |relay| &relay.database);
            Ok(())
        }
        Kind::BrokerCut | Kind::BrokerStall | Kind::BrokerDelay | Kind::BrokerHalfOpen | Kind::BrokerAway => {
            links(stage, fault, |relay| &relay.broker);
            Ok(())
        }
        Kind::BackendsKilled | Kind::ReadOnly | Kind::LanesLocked => in_database(stage, fault.kind).await,
        Kind::PostgresCrash => stage.services.crash(Service::Postgres).await,
        Kind::BrokerRestart | Kind::BrokerKill => {
            let (services, kills) = (Arc::clone(&stage.services), fault.kind == Kind::BrokerKill);
            // It takes seconds, in which the batch's other faults begin and end.
            stage.restarting = Some(tokio::spawn(async move {
                if kills {
                    services.crash(broker).await?
                } else {
                    services.stop(broker).await?
                }
                services.resume(broker).await
            }));
            Ok(())
        }
        Kind::BrokerFrozen => stage.services.freeze(broker),
        Kind::MemoryAlarm => watermark(stage, "0.000001").await,
        Kind::QueueSuspended => suspend(stage, &fault.detail).await,
        Kind::NackStorm => {
            stage.broker.resting.send_replace(true);
            Ok(())
        }
        Kind::ExchangeDeleted => stage.broker.delete_exchange(&stage.broker.topic()).await,
        Kind::BindingLost => stage.broker.bind_second(false).await,
        Kind::AddressMissing => {
            stage.sides += 1;
            let topic = stage.broker.side(stage.sides);
            stage.write_side(&topic).await
        }
        Kind::AddressDeleted => {
            let topic = known_side(stage).await?;
            stage.broker.delete(&topic).await?;
            stage.write_side(&topic).await
        }
    }
}

async fn end(stage: &mut Stage, fault: &Fault, played: &mut Played) -> Result<()> {
    let broker = stage.broker.service();
    match fault.kind {
        Kind::Kill9 => member(stage, fault).start(),
        Kind::ClockSkew | Kind::OtherVersion => {
            let relay = member(stage, fault);
            relay.end().await?;
            relay.start()
        }
        Kind::CrashPoint => {
            let relay = member(stage, fault);
            if relay.end_crashing(&fault.detail).await? {
                played.crashed_at.push(fault.detail.clone());
            }
            relay.start()
        }
        Kind::Pause => {
            member(stage, fault).go_on();
            Ok(())
        }
        Kind::DatabaseCut | Kind::DatabaseStall | Kind::DatabaseDelay | Kind::DatabaseHalfOpen | Kind::DatabaseAway => {
            heal(stage, fault, |relay| &relay.database);
            Ok(())
        }
        Kind::BrokerCut | Kind::BrokerStall | Kind::BrokerDelay | Kind::BrokerHalfOpen | Kind::BrokerAway => {
            heal(stage, fault, |relay| &relay.broker);
            Ok(())
        }
        Kind::BackendsKilled | Kind::CleanRestart => Ok(()),
        Kind::ReadOnly => set_read_only(stage, "off").await,
        Kind::LanesLocked => {
            stage.locker = None;
            Ok(())
        }
        Kind::PostgresCrash => {
            forgive(stage, played);
            stage.services.resume(Service::Postgres).await
        }
        Kind::BrokerRestart | Kind::BrokerKill => {
            if let Some(restarting) = stage.restarting.take() {
                restarting.await??;
            }
            forgive(stage, played);
            Ok(())
        }
        Kind::BrokerFrozen => stage.services.thaw(broker),
        Kind::MemoryAlarm => watermark(stage, "0.6").await,
        Kind::QueueSuspended => {
            let queue = if fault.detail == "main" { stage.broker.topic() } else { stage.broker.side(stage.sides) };
            tell_queue(stage, &queue, "resume").await
        }
        Kind::NackStorm => {
            stage.broker.resting.send_replace(false);
            Ok(())
        }
        Kind::ExchangeDeleted => {
            let topic = stage.broker.topic();
            stage.broker.make_exchange(&topic).await
        }
        Kind::BindingLost => stage.broker.bind_second(true).await,
        Kind::AddressMissing => {
            let topic = stage.broker.side(stage.sides);
            stage.broker.make(&topic, false).await
        }
        Kind::AddressDeleted => {
            let topic = stage.broker.side(stage.sides);
            stage.broker.remake(&topic).await
        }
    }
}

/// A crash forgets the acks of consumers, or the marks of the last moments.
fn forgive(stage: &Stage, played: &mut Played) {
    let since_ms = stage.notes.now_ms().saturating_sub(30_000);
    played.forgiven_since_ms = Some(played.forgiven_since_ms.map_or(since_ms, |earlier| earlier.min(since_ms)));
}

fn member<'a>(stage: &'a mut Stage, fault: &Fault) -> &'a mut crate::fleet::Member {
    &mut stage.relays[fault.relay.unwrap_or(0)]
}

fn struck<'a>(stage: &'a Stage, fault: &Fault, link: fn(&crate::fleet::Member) -> &Proxy) -> Vec<&'a Proxy> {
    let number = |index: usize| fault.relay.is_none_or(|relay| relay == index);
    stage.relays.iter().enumerate().filter(|(index, _)| number(*index)).map(|(_, relay)| link(relay)).collect()
}

fn links(stage: &Stage, fault: &Fault, link: fn(&crate::fleet::Member) -> &Proxy) {
    for proxy in struck(stage, fault, link) {
        match fault.kind {
            Kind::DatabaseCut | Kind::BrokerCut => proxy.cut(),
            Kind::DatabaseAway | Kind::BrokerAway => proxy.take_away(),
            _ => {
                for direction in directions(&fault.detail) {
                    match fault.kind {
                        Kind::DatabaseStall | Kind::BrokerStall => proxy.stall(*direction),
                        Kind::DatabaseDelay | Kind::BrokerDelay => proxy.delay(*direction, Duration::from_millis(150)),
                        _ => proxy.drop_bytes(*direction),
                    }
                }
            }
        }
    }
}

fn heal(stage: &Stage, fault: &Fault, link: fn(&crate::fleet::Member) -> &Proxy) {
    for proxy in struck(stage, fault, link) {
        // What lost bytes never recovers.
        if matches!(fault.kind, Kind::DatabaseHalfOpen | Kind::BrokerHalfOpen) {
            proxy.cut();
        }
        proxy.heal();
    }
}

async fn in_database(stage: &mut Stage, kind: Kind) -> Result<()> {
    match kind {
        Kind::ReadOnly => set_read_only(stage, "on").await,
        Kind::LanesLocked => {
            let locker = database::connect(stage.database.url()).await?;
            // It waits for the relays' own locks at most as long as they hold them.
            locker.batch_execute("BEGIN READ WRITE").await?;
            locker.batch_execute("SELECT FROM outbox.lane ORDER BY lane FOR UPDATE").await?;
            stage.locker = Some(locker);
            Ok(())
        }
        _ => {
            let sql = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                        WHERE datname = current_database() AND application_name = 'outbox-relay'";
            stage.client().await?.execute(sql, &[]).await?;
            Ok(())
        }
    }
}

async fn set_read_only(stage: &mut Stage, value: &str) -> Result<()> {
    let client = stage.client().await?;
    client.batch_execute(&format!("ALTER SYSTEM SET default_transaction_read_only = {value}")).await?;
    client.batch_execute("SELECT pg_reload_conf()").await?;
    Ok(())
}

async fn watermark(stage: &Stage, share: &str) -> Result<()> {
    stage.services.rabbitmqctl(&["set_vm_memory_high_watermark", share]).await.map(|_| ())
}

/// A queue that takes messages and confirms none: that of most rows, or that of a few beside others' traffic.
async fn suspend(stage: &mut Stage, of: &str) -> Result<()> {
    if of == "main" {
        return tell_queue(stage, &stage.broker.topic(), "suspend").await;
    }
    let topic = known_side(stage).await?;
    tell_queue(stage, &topic, "suspend").await?;
    stage.write_side(&topic).await
}

async fn tell_queue(stage: &Stage, queue: &str, word: &str) -> Result<()> {
    stage.services.rabbitmqctl(&["eval", &rabbit::tell_process_of(queue, word)]).await.map(|_| ())
}

/// The newest side address that exists; made if there is none.
async fn known_side(stage: &mut Stage) -> Result<String> {
    if stage.sides == 0 {
        stage.sides += 1;
        let topic = stage.broker.side(stage.sides);
        stage.broker.make(&topic, false).await?;
    }
    Ok(stage.broker.side(stage.sides))
}
