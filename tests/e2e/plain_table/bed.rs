//! A scene whose application writes a plain table, and the configuration that takes it over.

use anyhow::Result;
use outbox_tests::relay::Launch;
use outbox_tests::wait::{self, SOON};

use crate::scene::{Kind, Scene};

/// As a JavaScript or Python application makes it, with the column for the mark and the index that `check` proposes.
pub const PLAIN: &str = "CREATE TABLE outbox (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, kind text, ref text); \
                         ALTER TABLE outbox ADD COLUMN taken_at timestamptz; \
                         CREATE INDEX outbox_untaken ON outbox (id) WHERE taken_at IS NULL";

/// A source of that table; `{topic}` is the scene's.
pub const SOURCE: &str = r#"
[[source]]
name = "invoices"
table = "public.outbox"
message_id = "{kind}:{ref}"
topic = "TOPIC"
ordering_key = "{kind}"
body = ["kind", "ref"]
mark_column = "taken_at"
poll_ms = 20
"#;

pub struct Bed {
    pub scene: Scene,
    pub config: String,
}

impl Bed {
    /// `None` where Kafka may be missing and is.
    pub async fn new(kind: Kind, test: &str, tables: &str, config: &str) -> Result<Option<Self>> {
        let Some(scene) = Scene::new(kind, test).await? else { return Ok(None) };
        scene.client.batch_execute(tables).await?;
        let config = config.replace("TOPIC", &scene.topic);
        Ok(Some(Self { scene, config }))
    }

    /// On RabbitMQ.
    pub async fn rabbitmq(tables: &str, config: &str) -> Result<Self> {
        let scene = Scene::rabbitmq().await?;
        scene.client.batch_execute(tables).await?;
        let config = config.replace("TOPIC", &scene.topic);
        Ok(Self { scene, config })
    }

    pub fn launch(&self) -> Launch {
        self.scene.launch().config(&self.config)
    }

    pub async fn sql(&self, sql: &str) -> Result<()> {
        Ok(self.scene.client.batch_execute(sql).await?)
    }

    pub async fn number(&self, sql: &str) -> Result<i64> {
        Ok(self.scene.client.query_one(sql, &[]).await?.try_get(0)?)
    }

    /// Waits until the statement, which counts, says so.
    pub async fn wait_number(&self, sql: &str, expected: i64) -> Result<()> {
        wait::until_true(&format!("{sql} to be {expected}"), SOON, || async { Ok(self.number(sql).await? == expected) })
            .await
    }

    /// The ids of the next so many different arrivals, in their order.
    pub async fn arrived(&mut self, count: usize) -> Result<Vec<String>> {
        let mut ids = Vec::new();
        while ids.len() < count {
            let Some(arrival) = self.scene.next(SOON).await? else { anyhow::bail!("{count} were to come: {ids:?}") };
            if !ids.contains(&arrival.id) {
                ids.push(arrival.id);
            }
        }
        Ok(ids)
    }
}
