//! What must hold of everything that the proxy parses, whatever it is given. The proptests below and
//! `integration/fuzz.sh` look for what it does not hold of.

#![expect(clippy::unwrap_used, reason = "a property that does not hold is a panic")]

use std::net::{IpAddr, Ipv4Addr};
use std::num::NonZeroU8;

use super::http1::properties as http1;
use super::transport::proxy_protocol;
use super::upstream::Routes;
use crate::engine::algorithms::micros::Micros;
use crate::engine::algorithms::numbers::Numbers;
use crate::engine::charging::plan::Plan;
use crate::engine::limit::Limit;
use crate::engine::limit::allowance::Allowance;
use crate::engine::limit::fingerprint::Fingerprinter;
use crate::engine::limit::ids::{self, Id};
use crate::engine::limit::rules::Rules;
use crate::engine::request::part::{Part, TypedPart};
use crate::engine::request::path_pattern::PathPattern;
use crate::engine::request::value_type::ValueType;
use crate::engine::request::{Body, Request, trimmed};
use crate::engine::telling::bucket_info::BucketInfo;
use crate::message::client_address::{AddressSource, TrustedProxies};
use crate::message::headers::{self, Headers};
use crate::message::lossless;
use crate::message::path::{self, EscapedSlashes};
use crate::message::percent::decode;

/// Panics if it does not hold of these bytes.
pub type Property = fn(&[u8]);

/// What can be fuzzed, by name.
pub const ALL: [(&str, Property); 11] = [
    ("request_head", http1::request_head),
    ("response_head", http1::response_head),
    ("chunks", http1::chunks),
    ("proxy_header", proxy_header),
    ("path", |bytes| text(bytes, path)),
    ("pattern", |bytes| text(bytes, pattern)),
    ("segment", segment),
    ("addresses", addresses),
    ("routes", |bytes| text(bytes, routes)),
    ("id", |bytes| text(bytes, override_id)),
    ("header_id", header_id),
];

fn text(bytes: &[u8], property: fn(&str)) {
    if let Ok(text) = std::str::from_utf8(bytes) {
        property(text);
    }
}

/// A PROXY header is the same whatever follows it, and is none before its end.
fn proxy_header(bytes: &[u8]) {
    let Ok(Some(header)) = proxy_protocol::parse(bytes) else { return };
    let length = header.length;
    assert!(length > 0 && length <= bytes.len());
    assert_eq!(proxy_protocol::parse(&bytes[..length]), Ok(Some(header)));
    for end in [0, length / 2, length - 1] {
        assert_eq!(proxy_protocol::parse(&bytes[..end]), Ok(None), "{:?}", &bytes[..end]);
    }
}

/// A path that is taken has one normal form, however it is spelt, and that form has no other.
fn path(given: &str) {
    let given = format!("/{given}");
    if path::check(&given, EscapedSlashes::Keep).is_err() || given.contains('?') {
        return;
    }
    let normal = path::normalise(&given);
    assert_eq!(path::normalise(&normal), normal);
    assert_eq!(path::check(&normal, EscapedSlashes::Keep), Ok(()));
    assert!(normal.starts_with('/') && !normal.contains("//") && (normal.len() == 1 || !normal.ends_with('/')));
    assert!(normal.split('/').all(|segment| segment != "." && segment != ".."), "{normal}");
    let hex = |digit| char::from_digit(digit, 16).unwrap();
    let is_free = |letter: char| letter.is_ascii_graphic() && !"\\?#".contains(letter);
    let mut letters = given.chars();
    let mut spelt = String::new();
    while let Some(letter) = letters.next() {
        match letter {
            '%' => {
                spelt.push(letter);
                spelt.extend(letters.by_ref().take(2).map(|digit| digit.to_ascii_lowercase()));
            }
            '/' => spelt.push_str("/.//"),
            letter if is_free(letter) => {
                spelt.extend(['%', hex(u32::from(letter) >> 4), hex(u32::from(letter) & 15)]);
            }
            letter => spelt.push(letter),
        }
    }
    assert_eq!(path::normalise(&spelt), normal, "{spelt}");
}

/// A segment of any bytes but control characters is one segment, and a parameter that it is for is these bytes.
fn segment(bytes: &[u8]) {
    use std::fmt::Write;
    let mut sent = "/a/".to_owned();
    for byte in bytes {
        let _ = write!(sent, "%{byte:02x}");
    }
    if bytes.is_empty() || bytes == b"." || bytes == b".." || path::check(&sent, EscapedSlashes::Keep).is_err() {
        return;
    }
    let normal = path::normalise(&sent);
    assert_eq!(path::normalise(&normal), normal);
    let given = normal.strip_prefix("/a/").unwrap();
    assert_eq!(&*lossless::bytes(&decode(given)), bytes, "{normal}");
    let unambiguous = |byte: &u8| byte.is_ascii_graphic() && !b"/\\%?#{}*".contains(byte);
    if bytes.iter().all(unambiguous) {
        let raw = std::str::from_utf8(bytes).unwrap();
        assert!(PathPattern::parse(&format!("/a/{raw}")).unwrap().matches(&normal), "{normal}");
    }
}

/// A pattern is written as one that means the same, and one without parameters matches its own path.
fn pattern(given: &str) {
    let Ok(pattern) = PathPattern::parse(given) else { return };
    let written = pattern.to_string();
    assert_eq!(PathPattern::parse(&written).as_ref(), Ok(&pattern), "{written}");
    if !written.contains('{') {
        assert!(pattern.matches(&path::normalise(written.trim_end_matches("/**"))), "{written}");
    }
}

/// Whatever bytes a client sends, the proxy that is trusted has the last word.
fn addresses(claim: &[u8]) {
    if !headers::is_value(claim) {
        return;
    }
    let (proxy, client) = (IpAddr::from([10, 0, 0, 1]), IpAddr::V4(Ipv4Addr::new(192, 0, 2, 7)));
    let quoted: Vec<u8> = claim
        .iter()
        .flat_map(|byte| if matches!(byte, b'\\' | b'"') { vec![b'\\', *byte] } else { vec![*byte] })
        .collect();
    let trusted = |source| TrustedProxies { source, ..TrustedProxies::new(vec!["10.0.0.0/8".parse().unwrap()]) };
    for (name, said) in [
        ("x-forwarded-for", b"192.0.2.7".to_vec()),
        ("forwarded", b"for=192.0.2.7".to_vec()),
        ("forwarded", b"for=\"192.0.2.7:80\";by=x".to_vec()),
        ("forwarded", [b"for=192.0.2.7;host=\"", &quoted[..], b"\""].concat()),
        ("forwarded", [b"host=\"", &quoted[..], b"\";for=192.0.2.7"].concat()),
    ] {
        let (source, other) = if name == "forwarded" {
            (AddressSource::Forwarded, "x-forwarded-for")
        } else {
            (AddressSource::XForwardedFor, "forwarded")
        };
        let appended = [claim, b",", &said].concat();
        for lines in
            [vec![(name, &appended[..])], vec![(name, claim), (name, &said)], vec![(other, claim), (name, &said)]]
        {
            let headers = Headers::from_iter(lines);
            assert_eq!(trusted(source).client(proxy, &headers).address, client, "{headers:?}");
            if name != "forwarded" {
                let found = trusted(source).client_of_gateway(&headers).map(|client| client.address);
                assert_eq!(found, Some(client), "{headers:?}");
            }
        }
    }
    for source in [AddressSource::XForwardedFor, AddressSource::Forwarded, AddressSource::Hops(NonZeroU8::MIN)] {
        let claims = Headers::from_iter([("x-forwarded-for", claim), ("forwarded", claim)]);
        assert_eq!(trusted(source).client(client, &claims), client.into());
        trusted(source).client(proxy, &claims);
    }
}

/// Routes are accepted, or rejected with a reason, and always alike.
fn routes(given: &str) {
    let lines: Vec<&str> = given.lines().collect();
    match (Routes::parse(&lines), Routes::parse(&lines)) {
        (Ok(first), Ok(second)) => assert_eq!(format!("{first:?}"), format!("{second:?}")),
        (Err(first), Err(second)) => assert!(first == second && first.iter().all(|reason| !reason.is_empty())),
        other => panic!("{other:?}"),
    }
}

/// The canonical text of an id is its own. (Not that of a registered domain: people write an IPv6 address there without
/// the mask that it is counted by.)
fn override_id(given: &str) {
    let of = |source: Part, form| TypedPart::new(source, form);
    for by in [
        vec![of(Part::Ip { ipv6_prefix: 64 }, ValueType::Address)],
        vec![of(Part::Host, ValueType::Hostname)],
        vec![of(Part::Ip { ipv6_prefix: 128 }, ValueType::Address), of(Part::Method, ValueType::Integer)],
    ] {
        if let Ok(id) = Id::parse(&by, given) {
            let written = id.to_string();
            assert_eq!(Id::parse(&by, &written).map(|id| id.to_string()), Ok(written), "{given}");
        }
    }
}

/// Whatever bytes a header has, its id is these bytes and no others, and its bucket is found by its name.
fn header_id(value: &[u8]) {
    // Without blanks of one kind, it may have those of another.
    let mut value = value;
    while trimmed(value).len() < value.len() {
        value = trimmed(value);
    }
    if !headers::is_value(value) || value.is_empty() {
        return;
    }
    let by = vec![TypedPart::new(Part::Header("x-id".parse().unwrap()), ValueType::Text)];
    let windows = [Numbers::fixed(1).unwrap()].into();
    let limit = Limit { by, allowance: Allowance::Windows(windows), ..Limit::new("L") };
    let rules = Rules::new(vec![limit], Fingerprinter::new((1, 2)), Micros(0), Vec::new());
    let headers = Headers::from_iter([("x-id", value)]);
    let request = Request { headers: &headers, ..REQUEST };
    let plan = Plan::of_request(&rules, &request, None).unwrap();
    let bucket = &plan.charges[0].bucket;
    let encoded = bucket.key.strip_prefix("L:").unwrap();
    if !encoded.starts_with('~') {
        assert_eq!(&*lossless::bytes(&decode(encoded)), value);
    }
    let name = BucketInfo::find(&rules, &format!("L:{}", ids::escape(&lossless::text(value), false)), Micros(0))
        .unwrap()
        .name();
    assert_eq!(BucketInfo::find(&rules, &name, Micros(0)).unwrap().key, bucket.key, "{name}");
}

/// A request of nobody in particular.
const REQUEST: Request<'_> = Request {
    method: "GET",
    host: "a",
    path: "/",
    query: None,
    headers: &Headers::new(),
    client: None,
    tls_subject: None,
    claims: &[],
    body: Body::Absent,
    domain: None,
    descriptor: &[],
    now: Micros(0),
};

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn of_paths(text in "([a./%;~-]|%2[eEfF5]|%41|\\.\\.|//){0,12}") {
            path(&text);
            pattern(&format!("/{text}"));
        }

        #[test]
        fn of_addresses(parts in prop::collection::vec(
            prop_oneof!["([0-9a-f.:,;= \\[\\]\"\\\\]|for=|10\\.0\\.0\\.9|unknown)".prop_map(String::into_bytes), any::<u8>().prop_map(|byte| vec![byte])],
            0..12,
        )) {
            addresses(&parts.concat());
        }

        #[test]
        fn of_texts(text in "([0-9.:%/=,a-z\\[\\]{}*-]|\\n|\\PC|http://|https://|unix:|1h|µs|127.0.0.1|::1){0,20}") {
            for property in [routes, override_id, path, pattern] {
                property(&text);
            }
            addresses(text.as_bytes());
        }

        #[test]
        fn of_segments(bytes in prop::collection::vec(prop_oneof![any::<u8>(), b'!'..=b'~', Just(b'.')], 0..9)) {
            segment(&bytes);
        }

        #[test]
        fn of_header_ids(value in prop::collection::vec(prop_oneof![any::<u8>(), 0x80_u8..=0xFF, Just(b'%'), b'0'..=b'9', b'A'..=b'F'], 0..9)) {
            header_id(&value);
        }

        #[test]
        fn of_proxy_headers(text in "PROXY (TCP4|TCP6|UNKNOWN)?( [0-9.:]{1,9}){0,4}(\\r\\n)?x?", tail in prop::collection::vec(any::<u8>(), 0..40)) {
            proxy_header(text.as_bytes());
            proxy_header(&[&b"\r\n\r\n\0\r\nQUIT\n"[..], &tail].concat());
        }
    }
}
