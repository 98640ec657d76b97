//! The original request behind a gateway's question, in each convention.
//!
//! The gateway is trusted, its client is not. A header that the client may have added, one that comes twice or contradicts
//! another one of the gateway, is an error and never a choice.

use std::borrow::Cow;
use std::net::IpAddr;

use super::call::DescribedRequest;
use crate::engine::request::incoming::{Incoming, Preparation};
use crate::engine::text::quote::quoted;
use crate::message::client_address::{ClientAddress, TrustedProxies};
use crate::message::headers::{self, Headers};
use crate::message::host::host_of;
use crate::message::path::EscapedSlashes;
use crate::message::target::UrlError;
use crate::message::underscores::Underscores;
use crate::message::{address, target};

/// A request as a gateway or an application tells it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Original {
    pub(super) method: String,
    /// The client's target, unchanged, or a URL.
    pub(super) target: String,
    /// The host with its port; `None` if an application has it in the URL or among the headers.
    pub(super) authority: Option<String>,
    /// `None` if the gateway does not send it.
    pub(super) client: Option<ClientAddress>,
}

/// Why a request cannot be decided.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum InvalidRequest {
    /// The gateway's configuration is wrong.
    #[error("{0}")]
    Gateway(String),
    /// The gateway's configuration is wrong, and the message quotes a value that may be the client's.
    #[error("{value} {problem}")]
    GatewayValue { value: String, problem: String },
    /// Servers would read the client's request in different ways.
    #[error("{0}")]
    Client(Cow<'static, str>),
}

impl InvalidRequest {
    /// Returns the message without a value of the client's.
    pub(super) fn without_value(&self) -> String {
        match self {
            Self::GatewayValue { problem, .. } => format!("a value {problem}"),
            other => other.to_string(),
        }
    }
}

impl Original {
    fn new(method: &str, target: &str, authority: &str, client: Option<ClientAddress>) -> Self {
        let authority = Some(authority.to_owned());
        Self { method: method.to_owned(), target: target.to_owned(), authority, client }
    }

    /// A request that an application describes, and its headers.
    pub(super) fn described(request: DescribedRequest) -> Result<(Self, Headers), InvalidRequest> {
        let DescribedRequest { method, url, client, headers } = request;
        let has_no_host = headers.get("host").is_none_or(<[u8]>::is_empty);
        if has_no_host && !target::is_absolute(&url) {
            return Err(missing("Host", "give an absolute `url`, or `host` among the `headers`"));
        }
        let client = client.map(ClientAddress::from);
        Ok((Self { method, target: url, authority: None, client }, headers))
    }

    /// `headers` are those of the gateway's question or of the application's description.
    pub(super) fn incoming<'a>(
        &'a self,
        headers: &'a mut Headers,
        underscores: Underscores,
        slashes: EscapedSlashes,
    ) -> Incoming<'a> {
        let (method, target, authority) = (Some(self.method.as_str()), &self.target, self.authority.as_deref());
        let preparation = Preparation::Asked(underscores);
        Incoming { method, target, query: None, authority, headers, preparation, slashes }
    }
}

/// Reads the headers that a gateway sends.
pub(super) struct GatewayReader<'a> {
    pub(super) headers: &'a Headers,
    pub(super) trusted: &'a TrustedProxies,
}

impl GatewayReader<'_> {
    /// Envoy's `ext_authz` over HTTP sends the request itself. `rest` is its target, which Envoy appends to our path.
    ///
    /// `X-Envoy-External-Address` comes from Envoy only with `use_remote_address`, and is sent only if `allowed_headers`
    /// lists it, like any header.
    pub(super) fn envoy(&self, method: &str, rest: &str) -> Result<Original, InvalidRequest> {
        if rest.is_empty() || rest.starts_with('?') {
            let reason = "the original path is missing: write `path_prefix: /envoy`, and no `path_override`";
            return Err(InvalidRequest::Gateway(reason.to_owned()));
        }
        let (headers, trusted) = (self.headers, self.trusted);
        let host = required(headers, "Host", "Envoy always sends it")?;
        let client = match address(headers, "X-Envoy-External-Address")? {
            Some(client) => Some(client.into()),
            None => trusted.client_of_gateway(headers),
        };
        Ok(Original::new(method, rest, host, client))
    }

    /// nginx' `auth_request`: `X-Original-Method`, `-URI` and `-Host` and `X-Real-IP`, as our example sets them; or
    /// `X-Original-URL`, as ingress-nginx sends it; or `Method`, `Path` and the original `Host`, as NGINX Gateway Fabric
    /// sends them.
    ///
    /// A client of one may send the headers of another. So `Method` and `Path` count only without `X-Original-*`, and
    /// `X-Original-URI` and `-URL` must agree if both are there.
    pub(super) fn nginx(&self) -> Result<Original, InvalidRequest> {
        let (headers, trusted) = (self.headers, self.trusted);
        let client = match address(headers, "X-Real-IP")? {
            // From nginx' socket or its realip module: it stands for the socket's peer.
            Some(peer) => Some(trusted.client(peer, headers)),
            None => trusted.client_of_gateway(headers),
        };
        let (uri, url) = (only(headers, "X-Original-URI")?, only(headers, "X-Original-URL")?);
        if uri.is_none() && url.is_none() {
            let set = "write `proxy_set_header X-Original-URI $request_uri;`";
            let Some(path) = only(headers, "Path")? else { return Err(missing("X-Original-URI", set)) };
            let method = required(headers, "Method", "it belongs to `Path`")?;
            let host = required(headers, "Host", "it belongs to `Path`")?;
            return Ok(Original::new(method, path, host, client));
        }
        let method = "write `proxy_set_header X-Original-Method $request_method;`";
        let method = required(headers, "X-Original-Method", method)?;
        let url = url.map(|url| split_url(method, url)).transpose()?;
        let (authority, target) = url.as_ref().map(|(authority, target)| (*authority, &**target)).unzip();
        let target = agreed(["X-Original-URI", "X-Original-URL"], uri, target, |uri, target| uri == target, "")?;
        let host = only(headers, "X-Original-Host")?;
        let is_same = |host: &str, authority: &str| host_of(host) == host_of(authority);
        let set = "write `proxy_set_header X-Original-Host $host;`";
        let host = agreed(["X-Original-Host", "X-Original-URL"], host, authority, is_same, set)?;
        Ok(Original::new(method, target, host, client))
    }

    /// Traefik's `ForwardAuth`, Caddy's `forward_auth`, and HAProxy with these headers set: `X-Forwarded-Method`, `-Uri`,
    /// `-Host` and `-For`.
    pub(super) fn forward(&self) -> Result<Original, InvalidRequest> {
        const SET: &str = "Traefik and Caddy always send it, HAProxy with `http-request set-header`";
        let (headers, trusted) = (self.headers, self.trusted);
        let method = required(headers, "X-Forwarded-Method", SET)?;
        let target = required(headers, "X-Forwarded-Uri", SET)?;
        let host = required(headers, "X-Forwarded-Host", SET)?;
        Ok(Original::new(method, target, host, trusted.client_of_gateway(headers)))
    }
}

/// Returns the value of a header that may come once. An empty one counts as absent: nginx sends unset variables so.
fn single<'a>(headers: &'a Headers, name: &'static str) -> Result<Option<&'a [u8]>, InvalidRequest> {
    let mut values = headers.all(name);
    let (first, second) = (values.next(), values.next());
    if second.is_some() {
        let reason = format!("`{name}` comes twice; let the gateway replace the client's header, not add to it");
        return Err(InvalidRequest::Gateway(reason));
    }
    Ok(first.map(<[u8]>::trim_ascii).filter(|value| !value.is_empty()))
}

/// Like [`single`], for a part of the client's request.
fn only<'a>(headers: &'a Headers, name: &'static str) -> Result<Option<&'a str>, InvalidRequest> {
    let text = |value| headers::text(value).ok_or(InvalidRequest::Client(NOT_TEXT.into()));
    single(headers, name)?.map(text).transpose()
}

const NOT_TEXT: &str = "the target and the host must be printable ASCII";

/// Like [`single`], for an address.
fn address(headers: &Headers, name: &'static str) -> Result<Option<IpAddr>, InvalidRequest> {
    let parse = |value: &[u8]| {
        let text = String::from_utf8_lossy(value);
        address::parse(&text).map_err(|_| InvalidRequest::GatewayValue {
            value: quoted(&text),
            problem: format!("in `{name}` is not an IP address"),
        })
    };
    single(headers, name)?.map(parse).transpose()
}

fn required<'a>(headers: &'a Headers, name: &'static str, help: &str) -> Result<&'a str, InvalidRequest> {
    only(headers, name)?.ok_or_else(|| missing(name, help))
}

fn missing(name: &str, help: &str) -> InvalidRequest {
    InvalidRequest::Gateway(format!("`{name}` is missing; {help}"))
}

/// Returns the value of two headers that must agree if both are there.
fn agreed<'a>(
    [name, other_name]: [&str; 2],
    value: Option<&'a str>,
    other: Option<&'a str>,
    is_same: impl Fn(&str, &str) -> bool,
    help: &str,
) -> Result<&'a str, InvalidRequest> {
    if value.zip(other).is_some_and(|(value, other)| !is_same(value, other)) {
        let reason = format!("`{name}` and `{other_name}` contradict each other; let the gateway set or remove both");
        return Err(InvalidRequest::Gateway(reason));
    }
    value.or(other).ok_or_else(|| missing(name, help))
}

/// Splits an absolute URL into its authority and target.
fn split_url<'a>(method: &str, url: &'a str) -> Result<(&'a str, Cow<'a, str>), InvalidRequest> {
    target::split_url(method, url).map_err(|error| match error {
        UrlError::Form => InvalidRequest::GatewayValue {
            value: quoted(url),
            problem: "is not an `http://` or `https://` URL".to_owned(),
        },
        UrlError::Authority => InvalidRequest::Client(error.reason().into()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    type Lines<'a> = &'a [(&'a str, &'a str)];

    /// Formats a request as `METHOD target authority client`.
    fn shown(original: Result<Original, InvalidRequest>) -> String {
        match original {
            Ok(original) => {
                let mut headers = Headers::new();
                if let Err(reason) = original.incoming(&mut headers, Underscores::Drop, EscapedSlashes::Keep).read() {
                    return format!("client: {reason}");
                }
                let Original { method, target, authority, client } = original;
                let authority = authority.unwrap_or_default();
                let client = client.map_or_else(|| "-".to_owned(), |client| client.address.to_string());
                format!("{method} {target} {authority} {client}")
            }
            Err(InvalidRequest::Client(reason)) => format!("client: {reason}"),
            Err(unusable) => format!("gateway: {unusable}"),
        }
    }

    fn reader<'a>(headers: &'a Headers, trusted: &'a TrustedProxies) -> GatewayReader<'a> {
        GatewayReader { headers, trusted }
    }

    fn trusted() -> TrustedProxies {
        TrustedProxies::new(vec!["10.0.0.0/8".parse().unwrap()])
    }

    #[track_caller]
    fn check(found: Result<Original, InvalidRequest>, expected: &str) {
        let found = shown(found);
        // What begins with a blame is a part of the reason.
        let (blame, part) = expected.split_once(": ").unwrap_or(("", expected));
        if matches!(blame, "gateway" | "client") {
            assert!(found.starts_with(&format!("{blame}: ")) && found.contains(part), "{found}, not {expected}");
        } else {
            assert_eq!(found, expected);
        }
    }

    #[track_caller]
    fn check_nginx(lines: Lines<'_>, expected: &str) {
        let headers: Headers = lines.iter().copied().collect();
        check(reader(&headers, &trusted()).nginx(), expected);
    }

    /// The headers of our example configuration.
    const NGINX: [(&str, &str); 5] = [
        ("Host", "limiter"),
        ("X-Original-Method", "POST"),
        ("X-Original-URI", "/x%2e%2e//y?q=1"),
        ("X-Original-Host", "A.example"),
        ("X-Real-IP", "203.0.113.7"),
    ];

    fn nginx_with(more: Lines<'_>) -> Vec<(&str, &str)> {
        NGINX.into_iter().chain(more.iter().copied()).collect()
    }

    fn nginx_without(name: &str) -> Vec<(&'static str, &'static str)> {
        NGINX.into_iter().filter(|(given, _)| *given != name).collect()
    }

    #[test]
    fn nginx_says_it_in_four_headers() {
        check_nginx(&NGINX, "POST /x%2e%2e//y?q=1 A.example 203.0.113.7");
        for name in ["X-Original-Method", "X-Original-URI", "X-Original-Host"] {
            check_nginx(&nginx_without(name), &format!("gateway: `{name}` is missing"));
            check_nginx(
                &nginx_with(&[(&name.to_lowercase(), "/x%2e%2e//y?q=1")]),
                &format!("gateway: `{name}` comes twice"),
            );
        }
        check_nginx(&nginx_without("X-Real-IP"), "POST /x%2e%2e//y?q=1 A.example -");
        check_nginx(&nginx_with(&[("x-real-ip", "1.2.3.4")]), "gateway: `X-Real-IP` comes twice");
        // What the client claims counts only behind a proxy that is trusted.
        check_nginx(&nginx_with(&[("X-Forwarded-For", "1.2.3.4")]), "POST /x%2e%2e//y?q=1 A.example 203.0.113.7");
        let mut behind = nginx_without("X-Real-IP");
        behind.extend([("X-Real-IP", "10.0.0.1"), ("X-Forwarded-For", "9.9.9.9, 198.51.100.1, 10.0.0.2")]);
        check_nginx(&behind, "POST /x%2e%2e//y?q=1 A.example 198.51.100.1");
        behind[4].1 = "unix:";
        check_nginx(&behind, "gateway: `unix:` in `X-Real-IP` is not an IP address");
        behind[4].1 = "10.0.0.\u{e9}";
        check_nginx(&behind, "gateway: is not an IP address");
        // A byte of the client's does not hide what its proxies have added.
        behind[4..]
            .copy_from_slice(&[("X-Real-IP", "10.0.0.1"), ("X-Forwarded-For", "\u{e9}, 198.51.100.1, 10.0.0.2")]);
        check_nginx(&behind, "POST /x%2e%2e//y?q=1 A.example 198.51.100.1");
    }

    #[test]
    fn a_client_cannot_add_the_headers_of_another_gateway() {
        check_nginx(&nginx_with(&[("Path", "/free"), ("Method", "GET")]), "POST /x%2e%2e//y?q=1 A.example 203.0.113.7");
        check_nginx(&nginx_with(&[("X-Original-URL", "https://a.example/free")]), "gateway: contradict");
        check_nginx(&nginx_with(&[("X-Original-URL", "https://b.example/x%2e%2e//y?q=1")]), "gateway: contradict");
        check_nginx(
            &nginx_with(&[("X-Original-URL", "https://a.example:443/x%2e%2e//y?q=1")]),
            "POST /x%2e%2e//y?q=1 A.example 203.0.113.7",
        );
    }

    #[test]
    fn ingress_nginx_and_nginx_gateway_fabric_say_it_otherwise() {
        let ingress = [
            ("Host", "limiter"),
            ("X-Original-URL", "https://a.example:8443/x?q=1"),
            ("X-Original-Method", "PUT"),
            ("X-Real-IP", "203.0.113.7"),
            ("X-Forwarded-For", "203.0.113.7"),
        ];
        check_nginx(&ingress, "PUT /x?q=1 a.example:8443 203.0.113.7");
        let with = |name, value| ingress.into_iter().chain([(name, value)]).collect::<Vec<_>>();
        check_nginx(&with("X-Original-URI", "/x?q=1"), "PUT /x?q=1 a.example:8443 203.0.113.7");
        check_nginx(&with("X-Original-URI", "/free"), "gateway: contradict");
        check_nginx(&with("X-Original-Host", "b.example"), "gateway: contradict");
        for (url, expected) in [
            ("/x", "gateway: `/x` is not an `http://` or `https://` URL"),
            ("ftp://a.example/x", "gateway: is not an `http://`"),
            ("http://a b/x", "client: not a valid host"),
            ("http://a.example?q", "PUT /?q a.example -"),
            ("http:///x", "client: not a valid host"),
        ] {
            check_nginx(&[("X-Original-URL", url), ("X-Original-Method", "PUT")], expected);
        }
        let fabric = [("Host", "a.example"), ("Method", "PATCH"), ("Path", "/x?q=1")];
        check_nginx(&fabric, "PATCH /x?q=1 a.example -");
        check_nginx(&fabric[..2], "gateway: `X-Original-URI` is missing");
        check_nginx(&fabric[1..], "gateway: `Host` is missing");
        check_nginx(&[fabric[0], fabric[2]], "gateway: `Method` is missing");
    }

    #[test]
    fn forwarded_headers_tell_of_a_request_too() {
        let given = [
            ("Host", "limiter"),
            ("X-Forwarded-Method", "POST"),
            ("X-Forwarded-Uri", "/x%2e%2e//y?q=1"),
            ("X-Forwarded-Host", "a.example"),
            ("X-Forwarded-For", "9.9.9.9, 203.0.113.7"),
        ];
        let forward = |lines: Lines<'_>, expected: &str| {
            let headers: Headers = lines.iter().copied().collect();
            check(reader(&headers, &trusted()).forward(), expected);
        };
        forward(&given, "POST /x%2e%2e//y?q=1 a.example 203.0.113.7");
        forward(&given[..4], "POST /x%2e%2e//y?q=1 a.example -");
        let appended = [&given[..4], &[("X-Forwarded-For", "\u{e9}, 203.0.113.7")]].concat();
        forward(&appended, "POST /x%2e%2e//y?q=1 a.example 203.0.113.7");
        for missing in 1..4 {
            let name = given[missing].0;
            let lines: Vec<_> = given.into_iter().filter(|(other, _)| *other != name).collect();
            forward(&lines, &format!("gateway: `{name}` is missing"));
            let lines: Vec<_> = given.into_iter().chain([(name, "x")]).collect();
            forward(&lines, &format!("gateway: `{name}` comes twice"));
        }
    }

    #[test]
    fn envoy_asks_with_the_request_itself() {
        let envoy = |method: &str, rest: &str, lines: Lines<'_>, expected: &str| {
            let headers: Headers = lines.iter().copied().collect();
            check(reader(&headers, &trusted()).envoy(method, rest), expected);
        };
        let host = ("host", "a.example:8080");
        let lines = [host, ("x-forwarded-for", "9.9.9.9,203.0.113.7"), ("x-envoy-external-address", "198.51.100.9")];
        envoy("POST", "/x%2e%2e//y?q=1", &lines, "POST /x%2e%2e//y?q=1 a.example:8080 198.51.100.9");
        envoy("GET", "/", &lines[..2], "GET / a.example:8080 203.0.113.7");
        envoy("GET", "/", &[host], "GET / a.example:8080 -");
        envoy("OPTIONS", "*", &[host], "OPTIONS * a.example:8080 -");
        envoy("GET", "*", &[host], "client: only OPTIONS");
        envoy("GET", "", &[host], "gateway: path_override");
        envoy("GET", "?q=1", &[host], "gateway: path_override");
        envoy("GET", "/", &[], "gateway: `Host` is missing");
        envoy("GET", "/", &[host, lines[2], lines[2]], "gateway: comes twice");
        envoy("GET", "/", &[host, ("x-envoy-external-address", "x")], "gateway: not an IP address");
    }

    #[test]
    fn what_servers_read_differently_is_the_clients_mistake() {
        for (method, target, host, part) in [
            ("get", "/", "a", "upper case"),
            ("GET", "x", "a", "a target must be a path"),
            ("GET", "/", "a/b", "host"),
            ("GET", "http://b/", "a", "contradict each other"),
        ] {
            check(Ok(Original::new(method, target, host, None)), &format!("client: {part}"));
        }
        check(Ok(Original::new("GET", "http://A/x", "a:80", None)), "GET http://A/x a:80 -");
        check_nginx(&[("X-Original-URI", "/\u{e4}"), ("X-Original-Method", "GET")], "client: printable ASCII");
    }
}
