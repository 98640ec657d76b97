//! Access to routes: the names in `Host`, the origins of a browser's requests, and the operators' tokens.
//!
//! A page in a browser may have its own name resolve to the listener's address (DNS rebinding). Its requests carry that name
//! in `Host`, so only names that belong to the listener are served: `localhost`, IP addresses, and those of `--admin-host`.
//! A request with a valid token does not come from such a page.

use std::net::SocketAddr;

use http::header::{AUTHORIZATION, HOST, HeaderMap, HeaderValue, ORIGIN, USER_AGENT};
use http::request::Parts;
use http::{Method, StatusCode};

use super::Admin;
use super::change::{Caller, Rejection};
use super::routes::Access;
use crate::engine::text::quote::{quoted, shown};
use crate::message::address;
use crate::message::host::host_of;

/// The characters of a `User-Agent` in the log.
const MAX_SHOWN_AGENT: usize = 100;

/// The texts for a request without a usable token.
#[derive(Clone, Copy, Debug)]
pub(super) struct TokenHelp {
    /// For a listener without tokens.
    not_enabled: &'static str,
    missing: &'static str,
}

pub(super) const FOR_CHANGES: TokenHelp = TokenHelp {
    not_enabled: "changes are not enabled: start Weir with `--admin-token-file FILE` or WEIR_ADMIN_TOKEN, and send the \
                  token as `Authorization: Bearer TOKEN`",
    missing: "a change needs a token: send `Authorization: Bearer TOKEN`",
};

const FOR_IDS: TokenHelp = TokenHelp {
    not_enabled: "reading ids is not enabled, because this listener is not on a loopback address: start Weir with \
                  `--admin-token-file FILE` or WEIR_ADMIN_TOKEN, and send the token as `Authorization: Bearer TOKEN`; or \
                  bind the listener to a loopback address",
    missing: "reading ids over the network needs a token: send `Authorization: Bearer TOKEN`",
};

impl Admin {
    /// Checks everything but the token of a change, which [`Admin::change`] checks and counts.
    pub(super) fn admit(&self, access: Access, head: &Parts, peer: Option<SocketAddr>) -> Result<(), Rejection> {
        let is_local = self.options.is_local;
        let is_any_name = access == Access::Probe || access == Access::Scrape && !is_local;
        if !is_any_name {
            self.check_host(&head.headers)?;
        }
        if !matches!(head.method, Method::GET | Method::HEAD) {
            check_site(&head.headers)?;
        }
        if access == Access::Ids && !is_local {
            self.authorize(head, peer, FOR_IDS)?;
        }
        Ok(())
    }

    fn check_host(&self, headers: &HeaderMap) -> Result<(), Rejection> {
        let is_local = self.options.is_local;
        let is_own = |host: &&HeaderValue| {
            let host = host.to_str().ok().and_then(host_of);
            host.is_some_and(|host| match address::parse(&host) {
                Ok(address) => !is_local || address.is_loopback(),
                Err(_) => {
                    host == "localhost"
                        || host.ends_with(".localhost")
                        || self.options.hosts.iter().any(|own| *own == host)
                }
            })
        };
        let Some(foreign) = headers.get_all(HOST).iter().find(|host| !is_own(host)) else { return Ok(()) };
        if bearer(headers).is_some_and(|token| self.options.tokens.find(token).is_some()) {
            return Ok(());
        }
        let foreign = quoted(&String::from_utf8_lossy(foreign.as_bytes()));
        let own = if is_local { "localhost or a loopback address" } else { "an IP address" };
        let detail =
            format!("this listener does not answer to {foreign}: use {own}, or start Weir with `--admin-host NAME`");
        Err(Rejection::new(StatusCode::MISDIRECTED_REQUEST, detail))
    }

    /// Returns who asks, given the token.
    pub(super) fn authorize(
        &self,
        head: &Parts,
        peer: Option<SocketAddr>,
        help: TokenHelp,
    ) -> Result<Caller, Rejection> {
        let tokens = &self.options.tokens;
        if tokens.is_empty() {
            return Err(Rejection::new(StatusCode::FORBIDDEN, help.not_enabled));
        }
        let given = bearer(&head.headers).ok_or_else(|| Rejection::unauthorized(help.missing))?;
        let token = tokens.find(given).ok_or_else(|| Rejection::unauthorized("unknown token"))?;
        let address = || peer.map_or_else(|| "unknown".to_owned(), |peer| peer.ip().to_string());
        let agent = head.headers.get(USER_AGENT).map(|agent| String::from_utf8_lossy(agent.as_bytes()));
        let agent = agent.map(|agent| shown(&agent, MAX_SHOWN_AGENT)).unwrap_or_default();
        Ok(Caller { name: token.name.clone().unwrap_or_else(address), agent })
    }
}

/// Rejects requests that a page of another site makes a browser send (Fetch Metadata, RFC 6454).
fn check_site(headers: &HeaderMap) -> Result<(), Rejection> {
    let foreign = || Err(Rejection::new(StatusCode::FORBIDDEN, "a page of another site may not send this request"));
    let site = headers.get("sec-fetch-site").map(HeaderValue::as_bytes);
    if site.is_some_and(|site| site != b"same-origin" && site != b"none") {
        return foreign();
    }
    let Some(origin) = headers.get(ORIGIN) else { return Ok(()) };
    let authority = origin.to_str().ok().and_then(|origin| origin.split_once("://")).map(|(_, authority)| authority);
    let host = headers.get(HOST).and_then(|host| host.to_str().ok());
    match (authority, host) {
        (Some(authority), Some(host)) if authority.eq_ignore_ascii_case(host) => Ok(()),
        _ => foreign(),
    }
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok()).and_then(token_of)
}

/// Returns the token of an `Authorization` header. Its scheme is case-insensitive (RFC 9110 section 11.1).
fn token_of(value: &str) -> Option<&str> {
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

#[cfg(test)]
mod tests {
    use http::header::HeaderName;

    use super::*;

    #[test]
    fn a_token_stands_behind_its_scheme() {
        for (value, expected) in
            [("Bearer x", Some("x")), ("bearer  x ", Some("x")), ("Basic x", None), ("Bearer", None), ("x", None)]
        {
            assert_eq!(token_of(value), expected, "{value}");
        }
    }

    #[test]
    fn a_page_of_another_site_is_told_by_its_browser() {
        for (headers, expected) in [
            (&[][..], true),
            (&[("sec-fetch-site", "same-origin"), ("origin", "http://a:9090")], true),
            (&[("sec-fetch-site", "none")], true),
            (&[("sec-fetch-site", "cross-site")], false),
            (&[("sec-fetch-site", "same-site")], false),
            (&[("origin", "http://A:9090")], true),
            (&[("origin", "http://a")], false),
            (&[("origin", "null")], false),
        ] {
            let mut map = HeaderMap::from_iter([(HOST, HeaderValue::from_static("a:9090"))]);
            for (name, value) in headers {
                map.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
            }
            assert_eq!(check_site(&map).is_ok(), expected, "{headers:?}");
        }
    }
}
