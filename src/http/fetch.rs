//! Fetches a file by URL, or posts to one: one connection for each request, no redirects, and a bound for the time and the size.

use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CACHE_CONTROL, ETAG, HOST, IF_NONE_MATCH, USER_AGENT};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, Uri};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::{Connector, ConnectorOptions, Stream, simple};
use crate::message::url::HttpUrl;

/// The longest validator that is kept, in bytes.
const MAX_ETAG: usize = 256;

/// Fetches one file again and again.
#[derive(Clone, Debug)]
pub struct Fetcher {
    url: HttpUrl,
    /// TLS, if the URL asks for it.
    connector: Option<Connector>,
    /// For the whole exchange, from the lookup of the name to the last byte.
    deadline: Duration,
    max_bytes: usize,
}

/// The answer to a [`Fetcher::fetch`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fetched {
    Modified {
        body: Bytes,
        /// For the next fetch.
        etag: Option<HeaderValue>,
        /// The time for which `Cache-Control` says that the answer is fresh.
        fresh_for: Option<Duration>,
    },
    /// The file is the one with the given validator.
    NotModified { fresh_for: Option<Duration> },
}

#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    #[error("no answer within {0:?}")]
    Late(Duration),
    #[error("cannot connect: {0}")]
    Connect(#[source] std::io::Error),
    #[error("{0}")]
    Exchange(Box<dyn std::error::Error + Send + Sync>),
    /// Redirects are not followed: the operator has named one server, and it must not choose another.
    #[error("the server redirects with {0}, and redirects are not followed; give the final URL")]
    Redirect(StatusCode),
    #[error("expected status 200, got {0}")]
    Status(StatusCode),
    #[error("expected a status of success, got {0}")]
    Refused(StatusCode),
    #[error("a body compressed with `{0}` is not supported")]
    Encoded(String),
}

impl Fetcher {
    /// `ca` is a PEM file of authorities for the server's certificate; defaults to the public ones.
    pub fn new(url: HttpUrl, ca: Option<PathBuf>, deadline: Duration, max_bytes: usize) -> Result<Self, String> {
        let load = || {
            let loaded = Connector::load(&ConnectorOptions { ca, ..ConnectorOptions::default() });
            loaded.map(|(connector, _)| connector).map_err(|error| error.to_string().replace("--upstream-ca ", ""))
        };
        let connector = if url.is_tls { Some(load()?) } else { None };
        Ok(Self { url, connector, deadline, max_bytes })
    }

    pub const fn url(&self) -> &HttpUrl {
        &self.url
    }

    /// Fetches the file unless it is still the one with this validator. `authorization` is the value of the header.
    pub async fn fetch(
        &self,
        etag: Option<&HeaderValue>,
        authorization: Option<HeaderValue>,
    ) -> Result<Fetched, FetchError> {
        timeout(self.deadline, self.try_fetch(etag, authorization))
            .await
            .unwrap_or(Err(FetchError::Late(self.deadline)))
    }

    /// Posts a body with these headers. Any status of success will do.
    pub async fn post<const HEADERS: usize>(
        &self,
        headers: [(HeaderName, HeaderValue); HEADERS],
        body: Bytes,
    ) -> Result<(), FetchError> {
        let mut request = self.request(Method::POST, body);
        request.headers_mut().extend(headers);
        let posting = async {
            let stream = self.connect().await?;
            // The body says nothing that the status does not, and may be of any length.
            simple::status(stream, request).await.map_err(|error| FetchError::Exchange(error.into()))
        };
        match timeout(self.deadline, posting).await.unwrap_or(Err(FetchError::Late(self.deadline)))? {
            status if status.is_success() => Ok(()),
            status if status.is_redirection() => Err(FetchError::Redirect(status)),
            status => Err(FetchError::Refused(status)),
        }
    }

    async fn connect(&self) -> Result<Stream, FetchError> {
        let HttpUrl { host, port, .. } = &self.url;
        let mut stream = Stream::Tcp(TcpStream::connect((host.as_str(), *port)).await.map_err(FetchError::Connect)?);
        if let Some(connector) = &self.connector {
            stream = connector.connect(host, stream, false).await.map_err(FetchError::Connect)?.0;
        }
        Ok(stream)
    }

    async fn try_fetch(
        &self,
        etag: Option<&HeaderValue>,
        authorization: Option<HeaderValue>,
    ) -> Result<Fetched, FetchError> {
        let mut request = self.request(Method::GET, Bytes::new());
        request.headers_mut().extend(authorization.map(|value| (AUTHORIZATION, value)));
        request.headers_mut().extend(etag.map(|etag| (IF_NONE_MATCH, etag.clone())));
        let stream = self.connect().await?;
        let response = simple::exchange(stream, request, self.max_bytes).await.map_err(FetchError::Exchange)?;
        let (head, body) = response.into_parts();
        let fresh_for = fresh_for(&head.headers);
        match head.status {
            StatusCode::OK => {}
            StatusCode::NOT_MODIFIED if etag.is_some() => return Ok(Fetched::NotModified { fresh_for }),
            StatusCode::NOT_MODIFIED => return Err(FetchError::Status(head.status)),
            status if status.is_redirection() => return Err(FetchError::Redirect(status)),
            status => return Err(FetchError::Status(status)),
        }
        if let Some(encoding) = head.headers.get("content-encoding").filter(|encoding| *encoding != "identity") {
            return Err(FetchError::Encoded(String::from_utf8_lossy(encoding.as_bytes()).into_owned()));
        }
        let etag = head.headers.get(ETAG).filter(|etag| etag.len() <= MAX_ETAG).cloned();
        Ok(Fetched::Modified { body, etag, fresh_for })
    }

    fn request(&self, method: Method, body: Bytes) -> Request<Bytes> {
        let mut request = Request::new(body);
        *request.method_mut() = method;
        *request.uri_mut() = Uri::from(self.url.target.clone());
        let headers = request.headers_mut();
        if let Ok(host) = HeaderValue::from_str(&self.url.authority) {
            headers.insert(HOST, host);
        }
        headers.insert(USER_AGENT, HeaderValue::from_static("weir"));
        headers.insert(ACCEPT, HeaderValue::from_static("*/*"));
        request
    }
}

/// `max-age` (RFC 9111 section 5.2.2.1); zero for what must not be cached.
fn fresh_for(headers: &HeaderMap) -> Option<Duration> {
    let values = headers.get_all(CACHE_CONTROL).into_iter().filter_map(|value| value.to_str().ok());
    let mut directives = values.flat_map(|value| value.split(',')).map(|part| part.trim().to_ascii_lowercase());
    let lifetime = |directive: String| match directive.as_str() {
        "no-store" | "no-cache" => Some(Duration::ZERO),
        other => {
            let seconds = other.strip_prefix("max-age=")?.trim_matches('"').parse::<u32>().ok()?;
            Some(Duration::from_secs(seconds.into()))
        }
    };
    let first = directives.find_map(lifetime)?;
    Some(directives.filter_map(lifetime).fold(first, Duration::min))
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    const DEADLINE: Duration = Duration::from_secs(10);

    /// Fetches from a server that gives this answer, and returns the request, too. The server closes only when the
    /// answer is complete if `closes`.
    async fn fetch(
        answer: &'static str,
        etag: Option<&str>,
        deadline: Duration,
        closes: bool,
    ) -> (Result<Fetched, FetchError>, String) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/keys?x=1", listener.local_addr().unwrap()).parse().unwrap();
        let fetcher = Fetcher::new(url, None, deadline, 64).unwrap();
        let serving = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = vec![0; 4096];
            let count = stream.read(&mut request).await.unwrap();
            stream.write_all(answer.as_bytes()).await.unwrap();
            if !closes {
                std::future::pending::<()>().await;
            }
            String::from_utf8_lossy(&request[..count]).into_owned()
        };
        let etag = etag.map(|etag| HeaderValue::from_str(etag).unwrap());
        if closes {
            return tokio::join!(fetcher.fetch(etag.as_ref(), None), serving);
        }
        tokio::select! {
            fetched = fetcher.fetch(etag.as_ref(), None) => (fetched, String::new()),
            _ = serving => unreachable!("the server waits"),
        }
    }

    #[tokio::test]
    async fn a_file_comes_with_its_validator_and_lifetime() {
        let answer = "HTTP/1.1 200 OK\r\nETag: \"v1\"\r\nCache-Control: public, max-age=300, max-age=60\r\n\
            Content-Length: 4\r\n\r\nkeys";
        let (fetched, request) = fetch(answer, None, DEADLINE, true).await;
        let etag = Some(HeaderValue::from_static("\"v1\""));
        let fresh_for = Some(Duration::from_mins(1));
        assert_eq!(fetched.unwrap(), Fetched::Modified { body: Bytes::from_static(b"keys"), etag, fresh_for });
        assert!(request.starts_with("GET /keys?x=1 HTTP/1.1\r\n"), "{request}");
        assert!(!request.contains("if-none-match"), "{request}");

        let answer = "HTTP/1.1 304 Not Modified\r\nCache-Control: no-cache\r\n\r\n";
        let (fetched, request) = fetch(answer, Some("\"v1\""), DEADLINE, true).await;
        assert_eq!(fetched.unwrap(), Fetched::NotModified { fresh_for: Some(Duration::ZERO) });
        assert!(request.contains("if-none-match: \"v1\"\r\n"), "{request}");
    }

    #[tokio::test]
    async fn hostile_answers_are_errors() {
        for (answer, expected) in [
            ("HTTP/1.1 302 Found\r\nLocation: file:///etc/passwd\r\nContent-Length: 0\r\n\r\n", "redirects"),
            ("HTTP/1.1 304 Not Modified\r\n\r\n", "expected status 200, got 304"),
            ("HTTP/1.1 500 Oh\r\nContent-Length: 0\r\n\r\n", "expected status 200, got 500"),
            (
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n41\r\n\
                xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\r\n0\r\n\r\n",
                "length limit exceeded",
            ),
            ("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort", "cannot be read"),
            ("HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 0\r\n\r\n", "`gzip`"),
            ("nonsense\r\n\r\n", "invalid HTTP"),
        ] {
            let (fetched, _) = fetch(answer, None, DEADLINE, true).await;
            let error = fetched.expect_err(answer).to_string();
            assert!(error.contains(expected), "{answer}: {error}");
        }
    }

    #[tokio::test]
    async fn a_slow_server_is_left_at_the_deadline() {
        for answer in ["", "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nslow"] {
            let (fetched, _) = fetch(answer, None, Duration::from_millis(50), false).await;
            assert!(matches!(fetched, Err(FetchError::Late(_))), "{fetched:?}");
        }
    }
}
