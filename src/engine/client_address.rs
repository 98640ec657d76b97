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
        let peer = peer.to_canonical();
        if self.networks.is_empty() || !self.contains(peer) {
            return peer;
        }
        let is_forwarded = !headers.contains(X_FORWARDED_FOR);
        self.walk(headers, is_forwarded).unwrap_or(peer)
    }

    /// The client's address of a request that a gateway asks about: the gateway is believed, and what it says of its own
    /// peer is the last element of `X-Forwarded-For`. From there the walk is that of [`Self::client`]. `None` if the
    /// gateway does not say.
    ///
    /// `Forwarded` is not read: no gateway that asks writes it, so it is always the client's own.
    pub fn client_of_gateway(&self, headers: &Fields) -> Option<IpAddr> {
        self.walk(headers, false)
    }

    /// The first hop from the right that is not trusted, or else the last one that can be read.
    fn walk(&self, headers: &Fields, is_forwarded: bool) -> Option<IpAddr> {
        let mut client = None;
        for line in headers.all(if is_forwarded { "forwarded" } else { X_FORWARDED_FOR }).rev() {
            let Some(line) = fields::text(line) else { return client };
            for element in split_back(line, ',').map(str::trim).filter(|element| !element.is_empty()) {
                let node = if is_forwarded { forwarded_for(element) } else { Some(element) };
                let Some(hop) = node.and_then(node_address) else { return client };
                client = Some(hop);
                if !self.contains(hop) {
                    return client;
                }
            }
        }
        client
    }
}

/// Splits where the separator stands outside quotes, from right to left.
///
/// What stands right was written by the proxies next to us. Read from there, their quotes are the ones that count; read
/// from the left, a quote that the client left open would hide what they say. A proxy that quotes the client's `Host` in
/// `host=` may have quoted a comma and more.
fn split_back(text: &str, separator: char) -> impl Iterator<Item = &str> {
    let mut rest = Some(text);
    std::iter::from_fn(move || {
        let given = rest?;
        let mut is_quoted = false;
        let place = given.char_indices().rev().find_map(|(place, letter)| {
            is_quoted ^= letter == '"' && !(is_quoted && is_escaped(&given[..place]));
            (letter == separator && !is_quoted).then_some(place)
        });
        rest = place.map(|place| &given[..place]);
        Some(place.map_or(given, |place| &given[place + 1..]))
    })
}

/// Whether what follows is escaped by a backslash that is not escaped itself.
fn is_escaped(before: &str) -> bool {
    before.bytes().rev().take_while(|byte| *byte == b'\\').count() % 2 == 1
}

/// The `for` parameter of one element of `Forwarded` (RFC 7239 section 4).
fn forwarded_for(element: &str) -> Option<&str> {
    split_back(element, ';').find_map(|pair| {
        let (name, value) = pair.split_once('=')?;
        name.trim().eq_ignore_ascii_case("for").then(|| value.trim().trim_matches('"'))
    })
}

/// The address of a node, with or without a port: `192.0.2.1`, `192.0.2.1:80`, `2001:db8::1`, `[2001:db8::1]:80`.
fn node_address(node: &str) -> Option<IpAddr> {
    if let Some(bracketed) = node.strip_prefix('[') {
        let (host, after) = bracketed.split_once(']')?;
        return address::parse(host).ok().filter(|_| after.is_empty() || after.strip_prefix(':').is_some_and(is_port));
    }
    match node.split_once(':') {
        Some((host, port)) if !port.contains(':') => address::parse(host).ok().filter(|_| is_port(port)),
        _ => address::parse(node).ok(),
    }
}

/// A number, or the name of one that is kept secret (RFC 7239 section 6.2).
fn is_port(port: &str) -> bool {
    let name = port.strip_prefix('_').unwrap_or(port);
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
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
    fn a_gateway_is_believed_and_trusted_hops_before_it_are_skipped() {
        let check = |fields: &[(&'static str, &str)], expected: Option<&str>| {
            let networks = vec!["10.0.0.0/8".parse().unwrap()];
            let client = TrustedProxies::new(networks).client_of_gateway(&fields.iter().copied().collect());
            assert_eq!(client, expected.map(|address| address.parse().unwrap()), "{fields:?}");
        };
        check(&[("x-forwarded-for", "9.9.9.9, 203.0.113.7")], Some("203.0.113.7"));
        check(&[("x-forwarded-for", "9.9.9.9, 203.0.113.7, 10.0.0.2")], Some("203.0.113.7"));
        check(&[("x-forwarded-for", "10.0.0.3"), ("x-forwarded-for", "10.0.0.2")], Some("10.0.0.3"));
        check(&[("x-forwarded-for", "9.9.9.9, unknown, 10.0.0.2")], Some("10.0.0.2"));
        check(&[("x-forwarded-for", "9.9.9.9, unknown")], None);
        check(&[("x-forwarded-for", "")], None);
        check(&[("forwarded", "for=9.9.9.9")], None);
    }

    #[test]
    fn forwarded_is_read_alike() {
        let field = "for=9.9.9.9;proto=http, For=\"[2001:db8::7]:4711\";by=10.0.0.1, for=\"[2001:db8:ff::1]\"";
        check("10.0.0.1", &[("forwarded", field)], "2001:db8::7");
        check("10.0.0.1", &[("forwarded", "for=_hidden, for=10.0.0.8")], "10.0.0.8");
        check("10.0.0.1", &[("forwarded", r#"for=9.9.9.9;host="a,for=1.2.3.4""#)], "9.9.9.9");
        check("10.0.0.1", &[("forwarded", r#"host="a;for=1.2.3.4";for=9.9.9.9"#)], "9.9.9.9");
        check("10.0.0.1", &[("forwarded", r#"for=9.9.9.9;host="a\",for=1.2.3.4""#)], "9.9.9.9");
        check("10.0.0.1", &[("forwarded", r#"for="1.2.3.4, for=9.9.9.9"#)], "9.9.9.9");
    }

    #[test]
    fn the_walk_stops_before_what_is_no_address() {
        check("10.0.0.1", &[("x-forwarded-for", "1.2.3.4, unknown, 10.0.0.2")], "10.0.0.2");
        check("10.0.0.1", &[("x-forwarded-for", "1.2.3.4, garbage")], "10.0.0.1");
        check("10.0.0.1", &[("x-forwarded-for", "[2001:db8::7]x")], "10.0.0.1");
        check("10.0.0.1", &[("x-forwarded-for", "1.2.3.4:x y")], "10.0.0.1");
        check("10.0.0.1", &[("x-forwarded-for", "1.2.3.4:")], "10.0.0.1");
    }

    #[test]
    fn x_forwarded_for_wins_over_forwarded() {
        check("10.0.0.1", &[("forwarded", "for=1.2.3.4"), ("x-forwarded-for", "203.0.113.7")], "203.0.113.7");
    }
}
