//! The id of a request for a limit, and its bucket.

use std::borrow::Cow;
use std::net::IpAddr;

use crate::engine::algorithms::charge::Bucket;
use crate::engine::limit::Limit;
use crate::engine::limit::fingerprint::Fingerprinter;
use crate::engine::limit::key::BucketKey;
use crate::engine::request::Request;
use crate::engine::request::part::{Part, PartError, TypedPart};

/// Stands for a missing part with `missing: shared`. No part encodes to it.
const MISSING: &str = "*";

/// Stands for a malformed part with `malformed: shared`. No part encodes to it.
const MALFORMED: &str = "!";

/// The id of a request for a limit.
pub struct Identity {
    /// The bucket of the whole id.
    pub bucket: Bucket,
    /// The fingerprints of the first one, two, ... parts, which overrides are looked up by; empty if not requested.
    pub prefixes: Vec<u128>,
}

/// `missing:` and `malformed:`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fallback {
    /// The request is not charged.
    Skip,
    /// The request is denied.
    Deny,
    /// All such requests share a bucket: a mark that no request can send replaces the part.
    Shared,
}

/// The part that a request lacks for a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lacking {
    /// The part of `by` with this index.
    Id(usize),
    /// The part of the condition of `match` with this index.
    Condition(usize),
    Cost,
}

/// Why a request is not charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdError {
    pub lacking: Lacking,
    pub reason: PartError,
    /// True if the request is denied. Otherwise it is not charged.
    pub is_denied: bool,
}

/// Returns the id of `request` for a limit. If several parts have no value, one that denies the
/// request takes precedence over one that leaves it uncharged, and that over a shared bucket.
pub fn identify(
    limit: &Limit,
    request: &Request<'_>,
    with_prefixes: bool,
    fingerprinter: &Fingerprinter,
) -> Result<Identity, IdError> {
    let by = &limit.by;
    let mut key = BucketKey::new(&limit.short, fingerprinter);
    let mut prefixes = Vec::with_capacity(if with_prefixes { by.len() } else { 0 });
    let mut skipped = None;
    if let Some(place) = limit.conditions.unreadable_claim(request) {
        let lacks_claim =
            |is_denied| IdError { lacking: Lacking::Condition(place), reason: PartError::Malformed, is_denied };
        match limit.malformed {
            Fallback::Deny => return Err(lacks_claim(true)),
            Fallback::Skip => skipped = Some(lacks_claim(false)),
            // The request may be one that the limit covers, so it is charged as one.
            Fallback::Shared => {}
        }
    }
    for (place, part) in by.iter().enumerate() {
        // The most common part needs neither a separate text nor escapes.
        if let (Part::Ip { .. }, Some(IpAddr::V4(address))) = (&part.part, request.client) {
            key.push_ipv4(address);
            if with_prefixes {
                prefixes.push(key.fingerprint());
            }
            continue;
        }
        match part.of(request) {
            Ok(text) => key.push(&text),
            Err(reason) => {
                let lacking = Lacking::Id(place);
                let (fallback, mark) = match reason {
                    PartError::Missing => (limit.missing, MISSING),
                    PartError::Malformed => (limit.malformed, MALFORMED),
                };
                match fallback {
                    Fallback::Deny => return Err(IdError { lacking, reason, is_denied: true }),
                    Fallback::Skip => skipped = skipped.or(Some(IdError { lacking, reason, is_denied: false })),
                    Fallback::Shared => key.push_encoded(mark),
                }
            }
        }
        if with_prefixes {
            prefixes.push(key.fingerprint());
        }
    }
    if let Some(skipped) = skipped {
        return Err(skipped);
    }
    Ok(Identity { bucket: key.into_bucket(limit.tag), prefixes })
}

/// The canonical parts of the id of `request`.
pub fn describe<'a>(by: &[TypedPart], request: &Request<'a>) -> Vec<Result<Cow<'a, str>, PartError>> {
    by.iter().map(|part| part.of(request)).collect()
}

/// Joins an id to one text, with marks for parts without a value.
pub fn readable(id: &[Result<Cow<'_, str>, PartError>]) -> String {
    let text = |part: &Result<Cow<'_, str>, PartError>| match part {
        Ok(text) => text.clone().into_owned(),
        Err(PartError::Missing) => MISSING.to_owned(),
        Err(PartError::Malformed) => MALFORMED.to_owned(),
    };
    id.iter().map(text).collect::<Vec<_>>().join(":")
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use http::header::HeaderName;

    use super::*;
    use crate::engine::limit::ids::Id;
    use crate::engine::request::value_type::ValueType;
    use crate::engine::request::{DescriptorEntry, sample};
    use crate::message::headers::Headers;

    const HASH: Fingerprinter = Fingerprinter::new((1, 2));

    const SKIP: [Fallback; 2] = [Fallback::Skip; 2];
    const SHARE: [Fallback; 2] = [Fallback::Shared; 2];

    /// The bucket of a request's id, by the treatments of missing and malformed parts.
    fn identify(
        by: &[TypedPart],
        request: &Request<'_>,
        [missing, malformed]: [Fallback; 2],
    ) -> Result<Identity, IdError> {
        let limit = Limit { by: by.to_vec(), missing, malformed, ..Limit::new("L") };
        super::identify(&limit, request, true, &HASH)
    }

    fn header(form: ValueType) -> TypedPart {
        TypedPart::new(Part::Header(HeaderName::from_static("x-id")), form)
    }

    fn ip(ipv6_prefix: u8) -> TypedPart {
        TypedPart::new(Part::Ip { ipv6_prefix }, ValueType::Text)
    }

    fn lacking(part: usize, reason: PartError, is_denied: bool) -> IdError {
        IdError { lacking: Lacking::Id(part), reason, is_denied }
    }

    #[test]
    fn keys_cannot_be_forged_by_user_text() {
        let headers = Headers::from_iter([("x-id", "a:b{c}*!")]);
        let request = Request { client: Some(IpAddr::V4(Ipv4Addr::LOCALHOST)), ..sample(&headers) };
        let Ok(found) = identify(&[header(ValueType::Text), ip(64)], &request, SKIP) else { panic!("no id") };
        assert_eq!(found.bucket.key, "L:a%3Ab%7Bc%7D%2A%21:127.0.0.1");
        let whole = Id::parse(&[header(ValueType::Text), ip(64)], "a%3Ab{c}*!:127.0.0.1").unwrap();
        assert_eq!(whole.fingerprint("L", &HASH), found.bucket.fingerprint);
        let first = Id::parse(&[header(ValueType::Text), ip(64)], "a%3Ab{c}*!").unwrap();
        assert_eq!(Some(&first.fingerprint("L", &HASH)), found.prefixes.first());

        let missing = Some(lacking(0, PartError::Missing, false));
        let by = [TypedPart::new(Part::Cookie("sid".into()), ValueType::Text)];
        assert_eq!(identify(&by, &request, SKIP).err(), missing);
        let shared = identify(&by, &request, SHARE).map(|found| found.bucket.key);
        assert_eq!(shared.ok().as_deref(), Some("L:*"));

        let by = [TypedPart::new(Part::TlsSubject, ValueType::Text)];
        assert_eq!(identify(&by, &request, SKIP).err(), missing);
        let request = Request { tls_subject: Some("CN=client 1,O=Acme"), ..request };
        let found = identify(&by, &request, SKIP).map(|found| found.bucket);
        let whole = Id::parse(&by, "CN=client 1,O=Acme").unwrap();
        assert_eq!(found.map(|bucket| bucket.fingerprint).ok(), Some(whole.fingerprint("L", &HASH)));
    }

    /// The key of a request with these lines of `x-id`, for a limit by it in this form.
    fn key(form: ValueType, lines: &[&[u8]]) -> Result<String, IdError> {
        let headers: Headers = lines.iter().map(|line| ("x-id", line)).collect();
        identify(&[header(form)], &sample(&headers), SHARE).map(|found| found.bucket.key)
    }

    #[test]
    fn every_byte_makes_an_id_of_its_own() {
        for (line, expected) in [
            (&b"caf\xe9"[..], "L:caf%E9"),
            (b"caf\xc3\xa9", "L:caf%C3%A9"),
            (b"caf%E9", "L:caf%25E9"),
            (b"\xf4\x8f\xbf\xa9", "L:%F4%8F%BF%A9"),
        ] {
            assert_eq!(key(ValueType::Text, &[line]).as_deref(), Ok(expected), "{line:?}");
        }
        let long = |last: u8| key(ValueType::Text, &[&[&[0xE9; 80][..], &[last]].concat()]).unwrap();
        assert!(long(1).starts_with("L:~") && long(0xFE) != long(0xFF));
    }

    #[test]
    fn what_is_malformed_is_not_missing() {
        for (form, lines, expected) in [
            (ValueType::Integer, &[&b"07"[..]][..], "L:7"),
            (ValueType::Integer, &[b"-7"], "L:!"),
            (ValueType::Integer, &[b"\xe9"], "L:!"),
            (ValueType::Integer, &[b"7", b"8"], "L:!"),
            (ValueType::Integer, &[b"7", b"7"], "L:7"),
            (ValueType::Integer, &[b""], "L:*"),
            (ValueType::Integer, &[], "L:*"),
            (ValueType::Text, &[b"", b"a"], "L:!"),
            (ValueType::Text, &[b"a", b"A"], "L:!"),
            (ValueType::RegisteredDomain, &[b"*.www.example.com:443"], "L:example.com"),
            (ValueType::RegisteredDomain, &[b"localhost"], "L:!"),
        ] {
            assert_eq!(key(form, lines).as_deref(), Ok(expected), "{form:?} {lines:?}");
        }
    }

    #[test]
    fn a_component_that_denies_counts_before_one_that_skips_before_one_that_is_shared() {
        use Fallback::{Deny, Shared, Skip};

        let headers = Headers::from_iter([("x-id", "x")]);
        let entries = [("k", "1"), ("k", "2")].map(|(key, value)| DescriptorEntry { key, value });
        let request = Request { descriptor: &entries, ..sample(&headers) };
        let malformed = || TypedPart::new(Part::Descriptor("k".into()), ValueType::Text);
        let missing = || TypedPart::new(Part::Query("q".into()), ValueType::Text);
        let check = |by: [TypedPart; 2], missing, malformed| {
            identify(&by, &request, [missing, malformed]).map(|found| found.bucket.key)
        };
        assert_eq!(check([malformed(), missing()], Shared, Shared).as_deref(), Ok("L:!:*"));
        for (by, first) in [([malformed(), missing()], true), ([missing(), malformed()], false)] {
            let place = |is_malformed: bool| usize::from(is_malformed != first);
            let denied = |is_malformed, reason| lacking(place(is_malformed), reason, true);
            assert_eq!(check(by.clone(), Skip, Deny), Err(denied(true, PartError::Malformed)));
            assert_eq!(check(by.clone(), Deny, Skip), Err(denied(false, PartError::Missing)));
            assert_eq!(check(by, Shared, Skip), Err(lacking(place(true), PartError::Malformed, false)));
        }
    }
}
