//! Host names: their canonical text, and their registered domain according to the public suffix list.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv6Addr};

use super::address::{self, network};

/// In characters.
const LONGEST_NAME: usize = 253;

/// In bytes of UTF-8.
const LONGEST_UNICODE: usize = LONGEST_NAME * char::MAX.len_utf8();

/// A host name in lower case without its trailing dot, or an address in its shortest text.
///
/// A name must contain a dot: a single label is not a host on the internet, and in an override it is a typo.
pub fn hostname_or_address(text: &str) -> Result<String, String> {
    if let Ok(address) = address::parse(text) {
        return Ok(address.to_string());
    }
    hostname(text)
}

/// The host of `host:port` or `[address]:port`, without brackets. Text without a port is returned unchanged.
pub(crate) fn without_port(text: &str) -> &str {
    let is_port = |port: &str| port.len() <= 5 && port.bytes().all(|byte| byte.is_ascii_digit());
    if let Some((address, after)) = text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        let fits = after.is_empty() || after.strip_prefix(':').is_some_and(is_port);
        return if fits { address } else { text };
    }
    text.split_once(':').filter(|(_, port)| is_port(port)).map_or(text, |(host, _)| host)
}

/// A name in ASCII (RFC 5891 section 4.4); `None` if it cannot be converted.
pub(crate) fn in_ascii(name: &str) -> Option<Cow<'_, str>> {
    if name.is_ascii() {
        return Some(name.into());
    }
    // Punycode takes time quadratic in the label's length.
    if name.len() > LONGEST_UNICODE { None } else { idna::domain_to_ascii(name).ok().map(Cow::Owned) }
}

/// A host name in lower case without its trailing dot.
pub(crate) fn hostname(text: &str) -> Result<String, String> {
    let name = text.strip_suffix('.').unwrap_or(text).to_ascii_lowercase();
    let wrong = |why: &str| Err(format!("invalid host name `{text}`: {why}"));
    if name.is_empty() || name.len() > LONGEST_NAME {
        return wrong("it must have 1 to 253 characters");
    }
    if !name.contains('.') {
        return wrong("it must contain a dot");
    }
    for label in name.split('.') {
        let fits = !label.is_empty()
            && label.len() <= 63
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
            && !label.starts_with('-')
            && !label.ends_with('-');
        if !fits {
            return wrong(
                "each label must have 1 to 63 letters, digits and inner hyphens (write other scripts as xn--...)",
            );
        }
    }
    // RFC 3696 section 2: a top-level domain is never all digits, so this is a mistyped IPv4 address.
    if name.rsplit('.').next().is_some_and(|last| last.bytes().all(|byte| byte.is_ascii_digit())) {
        return wrong("its last label must not be a number");
    }
    Ok(name)
}

/// The registered domain (eTLD+1) of a host name. Public suffixes and IPv4 addresses stay as they are. An IPv6 address
/// becomes its /64, which is what one subscriber has.
pub fn registered(text: &str) -> Result<String, String> {
    match address::parse(text) {
        Ok(IpAddr::V4(address)) => Ok(address.to_string()),
        Ok(IpAddr::V6(address)) => Ok(format!("{}/64", network(address, 64))),
        Err(_) => {
            let name = hostname(text)?;
            Ok(psl::domain_str(&name).map_or_else(|| name.clone(), str::to_owned))
        }
    }
}

/// The host of an authority without user information, as rules see it: in lower case, without port, trailing dot and
/// brackets, IPv6 addresses in their shortest text. `None` if it is not a valid host.
pub fn host_of(authority: &str) -> Option<Cow<'_, str>> {
    // Nearly every request has a name in lower case, with or without a port.
    let is_plain = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.');
    let plain = authority.bytes().position(|byte| !is_plain(&byte)).unwrap_or(authority.len());
    let (host, port) = authority.split_at(plain);
    let is_port = |port: &[u8]| port.len() <= 5 && port.iter().all(u8::is_ascii_digit);
    if port.is_empty() || port.as_bytes().split_first().is_some_and(|(first, port)| *first == b':' && is_port(port)) {
        return Some(Cow::Borrowed(host.strip_suffix('.').unwrap_or(host)));
    }
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let end = rest.find(']')?;
            let (host, after) = authority.split_at(end + 2);
            (host, after.strip_prefix(':').or((after.is_empty()).then_some(""))?)
        }
        None => authority.split_once(':').unwrap_or((authority, "")),
    };
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~%!$&'()*+,;=".contains(&byte);
    let literal = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    if !port.bytes().all(|byte| byte.is_ascii_digit()) || port.len() > 5 {
        return None;
    }
    if let Some(literal) = literal {
        return literal.parse::<Ipv6Addr>().ok().map(|address| address.to_string().into());
    }
    if !host.bytes().all(is_name) {
        return None;
    }
    let host = host.strip_suffix('.').unwrap_or(host);
    let lower = !host.bytes().any(|byte| byte.is_ascii_uppercase());
    Some(if lower { Cow::Borrowed(host) } else { Cow::Owned(host.to_ascii_lowercase()) })
}

/// Does the same as [`host_of`], but an IPv6 address may be written without brackets.
pub(crate) fn written_host(text: &str) -> Option<Cow<'_, str>> {
    text.parse::<Ipv6Addr>().map_or_else(|_| host_of(text), |address| Some(address.to_string().into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registered_domains_follow_the_public_suffix_list() {
        for (name, expected) in [
            ("www.Example.COM.", "example.com"),
            ("a.b.example.co.uk", "example.co.uk"),
            ("co.uk", "co.uk"),
            ("user.github.io", "user.github.io"),
            ("192.0.2.7", "192.0.2.7"),
            ("2001:db8:1:2:3::4", "2001:db8:1:2::/64"),
        ] {
            assert_eq!(registered(name).as_deref(), Ok(expected));
        }
    }

    #[test]
    fn names_have_a_bound_in_any_script() {
        assert_eq!(in_ascii("m\u{fc}ller.example").as_deref(), Some("xn--mller-kva.example"));
        assert_eq!(in_ascii(&"\u{fc}.".repeat(LONGEST_UNICODE)), None);
        assert_eq!(in_ascii("\u{10FFE9}.example"), None);
    }

    #[test]
    fn what_is_no_host_name_is_refused() {
        for text in ["", "examplecom", "lol..99", "-a.com", "a b.com", "10.0.0.9000", "exämple.com", &"a.".repeat(130)]
        {
            assert!(hostname_or_address(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_host_is_taken_from_its_authority() {
        for (authority, expected) in [
            ("example.com", Some("example.com")),
            ("Example.COM:8080", Some("example.com")),
            ("example.com.:80", Some("example.com")),
            ("[2001:DB8::1]:80", Some("2001:db8::1")),
            ("[0:0:0::0001]:80", Some("::1")),
            ("[::1]", Some("::1")),
            ("127.0.0.1:", Some("127.0.0.1")),
            ("", Some("")),
            ("a b", None),
            ("user@example.com", None),
            ("example.com/path", None),
            ("example.com:80:90", None),
            ("example.com:x", None),
            ("[::1", None),
            ("[::1]x", None),
            ("[example.com]", None),
        ] {
            assert_eq!(host_of(authority).as_deref(), expected, "{authority}");
        }
    }
}
