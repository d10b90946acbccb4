//! Certificate authorities and certificates of one test.

use anyhow::Result;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, IsCa, KeyPair, KeyUsagePurpose,
    date_time_ymd,
};

/// Signs certificates. Two of one name are two authorities.
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its key, in PEM form.
#[derive(Clone, Debug)]
pub struct Issued {
    pub certificate: String,
    pub key: String,
}

impl Authority {
    /// # Errors
    /// When no key can be made.
    pub fn new(name: &str) -> Result<Self> {
        let mut params = CertificateParams::default();
        params.distinguished_name = named(name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        Ok(Self(CertifiedIssuer::self_signed(params, KeyPair::generate()?)?))
    }

    #[must_use]
    pub fn pem(&self) -> String {
        self.0.pem()
    }

    #[must_use]
    pub fn key(&self) -> String {
        self.0.key().serialize_pem()
    }

    /// For a server that is dialled by these names or addresses.
    ///
    /// # Errors
    /// When a name is none.
    pub fn server(&self, names: &[&str]) -> Result<Issued> {
        self.issue("server", names, (2020, 2100))
    }

    /// Valid in other years only.
    ///
    /// # Errors
    /// As [`Authority::server`].
    pub fn server_of_years(&self, names: &[&str], from: i32, to: i32) -> Result<Issued> {
        self.issue("server", names, (from, to))
    }

    /// For a client that logs in under this name.
    ///
    /// # Errors
    /// When no key can be made.
    pub fn client(&self, login: &str) -> Result<Issued> {
        self.issue(login, &[], (2020, 2100))
    }

    /// Like [`Authority::client`], valid in other years only.
    ///
    /// # Errors
    /// As [`Authority::client`].
    pub fn client_of_years(&self, login: &str, from: i32, to: i32) -> Result<Issued> {
        self.issue(login, &[], (from, to))
    }

    /// Like [`Authority::client`] with a key of one's own, in PKCS#8 form.
    ///
    /// # Errors
    /// When the key is none.
    pub fn client_with_key(&self, login: &str, key: &str) -> Result<Issued> {
        self.issue_with(login, &[], (2020, 2100), KeyPair::from_pem(key)?)
    }

    fn issue(&self, common_name: &str, names: &[&str], years: (i32, i32)) -> Result<Issued> {
        self.issue_with(common_name, names, years, KeyPair::generate()?)
    }

    fn issue_with(&self, common_name: &str, names: &[&str], years: (i32, i32), key: KeyPair) -> Result<Issued> {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names)?;
        params.distinguished_name = named(common_name);
        params.not_before = date_time_ymd(years.0, 1, 1);
        params.not_after = date_time_ymd(years.1, 1, 1);
        let certificate = params.signed_by(&key, &self.0)?;
        Ok(Issued { certificate: certificate.pem(), key: key.serialize_pem() })
    }
}

fn named(name: &str) -> DistinguishedName {
    let mut distinguished = DistinguishedName::new();
    distinguished.push(DnType::CommonName, name);
    distinguished
}
