//! Envoy's header values and Google's well-known types.

use std::borrow::Cow;

use bytes::Bytes;

use super::Memory;
use crate::message::headers::Headers;
use crate::message::lossless;

/// Converts bytes to UTF-8 so that different bytes stay different ([`lossless`]).
pub(crate) fn make_text(bytes: &mut Bytes) {
    if let Cow::Owned(text) = lossless::text(bytes) {
        *bytes = text.into();
    }
}

/// Returns the text of bytes that [`make_text`] has converted.
pub(crate) fn text(bytes: &Bytes) -> &str {
    str::from_utf8(bytes).unwrap_or_default()
}

/// `envoy.config.core.v3.HeaderValue`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct HeaderValue {
    #[prost(bytes = "bytes", tag = "1")]
    pub key: Bytes,
    /// Must be UTF-8 when sent.
    #[prost(bytes = "bytes", tag = "2")]
    pub value: Bytes,
    /// Counts if `value` is empty; any bytes.
    #[prost(bytes = "bytes", tag = "3")]
    pub raw_value: Bytes,
}

impl HeaderValue {
    pub fn new(key: impl Into<Bytes>, value: impl Into<Bytes>) -> Self {
        Self { key: key.into(), value: value.into(), raw_value: Bytes::new() }
    }

    /// Converts headers, in order. They share one copy of the text, which is in `memory`.
    pub(crate) fn list(headers: &Headers, memory: &mut Memory) -> impl Iterator<Item = Self> {
        let mut text = memory.take(|text| {
            for (name, value) in headers.iter() {
                text.extend_from_slice(name);
                text.extend_from_slice(value);
            }
        });
        headers.iter().map(move |(name, value)| Self::new(text.split_to(name.len()), text.split_to(value.len())))
    }
}

/// An entry of a map from text to text.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct MapEntry {
    #[prost(bytes = "bytes", tag = "1")]
    pub key: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    pub value: Bytes,
}

/// `google.rpc.Status`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Status {
    #[prost(int32, tag = "1")]
    pub code: i32,
    #[prost(string, tag = "2")]
    pub message: String,
}

/// `google.protobuf.BoolValue`.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct BoolValue {
    #[prost(bool, tag = "1")]
    pub value: bool,
}

/// `google.protobuf.UInt32Value`.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct UInt32Value {
    #[prost(uint32, tag = "1")]
    pub value: u32,
}

/// `google.protobuf.UInt64Value`.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct UInt64Value {
    #[prost(uint64, tag = "1")]
    pub value: u64,
}

/// `google.protobuf.Duration`.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Duration {
    #[prost(int64, tag = "1")]
    pub seconds: i64,
    #[prost(int32, tag = "2")]
    pub nanos: i32,
}

/// `google.protobuf.Struct`: an object of JSON.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Struct {
    /// With unique names.
    #[prost(message, repeated, tag = "1")]
    pub fields: Vec<StructField>,
}

/// A member of a [`Struct`].
#[derive(Clone, PartialEq, prost::Message)]
pub struct StructField {
    #[prost(bytes = "bytes", tag = "1")]
    pub key: Bytes,
    #[prost(message, optional, tag = "2")]
    pub value: Option<Value>,
}

/// `google.protobuf.Value`: a value of JSON.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Value {
    #[prost(oneof = "Kind", tags = "1, 2, 3, 4, 5, 6")]
    pub kind: Option<Kind>,
}

/// The kind of a [`Value`].
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum Kind {
    /// The number is always 0.
    #[prost(int32, tag = "1")]
    Null(i32),
    #[prost(double, tag = "2")]
    Number(f64),
    #[prost(bytes = "bytes", tag = "3")]
    Text(Bytes),
    #[prost(bool, tag = "4")]
    Bool(bool),
    #[prost(message, tag = "5")]
    Struct(Struct),
    #[prost(message, tag = "6")]
    List(ListValue),
}

/// `google.protobuf.ListValue`: a list of JSON.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ListValue {
    #[prost(message, repeated, tag = "1")]
    pub values: Vec<Value>,
}

impl<N: Into<Bytes>> FromIterator<(N, Kind)> for Struct {
    fn from_iter<T: IntoIterator<Item = (N, Kind)>>(members: T) -> Self {
        let field = |(name, kind): (N, Kind)| StructField { key: name.into(), value: Some(kind.into()) };
        Self { fields: members.into_iter().map(field).collect() }
    }
}

impl From<Kind> for Value {
    fn from(kind: Kind) -> Self {
        Self { kind: Some(kind) }
    }
}
