//! The components of ids, and their values in a request.

use std::borrow::Cow;

use http::header::HeaderName;

use crate::engine::request::claims::ClaimRef;
use crate::engine::request::path_pattern::PathReading;
use crate::engine::request::value_type::{ValueType, lenient};
use crate::engine::request::{AmbiguousValue, Duplicates, Request, trimmed_text};
use crate::message::address;
use crate::message::json_pointer::JsonPointer;
use crate::message::percent::decode;

/// The prefix length of `by: ip` for IPv6. A provider gives a customer a /64 at least (RFC 6177), so whole addresses would give a
/// client 2^64 buckets.
pub const IPV6_CLIENT_PREFIX: u8 = 64;

/// The source of a component.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ComponentSource {
    /// The client's address. IPv6 is cut to its first `ipv6_prefix` bits, IPv4 stays whole.
    Ip {
        /// 1 to 128.
        ipv6_prefix: u8,
    },
    /// Without the port.
    Host,
    Method,
    /// The normalised path.
    Path,
    Header(HeaderName),
    Query(String),
    Cookie(String),
    /// The credentials in `Authorization`, in their canonical text.
    Credentials,
    /// The subject of the client's certificate as RFC 4514 text.
    TlsSubject,
    /// A claim of a verified token.
    Claim(ClaimRef),
    /// A value in the JSON body.
    Body(JsonPointer),
    /// The descriptor entry with this key.
    Descriptor(String),
    /// The descriptor entry at an index. An empty value is an id too.
    Entry {
        /// Its key, for messages.
        key: String,
        place: usize,
    },
    /// A `{parameter}` of the limit's path pattern.
    PathParameter {
        name: String,
        /// The index in the path split at `/`.
        segment: usize,
    },
}

/// One component of a limit's `by`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Component {
    pub source: ComponentSource,
    /// The type of the value. Ignored for [`ComponentSource::Ip`].
    pub form: ValueType,
    pub duplicates: Duplicates,
    /// For paths and their parameters.
    pub path_reading: PathReading,
}

/// A request has no usable value for a component.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ComponentError {
    /// Absent or empty.
    Missing,
    /// Not of the type that `as:` requires, or several different values.
    Malformed,
}

impl From<AmbiguousValue> for ComponentError {
    fn from(_: AmbiguousValue) -> Self {
        Self::Malformed
    }
}

impl ComponentSource {
    /// Returns whether blanks around its values do not count in requests.
    pub(crate) const fn is_trimmed(&self) -> bool {
        matches!(self, Self::Header(_) | Self::Query(_) | Self::Cookie(_) | Self::PathParameter { .. })
    }
}

impl Component {
    /// A component that is malformed if a request has several different values.
    pub const fn new(source: ComponentSource, form: ValueType) -> Self {
        let path_reading = PathReading { ignores_case: false, strips_parameters: false };
        Self { source, form, duplicates: Duplicates::Ambiguous, path_reading }
    }

    /// The canonical text of this component in `request`.
    pub(crate) fn of<'a>(&self, request: &Request<'a>) -> Result<Cow<'a, str>, ComponentError> {
        let raw = match &self.source {
            ComponentSource::Ip { ipv6_prefix } => {
                return request
                    .client
                    .map(|client| address::id_text(client, *ipv6_prefix).into())
                    .ok_or(ComponentError::Missing);
            }
            ComponentSource::Host => Some(request.host.into()),
            ComponentSource::Method => Some(request.method.into()),
            ComponentSource::Path => Some(self.path_reading.of(request.path)),
            ComponentSource::Header(name) => request.header(name.as_str(), self.duplicates)?,
            ComponentSource::Query(name) => request.query(name, self.duplicates)?,
            ComponentSource::Cookie(name) => request.cookie(name, self.duplicates)?,
            ComponentSource::Credentials => request.credentials()?,
            ComponentSource::Claim(claim) => claim.text(request.claims)?,
            ComponentSource::TlsSubject => request.tls_subject.map(Cow::Borrowed),
            ComponentSource::Body(pointer) => request.body_value(pointer)?,
            ComponentSource::Descriptor(key) => request.entry(key, self.duplicates)?.map(Cow::Borrowed),
            ComponentSource::Entry { place, .. } => {
                return request.descriptor.get(*place).map(|entry| entry.value.into()).ok_or(ComponentError::Missing);
            }
            ComponentSource::PathParameter { segment, .. } => {
                let decoded = match self.path_reading.of(request.path) {
                    Cow::Borrowed(path) => path_segment(path, *segment).map(decode),
                    Cow::Owned(path) => path_segment(&path, *segment).map(|text| decode(text).into_owned().into()),
                };
                decoded.map(trimmed_text)
            }
        };
        let raw = raw.filter(|raw| !raw.is_empty()).ok_or(ComponentError::Missing)?;
        match self.form {
            ValueType::Text => Ok(raw),
            form => lenient(form, &raw).map(Cow::Owned).ok_or(ComponentError::Malformed),
        }
    }
}

fn path_segment(path: &str, index: usize) -> Option<&str> {
    path.split('/').skip(1).nth(index)
}
