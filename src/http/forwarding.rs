//! Headers that a proxy removes and adds.

use std::cell::RefCell;
use std::net::IpAddr;
use std::rc::Rc;

use http::{Method, Version};

use super::message::Request;
use super::transport::{Source, TlsInfo};
use crate::message::client_address::TrustedProxies;
use crate::message::client_headers::{
    HOP_BY_HOP, hyphened, is_claim, is_hop_by_hop, is_of_limits, is_own, strip_named,
};
use crate::message::headers::{Headers, is_name, text};
use crate::message::host::host_of;

/// Our name in `Via`.
pub(crate) const PSEUDONYM: &str = "weir";

/// Removes the headers for this hop only, and those that `Connection` names.
pub(crate) fn strip(headers: &mut Headers) {
    strip_named(headers);
    if headers.may_contain(HOP_BY_HOP) {
        headers.retain(|name, _| !is_hop_by_hop(name));
    }
}

/// Returns the protocol to upgrade to, if the client asks for one and may have it.
///
/// HTTP/2 may not: its requests would pass no limit ("h2c smuggling"). TLS may not, because it ends here. A WebSocket
/// starts with GET (RFC 6455 section 4.1), and no upgrade starts with HTTP/1.0 or is followed by a body.
pub(crate) fn upgrade(request: &Request) -> Option<&str> {
    let protocol = wanted_protocol(&request.headers)?;
    let is_possible = request.version == Version::HTTP_11
        && request.body.is_end()
        && (request.method == Method::GET || !protocol.eq_ignore_ascii_case("websocket"));
    is_possible.then_some(protocol)
}

fn wanted_protocol(headers: &Headers) -> Option<&str> {
    // Only one line with one protocol (RFC 9110 section 7.8): an upstream may choose any protocol of a list, or read an
    // invalid name as a list.
    let mut lines = headers.all("upgrade");
    let protocol = lines.next().filter(|_| lines.next().is_none()).and_then(text)?.trim();
    let (name, version) = protocol.split_once('/').map_or((protocol, None), |(name, version)| (name, Some(version)));
    if !is_name(name.as_bytes()) || version.is_some_and(|version| !is_name(version.as_bytes())) {
        return None;
    }
    let wanted = headers.all("connection").filter_map(text).flat_map(|line| line.split(','));
    let is_wanted = wanted.into_iter().any(|option| option.trim().eq_ignore_ascii_case("upgrade"));
    let is_forbidden = ["h2", "h2c", "http", "tls"].iter().any(|known| name.eq_ignore_ascii_case(known));
    (is_wanted && !is_forbidden).then_some(protocol)
}

/// Returns trailers without those that are forbidden there (RFC 9110 section 6.5.1), in any spelling: framing, routing,
/// credentials, and headers that we send before the body.
pub(crate) fn trailers(mut trailers: Headers) -> Headers {
    const FORBIDDEN: [&str; 16] = [
        "content-encoding",
        "content-type",
        "content-range",
        "host",
        "authorization",
        "cookie",
        "set-cookie",
        "cache-control",
        "trailer",
        "max-forwards",
        "age",
        "date",
        "location",
        "retry-after",
        "via",
        "www-authenticate",
    ];
    trailers.retain(|name, _| {
        let name = hyphened(name);
        !is_own(&name) && !FORBIDDEN.iter().any(|forbidden| name == forbidden.as_bytes())
    });
    trailers
}

/// The other end of a client's connection.
#[derive(Debug)]
pub(crate) struct Peer {
    /// IPv4-mapped addresses are IPv4 addresses here.
    pub(crate) source: Source,
    /// The address as text, made once per connection; empty if it is not known.
    text: String,
    /// True for a trusted proxy.
    pub(crate) is_trusted: bool,
    /// The result of the TLS handshake, if there was one.
    pub(crate) tls: Option<TlsInfo>,
    /// The last request's host.
    host: RefCell<Option<KnownHost>>,
}

/// A `Host` header and its host.
#[derive(Debug)]
struct KnownHost {
    header: Box<[u8]>,
    host: Rc<str>,
}

/// The longest `Host` header that is remembered, in bytes: the longest name (RFC 1035 section 2.3.4) and a port.
const LONGEST_HOST: usize = 260;

impl Peer {
    pub(crate) fn new(source: Source, trusted: &TrustedProxies, tls: Option<TlsInfo>) -> Self {
        let Source::Address(address) = source else {
            return Self { source, text: String::new(), is_trusted: false, tls, host: RefCell::default() };
        };
        let address = address.to_canonical();
        let (source, is_trusted) = (Source::Address(address), trusted.contains(address));
        Self { source, text: address.to_string(), is_trusted, tls, host: RefCell::default() }
    }

    pub(crate) const fn address(&self) -> Option<IpAddr> {
        if let Source::Address(address) = self.source { Some(address) } else { None }
    }

    /// Returns the host of a `Host` header, as [`host_of`] does; `None` if it is not valid.
    ///
    /// Nearly all requests of a connection name the same host. Comparing the header takes a tenth of the instructions
    /// of parsing it.
    pub(crate) fn host(&self, header: &[u8]) -> Option<Rc<str>> {
        let mut last = self.host.borrow_mut();
        if let Some(known) = last.as_ref().filter(|known| *known.header == *header) {
            return Some(known.host.clone());
        }
        let host: Rc<str> = std::str::from_utf8(header).ok().and_then(host_of)?.into();
        if header.len() <= LONGEST_HOST {
            *last = Some(KnownHost { header: header.into(), host: host.clone() });
        }
        Some(host)
    }

    /// Returns the subject of its verified certificate.
    pub(crate) fn subject(&self) -> Option<&str> {
        self.tls.as_ref().and_then(|tls| tls.subject.as_deref())
    }

    pub(crate) const fn scheme(&self) -> &'static str {
        if self.tls.is_some() { "https" } else { "http" }
    }

    /// Removes the headers for this hop only, except those that `Connection` names, and adds the headers that describe the
    /// client to the upstream. Those that the peer sent are kept only if it is trusted.
    pub(crate) fn forward(&self, version: Version, headers: &mut Headers) {
        const FOR: &str = "x-forwarded-for";
        const PROTO: &str = "x-forwarded-proto";
        const HOST: &str = "x-forwarded-host";
        let proto = self.scheme();
        if self.is_trusted {
            let chain = self.chain(headers);
            headers.retain(|name, _| {
                !is_hop_by_hop(name) && !is_of_limits(name) && !name.eq_ignore_ascii_case(FOR.as_bytes())
            });
            headers.append(FOR, chain);
            if !headers.contains(PROTO) {
                headers.append(PROTO, proto);
            }
            if !headers.contains(HOST) {
                headers.append_copy(HOST, "host");
            }
        } else {
            headers.retain(|name, _| !is_hop_by_hop(name) && !is_claim(name) && !is_of_limits(name));
            if !self.text.is_empty() {
                headers.append(FOR, &self.text);
            }
            headers.append(PROTO, proto);
            headers.append_copy(HOST, "host");
        }
        headers.append("via", via(version));
    }

    /// Returns all `X-Forwarded-For` lines as one, and the peer.
    fn chain(&self, headers: &Headers) -> Vec<u8> {
        let mut chain = Vec::new();
        for line in headers.all("x-forwarded-for") {
            chain.extend_from_slice(line);
            chain.extend_from_slice(b", ");
        }
        chain.extend_from_slice(self.text.as_bytes());
        chain
    }
}

/// Returns our `Via` entry for a message that came by this version.
const fn via(version: Version) -> &'static str {
    match version {
        Version::HTTP_10 => "1.0 weir",
        Version::HTTP_2 => "2 weir",
        _ => "1.1 weir",
    }
}

/// Returns how often a request has passed through Weir, by its `Via`.
pub(crate) fn hops(headers: &Headers) -> usize {
    let entries = headers.all("via").flat_map(|line| line.split(|byte| *byte == b','));
    let received_by = |entry: &[u8]| {
        let mut words = entry.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
        words.nth(1) == Some(PSEUDONYM.as_bytes())
    };
    entries.filter(|entry| received_by(entry)).count()
}

#[cfg(test)]
impl Peer {
    /// A client at this address.
    pub(crate) fn untrusted(address: [u8; 4]) -> Self {
        Self::new(Source::Address(address.into()), &TrustedProxies::default(), None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(headers: &Headers) -> Vec<String> {
        let line = |(name, value)| format!("{}: {}", text(name).unwrap(), text(value).unwrap());
        let mut lines: Vec<_> = headers.iter().map(line).collect();
        lines.sort();
        lines
    }

    #[track_caller]
    fn check_strip(given: &[(&'static str, &str)], expected: &[&str]) {
        let mut headers: Headers = given.iter().copied().collect();
        strip(&mut headers);
        assert_eq!(lines(&headers), expected);
    }

    #[test]
    fn headers_of_one_hop_and_what_connection_names_go() {
        check_strip(
            &[
                ("connection", "keep-alive, X-Hop"),
                ("connection", "upgrade,  x-other"),
                ("x-hop", "1"),
                ("x-other", "1"),
                ("upgrade", "h2c"),
                ("http2-settings", "AAMAAABk"),
                ("keep-alive", "timeout=5"),
                ("proxy-connection", "keep-alive"),
                ("proxy-authorization", "Basic eDp5"),
                ("te", "trailers"),
                ("transfer-encoding", "chunked"),
                ("authorization", "Bearer x"),
                ("trailer", "x-sum"),
            ],
            &["authorization: Bearer x", "trailer: x-sum"],
        );
    }

    #[test]
    fn only_upgrades_that_cannot_carry_requests_pass() {
        let check = |connection, protocol, expected| {
            let headers = Headers::from_iter([("Connection", connection), ("Upgrade", protocol)]);
            assert_eq!(wanted_protocol(&headers), expected, "{connection}, {protocol}");
        };
        check("keep-alive, Upgrade", "websocket", Some("websocket"));
        check("upgrade", "IRC/6.9", Some("IRC/6.9"));
        for protocol in [
            "h2c",
            "H2C",
            "h2",
            "TLS/1.3",
            "HTTP/2.0",
            "websocket, h2c",
            "",
            "websocket h2c",
            "websocket;h2c",
            "websocket,",
            "websocket/13 h2c",
            "websocket/",
            "/13",
            "websocket/1/2",
        ] {
            check("upgrade", protocol, None);
        }
        let two = [("Connection", "upgrade"), ("Upgrade", "websocket"), ("Upgrade", "h2c")];
        assert_eq!(wanted_protocol(&Headers::from_iter(two)), None);
        check("keep-alive", "websocket", None);
    }

    #[test]
    fn trailers_say_nothing_that_was_to_be_known_before() {
        let given =
            ["grpc-status", "Content-Length", "RateLimit", "X_RateLimit_Limit", "Host", "TE", "x_real-ip", "x-sum"];
        let kept = trailers(given.iter().map(|name| (name, "1")).collect());
        assert_eq!(lines(&kept), ["grpc-status: 1", "x-sum: 1"]);
    }

    #[test]
    fn a_request_that_was_here_is_recognised() {
        let headers = Headers::from_iter([("via", "1.1 weir, 1.0 weirs"), ("Via", "2 weir (x)"), ("via", "weir")]);
        assert_eq!(hops(&headers), 2);
        assert_eq!(hops(&Headers::from_iter([("via", "\u{e9}, 1.1 weir")])), 1, "what a client sends hides nothing");
    }

    #[test]
    fn a_host_is_remembered_for_the_same_field_alone() {
        let peer = Peer::untrusted([192, 0, 2, 7]);
        let long = "a".repeat(LONGEST_HOST + 1);
        let headers =
            ["A.example:80", "A.example:80", "a.example", "b c", "caf\u{e9}", "b.example", &long, &long, "b.example"];
        for header in headers {
            assert_eq!(peer.host(header.as_bytes()).as_deref(), host_of(header).as_deref(), "{header}");
        }
        assert!(peer.host(b"\xff").is_none());
        let again =
            [peer.host(b"b.example"), peer.host(b"b.example"), peer.host(long.as_bytes()), peer.host(long.as_bytes())];
        let [known, same, read, anew] = again.map(Option::unwrap);
        assert!(Rc::ptr_eq(&known, &same) && !Rc::ptr_eq(&read, &anew), "what is too long is not kept");
    }

    #[track_caller]
    fn check_forward(is_trusted: bool, version: Version, given: &[(&'static str, &str)], expected: &[&str]) {
        let mut headers: Headers = given.iter().copied().collect();
        let networks = is_trusted.then(|| "10.0.0.0/8".parse().unwrap());
        let trusted = TrustedProxies::new(networks.into_iter().collect());
        Peer::new(Source::Address("::ffff:10.0.0.9".parse().unwrap()), &trusted, None).forward(version, &mut headers);
        assert_eq!(lines(&headers), expected);
    }

    #[test]
    fn each_header_for_one_hop_is_looked_for() {
        for name in [
            "TE",
            "Expect",
            "Upgrade",
            "Connection",
            "Keep-Alive",
            "HTTP2-Settings",
            "Proxy-Connection",
            "Transfer-Encoding",
            "Proxy-Authenticate",
            "Proxy-Authorization",
        ] {
            let mut headers = Headers::from_iter([(name, "close")]);
            strip(&mut headers);
            assert!(headers.is_empty(), "{name}");
        }
    }

    #[test]
    fn of_a_client_without_an_address_nothing_is_said() {
        for source in [Source::Local, Source::Unknown] {
            let everybody = TrustedProxies::new(vec!["0.0.0.0/0".parse().unwrap(), "::/0".parse().unwrap()]);
            let mut headers = Headers::from_iter([("x-forwarded-for", "1.2.3.4"), ("forwarded", "for=1.2.3.4")]);
            Peer::new(source, &everybody, None).forward(Version::HTTP_11, &mut headers);
            assert_eq!(lines(&headers), ["via: 1.1 weir", "x-forwarded-proto: http"]);
        }
    }

    #[test]
    fn what_an_untrusted_peer_claims_is_replaced() {
        check_forward(
            false,
            Version::HTTP_11,
            &[
                ("host", "a.example:8080"),
                ("x-forwarded-for", "1.2.3.4"),
                ("x-forwarded-for", "5.6.7.8"),
                ("x-forwarded-proto", "https"),
                ("x-forwarded-host", "evil.example"),
                ("X-Forwarded-Prefix", "/admin"),
                ("x-ratelimit-remaining", "9"),
                ("RateLimit", "9"),
                ("forwarded", "for=1.2.3.4"),
                ("x-real-ip", "1.2.3.4"),
                ("via", "1.0 front"),
            ],
            &[
                "host: a.example:8080",
                "via: 1.0 front",
                "via: 1.1 weir",
                "x-forwarded-for: 10.0.0.9",
                "x-forwarded-host: a.example:8080",
                "x-forwarded-proto: http",
            ],
        );
    }

    #[test]
    fn what_a_trusted_peer_knows_is_kept_and_continued() {
        check_forward(
            true,
            Version::HTTP_10,
            &[
                ("host", "inner.example"),
                ("x-forwarded-for", "1.2.3.4, 5.6.7.8"),
                ("x-forwarded-for", "10.0.0.1"),
                ("x-forwarded-proto", "https"),
                ("x-real-ip", "1.2.3.4"),
            ],
            &[
                "host: inner.example",
                "via: 1.0 weir",
                "x-forwarded-for: 1.2.3.4, 5.6.7.8, 10.0.0.1, 10.0.0.9",
                "x-forwarded-host: inner.example",
                "x-forwarded-proto: https",
                "x-real-ip: 1.2.3.4",
            ],
        );
    }
}
