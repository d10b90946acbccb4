//! Which hosts are reached without a network.

use std::net::IpAddr;

/// Whether a host is this machine by its name or address, judged by the letter: nothing is resolved, and what cannot
/// be told counts as another machine.
#[must_use]
pub fn is_loopback(host: &str) -> bool {
    let address = host.trim_matches(['[', ']']).parse::<IpAddr>();
    host.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_this_machine_for_certain_is() {
        for host in ["localhost", "LocalHost", "127.0.0.1", "127.9.9.9", "::1", "[::1]"] {
            assert!(is_loopback(host), "{host}");
        }
        for host in ["", "db", "localhost.example", "10.0.0.1", "0.0.0.0", "[::]", "::ffff:10.0.0.1", "127.1"] {
            assert!(!is_loopback(host), "{host}");
        }
    }
}
