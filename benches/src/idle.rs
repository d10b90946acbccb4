//! What a relay costs while nothing happens, beside the database without it.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::backlog::Backlog;
use crate::drain::megabytes;
use crate::load::Load;
use crate::processes::{self, Status, Tree};
use crate::relay::Relay;
use crate::result::{Idled, Origin, save};
use crate::{Broker, Idle, report};

/// Until polls have become rare and the database has cleaned up.
const CALM: Duration = Duration::from_secs(8);

/// Measures, prints and saves.
pub async fn run(arguments: &Idle) -> Result<()> {
    let origin = Origin::now();
    let load = Load::new(arguments.rows, 1_000, 256, 1);
    let backlog = Backlog::preload(&arguments.places.database_url, &load, "bench.idle").await?;
    backlog.send_all().await?;
    let database = Tree(processes::parent(backlog.backend_pid().await?)?);
    let wait = Duration::from_secs(arguments.seconds);
    tokio::time::sleep(CALM).await;
    let alone = {
        let (started, before) = (Instant::now(), database.cpu_seconds());
        tokio::time::sleep(wait).await;
        percent(database.cpu_seconds() - before, started)
    };
    let relay = Relay::start(&arguments.places, arguments.broker, backlog.url(), &[]).await?;
    tokio::time::sleep(CALM).await;
    let (started, before, own) = (Instant::now(), database.cpu_seconds(), processes::cpu_seconds(relay.pid()));
    tokio::time::sleep(wait).await;
    if processes::has_ended(relay.pid()) {
        bail!("the relay ended");
    }
    let idled = Idled {
        name: format!("idle-{}", if arguments.broker == Broker::Kafka { "kafka" } else { "rabbitmq" }),
        seconds: started.elapsed().as_secs_f64(),
        relay_percent_of_a_core: percent(processes::cpu_seconds(relay.pid()) - own, started),
        database_percent_of_a_core: percent(database.cpu_seconds() - before, started),
        database_alone_percent_of_a_core: alone,
        relay_memory_mb: megabytes(Status::read(relay.pid()).bytes("VmRSS")),
        origin,
    };
    report::show_idle(&idled);
    if let Some(folder) = &arguments.results {
        save(folder, &idled.name, &idled)?;
    }
    Ok(())
}

fn percent(cpu_seconds: f64, since: Instant) -> f64 {
    cpu_seconds / since.elapsed().as_secs_f64() * 100.0
}
