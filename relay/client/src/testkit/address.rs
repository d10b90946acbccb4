//! The database's URL: where it leads, and the same by another way.

use crate::error::BoxError;

/// Where host and port stand in a URL.
fn place(url: &str) -> Result<std::ops::Range<usize>, BoxError> {
    let (scheme, rest) = url.split_once("://").ok_or("the database must be given as a URL: postgres://...")?;
    let authority = rest.split(['/', '?']).next().unwrap_or_default();
    let host = authority.rfind('@').map_or(0, |at| at + 1);
    if authority.len() == host || authority.contains(',') {
        return Err("the database's URL must name one host".into());
    }
    let first = scheme.len() + 3;
    Ok(first + host..first + authority.len())
}

/// Host and port, the latter PostgreSQL's own where the URL names none.
pub(super) fn server_of(url: &str) -> Result<String, BoxError> {
    let server = &url[place(url)?];
    let has_port = server.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    Ok(if has_port { server.to_owned() } else { format!("{server}:5432") })
}

/// The URL with another way to the same database.
pub(super) fn through(url: &str, port: u16) -> Result<String, BoxError> {
    let place = place(url)?;
    Ok(format!("{}127.0.0.1:{port}{}", &url[..place.start], &url[place.end..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_replaces_host_and_port_alone() {
        let cases = [
            ("postgres://u:p@db:5433/app?x=1", "db:5433", "postgres://u:p@127.0.0.1:9/app?x=1"),
            ("postgresql://db", "db:5432", "postgresql://127.0.0.1:9"),
            ("postgres://u@[::1]/a", "[::1]:5432", "postgres://u@127.0.0.1:9/a"),
        ];
        for (url, server, way) in cases {
            assert_eq!(
                (server_of(url).unwrap_or_default().as_str(), through(url, 9).unwrap_or_default().as_str()),
                (server, way)
            );
        }
        for url in ["host=db", "postgres://", "postgres://a,b/c"] {
            assert!(server_of(url).is_err(), "{url}");
        }
    }
}
