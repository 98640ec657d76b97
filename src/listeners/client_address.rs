//! The client's address for limits.

use std::net::IpAddr;

use crate::limiter::Limiter;
use crate::message::client_address::ClientAddress;
use crate::telemetry::metrics::DecisionListener;

/// Returns the client's address, and counts one that its proxies contradict.
pub(super) fn client_address(
    limiter: &Limiter,
    listener: DecisionListener,
    client: Option<ClientAddress>,
) -> Option<IpAddr> {
    if client.is_some_and(|client| client.is_disputed) {
        limiter.shared().metrics().listeners.client_conflicts[listener].inc();
    }
    client.map(|client| client.address)
}
