//! A database per test with both schemas, dropped at its end.

use outbox_schema::{Options, migrate};
use tokio_postgres::{Client, Config, NoTls};

pub struct Database {
    admin: Config,
    name: String,
}

async fn connect(config: &Config) -> Client {
    let (client, connection) = config.connect(NoTls).await.expect("connect to PostgreSQL");
    tokio::spawn(async move { drop(connection.await) });
    client
}

impl Database {
    pub async fn migrated() -> Self {
        let url = std::env::var("TEST_DATABASE_URL").expect("TEST_DATABASE_URL is not set; see tests/README.md");
        let admin: Config = url.parse().expect("TEST_DATABASE_URL must be a PostgreSQL URL");
        let name = format!("client_test_{}", uuid::Uuid::new_v4().simple());
        let create = format!("CREATE DATABASE {name} TEMPLATE template0 ENCODING 'UTF8'");
        connect(&admin).await.batch_execute(&create).await.unwrap();
        let database = Self { admin, name };
        migrate(&mut database.client().await, &Options::default()).await.unwrap();
        database
    }

    pub fn config(&self) -> Config {
        let mut config = self.admin.clone();
        config.dbname(&self.name);
        config
    }

    pub fn url(&self) -> String {
        let admin = std::env::var("TEST_DATABASE_URL").expect("TEST_DATABASE_URL is not set; see tests/README.md");
        let (server, _) = admin.rsplit_once('/').expect("TEST_DATABASE_URL must name a database");
        format!("{server}/{}", self.name)
    }

    pub async fn client(&self) -> Client {
        connect(&self.config()).await
    }

    pub async fn count(&self, from: &str) -> i64 {
        let sql = format!("SELECT count(*) FROM {from}");
        self.client().await.query_one(&sql, &[]).await.unwrap().get(0)
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let (admin, statement) = (self.admin.clone(), format!("DROP DATABASE {} WITH (FORCE)", self.name));
        // A thread with a runtime of its own: Drop cannot wait for a future on the test's runtime.
        let dropped = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async move { connect(&admin).await.batch_execute(&statement).await })
        });
        let dropped = dropped.join();
        if !std::thread::panicking() {
            dropped.unwrap().unwrap();
        }
    }
}
