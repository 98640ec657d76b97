//! The ids of overrides: text that people write, validated against the limit's `by`.

use std::borrow::Cow;
use std::net::IpAddr;

use crate::engine::limit::Limit;
use crate::engine::limit::fingerprint::Fingerprinter;
use crate::engine::limit::key::BucketKey;
use crate::engine::request::part::{IPV6_CLIENT_PREFIX, Part, TypedPart};
use crate::engine::request::trimmed_text;
use crate::engine::request::value_type::{ValueType, canonical};
use crate::engine::text::quote::quoted;
use crate::message::address::{self, network};
use crate::message::credentials::Credentials;
use crate::message::host;
use crate::message::host::written_host;
use crate::message::lossless;
use crate::message::path::{self, EscapedSlashes};
use crate::message::percent::decode;

/// The id of an override: the first parts of `by`, or all of them, as canonical text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Id {
    pub parts: Vec<String>,
}

impl Id {
    /// Parses `text` as an id of a limit with these parts.
    ///
    /// Colons separate parts, but addresses contain colons too, so every split is tried for these: all parts
    /// before fewer, the earliest colon first. A literal colon in text is written `%3A`.
    pub fn parse(by: &[TypedPart], text: &str) -> Result<Self, String> {
        if by.is_empty() {
            return Err("the limit is `by: global`: it has one bucket and no ids".into());
        }
        if text.is_empty() {
            return Err("the id is empty".into());
        }
        let mut reason = None;
        for length in (1..=by.len()).rev() {
            let mut parts = Vec::with_capacity(length);
            match split(&by[..length], text, length == by.len(), &mut parts) {
                Ok(()) => return Ok(Self { parts }),
                Err(error) => reason = reason.or(Some(error)),
            }
        }
        Err(reason.unwrap_or_default())
    }

    /// The fingerprint of a request with this id.
    pub fn fingerprint(&self, short: &str, fingerprinter: &Fingerprinter) -> u128 {
        let mut key = BucketKey::new(short, fingerprinter);
        for part in &self.parts {
            key.push(part);
        }
        key.fingerprint()
    }
}

impl std::fmt::Display for Id {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.parts.join(":"))
    }
}

/// Parses `text` as the parts `by`, backtracking over the colons.
fn split(by: &[TypedPart], text: &str, whole: bool, found: &mut Vec<String>) -> Result<(), String> {
    let Some((first, rest)) = by.split_first() else { return Err("too many components".into()) };
    if rest.is_empty() {
        if !whole && !has_colons(first) && text.contains(':') {
            return Err(format!("`{text}` has a colon; write it as %3A"));
        }
        found.push(parse_part(first, &meant(first, text))?);
        return Ok(());
    }
    let mut reason = format!("`{text}` has fewer components than the limit's `by`");
    let tries = if has_colons(first) { usize::MAX } else { 1 };
    for (place, _) in text.match_indices(':').take(tries) {
        match parse_part(first, &meant(first, &text[..place])) {
            Ok(canonical) => {
                found.push(canonical);
                match split(rest, &text[place + 1..], whole, found) {
                    Ok(()) => return Ok(()),
                    Err(error) => reason = error,
                }
                found.pop();
            }
            Err(error) => reason = error,
        }
    }
    Err(reason)
}

/// Returns true if the text of a part may contain colons, as an IPv6 address does.
fn has_colons(part: &TypedPart) -> bool {
    matches!(part.part, Part::Ip { .. }) || !matches!(part.form, ValueType::Text | ValueType::Integer)
}

/// Decodes a part that people write. A path keeps its escapes, because it is normalised separately.
pub(crate) fn meant<'a>(part: &TypedPart, text: &'a str) -> Cow<'a, str> {
    if part.part == Part::Path { text.into() } else { unescape(text) }
}

impl Limit {
    /// Returns the id in a bucket's key, as overrides write it. Long parts are hashes.
    pub fn id_in(&self, key: &str) -> String {
        let encoded = key.strip_prefix(self.short.as_str()).unwrap_or(key).split(':').skip(1);
        let parts = self.by.iter().zip(encoded).map(|(part, encoded)| {
            let text = decode(encoded);
            let is_address = matches!(part.part, Part::Ip { .. });
            if is_address { text.into_owned() } else { written(part, &text, self.by.len() > 1) }
        });
        parts.collect::<Vec<_>>().join(":")
    }
}

/// The inverse of [`meant`]. Colons are escaped if the part has neighbours.
pub(crate) fn written(part: &TypedPart, text: &str, has_neighbours: bool) -> String {
    match part.part {
        Part::Path if has_neighbours => text.replace(':', "%3A"),
        Part::Path => text.to_owned(),
        _ => escape(text, has_neighbours),
    }
}

/// Decodes text that people write: `%3A` is a colon, `%25` a percent sign, `%0A` a control character, and `%E9` a byte that is
/// not UTF-8. A text with none of these is unchanged.
pub(crate) fn unescape(text: &str) -> Cow<'_, str> {
    let decoded = decode(text);
    let has_escapes = text.contains("%3A") || text.contains("%3a") || text.contains("%25");
    let escapes_controls = || lossless::has_controls(&decoded) && !lossless::has_controls(text);
    if has_escapes || lossless::has_bytes(&decoded) || escapes_controls() { decoded } else { lossless::keep(text) }
}

/// The inverse of [`unescape`]. Colons are escaped if the part has neighbours.
pub fn escape(text: &str, has_neighbours: bool) -> String {
    let is_plain = !lossless::has_bytes(text) && !lossless::has_controls(text) && unescape(text) == text;
    let mut escaped = if is_plain && !has_neighbours { text.to_owned() } else { text.replace('%', "%25") };
    if has_neighbours {
        escaped = escaped.replace(':', "%3A");
    }
    lossless::shown(&escaped).into_owned()
}

/// Returns the canonical text of a part, or why no request can have it.
fn parse_part(part: &TypedPart, text: &str) -> Result<String, String> {
    if text.is_empty() {
        return Err("a component of the id is empty".into());
    }
    match (&part.part, part.form) {
        (Part::Ip { ipv6_prefix }, _) => parse_ip(text, *ipv6_prefix),
        (_, ValueType::RegisteredDomain) => parse_registered_domain(text),
        // Hosts of requests are canonical, so an id in another spelling would never match.
        (Part::Host, ValueType::Text) => match written_host(text) {
            Some(host) if !host.is_empty() => Ok(host.into_owned()),
            _ => Err(format!("{} is not a valid host", quoted(text))),
        },
        (Part::Path, ValueType::Text) if !text.starts_with('/') => {
            Err(format!("a path must begin with `/`; write `/{text}`"))
        }
        (Part::Path, ValueType::Text) => {
            path::check(text, EscapedSlashes::Keep)?;
            Ok(part.path_reading.of(&path::normalise(text)).into_owned())
        }
        (source, ValueType::Text) if source.is_trimmed() && trimmed_text(text.into()) != text => {
            Err(format!("values must not have surrounding spaces; write {}", quoted(&trimmed_text(text.into()))))
        }
        (Part::PathParameter { .. }, form) if part.path_reading.ignores_case => {
            canonical(form, &text.to_ascii_lowercase())
        }
        (Part::Credentials, _) => credentials(text),
        (_, form) => canonical(form, text),
    }
}

/// The canonical text of credentials as a client sends them.
pub(crate) fn credentials(text: &str) -> Result<String, String> {
    let read = Credentials::read(std::iter::once(text.as_bytes()));
    match read.and_then(|found| found.map(|found| found.canonical()).transpose()) {
        Ok(Some(canonical)) => Ok(canonical.into_owned()),
        _ => Err(format!("{} is not a scheme and a token; write `TOKEN` or `Bearer TOKEN`", quoted(text))),
    }
}

fn parse_ip(text: &str, ipv6_prefix: u8) -> Result<String, String> {
    let Some((base, prefix)) = text.split_once('/') else {
        return match address::parse(text)? {
            // A wider network has other clients, too, so it has to be written.
            IpAddr::V6(whole) if ipv6_prefix < 128 && ipv6_prefix != IPV6_CLIENT_PREFIX => {
                let range = network(whole, ipv6_prefix);
                Err(format!("the limit is by ip/{ipv6_prefix}; write the range, {range}/{ipv6_prefix}"))
            }
            address => Ok(address::id_text(address, ipv6_prefix)),
        };
    };
    let base = address::parse(base)?;
    let IpAddr::V6(base) = base else {
        return Err(format!("IPv4 addresses are counted whole; write {base}, or `cidr` for all of the network"));
    };
    if prefix.parse() != Ok(ipv6_prefix) || ipv6_prefix >= 128 {
        let right = if ipv6_prefix < 128 { format!("networks of /{ipv6_prefix}") } else { "whole addresses".into() };
        return Err(format!("the mask is `/{prefix}`, but the limit counts {right}"));
    }
    if network(base, ipv6_prefix) != base {
        return Err(format!("`{text}` has host bits; write {}/{ipv6_prefix}", network(base, ipv6_prefix)));
    }
    Ok(format!("{base}/{ipv6_prefix}"))
}

fn parse_registered_domain(text: &str) -> Result<String, String> {
    if let Ok(IpAddr::V6(whole)) = address::parse(text)
        && network(whole, 64) != whole
    {
        return Err(format!(
            "IPv6 addresses are counted by /64; write the network's first address, {}",
            network(whole, 64)
        ));
    }
    if let Some((base, _)) = text.split_once('/')
        && address::parse(base).is_ok()
    {
        return Err(format!("write the address without a mask, {base}"));
    }
    let registered = host::registered(text)?;
    let lower = text.trim_end_matches('.').to_ascii_lowercase();
    if address::parse(text).is_err() && registered != lower {
        return Err(format!("`{text}` can never match: its registered domain is {registered}"));
    }
    Ok(registered)
}

#[cfg(test)]
mod tests {
    use http::header::HeaderName;

    use super::*;
    use crate::engine::request::path_pattern::PathReading;

    fn header(form: ValueType) -> TypedPart {
        TypedPart::new(Part::Header(HeaderName::from_static("x-id")), form)
    }

    fn ip(ipv6_prefix: u8) -> TypedPart {
        TypedPart::new(Part::Ip { ipv6_prefix }, ValueType::Text)
    }

    #[track_caller]
    fn parses(by: &[TypedPart], text: &str, expected: Result<&str, &str>) {
        let id = Id::parse(by, text).map(|id| id.to_string());
        match expected {
            Ok(expected) => assert_eq!(id.as_deref(), Ok(expected), "{text}"),
            Err(part) => assert!(id.as_ref().is_err_and(|error| error.contains(part)), "{text}: {id:?}"),
        }
    }

    #[test]
    fn ids_are_canonical_or_refused() {
        parses(&[ip(128)], "2001:0db8::0042:8329", Ok("2001:db8::42:8329"));
        parses(&[ip(128)], "::ffff:198.51.100.7", Ok("198.51.100.7"));
        parses(&[ip(128)], "64.112.117.01", Err("not a valid IP address"));
        parses(&[ip(128)], "fe80::1%eth0", Err("not a valid IP address"));
        parses(&[ip(48)], "2602:080a:6000::/48", Ok("2602:80a:6000::/48"));
        parses(&[ip(48)], "2602:80a:6000:1::/64", Err("/48"));
        parses(&[ip(48)], "2602:80a:6000::1", Err("write the range, 2602:80a:6000::/48"));
        parses(&[ip(48)], "10.0.0.0/48", Err("write 10.0.0.0"));
        parses(&[header(ValueType::Integer)], "007", Err("write 7"));
        parses(&[header(ValueType::RegisteredDomain)], "www.example.com", Err("registered domain is example.com"));
        parses(&[header(ValueType::RegisteredDomain)], "2602:80a:6000::/64", Err("without a mask"));
        parses(&[header(ValueType::Text)], " gold", Err("write `gold`"));
        parses(&[header(ValueType::Text), header(ValueType::Text)], "a:", Err("is empty"));
        let host = TypedPart::new(Part::Host, ValueType::Text);
        parses(std::slice::from_ref(&host), "API.Example.com", Ok("api.example.com"));
        parses(std::slice::from_ref(&host), "[0:0::1]", Ok("::1"));
        parses(std::slice::from_ref(&host), "0:0::1", Ok("::1"));
        parses(&[host], "a b", Err("not a valid host"));
        let path = TypedPart::new(Part::Path, ValueType::Text);
        parses(std::slice::from_ref(&path), "//v1/", Ok("/v1"));
        parses(std::slice::from_ref(&path), "v1", Err("write `/v1`"));
        parses(std::slice::from_ref(&path), "/a%3Ab%2fc", Ok("/a:b%2Fc"));
        parses(std::slice::from_ref(&path), "/a%2541", Ok("/a%2541"));
        parses(std::slice::from_ref(&path), "/caf\u{e9}", Err("printable ASCII"));
        let path_reading = PathReading { ignores_case: true, strips_parameters: true };
        parses(&[TypedPart { path_reading, ..path }], "/V1;x/Orders", Ok("/v1/orders"));
        parses(&[], "x", Err("by: global"));
        let sources = [
            Part::Header("x-key".parse().unwrap()),
            Part::Query("key".to_owned()),
            Part::Cookie("key".to_owned()),
            Part::PathParameter { name: "key".to_owned(), segment: 0 },
        ];
        for by in sources.map(|source| [TypedPart::new(source, ValueType::Text)]) {
            for blank in [" ", "\t", "\u{a0}", "\u{3000}"] {
                for text in [format!("{blank}a b"), format!("a b{blank}")] {
                    parses(&by, &text, Err("values must not have surrounding spaces; write `a b`"));
                }
            }
            parses(&by, "a b", Ok("a b"));
        }
    }

    #[test]
    fn colons_separate_components_and_stay_inside_addresses() {
        let by = [header(ValueType::Integer), ip(128), header(ValueType::Hostname)];
        parses(&by, "7:2001:db8::1:example.com", Ok("7:2001:db8::1:example.com"));
        parses(&by, "7:2001:db8::1", Ok("7:2001:db8::1"));
        parses(&by, "7", Ok("7"));
        parses(&by, "x:2001:db8::1", Err("integer"));
        let texts = [header(ValueType::Text), header(ValueType::Text)];
        parses(&texts, "a:b:c", Ok("a:b:c"));
        assert_eq!(Id::parse(&texts, "a:b:c").unwrap().parts, ["a", "b:c"]);
        assert_eq!(Id::parse(&texts, "a%3Ab").unwrap().parts, ["a:b"]);
    }

    #[test]
    fn bytes_that_are_not_utf8_are_written_as_escapes() {
        for (written, meant) in [
            ("caf%E9", "caf\u{10FFE9}"),
            ("caf%25E9", "caf%E9"),
            ("caf%C3%A9", "caf%C3%A9"),
            ("100%", "100%"),
            ("a%20b", "a%20b"),
            ("%E9%25", "\u{10FFE9}%"),
        ] {
            assert_eq!(unescape(written), meant, "{written}");
            assert_eq!(unescape(&escape(meant, false)), meant, "{written}");
            assert_eq!(unescape(&escape(meant, true)), meant, "{written}");
        }
        assert_eq!(escape("a:b%", true), "a%3Ab%25");
    }
}
