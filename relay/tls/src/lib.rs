//! What the adapters share of TLS: from PEM files to what a handshake needs, and words for what can be wrong with it.
//!
//! Guaranteed: files are read anew at each call; messages name a file and a setting, never what is in the file.
//! Deliberately absent: revocation lists, keys with a passphrase, and any way not to verify; an adapter that trusts
//! less than authority and name brings a verifier of its own.

mod expiry;
mod material;
mod problem;

use std::path::PathBuf;

pub use expiry::earliest_end;
pub use material::{builder, roots, shown_roots, with_identity};
pub use problem::TlsError;

/// The client's own certificate and its key, both in PEM form. They may be in one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

/// What messages call things, by the settings that an operator can change.
#[derive(Debug, PartialEq, Eq)]
pub struct Words {
    /// Who answers: "server", "broker".
    pub peer: &'static str,
    /// The setting that names the file of the authorities.
    pub roots: &'static str,
    /// The setting that names the client's certificate.
    pub certificate: &'static str,
    /// The setting that names its key.
    pub key: &'static str,
    /// Where the peer says whose client certificates it takes.
    pub peers_roots: &'static str,
}
