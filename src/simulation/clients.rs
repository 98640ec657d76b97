//! The client of a line, as a listener finds it behind trusted proxies.

use std::net::IpAddr;

use crate::engine::request::part::Source;
use crate::logs::address::last_of_list;
use crate::logs::told::Told;
use crate::logs::{Lack, LogEntry};
use crate::message::client_address::{AddressSource, TrustedProxies};
use crate::message::headers::Headers;

/// The headers in which proxies pass on addresses.
const FORWARDING: [&str; 2] = [X_FORWARDED_FOR, FORWARDED];
const X_FORWARDED_FOR: &str = "x-forwarded-for";
const FORWARDED: &str = "forwarded";

pub(super) fn is_forwarding(header: &str) -> bool {
    FORWARDING.contains(&header)
}

/// The line does not say who the client is: it has something else in its place, or comes from a trusted proxy and has not the headers in
/// which that proxy names the client.
pub(super) struct Unnamed;

/// Returns the client of a line; `None` if the request had none.
pub(super) fn client(entry: &LogEntry<'_>, told: &Told, trusted: &TrustedProxies) -> Result<Option<IpAddr>, Unnamed> {
    if let Some(raw) = entry.unread_client {
        return listed(raw, told, trusted).map(Some).ok_or(Unnamed);
    }
    let Some(peer) = entry.client else { return Ok(None) };
    if told.client_is_resolved || !trusted.contains(peer) {
        return Ok(Some(peer));
    }
    let is_lacking = |name: &str| {
        let is_it =
            |lack: &Lack<'_>| matches!(lack, Lack::Header(lacking) if *lacking == name) || *lack == Lack::Headers;
        let is_late = || entry.late.iter().any(|part| matches!(part, Source::Header(late) if late == name));
        (!told.header(name) && !is_late()) || entry.lacks.iter().any(is_it)
    };
    // Proxies write one of them. Requests that did not pass one, such as probes of a balancer, have neither.
    if is_lacking(if trusted.source == AddressSource::Forwarded { FORWARDED } else { X_FORWARDED_FOR }) {
        return Err(Unnamed);
    }
    let mut headers = Headers::new();
    for (name, value) in entry.headers.iter().filter(|(name, _)| is_forwarding(name)) {
        headers.append(name.as_bytes(), value);
    }
    Ok(Some(trusted.client(peer, &headers).address))
}

/// The client of a line with a list of addresses in its place: the last one is the proxy's, which got the others in `X-Forwarded-For`.
/// Nothing says so unless proxies are trusted.
fn listed(raw: &[u8], told: &Told, trusted: &TrustedProxies) -> Option<IpAddr> {
    let (peer, forwarded) = last_of_list(raw).filter(|_| !told.client_is_resolved && !trusted.networks.is_empty())?;
    let mut headers = Headers::new();
    headers.append(X_FORWARDED_FOR.as_bytes(), forwarded);
    Some(trusted.client(peer, &headers).address)
}

/// Returns true if a private address has sent a request that names another client, though no proxy there is trusted.
pub(super) fn may_be_proxied(entry: &LogEntry<'_>, told: &Told, trusted: &TrustedProxies) -> bool {
    let names_another = || entry.headers.iter().any(|(name, _)| is_forwarding(name));
    let peer = entry.client.filter(|peer| !told.client_is_resolved && is_private(*peer) && !trusted.contains(*peer));
    peer.is_some() && names_another()
}

fn is_private(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_private() || address.is_loopback() || address.is_link_local(),
        IpAddr::V6(address) => address.is_unique_local() || address.is_loopback(),
    }
}

/// The senders of requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Sender {
    #[default]
    Unknown,
    One(IpAddr),
    /// Or some whose clients are known.
    Several,
}

impl Sender {
    pub(super) fn add(&mut self, other: Self) {
        *self = match (*self, other) {
            (Self::Unknown, other) => other,
            (known, Self::Unknown) => known,
            (Self::One(known), Self::One(address)) if known == address => other,
            _ => Self::Several,
        };
    }

    pub(super) fn is_one_private(self) -> bool {
        matches!(self, Self::One(address) if is_private(address))
    }
}

pub(super) fn sender(entry: &LogEntry<'_>, told: &Told, trusted: &TrustedProxies) -> Sender {
    match entry.client {
        None => Sender::Unknown,
        Some(peer) if told.client_is_resolved || trusted.contains(peer) => Sender::Several,
        Some(peer) => Sender::One(peer),
    }
}
