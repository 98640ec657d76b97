//! The components that ids are made of, and how a request gives them.

use std::borrow::Cow;

use http::header::HeaderName;

use super::path_pattern::PathReading;
use super::request::{AmbiguousValue, Duplicates, Request};
use super::value_type::{ValueType, lenient};
use crate::message::address;
use crate::message::percent::decode;

/// Where a component of an id comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ComponentSource {
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
    /// A header of the request.
    Header(HeaderName),
    /// A query parameter.
    Query(String),
    /// A cookie.
    Cookie(String),
    /// The subject of the client's certificate, as text of RFC 4514.
    TlsSubject,
    /// The entry of the descriptor with this key.
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
    pub source: ComponentSource,
    /// How it is read. Ignored for [`ComponentSource::Ip`], which is an address by nature.
    pub form: ValueType,
    /// The one of several values that counts.
    pub duplicates: Duplicates,
    /// How a path is read that it is or comes from.
    pub path_reading: PathReading,
}

/// Why a request has no value for a component.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ComponentError {
    /// It is not there, or empty.
    Missing,
    /// It is there, but not what `as:` wants, or several times with different values.
    Malformed,
}

impl From<AmbiguousValue> for ComponentError {
    fn from(_: AmbiguousValue) -> Self {
        Self::Malformed
    }
}

impl Component {
    /// A component that is any text, and malformed if the request has several.
    pub const fn new(source: ComponentSource, form: ValueType) -> Self {
        let path_reading = PathReading { ignores_case: false, strips_parameters: false };
        Self { source, form, duplicates: Duplicates::Ambiguous, path_reading }
    }

    /// The canonical text of this component of `request`.
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
            ComponentSource::TlsSubject => request.tls_subject.map(Cow::Borrowed),
            ComponentSource::Descriptor(key) => request.entry(key, self.duplicates)?.map(Cow::Borrowed),
            ComponentSource::Entry { place, .. } => {
                return request.descriptor.get(*place).map(|entry| entry.value.into()).ok_or(ComponentError::Missing);
            }
            ComponentSource::PathParameter { segment, .. } => match self.path_reading.of(request.path) {
                Cow::Borrowed(path) => path_segment(path, *segment).map(decode),
                Cow::Owned(path) => path_segment(&path, *segment).map(|text| decode(text).into_owned().into()),
            },
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
