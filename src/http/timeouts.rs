//! Timeouts of clients and upstream servers.

use std::time::Duration;

/// How long to wait for clients and upstream servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// For a client's first byte.
    pub first_byte: Duration,
    /// From a request's first byte to the end of its headers.
    pub header: Duration,
    /// For any progress of a body.
    pub body: Duration,
    /// For another request on a client's connection.
    pub idle: Duration,
    /// For any bytes on a connection that was upgraded to another protocol.
    pub tunnel: Duration,
    /// Bytes per second that a client must send of a body and read of a response, averaged over the time spent waiting
    /// for it and after a grace period. 0 for no minimum.
    pub min_rate: u64,
    /// For a connection to the upstream, including name resolution.
    pub connect: Duration,
    /// From the end of the request to the upstream's response headers.
    pub response: Duration,
    /// How long an idle upstream connection is kept. It should be shorter than the upstream keeps it: node and uvicorn
    /// close after 5 s.
    pub upstream_idle: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            first_byte: Duration::from_secs(10),
            header: Duration::from_secs(10),
            body: Duration::from_secs(30),
            idle: Duration::from_mins(1),
            tunnel: Duration::from_mins(5),
            min_rate: 240,
            connect: Duration::from_secs(1),
            response: Duration::from_secs(30),
            upstream_idle: Duration::from_secs(4),
        }
    }
}
