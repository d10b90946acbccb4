//! What `check` says of a source, and that its statements, run as they stand, make all well.

use anyhow::{Context, Result};
use outbox_tests::database::{self, Database};
use outbox_tests::rabbit::Rabbit;
use outbox_tests::relay::{Finished, Launch};
use outbox_tests::wait::SOON;
use serde_json::Value;
use tokio_postgres::Client;

/// A database with the roles, and a login of the relay that has no right to the application's table.
pub struct Login {
    pub database: Database,
    pub owner: Client,
    pub rabbit: Rabbit,
    pub name: String,
    pub url: String,
}

impl Login {
    pub async fn new(roles: &str) -> Result<Self> {
        let database = Database::migrated().await?;
        let owner = database.client().await?;
        let name = format!("Login {}", database.name());
        owner.batch_execute(outbox_schema::ROLES_SQL).await?;
        owner.batch_execute(&format!("CREATE ROLE \"{name}\" LOGIN PASSWORD 'outbox' IN ROLE {roles}")).await?;
        let encoded = name.replace(' ', "%20");
        let url = database.url().replace("postgres:outbox@", &format!("{encoded}:outbox@"));
        anyhow::ensure!(url.contains(&encoded), "the address has no user to replace");
        Ok(Self { database, owner, rabbit: Rabbit::connect().await?, name, url })
    }

    pub fn launch(&self, arguments: &[&str], config: &str) -> Launch {
        Launch::new(arguments.iter().copied()).database(&self.url).amqp(self.rabbit.url()).config(config)
    }

    /// Name, severity, detail and statements of what `check` finds about sources.
    async fn check(&self, config: &str) -> Result<(Option<i32>, Vec<Found>)> {
        let finished = self.launch(&["check", "--output", "json"], config).finish(SOON * 2).await?;
        let Finished { code, stdout, stderr } = finished;
        let all: Vec<Value> = serde_json::from_str(&stdout).with_context(|| format!("no JSON: {stdout}{stderr}"))?;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let found = all.iter().map(|finding| Found {
            name: text(&finding["name"]),
            severity: text(&finding["severity"]),
            detail: text(&finding["detail"]),
            statements: finding["statements"].as_array().into_iter().flatten().map(text).collect(),
        });
        let about = |found: &Found| found.name.starts_with("source") || found.detail.starts_with("invoices:");
        Ok((code, found.filter(about).collect()))
    }
}

impl Drop for Login {
    fn drop(&mut self) {
        let (url, name) = (self.database.url().to_owned(), self.name.clone());
        outbox_tests::cleanup::run("the test's login", async move {
            let client = database::connect(&url).await?;
            client.batch_execute(&format!("DROP OWNED BY \"{name}\"; DROP ROLE \"{name}\"")).await?;
            Ok(())
        });
    }
}

#[derive(Debug)]
struct Found {
    name: String,
    severity: String,
    detail: String,
    statements: Vec<String>,
}

fn names(found: &[Found]) -> Vec<(&str, &str)> {
    found.iter().map(|found| (found.name.as_str(), found.severity.as_str())).collect()
}

/// Reserved words, upper case, blanks and quotes, in every place that a name can stand.
const HOSTILE_TABLE: &str = r#"CREATE SCHEMA "My ""Shop""";
    CREATE TABLE "My ""Shop"""."select" ("Id" bigint PRIMARY KEY, "order" timestamptz, "kind of ""it""" text,
                                         "it's" text, "user" text, "h""h" jsonb)"#;

pub const HOSTILE: &str = r#"
[[source]]
name = "invoices"
table = '"My ""Shop"""."select"'
id = "Id"
order = "order"
message_id = "\\it's:{kind of \"it\"}:{it's}"
topic = "{user}"
ordering_key = "{it's}"
body = ["kind of \"it\"", "it's", "user"]
headers = 'h"h'
mark_column = "Taken \"At\""
poll_ms = 20
"#;

#[tokio::test]
async fn the_statements_that_check_proposes_make_check_green() -> Result<()> {
    let login = Login::new("outbox_relay").await?;
    login.owner.batch_execute(HOSTILE_TABLE).await?;
    let (code, found) = login.check(HOSTILE).await?;
    assert_eq!(code, Some(1), "{found:#?}");
    let expected = [("source_mark_missing", "error"), ("source_privileges", "error"), ("source_index", "warning")];
    assert_eq!(names(&found), expected, "{found:#?}");
    assert!(found[1].detail.contains("INSERT on outbox.message"), "{found:#?}");
    let text = login.launch(&["check"], HOSTILE).finish(SOON * 2).await?.stdout;
    for statement in found.iter().flat_map(|found| &found.statements) {
        assert!(text.lines().any(|line| line.trim() == statement), "{statement} is not in\n{text}");
        login.owner.batch_execute(statement).await.with_context(|| statement.clone())?;
    }
    let (code, found) = login.check(HOSTILE).await?;
    assert_eq!(names(&found), [("source", "ok")], "{found:#?}");
    assert_eq!(code, Some(0));

    // An index that a cancelled CREATE INDEX CONCURRENTLY left behind is named and replaced.
    let broken =
        "UPDATE pg_index SET indisvalid = false WHERE indexrelid = '\"My \"\"Shop\"\"\".select_untaken'::regclass";
    login.owner.batch_execute(broken).await?;
    let (_, found) = login.check(HOSTILE).await?;
    assert_eq!(names(&found), [("source_index", "warning")], "{found:#?}");
    assert_eq!(found[0].statements.len(), 2);
    for statement in &found[0].statements {
        login.owner.batch_execute(statement).await.with_context(|| statement.clone())?;
    }
    assert_eq!(names(&login.check(HOSTILE).await?.1), [("source", "ok")]);
    Ok(())
}

const PLAIN: &str = r#"
[[source]]
name = "invoices"
table = "public.outbox"
message_id = "{kind}:{ref}"
topic = "{kind}"
payload = "body"
mark_column = "taken_at"
"#;

#[tokio::test]
async fn check_says_where_table_and_source_disagree() -> Result<()> {
    let login = Login::new("outbox_relay, outbox_source").await?;
    let sql = async |sql: &str| login.owner.batch_execute(sql).await.with_context(|| sql.to_owned());
    let expect = async |name: &str, severity: &str, word: &str| -> Result<()> {
        let (_, found) = login.check(PLAIN).await?;
        let is_it = |found: &&Found| found.name == name && found.severity == severity && found.detail.contains(word);
        anyhow::ensure!(found.iter().any(|found| is_it(&found)), "no {name} with {word}: {found:#?}");
        Ok(())
    };
    expect("source_table", "error", "there is no table \"public\".\"outbox\"").await?;
    sql("CREATE VIEW outbox AS SELECT 1 AS id").await?;
    expect("source_table", "error", "is no table").await?;
    sql("DROP VIEW outbox; CREATE TABLE outbox (id numeric, kind text, ref text, body bytea, taken_at timestamp NOT NULL)")
        .await?;
    expect("source_table", "error", "\"id\" of type numeric").await?;
    expect("source_table", "error", "NOT NULL with a unique index of its own").await?;
    expect("source_table", "error", "\"taken_at\" of type timestamp without time zone").await?;
    expect("source_table", "error", "nullable").await?;
    expect("source_table", "error", "\"body\" of type bytea").await?;
    expect(
        "source_privileges",
        "error",
        "SELECT (\"body\", \"id\", \"kind\", \"ref\", \"taken_at\"), UPDATE (\"taken_at\")",
    )
    .await?;
    sql("DROP TABLE outbox; CREATE TABLE outbox (id bigint PRIMARY KEY, kind text, body text, taken_at timestamptz)")
        .await?;
    expect("source_table", "error", "no column \"ref\"").await?;
    let run = login.launch(&["run", "--admin-listen", "off"], PLAIN).finish(SOON).await?;
    assert_eq!(run.code, Some(78), "{}", run.stderr);
    assert!(run.stderr.contains("source invoices: \"public\".\"outbox\" has no column \"ref\""), "{}", run.stderr);
    sql(&format!(
        "ALTER TABLE outbox ADD COLUMN ref text; CREATE INDEX outbox_untaken ON outbox (kind) WHERE taken_at IS NULL; \
         GRANT SELECT, UPDATE ON outbox TO \"{}\"",
        login.name
    ))
    .await?;
    expect("source_index", "warning", "no valid index").await?;
    let (_, found) = login.check(PLAIN).await?;
    assert!(found[0].statements[0].contains("CONCURRENTLY \"outbox_untaken_2\""), "{found:#?}");
    sql("CREATE INDEX ON outbox (id, kind) WHERE taken_at IS NULL; ALTER TABLE outbox ENABLE ROW LEVEL SECURITY")
        .await?;
    expect("row_security", "error", "\"public\".\"outbox\"").await?;
    sql("ALTER TABLE outbox DISABLE ROW LEVEL SECURITY; CREATE RULE r AS ON UPDATE TO outbox DO ALSO NOTHING").await?;
    expect("rewrite_rule", "error", "the rule r").await?;
    sql("DROP RULE r ON outbox; CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NEW; END $$; \
         CREATE TRIGGER t BEFORE UPDATE ON outbox FOR EACH ROW EXECUTE FUNCTION f()")
    .await?;
    expect("update_trigger", "warning", "the trigger t").await?;
    sql("DROP TRIGGER t ON outbox").await?;
    expect("source", "ok", "as it must be").await
}

#[tokio::test]
async fn migrate_adds_the_mark_where_it_may_and_only_there() -> Result<()> {
    let database = Database::migrated().await?;
    let client = database.client().await?;
    client.batch_execute("CREATE TABLE outbox (id bigint PRIMARY KEY, kind text, ref text, body text)").await?;
    let migrate = |config: String| {
        let launch = Launch::new(["migrate"]).database(database.url()).config(&config);
        async move { launch.finish(SOON).await }
    };
    let count = "SELECT count(*) FROM pg_attribute WHERE attrelid = 'outbox'::regclass AND attname = 'taken_at'";
    let finished = migrate(PLAIN.to_owned()).await?;
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    assert_eq!(client.query_one(count, &[]).await?.get::<_, i64>(0), 0, "{}", finished.stdout);
    let adding = format!("{PLAIN}mark_add = true\n");
    let finished = migrate(adding.clone()).await?;
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    assert!(finished.stdout.contains("added the column for the mark to \"public\".\"outbox\""), "{}", finished.stdout);
    assert_eq!(client.query_one(count, &[]).await?.get::<_, i64>(0), 1);
    let again = migrate(adding).await?;
    assert!(again.code == Some(0) && !again.stdout.contains("added"), "{}{}", again.stdout, again.stderr);
    Ok(())
}
