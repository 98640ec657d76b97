//! Whose bucket: the components of an id, their canonical text, and how they are written into a key.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use http::header::HeaderName;
use sha2::{Digest, Sha256};

use super::charge::Bucket;
use super::domain;
use super::fingerprint::{Fingerprinter, Running};
use super::path::normalise;
use super::request::{Request, decode};

/// An encoded component longer than this is replaced by a hash: the id of a limit may be a whole URL.
const LONGEST_COMPONENT: usize = 64;

/// Stands for a component that the request lacks, when the limit says `missing: shared`. No component encodes to it.
const MISSING: &str = "*";

/// Where a component of an id comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The client's address; IPv6 cut to its first `ipv6_prefix` bits, 128 for the whole. IPv4 stays whole.
    Ip {
        /// 1 to 128.
        ipv6_prefix: u8,
    },
    /// The request's authority, without the port.
    Host,
    /// The method.
    Method,
    /// The normalised path.
    Path,
    /// A field of the request.
    Header(HeaderName),
    /// A query parameter.
    Query(String),
    /// A cookie.
    Cookie(String),
    /// A `{parameter}` of the limit's own path pattern: the index of its segment.
    PathParameter {
        /// As the pattern names it.
        name: String,
        /// Counted from 0, in the path split at `/`.
        segment: usize,
    },
}

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

/// One component of a limit's `by`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Component {
    /// Where it comes from.
    pub source: Source,
    /// How it is read. Ignored for [`Source::Ip`], which is an address by nature.
    pub form: Form,
}

impl Component {
    /// The canonical text of this component of `request`; `None` if the request lacks it or it is malformed.
    fn of<'a>(&self, request: &Request<'a>) -> Option<Cow<'a, str>> {
        let raw: Cow<'a, str> = match &self.source {
            Source::Ip { ipv6_prefix } => return Some(Cow::Owned(address_text(request.client, *ipv6_prefix))),
            Source::Host => Cow::Borrowed(request.host),
            Source::Method => Cow::Borrowed(request.method),
            Source::Path => Cow::Borrowed(request.path),
            Source::Header(name) => Cow::Borrowed(request.header(name)?),
            Source::Query(name) => request.query(name)?,
            Source::Cookie(name) => Cow::Borrowed(request.cookie(name)?),
            Source::PathParameter { segment, .. } => decode(request.path.split('/').skip(1).nth(*segment)?),
        };
        if raw.is_empty() {
            return None;
        }
        match self.form {
            Form::Text => Some(raw),
            form => canonical(form, &raw).ok().map(Cow::Owned),
        }
    }

    /// The canonical text of this component as an override writes it, or why a request can never have it.
    fn parse(&self, text: &str) -> Result<String, String> {
        if text.is_empty() {
            return Err("a component of the id is empty".into());
        }
        match (&self.source, self.form) {
            (Source::Ip { ipv6_prefix }, _) => parse_ip(text, *ipv6_prefix),
            (_, Form::RegisteredDomain) => parse_registered_domain(text),
            // Requests come with these in one spelling, so an id in another one would never match.
            (Source::Host, Form::Text) => Ok(text.to_ascii_lowercase()),
            (Source::Path, Form::Text) if !text.starts_with('/') => {
                Err(format!("a path begins with `/`; write `/{text}`"))
            }
            (Source::Path, Form::Text) => Ok(normalise(text).into_owned()),
            (Source::Header(_) | Source::Cookie(_), Form::Text) if text.trim() != text => {
                Err(format!("values have no spaces around them; write `{}`", text.trim()))
            }
            (_, form) => canonical(form, text),
        }
    }
}

/// The id of an override: the first components of `by`, or all of them, in canonical text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Id {
    components: Vec<String>,
}

impl Id {
    /// Parses `text` as an id of a limit with these components.
    ///
    /// Components are separated by colons, which addresses contain too, so every split at colons is tried: all
    /// components before fewer, and the earliest colon first. A literal colon in a text is written `%3A`.
    /// The error says what would be right.
    pub fn parse(by: &[Component], text: &str) -> Result<Self, String> {
        if by.is_empty() {
            return Err("the limit is `by: global`, it has one bucket and no ids".into());
        }
        if text.is_empty() {
            return Err("the id is empty".into());
        }
        let mut reason = None;
        for length in (1..=by.len()).rev() {
            let mut components = Vec::with_capacity(length);
            match split(&by[..length], text, length == by.len(), &mut components) {
                Ok(()) => return Ok(Self { components }),
                Err(error) => reason = reason.or(Some(error)),
            }
        }
        Err(reason.unwrap_or_default())
    }

    /// How many components it gives.
    pub fn len(&self) -> usize {
        self.components.len()
    }

    /// Whether it gives none; an id that was parsed never does.
    pub fn is_empty(&self) -> bool {
        self.components.is_empty()
    }

    /// The fingerprint that [`Identified::prefixes`] has for a request with this id.
    pub fn fingerprint(&self, short: &str, fingerprinter: &Fingerprinter) -> u128 {
        let mut key = Key::new(short, fingerprinter);
        for component in &self.components {
            key.push(component);
        }
        key.hash.finish()
    }
}

impl std::fmt::Display for Id {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.components.join(":"))
    }
}

/// Reads `text` as the components `by`, backtracking over the colons.
fn split(by: &[Component], text: &str, whole: bool, found: &mut Vec<String>) -> Result<(), String> {
    let Some((first, rest)) = by.split_first() else { return Err("too many components".into()) };
    if rest.is_empty() {
        if !whole && first.form == Form::Text && text.contains(':') && !matches!(first.source, Source::Ip { .. }) {
            return Err(format!("`{text}` has a colon; write it as %3A"));
        }
        found.push(first.parse(&unescape(text))?);
        return Ok(());
    }
    let mut reason = format!("`{text}` has fewer components than the limit's `by`");
    for (place, _) in text.match_indices(':') {
        match first.parse(&unescape(&text[..place])) {
            Ok(canonical) => {
                found.push(canonical);
                match split(rest, &text[place + 1..], whole, found) {
                    Ok(()) => return Ok(()),
                    Err(error) => reason = error,
                }
                found.pop();
            }
            Err(error) => {
                if place + 1 == text.len() || !text[place + 1..].contains(':') {
                    reason = error;
                }
            }
        }
    }
    Err(reason)
}

fn unescape(text: &str) -> Cow<'_, str> {
    if text.contains("%3A") || text.contains("%3a") || text.contains("%25") {
        decode(text)
    } else {
        Cow::Borrowed(text)
    }
}

/// The id of a request for one limit.
pub struct Identified {
    /// The bucket of the whole id.
    pub bucket: Bucket,
    /// Fingerprints of the first one, two, ... components; what overrides are looked up by.
    pub prefixes: Vec<u128>,
}

/// Why a request has no id for a limit: the component that it lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lacking {
    /// The index of the component in the limit's `by`.
    pub component: usize,
}

/// The id of `request` for a limit by these components.
///
/// With `share_missing` a component that the request lacks is replaced by a marker that no request can send.
/// `prefixes` are only made for ids of at least one component.
pub fn identify(
    by: &[Component],
    short: &str,
    request: &Request<'_>,
    share_missing: bool,
    fingerprinter: &Fingerprinter,
) -> Result<Identified, Lacking> {
    let mut key = Key::new(short, fingerprinter);
    let mut prefixes = Vec::with_capacity(by.len());
    for (component, part) in by.iter().enumerate() {
        match part.of(request) {
            Some(text) => key.push(&text),
            None if share_missing => key.push_encoded(MISSING),
            None => return Err(Lacking { component }),
        }
        prefixes.push(key.hash.finish());
    }
    let fingerprint = prefixes.last().copied().unwrap_or_else(|| key.hash.finish());
    Ok(Identified { bucket: Bucket { key: key.text, fingerprint }, prefixes })
}

/// The canonical id of `request` as people read it, component by component; `None` where the request lacks one.
pub fn describe<'a>(by: &[Component], request: &Request<'a>) -> Vec<Option<Cow<'a, str>>> {
    by.iter().map(|part| part.of(request)).collect()
}

/// The bucket of one id, given as opaque text: what a scenario names.
pub fn opaque(short: &str, id: &str, fingerprinter: &Fingerprinter) -> Bucket {
    let mut key = Key::new(short, fingerprinter);
    key.push(id);
    Bucket { fingerprint: key.hash.finish(), key: key.text }
}

/// A key under construction: its text and the fingerprint so far.
struct Key {
    text: String,
    hash: Running,
}

impl Key {
    fn new(short: &str, fingerprinter: &Fingerprinter) -> Self {
        let mut hash = fingerprinter.start();
        hash.write(short.as_bytes());
        let mut text = String::with_capacity(short.len() + 32);
        text.push_str(short);
        Self { text, hash }
    }

    /// Adds a component. It is percent-encoded, so that user text can neither end a component nor make a Redis hash
    /// tag (`{...}` decides the slot of a key), and hashed when it is long.
    fn push(&mut self, component: &str) {
        if component.bytes().all(is_plain) && component.len() <= LONGEST_COMPONENT {
            return self.push_encoded(component);
        }
        let mut encoded = String::with_capacity(component.len() + 8);
        for byte in component.bytes() {
            if is_plain(byte) {
                encoded.push(char::from(byte));
            } else {
                push_escaped(&mut encoded, byte);
            }
        }
        if encoded.len() > LONGEST_COMPONENT {
            encoded = format!("~{}", &sha256(component)[..32]);
        }
        self.push_encoded(&encoded);
    }

    fn push_encoded(&mut self, encoded: &str) {
        let start = self.text.len();
        self.text.push(':');
        self.text.push_str(encoded);
        self.hash.write(&self.text.as_bytes()[start..]);
    }
}

/// Bytes that stand for themselves in a key. `~` begins a hashed component, `*` a missing one and `#` a window.
fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._/@,+=".contains(&byte)
}

fn push_escaped(text: &mut String, byte: u8) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    text.push('%');
    text.push(char::from(DIGITS[usize::from(byte >> 4)]));
    text.push(char::from(DIGITS[usize::from(byte & 15)]));
}

/// The canonical text of a value, or why it is none.
fn canonical(form: Form, text: &str) -> Result<String, String> {
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
fn address_text(address: IpAddr, ipv6_prefix: u8) -> String {
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

fn parse_ip(text: &str, ipv6_prefix: u8) -> Result<String, String> {
    let Some((base, prefix)) = text.split_once('/') else {
        return match address(text)? {
            IpAddr::V6(whole) if ipv6_prefix < 128 => {
                let range = network(whole, ipv6_prefix);
                Err(format!("the limit is by ip/{ipv6_prefix}; write the range, {range}/{ipv6_prefix}"))
            }
            address => Ok(address.to_string()),
        };
    };
    let base = address(base)?;
    let IpAddr::V6(base) = base else {
        return Err(format!("IPv4 addresses are counted whole; write {base}"));
    };
    if prefix.parse() != Ok(ipv6_prefix) || ipv6_prefix >= 128 {
        let right = if ipv6_prefix < 128 { format!("/{ipv6_prefix}") } else { "no mask".into() };
        return Err(format!("the mask is `/{prefix}`, the limit counts addresses with {right}"));
    }
    if network(base, ipv6_prefix) != base {
        return Err(format!("`{text}` has host bits; write {}/{ipv6_prefix}", network(base, ipv6_prefix)));
    }
    Ok(format!("{base}/{ipv6_prefix}"))
}

fn parse_registered_domain(text: &str) -> Result<String, String> {
    if let Ok(IpAddr::V6(whole)) = address(text)
        && network(whole, 64) != whole
    {
        return Err(format!("IPv6 addresses are counted by /64; write its first address, {}", network(whole, 64)));
    }
    if let Some((base, _)) = text.split_once('/')
        && address(base).is_ok()
    {
        return Err(format!("write the address without a mask, {base}"));
    }
    let registered = domain::registered(text)?;
    let lower = text.trim_end_matches('.').to_ascii_lowercase();
    if address(text).is_err() && registered != lower {
        return Err(format!("`{text}` can never match: its registered domain is {registered}"));
    }
    Ok(registered)
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

fn sha256(text: &str) -> String {
    let mut hex = String::with_capacity(64);
    for byte in Sha256::digest(text.as_bytes()) {
        use std::fmt::Write;
        let _ = write!(hex, "{byte:02x}");
    }
    hex
}

#[cfg(test)]
mod tests {
    use http::HeaderMap;

    use super::super::numbers::Micros;
    use super::*;

    const HASH: Fingerprinter = Fingerprinter::new((1, 2));

    fn header(form: Form) -> Component {
        Component { source: Source::Header(HeaderName::from_static("x-id")), form }
    }

    fn ip(ipv6_prefix: u8) -> Component {
        Component { source: Source::Ip { ipv6_prefix }, form: Form::Text }
    }

    #[track_caller]
    fn parses(by: &[Component], text: &str, expected: Result<&str, &str>) {
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
        parses(&[ip(128)], "64.112.117.01", Err("no IP address"));
        parses(&[ip(128)], "fe80::1%eth0", Err("no IP address"));
        parses(&[ip(48)], "2602:080a:6000::/48", Ok("2602:80a:6000::/48"));
        parses(&[ip(48)], "2602:80a:6000:1::/64", Err("/48"));
        parses(&[ip(48)], "2602:80a:6000::1", Err("write the range, 2602:80a:6000::/48"));
        parses(&[ip(48)], "10.0.0.0/48", Err("write 10.0.0.0"));
        parses(&[header(Form::Integer)], "007", Err("write 7"));
        parses(&[header(Form::RegisteredDomain)], "www.example.com", Err("registered domain is example.com"));
        parses(&[header(Form::RegisteredDomain)], "2602:80a:6000::/64", Err("without a mask"));
        parses(&[header(Form::Text)], " gold", Err("write `gold`"));
        parses(&[header(Form::Text), header(Form::Text)], "a:", Err("is empty"));
        let host = Component { source: Source::Host, form: Form::Text };
        parses(&[host], "API.Example.com", Ok("api.example.com"));
        let path = Component { source: Source::Path, form: Form::Text };
        parses(std::slice::from_ref(&path), "//v1/", Ok("/v1"));
        parses(&[path], "v1", Err("write `/v1`"));
        parses(&[], "x", Err("by: global"));
    }

    #[test]
    fn colons_separate_components_and_stay_inside_addresses() {
        let by = [header(Form::Integer), ip(128), header(Form::Hostname)];
        parses(&by, "7:2001:db8::1:example.com", Ok("7:2001:db8::1:example.com"));
        parses(&by, "7:2001:db8::1", Ok("7:2001:db8::1"));
        parses(&by, "7", Ok("7"));
        parses(&by, "x:2001:db8::1", Err("integer"));
        let texts = [header(Form::Text), header(Form::Text)];
        parses(&texts, "a:b:c", Ok("a:b:c"));
        assert_eq!(Id::parse(&texts, "a:b:c").unwrap().components, ["a", "b:c"]);
        assert_eq!(Id::parse(&texts, "a%3Ab").unwrap().components, ["a:b"]);
    }

    #[test]
    fn a_hostname_set_is_the_hash_that_boulder_keeps() {
        let expected = "394e82811f52e2da38b970afdb21c9bc9af81060939c690183c00fce37408738";
        assert_eq!(hostname_set("example.org,EXAMPLE.com, example.net,example.com").as_deref(), Ok(expected));
        assert!(hostname_set("example.com,").is_err());
    }

    #[test]
    fn keys_cannot_be_forged_by_user_text() {
        let mut headers = HeaderMap::new();
        headers.insert("x-id", "a:b{c}*".parse().unwrap());
        let client = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let request =
            Request { method: "GET", host: "h", path: "/", query: None, headers: &headers, client, now: Micros(0) };
        let Ok(found) = identify(&[header(Form::Text), ip(64)], "L", &request, false, &HASH) else { panic!("no id") };
        assert_eq!(found.bucket.key, "L:a%3Ab%7Bc%7D%2A:127.0.0.1");
        let whole = Id::parse(&[header(Form::Text), ip(64)], "a%3Ab{c}*:127.0.0.1").unwrap();
        assert_eq!(whole.fingerprint("L", &HASH), found.bucket.fingerprint);
        let first = Id::parse(&[header(Form::Text), ip(64)], "a%3Ab{c}*").unwrap();
        assert_eq!(Some(&first.fingerprint("L", &HASH)), found.prefixes.first());

        let by = [Component { source: Source::Cookie("sid".into()), form: Form::Text }];
        assert_eq!(identify(&by, "L", &request, false, &HASH).err(), Some(Lacking { component: 0 }));
        assert_eq!(
            identify(&by, "L", &request, true, &HASH).map(|found| found.bucket.key).ok().as_deref(),
            Some("L:*")
        );
    }

    #[test]
    fn long_components_are_hashed() {
        let bucket = opaque("L", &"x".repeat(65), &HASH);
        assert_eq!(bucket.key.len(), "L:~".len() + 32);
        assert_eq!(opaque("L", &"x".repeat(64), &HASH).key.len(), "L:".len() + 64);
    }

    #[test]
    fn addresses_are_written_as_the_standard_formatter_writes_them() {
        for address in [[0, 0, 0, 0], [255, 255, 255, 255], [10, 0, 100, 9], [192, 0, 2, 10]].map(Ipv4Addr::from) {
            assert_eq!(ipv4_text(address), address.to_string());
        }
    }
}
