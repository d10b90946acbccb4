//! When certificates end.

use std::path::Path;

use crate::TlsError;
use crate::material::{certificates_of, unusable};

/// The end of the first certificate of a PEM file to end, in seconds since the Unix epoch; `what` names the setting.
/// It reads the file, which may take a while.
///
/// # Errors
/// What is wrong with the file.
pub fn earliest_end(what: &'static str, path: &Path) -> Result<i64, TlsError> {
    let mut earliest = i64::MAX;
    for certificate in certificates_of(what, path)? {
        let (_, parsed) = x509_parser::parse_x509_certificate(&certificate)
            .map_err(|_| unusable(what, path, "has a certificate that cannot be understood"))?;
        earliest = earliest.min(parsed.validity().not_after.timestamp());
    }
    Ok(earliest)
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    use super::*;

    fn until(year: i32) -> String {
        let mut params = CertificateParams::new(vec!["x".to_owned()]).unwrap();
        params.not_after = date_time_ymd(year, 3, 1);
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().pem()
    }

    #[test]
    fn the_first_of_a_bundle_to_end_counts() {
        let path = std::env::temp_dir().join(format!("outbox-expiry-{}", uuid::Uuid::new_v4().simple()));
        let end = |text: &str| {
            std::fs::write(&path, text).unwrap();
            earliest_end("CA", &path)
        };
        assert_eq!(end(&until(2030)), Ok(1_898_553_600));
        // Beyond 2049 the date is written in another form.
        assert_eq!(end(&until(2090)), Ok(3_792_009_600));
        let bundle = format!("{}text between\n{}{}", until(2090), until(2030), until(2060));
        assert_eq!(end(&bundle), Ok(1_898_553_600));
        let damaged = until(2030).replacen("MII", "AAA", 1);
        assert!(end(&damaged).unwrap_err().to_string().ends_with("has a certificate that cannot be understood"));
        assert!(end("").unwrap_err().to_string().contains("has no certificate"));
        std::fs::remove_file(&path).unwrap();
    }
}
