//! What a handshake with PostgreSQL needs, from the files as they are now.

use std::path::PathBuf;
use std::sync::Arc;

use outbox_tls::{TlsError, Words, builder, roots, with_identity};
use rustls::ClientConfig;
use rustls::client::danger::ServerCertVerifier;

use super::verifier::Lenient;
use super::{Tls, Trust};

/// As the database's URL calls things.
pub(super) static WORDS: Words = Words {
    peer: "server",
    roots: "sslrootcert",
    certificate: "sslcert",
    key: "sslkey",
    peers_roots: "the server's ssl_ca_file",
};

/// Reads all files, which may take a while.
pub(super) fn client_config(tls: &Tls) -> Result<ClientConfig, TlsError> {
    let (builder, provider) = builder()?;
    let algorithms = provider.signature_verification_algorithms;
    let lenient = |roots| -> Arc<dyn ServerCertVerifier> { Arc::new(Lenient::new(roots, algorithms)) };
    let builder = match &tls.trust {
        Trust::AuthorityAndName(path) => builder.with_root_certificates(roots(path.as_deref(), &WORDS)?),
        Trust::Authority(path) => {
            builder.dangerous().with_custom_certificate_verifier(lenient(Some(roots(Some(path), &WORDS)?)))
        }
        Trust::Anybody => builder.dangerous().with_custom_certificate_verifier(lenient(None)),
    };
    let mut config = with_identity(builder, tls.identity.as_ref(), &WORDS)?;
    // As libpq does; `sslnegotiation=direct` needs it.
    config.alpn_protocols = vec![b"postgresql".to_vec()];
    Ok(config)
}

/// The place of the trusted authorities, for messages.
pub(super) fn shown_roots(trust: &Trust) -> String {
    outbox_tls::shown_roots(trust.file().map(PathBuf::as_path), &WORDS)
}
