//! The client's address, given the proxies that are trusted.

use std::net::IpAddr;
use std::num::NonZeroU8;
use std::str::{self, FromStr};

use ipnet::IpNet;

use super::address;
use super::headers::Headers;

const X_FORWARDED_FOR: &str = "x-forwarded-for";
const FORWARDED: &str = "forwarded";

/// The trusted proxies, and the header in which they pass on the client's address.
#[derive(Clone, Debug, Default)]
pub struct TrustedProxies {
    pub networks: Vec<IpNet>,
    pub source: AddressSource,
}

/// The header in which trusted proxies pass on the client's address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AddressSource {
    /// `X-Forwarded-For`, or `Forwarded` if a request has no `X-Forwarded-For`.
    #[default]
    XForwardedFor,
    /// `Forwarded` (RFC 7239), or `X-Forwarded-For` if a request has no `Forwarded`.
    Forwarded,
    /// `X-Forwarded-For`: this many addresses from its right end, trusted or not. If the list is shorter, the leftmost.
    Hops(NonZeroU8),
}

/// The address of a request's client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientAddress {
    /// Never IPv4-mapped.
    pub address: IpAddr,
    /// True if a trusted proxy sent both `X-Forwarded-For` and `Forwarded` and they name different clients. Then either
    /// the client added the header that its proxy does not write, or [`AddressSource`] names the wrong one.
    pub is_disputed: bool,
}

impl From<IpAddr> for ClientAddress {
    fn from(address: IpAddr) -> Self {
        Self { address: address.to_canonical(), is_disputed: false }
    }
}

impl FromStr for AddressSource {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match (text, text.strip_prefix("hops=").map(str::parse)) {
            ("xff", _) => Ok(Self::XForwardedFor),
            ("forwarded", _) => Ok(Self::Forwarded),
            (_, Some(Ok(hops))) => Ok(Self::Hops(hops)),
            (_, Some(Err(_))) => Err("`hops=N` needs a number from 1 to 255".to_owned()),
            _ => Err("expected `xff`, `forwarded` or `hops=N`".to_owned()),
        }
    }
}

impl TrustedProxies {
    /// Trusts the proxies in these networks to write `X-Forwarded-For`.
    pub fn new(networks: Vec<IpNet>) -> Self {
        Self { networks, source: AddressSource::default() }
    }

    pub fn contains(&self, address: IpAddr) -> bool {
        self.networks.iter().any(|network| network.contains(&address))
    }

    /// Returns the client of a request that came from the socket address `peer`.
    ///
    /// The headers are read only if the peer is trusted, and from right to left: each proxy appends the address that it
    /// saw, so the first one that is not trusted is the client's, and everything left of it is the client's own claim.
    /// The walk stops at the first element that is not an address (`unknown`, an obfuscated name, any other bytes),
    /// because what stands left of it cannot be trusted. What trusted hops wrote to the right of it counts.
    ///
    /// The header named by [`AddressSource`] counts, because trusted proxies write it; a client can send the other one.
    /// The other header never overrides it, and the two are never mixed. A request in which they disagree is only
    /// marked, see [`ClientAddress::is_disputed`].
    pub fn client(&self, peer: IpAddr, headers: &Headers) -> ClientAddress {
        let peer = ClientAddress::from(peer);
        if self.networks.is_empty() || !self.contains(peer.address) {
            return peer;
        }
        let (has_list, has_forwarded) = (headers.contains(X_FORWARDED_FOR), headers.contains(FORWARDED));
        let is_forwarded = match self.source {
            AddressSource::XForwardedFor => !has_list,
            AddressSource::Forwarded => has_forwarded,
            AddressSource::Hops(_) => false,
        };
        let Some(address) = self.walk(headers, is_forwarded) else { return peer };
        let other = (has_list && has_forwarded).then(|| self.walk(headers, !is_forwarded)).flatten();
        ClientAddress { address, is_disputed: other.is_some_and(|other| other != address) }
    }

    /// Returns the client of a request that a gateway asks about. The gateway is trusted, and its own peer is the last
    /// element of `X-Forwarded-For`; from there on the rules of [`Self::client`] apply. `None` if the gateway names no peer.
    ///
    /// If that peer is not trusted, it is the client, and `Forwarded` is not read: no such gateway writes it.
    pub fn client_of_gateway(&self, headers: &Headers) -> Option<ClientAddress> {
        Some(self.client(hops(headers, false).next()??, headers))
    }

    /// The client according to one header: the first untrusted hop from the right, or else the last readable one.
    fn walk(&self, headers: &Headers, is_forwarded: bool) -> Option<IpAddr> {
        let mut client = None;
        for (place, hop) in (1..).zip(hops(headers, is_forwarded)) {
            let Some(hop) = hop else { break };
            client = Some(hop);
            let is_client = match self.source {
                AddressSource::Hops(hops) if !is_forwarded => place == usize::from(hops.get()),
                _ => !self.contains(hop),
            };
            if is_client {
                break;
            }
        }
        client
    }
}

/// The elements of a header from right to left; `None` for an element that is not an address.
fn hops(headers: &Headers, is_forwarded: bool) -> impl Iterator<Item = Option<IpAddr>> {
    let lines = headers.all(if is_forwarded { FORWARDED } else { X_FORWARDED_FOR }).rev();
    let elements = lines.flat_map(|line| split_back(line, b',')).map(<[u8]>::trim_ascii);
    elements.filter(|element| !element.is_empty()).map(move |element| {
        let node = if is_forwarded { forwarded_for(element) } else { Some(element) };
        node.and_then(node_address)
    })
}

/// Splits at separators outside quotes, from right to left.
///
/// The right end was written by the proxies next to us. Reading from there, their quotes count; reading from the left, a
/// quote that the client left open would hide what they wrote. A proxy that quotes the client's `Host` in `host=` may
/// have quoted a comma. Bytes are split rather than text, because a client can put any byte from 0x80 on before what its
/// proxy appends to the same line.
fn split_back(text: &[u8], separator: u8) -> impl Iterator<Item = &[u8]> {
    let mut rest = Some(text);
    std::iter::from_fn(move || {
        let given = rest?;
        let mut is_quoted = false;
        let place = given.iter().enumerate().rev().find_map(|(place, byte)| {
            is_quoted ^= *byte == b'"' && !(is_quoted && is_escaped(&given[..place]));
            (*byte == separator && !is_quoted).then_some(place)
        });
        rest = place.map(|place| &given[..place]);
        Some(place.map_or(given, |place| &given[place + 1..]))
    })
}

/// Returns true if the next byte is escaped by a backslash that is not escaped itself.
fn is_escaped(before: &[u8]) -> bool {
    before.iter().rev().take_while(|byte| **byte == b'\\').count() % 2 == 1
}

/// The `for` parameter of one element of `Forwarded` (RFC 7239 section 4).
fn forwarded_for(element: &[u8]) -> Option<&[u8]> {
    split_back(element, b';').find_map(|pair| {
        let (name, value) = pair.split_at(pair.iter().position(|byte| *byte == b'=')?);
        let value = value[1..].trim_ascii();
        let unquoted = value.strip_prefix(b"\"").and_then(|value| value.strip_suffix(b"\""));
        name.trim_ascii().eq_ignore_ascii_case(b"for").then(|| unquoted.unwrap_or(value))
    })
}

/// The address of a node, with or without a port: `192.0.2.1`, `192.0.2.1:80`, `2001:db8::1`, `[2001:db8::1]:80`.
fn node_address(node: &[u8]) -> Option<IpAddr> {
    let node = str::from_utf8(node).ok()?;
    if let Some(bracketed) = node.strip_prefix('[') {
        let (host, after) = bracketed.split_once(']')?;
        return address::parse(host).ok().filter(|_| after.is_empty() || after.strip_prefix(':').is_some_and(is_port));
    }
    match node.split_once(':') {
        Some((host, port)) if !port.contains(':') => address::parse(host).ok().filter(|_| is_port(port)),
        _ => address::parse(node).ok(),
    }
}

/// A port number, or an obfuscated port (RFC 7239 section 6.2).
fn is_port(port: &str) -> bool {
    let name = port.strip_prefix('_').unwrap_or(port);
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(peer: &str, headers: &[(&'static str, &str)], expected: &str) {
        let networks = ["10.0.0.0/8", "2001:db8:ff::/48"].map(|text| text.parse().unwrap()).to_vec();
        let headers = headers.iter().copied().collect();
        let client = TrustedProxies::new(networks).client(peer.parse().unwrap(), &headers);
        assert_eq!(client.address, expected.parse::<IpAddr>().unwrap());
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
        let check = |headers: &[(&'static str, &str)], expected: Option<&str>| {
            let networks = vec!["10.0.0.0/8".parse().unwrap()];
            let client = TrustedProxies::new(networks).client_of_gateway(&headers.iter().copied().collect());
            let expected = expected.map(|address| address.parse::<IpAddr>().unwrap());
            assert_eq!(client.map(|client| client.address), expected, "{headers:?}");
        };
        check(&[("x-forwarded-for", "9.9.9.9, 203.0.113.7")], Some("203.0.113.7"));
        check(&[("x-forwarded-for", "9.9.9.9, 203.0.113.7, 10.0.0.2")], Some("203.0.113.7"));
        check(&[("x-forwarded-for", "10.0.0.3"), ("x-forwarded-for", "10.0.0.2")], Some("10.0.0.3"));
        check(&[("x-forwarded-for", "9.9.9.9, unknown, 10.0.0.2")], Some("10.0.0.2"));
        check(&[("x-forwarded-for", "9.9.9.9, unknown")], None);
        check(&[("x-forwarded-for", "")], None);
        check(&[("forwarded", "for=9.9.9.9")], None);
        check(&[("x-forwarded-for", "\u{e9}, 203.0.113.7")], Some("203.0.113.7"));
        check(&[("x-forwarded-for", "203.0.113.7, \u{e9}")], None);
    }

    #[test]
    fn forwarded_is_read_alike() {
        let header = "for=9.9.9.9;proto=http, For=\"[2001:db8::7]:4711\";by=10.0.0.1, for=\"[2001:db8:ff::1]\"";
        check("10.0.0.1", &[("forwarded", header)], "2001:db8::7");
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
        check("10.0.0.1", &[("x-forwarded-for", "\u{e9}, 203.0.113.7, 10.0.0.2")], "203.0.113.7");
        check("10.0.0.1", &[("x-forwarded-for", "203.0.113.7, \u{e9}, 10.0.0.2")], "10.0.0.2");
        check("10.0.0.1", &[("forwarded", "for=1.2.3.4;host=\"\u{e9}, for=203.0.113.7")], "203.0.113.7");
    }

    /// The client by each source, and whether the two headers contradict each other.
    #[track_caller]
    fn check_sources(headers: &[(&'static str, &str)], expected: [&str; 4], is_disputed: bool) {
        let headers: Headers = headers.iter().copied().collect();
        let peer = IpAddr::from([10, 0, 0, 1]);
        for (source, expected) in ["xff", "forwarded", "hops=1", "hops=2"].into_iter().zip(expected) {
            let trusted = TrustedProxies {
                source: source.parse().unwrap(),
                ..TrustedProxies::new(vec!["10.0.0.0/8".parse().unwrap()])
            };
            let address = expected.parse().unwrap();
            assert_eq!(
                trusted.client(peer, &headers),
                ClientAddress { address, is_disputed },
                "{source} of {headers:?}"
            );
            let untrusted = IpAddr::from([192, 0, 2, 9]);
            assert_eq!(trusted.client(untrusted, &headers), untrusted.into());
        }
    }

    #[test]
    fn the_header_that_is_named_is_believed() {
        let list = ("x-forwarded-for", "6.6.6.6");
        check_sources(&[("forwarded", "for=7.7.7.7"), list], ["6.6.6.6", "7.7.7.7", "6.6.6.6", "6.6.6.6"], true);
        check_sources(&[("forwarded", "for=6.6.6.6"), list], ["6.6.6.6"; 4], false);
        check_sources(&[("forwarded", "proto=https"), list], ["6.6.6.6", "10.0.0.1", "6.6.6.6", "6.6.6.6"], false);
        check_sources(&[list], ["6.6.6.6"; 4], false);
        check_sources(&[("forwarded", "for=7.7.7.7")], ["7.7.7.7", "7.7.7.7", "10.0.0.1", "10.0.0.1"], false);
    }

    #[test]
    fn hops_are_counted_from_the_right_whatever_the_addresses() {
        let list = |text| [("x-forwarded-for", text)];
        check_sources(&list("1.1.1.1, 2.2.2.2, 3.3.3.3"), ["3.3.3.3", "3.3.3.3", "3.3.3.3", "2.2.2.2"], false);
        check_sources(&list("2.2.2.2, 10.0.0.2"), ["2.2.2.2", "2.2.2.2", "10.0.0.2", "2.2.2.2"], false);
        check_sources(&list("1.1.1.1, x, 3.3.3.3"), ["3.3.3.3"; 4], false);
        check_sources(&list("x"), ["10.0.0.1"; 4], false);
    }

    #[test]
    fn sources_are_written_in_three_ways() {
        for text in ["", "XFF", "hops", "hops=", "hops=0", "hops=-1", "hops=256", "x-forwarded-for"] {
            assert!(text.parse::<AddressSource>().is_err(), "{text}");
        }
        assert_eq!("hops=255".parse(), Ok(AddressSource::Hops(NonZeroU8::MAX)));
    }
}
