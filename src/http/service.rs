//! What a listener does with requests.

use http::Version;

use super::context::Context;
use super::failure::HeadError;
use super::message::{Request, Response};
use super::server::Server;

/// Answers the requests of a listener.
///
/// Every call is statically dispatched: a connection is compiled for its listener.
pub(crate) trait Service: 'static {
    type Exchange: Exchange;

    fn server(&self) -> &Server;

    /// Starts an exchange, before the request is looked at.
    fn begin(&self, context: &Context, request: &Request) -> Self::Exchange;

    /// Bodies that the service does not read are drained by the connection.
    async fn answer(&self, context: &Context, request: Request, exchange: &mut Self::Exchange) -> Response;

    /// A request's head could not be read; `response` is sent.
    fn rejected(&self, context: &Context, version: Version, error: HeadError, response: &Response);
}

/// A request from its headers until the last byte of its response was handed over, or until the client has gone.
pub(crate) trait Exchange {
    /// The service has returned the response; its body is sent next.
    fn answered(&mut self, context: &Context, response: &Response);

    /// Bytes of the response's body were handed over.
    fn sent(&self, bytes: usize);

    /// The last of the response is about to be handed over. A client that has seen the end of its response must not find
    /// the request still in flight.
    fn ended(&self);
}
