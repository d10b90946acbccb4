//! What a database URL says about TLS, in the words of libpq, and what follows where it says nothing.
//!
//! Guaranteed: another machine is reached with a verified certificate, or as weakly as the URL says itself. A mode
//! that falls back to plain text by itself is refused there. This machine (loopback and Unix sockets) is reached in
//! plain text unless the URL asks for more.

use std::path::PathBuf;

use outbox_postgres::{Identity, Tls, Trust};

/// Those that would be ignored although somebody relies on them.
const UNSUPPORTED: [(&str, &str); 6] = [
    ("sslcrl", "revocation lists are not read"),
    ("sslcrldir", "revocation lists are not read"),
    ("sslpassword", "a key with a passphrase is not read; write sslkey without one, readable for the relay alone"),
    ("requirepeer", "the server's user is not looked at"),
    ("sslcertmode", "a client certificate is sent where sslcert names one"),
    ("ssl_max_protocol_version", "TLS 1.2 and 1.3 are spoken"),
];

const MODES: &str = "sslmode must be disable, require, verify-ca or verify-full";

/// What was written.
#[derive(Debug, Default)]
pub struct Written {
    mode: Option<String>,
    roots: Option<String>,
    certificate: Option<String>,
    key: Option<String>,
    unsupported: Option<(&'static str, &'static str)>,
}

impl Written {
    /// Takes a parameter that is about TLS. `false`: it is not.
    pub fn take(&mut self, name: &str, value: &str) -> bool {
        let known = UNSUPPORTED.iter().find(|(unsupported, _)| *unsupported == name);
        self.unsupported = self.unsupported.or(known.copied());
        let place = match name {
            "sslmode" => &mut self.mode,
            "sslrootcert" => &mut self.roots,
            "sslcert" => &mut self.certificate,
            "sslkey" => &mut self.key,
            _ => return known.is_some(),
        };
        *place = Some(value.to_owned()).filter(|value| !value.is_empty());
        true
    }

    /// How to speak to the database; `remote` names a host that is another machine. `None`: in plain text.
    ///
    /// # Errors
    /// The rule that is broken.
    pub fn decide(self, remote: Option<&str>) -> Result<Option<Tls>, String> {
        let system = self.roots.as_deref() == Some("system");
        let roots = self.roots.as_ref().filter(|_| !system).map(PathBuf::from);
        let trust = match (self.mode.as_deref(), remote) {
            (Some("disable"), _) | (None | Some("allow" | "prefer"), None) => return Ok(None),
            (Some(mode @ ("allow" | "prefer")), Some(host)) => return Err(no_fall_back(mode, host)),
            (Some(mode @ ("require" | "verify-ca")), _) if system => {
                return Err(format!(
                    "sslmode={mode} with sslrootcert=system trusts everybody who has a certificate of any public \
                     authority; write sslmode=verify-full"
                ));
            }
            (Some("require"), _) => roots.map_or(Trust::Anybody, Trust::Authority),
            (Some("verify-ca"), _) => Trust::Authority(roots.ok_or(
                "sslmode=verify-ca needs sslrootcert, the file of the authority that signed the server's certificate",
            )?),
            (Some("verify-full"), _) | (None, Some(_)) => Trust::AuthorityAndName(roots),
            (Some(_), _) => return Err(MODES.to_owned()),
        };
        if let Some((name, reason)) = self.unsupported {
            return Err(format!("{name} is not supported: {reason}"));
        }
        let identity = match (self.certificate, self.key) {
            (None, None) => None,
            (Some(certificate), Some(key)) => Some(Identity { certificate: certificate.into(), key: key.into() }),
            _ => return Err("sslcert and sslkey must be given together".to_owned()),
        };
        Ok(Some(Tls { trust, identity }))
    }
}

fn no_fall_back(mode: &str, host: &str) -> String {
    format!(
        "sslmode={mode} may fall back to plain text, and {host} is another machine; write sslmode=verify-full (with \
         sslrootcert where its authority is your own), or, on a network you trust, sslmode=disable"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decided(text: &str, remote: Option<&str>) -> Result<Option<Tls>, String> {
        let mut written = Written::default();
        for (name, value) in text.split_whitespace().filter_map(|pair| pair.split_once('=')) {
            assert!(written.take(name, value), "{name}");
        }
        written.decide(remote)
    }

    fn trust(text: &str, remote: Option<&str>) -> Option<Trust> {
        decided(text, remote).unwrap_or_else(|error| panic!("{text}: {error}")).map(|tls| tls.trust)
    }

    #[test]
    fn each_mode_trusts_as_libpq_does() {
        let there = Some("'db'");
        let ca = || PathBuf::from("/ca");
        for (text, expected) in [
            ("", Some(Trust::AuthorityAndName(None))),
            ("sslrootcert=/ca", Some(Trust::AuthorityAndName(Some(ca())))),
            ("sslrootcert=system", Some(Trust::AuthorityAndName(None))),
            ("sslmode=verify-full sslrootcert=/ca", Some(Trust::AuthorityAndName(Some(ca())))),
            ("sslmode=verify-ca sslrootcert=/ca", Some(Trust::Authority(ca()))),
            ("sslmode=require sslrootcert=/ca", Some(Trust::Authority(ca()))),
            ("sslmode=require", Some(Trust::Anybody)),
            ("sslmode=disable sslrootcert=/ca sslcrl=/crl", None),
        ] {
            assert_eq!(trust(text, there), expected, "{text}");
        }
        for plain in ["", "sslmode=prefer", "sslmode=allow", "sslmode=disable sslcert=/c"] {
            assert_eq!(trust(plain, None), None, "{plain}");
        }
        assert_eq!(trust("sslmode=verify-full", None), Some(Trust::AuthorityAndName(None)));
        let both = decided("sslmode=require sslcert=/c sslkey=/k", None).unwrap().and_then(|tls| tls.identity);
        assert_eq!(both, Some(Identity { certificate: "/c".into(), key: "/k".into() }));
    }

    #[test]
    fn what_would_weaken_a_connection_unseen_is_refused() {
        for (text, expected) in [
            ("sslmode=prefer", "sslmode=prefer may fall back to plain text, and 'db' is another machine"),
            ("sslmode=allow", "write sslmode=verify-full"),
            ("sslmode=require sslrootcert=system", "sslmode=require with sslrootcert=system trusts everybody"),
            ("sslmode=verify-ca", "sslmode=verify-ca needs sslrootcert"),
            ("sslmode=always", MODES),
            ("sslmode=verify-full sslcrl=/crl", "sslcrl is not supported: revocation lists"),
            ("sslpassword=hunter2", "sslpassword is not supported: a key with a passphrase"),
            ("sslcert=/c", "sslcert and sslkey must be given together"),
        ] {
            let rule = decided(text, Some("'db'")).unwrap_err();
            assert!(rule.contains(expected) && !rule.contains("hunter2"), "{text}: {rule}");
        }
    }
}
