//! Reads access logs, those of other programs and our own: formats, compression, and what each log tells of a request.
//!
//! One thread reads and decompresses [`Blocks`](input::Blocks) of whole lines. Any number of threads parse them, each with
//! its own [`Parser`](format::Parser).

use std::borrow::Cow;
use std::net::IpAddr;

use smallvec::SmallVec;

use crate::engine::algorithms::micros::Micros;
use crate::engine::charging::descriptors::Hits;
use crate::engine::request::part::Source;

pub mod address;
mod escape;
mod field;
pub mod format;
pub mod input;
mod instant;
mod json;
mod lines;
mod tells;
mod template;
#[cfg(test)]
mod tests;
pub mod told;
mod w3c;
pub mod wrapping;

/// A request as one line of a log tells it. `None` stands for what the line does not tell.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LogEntry<'a> {
    /// By the log's clock: when the request arrived, or when its response ended if the log tells no more; see
    /// [`Told::is_arrival`](told::Told::is_arrival). Lines are written when responses end, so a log is not sorted by it.
    pub at: Micros,
    /// The instant as the line has it.
    pub logged: Micros,
    /// From its arrival to the end of its response.
    pub took: Option<Micros>,
    pub method: Option<Cow<'a, str>>,
    /// The authority as sent, with its port.
    pub host: Option<Cow<'a, str>>,
    /// Path and query as sent, in origin form. As [`lossless::text`](crate::message::lossless::text).
    pub target: Option<Cow<'a, str>>,
    /// Never IPv4-mapped.
    pub client: Option<IpAddr>,
    /// What a line without [`Self::client`] has in its place, as it is written; empty if nothing. `None` if the format tells no
    /// client, or if the line says that the request had none.
    pub unread_client: Option<&'a [u8]>,
    pub tls_subject: Option<Cow<'a, str>>,
    /// Headers of the request that the line tells, with names in lower case. `host` is not among them.
    pub headers: SmallVec<[Header<'a>; 1]>,
    /// The descriptors that a gateway has sent. Only recordings tell them.
    pub descriptors: Option<Box<Descriptors<'a>>>,
    pub status: Option<u16>,
    /// The length of the response's body.
    pub bytes: Option<u64>,
    /// The server turned the request away before it read a valid head, so no limit was asked.
    pub is_rejected: bool,
    /// Limits came with the call of a recording, which does not keep them.
    pub carries_limits: bool,
    /// The parts for which the line has a place, though the first lines of the log have none.
    pub late: Vec<Source>,
    /// A member of the line that the first lines of the log lack, if it has another meaning. It is ignored.
    pub new_member: Option<&'a [u8]>,
    /// The parts that the log has of requests, but not of this one.
    pub lacks: SmallVec<[Lack<'a>; 2]>,
}

/// A part of a request that the lines of a log have and that one of them lacks. What a client need not send is lacking only if the line
/// has no place for it or something unreadable there; a place with nothing in it says that the client has not sent it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lack<'a> {
    Method,
    Host,
    Path,
    Query,
    Client,
    Certificate,
    Duration,
    Status,
    Bytes,
    /// In lower case.
    Header(&'a str),
    /// All headers.
    Headers,
}

/// The last line of a recording: the requests that are missing from it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordingEnd {
    /// The requests and calls that the recording has; `None` if the line does not say it.
    pub kept: Option<u64>,
    /// Requests that came faster than they could be written.
    pub dropped: u64,
    /// Requests of clients that are not in the recorded share.
    pub outside_the_share: u64,
    /// Calls that name their limits.
    pub without_a_request: u64,
}

/// The descriptors of a request, as a recording tells them.
#[derive(Clone, Debug, PartialEq)]
pub struct Descriptors<'a> {
    /// `None` unless it is a call of the rate limit service, which has no method and no target.
    pub domain: Option<Cow<'a, str>>,
    /// It takes nothing.
    pub only_checks: bool,
    pub each: Vec<Descriptor<'a>>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Descriptor<'a> {
    /// Keys and values in their order.
    pub entries: Vec<(Cow<'a, str>, Cow<'a, str>)>,
    pub hits: Hits,
}

/// A name and a value.
pub type Header<'a> = (Cow<'a, str>, Cow<'a, [u8]>);

/// The reason why a line tells no request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected {expected} at byte {at}")]
pub struct Unreadable {
    pub expected: Cow<'static, str>,
    /// From the start of the line.
    pub at: usize,
}
