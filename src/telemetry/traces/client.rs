//! The way to the collector: one request of HTTP/1.1, on a connection of its own. A batch is some hundred kilobytes, so a
//! connection for each costs little beside it.

use async_trait::async_trait;
use bytes::Bytes;
use http::header::HOST;
use http::{HeaderValue, Uri};
use opentelemetry_http::{HttpClient, HttpError, Request, Response};
use tokio::net::TcpStream;

use crate::http::basic::exchange;
use crate::http::transport::{Connector, Stream};

/// What a collector's answer may have: it says how many spans it has not taken, and why.
const MOST_BYTES: usize = 64 * 1024;

/// Sends what it is given. Whoever calls it has a deadline for that.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) connector: Connector,
}

#[async_trait]
impl HttpClient for Client {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let (mut head, body) = request.into_parts();
        let uri = std::mem::take(&mut head.uri);
        let (Some(host), Some(authority)) = (uri.host(), uri.authority()) else { return Err("no host".into()) };
        let is_tls = uri.scheme_str() == Some("https");
        let port = uri.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        let name = host.trim_start_matches('[').trim_end_matches(']');
        let mut stream = Stream::Tcp(TcpStream::connect((name, port)).await?);
        if is_tls {
            stream = self.connector.connect(host, stream, false).await?.0;
        }
        head.headers.insert(HOST, HeaderValue::from_str(authority.as_str())?);
        head.uri = uri.path_and_query().map_or_else(Uri::default, |path| path.clone().into());
        exchange(stream, Request::from_parts(head, body), MOST_BYTES).await
    }
}
