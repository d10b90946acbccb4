//! A database per test, dropped at its end, and the few questions many tests ask.

use std::future::Future;
use std::time::{Duration, Instant};

use outbox_schema::{MigrateError, Options, Report, migrate};
use tokio::task::JoinHandle;
use tokio_postgres::{Client, Config, NoTls};

const WAIT_MAX: Duration = Duration::from_secs(60);

/// A new, empty database.
pub struct Database {
    admin: Config,
    name: String,
}

fn admin_config() -> Config {
    let url = std::env::var("TEST_DATABASE_URL").unwrap_or_else(|_| {
        panic!(
            "TEST_DATABASE_URL is not set: these tests need a PostgreSQL server and a superuser on it, for example \
             TEST_DATABASE_URL=postgresql://postgres@127.0.0.1:5432/postgres"
        )
    });
    url.parse().expect("TEST_DATABASE_URL must be a PostgreSQL URL")
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
    /// Without any schema in it.
    pub async fn empty() -> Self {
        Self::with_encoding("UTF8").await
    }

    pub async fn with_encoding(encoding: &str) -> Self {
        let admin = admin_config();
        let name = format!("schema_test_{}", uuid::Uuid::new_v4().simple());
        connect(&admin)
            .await
            .batch_execute(&format!(
                "CREATE DATABASE {name} TEMPLATE template0 ENCODING '{encoding}' LC_COLLATE 'C' LC_CTYPE 'C'"
            ))
            .await
            .expect("create a database");
        Self { admin, name }
    }

    /// With both schemas.
    pub async fn migrated() -> Self {
        let database = Self::empty().await;
        database.migrate().await.expect("migrate");
        database
    }

    /// With both schemas and the roles.
    pub async fn with_roles() -> Self {
        let database = Self::migrated().await;
        let client = database.connect().await;
        client.batch_execute(outbox_schema::ROLES_SQL).await.expect("roles");
        database
    }

    pub async fn migrate(&self) -> Result<Report, MigrateError> {
        self.migrate_with(&Options::default()).await
    }

    pub async fn migrate_with(&self, options: &Options) -> Result<Report, MigrateError> {
        migrate(&mut self.connect().await, options).await
    }

    /// As superuser. An empty `search_path` proves that nothing depends on one.
    pub async fn connect(&self) -> Client {
        let mut config = self.admin.clone();
        config.dbname(&self.name);
        let client = connect(&config).await;
        client.batch_execute("SET search_path = ''").await.expect("empty search_path");
        client
    }

    /// With the rights of one of the roles.
    pub async fn connect_as(&self, role: &str) -> Client {
        let client = self.connect().await;
        client.batch_execute(&format!("SET ROLE {role}")).await.expect("take the role");
        client
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let admin = self.admin.clone();
        let statement = format!("DROP DATABASE {} WITH (FORCE)", self.name);
        // A thread with a runtime of its own: Drop cannot wait for a future on the test's runtime.
        let dropped = std::thread::spawn(move || {
            tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("runtime")
                .block_on(async move { connect(&admin).await.batch_execute(&statement).await })
        })
        .join();
        if !std::thread::panicking() {
            dropped.expect("the dropping thread").expect("drop the database");
        }
    }
}

/// The SQLSTATE of a failure; a success panics.
pub fn sqlstate<T>(result: Result<T, tokio_postgres::Error>) -> String {
    match result {
        Ok(_) => panic!("it should have failed"),
        Err(error) => error.code().unwrap_or_else(|| panic!("no SQLSTATE: {error:?}")).code().to_owned(),
    }
}

/// Message, detail and hint of a failure.
pub fn words<T>(result: Result<T, tokio_postgres::Error>) -> String {
    match result {
        Ok(_) => panic!("it should have failed"),
        Err(error) => {
            let db = error.as_db_error().expect("a database error");
            let rest = [db.detail(), db.hint()].map(Option::unwrap_or_default);
            format!("{} {}", db.message(), rest.join(" "))
        }
    }
}

/// The first column of the only row.
pub async fn one<T>(client: &Client, sql: &str) -> T
where
    T: for<'a> tokio_postgres::types::FromSql<'a>,
{
    client
        .query_one(sql, &[])
        .await
        .unwrap_or_else(|error| panic!("{sql}: {:?}", error.as_db_error()))
        .try_get(0)
        .unwrap_or_else(|error| panic!("{sql}: {error}"))
}

/// Starts a statement elsewhere and returns once that session waits for a lock.
pub async fn start_and_block<T, F>(observer: &Client, pid: i32, work: F) -> JoinHandle<T>
where
    T: Send + 'static,
    F: Future<Output = T> + Send + 'static,
{
    let task = tokio::spawn(work);
    wait_until_blocked(observer, pid).await;
    task
}

/// Returns once the session of this process id waits for a lock.
pub async fn wait_until_blocked(observer: &Client, pid: i32) {
    let deadline = Instant::now() + WAIT_MAX;
    let sql = format!("SELECT pg_catalog.cardinality(pg_catalog.pg_blocking_pids({pid})) > 0");
    while !one::<bool>(observer, &sql).await {
        assert!(Instant::now() < deadline, "session {pid} did not wait for a lock within {WAIT_MAX:?}");
    }
}

pub async fn pid(client: &Client) -> i32 {
    one(client, "SELECT pg_catalog.pg_backend_pid()").await
}
