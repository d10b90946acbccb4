//! What goes on right now: clocks, old transactions, and whether a pooler stands between.

use tokio_postgres::types::{FromSqlOwned, Type};
use tokio_postgres::{Client, Row};

use super::finding::{CLOCK_SKEW, Finding, OLD_TRANSACTION, POOLER, TRANSACTIONS_HIDDEN};
use crate::backlog::decoded;
use crate::config::Database;
use crate::database::{answered, connect};
use crate::exit::{Exit, Failure, Outcome};
use crate::metrics::wall_clock_seconds;
use crate::output::seconds;

/// Clocks that differ by less are as good as equal.
const SKEW_MAX_S: f64 = 1.0;
/// A transaction that is older than so many leases is old: 100 s by default.
const OLD_LEASES: u64 = 10;

const CLOCK_SQL: &str = "SELECT extract(epoch FROM clock_timestamp())::float8";
const BACKEND_SQL: &str = "SELECT pg_backend_pid()";

// Transactions that wrote something hold back what claims may pass; the others hold back vacuum.
const OLD_SQL: &str = "
    SELECT what, age FROM (
        SELECT 'session ' || pid || ' of ' || coalesce(usename, '?') AS what,
               extract(epoch FROM clock_timestamp() - xact_start)::float8 AS age
          FROM pg_stat_activity
         WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
        UNION ALL
        SELECT 'prepared transaction ' || quote_literal(gid), extract(epoch FROM clock_timestamp() - prepared)::float8
          FROM pg_prepared_xacts WHERE database = current_database()) AS open
     WHERE age > $1 ORDER BY age DESC LIMIT 5";
const MAY_SEE_SQL: &str = "SELECT pg_has_role('pg_read_all_stats', 'USAGE')";

/// Looks at clocks, transactions and the way to the server.
pub async fn look(client: &Client, database: &Database, lease_ttl_ms: u64) -> Outcome<Vec<Finding>> {
    let mut findings = Vec::new();
    findings.extend(clock(client).await?);
    if one::<bool>(client, "cannot look at this login", MAY_SEE_SQL).await? {
        findings.extend(old_transactions(client, lease_ttl_ms).await?);
    } else {
        findings.push(TRANSACTIONS_HIDDEN.found("the transactions of other logins cannot be seen"));
    }
    findings.extend(pooler(client, database).await?);
    Ok(findings)
}

async fn one<T: FromSqlOwned>(client: &Client, what: &'static str, sql: &str) -> Outcome<T> {
    let rows = answered(what, client.query_typed(sql, &[])).await?;
    decoded(&rows, |row| row.try_get(0))?.into_iter().next().ok_or_else(|| Failure::text(Exit::Failed, what))
}

async fn clock(client: &Client) -> Outcome<Option<Finding>> {
    let before = wall_clock_seconds();
    let theirs = one::<f64>(client, "cannot ask for the time", CLOCK_SQL).await?;
    Ok(skew(before, theirs, wall_clock_seconds()).map(|detail| CLOCK_SKEW.found(detail)))
}

/// The answer was made somewhere between our two looks, so only what lies outside of them is a difference.
fn skew(before: f64, theirs: f64, after: f64) -> Option<String> {
    let (behind, ahead) = (before - theirs, theirs - after);
    if ahead > SKEW_MAX_S {
        Some(format!("the database's clock is {} ahead of this machine's", seconds(ahead)))
    } else if behind > SKEW_MAX_S {
        Some(format!("the database's clock is {} behind this machine's", seconds(behind)))
    } else {
        None
    }
}

async fn old_transactions(client: &Client, lease_ttl_ms: u64) -> Outcome<Vec<Finding>> {
    #[expect(clippy::cast_precision_loss, reason = "a lease is no longer than an hour")]
    let bound_s = (lease_ttl_ms * OLD_LEASES) as f64 / 1_000.0;
    let what = "cannot look at transactions";
    let rows = answered(what, client.query_typed(OLD_SQL, &[(&bound_s, Type::FLOAT8)])).await?;
    let old = decoded(&rows, |row: &Row| Ok((row.try_get::<_, String>(0)?, row.try_get::<_, f64>(1)?)))?;
    let found =
        |(what, age): (String, f64)| OLD_TRANSACTION.found(format!("{what} has been open for {}", seconds(age)));
    Ok(old.into_iter().map(found).collect())
}

/// While one client holds a transaction open, a second one keeps the backend that it had, unless backends change
/// hands.
async fn pooler(client: &Client, database: &Database) -> Outcome<Option<Finding>> {
    let what = "cannot look at the way to the server";
    let mut other = connect(database).await?;
    let mine = one::<i32>(client, what, BACKEND_SQL).await?;
    let holding = answered(what, other.transaction()).await?;
    let rows = answered(what, holding.query_typed(BACKEND_SQL, &[])).await?;
    let theirs = decoded(&rows, |row| row.try_get::<_, i32>(0))?.first().copied();
    // With a pool of one the next question would wait for the transaction.
    let pooled = theirs == Some(mine) || one::<i32>(client, what, BACKEND_SQL).await? != mine;
    answered(what, holding.rollback()).await?;
    Ok(pooled.then(|| POOLER.found("a pooler gives each transaction another connection to the server")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_round_trip_cannot_explain_is_a_difference_of_clocks() {
        assert_eq!(skew(100.0, 100.5, 101.0), None);
        assert_eq!(skew(100.0, 103.0, 105.0), None, "a slow answer");
        assert_eq!(skew(100.0, 102.0, 101.0), None, "a second is nothing");
        let ahead = skew(100.0, 190.0, 100.1).unwrap();
        assert_eq!(ahead, "the database's clock is 1 min 29 s ahead of this machine's");
        let behind = skew(100.0, 97.5, 100.1).unwrap();
        assert_eq!(behind, "the database's clock is 2.5 s behind this machine's");
    }
}
