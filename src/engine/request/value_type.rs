//! `as:`: the type of a part of an id, and its canonical text.

use std::borrow::Cow;

use crate::engine::digest::sha256;
use crate::message::address;
use crate::message::host;

/// The type of a part: `as:`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ValueType {
    /// Any text, unchanged.
    Text,
    /// An unsigned 64-bit number without leading zeros.
    Integer,
    /// An IP address in its shortest text.
    Address,
    /// A host name in lower case, or an address.
    Hostname,
    /// The registered domain of a host name (public suffix list); an IPv4 address as itself, an IPv6 one as its /64.
    RegisteredDomain,
    /// A comma-separated list of host names, wildcards and addresses: the SHA-256 of the sorted list without duplicates, in
    /// lower case.
    HostnameSet,
}

impl ValueType {
    /// Its name in `as:`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Integer => "integer",
            Self::Address => "address",
            Self::Hostname => "hostname",
            Self::RegisteredDomain => "registered-domain",
            Self::HostnameSet => "hostname-set",
        }
    }
}

/// The canonical text of a value in a request; `None` if it is malformed.
///
/// Values that upstreams read as equal have the same text: a number with or without a plus sign, leading zeros and
/// surrounding spaces; a host with or without a port or wildcard, in Unicode or punycode (RFC 5891).
pub(crate) fn lenient(form: ValueType, text: &str) -> Option<String> {
    canonical(form, text).ok().or_else(|| canonical(form, &simplified(form, text.trim_ascii())?).ok())
}

/// The members of a [`ValueType::HostnameSet`] in a request, in their canonical text and sorted; `None` if it is malformed.
pub(crate) fn lenient_members(text: &str) -> Option<Vec<String>> {
    members(text).ok().or_else(|| members(&simplified(ValueType::HostnameSet, text.trim_ascii())?).ok())
}

fn simplified(form: ValueType, text: &str) -> Option<Cow<'_, str>> {
    match form {
        ValueType::Text => Some(text.into()),
        ValueType::Integer => {
            let digits = text.strip_prefix('+').unwrap_or(text);
            let number = digits.trim_start_matches('0');
            Some(if number.is_empty() && !digits.is_empty() { "0" } else { number }.into())
        }
        ValueType::Address => Some(host::without_port(text).into()),
        ValueType::Hostname | ValueType::RegisteredDomain => {
            let host = host::without_port(text);
            host::in_ascii(host.strip_prefix("*.").unwrap_or(host))
        }
        ValueType::HostnameSet => {
            let members: Option<Vec<_>> =
                text.split(',').map(|member| host::in_ascii(host::without_port(member.trim_ascii()))).collect();
            Some(members?.join(",").into())
        }
    }
}

/// The canonical text of a value in a file or call, which must be canonical up to case.
pub(crate) fn canonical(form: ValueType, text: &str) -> Result<String, String> {
    match form {
        ValueType::Text => Ok(text.to_owned()),
        ValueType::Integer => integer(text),
        ValueType::Address => address::parse(text).map(|address| address.to_string()),
        ValueType::Hostname => host::hostname_or_address(text),
        ValueType::RegisteredDomain => host::registered(text),
        ValueType::HostnameSet => hostname_set(text),
    }
}

fn integer(text: &str) -> Result<String, String> {
    let wrong = || format!("`{text}` is not an unsigned 64-bit integer");
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(wrong());
    }
    if text.len() > 1 && text.starts_with('0') {
        return Err(format!("`{text}` has leading zeros; write {}", text.trim_start_matches('0')));
    }
    text.parse::<u64>().map(|_| text.to_owned()).map_err(|_| wrong())
}

/// Boulder's `fqdnSet`, in which wildcards are separate names: the SHA-256 of the members in lower case, sorted, without
/// duplicates, joined by commas.
fn hostname_set(text: &str) -> Result<String, String> {
    members(text).map(|members| sha256(&members.join(",")))
}

fn members(text: &str) -> Result<Vec<String>, String> {
    let mut members = text
        .split(',')
        .map(|member| {
            let member = member.trim();
            if member.is_empty() {
                return Err("a member of the set is empty".into());
            }
            match member.strip_prefix("*.") {
                Some(below) => host::hostname(below).map(|name| format!("*.{name}")),
                None => host::hostname_or_address(member),
            }
        })
        .collect::<Result<Vec<_>, String>>()?;
    members.sort_unstable();
    members.dedup();
    Ok(members)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hostname_set_is_the_hash_that_boulder_keeps() {
        let expected = "394e82811f52e2da38b970afdb21c9bc9af81060939c690183c00fce37408738";
        assert_eq!(hostname_set("example.org,EXAMPLE.com, example.net,example.com").as_deref(), Ok(expected));
        assert!(hostname_set("example.com,").is_err());
        assert_ne!(hostname_set("*.example.com"), hostname_set("example.com"));
        assert!(hostname_set("*.*.example.com").is_err());
    }

    #[test]
    fn values_are_read_as_upstreams_read_them() {
        use ValueType::{Address, Hostname, HostnameSet, Integer, RegisteredDomain};

        let most = u64::MAX.to_string();
        for (form, text, expected) in [
            (Integer, "7", Some("7")),
            (Integer, "07", Some("7")),
            (Integer, "+7", Some("7")),
            (Integer, " 7\t", Some("7")),
            (Integer, "+007", Some("7")),
            (Integer, "000", Some("0")),
            (Integer, &most, Some(most.as_str())),
            (Integer, "18446744073709551616", None),
            (Integer, "", None),
            (Integer, "+", None),
            (Integer, "++7", None),
            (Integer, "-7", None),
            (Integer, "0x7", None),
            (Integer, "7,7", None),
            (Integer, "7 7", None),
            (Integer, "7.0", None),
            (Integer, "1e3", None),
            (Integer, "\u{667}", None),
            (Address, "192.0.2.7:443", Some("192.0.2.7")),
            (Address, "[2001:DB8::7]:443", Some("2001:db8::7")),
            (Address, "[::ffff:192.0.2.7]", Some("192.0.2.7")),
            (Address, "192.0.2.07", None),
            (Address, "example.com", None),
            (Hostname, "Example.com:443", Some("example.com")),
            (Hostname, "example.com.", Some("example.com")),
            (Hostname, "example.com.:443", Some("example.com")),
            (Hostname, " *.Example.com ", Some("example.com")),
            (Hostname, "*.example.com:443", Some("example.com")),
            (Hostname, "M\u{fc}ller.example", Some("xn--mller-kva.example")),
            (Hostname, "xn--mller-kva.example", Some("xn--mller-kva.example")),
            (Hostname, "\u{ff45}xample\u{3002}com", Some("example.com")),
            (Hostname, "[2001:db8::1]:443", Some("2001:db8::1")),
            (Hostname, "*.*.example.com", None),
            (Hostname, "a.*.example.com", None),
            (Hostname, "localhost", None),
            (Hostname, "example.com:x", None),
            (Hostname, "user@example.com", None),
            (Hostname, "http://example.com", None),
            (Hostname, "\u{10FFE9}.com", None),
            (RegisteredDomain, "*.www.example.co.uk:443", Some("example.co.uk")),
            (RegisteredDomain, "*.co.uk", Some("co.uk")),
            (RegisteredDomain, "com", None),
            (HostnameSet, "localhost", None),
        ] {
            assert_eq!(lenient(form, text).as_deref(), expected, "{form:?} {text}");
        }
        let set = |text| lenient(HostnameSet, text).unwrap();
        assert_eq!(
            set("b.example:443, M\u{fc}ller.example, *.B.example"),
            set("*.b.example,b.example,xn--mller-kva.example")
        );
    }
}
