//! Headers that a proxy removes and adds.

use std::cell::RefCell;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;

use http::{Method, Version};

use super::message::Request;
use super::transport::{Source, TlsInfo};
use crate::message::client_address::TrustedProxies;
use crate::message::headers::{Headers, Names, QUEUE_ENTRY, is_name, text};
use crate::message::host::host_of;
use crate::message::underscores::{REASON, Underscores};

/// Our name in `Via`.
pub(crate) const PSEUDONYM: &str = "weir";

/// Returns whether a header applies to one hop (RFC 9110 section 7.6.1) or holds credentials for a proxy.
///
/// `Transfer-Encoding` is removed because each side frames its own messages. `Upgrade` and `HTTP2-Settings` are removed
/// because the requests after a forwarded `h2c` upgrade would pass no limit; the caller of [`upgrade`] adds a permitted
/// upgrade again. We answer `Expect` ourselves.
fn is_hop_by_hop(name: &[u8]) -> bool {
    match name.len() {
        2 => name.eq_ignore_ascii_case(b"te"),
        6 => name.eq_ignore_ascii_case(b"expect"),
        7 => name.eq_ignore_ascii_case(b"upgrade"),
        10 => name.eq_ignore_ascii_case(b"connection") || name.eq_ignore_ascii_case(b"keep-alive"),
        14 => name.eq_ignore_ascii_case(b"http2-settings"),
        16 => name.eq_ignore_ascii_case(b"proxy-connection"),
        17 => name.eq_ignore_ascii_case(b"transfer-encoding"),
        18 => name.eq_ignore_ascii_case(b"proxy-authenticate"),
        19 => name.eq_ignore_ascii_case(b"proxy-authorization"),
        _ => false,
    }
}

/// The names for which [`is_hop_by_hop`] holds.
const HOP_BY_HOP: Names = Names::new(&[
    "te",
    "expect",
    "upgrade",
    "connection",
    "keep-alive",
    "http2-settings",
    "proxy-connection",
    "transfer-encoding",
    "proxy-authenticate",
    "proxy-authorization",
]);

/// Returns whether a header describes the client or the request's path through proxies. Only proxies may send
/// `X-Forwarded-*`: frameworks build links from `-Prefix` and trust `-Ssl`.
pub(super) fn is_claim(name: &[u8]) -> bool {
    begins_with(name, b"x-forwarded-")
        || (name.len() == 9 && (name.eq_ignore_ascii_case(b"x-real-ip") || name.eq_ignore_ascii_case(b"forwarded")))
}

/// Returns whether a header reports the state of limits or a queue entry. Only we send these.
fn is_of_limits(name: &[u8]) -> bool {
    is_rate_limit(name) || name.eq_ignore_ascii_case(QUEUE_ENTRY.as_bytes())
}

pub(super) fn is_rate_limit(name: &[u8]) -> bool {
    begins_with(name, b"ratelimit") || begins_with(name, b"x-ratelimit-")
}

/// Returns whether the proxy itself writes, removes or replaces a header.
fn is_own(name: &[u8]) -> bool {
    is_claim(name) || is_of_limits(name) || is_hop_by_hop(name) || name.eq_ignore_ascii_case(b"content-length")
}

fn begins_with(name: &[u8], start: &[u8]) -> bool {
    name.get(..start.len()).is_some_and(|given| given.eq_ignore_ascii_case(start))
}

/// The headers that are accepted from clients.
#[derive(Clone, Debug, Default)]
pub struct ClientHeaders {
    pub underscores: Underscores,
    /// Headers that are removed unless a trusted proxy sends them, in addition to those that Weir writes itself. In
    /// lower case, with hyphens for underscores.
    pub dropped: Arc<[String]>,
}

impl ClientHeaders {
    /// Removes headers that neither the rules nor the upstream may see. The error says why the request is malformed.
    pub(crate) fn strip(&self, headers: &mut Headers, is_trusted: bool) -> Result<(), &'static str> {
        if headers.has_underscores() {
            self.strip_underscored(headers, is_trusted)?;
        }
        if !is_trusted {
            for name in self.dropped.iter() {
                headers.remove(name);
            }
        }
        Ok(())
    }

    #[cold]
    fn strip_underscored(&self, headers: &mut Headers, is_trusted: bool) -> Result<(), &'static str> {
        let is_kept = |name: &[u8]| {
            let name = hyphened(name);
            let is_listed = || self.dropped.iter().any(|dropped| dropped.as_bytes() == name);
            // Proxies do not spell these names with underscores, so the client sent them.
            !is_own(&name) && (is_trusted || !is_listed())
        };
        match self.underscores {
            Underscores::Reject => return Err(REASON),
            Underscores::Drop => headers.retain(|name, _| !name.contains(&b'_')),
            Underscores::Keep => headers.retain(|name, _| !name.contains(&b'_') || is_kept(name)),
        }
        Ok(())
    }
}

/// Returns a name in lower case, with hyphens for underscores.
fn hyphened(name: &[u8]) -> Vec<u8> {
    name.iter().map(|byte| if *byte == b'_' { b'-' } else { byte.to_ascii_lowercase() }).collect()
}

/// Removes the headers for this hop only, and those that `Connection` names.
pub(crate) fn strip(headers: &mut Headers) {
    strip_named(headers);
    if headers.may_contain(HOP_BY_HOP) {
        headers.retain(|name, _| !is_hop_by_hop(name));
    }
}

/// Removes the headers that `Connection` names, but not `Connection` itself. Called before the rules are applied,
/// because a limit must not go by headers that the upstream does not receive.
pub(crate) fn strip_named(headers: &mut Headers) {
    let named = named(headers);
    if !named.is_empty() {
        headers.retain(|name, _| {
            is_hop_by_hop(name) || !named.iter().any(|option| name.eq_ignore_ascii_case(option.as_bytes()))
        });
    }
}

/// Removes the headers that only proxies and we may send: the rules must see what the upstream gets. Those that describe the client
/// stay if a trusted proxy sent them.
pub(crate) fn strip_claims(headers: &mut Headers, is_trusted: bool) {
    let is_stripped = |name: &[u8]| (!is_trusted && is_claim(name)) || is_of_limits(name);
    // Most requests have none, and looking is cheaper than writing the rest again.
    if headers.iter().any(|(name, _)| is_stripped(name)) {
        headers.retain(|name, _| !is_stripped(name));
    }
}

/// The options that nearly all `Connection` headers consist of. None of them names a header.
const USUAL: [&str; 4] = ["keep-alive", "close", "upgrade", ""];

/// Returns the other options of the `Connection` headers.
fn named(headers: &Headers) -> Vec<String> {
    let is_usual = |option: &[u8]| USUAL.iter().any(|usual| option.eq_ignore_ascii_case(usual.as_bytes()));
    if headers.all("connection").all(is_usual) {
        return Vec::new();
    }
    let options = headers.all("connection").filter_map(text).flat_map(|line| line.split(',')).map(str::trim);
    options.filter(|option| !is_usual(option.as_bytes())).map(str::to_owned).collect()
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

    #[track_caller]
    fn check_client_headers(underscores: Underscores, is_trusted: bool, expected: &[&str]) {
        let client_headers = ClientHeaders { underscores, dropped: Arc::new(["true-client-ip".to_owned()]) };
        let names = [
            "X-Api-Key",
            "X_Api_Key",
            "X_Forwarded_For",
            "x-forwarded_for",
            "X_Real_IP",
            "X_Queue_Entry",
            "X_RateLimit_Limit",
            "Transfer_Encoding",
            "Content_Length",
            "True_Client_IP",
            "True-Client-IP",
        ];
        let mut headers: Headers = names.iter().map(|name| (name, "1")).collect();
        client_headers.strip(&mut headers, is_trusted).unwrap();
        let kept: Vec<_> = headers.iter().map(|(name, _)| String::from_utf8(name.to_vec()).unwrap()).collect();
        assert_eq!(kept, expected, "{underscores:?}, trusted: {is_trusted}");
    }

    #[test]
    fn names_with_underscores_and_listed_ones_go() {
        check_client_headers(Underscores::Drop, false, &["X-Api-Key"]);
        check_client_headers(Underscores::Drop, true, &["X-Api-Key", "True-Client-IP"]);
        check_client_headers(Underscores::Keep, false, &["X-Api-Key", "X_Api_Key"]);
        check_client_headers(Underscores::Keep, true, &["X-Api-Key", "X_Api_Key", "True_Client_IP", "True-Client-IP"]);
    }

    #[test]
    fn a_rejected_name_is_one_with_an_underscore() {
        let client_headers = ClientHeaders { underscores: Underscores::Reject, ..ClientHeaders::default() };
        let strip = |name| client_headers.strip(&mut Headers::from_iter([(name, "a_b")]), true);
        assert!(strip("x-id").is_ok() && strip("x_id") == Err(REASON));
    }
}
