//! The test kit against consumers that are right, and against each kind of wrong one, which it must name.

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
        effects: EFFECTS.to_owned(),
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
    let plan = Plan { effects: "SELECT 'one' WHERE $1 <> ''".to_owned(), ..plan(&database, 1) };
    let error = try_out(&aside, &plan, |_| ()).await.unwrap_err().to_string();
    assert!(error.contains("one row with one bigint"), "{error}");
}

async fn tried(database: &Database, script: &str) -> (Option<i32>, String) {
    let output = tokio::process::Command::new(env!("CARGO_BIN_EXE_outbox-try-consumer"))
        .args(["--database-url", &database.url(), "--effects", EFFECTS, "--rounds", "20", "--", "sh", "-c", script])
        .output()
        .await
        .unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

#[tokio::test]
async fn a_command_in_any_language_is_tried_out() {
    let database = database().await;
    let psql = "psql -qtAX -v ON_ERROR_STOP=1 -v id=\"$MESSAGE_ID\" \"$DATABASE_URL\"";
    let right = format!(
        "body=$(cat; echo x); {psql} -v body=\"$body\" <<'SQL'\n\
         BEGIN;\nSELECT inbox.claim('psql', :'id', sha256(convert_to(:'body', 'UTF8'))) AS new \\gset\n\\if :new\n\
         INSERT INTO effect VALUES (:'id');\n\\endif\nCOMMIT;\nSQL"
    );
    let (code, said) = tried(&database, &right).await;
    assert_eq!((code, said.matches("held ").count()), (Some(0), 6), "{said}");
    let wrong = format!("cat >/dev/null; {psql} <<'SQL'\nINSERT INTO effect VALUES (:'id');\nSQL");
    let (code, said) = tried(&database, &wrong).await;
    assert_eq!(code, Some(1), "{said}");
    assert!(
        said.contains("BROKEN  a second delivery does nothing") && said.contains("2 effects instead of 1"),
        "{said}"
    );
    let (code, said) = tried(&database, "echo no such table >&2; exit 3").await;
    assert!(code == Some(1) && said.contains("no such table"), "{said}");
}
