//! The parts of a request that limits read.

use std::borrow::Cow;
use std::fmt;

use http::header::{AUTHORIZATION, COOKIE, HeaderName};

use crate::engine::request::claims::ClaimRef;
use crate::engine::request::path_pattern::PathReading;
use crate::engine::request::value_type::{ValueType, lenient};
use crate::engine::request::{AmbiguousValue, Duplicates, Request, trimmed_text};
use crate::engine::text::quote::quoted;
use crate::message::address;
use crate::message::json_pointer::JsonPointer;
use crate::message::percent::decode;

/// The prefix length of `by: ip` for IPv6. A provider gives a customer a /64 at least (RFC 6177), so whole addresses would give a
/// client 2^64 buckets.
pub const IPV6_CLIENT_PREFIX: u8 = 64;

/// The whole address of the client.
pub static ADDRESS: Part = Part::Ip { ipv6_prefix: 128 };

/// A part of a request. It is displayed as sentences call it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
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
    /// The descriptor entry at an index. An empty value counts, too.
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

/// The knowledge of a request that reading a part of it needs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    Method,
    Host,
    Path,
    Query,
    Client,
    Certificate,
    /// The verified claims of tokens.
    Claims,
    Body,
    /// In lower case.
    Header(String),
    Descriptor,
}

/// Returns true for a header whose values are secrets, whatever rules do with them. Given in lower case.
pub fn is_secret(header: &str) -> bool {
    matches!(header, "authorization" | "cookie" | "proxy-authorization")
}

/// A part, and how its values are read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TypedPart {
    pub part: Part,
    /// `as:`. Ignored for [`Part::Ip`].
    pub form: ValueType,
    pub duplicates: Duplicates,
    /// For paths and their parameters.
    pub path_reading: PathReading,
}

/// A request has no usable value for a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartError {
    /// Absent or empty.
    Missing,
    /// Not of the type that `as:` requires, or several different values.
    Malformed,
}

impl From<AmbiguousValue> for PartError {
    fn from(_: AmbiguousValue) -> Self {
        Self::Malformed
    }
}

impl Part {
    /// The word of the rules file, what sentences call it, and its name, if requests have several of the kind.
    fn words(&self) -> (&'static str, &'static str, Option<&str>) {
        match self {
            Self::Ip { .. } => ("ip", "address", None),
            Self::Host => ("host", "host", None),
            Self::Method => ("method", "method", None),
            Self::Path => ("path", "path", None),
            Self::PathParameter { name, .. } => ("path", "path parameter", Some(name)),
            Self::Header(name) => ("header", "header", Some(name.as_str())),
            Self::Query(name) => ("query", "query parameter", Some(name)),
            Self::Cookie(name) => ("cookie", "cookie", Some(name)),
            Self::Credentials => ("credentials", "credentials", None),
            Self::TlsSubject => ("tls", "client certificate", Some("subject")),
            Self::Claim(claim) => ("claim", "claim", Some(claim.path.as_str())),
            Self::Body(pointer) => ("body", "JSON body value", Some(pointer.as_str())),
            Self::Descriptor(key) | Self::Entry { key, .. } => ("descriptor", "descriptor entry", Some(key)),
        }
    }

    /// The word of the rules file: a plain word, or the key of a map.
    pub fn word(&self) -> &'static str {
        self.words().0
    }

    /// The value of that key; `None` for a plain word.
    pub fn name(&self) -> Option<&str> {
        self.words().2
    }

    /// The key of a descriptor's entry.
    pub fn entry_key(&self) -> Option<&str> {
        self.name().filter(|_| matches!(self, Self::Descriptor(_) | Self::Entry { .. }))
    }

    pub fn source(&self) -> Source {
        match self {
            Self::Ip { .. } => Source::Client,
            Self::Host => Source::Host,
            Self::Method => Source::Method,
            Self::Path | Self::PathParameter { .. } => Source::Path,
            Self::Header(name) => Source::Header(name.as_str().to_owned()),
            Self::Credentials => Source::Header(AUTHORIZATION.as_str().to_owned()),
            Self::Cookie(_) => Source::Header(COOKIE.as_str().to_owned()),
            Self::Query(_) => Source::Query,
            Self::TlsSubject => Source::Certificate,
            Self::Claim(_) => Source::Claims,
            Self::Body(_) => Source::Body,
            Self::Descriptor(_) | Self::Entry { .. } => Source::Descriptor,
        }
    }

    /// Returns true if clients can give it any text.
    pub const fn is_free(&self) -> bool {
        matches!(
            self,
            Self::Header(_)
                | Self::Credentials
                | Self::Query(_)
                | Self::Cookie(_)
                | Self::Body(_)
                | Self::PathParameter { .. }
        )
    }

    /// Returns true if blanks around its values do not count in requests.
    pub(crate) const fn is_trimmed(&self) -> bool {
        matches!(self, Self::Header(_) | Self::Query(_) | Self::Cookie(_) | Self::PathParameter { .. })
    }

    /// Returns true if `is_wanted` does for one of its values in a request.
    pub(crate) fn any_value(&self, request: &Request<'_>, mut is_wanted: impl FnMut(&str) -> bool) -> bool {
        match self {
            Self::Header(name) => request.lines(name.as_str()).any(|value| is_wanted(&value)),
            Self::Claim(claim) => claim.texts(request.claims).any(|value| is_wanted(&value)),
            Self::Descriptor(key) => request.entries(key).any(is_wanted),
            Self::Entry { key, place } => {
                let entry = request.descriptor.get(*place).filter(|entry| entry.key == key);
                entry.is_some_and(|entry| is_wanted(entry.value))
            }
            part => {
                let text = part.text(request, Duplicates::Ambiguous, PathReading::default());
                text.is_ok_and(|text| is_wanted(&text))
            }
        }
    }

    /// The text in a request.
    pub(crate) fn text<'a>(
        &self,
        request: &Request<'a>,
        duplicates: Duplicates,
        path_reading: PathReading,
    ) -> Result<Cow<'a, str>, PartError> {
        let text = match self {
            Self::Ip { ipv6_prefix } => request.client.map(|client| address::id_text(client, *ipv6_prefix).into()),
            Self::Host => Some(request.host.into()),
            Self::Method => Some(request.method.into()),
            Self::Path => Some(path_reading.of(request.path)),
            Self::Header(name) => request.header(name.as_str(), duplicates)?,
            Self::Query(name) => request.query(name, duplicates)?,
            Self::Cookie(name) => request.cookie(name, duplicates)?,
            Self::Credentials => request.credentials()?,
            Self::Claim(claim) => claim.text(request.claims)?,
            Self::TlsSubject => request.tls_subject.map(Cow::Borrowed),
            Self::Body(pointer) => request.body_value(pointer)?,
            Self::Descriptor(key) => request.entry(key, duplicates)?.map(Cow::Borrowed),
            Self::Entry { place, .. } => {
                return request.descriptor.get(*place).map(|entry| entry.value.into()).ok_or(PartError::Missing);
            }
            Self::PathParameter { segment, .. } => {
                let decoded = match path_reading.of(request.path) {
                    Cow::Borrowed(path) => path_segment(path, *segment).map(decode),
                    Cow::Owned(path) => path_segment(&path, *segment).map(|text| decode(text).into_owned().into()),
                };
                decoded.map(trimmed_text)
            }
        };
        text.filter(|text| !text.is_empty()).ok_or(PartError::Missing)
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.words() {
            // There is only one.
            (_, noun, Some(name)) if *self == Self::TlsSubject => write!(f, "{noun} {name}"),
            (_, noun, Some(name)) => write!(f, "{noun} {}", quoted(name)),
            (_, noun, None) => f.write_str(noun),
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Method => "the method",
            Self::Host => "the host",
            Self::Path => "the path",
            Self::Query => "the query",
            Self::Client => "the client's address",
            Self::Certificate => "the client's certificate",
            Self::Claims => "the verified claims of tokens",
            Self::Body => "the bodies of requests",
            Self::Header(name) => return write!(f, "the header `{name}`"),
            Self::Descriptor => "the descriptors of the rate limit service",
        })
    }
}

impl TypedPart {
    /// A part that is malformed if a request has several different values.
    pub const fn new(part: Part, form: ValueType) -> Self {
        let path_reading = PathReading { ignores_case: false, strips_parameters: false };
        Self { part, form, duplicates: Duplicates::Ambiguous, path_reading }
    }

    /// The canonical text in `request`.
    pub(crate) fn of<'a>(&self, request: &Request<'a>) -> Result<Cow<'a, str>, PartError> {
        let text = self.part.text(request, self.duplicates, self.path_reading)?;
        match self.form {
            ValueType::Text => Ok(text),
            form => lenient(form, &text).map(Cow::Owned).ok_or(PartError::Malformed),
        }
    }

    /// Returns true if it is the client's address, of which at least as many requests share a value as of the other.
    pub fn is_wider_address(&self, other: &Self) -> bool {
        match (&self.part, &other.part) {
            (Part::Ip { ipv6_prefix: one }, Part::Ip { ipv6_prefix: other }) => one <= other,
            _ => false,
        }
    }
}

/// The words of a rules file: `header x-id as integer`.
impl fmt::Display for TypedPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.part.word())?;
        match (&self.part, self.part.name()) {
            (Part::Ip { ipv6_prefix }, _) => write!(f, "/{ipv6_prefix}")?,
            (_, Some(name)) => write!(f, " {name}")?,
            (_, None) => {}
        }
        if self.form != ValueType::Text {
            write!(f, " as {}", self.form.name())?;
        }
        self.duplicates.name().map_or(Ok(()), |which| write!(f, ", the {which}"))
    }
}

fn path_segment(path: &str, index: usize) -> Option<&str> {
    path.split('/').skip(1).nth(index)
}
