//! Hosts to match: a name, an address, or `*.` and a name.

use std::fmt;
use std::net::Ipv6Addr;

/// A host to match, in lower case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostPattern {
    /// This host; an IPv6 address without brackets and in its shortest text.
    Exact(String),
    /// `*.example.com`, kept as `.example.com`: any name below it, at any depth, and not `example.com` itself.
    Below(String),
}

impl HostPattern {
    /// Reads `api.example.com`, `*.example.com`, `[2001:db8::1]` or `2001:db8::1`, in any case and without a port. The
    /// error is what to write instead.
    pub fn parse(text: &str) -> Result<Self, String> {
        let host = text.to_ascii_lowercase();
        if let Some((_, rest)) = host.split_once("://") {
            return Err(format!("write the host alone, {}", rest.split(['/', ':']).next().unwrap_or(rest)));
        }
        let bracketed = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        if let Ok(address) = bracketed.unwrap_or(&host).parse::<Ipv6Addr>() {
            return Ok(Self::Exact(address.to_string()));
        }
        if let Some((name, port)) = host.rsplit_once(':')
            && !host.ends_with(']')
            && port.bytes().all(|byte| byte.is_ascii_digit())
        {
            return Err(format!("hosts are matched without the port; write {name}"));
        }
        if host == "*" {
            return Err("leave it out for any host".to_owned());
        }
        let name = host.strip_prefix("*.").unwrap_or(&host);
        let fits = |label: &str| {
            !label.is_empty() && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
        };
        if name.len() > 253 || !name.split('.').all(fits) {
            return Err("write api.example.com, or *.example.com for every name below it".to_owned());
        }
        Ok(if name.len() == host.len() { Self::Exact(host) } else { Self::Below(format!(".{name}")) })
    }

    /// Returns true if it matches a host in lower case.
    pub fn matches(&self, host: &str) -> bool {
        match self {
            Self::Exact(exact) => exact == host,
            Self::Below(suffix) => host.len() > suffix.len() && host.ends_with(suffix.as_str()),
        }
    }

    /// Returns true if a host may match both.
    pub fn overlaps(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Exact(host), pattern) | (pattern, Self::Exact(host)) => pattern.matches(host),
            (Self::Below(one), Self::Below(other)) => one.ends_with(other.as_str()) || other.ends_with(one.as_str()),
        }
    }
}

impl fmt::Display for HostPattern {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(address) if address.contains(':') => write!(formatter, "[{address}]"),
            Self::Exact(name) => formatter.write_str(name),
            Self::Below(suffix) => write!(formatter, "*{suffix}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_names_wildcards_and_bracketed_addresses() {
        for (text, expected) in [
            ("api.example.com", "api.example.com"),
            ("API.Example", "api.example"),
            ("*.Example.com", "*.example.com"),
            ("_dmarc.a", "_dmarc.a"),
            ("192.0.2.1", "192.0.2.1"),
            ("[2001:DB8::1]", "[2001:db8::1]"),
            ("0:0:0::1", "[::1]"),
            ("[0:0::1]", "[::1]"),
        ] {
            assert_eq!(HostPattern::parse(text).map(|host| host.to_string()), Ok(expected.to_owned()), "{text}");
        }
    }

    #[test]
    fn mistaken_hosts_say_what_to_write() {
        for (text, part) in [
            ("https://a.example:1/x", "the host alone, a.example"),
            ("a.example:443", "write a.example"),
            ("[::1]:80", "write [::1]"),
            ("[::x]", "write api.example.com"),
            ("::1:x", "write api.example.com"),
            ("*", "leave it out"),
            ("a.*.com", "*.example.com for every name below"),
            ("", "write api.example.com"),
            ("a..b", "write api.example.com"),
        ] {
            assert!(HostPattern::parse(text).is_err_and(|help| help.contains(part)), "{text}");
        }
    }
}
