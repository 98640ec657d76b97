//! The messages of the listener's services, as protocol buffers.
//!
//! Each has the fields that are read or written here and no others: what Envoy adds beside them is skipped, as protocol
//! buffers have it. The fields, their names and numbers are in `protos/`, for clients that need files such as
//! `grpcurl`. A test compares them with these structures and with those that `envoy-types` generates from Envoy's own files.
//!
//! Text that only passes through is `Bytes`: a message comes as one piece of memory and these are parts of it, where a
//! `String` would be a copy. A map is a list of its entries, which is the same on the wire (the encoding guide of protocol
//! buffers, "Maps").

pub mod authorization;
mod basics;
pub mod health;
pub mod rate_limit;
#[cfg(test)]
pub(super) mod tests;

pub use basics::{
    BoolValue, Duration, HeaderValue, Kind, ListValue, MapEntry, Status, Struct, StructField, UInt64Value, Value,
};
pub(super) use basics::{make_text, text};
