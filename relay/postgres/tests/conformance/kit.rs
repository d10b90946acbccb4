//! A database per test with a relay's session on one of its lanes, and short ways to rows and claims.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use outbox_core::{
    ClaimRequest, Content, Fenced, HoldEntry, HoldState, Lease, MarkOrder, Origin, Page, PollRequest, Position, Reason,
    RowId, Session, Source, TxId,
};
use outbox_postgres::{DurabilityFence, IntakeTable, PostgresConfig, PostgresSession, PostgresSource};
use outbox_schema::{Options, ROLES_SQL, migrate};
use tokio_postgres::{Client, Config, NoTls};
use uuid::Uuid;

pub const LANE: i16 = 3;

/// A new database, dropped at the end.
pub struct Database {
    admin: Config,
    name: String,
}

async fn connect(config: &Config) -> Client {
    let (client, connection) = config.connect(NoTls).await.expect("connect to PostgreSQL");
    tokio::spawn(async move {
        // A connection that is cut at the end of a test has nothing to tell.
        let _ = connection.await;
    });
    client
}

impl Database {
    pub async fn new() -> Self {
        let url = std::env::var("TEST_DATABASE_URL").expect("TEST_DATABASE_URL: a PostgreSQL server, as superuser");
        let admin: Config = url.parse().expect("TEST_DATABASE_URL must be a PostgreSQL URL");
        let name = format!("relay_test_{}", Uuid::new_v4().simple());
        let create = format!("CREATE DATABASE {name} TEMPLATE template0 ENCODING 'UTF8' LC_COLLATE 'C' LC_CTYPE 'C'");
        connect(&admin).await.batch_execute(&create).await.expect("create a database");
        let database = Self { admin, name };
        let mut client = database.client().await;
        migrate(&mut client, &Options::default()).await.expect("migrate");
        client.batch_execute(ROLES_SQL).await.expect("roles");
        database
    }

    pub fn config(&self) -> Config {
        let mut config = self.admin.clone();
        config.dbname(&self.name);
        config
    }

    /// As superuser.
    pub async fn client(&self) -> Client {
        connect(&self.config()).await
    }

    /// A session of a new relay; `options` are the server's.
    pub async fn session(&self, relay_id: Uuid, options: &str) -> Arc<PostgresSession> {
        self.session_with(relay_id, &format!("-c role=outbox_relay {options}"), Vec::new()).await
    }

    /// A session that takes rows over, too.
    pub async fn session_with(&self, relay_id: Uuid, options: &str, intakes: Vec<IntakeTable>) -> Arc<PostgresSession> {
        let mut connection = self.config();
        connection.options(options);
        let config = PostgresConfig {
            database: outbox_postgres::Database::new(connection, None),
            source: "outbox".to_owned(),
            relay_id,
            version: "test".to_owned(),
            host: None,
            lease_ttl_ms: 10_000,
            fence: DurabilityFence::Local,
            intakes,
            statement_timeout_ms: 20_000,
        };
        PostgresSource::new(config).expect("a source").connect().await.expect("a session")
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let admin = self.admin.clone();
        let statement = format!("DROP DATABASE {} WITH (FORCE)", self.name);
        // A thread with a runtime of its own: Drop cannot wait for a future on the test's runtime.
        let dropped = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime");
            runtime.block_on(async move { connect(&admin).await.batch_execute(&statement).await })
        })
        .join();
        if !std::thread::panicking() {
            dropped.expect("the dropping thread").expect("drop the database");
        }
    }
}

/// What a test works with: rows enter as superuser, everything else goes through the session.
pub struct Fixture {
    pub client: Client,
    pub session: Arc<PostgresSession>,
    pub lease: Lease,
    /// Ordering keys of the lane.
    pub keys: Vec<String>,
    pub relay_id: Uuid,
    pub database: Database,
    next: AtomicU32,
}

impl Fixture {
    pub async fn new() -> Self {
        Self::with("").await
    }

    pub async fn with(options: &str) -> Self {
        let database = Database::new().await;
        let client = database.client().await;
        let relay_id = Uuid::new_v4();
        let session = database.session(relay_id, options).await;
        let acquired = session.acquire(&[(LANE, None)]).await.expect("acquire");
        let sql = "SELECT array_agg('k' || n ORDER BY n) FROM generate_series(1, 999) n \
                   WHERE hashtextextended('k' || n, 0) & 15 = $1";
        let keys = client.query_one(sql, &[&i64::from(LANE)]).await.expect("keys").get(0);
        Self { client, session, lease: acquired[0].lease, keys, relay_id, database, next: AtomicU32::new(0) }
    }

    /// A row of the lane's n-th key, due at once.
    pub async fn row(&self, key: usize) -> RowId {
        self.row_with(key, None, "body").await
    }

    /// `in_ms` is its `available_at`, from now.
    pub async fn delayed(&self, key: usize, in_ms: i64) -> RowId {
        self.row_with(key, Some(in_ms), "body").await
    }

    pub async fn row_with(&self, key: usize, in_ms: Option<i64>, payload: &str) -> RowId {
        let work = format!("work:{}", self.next.fetch_add(1, Ordering::Relaxed));
        let sql = "INSERT INTO outbox.message (idempotency_key, topic, payload, ordering_key, available_at) \
                   VALUES ($1, 't', $2, $3, clock_timestamp() + $4::bigint * interval '1 millisecond') \
                   RETURNING seq, tx::text";
        let row = self.client.query_one(sql, &[&work, &payload, &self.keys[key], &in_ms]).await.expect("insert");
        let tx: String = row.get(1);
        RowId { seq: row.get(0), tx: TxId(tx.parse().expect("an xid8")) }
    }

    pub fn request(&self) -> ClaimRequest {
        ClaimRequest {
            lease: self.lease,
            low: 0,
            exclude: Vec::new(),
            rows_max: 100,
            bytes_max: 1 << 20,
            with_held: true,
            open_gates: Vec::new(),
            probe_gates: Vec::new(),
            block_key: false,
        }
    }

    pub async fn page(&self, change: impl FnOnce(&mut ClaimRequest)) -> Page {
        let mut request = self.request();
        change(&mut request);
        self.session.claim(request).await.expect("a claim")
    }

    /// Numbers and origins of a page; `blocked` where the row came without content.
    pub async fn claim(&self, change: impl FnOnce(&mut ClaimRequest)) -> Vec<(i64, &'static str)> {
        self.page(change).await.rows.iter().map(|row| (row.id.seq, label(row.origin, &row.content))).collect()
    }

    pub async fn hold(&self, entries: &[HoldEntry]) {
        assert_eq!(self.session.hold(self.lease, entries).await.expect("a hold"), Fenced::Done);
    }

    pub async fn wait(&self, row: RowId) {
        self.hold(&[waiting(row)]).await;
    }

    pub async fn park(&self, row: RowId) {
        self.hold(&[HoldEntry { state: HoldState::Parked, ..waiting(row) }]).await;
    }

    /// The stale leases.
    pub async fn mark(&self, rows: &[RowId]) -> Vec<Lease> {
        self.session.mark(&[MarkOrder { lease: self.lease, rows: rows.to_vec() }]).await.expect("a mark")
    }

    pub async fn state(&self, row: RowId) -> String {
        let sql = "SELECT state FROM outbox.message_status WHERE seq = $1";
        self.client.query_one(sql, &[&row.seq]).await.expect("a row").get(0)
    }

    pub async fn count(&self, sql: &str) -> i64 {
        self.client.query_one(sql, &[]).await.expect(sql).get(0)
    }

    pub async fn poll(&self, change: impl FnOnce(&mut PollRequest)) -> bool {
        let mut request = PollRequest {
            positions: vec![Position { lane: LANE, low: 0 }],
            exclude: Vec::new(),
            with_held: true,
            open_gates: Vec::new(),
            block_key: false,
        };
        change(&mut request);
        !self.session.poll(&request).await.expect("a poll").is_empty()
    }

    /// Another relay takes the lane, as after an expired lease.
    pub async fn take_over(&self) {
        let sql = "UPDATE outbox.lane SET owner = gen_random_uuid(), epoch = epoch + 1, \
                   expires_at = clock_timestamp() + interval '1 hour' WHERE lane = $1";
        self.client.execute(sql, &[&LANE]).await.expect("take over");
    }
}

pub fn waiting(row: RowId) -> HoldEntry {
    HoldEntry {
        id: row,
        state: HoldState::Waiting,
        reason: Reason::Nack,
        detail: String::new(),
        attempts: 0,
        delay_ms: None,
        gates: Vec::new(),
    }
}

pub fn gated(row: RowId, gates: &[&str]) -> HoldEntry {
    HoldEntry { gates: gates.iter().map(|gate| (*gate).to_owned()).collect(), ..waiting(row) }
}

pub const fn label(origin: Origin, content: &Content) -> &'static str {
    match (content, origin) {
        (Content::Blocked, _) => "blocked",
        (Content::Bad { .. }, _) => "bad",
        (Content::Row(_), Origin::Fresh) => "fresh",
        (Content::Row(_), Origin::Delayed) => "delayed",
        (Content::Row(_), Origin::Held { probe: false }) => "held",
        (Content::Row(_), Origin::Held { probe: true }) => "probe",
    }
}
