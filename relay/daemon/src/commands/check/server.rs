//! The server and this login's way into it.

use outbox_postgres::DurabilityFence;
use tokio_postgres::{Client, Row};

use super::finding::{
    CONNECTION_LIMIT, DAMAGE_IGNORED, ENCODING, FENCE_STANDBYS, FSYNC_OFF, FULL_PAGE_WRITES_OFF, Finding, READ_ONLY,
    SERVER, SERVER_TOO_OLD, SERVER_UNTESTED, STANDBY, STATEMENT_TIMEOUT, SUPERUSER, SYNCHRONOUS_COMMIT_OFF,
};
use crate::backlog::decoded;
use crate::database::answered;
use crate::exit::{Exit, Failure, Outcome};

/// A server that ends statements sooner than this interrupts claims of a large backlog.
const STATEMENT_TIMEOUT_MIN_MS: i64 = 10_000;

const SERVER_SQL: &str = "
    SELECT current_setting('server_version') AS version, current_setting('server_version_num')::int AS number,
           current_setting('server_encoding') AS encoding, pg_is_in_recovery() AS standby,
           current_setting('transaction_read_only')::bool AS read_only,
           current_setting('fsync')::bool AS fsync, current_setting('full_page_writes')::bool AS full_page_writes,
           current_setting('zero_damaged_pages')::bool AS zero_damaged_pages,
           current_setting('ignore_checksum_failure')::bool AS ignore_checksum_failure,
           current_setting('synchronous_commit') AS synchronous_commit,
           current_setting('synchronous_standby_names') AS standbys,
           (SELECT setting::int8 FROM pg_catalog.pg_settings WHERE name = 'statement_timeout') AS statement_timeout,
           current_user::text AS login, r.rolsuper AS superuser, r.rolconnlimit AS role_limit,
           (SELECT datconnlimit FROM pg_catalog.pg_database WHERE datname = current_database()) AS database_limit
      FROM pg_catalog.pg_roles AS r WHERE r.rolname = current_user";

struct Server {
    version: String,
    number: i32,
    encoding: String,
    standby: bool,
    read_only: bool,
    fsync: bool,
    full_page_writes: bool,
    zero_damaged_pages: bool,
    ignore_checksum_failure: bool,
    synchronous_commit: String,
    standbys: String,
    statement_timeout_ms: i64,
    login: String,
    superuser: bool,
    role_limit: i32,
    database_limit: i32,
}

impl Server {
    fn decode(row: &Row) -> Result<Self, tokio_postgres::Error> {
        Ok(Self {
            version: row.try_get("version")?,
            number: row.try_get("number")?,
            encoding: row.try_get("encoding")?,
            standby: row.try_get("standby")?,
            read_only: row.try_get("read_only")?,
            fsync: row.try_get("fsync")?,
            full_page_writes: row.try_get("full_page_writes")?,
            zero_damaged_pages: row.try_get("zero_damaged_pages")?,
            ignore_checksum_failure: row.try_get("ignore_checksum_failure")?,
            synchronous_commit: row.try_get("synchronous_commit")?,
            standbys: row.try_get("standbys")?,
            statement_timeout_ms: row.try_get("statement_timeout")?,
            login: row.try_get("login")?,
            superuser: row.try_get("superuser")?,
            role_limit: row.try_get("role_limit")?,
            database_limit: row.try_get("database_limit")?,
        })
    }
}

/// Asks the server for its version and settings.
pub async fn look(client: &Client, fence: DurabilityFence, connections: i32) -> Outcome<Vec<Finding>> {
    let what = "cannot look at the server";
    let rows = answered(what, client.query_typed(SERVER_SQL, &[])).await?;
    let server = decoded(&rows, Server::decode)?.into_iter().next();
    let server = server.ok_or_else(|| Failure::text(Exit::Failed, what))?;
    let mut findings = vec![version(&server)];
    findings.extend(kind_of_server(&server));
    findings.extend(durability(&server, fence));
    findings.extend(login(&server, connections));
    Ok(findings)
}

fn version(server: &Server) -> Finding {
    let detail = format!("PostgreSQL {}", server.version);
    match server.number / 10_000 {
        ..14 => SERVER_TOO_OLD.found(detail),
        14..=18 => SERVER.found(detail),
        _ => SERVER_UNTESTED.found(detail),
    }
}

fn kind_of_server(server: &Server) -> Vec<Finding> {
    let mut findings = Vec::new();
    if server.encoding != "UTF8" {
        findings.push(ENCODING.found(format!("the database has the encoding {}", server.encoding)));
    }
    if server.standby {
        findings.push(STANDBY.found("this server is a standby"));
    } else if server.read_only {
        findings.push(READ_ONLY.found("transactions are read-only"));
    }
    findings
}

fn durability(server: &Server, fence: DurabilityFence) -> Vec<Finding> {
    let mut findings = Vec::new();
    if !server.fsync {
        findings.push(FSYNC_OFF.found("fsync is off"));
    }
    if !server.full_page_writes {
        findings.push(FULL_PAGE_WRITES_OFF.found("full_page_writes is off"));
    }
    for (name, on) in
        [("zero_damaged_pages", server.zero_damaged_pages), ("ignore_checksum_failure", server.ignore_checksum_failure)]
    {
        if on {
            findings.push(DAMAGE_IGNORED.found(format!("{name} is on")));
        }
    }
    if server.synchronous_commit == "off" {
        findings.push(SYNCHRONOUS_COMMIT_OFF.found("synchronous_commit is off by default"));
    }
    if fence == DurabilityFence::Sync && server.standbys.is_empty() {
        findings.push(FENCE_STANDBYS.found("durability_fence is sync and synchronous_standby_names is empty"));
    }
    findings
}

fn login(server: &Server, connections: i32) -> Vec<Finding> {
    let mut findings = Vec::new();
    if server.superuser {
        findings.push(SUPERUSER.found(format!("{} is a superuser", server.login)));
    }
    let limited = |limit: i32| (0..connections).contains(&limit);
    if limited(server.role_limit) && !server.superuser {
        findings.push(CONNECTION_LIMIT.found(format!("{} may have {} connections", server.login, server.role_limit)));
    }
    if limited(server.database_limit) && !server.superuser {
        findings.push(CONNECTION_LIMIT.found(format!("the database takes {} connections", server.database_limit)));
    }
    if (1..STATEMENT_TIMEOUT_MIN_MS).contains(&server.statement_timeout_ms) {
        let ms = server.statement_timeout_ms;
        findings.push(STATEMENT_TIMEOUT.found(format!("statements of {} end after {ms} ms", server.login)));
    }
    findings
}
