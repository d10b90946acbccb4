//! `check`: each thing that it can find is made here, found by its stable name, and what to do is said.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use outbox_tests::database::{self, Database};
use outbox_tests::kafka::Kafka;
use outbox_tests::own_services::{OwnServices, Service};
use outbox_tests::rabbit::{QueueType, Rabbit};
use outbox_tests::relay::Launch;
use outbox_tests::services;
use outbox_tests::wait::SOON;
use tokio_postgres::Client;

/// A database with a login that has the relay's role alone.
struct Bed {
    database: Database,
    client: Client,
    rabbit: Rabbit,
    login: String,
    url: String,
}

/// What a run of `check` said: severities and details by name.
struct Said {
    code: Option<i32>,
    findings: BTreeMap<String, (String, String)>,
}

impl Bed {
    async fn new() -> Result<Self> {
        let database = Database::migrated().await?;
        let client = database.client().await?;
        let login = format!("login_{}", database.name());
        client.batch_execute(outbox_schema::ROLES_SQL).await?;
        let create = format!("CREATE ROLE {login} LOGIN PASSWORD 'outbox' IN ROLE outbox_relay");
        client.batch_execute(&create).await?;
        let url = database.url().replace("postgres:outbox@", &format!("{login}:outbox@"));
        anyhow::ensure!(url.contains(&login), "the address has no user to replace");
        Ok(Self { database, client, rabbit: Rabbit::connect().await?, login, url })
    }

    fn launch(&self) -> Launch {
        Launch::new(["check", "--output", "json"]).database(&self.url).amqp(self.rabbit.url())
    }

    async fn check(&self) -> Result<Said> {
        run(&self.launch()).await
    }

    /// Changes the database, expects one finding, and changes it back.
    async fn expect(&self, change: &str, name: &str, severity: &str, word: &str, back: &str) -> Result<()> {
        self.client.batch_execute(change).await.with_context(|| change.to_owned())?;
        let said = self.check().await?;
        self.client.batch_execute(back).await.with_context(|| back.to_owned())?;
        said.must_have(name, severity, word).with_context(|| change.to_owned())
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        let (url, login) = (self.database.url().to_owned(), self.login.clone());
        outbox_tests::cleanup::run("the test's login", async move {
            let client = database::connect(&url).await?;
            client.batch_execute(&format!("DROP OWNED BY {login}; DROP ROLE {login}")).await?;
            Ok(())
        });
    }
}

async fn run(launch: &Launch) -> Result<Said> {
    let finished = launch.finish(SOON * 2).await?;
    let parsed: serde_json::Value = serde_json::from_str(&finished.stdout)
        .with_context(|| format!("no JSON: {}{}", finished.stdout, finished.stderr))?;
    let mut findings = BTreeMap::new();
    for finding in parsed.as_array().context("no list")? {
        let text = |name: &str| finding[name].as_str().map(ToOwned::to_owned).context("no text");
        let said = (text("severity")?, text("detail")?);
        assert_eq!(text("action")?.is_empty(), said.0 == "ok", "{finding}");
        findings.insert(text("name")?, said);
    }
    Ok(Said { code: finished.code, findings })
}

impl Said {
    fn must_have(&self, name: &str, severity: &str, word: &str) -> Result<()> {
        let found = self.findings.get(name).with_context(|| format!("no {name} in {:#?}", self.findings))?;
        anyhow::ensure!(found.0 == severity && found.1.contains(word), "{name}: {found:?}");
        let failed = self.findings.values().any(|(severity, _)| severity == "error");
        anyhow::ensure!(self.code == Some(i32::from(failed)), "exit code {:?} for {:#?}", self.code, self.findings);
        Ok(())
    }
}

#[tokio::test]
async fn a_place_as_it_should_be_has_no_warning() -> Result<()> {
    let bed = Bed::new().await?;
    let said = bed.check().await?;
    let bad = said.findings.iter().filter(|(_, (severity, _))| severity == "warning" || severity == "error");
    assert_eq!(bad.collect::<Vec<_>>(), []);
    for name in ["server", "schema", "privileges", "address"] {
        said.must_have(name, "ok", "")?;
    }
    said.must_have("transactions_hidden", "note", "other logins")?;
    said.must_have("binding_unknown", "note", "amq.topic")?;
    said.must_have("size_limit", "note", "134217728")?;
    // The text form says the same.
    let text = Launch::new(["check"]).database(&bed.url).amqp(bed.rabbit.url()).finish(SOON).await?;
    assert_eq!(text.code, Some(0));
    assert!(text.stdout.contains("ok       server                 PostgreSQL 15"), "{}", text.stdout);
    Ok(())
}

#[tokio::test]
async fn changes_around_the_schemas_rules_are_found() -> Result<()> {
    let bed = Bed::new().await?;
    let function = "CREATE FUNCTION public.swallow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'";
    bed.client.batch_execute(function).await?;
    let table = "ALTER TABLE outbox.message";
    for (change, name, severity, word, back) in [
        (
            format!("{table} ENABLE ROW LEVEL SECURITY"),
            "row_security",
            "error",
            "outbox.message",
            format!("{table} DISABLE ROW LEVEL SECURITY"),
        ),
        (
            "CREATE TRIGGER quiet BEFORE UPDATE ON outbox.message FOR EACH ROW EXECUTE FUNCTION public.swallow()"
                .to_owned(),
            "update_trigger",
            "warning",
            "quiet on outbox.message",
            "DROP TRIGGER quiet ON outbox.message".to_owned(),
        ),
        (
            "CREATE RULE never AS ON UPDATE TO outbox.message DO INSTEAD NOTHING".to_owned(),
            "rewrite_rule",
            "error",
            "never",
            "DROP RULE never ON outbox.message".to_owned(),
        ),
        (
            "ALTER INDEX outbox.message_unsent RENAME TO other".to_owned(),
            "index_missing",
            "error",
            "outbox.message_unsent",
            "ALTER INDEX outbox.other RENAME TO message_unsent".to_owned(),
        ),
        (
            "ALTER SEQUENCE outbox.message_seq CACHE 50".to_owned(),
            "sequence_changed",
            "error",
            "CACHE 50",
            "ALTER SEQUENCE outbox.message_seq CACHE 1".to_owned(),
        ),
        (
            format!("{table} SET (autovacuum_enabled = off)"),
            "autovacuum_off",
            "warning",
            "outbox.message",
            format!("{table} RESET (autovacuum_enabled)"),
        ),
    ] {
        bed.expect(&change, name, severity, word, &back).await?;
    }
    Ok(())
}

#[tokio::test]
async fn changes_that_lose_rows_or_stop_the_relay_are_found() -> Result<()> {
    let bed = Bed::new().await?;
    let table = "ALTER TABLE outbox.message";
    for (change, name, severity, word, back) in [
        (
            "REVOKE DELETE ON outbox.held FROM outbox_relay".to_owned(),
            "privileges_missing",
            "error",
            "DELETE on outbox.held",
            "GRANT DELETE ON outbox.held TO outbox_relay".to_owned(),
        ),
        (format!("{table} SET UNLOGGED"), "unlogged", "error", "outbox.message", format!("{table} SET LOGGED")),
        (
            format!("{table} ALTER seq SET DEFAULT nextval('outbox.message_seq')"),
            "seq_default_changed",
            "error",
            "nextval",
            "SELECT 1".to_owned(),
        ),
        (
            "UPDATE outbox.migration SET compatible_from = version + 97, version = version + 97".to_owned(),
            "schema_wrong",
            "error",
            "newer outbox-relay",
            "SELECT 1".to_owned(),
        ),
    ] {
        bed.expect(&change, name, severity, word, &back).await?;
    }
    Ok(())
}

#[tokio::test]
async fn settings_that_weaken_a_promise_are_found() -> Result<()> {
    let bed = Bed::new().await?;
    let (name, login) = (bed.database.name(), &bed.login);
    let reset = format!("ALTER DATABASE {name} RESET ALL; ALTER ROLE {login} RESET ALL");
    for (setting, found, severity, word) in [
        (format!("ALTER DATABASE {name} SET synchronous_commit = off"), "synchronous_commit_off", "warning", "off"),
        (format!("ALTER ROLE {login} SET zero_damaged_pages = on"), "damage_ignored", "warning", "zero_damaged_pages"),
        (format!("ALTER ROLE {login} SET statement_timeout = '3s'"), "statement_timeout", "warning", "3000 ms"),
        (format!("ALTER DATABASE {name} SET default_transaction_read_only = on"), "read_only", "error", "read-only"),
        (format!("ALTER ROLE {login} CONNECTION LIMIT 6"), "connection_limit", "error", "6 connections"),
    ] {
        // The session that changes it back must be able to.
        let back = format!("SET default_transaction_read_only = off; {reset}; ALTER ROLE {login} CONNECTION LIMIT -1");
        bed.expect(&setting, found, severity, word, &back).await?;
    }
    for (variable, value, found, severity) in [
        ("OUTBOX__DURABILITY_FENCE", "none", "fence_none", "warning"),
        ("OUTBOX__DURABILITY_FENCE", "sync", "fence_standbys", "error"),
        ("OUTBOX__RABBITMQ__ORDER", "pipelined", "order_pipelined", "warning"),
    ] {
        run(&bed.launch().env(variable, value)).await?.must_have(found, severity, value)?;
    }
    let superuser = bed.launch().database(bed.database.url());
    run(&superuser).await?.must_have("superuser", "warning", "postgres")
}

#[tokio::test]
async fn transactions_that_stay_open_are_found_where_they_can_be_seen() -> Result<()> {
    let bed = Bed::new().await?;
    bed.client.batch_execute(&format!("GRANT pg_read_all_stats TO {}", bed.login)).await?;
    let mut other = bed.database.client().await?;
    let open = other.transaction().await?;
    open.query("SELECT pg_current_xact_id()", &[]).await?;
    // Ten leases of half a second.
    let old = bed.launch().env("OUTBOX__LEASE__TTL_MS", "500");
    let age = "SELECT clock_timestamp() - min(xact_start) > interval '5.5 seconds' FROM pg_stat_activity \
               WHERE datname = current_database() AND pid <> pg_backend_pid()";
    let aged = || async { Ok(bed.client.query_one(age, &[]).await?.try_get::<_, bool>(0)?) };
    outbox_tests::wait::until_true("the transaction to age", SOON, aged).await?;
    run(&old).await?.must_have("old_transaction", "warning", "of postgres has been open for")?;
    open.rollback().await?;
    let said = run(&old).await?;
    assert!(!said.findings.contains_key("old_transaction") && !said.findings.contains_key("transactions_hidden"));
    Ok(())
}

/// Servers of the test's own, for what only a restart or another program changes.
#[tokio::test]
async fn fsync_a_standby_and_a_pooler_are_found() -> Result<()> {
    let wanted = [Service::Postgres, Service::Standby, Service::Pgbouncer];
    let own = OwnServices::start_with(&wanted, &[("POSTGRES_FSYNC", "off")]).await?;
    let rabbit = Rabbit::connect().await?;
    let mut client = database::connect(&own.address(Service::Postgres)?).await?;
    outbox_schema::migrate(&mut client, &outbox_schema::Options::default()).await?;
    client.batch_execute("ALTER SYSTEM SET full_page_writes = off").await?;
    client.query("SELECT pg_reload_conf()", &[]).await?;
    let launch = |url: &str| Launch::new(["check", "--output", "json"]).database(url).amqp(rabbit.url());
    let direct = run(&launch(&own.address(Service::Postgres)?)).await?;
    direct.must_have("fsync_off", "warning", "fsync is off")?;
    direct.must_have("full_page_writes_off", "warning", "off")?;
    assert!(!direct.findings.contains_key("pooler"));
    run(&launch(&own.address(Service::Pgbouncer)?)).await?.must_have("pooler", "note", "another connection")?;
    let lsn = "SELECT coalesce(bool_and(replay_lsn >= pg_current_wal_flush_lsn()), false) FROM pg_stat_replication";
    let replayed = || async { Ok(client.query_one(lsn, &[]).await?.try_get::<_, bool>(0)?) };
    outbox_tests::wait::until_true("the standby to have the schema", SOON, replayed).await?;
    run(&launch(&own.address(Service::Standby)?)).await?.must_have("standby", "error", "standby")
}

#[tokio::test]
async fn a_database_that_is_not_utf8_or_has_no_schema_is_found() -> Result<()> {
    let admin = database::connect(&services::database_url()?).await?;
    let name = format!("test_{}", fastrand::u64(..));
    let create = format!("CREATE DATABASE {name} ENCODING 'LATIN1' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'");
    admin.batch_execute(&create).await?;
    let rabbit = Rabbit::connect().await?;
    let url = Database::url_of(&services::database_url()?, &name)?;
    let said = run(&Launch::new(["check", "--output", "json"]).database(&url).amqp(rabbit.url())).await;
    admin.batch_execute(&format!("DROP DATABASE {name} WITH (FORCE)")).await?;
    let said = said?;
    said.must_have("encoding", "error", "LATIN1")?;
    said.must_have("schema_wrong", "error", "outbox-relay migrate")
}

fn route(sink: &str, rest: &str) -> String {
    format!("[[route]]\nmatch = \"x{}\"\nsink = \"{sink}\"\n{rest}\n", fastrand::u32(..))
}

#[tokio::test]
async fn addresses_at_both_brokers_are_asked_for() -> Result<()> {
    let Some(kafka) = Kafka::connect_or_skip("addresses_at_both_brokers_are_asked_for")? else { return Ok(()) };
    let bed = Bed::new().await?;
    let (compacted, plain, queue) = (kafka.unique("compacted"), kafka.unique("plain"), bed.rabbit.unique("queue"));
    kafka.create_topic(&compacted, 1, &[("cleanup.policy", "compact")]).await?;
    kafka.create_topic(&plain, 1, &[("max.message.bytes", "123456")]).await?;
    bed.rabbit.queue(&queue, QueueType::Classic, &[]).await?;
    let config = |routes: &[String]| {
        let last =
            "[[route]]\nmatch = \"*\"\nsink = \"rabbitmq\"\nexchange = \"amq.topic\"\nrouting_key = \"{topic}\"\n";
        bed.launch().kafka(kafka.brokers()).config(&format!("{}{last}", routes.concat()))
    };
    let topic = |name: &str| route("kafka", &format!("topic = \"{name}\""));
    let said = run(&config(&[topic(&plain)])).await?;
    said.must_have("topic_limit", "note", "123456")?;
    said.must_have("topic_min_insync", "note", "min.insync.replicas = 1")?;
    run(&config(&[topic(&compacted)])).await?.must_have("topic_compacted", "warning", &compacted)?;
    run(&config(&[topic("no-such-topic")])).await?.must_have("address_missing", "error", "no-such-topic")?;
    run(&config(&[topic("{header.to}")])).await?.must_have("address_templated", "note", "{header.to}")?;
    let by_queue = |queue: &str| route("rabbitmq", &format!("exchange = \"\"\nrouting_key = \"{queue}\""));
    run(&config(&[by_queue("no-such-queue")])).await?.must_have("address_missing", "error", "no-such-queue")?;
    run(&config(&[by_queue(&queue)])).await?.must_have("address", "ok", "exists")?;
    let away = config(&[topic(&plain)]).kafka("127.0.0.1:1").env("OUTBOX__CONFIRM__TIMEOUT_MS", "1000");
    run(&away).await?.must_have("address_unasked", "error", "could not be asked")
}

/// What no server here can be, or what cannot be made without changing the machine, is shown elsewhere.
const ELSEWHERE: [&str; 3] = ["server_too_old", "server_untested", "clock_skew"];

#[test]
fn every_finding_of_the_list_for_operators_has_a_test() {
    let root = services::workspace_root();
    let list = std::fs::read_to_string(root.join("relay/MESSAGES.md")).unwrap();
    let section = list.split("\n## ").find(|section| section.starts_with("What `check` finds")).unwrap();
    let names = section.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`')).map(|(name, _)| name);
    let names: Vec<&str> = names.collect();
    assert!(names.len() > 30, "{names:?}");
    let read = |file: &str| std::fs::read_to_string(root.join(file)).unwrap();
    let own = read("tests/e2e/check.rs") + &read("tests/e2e/plain_table/check.rs");
    let untested: Vec<&&str> =
        names.iter().filter(|name| !ELSEWHERE.contains(name) && !own.contains(&format!("\"{name}\""))).collect();
    assert!(untested.is_empty(), "{untested:?}");
}
