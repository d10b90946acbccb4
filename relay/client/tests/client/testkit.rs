//! The test kit against consumers that are right, and against each kind of wrong one, which it must name.

use std::collections::HashSet;
use std::sync::Mutex;
use std::time::Duration;

use outbox_client::testkit::{Finding, Plan, Property, Subject, try_out};
use outbox_client::{BoxError, Inbox, Message};
use tokio_postgres::{Client, NoTls, Transaction};

use crate::kit::Database;

const EFFECTS: &str = "SELECT count(*) FROM effect WHERE id = $1";
const FORGET: &str = "DELETE FROM inbox.processed WHERE message_id = $1";

async fn database() -> Database {
    let database = Database::migrated().await;
    database
        .client()
        .await
        .batch_execute("CREATE TABLE effect (id text); CREATE TABLE once (id text PRIMARY KEY)")
        .await
        .unwrap();
    database
}

fn plan(database: &Database, rounds: u32) -> Plan {
    Plan {
        database_url: database.url(),
        effects: Some(EFFECTS.to_owned()),
        forget: None,
        rounds,
        patience: Duration::from_secs(30),
        message: Box::new(|n| Message { id: format!("m:{n}"), body: format!("{{\"n\": {n}}}").into_bytes() }),
    }
}

async fn connect(url: &str) -> Result<Client, BoxError> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(async move { drop(connection.await) });
    Ok(client)
}

async fn act(transaction: &Transaction<'_>, id: &str) -> Result<(), BoxError> {
    transaction.execute("INSERT INTO effect VALUES ($1)", &[&id]).await?;
    Ok(())
}

/// What the wrong ones break, and what the right ones do.
enum Consumer {
    /// Claim and work in one transaction.
    Right,
    /// The same, and the work looks at the current record.
    RightForEver,
    NoClaim,
    /// Looks, works a while, writes.
    CheckThenAct,
    /// The claim is committed before the work.
    ClaimFirst,
    /// The work is committed before the claim.
    WorkFirst,
    /// The claim's id is made of the body.
    IdOfBody,
}

impl Subject for Consumer {
    async fn deliver(&self, url: &str, message: &Message) -> Result<(), BoxError> {
        let mut client = connect(url).await?;
        let transaction = client.transaction().await?;
        let id = message.id.as_str();
        match self {
            Self::Right => {
                Inbox::process(&transaction, "c", message, async |transaction| act(transaction, id).await).await?;
            }
            Self::RightForEver => {
                let work = async |transaction: &Transaction<'_>| {
                    let new =
                        transaction.execute("INSERT INTO once VALUES ($1) ON CONFLICT DO NOTHING", &[&id]).await?;
                    if new == 1 { act(transaction, id).await } else { Ok(()) }
                };
                Inbox::process(&transaction, "c", message, work).await?;
            }
            Self::NoClaim => act(&transaction, id).await?,
            Self::CheckThenAct => {
                let look = "SELECT FROM effect WHERE id = $1";
                let done = transaction.query_opt(look, &[&id]).await?.is_some();
                transaction.batch_execute("SELECT pg_sleep(0.1)").await?;
                if !done {
                    act(&transaction, id).await?;
                }
            }
            Self::ClaimFirst => {
                let new = Inbox::claim(&transaction, "c", message).await?;
                transaction.commit().await?;
                let transaction = client.transaction().await?;
                if new {
                    act(&transaction, id).await?;
                }
                return Ok(transaction.commit().await?);
            }
            Self::WorkFirst => {
                let done = transaction.query_opt("SELECT FROM once WHERE id = $1", &[&id]).await?.is_some();
                if !done {
                    act(&transaction, id).await?;
                }
                transaction.commit().await?;
                let transaction = client.transaction().await?;
                transaction.execute("INSERT INTO once VALUES ($1) ON CONFLICT DO NOTHING", &[&id]).await?;
                return Ok(transaction.commit().await?);
            }
            Self::IdOfBody => {
                let made = Message { id: String::from_utf8(message.body.clone())?, body: message.body.clone() };
                Inbox::process(&transaction, "c", &made, async |transaction| act(transaction, id).await).await?;
            }
        }
        Ok(transaction.commit().await?)
    }
}

fn broken(findings: &[Finding]) -> Vec<Property> {
    findings.iter().filter(|finding| finding.broken.is_some()).map(|finding| finding.property).collect()
}

#[tokio::test]
async fn a_consumer_with_claim_and_work_in_one_transaction_holds_everything() {
    let database = database().await;
    let findings = try_out(&Consumer::Right, &plan(&database, 200), |_| ()).await.unwrap();
    assert_eq!(broken(&findings), [], "{findings:?}");
    assert_eq!(findings.len(), 6);
}

#[tokio::test]
async fn only_work_that_looks_at_the_current_record_survives_a_forgetful_inbox() {
    let database = database().await;
    let plan = Plan { forget: Some(FORGET.to_owned()), ..plan(&database, 1) };
    assert_eq!(broken(&try_out(&Consumer::Right, &plan, |_| ()).await.unwrap()), [Property::Forgotten]);
    let database = self::database().await;
    let plan = Plan { forget: Some(FORGET.to_owned()), ..self::plan(&database, 1) };
    assert_eq!(broken(&try_out(&Consumer::RightForEver, &plan, |_| ()).await.unwrap()), []);
}

/// Each wrong consumer, and the property that names its mistake.
#[tokio::test]
async fn each_wrong_consumer_is_told_what_it_breaks() {
    let cases = [
        (Consumer::NoClaim, Property::Twice),
        (Consumer::CheckThenAct, Property::AtOnce),
        (Consumer::ClaimFirst, Property::KilledAfter),
        (Consumer::WorkFirst, Property::KilledAfter),
        (Consumer::IdOfBody, Property::OtherBody),
    ];
    for (number, (consumer, property)) in cases.iter().enumerate() {
        let database = database().await;
        let findings = try_out(consumer, &plan(&database, 1), |_| ()).await.unwrap();
        assert!(broken(&findings).contains(property), "case {number}: {findings:?}");
        let sound = if *property == Property::Twice { Property::OtherBody } else { Property::Twice };
        assert!(*property == Property::Twice || !broken(&findings).contains(&sound), "case {number}: {findings:?}");
    }
}

/// One of two consumers of the same messages.
struct OfTwo {
    /// What it claims under.
    claims: &'static str,
    other: Option<Box<OfTwo>>,
}

impl OfTwo {
    fn with_other(claims: &'static str, others: &'static str) -> Self {
        Self { claims, other: Some(Box::new(Self { claims: others, other: None })) }
    }
}

impl Subject for OfTwo {
    async fn deliver(&self, url: &str, message: &Message) -> Result<(), BoxError> {
        let mut client = connect(url).await?;
        let transaction = client.transaction().await?;
        let work = async |transaction: &Transaction<'_>| act(transaction, &message.id).await;
        Inbox::process(&transaction, self.claims, message, work).await?;
        Ok(transaction.commit().await?)
    }

    fn other(&self) -> Option<&Self> {
        self.other.as_deref()
    }
}

#[tokio::test]
async fn two_consumers_each_do_their_work_once_where_the_inbox_tells_them_apart() {
    let database = database().await;
    let own_names = OfTwo::with_other("mailer", "bookkeeping");
    let findings = try_out(&own_names, &plan(&database, 1), |_| ()).await.unwrap();
    assert_eq!((broken(&findings), findings.len()), (vec![], 7), "{findings:?}");
    let database = self::database().await;
    let one_name = OfTwo::with_other("consumer", "consumer");
    let findings = try_out(&one_name, &plan(&database, 1), |_| ()).await.unwrap();
    assert_eq!(broken(&findings), [Property::TwoConsumers]);
    assert!(
        findings
            .iter()
            .any(|finding| finding.broken.as_ref().is_some_and(|broken| broken.contains("1 effects instead of 2"))),
        "{findings:?}"
    );
}

/// Calls another service within its transaction.
struct Caller {
    /// What that service took.
    calls: Mutex<Calls>,
    /// Whether it knows a call again by its key.
    has_keys: bool,
}

#[derive(Default)]
struct Calls {
    keys: HashSet<String>,
    taken: Vec<String>,
}

impl Subject for Caller {
    async fn deliver(&self, url: &str, message: &Message) -> Result<(), BoxError> {
        let mut client = connect(url).await?;
        let transaction = client.transaction().await?;
        let work = async |_: &Transaction<'_>| {
            let mut calls = self.calls.lock().map_err(|_| "poisoned")?;
            if calls.keys.insert(message.id.clone()) || !self.has_keys {
                calls.taken.push(message.id.clone());
            }
            Ok::<(), BoxError>(())
        };
        Inbox::process(&transaction, "c", message, work).await?;
        Ok(transaction.commit().await?)
    }

    async fn outside(&self, id: &str) -> Result<Option<i64>, BoxError> {
        let calls = self.calls.lock().map_err(|_| "poisoned")?;
        Ok(Some(i64::try_from(calls.taken.iter().filter(|taken| *taken == id).count())?))
    }
}

/// A call goes out before the commit, so a kill between the two repeats it: that shows only outside.
#[tokio::test]
async fn effects_outside_the_database_are_counted_where_the_consumer_says_how_many() {
    for (has_keys, expected) in [(true, vec![]), (false, vec![Property::KilledBefore, Property::KilledAfter])] {
        let database = database().await;
        let plan = Plan { effects: None, ..plan(&database, 1) };
        let caller = Caller { calls: Mutex::default(), has_keys };
        let findings = try_out(&caller, &plan, |_| ()).await.unwrap();
        assert_eq!(broken(&findings), expected, "{findings:?}");
        let named = findings.iter().any(|finding| {
            finding.broken.as_ref().is_some_and(|broken| broken.contains("2 effects outside the database"))
        });
        assert_eq!(named, !has_keys, "{findings:?}");
    }
}

#[tokio::test]
async fn without_a_count_of_effects_nothing_is_tried() {
    let database = database().await;
    let plan = Plan { effects: None, ..plan(&database, 1) };
    let error = try_out(&Consumer::Right, &plan, |_| ()).await.unwrap_err().to_string();
    assert!(error.contains("nothing counts the effects"), "{error}");
}

/// Takes another way than the one that it is given.
struct Aside(String);

impl Subject for Aside {
    async fn deliver(&self, _url: &str, message: &Message) -> Result<(), BoxError> {
        Consumer::Right.deliver(&self.0, message).await
    }
}

#[tokio::test]
async fn what_could_not_be_tried_does_not_hold() {
    let database = database().await;
    let aside = Aside(database.url());
    let findings = try_out(&aside, &plan(&database, 1), |_| ()).await.unwrap();
    assert_eq!(broken(&findings), [Property::KilledBefore, Property::KilledAfter]);
    let plan = Plan { effects: Some("SELECT 'one' WHERE $1 <> ''".to_owned()), ..plan(&database, 1) };
    let error = try_out(&aside, &plan, |_| ()).await.unwrap_err().to_string();
    assert!(error.contains("one row with one bigint"), "{error}");
}

/// `more`: options before the command, in place of the query for effects where they bring another count.
async fn tried(database: &Database, more: &[&str], script: &str) -> (Option<i32>, String) {
    let output = tokio::process::Command::new(env!("CARGO_BIN_EXE_outbox-try-consumer"))
        .args(["--database-url", &database.url(), "--rounds", "20"])
        .args(more)
        .args(["--", "sh", "-c", script])
        .output()
        .await
        .unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

const PSQL: &str = "psql -qtAX -v ON_ERROR_STOP=1 -v id=\"$MESSAGE_ID\" \"$DATABASE_URL\"";
const IN_DATABASE: &str = "INSERT INTO effect VALUES (:'id');";

/// A consumer for a shell that claims under this name.
fn right(name: &str, work: &str) -> String {
    format!(
        "body=$(cat; echo x); {PSQL} -v body=\"$body\" <<'SQL'\n\
         BEGIN;\nSELECT inbox.claim('{name}', :'id', sha256(convert_to(:'body', 'UTF8'))) AS new \\gset\n\\if :new\n\
         {work}\n\\endif\nCOMMIT;\nSQL"
    )
}

#[tokio::test]
async fn a_command_in_any_language_is_tried_out() {
    let database = database().await;
    let effects = ["--effects", EFFECTS];
    let (code, said) = tried(&database, &effects, &right("psql", IN_DATABASE)).await;
    assert_eq!((code, said.matches("held ").count()), (Some(0), 6), "{said}");
    let wrong = format!("cat >/dev/null; {PSQL} <<'SQL'\n{IN_DATABASE}\nSQL");
    let (code, said) = tried(&database, &effects, &wrong).await;
    assert_eq!(code, Some(1), "{said}");
    assert!(
        said.contains("BROKEN  a second delivery does nothing") && said.contains("2 effects instead of 1"),
        "{said}"
    );
    let (code, said) = tried(&database, &effects, "echo no such table >&2; exit 3").await;
    assert!(code == Some(1) && said.contains("no such table"), "{said}");
}

#[tokio::test]
async fn a_second_command_is_another_consumer() {
    let database = database().await;
    let broken = "BROKEN  two consumers of one message each do their work once";
    for (name, expected) in [("bookkeeping", 0), ("mailer", 1)] {
        let more = ["--effects", EFFECTS, "--other", &right(name, IN_DATABASE)];
        let (code, said) = tried(&database, &more, &right("mailer", IN_DATABASE)).await;
        assert_eq!((code, said.matches("BROKEN").count()), (Some(expected), expected as usize), "{said}");
        assert_eq!(said.contains(broken), name == "mailer", "{said}");
    }
}

#[tokio::test]
async fn a_command_tells_the_effects_outside_the_database() {
    let database = database().await;
    let folder = std::env::temp_dir().join(format!("calls-{}", uuid::Uuid::new_v4().simple()));
    std::fs::create_dir(&folder).unwrap();
    let calls = folder.display();
    // A file is made once, however often; a line more is another effect.
    let once = right("c", &format!("\\! touch \"{calls}/$MESSAGE_ID\""));
    let count = format!("find '{calls}' -name \"$MESSAGE_ID\" | wc -l");
    let (code, said) = tried(&database, &["--outside", &count], &once).await;
    assert_eq!((code, said.matches("held ").count()), (Some(0), 6), "{said}");
    let each_time = right("d", &format!("\\! echo \"$MESSAGE_ID\" >> \"{calls}/log\""));
    let count = format!("grep -cxF \"$MESSAGE_ID\" '{calls}/log' || true");
    let (code, said) = tried(&database, &["--outside", &count], &each_time).await;
    assert_eq!((code, said.matches("BROKEN").count()), (Some(1), 1), "{said}");
    // The call goes out before the COMMIT, so only a kill between them repeats it.
    assert!(said.contains("BROKEN  killed before any statement"), "{said}");
    assert!(said.contains("2 effects outside the database instead of 1"), "{said}");
    for (count, why) in [("echo many", "must print a number, not 'many'"), ("echo no log >&2; exit 1", "no log")] {
        let (code, said) = tried(&database, &["--outside", count], &once).await;
        assert!(code == Some(2) && said.contains(why), "{said}");
    }
    let (code, said) = tried(&database, &[], &once).await;
    assert!(code == Some(2) && said.contains("--effects"), "{said}");
    std::fs::remove_dir_all(&folder).unwrap();
}
