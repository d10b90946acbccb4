//! Values that must not be seen: read from a key or from the file that its `_file` twin names.
//!
//! Neither the value nor a part of it is ever in a message; what is printed goes through `redact_url`.

use std::fs::File;
use std::io::Read as _;

use secrecy::SecretString;

use super::reader::Reader;

/// A secret is a line, not a file system: more than this is a wrong path.
const SECRET_BYTES_MAX: u64 = 65_536;

/// The secret of a key, from itself or its file. Trailing line ends belong to the editor and not to the secret.
pub fn read(reader: &mut Reader, name: &str) -> Option<SecretString> {
    if let Some(path) = file(reader, name) {
        return read_file(reader, &format!("{name}_file"), &path).map(SecretString::from);
    }
    reader.text(name).filter(|text| !text.is_empty()).map(SecretString::from)
}

/// The file that a key's secret comes from, if it comes from one.
pub fn file(reader: &mut Reader, name: &str) -> Option<String> {
    let file_key = format!("{name}_file");
    reader.set(&file_key)?;
    reader.text(&file_key)
}

/// The text of a file that a key names; a problem is noted when there is none.
pub fn read_file(reader: &mut Reader, key: &str, path: &str) -> Option<String> {
    text_of(path).map_err(|rule| reader.refuse(key, rule)).ok()
}

/// The text of a file, now.
///
/// # Errors
/// Why there is none, with its path.
pub fn text_of(path: &str) -> Result<String, String> {
    let mut text = String::new();
    let read = File::open(path).and_then(|file| file.take(SECRET_BYTES_MAX + 1).read_to_string(&mut text));
    match read {
        Err(error) => Err(format!("cannot read '{path}': {error}")),
        Ok(bytes) if bytes as u64 > SECRET_BYTES_MAX => {
            Err(format!("'{path}' has more than {SECRET_BYTES_MAX} bytes and cannot be what is meant"))
        }
        Ok(_) if text.trim().is_empty() => Err(format!("'{path}' is empty")),
        Ok(_) => Ok(text.trim_end_matches(['\r', '\n']).to_owned()),
    }
}

/// A URL without its password, for printing. What is no URL is hidden altogether.
pub fn redact_url(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return "***".to_owned() };
    let (rest, query) = rest.split_once('?').map_or((rest, None), |(rest, query)| (rest, Some(query)));
    // The last @ ends the user part: passwords that hold one unescaped must not show either.
    let rest = match rest.rsplit_once('@') {
        Some((user, host)) => match user.split_once(':') {
            Some((user, _)) => format!("{user}:***@{host}"),
            None => format!("{user}@{host}"),
        },
        None => rest.to_owned(),
    };
    let query = query.map(|query| {
        let hidden = query.split('&').map(|pair| match pair.split_once('=') {
            Some((name, _)) if is_secret_name(name) => format!("{name}=***"),
            _ => pair.to_owned(),
        });
        format!("?{}", hidden.collect::<Vec<_>>().join("&"))
    });
    format!("{scheme}://{rest}{}", query.unwrap_or_default())
}

/// Whether a parameter or a librdkafka property holds a secret, judged by its name.
pub fn is_secret_name(name: &str) -> bool {
    let name = name.to_lowercase();
    [
        "password",
        "secret",
        "token",
        "jaas",
        "key.pem",
        "ssl.key",
        "sasl.oauthbearer.config",
        "credential",
        "passphrase",
        "otel.headers",
    ]
    .iter()
    .any(|part| name.contains(part))
        && !name.ends_with(".location")
        && !name.ends_with(".url")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_password_survives_redaction() {
        for (url, shown) in [
            ("postgres://app:hunter2@db/x", "postgres://app:***@db/x"),
            ("postgres://app:hun@ter2@db/x?sslmode=disable", "postgres://app:***@db/x?sslmode=disable"),
            ("postgres://db/x?user=a&password=hunter2", "postgres://db/x?user=a&password=***"),
            ("amqp://guest@host:5672/%2f", "amqp://guest@host:5672/%2f"),
            ("host=db password=hunter2", "***"),
        ] {
            assert_eq!(redact_url(url), shown);
        }
        assert!(is_secret_name("sasl.password") && is_secret_name("ssl.key.pem") && is_secret_name("SASL.JAAS.config"));
        assert!(is_secret_name("otel.headers") && is_secret_name("sasl.oauthbearer.assertion.private.key.passphrase"));
        assert!(!is_secret_name("compression.type") && !is_secret_name("ssl.key.location"));
    }
}
