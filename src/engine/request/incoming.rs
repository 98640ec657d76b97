//! From the text of a request to the [`Request`] that rules see: the one place that splits targets, normalises paths and hosts,
//! prepares headers, and rejects what servers would read in different ways. All listeners, `explain`, tests and logs use it.

use std::borrow::Cow;
use std::net::IpAddr;
use std::ops::Deref;
use std::str;

use super::Request;
use crate::message::client_address::TrustedProxies;
use crate::message::client_headers::ClientHeaders;
use crate::message::headers::Headers;
use crate::message::host::host_of;
use crate::message::path::{self, EscapedSlashes};
use crate::message::target::{self, UrlError};
use crate::message::underscores::Underscores;

/// A request as it comes from outside.
#[derive(Debug)]
pub struct Incoming<'a> {
    /// `None` if it is not known. Then no limit with `methods` covers the request.
    pub method: Option<&'a str>,
    /// In origin form, `*`, or an absolute URL, whose authority replaces `Host` (RFC 9112 section 3.2.2).
    pub target: &'a str,
    /// The query without its question mark, if it is given separately.
    pub query: Option<&'a str>,
    /// The host and port, if they are given separately. They replace `Host`, and the host of an absolute target must be the same.
    pub authority: Option<&'a str>,
    pub headers: &'a mut Headers,
    pub preparation: Preparation<'a>,
    pub slashes: EscapedSlashes,
}

/// The preparation of headers for the rules.
#[derive(Clone, Copy, Debug)]
pub enum Preparation<'a> {
    /// Weir forwards the request: headers that the upstream will not get are removed. `is_trusted`: a trusted proxy sent it.
    Forwarded { accepted: &'a ClientHeaders, is_trusted: bool },
    /// A gateway forwards it, so a header counts by the name that an upstream may take it for.
    Asked(Underscores),
    /// A log has the headers that a server has accepted, and `Host` separately.
    None,
}

/// A valid request, borrowed as far as possible.
#[derive(Debug)]
pub struct Received<'a, H = Cow<'a, str>> {
    pub method: &'a str,
    pub host: H,
    pub path: Cow<'a, str>,
    pub query: Option<&'a str>,
    pub headers: &'a Headers,
}

impl<H: Deref<Target = str>> Received<'_, H> {
    /// The request without what is not in its text: the client, its certificate, the body, the descriptor, the time.
    pub fn request(&self) -> Request<'_> {
        let Self { method, host, path, query, headers } = self;
        Request { method, host, path, query: *query, ..Request::empty(headers) }
    }
}

impl<'a> Incoming<'a> {
    /// The error says what is malformed.
    pub fn read(self) -> Result<Received<'a>, &'static str> {
        self.read_with(host_in)
    }

    /// Does the same as [`Self::read`], for a caller that remembers hosts; `host_in` reads them as [`host_of`] does.
    pub fn read_with<H: Default>(
        self,
        host_in: impl FnOnce(&'a [u8]) -> Option<H>,
    ) -> Result<Received<'a, H>, &'static str> {
        let Self { method, target: given, query, authority, headers, preparation, slashes } = self;
        preparation.apply(headers)?;
        let known = method.unwrap_or(if given == "*" { "OPTIONS" } else { "GET" });
        let (authority, target) = if target::is_absolute(given) {
            let (named, target) = target::split_url(known, given).map_err(UrlError::reason)?;
            if let Some(authority) = authority
                && Some(host_of(authority).ok_or(INVALID_HOST)?) != host_of(named)
            {
                return Err("the host and the target's authority contradict each other");
            }
            (Some(named), target)
        } else {
            (authority, Cow::Borrowed(given))
        };
        target::check(known, &target, slashes)?;
        query.map_or(Ok(()), target::check_query)?;
        if let Some(authority) = authority {
            let line = only_host(headers)?;
            // An invalid host is an error even if it is replaced.
            line.map_or(Ok(()), |line| self::host_in(line).map(drop).ok_or(INVALID_HOST))?;
            if line != Some(authority.as_bytes()) && !matches!(preparation, Preparation::None) {
                headers.set("host", authority);
            }
        }
        let headers: &Headers = headers;
        let line = only_host(headers)?;
        let host = authority
            .map(str::as_bytes)
            .or(line)
            .map_or_else(|| Ok(H::default()), |line| host_in(line).ok_or(INVALID_HOST))?;
        let path = match target {
            Cow::Borrowed(target) => path::normalise(target::split(target).0),
            Cow::Owned(target) => Cow::Owned(path::normalise(target::split(&target).0).into_owned()),
        };
        let query = query.or_else(|| target::split(given).1);
        Ok(Received { method: method.unwrap_or_default(), host, path, query, headers })
    }
}

impl Preparation<'_> {
    fn apply(self, headers: &mut Headers) -> Result<(), &'static str> {
        match self {
            Self::Forwarded { accepted, is_trusted } => accepted.prepare(headers, is_trusted),
            Self::Asked(underscores) => underscores.fold(headers),
            Self::None => Ok(()),
        }
    }
}

const INVALID_HOST: &str = "the `Host` header is not a valid host";

fn host_in(line: &[u8]) -> Option<Cow<'_, str>> {
    str::from_utf8(line).ok().and_then(host_of)
}

/// Returns the value of `Host`, of which a request must not have two (RFC 9112 section 3.2).
fn only_host(headers: &Headers) -> Result<Option<&[u8]>, &'static str> {
    let mut lines = headers.all("host");
    let line = lines.next();
    if lines.next().is_some() { Err("a request must have one `Host` header") } else { Ok(line) }
}

/// The settings of a server that decide what rules see of a request.
#[derive(Clone, Debug, Default)]
pub struct ReadingOptions {
    pub trusted_proxies: TrustedProxies,
    pub client_headers: ClientHeaders,
    pub escaped_slashes: EscapedSlashes,
}

/// A request as an operator describes it.
#[derive(Debug)]
pub struct Described<'a> {
    pub method: &'a str,
    /// Absolute, or from the path on.
    pub url: &'a str,
    pub headers: &'a mut Headers,
    /// The address that it comes from.
    pub peer: Option<IpAddr>,
    /// It is read as by `ext_authz`, and else as by the proxy.
    pub is_of_gateway: bool,
}

impl ReadingOptions {
    /// Reads a request as a listener with these options does. Returns the client's address as well.
    pub fn read<'a>(&'a self, described: Described<'a>) -> Result<(Received<'a>, Option<IpAddr>), String> {
        let Described { method, url, headers, peer, is_of_gateway } = described;
        let peer = peer.map(|peer| peer.to_canonical());
        let client = |headers: &Headers| peer.map(|peer| self.trusted_proxies.client(peer, headers).address);
        // Before `x_forwarded_for`, which only a client writes, becomes `x-forwarded-for`.
        let of_gateway = is_of_gateway.then(|| client(headers)).flatten();
        let accepted = &self.client_headers;
        let preparation = if is_of_gateway {
            Preparation::Asked(accepted.underscores)
        } else {
            let is_trusted = peer.is_some_and(|peer| self.trusted_proxies.contains(peer));
            Preparation::Forwarded { accepted, is_trusted }
        };
        let slashes = self.escaped_slashes;
        let incoming =
            Incoming { method: Some(method), target: url, query: None, authority: None, headers, preparation, slashes };
        let received = incoming.read().map_err(|reason| format!("`{method} {url}`: {reason}"))?;
        let client = if is_of_gateway { of_gateway } else { client(received.headers) };
        Ok((received, client))
    }
}
