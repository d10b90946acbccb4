//! From files to what a handshake needs. Reading them may take a while: call it where that stops nobody.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::sync::Arc;

use rustls::client::WantsClientCert;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, ConfigBuilder, RootCertStore, WantsVerifier};

use crate::{Identity, TlsError, Words};

/// All certificate authorities of the world fit into a quarter of it.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The beginning of a client's configuration, with the cryptography for a verifier of one's own.
///
/// # Errors
/// When the cryptography lacks the protocol's versions, which only a mistake in the build can bring about.
pub fn builder() -> Result<(ConfigBuilder<ClientConfig, WantsVerifier>, Arc<CryptoProvider>), TlsError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| TlsError::Broken { detail: error.to_string() })?;
    Ok((builder, provider))
}

/// The authorities of a file; `None`: the system's.
///
/// # Errors
/// What is wrong with the file, or that the system has none.
pub fn roots(path: Option<&Path>, words: &'static Words) -> Result<RootCertStore, TlsError> {
    let Some(path) = path else { return system_roots(words) };
    let mut roots = RootCertStore::empty();
    for certificate in certificates_of(words.roots, path)? {
        let unusable = |_| unusable(words.roots, path, "has a certificate that cannot be used as an authority");
        roots.add(certificate).map_err(unusable)?;
    }
    Ok(roots)
}

/// The place of the trusted authorities, for messages.
#[must_use]
pub fn shown_roots(path: Option<&Path>, words: &'static Words) -> String {
    path.map_or_else(|| "the system's trust store".to_owned(), |path| format!("{} '{}'", words.roots, path.display()))
}

/// Ends a client's configuration with its own certificate, if it has one.
///
/// # Errors
/// What is wrong with its files.
pub fn with_identity(
    builder: ConfigBuilder<ClientConfig, WantsClientCert>,
    identity: Option<&Identity>,
    words: &'static Words,
) -> Result<ClientConfig, TlsError> {
    let Some(identity) = identity else { return Ok(builder.with_no_client_auth()) };
    let chain = certificates_of(words.certificate, &identity.certificate)?;
    let key = key_of(words.key, &identity.key)?;
    builder.with_client_auth_cert(chain, key).map_err(|error| misfit(identity, &error, words))
}

fn system_roots(words: &'static Words) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    // A store has some that nobody can read; the others count.
    let (usable, _) = roots.add_parsable_certificates(found.certs);
    if usable == 0 { Err(TlsError::NoSystemRoots { words }) } else { Ok(roots) }
}

pub(crate) fn certificates_of(what: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let text = read(what, path)?;
    // The parser's own words may quote a line of the file.
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    let certificates = certificates.map_err(|_| unusable(what, path, "is damaged: not all of it is PEM"))?;
    if certificates.is_empty() {
        return Err(unusable(what, path, "has no certificate in PEM form"));
    }
    Ok(certificates)
}

fn key_of(what: &'static str, path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    let text = read(what, path)?;
    let missing = |_| unusable(what, path, "has no private key in PEM form without a passphrase");
    PrivateKeyDer::from_pem_slice(&text).map_err(missing)
}

fn read(what: &'static str, path: &Path) -> Result<Vec<u8>, TlsError> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes));
    match read {
        Err(error) => Err(unusable(what, path, &format!("cannot be read: {error}"))),
        Ok(read) if read as u64 > FILE_BYTES_MAX => Err(unusable(what, path, "is too large to be what is meant")),
        Ok(_) => Ok(bytes),
    }
}

pub(crate) fn unusable(what: &'static str, path: &Path, problem: &str) -> TlsError {
    TlsError::File { what, path: path.display().to_string(), problem: problem.to_owned() }
}

fn misfit(identity: &Identity, error: &rustls::Error, words: &'static Words) -> TlsError {
    match error {
        rustls::Error::InconsistentKeys(_) => {
            let problem = format!("does not belong to {} '{}'", words.certificate, identity.certificate.display());
            unusable(words.key, &identity.key, &problem)
        }
        other => unusable(words.key, &identity.key, &format!("cannot be used: {other}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORDS: Words =
        Words { peer: "peer", roots: "ROOTS", certificate: "CERTIFICATE", key: "KEY", peers_roots: "its roots" };

    #[test]
    fn files_are_named_and_not_quoted() {
        let folder = std::env::temp_dir().join(format!("outbox-tls-{}", uuid::Uuid::new_v4().simple()));
        std::fs::create_dir(&folder).unwrap();
        let path = |name: &str| folder.join(name);
        std::fs::write(path("empty"), "").unwrap();
        std::fs::write(path("secret"), "-----BEGIN hunter2\nhunter2\n").unwrap();
        let said = |name: &str| roots(Some(&path(name)), &WORDS).map(|_| ()).unwrap_err().to_string();
        assert!(said("none").contains("none' cannot be read: No such file"), "{}", said("none"));
        assert!(said("empty").ends_with("empty' has no certificate in PEM form"));
        assert!(said("secret").contains("secret' is damaged"), "{}", said("secret"));
        for file in ["none", "empty", "secret"] {
            let error = key_of("KEY", &path(file)).unwrap_err().to_string();
            assert!(error.starts_with("KEY '") && !error.contains("hunter2"), "{error}");
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
