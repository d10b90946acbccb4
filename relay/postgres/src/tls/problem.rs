//! What can be wrong with TLS, in words that say what to do.

use std::error::Error as StdError;
use std::io;

use rustls::CertificateError;

/// What was wrong with one handshake or the files for it. No part of a file is in it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TlsError {
    #[error("{what} '{path}' {problem}")]
    File { what: &'static str, path: String, problem: String },
    #[error("the system has no certificate authorities; install ca-certificates, or name a file with sslrootcert")]
    NoSystemRoots,
    #[error(
        "the server's certificate is not trusted: no authority in {roots} signed it; name the authority's file with \
         sslrootcert"
    )]
    Untrusted { roots: String },
    #[error(
        "the server's certificate is for {presented} and not for '{host}'; dial a name that it has, or give the server \
         a certificate with this one as subjectAltName"
    )]
    WrongName { presented: String, host: String },
    #[error("the server's certificate has expired; give the server a new one, or set this machine's clock")]
    Expired,
    #[error("the server's certificate is not valid yet; set the clock of this machine or of whoever signs")]
    NotYet,
    #[error("the server's certificate cannot be used: {detail}")]
    Certificate { detail: String },
    #[error(
        "the server refuses the client certificate ({detail}); check sslcert and sslkey, and the server's ssl_ca_file"
    )]
    Refused { detail: String },
    #[error("'{host}' cannot be the name of a host in a certificate")]
    Host { host: String },
    #[error("the TLS handshake broke off: {detail}")]
    Broken { detail: String },
}

impl TlsError {
    pub(super) fn of_handshake(error: &io::Error, host: &str, roots: &str) -> Self {
        if error.kind() == io::ErrorKind::InvalidInput {
            return Self::Host { host: host.to_owned() };
        }
        let certificate = match of_rustls(error) {
            Some(rustls::Error::InvalidCertificate(certificate)) => certificate,
            Some(rustls::Error::AlertReceived(alert)) => return Self::Refused { detail: format!("{alert:?}") },
            Some(other) => return Self::Broken { detail: other.to_string() },
            None => return Self::Broken { detail: error.to_string() },
        };
        match certificate {
            CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                Self::Untrusted { roots: roots.to_owned() }
            }
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => Self::Expired,
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => Self::NotYet,
            CertificateError::NotValidForNameContext { presented, .. } if !presented.is_empty() => {
                Self::WrongName { presented: presented.join(", "), host: host.to_owned() }
            }
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                Self::WrongName { presented: "no host at all".to_owned(), host: host.to_owned() }
            }
            other => Self::Certificate { detail: other.to_string() },
        }
    }

    /// Whether it stays until somebody does something.
    fn lasts(&self) -> bool {
        !matches!(self, Self::Broken { .. })
    }
}

/// What TLS has to do with an error of the driver.
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
    if let Some(rustls::Error::AlertReceived(alert)) = cause.downcast_ref::<io::Error>().and_then(of_rustls) {
        let problem = TlsError::Refused { detail: format!("{alert:?}") };
        return Some(TlsProblem { text: problem.to_string(), lasts: true });
    }
    // The driver's own word for a server that answers the question for TLS with no; it has no type.
    (cause.to_string() == "server does not support TLS").then(|| TlsProblem {
        text: "the server does not speak TLS; switch it on there (ssl = on), or write sslmode=disable where the \
               network is trusted"
            .to_owned(),
        lasts: true,
    })
}

fn of_rustls(error: &io::Error) -> Option<&rustls::Error> {
    error.get_ref().and_then(|inner| (inner as &(dyn StdError + 'static)).downcast_ref())
}
