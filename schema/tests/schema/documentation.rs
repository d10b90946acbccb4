//! The SQL of the documentation runs as it stands, and answers what the documentation says.
//!
//! A statement ends with a line that ends in a semicolon. Behind it `-- → VALUE` is the first column of its only row,
//! and `-- → error CODE` its SQLSTATE.

use tokio_postgres::{Client, SimpleQueryMessage};

use crate::kit::{Database, sqlstate};

/// A statement and what must come of it.
#[derive(Debug, PartialEq)]
struct Statement {
    sql: String,
    expected: Option<String>,
}

/// All statements of the blocks that are marked `sql`, in order.
fn statements(markdown: &str) -> Vec<Statement> {
    let mut found = Vec::new();
    let mut within = false;
    let mut sql = String::new();
    for line in markdown.lines() {
        if line.starts_with("```") {
            assert!(sql.trim().is_empty(), "a block ends in the middle of: {sql}");
            within = line == "```sql";
            continue;
        }
        if !within {
            continue;
        }
        let (code, comment) = line.split_once("-- ").unwrap_or((line, ""));
        sql.push_str(code.trim_end());
        sql.push('\n');
        if code.trim_end().ends_with(';') {
            let expected = comment.strip_prefix("→ ").map(ToOwned::to_owned);
            found.push(Statement { sql: std::mem::take(&mut sql), expected });
        }
    }
    found
}

/// What psql would show of the first column of the only row.
async fn first_value(client: &Client, sql: &str) -> String {
    let messages = client.simple_query(sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    let rows: Vec<_> = messages
        .iter()
        .filter_map(|message| match message {
            SimpleQueryMessage::Row(row) => Some(row.get(0).unwrap_or("NULL").to_owned()),
            _ => None,
        })
        .collect();
    assert_eq!(rows.len(), 1, "{sql}");
    match rows[0].as_str() {
        "t" => "true".to_owned(),
        "f" => "false".to_owned(),
        other => other.to_owned(),
    }
}

async fn run(client: &Client, statement: &Statement) {
    let sql = statement.sql.as_str();
    match statement.expected.as_deref() {
        None => client.batch_execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}")),
        Some(expected) => match expected.strip_prefix("error ") {
            Some(code) => assert_eq!(sqlstate(client.batch_execute(sql).await), code, "{sql}"),
            None => assert_eq!(first_value(client, sql).await, expected, "{sql}"),
        },
    }
}

#[tokio::test]
async fn the_page_on_idempotency_runs_as_it_stands() {
    let db = Database::with_roles().await;
    let client = db.connect().await;
    client.batch_execute("RESET search_path").await.unwrap();
    let page = statements(include_str!("../../IDEMPOTENCY.md"));
    assert!(page.iter().filter(|statement| statement.expected.is_some()).count() > 10, "{page:?}");
    for statement in &page {
        run(&client, statement).await;
    }
}

#[tokio::test]
async fn the_readmes_run_as_they_stand() {
    let db = Database::with_roles().await;
    let client = db.connect().await;
    let orders = "RESET search_path; CREATE TABLE orders (id int, state text); INSERT INTO orders VALUES (481, 'new')";
    client.batch_execute(orders).await.unwrap();
    for readme in [include_str!("../../README.md"), include_str!("../../../README.md")] {
        // Each tells its story from the beginning, under the same keys.
        client.batch_execute("TRUNCATE outbox.message, inbox.processed").await.unwrap();
        let page = statements(readme);
        assert!(page.len() > 5, "{page:?}");
        for statement in &page {
            run(&client, statement).await;
        }
    }
}

#[test]
fn an_arrow_behind_a_statement_is_what_it_must_answer() {
    let page = "text;\n```sql\nSELECT 1\n  + 1;  -- → 2\nBEGIN;\n```\n```sh\npsql;\n```\n";
    let expected = [
        Statement { sql: "SELECT 1\n  + 1;\n".to_owned(), expected: Some("2".to_owned()) },
        Statement { sql: "BEGIN;\n".to_owned(), expected: None },
    ];
    assert_eq!(statements(page), expected);
}
