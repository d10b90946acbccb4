//! What can be wrong with TLS, in words that say what to do.

use std::error::Error as StdError;
use std::io;

use rustls::{AlertDescription, CertificateError};

use crate::Words;

/// What was wrong with one handshake or the files for it. No part of a file is in it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TlsError {
    #[error("{what} '{path}' {problem}")]
    File { what: &'static str, path: String, problem: String },
    #[error("the system has no certificate authorities; install ca-certificates, or name a file with {}", .words.roots)]
    NoSystemRoots { words: &'static Words },
    #[error(
        "the {}'s certificate is not trusted: no authority in {roots} signed it; name the authority's file with {}",
        .words.peer, .words.roots
    )]
    Untrusted { roots: String, words: &'static Words },
    #[error(
        "the {}'s certificate is for {presented} and not for '{host}'; dial a name that it has, or give the {} a \
         certificate with this one as subjectAltName",
        .words.peer, .words.peer
    )]
    WrongName { presented: String, host: String, words: &'static Words },
    #[error("the {}'s certificate has expired; give the {} a new one, or set this machine's clock", .words.peer, .words.peer)]
    Expired { words: &'static Words },
    #[error("the {}'s certificate is not valid yet; set the clock of this machine or of whoever signs", .words.peer)]
    NotYet { words: &'static Words },
    #[error("the {}'s certificate cannot be used: {detail}", .words.peer)]
    Certificate { detail: String, words: &'static Words },
    #[error("the {} demands a client certificate; name one with {} and {}", .words.peer, .words.certificate, .words.key)]
    Demanded { words: &'static Words },
    #[error(
        "the {} refuses the client certificate ({detail}); check {} and {}, and {}",
        .words.peer, .words.certificate, .words.key, .words.peers_roots
    )]
    Refused { detail: String, words: &'static Words },
    #[error("'{host}' cannot be the name of a host in a certificate")]
    Host { host: String },
    #[error("the TLS handshake broke off: {detail}")]
    Broken { detail: String },
}

impl TlsError {
    /// What a failed handshake with `host` says; `roots` as [`crate::shown_roots`] has it.
    #[must_use]
    pub fn of_handshake(error: &io::Error, host: &str, roots: &str, words: &'static Words) -> Self {
        if error.kind() == io::ErrorKind::InvalidInput {
            return Self::Host { host: host.to_owned() };
        }
        let certificate = match of_rustls(error) {
            Some(rustls::Error::InvalidCertificate(certificate)) => certificate,
            Some(rustls::Error::AlertReceived(alert)) => return Self::of_alert(*alert, words),
            Some(other) => return Self::Broken { detail: other.to_string() },
            None => return Self::Broken { detail: error.to_string() },
        };
        match certificate {
            CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                Self::Untrusted { roots: roots.to_owned(), words }
            }
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => Self::Expired { words },
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => Self::NotYet { words },
            CertificateError::NotValidForNameContext { presented, .. } if !presented.is_empty() => {
                Self::WrongName { presented: presented.join(", "), host: host.to_owned(), words }
            }
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                Self::WrongName { presented: "no host at all".to_owned(), host: host.to_owned(), words }
            }
            other => Self::Certificate { detail: other.to_string(), words },
        }
    }

    /// What an error on an open connection says of TLS: with TLS 1.3 a peer reads the client's certificate after the
    /// handshake. `None`: it is not about TLS.
    #[must_use]
    pub fn of_alert_in(error: &io::Error, words: &'static Words) -> Option<Self> {
        match of_rustls(error)? {
            rustls::Error::AlertReceived(alert) => Some(Self::of_alert(*alert, words)),
            _ => None,
        }
    }

    fn of_alert(alert: AlertDescription, words: &'static Words) -> Self {
        let detail = match alert {
            AlertDescription::CertificateRequired => return Self::Demanded { words },
            AlertDescription::UnknownCA => "it trusts no authority that signed it: UnknownCA".to_owned(),
            AlertDescription::CertificateExpired => "it has expired: CertificateExpired".to_owned(),
            other => format!("{other:?}"),
        };
        Self::Refused { detail, words }
    }

    /// Whether it stays until somebody does something.
    #[must_use]
    pub fn lasts(&self) -> bool {
        !matches!(self, Self::Broken { .. })
    }
}

fn of_rustls(error: &io::Error) -> Option<&rustls::Error> {
    error.get_ref().and_then(|inner| (inner as &(dyn StdError + 'static)).downcast_ref())
}
