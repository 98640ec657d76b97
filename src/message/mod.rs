//! The vocabulary of HTTP that rules and codecs share: headers, targets, paths, hosts, addresses, trace context.
//! Pure: no I/O, no clock, no imports from other modules.

pub mod address;
pub mod client_address;
pub mod client_headers;
pub mod connection;
pub mod credentials;
pub mod event_stream;
pub mod headers;
pub mod host;
pub mod host_pattern;
pub mod inline_source;
pub mod json_lookup;
pub mod json_pointer;
pub mod lossless;
pub mod path;
pub mod percent;
pub mod reply;
pub mod target;
pub mod trace_context;
pub mod underscores;
pub mod unique_json;
pub mod url;
