//! The values of flags, and what would be right when they are wrong.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use ipnet::IpNet;

use crate::engine::rules::duration;

/// A duration as in the rules: `20ms`, `1m30s`.
pub(super) fn parse_duration(text: &str) -> Result<Duration, String> {
    parse_duration_or_zero(text)
        .and_then(|span| if span.is_zero() { Err("must be longer than 0".into()) } else { Ok(span) })
}

/// As [`parse_duration`], for what may take no time.
pub(super) fn parse_duration_or_zero(text: &str) -> Result<Duration, String> {
    match duration::parse(text) {
        Ok(nanoseconds) => Ok(Duration::from_nanos(nanoseconds)),
        Err((wrong, right)) => Err(format!("{wrong}; {right}")),
    }
}

/// A network, or an address alone for the network of itself, or `unix` for what the peer of a unix socket counts as.
pub(super) fn parse_network(text: &str) -> Result<IpNet, String> {
    if text == "unix" {
        return Ok(IpNet::from(IpAddr::V4(Ipv4Addr::LOCALHOST)));
    }
    let wrong = || "a network is wanted, such as 10.0.0.0/8".to_owned();
    let network = text.parse::<IpNet>().or_else(|_| text.parse::<IpAddr>().map(IpNet::from)).map_err(|_| wrong())?;
    if network.trunc() == network { Ok(network) } else { Err(format!("it has host bits; write {}", network.trunc())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_have_no_host_bits() {
        assert_eq!(parse_network("10.0.0.0/8").map(|network| network.to_string()).as_deref(), Ok("10.0.0.0/8"));
        assert_eq!(parse_network("::1").map(|network| network.to_string()).as_deref(), Ok("::1/128"));
        assert_eq!(parse_network("unix").map(|network| network.to_string()).as_deref(), Ok("127.0.0.1/32"));
        assert_eq!(parse_network("10.1.0.0/8").unwrap_err(), "it has host bits; write 10.0.0.0/8");
        assert!(parse_network("proxy").is_err());
    }
}
