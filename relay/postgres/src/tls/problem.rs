//! What TLS has to do with an error of the driver.

use std::error::Error as _;
use std::io;

use outbox_tls::TlsError;

use super::material::WORDS;

/// What is wrong with TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsProblem {
    pub text: String,
    /// Whether somebody must do something; else trying again may help.
    pub lasts: bool,
}

/// `None`: the error is not about TLS.
#[must_use]
pub fn tls_problem(error: &tokio_postgres::Error) -> Option<TlsProblem> {
    let cause = error.source()?;
    if let Some(problem) = cause.downcast_ref::<TlsError>() {
        return Some(TlsProblem { text: problem.to_string(), lasts: problem.lasts() });
    }
    // With TLS 1.3 a server reads the client's certificate after the handshake.
    if let Some(problem) = cause.downcast_ref::<io::Error>().and_then(|error| TlsError::of_alert_in(error, &WORDS)) {
        return Some(TlsProblem { text: problem.to_string(), lasts: problem.lasts() });
    }
    // The driver's own word for a server that answers the question for TLS with no; it has no type.
    (cause.to_string() == "server does not support TLS").then(|| TlsProblem {
        text: "the server does not speak TLS; switch it on there (ssl = on), or write sslmode=disable where the \
               network is trusted"
            .to_owned(),
        lasts: true,
    })
}
