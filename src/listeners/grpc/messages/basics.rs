//! What several services share: Envoy's header values and Google's well-known types.

use std::borrow::Cow;

use bytes::Bytes;

use crate::message::headers::Headers;
use crate::message::lossless;

/// Makes UTF-8 of bytes, so that different bytes stay different ([`lossless`]).
pub(crate) fn make_text(bytes: &mut Bytes) {
    if let Cow::Owned(text) = lossless::text(bytes) {
        *bytes = text.into();
    }
}

/// The text of a field that [`make_text`] has seen.
pub(crate) fn text(bytes: &Bytes) -> &str {
    str::from_utf8(bytes).unwrap_or_default()
}

/// A field of a message, `envoy.config.core.v3.HeaderValue`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct HeaderValue {
    /// The name.
    #[prost(bytes = "bytes", tag = "1")]
    pub key: Bytes,
    /// The value. What is sent must be UTF-8, as the field is a string.
    #[prost(bytes = "bytes", tag = "2")]
    pub value: Bytes,
    /// The value if `value` is empty; any bytes.
    #[prost(bytes = "bytes", tag = "3")]
    pub raw_value: Bytes,
}

impl HeaderValue {
    /// A field to send.
    pub fn new(key: impl Into<Bytes>, value: impl Into<Bytes>) -> Self {
        Self { key: key.into(), value: value.into(), raw_value: Bytes::new() }
    }

    /// All fields of a message of ours, in their order. They share one copy of the text.
    pub fn list(fields: &Headers) -> impl Iterator<Item = Self> {
        let mut text = Vec::with_capacity(fields.iter().map(|(name, value)| name.len() + value.len()).sum());
        for (name, value) in fields.iter() {
            text.extend_from_slice(name);
            text.extend_from_slice(value);
        }
        let mut text = Bytes::from(text);
        fields.iter().map(move |(name, value)| Self::new(text.split_to(name.len()), text.split_to(value.len())))
    }
}

/// An entry of a map from text to text.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct MapEntry {
    /// The key.
    #[prost(bytes = "bytes", tag = "1")]
    pub key: Bytes,
    /// The value.
    #[prost(bytes = "bytes", tag = "2")]
    pub value: Bytes,
}

/// `google.rpc.Status`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Status {
    /// A gRPC status code.
    #[prost(int32, tag = "1")]
    pub code: i32,
    /// For people.
    #[prost(string, tag = "2")]
    pub message: String,
}

/// `google.protobuf.BoolValue`: a truth value that may be absent.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct BoolValue {
    /// The value.
    #[prost(bool, tag = "1")]
    pub value: bool,
}

/// `google.protobuf.UInt64Value`: a number that may be absent.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct UInt64Value {
    /// The value.
    #[prost(uint64, tag = "1")]
    pub value: u64,
}

/// `google.protobuf.Duration`.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Duration {
    /// Whole seconds.
    #[prost(int64, tag = "1")]
    pub seconds: i64,
    /// And billionths of a second, below a whole one.
    #[prost(int32, tag = "2")]
    pub nanos: i32,
}

/// `google.protobuf.Struct`: an object of JSON.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Struct {
    /// Its members. No two have one name.
    #[prost(message, repeated, tag = "1")]
    pub fields: Vec<StructField>,
}

/// A member of a [`Struct`].
#[derive(Clone, PartialEq, prost::Message)]
pub struct StructField {
    /// The name.
    #[prost(string, tag = "1")]
    pub key: String,
    /// The value.
    #[prost(message, optional, tag = "2")]
    pub value: Option<Value>,
}

/// `google.protobuf.Value`: a value of JSON.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Value {
    /// Which it is.
    #[prost(oneof = "Kind", tags = "1, 2, 3, 4, 5, 6")]
    pub kind: Option<Kind>,
}

/// What a [`Value`] is.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum Kind {
    /// `null`, whatever the number.
    #[prost(int32, tag = "1")]
    Null(i32),
    /// A number.
    #[prost(double, tag = "2")]
    Number(f64),
    /// Text.
    #[prost(string, tag = "3")]
    Text(String),
    /// `true` or `false`.
    #[prost(bool, tag = "4")]
    Bool(bool),
    /// An object.
    #[prost(message, tag = "5")]
    Struct(Struct),
    /// A list.
    #[prost(message, tag = "6")]
    List(ListValue),
}

/// `google.protobuf.ListValue`: a list of JSON.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ListValue {
    /// Its values.
    #[prost(message, repeated, tag = "1")]
    pub values: Vec<Value>,
}

impl Struct {
    /// An object of these members.
    pub fn of<'a>(members: impl IntoIterator<Item = (&'a str, Kind)>) -> Self {
        let member = |(name, kind): (&str, Kind)| StructField { key: name.to_owned(), value: Some(kind.into()) };
        Self { fields: members.into_iter().map(member).collect() }
    }
}

impl From<Kind> for Value {
    fn from(kind: Kind) -> Self {
        Self { kind: Some(kind) }
    }
}
