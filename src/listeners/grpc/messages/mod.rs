//! The protocol buffer messages of the services.
//!
//! Each has only the fields that are read or written here; others are skipped, as protocol buffers allow. `protos/` has the
//! same fields for clients that need files, such as `grpcurl`. A test compares both with what `envoy-types` generates from
//! Envoy's files.
//!
//! Text that is only passed on is `Bytes`, a part of the received message, where a `String` would be a copy. A map is a list
//! of its entries, which is the same on the wire (the encoding guide, "Maps").

pub mod authorization;
mod basics;
pub mod health;
mod memory;
pub mod quota;
pub mod rate_limit;
#[cfg(test)]
pub(super) mod tests;

pub(super) use basics::make_text;
pub(crate) use basics::text;
pub use basics::{
    BoolValue, Duration, HeaderValue, Kind, ListValue, MapEntry, Status, Struct, StructField, UInt32Value, UInt64Value,
    Value,
};
pub(crate) use memory::Memory;
