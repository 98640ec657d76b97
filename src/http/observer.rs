//! Events for metrics and logs, and the traits through which a listener receives them.

use std::error::Error;
use std::fmt::{Debug, Display};
use std::time::Duration;

use crate::message::connection::{ConnectionFailure, HttpLimit, Unbuffered, UpstreamFailure};

/// Counts what happens on a listener's client connections.
pub(crate) trait Observer {
    fn limit_reached(&self, limit: HttpLimit);

    /// A connection ended before its first request.
    fn connection_failed(&self, failure: ConnectionFailure);

    /// A connection was closed because its address has too many.
    fn connection_rejected(&self);

    fn tls_handshake(&self, is_resumed: bool);

    /// Connections that were upgraded to another protocol: one more if `is_open`, else one less.
    fn tunnel(&self, is_open: bool);
}

/// Counts and logs what happens between a route and its servers.
pub(crate) trait UpstreamObserver: Debug {
    /// A response's headers have arrived, `time` after the request was ready to be sent.
    fn answered(&self, time: Duration);

    /// A server failed a request; `server` is `None` if none could be chosen.
    fn failed(&self, server: Option<&dyn Display>, reason: UpstreamFailure, error: &dyn Error);

    /// A request was not read ahead as a whole.
    fn unbuffered(&self, reason: Unbuffered);

    /// A request is sent a second time.
    fn retried(&self);

    fn ejected(&self);

    /// A DNS lookup returned no address.
    fn unresolved(&self);
}
