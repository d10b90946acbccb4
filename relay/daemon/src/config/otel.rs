//! Where spans go and what they say of the service, by the names that OpenTelemetry gives its variables.
//!
//! A build without the cargo feature `otel` refuses an endpoint, so that nobody waits for spans that never come. Without
//! an endpoint the other keys are not looked at: a platform may set them for everything that it runs.

use std::path::PathBuf;

use http::{HeaderMap, HeaderName, HeaderValue, Uri};
use outbox_tls::Identity;
use secrecy::ExposeSecret as _;

use super::reader::Reader;
use super::secret;
use super::value::percent_decoded;

const ENDPOINT: &str = "must be http://host:port or https://host:port, with a path where the receiver has one; a login \
                        or a token belongs in otel.headers";
const BUILT_WITHOUT: &str = "this outbox-relay was built without spans; build it with `--features otel`, take the \
                             image or a package, or unset it";
/// What OTLP over HTTP adds to an endpoint.
const PATH: &str = "/v1/traces";

/// See the module.
#[derive(Clone, Debug)]
#[cfg_attr(not(feature = "otel"), allow(dead_code, reason = "a build without spans only refuses them"))]
pub struct Otel {
    /// Its path included.
    pub endpoint: Uri,
    /// `Debug` does not show their values.
    pub headers: HeaderMap,
    /// `None`: the system's authorities.
    pub ca_file: Option<PathBuf>,
    pub identity: Option<Identity>,
    /// Attributes of the service, `service.name` among them.
    pub resource: Vec<(String, String)>,
}

/// `None` where no endpoint is set, or something is wrong.
pub(super) fn read(reader: &mut Reader) -> Option<Otel> {
    let endpoint = reader.text("otel.endpoint").filter(|text| !text.is_empty())?;
    if !cfg!(feature = "otel") {
        reader.refuse("otel.endpoint", BUILT_WITHOUT);
        return None;
    }
    let () = reader.choice("otel.protocol", &[("http/protobuf", ())]);
    let endpoint = traces(&endpoint);
    if endpoint.is_none() {
        reader.refuse("otel.endpoint", ENDPOINT);
    }
    let mut path = |name: &str| reader.text(name).filter(|path| !path.is_empty()).map(PathBuf::from);
    let ca_file = path("otel.ca_file");
    let identity = match (path("otel.certificate_file"), path("otel.key_file")) {
        (None, None) => None,
        (Some(certificate), Some(key)) => Some(Identity { certificate, key }),
        (Some(_), None) => {
            reader.miss("otel.key_file", "otel.certificate_file is set, and a certificate needs its key");
            None
        }
        (None, Some(_)) => {
            reader.miss("otel.certificate_file", "otel.key_file is set, and a key needs its certificate");
            None
        }
    };
    let (headers, resource) = (headers(reader), resource(reader));
    endpoint.map(|endpoint| Otel { endpoint, headers, ca_file, identity, resource })
}

/// The address that spans are sent to; `None` where the endpoint is none.
fn traces(endpoint: &str) -> Option<Uri> {
    let endpoint: Uri = endpoint.parse().ok()?;
    let scheme = endpoint.scheme().filter(|scheme| ["http", "https"].contains(&scheme.as_str()))?;
    let authority = endpoint.authority().filter(|authority| !authority.as_str().contains('@'))?;
    if endpoint.query().is_some() || authority.host().is_empty() {
        return None;
    }
    let path = format!("{}{PATH}", endpoint.path().trim_end_matches('/'));
    Uri::builder().scheme(scheme.clone()).authority(authority.clone()).path_and_query(path).build().ok()
}

/// Nothing of the value is in a message.
fn headers(reader: &mut Reader) -> HeaderMap {
    let Some(text) = secret::read(reader, "otel.headers") else { return HeaderMap::new() };
    let header = |(name, value): (String, String)| {
        let mut value = HeaderValue::try_from(value).ok()?;
        value.set_sensitive(true);
        Some((HeaderName::try_from(name).ok()?, value))
    };
    let headers = pairs(text.expose_secret()).and_then(|pairs| pairs.into_iter().map(header).collect());
    headers.unwrap_or_else(|| {
        let key = if reader.set("otel.headers_file").is_some() { "otel.headers_file" } else { "otel.headers" };
        reader.refuse(key, "must be name=value,name=value, with a comma in a value as %2C");
        HeaderMap::new()
    })
}

/// The service's own name wins over one among the attributes, as OpenTelemetry wants it, unless it is the default.
fn resource(reader: &mut Reader) -> Vec<(String, String)> {
    let text = reader.text("otel.resource_attributes").unwrap_or_default();
    let mut attributes = pairs(&text).unwrap_or_else(|| {
        reader.refuse("otel.resource_attributes", "must be name=value,name=value, with a comma in a value as %2C");
        Vec::new()
    });
    let is_name = |(name, _): &(String, String)| name == "service.name";
    if reader.set("otel.service_name").is_some() || !attributes.iter().any(is_name) {
        attributes.retain(|attribute| !is_name(attribute));
        attributes.push(("service.name".to_owned(), reader.text("otel.service_name").unwrap_or_default()));
    }
    attributes
}

/// `name=value,name=value` with percent-encoded values; `None` where it is none.
fn pairs(text: &str) -> Option<Vec<(String, String)>> {
    let pair = |pair: &str| {
        let (name, value) = pair.split_once('=')?;
        let name = percent_decoded(name.trim());
        (!name.is_empty()).then(|| (name, percent_decoded(value.trim())))
    };
    text.split(',').map(str::trim).filter(|part| !part.is_empty()).map(pair).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_a_place_and_no_more() {
        for (endpoint, address) in [
            ("http://localhost:4318", "http://localhost:4318/v1/traces"),
            ("https://collector/", "https://collector/v1/traces"),
            ("http://[::1]:4318/otlp/", "http://[::1]:4318/otlp/v1/traces"),
        ] {
            assert_eq!(traces(endpoint).unwrap().to_string(), address);
        }
        for endpoint in
            ["localhost:4318", "collector", "grpc://collector:4317", "http://a:b@c", "http://c?token=x", "http://"]
        {
            assert_eq!(traces(endpoint), None, "{endpoint}");
        }
    }

    #[test]
    fn pairs_are_read_as_opentelemetry_writes_them() {
        let owned = |pairs: &[(&str, &str)]| {
            Some(pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect::<Vec<_>>())
        };
        assert_eq!(pairs("a=1, b = two%2Cthree ,"), owned(&[("a", "1"), ("b", "two,three")]));
        assert_eq!(pairs("authorization=Basic dXNlcg=="), owned(&[("authorization", "Basic dXNlcg==")]));
        assert_eq!(pairs(""), owned(&[]));
        assert_eq!(pairs("a"), None);
        assert_eq!(pairs("=1"), None);
    }
}
