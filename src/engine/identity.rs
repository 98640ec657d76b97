//! Whose bucket a request is charged to: the components of its id.

use std::borrow::Cow;
use std::net::IpAddr;

use http::header::HeaderName;

use super::address;
use super::charge::Bucket;
use super::fingerprint::Fingerprinter;
use super::form::{Form, canonical};
use super::key::Key;
use super::request::{Request, decode};

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
    /// The subject of the client's certificate, as text of RFC 4514.
    TlsSubject,
    /// The entry of the descriptor with this key; of several the first.
    Descriptor(String),
    /// The entry at a place of the descriptor, whatever its value: even an empty one is an id of its own.
    Entry {
        /// Its key, for people.
        key: String,
        /// Counted from 0.
        place: usize,
    },
    /// A `{parameter}` of the limit's own path pattern: the index of its segment.
    PathParameter {
        /// As the pattern names it.
        name: String,
        /// Counted from 0, in the path split at `/`.
        segment: usize,
    },
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
    pub(super) fn of<'a>(&self, request: &Request<'a>) -> Option<Cow<'a, str>> {
        let raw: Cow<'a, str> = match &self.source {
            Source::Ip { ipv6_prefix } => return Some(Cow::Owned(address::id_text(request.client?, *ipv6_prefix))),
            Source::Host => Cow::Borrowed(request.host),
            Source::Method => Cow::Borrowed(request.method),
            Source::Path => Cow::Borrowed(request.path),
            Source::Header(name) => Cow::Borrowed(request.header(name.as_str())?),
            Source::Query(name) => request.query(name)?,
            Source::Cookie(name) => Cow::Borrowed(request.cookie(name)?),
            Source::TlsSubject => Cow::Borrowed(request.tls_subject?),
            Source::Descriptor(key) => Cow::Borrowed(request.entry(key)?),
            Source::Entry { place, .. } => return Some(Cow::Borrowed(request.descriptor.get(*place)?.value)),
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
}

/// The id of a request for one limit.
pub struct Identified {
    /// The bucket of the whole id.
    pub bucket: Bucket,
    /// Fingerprints of the first one, two, ... components, if they were wanted: what overrides are looked up by.
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
pub fn identify(
    by: &[Component],
    short: &str,
    request: &Request<'_>,
    share_missing: bool,
    with_prefixes: bool,
    fingerprinter: &Fingerprinter,
) -> Result<Identified, Lacking> {
    let mut key = Key::new(short, fingerprinter);
    let mut prefixes = Vec::with_capacity(if with_prefixes { by.len() } else { 0 });
    for (component, part) in by.iter().enumerate() {
        // What most limits go by needs neither a text of its own nor an escape.
        if let (Source::Ip { .. }, Some(IpAddr::V4(address))) = (&part.source, request.client) {
            key.push_ipv4(address);
            if with_prefixes {
                prefixes.push(key.fingerprint());
            }
            continue;
        }
        match part.of(request) {
            Some(text) => key.push(&text),
            None if share_missing => key.push_encoded(MISSING),
            None => return Err(Lacking { component }),
        }
        if with_prefixes {
            prefixes.push(key.fingerprint());
        }
    }
    let fingerprint = prefixes.last().copied().unwrap_or_else(|| key.fingerprint());
    Ok(Identified { bucket: key.bucket(fingerprint), prefixes })
}

/// The canonical id of `request` as people read it, component by component; `None` where the request lacks one.
pub fn describe<'a>(by: &[Component], request: &Request<'a>) -> Vec<Option<Cow<'a, str>>> {
    by.iter().map(|part| part.of(request)).collect()
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::super::fields::Fields;
    use super::super::id::Id;
    use super::super::request::sample;
    use super::*;

    const HASH: Fingerprinter = Fingerprinter::new((1, 2));

    fn header(form: Form) -> Component {
        Component { source: Source::Header(HeaderName::from_static("x-id")), form }
    }

    fn ip(ipv6_prefix: u8) -> Component {
        Component { source: Source::Ip { ipv6_prefix }, form: Form::Text }
    }

    #[test]
    fn keys_cannot_be_forged_by_user_text() {
        let headers = Fields::from_iter([("x-id", "a:b{c}*")]);
        let request = Request { client: Some(IpAddr::V4(Ipv4Addr::LOCALHOST)), ..sample(&headers) };
        let Ok(found) = identify(&[header(Form::Text), ip(64)], "L", &request, false, true, &HASH) else {
            panic!("no id")
        };
        assert_eq!(found.bucket.key, "L:a%3Ab%7Bc%7D%2A:127.0.0.1");
        let whole = Id::parse(&[header(Form::Text), ip(64)], "a%3Ab{c}*:127.0.0.1").unwrap();
        assert_eq!(whole.fingerprint("L", &HASH), found.bucket.fingerprint);
        let first = Id::parse(&[header(Form::Text), ip(64)], "a%3Ab{c}*").unwrap();
        assert_eq!(Some(&first.fingerprint("L", &HASH)), found.prefixes.first());

        let by = [Component { source: Source::Cookie("sid".into()), form: Form::Text }];
        assert_eq!(identify(&by, "L", &request, false, true, &HASH).err(), Some(Lacking { component: 0 }));
        assert_eq!(
            identify(&by, "L", &request, true, true, &HASH).map(|found| found.bucket.key).ok().as_deref(),
            Some("L:*")
        );

        let by = [Component { source: Source::TlsSubject, form: Form::Text }];
        assert_eq!(identify(&by, "L", &request, false, true, &HASH).err(), Some(Lacking { component: 0 }));
        let request = Request { tls_subject: Some("CN=client 1,O=Acme"), ..request };
        let found = identify(&by, "L", &request, false, true, &HASH).map(|found| found.bucket);
        let whole = Id::parse(&by, "CN=client 1,O=Acme").unwrap();
        assert_eq!(found.map(|bucket| bucket.fingerprint).ok(), Some(whole.fingerprint("L", &HASH)));
    }
}
