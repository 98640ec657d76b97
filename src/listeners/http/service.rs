//! The [`Service`] of every listener that speaks HTTP.

use http::Version;

use super::{ActiveRequest, Frontend};
use crate::http::Context;
use crate::http::failure::HeadError;
use crate::http::message::{Request, Response};
use crate::http::{Server, Service};

/// A listener behind a [`Frontend`].
pub(crate) trait HttpService: 'static {
    fn front(&self) -> &Frontend;

    async fn respond(&self, context: &Context, request: &mut Request, active: &mut ActiveRequest) -> Response;
}

impl<T: HttpService> Service for T {
    type Exchange = ActiveRequest;

    fn server(&self) -> &Server {
        &self.front().server
    }

    fn begin(&self, context: &Context, request: &Request) -> ActiveRequest {
        self.front().begin(context, request)
    }

    // Not `async`, so that the future is not wrapped in another one.
    fn answer(
        &self,
        context: &Context,
        request: &mut Request,
        active: &mut ActiveRequest,
    ) -> impl Future<Output = Response> {
        self.respond(context, request, active)
    }

    fn rejected(&self, context: &Context, version: Version, error: HeadError, response: &Response) {
        self.front().rejected(context, version, error, response);
    }
}
