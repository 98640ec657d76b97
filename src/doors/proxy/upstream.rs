//! Where requests go.

use std::fmt;
use std::rc::Rc;

use http::header::{HOST, HeaderValue};
use http::{Request, Response, StatusCode, Uri, Version};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::Timeouts;
use super::activity::Activity;
use super::body::RequestBody;
use super::counters::Counters;
use super::exchange::{Connection, SendError, UpstreamBody};
use super::failure::UpstreamError;
use super::pool::Pool;

/// Where requests go, as the operator wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Upstream {
    /// The built-in upstream that answers with what it received.
    Echo,
    /// An HTTP/1.1 server.
    Http(HttpUpstream),
}

/// An HTTP/1.1 server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpUpstream {
    /// A name or an address; an IPv6 address without brackets.
    host: String,
    /// The port.
    port: u16,
}

impl Upstream {
    /// Parses `echo` or `http://HOST[:PORT]`. The error says what would be right.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text == "echo" {
            return Ok(Self::Echo);
        }
        let uri: Uri = text.parse().map_err(|error| format!("`{text}` is no URL ({error}); {EXPECTED}"))?;
        match uri.scheme_str() {
            Some("http") => {}
            Some(scheme) => return Err(format!("`{text}`: upstreams are reached by `http://`, not `{scheme}://`")),
            None => return Err(format!("`{text}` has no scheme; write `http://{text}`")),
        }
        let authority = uri.authority().ok_or_else(|| format!("`{text}` names no host; {EXPECTED}"))?;
        if authority.as_str().contains('@') {
            return Err(format!("`{text}`: an upstream takes no user name and password"));
        }
        if uri.path_and_query().is_some_and(|path| path != "/") {
            return Err(format!("`{text}`: paths are forwarded as they come; leave out `{}`", uri.path()));
        }
        let host = authority.host();
        let port =
            match &authority.as_str()[host.len()..] {
                "" => 80,
                port => port[1..].parse().ok().filter(|port| *port != 0).ok_or_else(|| {
                    format!("`{text}`: `{}` is no port; a port is a number from 1 to 65535", &port[1..])
                })?,
            };
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        Ok(Self::Http(HttpUpstream { host: host.to_owned(), port }))
    }
}

const EXPECTED: &str = "an upstream is `http://HOST:PORT` or `echo`";

impl fmt::Display for HttpUpstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

impl fmt::Display for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Echo => f.write_str("echo"),
            Self::Http(upstream) => write!(f, "http://{upstream}"),
        }
    }
}

/// A worker's way to a server: its own connections.
#[derive(Debug)]
pub(super) struct Client {
    upstream: HttpUpstream,
    /// What a request without a `Host` is given.
    host: HeaderValue,
    pool: Rc<Pool>,
    timeouts: Timeouts,
    counters: Rc<Counters>,
}

impl Client {
    pub(super) fn new(upstream: HttpUpstream, timeouts: Timeouts, counters: Rc<Counters>) -> Self {
        let pool = Pool::new(upstream.to_string(), timeouts.upstream_idle, counters.clone());
        let host = HeaderValue::try_from(upstream.to_string()).unwrap_or(HeaderValue::from_static(""));
        Self { upstream, host, pool, timeouts, counters }
    }

    /// Closes connections that have been idle for too long.
    pub(super) fn reap(&self) {
        self.pool.reap();
    }

    /// Sends a request and waits for the response's fields.
    pub(super) async fn send(
        &self,
        mut request: Box<Request<RequestBody>>,
        activity: &Rc<Activity>,
    ) -> Result<Response<UpstreamBody>, UpstreamError> {
        *request.version_mut() = Version::HTTP_11;
        if !request.headers().contains_key(HOST) {
            request.headers_mut().insert(HOST, self.host.clone());
        }
        let start = activity.now();
        let sent = self.exchange(request, activity).await;
        match &sent {
            Ok(_) => self.counters.upstream_answered(activity.now() - start),
            Err(error) => {
                if let Some(reason) = error.reason() {
                    self.pool.failed(reason, error);
                } else {
                    tracing::debug!(upstream = %self.upstream, "a request broke off: {error}");
                }
            }
        }
        sent
    }

    async fn exchange(
        &self,
        mut request: Box<Request<RequestBody>>,
        activity: &Rc<Activity>,
    ) -> Result<Response<UpstreamBody>, UpstreamError> {
        loop {
            let pooled = self.pool.take(activity.now());
            let was_pooled = pooled.is_some();
            let connection = match pooled {
                Some(connection) => connection,
                None => self.connect().await?,
            };
            match connection.send(request, activity, &self.pool).await {
                Ok(response) if response.status() == StatusCode::SWITCHING_PROTOCOLS => {
                    return Err(UpstreamError::SwitchedProtocols);
                }
                Ok(response) => return Ok(response),
                // The server closed an idle connection and nothing was written to it, so the request may go another
                // way whatever its method. The pool shrinks with each turn, so the turns end.
                Err(SendError::Unsent(unsent, _)) if was_pooled => request = unsent,
                Err(SendError::Unsent(_, error)) => return Err(UpstreamError::Closed(error)),
                Err(SendError::Failed(error)) => return Err(error),
            }
        }
    }

    async fn connect(&self) -> Result<Box<Connection>, UpstreamError> {
        let HttpUpstream { host, port } = &self.upstream;
        // Resolves the name anew each time: a pool that keeps its connections asks seldom, and a server that moved is
        // found within the idle time.
        let connecting = async {
            let stream = TcpStream::connect((host.as_str(), *port)).await?;
            stream.set_nodelay(true)?;
            Ok(stream)
        };
        let stream = match timeout(self.timeouts.connect, connecting).await {
            Ok(connected) => connected.map_err(UpstreamError::Connect)?,
            Err(_) => return Err(UpstreamError::ConnectTimeout(self.timeouts.connect)),
        };
        Connection::handshake(stream).await.map_err(UpstreamError::Closed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn upstreams_are_parsed() {
        for (text, expected) in [
            ("echo", "echo"),
            ("http://127.0.0.1:3000", "http://127.0.0.1:3000"),
            ("http://api.internal", "http://api.internal:80"),
            ("http://api.internal/", "http://api.internal:80"),
            ("http://[::1]:3000", "http://[::1]:3000"),
        ] {
            assert_eq!(Upstream::parse(text).unwrap().to_string(), expected, "{text}");
        }
    }

    #[test]
    fn mistaken_upstreams_say_what_is_right() {
        for (text, part) in [
            ("127.0.0.1:3000", "write `http://127.0.0.1:3000`"),
            ("api.internal", "write `http://api.internal`"),
            ("https://a", "not `https://`"),
            ("http://u:p@a", "no user name"),
            ("http://a/v1", "leave out `/v1`"),
            ("http://a:0", "from 1 to 65535"),
            ("http://a:99999", "65535"),
            ("", "no URL"),
        ] {
            let error = Upstream::parse(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
