//! Which address is the client's, given the proxies that we trust.

use std::net::IpAddr;

use ipnet::IpNet;

use super::address;
use super::fields::{self, Fields};

const X_FORWARDED_FOR: &str = "x-forwarded-for";

/// The proxies whose word on the client's address is taken.
#[derive(Clone, Debug, Default)]
pub struct TrustedProxies {
    networks: Vec<IpNet>,
}

impl TrustedProxies {
    /// Trusts the proxies in these networks.
    pub fn new(networks: Vec<IpNet>) -> Self {
        Self { networks }
    }

    /// Whether an address is a trusted proxy's.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.networks.iter().any(|network| network.contains(&address))
    }

    /// The client's address of a request that came from the socket address `peer`.
    ///
    /// Forwarding fields are read only if the peer is trusted, and from right to left: each proxy appends the address
    /// that it saw, so the first one that is not itself trusted is the client's, and everything left of it is the
    /// client's own claim. The walk stops before what is no address (`unknown`, an obfuscated name), because nobody can
    /// say what stands left of it. `X-Forwarded-For` is preferred to `Forwarded` (RFC 7239): mixing the two lets a
    /// client add whichever one its proxy does not overwrite.
    pub fn client(&self, peer: IpAddr, headers: &Fields) -> IpAddr {
        let mut client = peer.to_canonical();
        if self.networks.is_empty() || !self.contains(client) {
            return client;
        }
        let forwarded = !headers.contains(X_FORWARDED_FOR);
        let name = if forwarded { "forwarded" } else { X_FORWARDED_FOR };
        for line in headers.all(name).rev() {
            let Some(line) = fields::text(line) else { return client };
            for element in line.rsplit(',').map(str::trim).filter(|element| !element.is_empty()) {
                let node = if forwarded { forwarded_for(element) } else { Some(element) };
                let Some(hop) = node.and_then(node_address) else { return client };
                client = hop;
                if !self.contains(hop) {
                    return client;
                }
            }
        }
        client
    }
}

/// The `for` parameter of one element of `Forwarded` (RFC 7239 section 4).
fn forwarded_for(element: &str) -> Option<&str> {
    element.split(';').find_map(|pair| {
        let (name, value) = pair.split_once('=')?;
        name.trim().eq_ignore_ascii_case("for").then(|| value.trim().trim_matches('"'))
    })
}

/// The address of a node, with or without a port: `192.0.2.1`, `192.0.2.1:80`, `2001:db8::1`, `[2001:db8::1]:80`.
fn node_address(node: &str) -> Option<IpAddr> {
    if let Some(bracketed) = node.strip_prefix('[') {
        return address::parse(bracketed.split_once(']')?.0).ok();
    }
    match node.split_once(':') {
        Some((host, port)) if !port.contains(':') => address::parse(host).ok(),
        _ => address::parse(node).ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(peer: &str, fields: &[(&'static str, &str)], expected: &str) {
        let networks = ["10.0.0.0/8", "2001:db8:ff::/48"].map(|text| text.parse().unwrap()).to_vec();
        let headers = fields.iter().copied().collect();
        let client = TrustedProxies::new(networks).client(peer.parse().unwrap(), &headers);
        assert_eq!(client, expected.parse::<IpAddr>().unwrap());
    }

    #[test]
    fn an_untrusted_peer_is_the_client_whatever_it_says() {
        check("192.0.2.9", &[("x-forwarded-for", "1.2.3.4")], "192.0.2.9");
        check("::ffff:192.0.2.9", &[], "192.0.2.9");
    }

    #[test]
    fn the_first_untrusted_hop_from_the_right_is_the_client() {
        check("10.0.0.1", &[("x-forwarded-for", "9.9.9.9, 203.0.113.7, 10.0.0.2")], "203.0.113.7");
        check("10.0.0.1", &[("x-forwarded-for", "9.9.9.9"), ("x-forwarded-for", "203.0.113.7:4711")], "203.0.113.7");
        check("10.0.0.1", &[("x-forwarded-for", "10.0.0.3, 10.0.0.2")], "10.0.0.3");
        check("::ffff:10.0.0.1", &[("x-forwarded-for", "::ffff:203.0.113.7")], "203.0.113.7");
        check("10.0.0.1", &[], "10.0.0.1");
    }

    #[test]
    fn forwarded_is_read_alike() {
        let field = "for=9.9.9.9;proto=http, For=\"[2001:db8::7]:4711\";by=10.0.0.1, for=\"[2001:db8:ff::1]\"";
        check("10.0.0.1", &[("forwarded", field)], "2001:db8::7");
        check("10.0.0.1", &[("forwarded", "for=_hidden, for=10.0.0.8")], "10.0.0.8");
    }

    #[test]
    fn the_walk_stops_before_what_is_no_address() {
        check("10.0.0.1", &[("x-forwarded-for", "1.2.3.4, unknown, 10.0.0.2")], "10.0.0.2");
        check("10.0.0.1", &[("x-forwarded-for", "1.2.3.4, garbage")], "10.0.0.1");
    }

    #[test]
    fn x_forwarded_for_wins_over_forwarded() {
        check("10.0.0.1", &[("forwarded", "for=1.2.3.4"), ("x-forwarded-for", "203.0.113.7")], "203.0.113.7");
    }
}
