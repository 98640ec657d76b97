//! The ids of charges by name, canonicalised as those of requests.

use std::borrow::Cow;
use std::net::IpAddr;

use crate::engine::algorithms::charge::Bucket;
use crate::engine::limit::Limit;
use crate::engine::limit::ids::{Id, credentials};
use crate::engine::limit::key::BucketKey;
use crate::engine::limit::rules::Rules;
use crate::engine::request::part::{Part, TypedPart};
use crate::engine::request::trimmed_text;
use crate::engine::request::value_type::{ValueType, canonical};
use crate::engine::text::quote::quoted;
use crate::message::address;
use crate::message::host::written_host;
use crate::message::lossless::keep;
use crate::message::path::normalise;

/// In bytes. Every split at a colon is tried, which takes time quadratic in the length.
const LONGEST_SPLIT: usize = 1024;

/// An id in the raw text of a request: `2001:db8::7` for a limit by `ip/64`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GivenId {
    /// For `by: global`.
    Absent,
    /// The whole text of a single part, or several parts separated by colons, as in the ids of overrides.
    Text(String),
    /// The parts in the order of `by`.
    Parts(Vec<String>),
}

/// The id of a charge by name: its bucket, and what overrides are looked up by.
pub(crate) struct NamedIdentity {
    pub(crate) bucket: Bucket,
    pub(crate) prefixes: Vec<u128>,
    pub(crate) text: String,
    /// For overrides by network.
    pub(crate) client: Option<IpAddr>,
}

impl NamedIdentity {
    /// Reads an id. The error has the index of the invalid part, if it is one.
    pub(crate) fn read(rules: &Rules, limit: &Limit, id: &GivenId) -> Result<Self, (Option<usize>, String)> {
        Ok(Self::of_parts(rules, limit, &parts(&limit.by, id)?))
    }

    /// The id of these parts. The last ones may be missing.
    pub(crate) fn of_parts(rules: &Rules, limit: &Limit, parts: &[CanonicalPart<'_>]) -> Self {
        let mut key = BucketKey::new(&limit.short, &rules.fingerprinter);
        let mut prefixes = Vec::with_capacity(parts.len());
        for part in parts {
            key.push(&part.text);
            prefixes.push(key.fingerprint());
        }
        let texts: Vec<&str> = parts.iter().map(|part| part.text.as_ref()).collect();
        Self {
            bucket: key.into_bucket(limit.tag),
            prefixes,
            text: texts.join(":"),
            client: parts.iter().find_map(|part| part.address),
        }
    }
}

pub(crate) struct CanonicalPart<'a> {
    pub(crate) text: Cow<'a, str>,
    pub(crate) address: Option<IpAddr>,
}

fn parts<'a>(by: &[TypedPart], id: &'a GivenId) -> Result<Vec<CanonicalPart<'a>>, (Option<usize>, String)> {
    let wrong = |given: usize| {
        let reason = match by.len() {
            0 => "the limit is `by: global`: it has one bucket and no ids".to_owned(),
            1 => format!("the limit's ids have one component, this one has {given}"),
            wanted => {
                format!("the limit's ids have {wanted} components, this one has {given}; give a list of {wanted} texts")
            }
        };
        Err((None, reason))
    };
    match id {
        GivenId::Absent if by.is_empty() => Ok(Vec::new()),
        GivenId::Absent => Err((None, "an id is missing".to_owned())),
        GivenId::Text(text) => match by {
            [] => wrong(1),
            [only] => canonical_part(only, keep(text)).map(|found| vec![found]).map_err(|reason| (None, reason)),
            several => split(several, text).map_err(|reason| (None, reason)),
        },
        GivenId::Parts(texts) if texts.len() != by.len() => wrong(texts.len()),
        GivenId::Parts(texts) => {
            let read =
                by.iter().zip(texts).enumerate().map(|(place, (part, text))| {
                    canonical_part(part, keep(text)).map_err(|reason| (Some(place), reason))
                });
            read.collect()
        }
    }
}

/// Splits several parts in one text, as in overrides.
fn split<'a>(by: &[TypedPart], text: &str) -> Result<Vec<CanonicalPart<'a>>, String> {
    let found = split_first(by, text)?;
    if found.len() < by.len() {
        return Err(format!("the limit's ids have {} components, this one has {}", by.len(), found.len()));
    }
    Ok(found)
}

/// Does the same as [`split`], but the last parts may be missing.
pub(crate) fn split_first<'a>(by: &[TypedPart], text: &str) -> Result<Vec<CanonicalPart<'a>>, String> {
    if text.len() > LONGEST_SPLIT {
        return Err(format!(
            "an id of {} bytes is too long to be split at its colons; give a list of texts",
            text.len()
        ));
    }
    let id = Id::parse(by, text)?;
    let canonical = by.iter().zip(id.parts).map(|(part, text)| {
        let network = text.split_once('/').map_or(text.as_str(), |(address, _)| address);
        let is_address = matches!(part.part, Part::Ip { .. });
        CanonicalPart { address: is_address.then(|| address::parse(network).ok()).flatten(), text: Cow::Owned(text) }
    });
    Ok(canonical.collect())
}

/// Returns the canonical text of a part: `EXAMPLE.com:80` and `example.com` are the same host.
pub(crate) fn canonical_part<'a>(part: &TypedPart, text: Cow<'a, str>) -> Result<CanonicalPart<'a>, String> {
    if let Part::Ip { ipv6_prefix } = part.part {
        let client = address::parse(&text).map_err(|_| format!("{} is not a valid IP address", quoted(&text)))?;
        return Ok(CanonicalPart { text: Cow::Owned(address::id_text(client, ipv6_prefix)), address: Some(client) });
    }
    let raw = match &part.part {
        Part::Host => {
            let host = written_host(&text).ok_or_else(|| format!("{} is not a valid host", quoted(&text)))?;
            if host == text { text } else { host.into_owned().into() }
        }
        Part::Path if !text.starts_with('/') => {
            return Err(format!("a path must begin with `/`, found {}", quoted(&text)));
        }
        Part::Path => part.path_reading.of(&normalise(&text)).into_owned().into(),
        Part::PathParameter { .. } if part.path_reading.ignores_case => trimmed_text(text.to_ascii_lowercase().into()),
        Part::Credentials => credentials(&text)?.into(),
        source if source.is_trimmed() => trimmed_text(text),
        _ => text,
    };
    if raw.is_empty() {
        return Err("a component of the id is empty".to_owned());
    }
    let text = match part.form {
        ValueType::Text => raw,
        form => Cow::Owned(canonical(form, &raw)?),
    };
    Ok(CanonicalPart { text, address: None })
}
