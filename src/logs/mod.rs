//! Reads access logs, those of other programs and our own: formats, compression, and what each log tells of a request.

use std::borrow::Cow;
use std::net::IpAddr;

use crate::engine::algorithms::micros::Micros;

/// A request as one line of a log tells it. `None` stands for what the line does not tell.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Entry<'a> {
    /// When the request arrived, by the log's clock.
    pub at: Micros,
    /// From its arrival to the end of its response.
    pub took: Option<Micros>,
    pub method: Option<Cow<'a, str>>,
    pub host: Option<Cow<'a, str>>,
    /// Path and query as sent, in origin form.
    pub target: Option<Cow<'a, str>>,
    pub client: Option<IpAddr>,
    pub tls_subject: Option<Cow<'a, str>>,
    /// Headers of the request that the line tells, with names in lower case.
    pub headers: Vec<(Cow<'a, str>, Cow<'a, str>)>,
    pub status: Option<u16>,
}
