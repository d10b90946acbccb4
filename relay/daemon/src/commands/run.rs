//! `run`: puts the parts together, waits for what is away, and says how it ended.

use std::sync::Arc;
use std::time::Duration;

use outbox_core::{Backoff, BackoffPolicy, DatabaseLink, Finish, Link, Observer, OnPark, Relay, Shared, Sink, Sinks};
use outbox_postgres::{PostgresConfig, PostgresSource, inspect_intake};
use outbox_schema::{MigrateError, Schema, check_version};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::admin::{self, Admin};
use crate::certificates::Certificates;
use crate::config::{self, SourceTable, Sources};
use crate::database::{answered, connect};
use crate::drill;
use crate::exit::{Exit, Failure, Outcome};
use crate::health::{Progress, Readiness};
use crate::metrics::Metrics;
use crate::sampler::{self, Sampler};
use crate::service_manager::ServiceManager;
use crate::signals::Stop;
use crate::{cli, logging, publishers};

/// The longest silence of a loop that is alive: longer than any statement's deadline.
const SILENCE_MAX_MS: u64 = 60_000;
/// A statement without an answer for this long ends the database session.
const STATEMENT_TIMEOUT_MS: u64 = 15_000;
const PREFLIGHT: BackoffPolicy = BackoffPolicy { initial_ms: 200, max_ms: 2_000 };

/// Runs until stopped or drained.
pub async fn run(sources: &Sources, arguments: &cli::Run, stop: &Stop) -> Outcome<Exit> {
    let configuration = config::for_relay(sources)?;
    logging::start(&configuration.log)?;
    let relay_id = uuid::Uuid::new_v4();
    info!(version = env!("CARGO_PKG_VERSION"), relay_id = %relay_id, "outbox-relay starts");
    if !arguments.drill.is_empty() {
        let shares = drill::shares(&arguments.drill);
        let (duplicate_percent, reorder_percent) = (shares.duplicate * 100.0, shares.reorder * 100.0);
        warn!(duplicate_percent, reorder_percent, "DRILL: confirmed messages are published once more, on purpose");
    }
    let parts = Parts::new(&configuration)?;
    let admin = match configuration.admin_listen {
        Some(listen) => Some(Admin::start(listen, parts.admin_sources()).await?),
        None => None,
    };
    let stop = stop.token();
    let manager = ServiceManager::ready(parts.progress.clone(), stop.clone());
    // From the start: a certificate that has ended may be why the database is away.
    let certificates = Certificates::new(&configuration, parts.metrics.clone());
    let certificates = tokio::spawn(certificates.run(stop.clone()));
    #[cfg(feature = "otel")]
    let spans = configuration.otel.as_ref().map(|otel| {
        let grace = Duration::from_millis(configuration.settings.relay.shutdown_grace_ms);
        let (recorder, spans) = crate::otel::start(otel, relay_id, parts.metrics.spans.clone(), stop.clone(), grace);
        parts.metrics.flow.record(recorder);
        spans
    });
    let ended = parts.work(configuration, relay_id, arguments, &stop).await;
    certificates.abort();
    #[cfg(feature = "otel")]
    if let Some(spans) = spans {
        spans.finish().await;
    }
    drop(manager);
    if let Some(admin) = admin {
        admin.stop().await;
    }
    info!(ok = ended.is_ok(), "outbox-relay ends");
    ended
}

/// What the endpoint shows and the relay reports to.
struct Parts {
    metrics: Arc<Metrics>,
    progress: Arc<Progress>,
    readiness: Arc<Readiness>,
}

impl Parts {
    fn new(configuration: &config::Relay) -> Outcome<Self> {
        let sinks = configuration.brokers.sinks();
        let literal = configuration.routes.as_slice().iter();
        let destinations: Vec<(Sink, String)> =
            literal.filter_map(|route| Some((route.sink, route.destination.literal()?.to_owned()))).collect();
        let intakes: Vec<&str> = configuration.tables.iter().map(|source| source.intake.name.as_str()).collect();
        let metrics = Metrics::new(&sinks, &destinations, &intakes, sampler::STALE_AFTER_MS)
            .map_err(|error| Failure::new(Exit::Failed, error))?;
        let progress = Arc::new(Progress::new(SILENCE_MAX_MS));
        metrics.flow.beat(progress.clone());
        let readiness = Arc::new(Readiness::new(&sinks));
        Ok(Self { metrics: Arc::new(metrics), progress, readiness })
    }

    fn admin_sources(&self) -> admin::Sources {
        admin::Sources {
            metrics: self.metrics.clone(),
            progress: self.progress.clone(),
            readiness: self.readiness.clone(),
        }
    }

    /// Checks the schema, starts everything and waits for the end.
    async fn work(
        &self,
        configuration: config::Relay,
        relay_id: uuid::Uuid,
        arguments: &cli::Run,
        stop: &CancellationToken,
    ) -> Outcome<Exit> {
        let timeout = Duration::from_secs(arguments.drain_timeout);
        let deadline = tokio::time::Instant::now() + timeout;
        tokio::select! {
            () = stop.cancelled() => return Ok(Exit::Done),
            preflight = self.preflight(&configuration) => preflight?,
            () = tokio::time::sleep_until(deadline), if arguments.drain => {
                let text = format!("not drained within {} s; the database is away", timeout.as_secs());
                return Err(Failure::text(Exit::Failed, text));
            }
        }
        let observer: Arc<dyn Observer> = self.metrics.flow.clone();
        let publishers = publishers::start(&configuration.brokers, &observer)?;
        let sinks = Sinks::new(publishers);
        let postgres = postgres(&configuration, relay_id);
        let connections = postgres.connections();
        let source = PostgresSource::new(postgres).map_err(|error| Failure::text(Exit::Configuration, error))?;
        let mut settings = configuration.settings.relay.clone();
        settings.drill = drill::shares(&arguments.drill);
        let shared = Arc::new(Shared::new(settings, configuration.routes, sinks, observer));
        // Our own token: a drain that takes too long and a refused login end the relay too.
        let end = stop.child_token();
        let helpers = self.helpers(&shared, &configuration.database, connections, &end);
        let relay = Relay::new(Arc::new(source), shared.clone(), arguments.drain);
        let mut running = std::pin::pin!(relay.run(end.clone()));
        let outcome = tokio::select! {
            finish = &mut running => Ok(finish),
            failure = refused(&shared) => Err(failure),
            () = tokio::time::sleep_until(deadline), if arguments.drain => {
                Err(undrained(&configuration.database, &shared, timeout).await)
            }
            () = stop.cancelled() => {
                self.readiness.stopping();
                info!("stopping: no new claims, waiting for what is in flight");
                Ok((&mut running).await)
            }
        };
        let outcome = match outcome {
            Ok(Finish::Stopped) => {
                if arguments.drain {
                    warn!("stopped before everything was drained");
                }
                Ok(Exit::Done)
            }
            Ok(Finish::Drained) => Ok(Exit::Done),
            Err(failure) => {
                end.cancel();
                running.await;
                Err(failure)
            }
        };
        end.cancel();
        for helper in helpers {
            helper.abort();
        }
        outcome
    }

    /// Waits for the database and looks at the schema. What trying again cannot mend is an error.
    async fn preflight(&self, configuration: &config::Relay) -> Outcome<()> {
        let mut backoff = Backoff::new(PREFLIGHT);
        loop {
            self.progress.tick();
            let failure = match connect(&configuration.database).await {
                Ok(client) => match check_version(&client, Schema::Outbox).await {
                    Ok(verdict) if verdict.is_usable() => {
                        match Box::pin(source_faults(&client, &configuration.tables)).await {
                            Ok(()) => {
                                self.readiness.schema(Ok(()));
                                return Ok(());
                            }
                            Err(failure) => failure,
                        }
                    }
                    Ok(verdict) => return Err(Failure::text(Exit::Configuration, verdict.to_string())),
                    // A right that is missing comes with a grant, not with time.
                    Err(error @ MigrateError::Denied { .. }) => Failure::new(Exit::Configuration, error),
                    Err(error) => Failure::new(Exit::Unavailable, error),
                },
                Err(failure) => failure,
            };
            if failure.exit == Exit::Configuration {
                return Err(failure);
            }
            warn!(error = %failure, "the database is away; trying again");
            self.readiness.database(Err(failure.to_string()));
            tokio::time::sleep(Duration::from_millis(backoff.next_ms())).await;
        }
    }

    /// What runs beside the relay: the sampler, and the news for readiness.
    fn helpers(
        &self,
        shared: &Arc<Shared>,
        database: &config::Database,
        connections: usize,
        end: &CancellationToken,
    ) -> Vec<tokio::task::JoinHandle<()>> {
        let sampler = Sampler {
            database: database.clone(),
            metrics: self.metrics.clone(),
            readiness: self.readiness.clone(),
            block_key: shared.settings.on_park == OnPark::BlockKey,
        };
        let mut helpers = vec![tokio::spawn(sampler.run(end.clone()))];
        for (sink, mut link) in shared.sinks.links() {
            let readiness = self.readiness.clone();
            helpers.push(tokio::spawn(async move {
                loop {
                    readiness.sink(sink, link.borrow_and_update().clone());
                    if link.changed().await.is_err() {
                        return;
                    }
                }
            }));
        }
        let readiness = self.readiness.clone();
        let mut errors = shared.intake_errors.subscribe();
        helpers.push(tokio::spawn(async move {
            loop {
                readiness.intakes(errors.borrow_and_update().clone());
                if errors.changed().await.is_err() {
                    return;
                }
            }
        }));
        let (readiness, metrics) = (self.readiness.clone(), self.metrics.clone());
        let mut link = shared.database.subscribe();
        helpers.push(tokio::spawn(async move {
            loop {
                let state = match &*link.borrow_and_update() {
                    DatabaseLink::Up => Ok(()),
                    DatabaseLink::Down { detail } => Err(detail.clone()),
                };
                metrics.pool_connections(if state.is_ok() { connections } else { 0 }, 0);
                readiness.database(state);
                if link.changed().await.is_err() {
                    return;
                }
            }
        }));
        helpers
    }
}

/// A source that cannot work is for an operator, like a schema that does not fit. One that breaks later stops nothing.
async fn source_faults(client: &tokio_postgres::Client, tables: &[SourceTable]) -> Outcome<()> {
    let mut errors = Vec::new();
    for source in tables {
        let name = &source.intake.name;
        for fault in answered("cannot look at a source", inspect_intake(client, &source.table)).await? {
            let text = format!("{}; {}", fault.detail, fault.statements.join(" "));
            let text = text.trim_end_matches([';', ' ']);
            if fault.kind.is_error() {
                errors.push(format!("source {name}: {text}"));
            } else {
                warn!(source = %name, "{text}");
            }
        }
    }
    if errors.is_empty() { Ok(()) } else { Err(Failure::text(Exit::Configuration, errors.join("\n  "))) }
}

fn postgres(configuration: &config::Relay, relay_id: uuid::Uuid) -> PostgresConfig {
    PostgresConfig {
        database: configuration.database.clone(),
        source: "outbox".to_owned(),
        relay_id,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        host: std::fs::read_to_string("/proc/sys/kernel/hostname").ok().map(|name| name.trim().to_owned()),
        lease_ttl_ms: configuration.settings.relay.lease_ttl_ms,
        fence: configuration.settings.fence,
        intakes: configuration.tables.iter().map(|source| source.table.clone()).collect(),
        statement_timeout_ms: STATEMENT_TIMEOUT_MS,
    }
}

/// Credentials that a broker refuses at start need an operator. Once a link was up a refusal is waited out: the
/// broker may be starting.
async fn refused(shared: &Shared) -> Failure {
    let watches = shared.sinks.links().into_iter().map(|(sink, mut link)| {
        Box::pin(async move {
            // The guard of a watch must not live over an await: it would stop the link's own task.
            let refused = link
                .wait_for(|link| matches!(link, Link::Up | Link::Refused { .. }))
                .await
                .ok()
                .and_then(|link| if let Link::Refused { detail } = &*link { Some(detail.clone()) } else { None });
            match refused {
                Some(detail) => Failure::text(Exit::Configuration, format!("{sink}: {detail}")),
                None => std::future::pending().await,
            }
        })
    });
    futures_util::future::select_all(watches).await.0
}

/// A drain that took too long says what is left.
async fn undrained(database: &config::Database, shared: &Shared, timeout: Duration) -> Failure {
    let seconds = timeout.as_secs();
    let left = match super::status::remaining(database, shared.settings.on_park == OnPark::BlockKey).await {
        Ok(left) => left,
        Err(failure) => format!("what remains cannot be counted: {failure}"),
    };
    Failure::text(Exit::Failed, format!("not drained within {seconds} s; {left}"))
}
