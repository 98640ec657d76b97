//! A client of the admin listener, for `weir bucket`, `weir override`, `weir record` and `weir health`.

use std::error::Error;
use std::fmt::Write;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue, USER_AGENT};
use http::{Method, Request, StatusCode, Uri};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::http::simple::{exchange, stream};
use crate::http::{Connector, ConnectorFlags, ConnectorOptions, KeyPairFiles, Stream};

/// Includes the name lookup.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// The listener waits for a store, for a second at most.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// The longest answer lists all blocks that there may be, with a reason each.
const MAX_BYTES: usize = 16 * 1024 * 1024;

const DEFAULT_PORT: u16 = 9090;

#[derive(Debug)]
pub struct AdminClient {
    /// `host:port`.
    authority: String,
    token: Option<HeaderValue>,
    /// For `https://`, with the host.
    tls: Option<(Connector, String)>,
}

/// The files of a client of a listener that uses TLS.
#[derive(Clone, Debug, Default)]
pub struct AdminTls {
    /// Authorities for the listener's certificate; defaults to the public ones.
    pub ca: Option<PathBuf>,
    /// The host that the certificate must be for; defaults to the one in the URL.
    pub server_name: Option<String>,
    /// The client's certificate.
    pub certificate: Option<KeyPairFiles>,
}

impl AdminTls {
    fn is_set(&self) -> bool {
        self.ca.is_some() || self.server_name.is_some() || self.certificate.is_some()
    }

    fn connector(&self) -> Result<Connector, String> {
        let options = ConnectorOptions {
            flags: ConnectorFlags {
                ca: "--admin-ca",
                certificate: "--admin-cert",
                key: "--admin-key",
                server_name: "--admin-server-name",
            },
            ca: self.ca.clone(),
            server_name: self.server_name.clone(),
            certificate: self.certificate.clone(),
        };
        Ok(Connector::load(&options).map_err(|error| error.to_string())?.0)
    }
}

/// A page about buckets or overrides.
#[derive(Debug)]
pub struct JsonPage {
    pub status: StatusCode,
    pub body: Value,
}

/// A page of the listener.
#[derive(Debug)]
pub struct Page {
    pub status: StatusCode,
    pub body: Bytes,
}

/// No answer came, or none of an admin listener.
#[derive(Debug, thiserror::Error)]
#[error("cannot reach the admin listener at {authority}: {reason}")]
pub struct AdminClientError {
    authority: String,
    reason: String,
}

impl AdminClient {
    /// `address` is `http://host:port`, `https://host:port` or `host:port`, which is HTTPS if `tls` has anything. Changes need
    /// a token.
    pub fn new(address: &str, tls: &AdminTls, token: Option<&str>) -> Result<Self, String> {
        let wrong = |why: &str| {
            Err(format!("--admin: invalid admin address `{address}`: {why}; write `http://127.0.0.1:9090`"))
        };
        let (is_tls, rest) = match address.split_once("://") {
            Some(("http", _)) if tls.is_set() => return wrong("certificates need https://"),
            Some(("http", rest)) => (false, rest),
            Some(("https", rest)) => (true, rest),
            Some(_) => return wrong("only http:// and https:// are supported"),
            None => (tls.is_set(), address),
        };
        let (host, port) = match rest.trim_end_matches('/').parse::<http::uri::Authority>() {
            Ok(authority) if authority.as_str().contains('@') => return wrong("it must not have a user"),
            Ok(authority) => {
                let port = match authority.port_u16() {
                    Some(port) => port,
                    None if authority.as_str() == authority.host() => DEFAULT_PORT,
                    None => return wrong("a port must be a number up to 65535"),
                };
                // A listener on all addresses is asked on loopback, where no other machine answers.
                let host = match authority.host() {
                    "0.0.0.0" => "127.0.0.1",
                    "[::]" => "[::1]",
                    host => host,
                };
                (host.to_owned(), port)
            }
            Err(error) => return wrong(&error.to_string()),
        };
        let authority = format!("{host}:{port}");
        let token = token.map(|token| HeaderValue::try_from(format!("Bearer {token}"))).transpose();
        let mut token = token.map_err(|_| "the token must not have control characters".to_owned())?;
        if let Some(token) = &mut token {
            token.set_sensitive(true);
        }
        let tls = if is_tls { Some((tls.connector()?, host)) } else { None };
        Ok(Self { authority, token, tls })
    }

    /// Reads a page with any status.
    pub async fn read(&self, path: &str, deadline: Duration) -> Result<Page, AdminClientError> {
        let reading = async { self.exchange(self.connect().await?, Method::GET, path, None).await };
        let read = timeout(deadline, reading).await;
        read.unwrap_or_else(|_| Err(format!("no answer within {deadline:?}"))).map_err(|reason| self.error(reason))
    }

    /// Sends a request about buckets, and returns the reply with any status.
    pub async fn ask(&self, method: Method, path: &str, body: Option<&Value>) -> Result<JsonPage, AdminClientError> {
        let asking = async {
            let connected = timeout(CONNECT_TIMEOUT, self.connect()).await;
            let stream = connected.map_err(|_| format!("no connection within {CONNECT_TIMEOUT:?}"))??;
            let answered = timeout(ANSWER_TIMEOUT, self.exchange(stream, method, path, body)).await;
            answered.map_err(|_| format!("no answer within {ANSWER_TIMEOUT:?}; the change may have been made"))??.json()
        };
        asking.await.map_err(|reason| self.error(reason))
    }

    /// Starts a recording and passes its lines on as they come, in pieces. Returns the reply's status and body if there is no
    /// recording. `deadline` is for all of it.
    pub async fn record(
        &self,
        body: &Value,
        deadline: Duration,
        take: impl FnMut(Bytes) -> std::io::Result<()>,
    ) -> Result<Page, AdminClientError> {
        let recording = async {
            let connected = timeout(CONNECT_TIMEOUT, self.connect()).await;
            let connection = connected.map_err(|_| format!("no connection within {CONNECT_TIMEOUT:?}"))??;
            let request = self.request(Method::POST, "/record", Some(body)).map_err(|error| error.to_string())?;
            let response = stream(connection, request, MAX_BYTES, take).await.map_err(|error| told(&*error))?;
            Ok(Page { status: response.status(), body: response.into_body() })
        };
        let recorded = timeout(deadline, recording).await;
        recorded
            .unwrap_or_else(|_| Err(format!("the recording did not end within {deadline:?}")))
            .map_err(|reason| self.error(reason))
    }

    fn error(&self, reason: String) -> AdminClientError {
        AdminClientError { authority: self.authority.clone(), reason }
    }

    async fn connect(&self) -> Result<Stream, String> {
        let stream = TcpStream::connect(&self.authority).await.map_err(|error| match error.kind() {
            ErrorKind::ConnectionRefused => "connection refused (is `weir serve` running? see `--admin`)".to_owned(),
            _ => error.to_string(),
        })?;
        let Some((connector, host)) = &self.tls else { return Ok(Stream::Tcp(stream)) };
        let connected = connector.connect(host, Stream::Tcp(stream), false).await;
        Ok(connected.map_err(|error| format!("TLS: {error}"))?.0)
    }

    async fn exchange(&self, stream: Stream, method: Method, path: &str, body: Option<&Value>) -> Result<Page, String> {
        let request = self.request(method, path, body).map_err(|error| error.to_string())?;
        let response = exchange(stream, request, MAX_BYTES).await.map_err(|error| told(&*error))?;
        Ok(Page { status: response.status(), body: response.into_body() })
    }

    fn request(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Request<Bytes>, http::Error> {
        let uri = Uri::try_from(path)?;
        let agent = concat!("weir/", env!("CARGO_PKG_VERSION"));
        let mut request =
            Request::builder().method(method).uri(uri).header(HOST, &self.authority).header(USER_AGENT, agent);
        if let Some(token) = &self.token {
            request = request.header(AUTHORIZATION, token);
        }
        if body.is_some() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        request.body(body.map(Value::to_string).unwrap_or_default().into())
    }
}

impl Page {
    /// Returns true if this is the answer to plain HTTP on a port with TLS.
    pub fn requires_tls(&self) -> bool {
        self.status == StatusCode::BAD_REQUEST && self.body.starts_with(b"this port requires TLS")
    }

    fn json(self) -> Result<JsonPage, String> {
        match serde_json::from_slice::<Value>(&self.body) {
            Ok(body)
                if ["bucket", "blocks", "override", "overrides", "reset", "detail"]
                    .iter()
                    .any(|member| body.get(member).is_some()) =>
            {
                Ok(JsonPage { status: self.status, body })
            }
            _ if self.requires_tls() => Err("it requires TLS; write `https://`".to_owned()),
            // Something else listens there, such as the proxy.
            _ => Err(format!("its answer with status {} is not an admin listener's", self.status)),
        }
    }
}

/// An error with its causes: hyper's own text does not say that a certificate was rejected.
fn told(error: &(dyn Error + Send + Sync + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let _ = write!(text, ": {error}");
        cause = error.source();
    }
    text
}

/// Returns the path of a bucket, with its name as one segment.
pub fn bucket_path(name: &str, below: &str) -> String {
    segment_path("/buckets/", name, below)
}

/// Returns a path with a name as one segment.
pub fn segment_path(above: &str, name: &str, below: &str) -> String {
    let mut path = String::from(above);
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~:@,".contains(&byte) {
            path.push(char::from(byte));
        } else {
            let _ = write!(path, "%{byte:02X}");
        }
    }
    path.push_str(below);
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_is_an_address_with_or_without_a_scheme() {
        for (address, expected) in [
            ("http://127.0.0.1:9090", Ok("127.0.0.1:9090")),
            ("http://weir.internal/", Ok("weir.internal:9090")),
            ("[::1]:9091", Ok("[::1]:9091")),
            ("0.0.0.0:9091", Ok("127.0.0.1:9091")),
            ("[::]:9090", Ok("[::1]:9090")),
            ("http://a:b", Err("invalid admin address")),
            ("a:65536", Err("invalid admin address")),
            ("a:", Err("invalid admin address")),
            ("https://127.0.0.1:9090", Ok("127.0.0.1:9090")),
            ("ftp://127.0.0.1:9090", Err("only http://")),
            ("http://u:p@127.0.0.1:9090", Err("must not have a user")),
            ("http://127.0.0.1:9090/admin", Err("invalid admin address")),
            ("", Err("invalid admin address")),
        ] {
            match (AdminClient::new(address, &AdminTls::default(), None), expected) {
                (Ok(client), Ok(expected)) => assert_eq!(client.authority, expected),
                (Err(error), Err(part)) => assert!(error.contains(part), "{address}: {error}"),
                (found, _) => panic!("{address}: {found:?}"),
            }
        }
        assert!(AdminClient::new("a", &AdminTls::default(), Some("x\n")).is_err());
    }

    #[test]
    fn the_name_of_a_bucket_is_one_segment() {
        assert_eq!(bucket_path("L:2001:db8::/64", ""), "/buckets/L:2001:db8::%2F64");
        assert_eq!(bucket_path("L:a%3Ab ?#", "/block"), "/buckets/L:a%253Ab%20%3F%23/block");
    }
}
