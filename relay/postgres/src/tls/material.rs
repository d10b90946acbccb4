//! From files to what a handshake needs. Messages name a file and never what is in it.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::sync::Arc;

use rustls::client::danger::ServerCertVerifier;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

use super::problem::TlsError;
use super::verifier::Lenient;
use super::{Identity, Tls, Trust};

/// All certificate authorities of the world fit into a quarter of it.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Reads all files, which may take a while.
pub(super) fn client_config(tls: &Tls) -> Result<ClientConfig, TlsError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let algorithms = provider.signature_verification_algorithms;
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| TlsError::Broken { detail: error.to_string() })?;
    let lenient = |roots| -> Arc<dyn ServerCertVerifier> { Arc::new(Lenient::new(roots, algorithms)) };
    let builder = match &tls.trust {
        Trust::AuthorityAndName(roots) => builder.with_root_certificates(match roots {
            Some(path) => roots_of(path)?,
            None => system_roots()?,
        }),
        Trust::Authority(path) => builder.dangerous().with_custom_certificate_verifier(lenient(Some(roots_of(path)?))),
        Trust::Anybody => builder.dangerous().with_custom_certificate_verifier(lenient(None)),
    };
    let mut config = match &tls.identity {
        None => builder.with_no_client_auth(),
        Some(identity) => {
            let (chain, key) = (chain_of(&identity.certificate)?, key_of(&identity.key)?);
            builder.with_client_auth_cert(chain, key).map_err(|error| misfit(identity, &error))?
        }
    };
    // As libpq does; `sslnegotiation=direct` needs it.
    config.alpn_protocols = vec![b"postgresql".to_vec()];
    Ok(config)
}

/// The place of the trusted authorities, for messages.
pub(super) fn shown_roots(trust: &Trust) -> String {
    match trust {
        Trust::Authority(path) | Trust::AuthorityAndName(Some(path)) => format!("sslrootcert '{}'", path.display()),
        Trust::AuthorityAndName(None) | Trust::Anybody => "the system's trust store".to_owned(),
    }
}

fn roots_of(path: &Path) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates_of("sslrootcert", path)? {
        let unusable = |_| unusable("sslrootcert", path, "has a certificate that cannot be used as an authority");
        roots.add(certificate).map_err(unusable)?;
    }
    Ok(roots)
}

fn system_roots() -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    // A store has some that nobody can read; the others count.
    let (usable, _) = roots.add_parsable_certificates(found.certs);
    if usable == 0 { Err(TlsError::NoSystemRoots) } else { Ok(roots) }
}

fn chain_of(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    certificates_of("sslcert", path)
}

fn certificates_of(what: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let text = read(what, path)?;
    // The parser's own words may quote a line of the file.
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    let certificates = certificates.map_err(|_| unusable(what, path, "is damaged: not all of it is PEM"))?;
    if certificates.is_empty() {
        return Err(unusable(what, path, "has no certificate in PEM form"));
    }
    Ok(certificates)
}

fn key_of(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    let text = read("sslkey", path)?;
    let missing = |_| unusable("sslkey", path, "has no private key in PEM form without a passphrase");
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

fn unusable(what: &'static str, path: &Path, problem: &str) -> TlsError {
    TlsError::File { what, path: path.display().to_string(), problem: problem.to_owned() }
}

fn misfit(identity: &Identity, error: &rustls::Error) -> TlsError {
    match error {
        rustls::Error::InconsistentKeys(_) => {
            let problem = format!("does not belong to sslcert '{}'", identity.certificate.display());
            unusable("sslkey", &identity.key, &problem)
        }
        other => unusable("sslkey", &identity.key, &format!("cannot be used: {other}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_named_and_not_quoted() {
        let folder = std::env::temp_dir().join(format!("outbox-tls-{}", uuid::Uuid::new_v4().simple()));
        std::fs::create_dir(&folder).unwrap();
        let path = |name: &str| folder.join(name);
        std::fs::write(path("empty"), "").unwrap();
        std::fs::write(path("secret"), "-----BEGIN hunter2\nhunter2\n").unwrap();
        let tls = |roots: &str| Tls { trust: Trust::Authority(path(roots)), identity: None };
        let said = |tls: &Tls| client_config(tls).map(|_| ()).unwrap_err().to_string();
        assert!(said(&tls("none")).contains("none' cannot be read: No such file"), "{}", said(&tls("none")));
        assert!(said(&tls("empty")).ends_with("empty' has no certificate in PEM form"));
        assert!(said(&tls("secret")).contains("secret' is damaged"), "{}", said(&tls("secret")));
        for file in ["none", "empty", "secret"] {
            let error = key_of(&path(file)).unwrap_err().to_string();
            assert!(error.starts_with("sslkey '") && !error.contains("hunter2"), "{error}");
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
