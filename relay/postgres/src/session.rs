//! Sessions: a handful of connections that live and die together.
//!
//! The pool only makes connections, with time-outs; a session takes them out of it for good, so that no dead or
//! replaced connection is handed on unseen.

use std::sync::Arc;
use std::time::Duration;

use deadpool_postgres::{Manager, ManagerConfig, Pool, RecyclingMethod, Runtime, Timeouts};
use outbox_core::{
    Acquired, ClaimRequest, DrainGoal, Fenced, Heartbeat, HoldEntry, Horizon, Lease, MarkOrder, Page, PollRequest,
    RowId, Session, Source, SourceError, Take, crash_point, mutant,
};

use crate::claim::FreshOnly;
use crate::config::PostgresConfig;
use crate::connection::{Alarm, Connection};
use crate::dialer::{CancelledWaits, Dialer};
use crate::fence::Fence;
use crate::intake::Intakes;
use crate::{claim, drain, held, lanes, mark, retention};

/// Claims run side by side on this many connections.
const CLAIM_CONNECTIONS: usize = 2;
/// Connections of one session: claims, marks, holds, control, fence.
pub const SESSION_CONNECTIONS: usize = CLAIM_CONNECTIONS + 4;
/// To connect, log in and be ready, each.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Makes sessions.
pub struct PostgresSource {
    pool: Pool,
    config: Arc<PostgresConfig>,
    cancelled_waits: CancelledWaits,
}

impl PostgresSource {
    /// Prepares a pool; nothing is connected yet.
    ///
    /// # Errors
    /// Says what the pool refused.
    pub fn new(config: PostgresConfig) -> Result<Self, String> {
        let mut connection = config.database.config().clone();
        connection
            .connect_timeout(CONNECT_TIMEOUT)
            .keepalives(true)
            .keepalives_idle(Duration::from_secs(10))
            .keepalives_interval(Duration::from_secs(5))
            .keepalives_retries(3)
            .tcp_user_timeout(Duration::from_secs(20))
            .target_session_attrs(tokio_postgres::config::TargetSessionAttrs::ReadWrite);
        if connection.get_application_name().is_none() {
            connection.application_name("outbox-relay");
        }
        let cancelled_waits = CancelledWaits::default();
        let dialer = Dialer { database: config.database.clone(), cancelled_waits: cancelled_waits.clone() };
        let recycling = ManagerConfig { recycling_method: RecyclingMethod::Verified };
        let manager = Manager::from_connect(connection, dialer, recycling);
        let timeouts =
            Timeouts { wait: Some(CONNECT_TIMEOUT), create: Some(CONNECT_TIMEOUT), recycle: Some(CONNECT_TIMEOUT) };
        let pool = Pool::builder(manager)
            .max_size(config.connections())
            .timeouts(timeouts)
            .runtime(Runtime::Tokio1)
            .build()
            .map_err(|error| error.to_string())?;
        Ok(Self { pool, config: Arc::new(config), cancelled_waits })
    }

    async fn connection(&self, name: &'static str, alarm: &Alarm) -> Result<Connection, SourceError> {
        match self.pool.get().await {
            Ok(object) => Ok(Connection::new(object, name, &self.config, alarm.clone())),
            Err(deadpool_postgres::PoolError::Backend(error)) => Err(crate::errors::classify(&error)),
            Err(error) => Err(SourceError::Lost(error.to_string())),
        }
    }
}

impl Source for PostgresSource {
    type Session = PostgresSession;

    async fn connect(&self) -> Result<Arc<PostgresSession>, SourceError> {
        let alarm = Alarm::new();
        let session = PostgresSession {
            claims: [self.connection("claim", &alarm).await?, self.connection("claim", &alarm).await?],
            marks: self.connection("mark", &alarm).await?,
            holds: self.connection("hold", &alarm).await?,
            control: self.connection("control", &alarm).await?,
            fence: Fence::new(self.connection("fence", &alarm).await?, self.config.fence, self.cancelled_waits.clone())
                .await?,
            intakes: match self.config.intakes.as_slice() {
                [] => None,
                _ => Some(Intakes::new(self.connection("take", &alarm).await?, &self.config)),
            },
            fresh_only: FreshOnly::default(),
            alarm,
            config: self.config.clone(),
        };
        lanes::register(&session.control, &session.config).await?;
        Ok(Arc::new(session))
    }
}

/// A set of connections. When one breaks, all are given up.
pub struct PostgresSession {
    claims: [Connection; CLAIM_CONNECTIONS],
    marks: Connection,
    holds: Connection,
    control: Connection,
    fence: Fence,
    intakes: Option<Intakes>,
    fresh_only: FreshOnly,
    alarm: Alarm,
    config: Arc<PostgresConfig>,
}

impl PostgresSession {
    fn claim_connection(&self, lane: i16) -> &Connection {
        &self.claims[usize::from(lane.unsigned_abs()) % CLAIM_CONNECTIONS]
    }

    fn any_closed(&self) -> bool {
        let others = [&self.marks, &self.holds, &self.control, self.fence.connection()];
        self.claims.iter().chain(others).any(Connection::is_closed)
    }
}

impl Session for PostgresSession {
    async fn lost(&self) -> String {
        self.alarm.raised().await
    }

    async fn heartbeat(&self, owned: &[Lease]) -> Result<Heartbeat, SourceError> {
        if self.any_closed() {
            self.alarm.raise("a connection was closed");
        }
        let beat = lanes::heartbeat(&self.control, &self.config, owned).await;
        if let Err(SourceError::Lost(detail)) = &beat {
            self.alarm.raise(detail);
        }
        beat
    }

    async fn acquire(&self, wanted: &[(i16, Option<i64>)]) -> Result<Vec<Acquired>, SourceError> {
        lanes::acquire(&self.control, &self.config, wanted).await
    }

    async fn release(&self, leases: &[Lease]) -> Result<(), SourceError> {
        lanes::release(&self.control, &self.config, leases).await
    }

    async fn leave(&self) -> Result<(), SourceError> {
        lanes::leave(&self.control, &self.config).await
    }

    async fn last_seq(&self) -> Result<i64, SourceError> {
        claim::last_seq(&self.control).await
    }

    async fn horizon(&self) -> Result<Horizon, SourceError> {
        claim::horizon(&self.control).await
    }

    async fn poll(&self, request: &PollRequest) -> Result<Vec<i16>, SourceError> {
        claim::poll(&self.control, &self.config, request).await
    }

    async fn claim(&self, request: ClaimRequest) -> Result<Page, SourceError> {
        let connection = self.claim_connection(request.lease.lane);
        if mutant("sweep_apart") {
            return claim::sweep_apart(connection, &self.config, request, &self.fresh_only).await;
        }
        let (mut page, wal) =
            claim::claim(connection, &self.config, &request, &self.fresh_only).await.inspect_err(|error| {
                if let SourceError::Lost(detail) = error {
                    self.alarm.raise(detail);
                }
            })?;
        if mutant("skip_locked") {
            crate::wrong::share(&mut page);
        }
        if !page.rows.is_empty() {
            crash_point("after_claim_read");
            self.fence.durable(wal).await?;
        }
        Ok(page)
    }

    async fn mark(&self, orders: &[MarkOrder]) -> Result<Vec<Lease>, SourceError> {
        mark::mark(&self.marks, &self.config, orders).await
    }

    async fn hold(&self, lease: Lease, entries: &[HoldEntry]) -> Result<Fenced, SourceError> {
        held::hold(&self.holds, &self.config, lease, entries).await
    }

    async fn recheck(&self, rows: &[(RowId, String)]) -> Result<Vec<RowId>, SourceError> {
        mark::recheck(&self.marks, rows).await
    }

    async fn drain_goal(&self) -> Result<DrainGoal, SourceError> {
        drain::goal(&self.holds).await
    }

    async fn drained(&self, goal: &DrainGoal, block_key: bool) -> Result<bool, SourceError> {
        drain::drained(&self.holds, &self.config, goal, block_key).await
    }

    async fn prune(&self, retention_s: u64) -> Result<usize, SourceError> {
        retention::prune(&self.holds, &self.config, retention_s).await
    }

    async fn take(&self, intake: usize, look_first: bool) -> Result<Take, SourceError> {
        match &self.intakes {
            Some(intakes) => intakes.take(intake, look_first).await,
            None => Ok(Take::Nothing),
        }
    }

    async fn tidy(&self, intake: usize, above: &str) -> Result<Option<String>, SourceError> {
        match &self.intakes {
            Some(intakes) => intakes.tidy(intake, above).await,
            None => Ok(None),
        }
    }
}
