//! The client of a line, as a listener finds it behind trusted proxies.

use std::net::IpAddr;

use crate::logs::told::Told;
use crate::logs::{Lack, LogEntry};
use crate::message::client_address::TrustedProxies;
use crate::message::headers::Headers;

/// The headers in which proxies pass on addresses.
const FORWARDING: [&str; 2] = ["x-forwarded-for", "forwarded"];

/// A trusted proxy has sent the request, and the line does not contain the headers in which it names the client.
pub(super) struct Unnamed;

/// Returns the client of a line.
pub(super) fn client(entry: &LogEntry<'_>, told: &Told, trusted: &TrustedProxies) -> Result<Option<IpAddr>, Unnamed> {
    let Some(peer) = entry.client else { return Ok(None) };
    if told.client_is_resolved || !trusted.contains(peer) {
        return Ok(Some(peer));
    }
    let is_lacking = |lack: &Lack<'_>| match lack {
        Lack::Header(name) => FORWARDING.contains(name),
        lack => *lack == Lack::Headers,
    };
    if !FORWARDING.iter().any(|name| told.header(name)) || entry.lacks.iter().any(is_lacking) {
        return Err(Unnamed);
    }
    let mut headers = Headers::new();
    for (name, value) in entry.headers.iter().filter(|(name, _)| FORWARDING.contains(&&**name)) {
        headers.append(name.as_bytes(), value);
    }
    Ok(Some(trusted.client(peer, &headers).address))
}

/// Returns true if a private address has sent a request that names another client, though no proxy there is trusted.
pub(super) fn may_be_proxied(entry: &LogEntry<'_>, told: &Told, trusted: &TrustedProxies) -> bool {
    let is_private = |address: IpAddr| match address {
        IpAddr::V4(address) => address.is_private() || address.is_loopback() || address.is_link_local(),
        IpAddr::V6(address) => address.is_unique_local() || address.is_loopback(),
    };
    let names_another = || entry.headers.iter().any(|(name, _)| FORWARDING.contains(&&**name));
    let peer = entry.client.filter(|peer| !told.client_is_resolved && is_private(*peer) && !trusted.contains(*peer));
    peer.is_some() && names_another()
}
