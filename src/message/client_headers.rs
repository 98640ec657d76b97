//! Headers of a client's request that the rules and the upstream see, and those that only proxies may send.

use std::sync::Arc;

use super::headers::{Headers, Names, QUEUE_ENTRY, text};
use super::underscores::{REASON, Underscores};

/// Returns whether a header applies to one hop (RFC 9110 section 7.6.1) or holds credentials for a proxy.
///
/// `Transfer-Encoding` is removed because each side frames its own messages. `Upgrade` and `HTTP2-Settings` are removed
/// because the requests after a forwarded `h2c` upgrade would pass no limit; the proxy adds a permitted upgrade
/// again. We answer `Expect` ourselves.
pub(crate) fn is_hop_by_hop(name: &[u8]) -> bool {
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
pub(crate) const HOP_BY_HOP: Names = Names::new(&[
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
pub(crate) fn is_claim(name: &[u8]) -> bool {
    begins_with(name, b"x-forwarded-")
        || (name.len() == 9 && (name.eq_ignore_ascii_case(b"x-real-ip") || name.eq_ignore_ascii_case(b"forwarded")))
}

/// Returns whether a header reports the state of limits or a queue entry. Only we send these.
pub(crate) fn is_of_limits(name: &[u8]) -> bool {
    is_rate_limit(name) || name.eq_ignore_ascii_case(QUEUE_ENTRY.as_bytes())
}

pub(crate) fn is_rate_limit(name: &[u8]) -> bool {
    begins_with(name, b"ratelimit") || begins_with(name, b"x-ratelimit-")
}

/// Returns whether the proxy itself writes, removes or replaces a header.
pub(crate) fn is_own(name: &[u8]) -> bool {
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
    /// Removes the headers that neither the rules nor the upstream may see, `is_trusted` telling who sent them. The error says
    /// why the request is malformed.
    pub fn prepare(&self, headers: &mut Headers, is_trusted: bool) -> Result<(), &'static str> {
        self.strip(headers, is_trusted)?;
        strip_named(headers);
        strip_claims(headers, is_trusted);
        Ok(())
    }

    fn strip(&self, headers: &mut Headers, is_trusted: bool) -> Result<(), &'static str> {
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
pub(crate) fn hyphened(name: &[u8]) -> Vec<u8> {
    name.iter().map(|byte| if *byte == b'_' { b'-' } else { byte.to_ascii_lowercase() }).collect()
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
fn strip_claims(headers: &mut Headers, is_trusted: bool) {
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

#[cfg(test)]
mod tests {
    use super::*;

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
