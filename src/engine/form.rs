//! How a component of an id is read, and its one canonical text: `as:`.

use std::fmt::Write;

use sha2::{Digest, Sha256};

use super::address;
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
        Form::Address => address::parse(text).map(|address| address.to_string()),
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
}
