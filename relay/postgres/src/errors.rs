//! What an error of the database means for the session. The client's own text says only "db error", so the
//! server's message and SQLSTATE are taken out.

use outbox_core::SourceError;
use tokio_postgres::Error;
use tokio_postgres::error::SqlState;

use crate::tls::tls_problem;

/// Classifies an error of one statement.
pub(crate) fn classify(error: &Error) -> SourceError {
    let text = describe(error);
    let Some(database) = error.as_db_error() else { return SourceError::Lost(text) };
    let code = database.code();
    if [
        SqlState::LOCK_NOT_AVAILABLE,
        SqlState::T_R_DEADLOCK_DETECTED,
        SqlState::T_R_SERIALIZATION_FAILURE,
        SqlState::QUERY_CANCELED,
    ]
    .contains(code)
    {
        return SourceError::Again(text);
    }
    match code.code().get(..2) {
        // 25: read-only transaction. 28: credentials. 3D, 3F, 42: no such database, schema, table, or no right.
        Some("25" | "28" | "3D" | "3F" | "42" | "0A") => SourceError::Refused(text),
        _ => SourceError::Lost(text),
    }
}

/// Whether the server said this of a statement and keeps the connection; not when it shuts down, was asked to end the
/// session, or crashed.
pub(crate) fn is_confined(error: &Error) -> bool {
    error.as_db_error().is_some_and(|database| {
        let code = database.code();
        *code == SqlState::QUERY_CANCELED || !matches!(code.code().get(..2), Some("08" | "57" | "58"))
    })
}

/// Message and SQLSTATE, or what the client met; never parameters or rows.
pub(crate) fn describe(error: &Error) -> String {
    use std::error::Error as _;
    if let Some(problem) = tls_problem(error) {
        return problem.text;
    }
    match error.as_db_error() {
        Some(database) => format!("{} (SQLSTATE {})", database.message(), database.code().code()),
        None => match error.source() {
            Some(cause) => format!("{error}: {cause}"),
            None => error.to_string(),
        },
    }
}
