//! How a component of an id is read, and its one canonical text: `as:`.

use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use sha2::{Digest, Sha256};

use super::domain;

/// How a component is read: `as:`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Any text, as it is.
    Text,
    /// An unsigned 64-bit number without leading zeros.
    Integer,
    /// An IP address in its shortest text.
    Address,
    /// A host name in lower case, or an address.
    Hostname,
    /// The registered domain of a host name (public suffix list); an IPv4 address as itself, an IPv6 one as its /64.
    RegisteredDomain,
    /// A comma list of host names and addresses: lower case, sorted, without duplicates, kept as its SHA-256.
    HostnameSet,
}

/// The canonical text of a value, or why it is none.
pub(super) fn canonical(form: Form, text: &str) -> Result<String, String> {
    match form {
        Form::Text => Ok(text.to_owned()),
        Form::Integer => integer(text),
        Form::Address => address(text).map(|address| address.to_string()),
        Form::Hostname => domain::hostname_or_address(text),
        Form::RegisteredDomain => domain::registered(text),
        Form::HostnameSet => hostname_set(text),
    }
}

fn integer(text: &str) -> Result<String, String> {
    let wrong = || format!("`{text}` is no unsigned 64-bit integer");
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(wrong());
    }
    if text.len() > 1 && text.starts_with('0') {
        return Err(format!("`{text}` has leading zeros; write {}", text.trim_start_matches('0')));
    }
    text.parse::<u64>().map(|_| text.to_owned()).map_err(|_| wrong())
}

/// Parses an address and folds IPv4-mapped ones (`::ffff:192.0.2.1`), which would never match an IPv4 client.
pub fn address(text: &str) -> Result<IpAddr, String> {
    // The standard parser refuses zones and octets with leading zeros, which some systems read as octal.
    text.parse::<IpAddr>().map(|address| address.to_canonical()).map_err(|_| format!("`{text}` is no IP address"))
}

/// The id text of an address: IPv4 whole, IPv6 as its network unless the prefix is 128.
pub(super) fn address_text(address: IpAddr, ipv6_prefix: u8) -> String {
    match address {
        IpAddr::V4(address) => ipv4_text(address),
        IpAddr::V6(_) if ipv6_prefix >= 128 => address.to_string(),
        IpAddr::V6(address) => format!("{}/{ipv6_prefix}", network(address, ipv6_prefix)),
    }
}

/// What the standard formatter writes, in a fifth of its time: a limit by address makes this text for every request.
fn ipv4_text(address: Ipv4Addr) -> String {
    let mut text = String::with_capacity("255.255.255.255".len());
    for octet in address.octets() {
        if !text.is_empty() {
            text.push('.');
        }
        text.push_str(itoa::Buffer::new().format(octet));
    }
    text
}

/// The first address of the network of `address`.
pub(super) fn network(address: Ipv6Addr, prefix: u8) -> Ipv6Addr {
    let mask = u128::MAX.checked_shl(128 - u32::from(prefix)).unwrap_or(0);
    Ipv6Addr::from_bits(address.to_bits() & mask)
}

/// Boulder's `fqdnSet`: members in lower case, sorted, without duplicates, joined by commas, SHA-256 in hex.
fn hostname_set(text: &str) -> Result<String, String> {
    let mut members = text
        .split(',')
        .map(|member| {
            if member.trim().is_empty() {
                Err("a member of the set is empty".into())
            } else {
                domain::hostname_or_address(member.trim())
            }
        })
        .collect::<Result<Vec<_>, String>>()?;
    members.sort_unstable();
    members.dedup();
    Ok(sha256(&members.join(",")))
}

/// The SHA-256 of a text, in hex.
pub(super) fn sha256(text: &str) -> String {
    let mut hex = String::with_capacity(64);
    for byte in Sha256::digest(text.as_bytes()) {
        let _ = write!(hex, "{byte:02x}");
    }
    hex
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hostname_set_is_the_hash_that_boulder_keeps() {
        let expected = "394e82811f52e2da38b970afdb21c9bc9af81060939c690183c00fce37408738";
        assert_eq!(hostname_set("example.org,EXAMPLE.com, example.net,example.com").as_deref(), Ok(expected));
        assert!(hostname_set("example.com,").is_err());
    }

    #[test]
    fn addresses_are_written_as_the_standard_formatter_writes_them() {
        for address in [[0, 0, 0, 0], [255, 255, 255, 255], [10, 0, 100, 9], [192, 0, 2, 10]].map(Ipv4Addr::from) {
            assert_eq!(ipv4_text(address), address.to_string());
        }
    }
}
