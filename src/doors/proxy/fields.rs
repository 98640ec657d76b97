//! The fields that a proxy takes away, and those that it adds.

use std::net::IpAddr;

use http::Version;
use http::header::{CONNECTION, CONTENT_LENGTH, HOST, HeaderMap, HeaderName, HeaderValue, VIA};

use super::transport::TlsInfo;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");

/// Whether a field is of one hop (RFC 9110 section 7.6.1), or holds credentials for a proxy, which we are.
///
/// `Transfer-Encoding` goes because each side frames its own messages. `Upgrade` and `HTTP2-Settings` go because no
/// upgrade is offered: an `h2c` that slips through would take the following requests past every limit.
fn is_hop_by_hop(name: &str) -> bool {
    matches!(
        name,
        "connection"
            | "keep-alive"
            | "proxy-connection"
            | "te"
            | "transfer-encoding"
            | "upgrade"
            | "proxy-authorization"
            | "http2-settings"
    )
}

/// Whether a peer says in a field who the client is.
fn is_claim(name: &str) -> bool {
    matches!(name, "x-forwarded-for" | "x-forwarded-proto" | "x-forwarded-host" | "forwarded" | "x-real-ip")
}

/// Fields that a `Connection` field may name without effect: what says where the message goes and how long it is.
const NOT_CONNECTION_OPTIONS: [HeaderName; 2] = [HOST, CONTENT_LENGTH];

/// The pseudonym under which we appear in `Via`.
static VIA_11: HeaderValue = HeaderValue::from_static("1.1 weir");
static VIA_10: HeaderValue = HeaderValue::from_static("1.0 weir");

/// Takes away the fields that are not meant for the next hop.
pub(super) fn strip(headers: &mut HeaderMap) {
    if headers.contains_key(CONNECTION) {
        strip_named(headers);
    }
    remove_all(headers, is_hop_by_hop);
}

/// Takes away what the `Connection` field names.
fn strip_named(headers: &mut HeaderMap) {
    let lines = headers.get_all(CONNECTION).iter().filter_map(|line| line.to_str().ok());
    let options = lines.flat_map(|line| line.split(',')).map(str::trim);
    // `keep-alive` and `close` are what nearly every `Connection` field says, and no field of use.
    let is_field = |option: &&str| !option.eq_ignore_ascii_case("keep-alive") && !option.eq_ignore_ascii_case("close");
    let named: Vec<HeaderName> = options.filter(is_field).filter_map(|option| option.try_into().ok()).collect();
    for name in named.iter().filter(|name| !NOT_CONNECTION_OPTIONS.contains(name)) {
        headers.remove(name);
    }
}

/// Removes the fields that are `unwanted`. To look through the few names of a message costs less than to hash all the
/// names that it might have.
fn remove_all(headers: &mut HeaderMap, unwanted: impl Fn(&str) -> bool) {
    while let Some(name) = headers.keys().find(|name| unwanted(name.as_str())).cloned() {
        headers.remove(name);
    }
}

/// The client's connection, as an upstream is told of it.
#[derive(Debug)]
pub(super) struct Peer {
    /// The address, IPv4-mapped ones folded.
    pub(super) address: IpAddr,
    /// The same as text, made once a connection.
    text: HeaderValue,
    /// Whether it is one of the trusted proxies.
    is_trusted: bool,
    /// What the TLS handshake came to, if there was one.
    pub(super) tls: Option<TlsInfo>,
}

impl Peer {
    pub(super) fn new(address: IpAddr, is_trusted: bool, tls: Option<TlsInfo>) -> Self {
        let address = address.to_canonical();
        // An address is ASCII without controls, so the conversion cannot fail.
        let text = HeaderValue::try_from(address.to_string()).unwrap_or(HeaderValue::from_static("unknown"));
        Self { address, text, is_trusted, tls }
    }

    /// Adds to a request what the upstream should know. Whatever the peer claims to know of the client is kept only if
    /// it is trusted.
    pub(super) fn forward(&self, version: Version, headers: &mut HeaderMap) {
        let host = headers.get(HOST).cloned();
        let protocol = HeaderValue::from_static(if self.tls.is_some() { "https" } else { "http" });
        if self.is_trusted {
            let chain = self.chain(headers);
            headers.insert(X_FORWARDED_FOR, chain);
            headers.entry(X_FORWARDED_PROTO).or_insert(protocol);
            if let Some(host) = host {
                headers.entry(X_FORWARDED_HOST).or_insert(host);
            }
        } else {
            remove_all(headers, is_claim);
            headers.insert(X_FORWARDED_FOR, self.text.clone());
            headers.insert(X_FORWARDED_PROTO, protocol);
            if let Some(host) = host {
                headers.insert(X_FORWARDED_HOST, host);
            }
        }
        headers.append(VIA, if version == Version::HTTP_10 { VIA_10.clone() } else { VIA_11.clone() });
    }

    /// The `X-Forwarded-For` so far, all lines in one, and the peer.
    fn chain(&self, headers: &HeaderMap) -> HeaderValue {
        let mut chain = Vec::new();
        for line in headers.get_all(X_FORWARDED_FOR) {
            chain.extend_from_slice(line.as_bytes());
            chain.extend_from_slice(b", ");
        }
        chain.extend_from_slice(self.text.as_bytes());
        HeaderValue::try_from(chain).unwrap_or_else(|_| self.text.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(fields: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(*name, value.parse().unwrap());
        }
        headers
    }

    fn text(headers: &HeaderMap) -> Vec<String> {
        let mut lines: Vec<_> =
            headers.iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())).collect();
        lines.sort();
        lines
    }

    #[track_caller]
    fn check_strip(given: &[(&'static str, &str)], expected: &[&str]) {
        let mut headers = headers(given);
        strip(&mut headers);
        assert_eq!(text(&headers), expected);
    }

    #[test]
    fn fields_of_one_hop_and_what_connection_names_go() {
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
    fn connection_cannot_name_what_the_message_needs() {
        check_strip(
            &[("connection", "close, Host, content-length, not a token"), ("host", "a"), ("content-length", "3")],
            &["content-length: 3", "host: a"],
        );
    }

    #[track_caller]
    fn check_forward(is_trusted: bool, version: Version, given: &[(&'static str, &str)], expected: &[&str]) {
        let mut headers = headers(given);
        Peer::new("::ffff:10.0.0.9".parse().unwrap(), is_trusted, None).forward(version, &mut headers);
        assert_eq!(text(&headers), expected);
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
