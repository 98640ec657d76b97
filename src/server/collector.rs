//! The trace exporter's HTTP client: one HTTP/1.1 request per connection. A batch is some hundred kilobytes, so a
//! connection for each adds little.

use std::path::PathBuf;

use async_trait::async_trait;
use bytes::Bytes;
use http::header::HOST;
use http::{HeaderValue, Uri};
use opentelemetry_http::{HttpClient, HttpError, Request, Response};
use tokio::net::TcpStream;

use crate::http::simple::exchange;
use crate::http::{Connector, ConnectorFlags, ConnectorOptions, Stream};

/// The maximum size of a collector's reply, which says how many spans it has rejected and why.
const MAX_BYTES: usize = 64 * 1024;

/// A client for collectors. The exporter sets the timeout.
#[derive(Debug)]
pub(crate) struct CollectorClient {
    connector: Connector,
}

impl CollectorClient {
    /// `certificate` is a file of authorities for collectors' certificates; defaults to the public ones.
    pub(crate) fn new(certificate: Option<PathBuf>) -> Result<Self, String> {
        let flags = ConnectorFlags { ca: "OTEL_EXPORTER_OTLP_CERTIFICATE:", ..ConnectorFlags::default() };
        let options = ConnectorOptions { flags, ca: certificate, ..ConnectorOptions::default() };
        let (connector, _) = Connector::load(&options).map_err(|error| error.to_string())?;
        Ok(Self { connector })
    }
}

#[async_trait]
impl HttpClient for CollectorClient {
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
        exchange(stream, Request::from_parts(head, body), MAX_BYTES).await
    }
}
