//! Takes new connections up to the start of HTTP.

use std::io;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::proxy_protocol::{self, Header, HeaderError, MAX_HEADER, Source};
use super::{ServerTls, Stream, TlsInfo};
use crate::http::activity::DRAIN_PATIENCE;
use crate::http::admission::{AddressPermit, Admission};
use crate::http::observer::Observer;
use crate::message::connection::ConnectionFailure;

/// The preface of an HTTP/2 client (RFC 9113 section 3.4).
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The first byte of a TLS connection: a record of a handshake (RFC 8446 section 5.1).
pub(crate) const HANDSHAKE: u8 = 22;

/// The response to a client that uses plain HTTP on a TLS port.
const PLAIN_ON_TLS: &str = "HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\ncontent-length: 55\r\n\
    connection: close\r\n\r\nthis port requires TLS: use https:// instead of http://";

/// The time to read from a client that was answered before TLS: closing while its request is in flight would make its
/// system drop the response (RFC 9112 section 9.6).
const LINGER: Duration = Duration::from_secs(1);

/// Options for the start of connections.
#[derive(Clone, Debug)]
pub struct AcceptOptions {
    /// Peers whose connections must start with a PROXY header. It is not read from other peers, so clients cannot forge
    /// their address.
    pub proxy_protocol_from: Vec<IpNet>,
    /// TLS, if it is used.
    pub tls: Option<Arc<ServerTls>>,
    /// Timeout for a TLS handshake, from its first byte.
    pub handshake_timeout: Duration,
    /// The peers are gateways, so the subject of a certificate is not a client's. It is dropped.
    pub from_gateways: bool,
}

impl Default for AcceptOptions {
    /// Plain HTTP from everybody.
    fn default() -> Self {
        Self {
            proxy_protocol_from: Vec::new(),
            tls: None,
            handshake_timeout: Duration::from_secs(10),
            from_gateways: false,
        }
    }
}

/// A connection that is ready for HTTP.
#[derive(Debug)]
pub(crate) struct OpenedConnection {
    /// Nothing of HTTP has been read from it.
    pub(crate) stream: Stream,
    /// The peer, or what a load balancer says in its PROXY header.
    pub(crate) source: Source,
    /// The result of the TLS handshake, if there was one.
    pub(crate) tls: Option<TlsInfo>,
    pub(crate) protocol: Protocol,
    /// Counts the connection for the peer's address.
    pub(in crate::http) permit: AddressPermit,
}

/// The protocol of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// HTTP/1.1 or HTTP/1.0.
    Http1,
    /// HTTP/2, by ALPN or prior knowledge (RFC 9113 section 3.3).
    Http2,
}

/// An error that ends a connection before HTTP.
#[derive(Debug, thiserror::Error)]
enum OpenError {
    /// Probes that only connect do this.
    #[error("the peer closed before its first byte")]
    Closed,
    #[error("the server is draining")]
    Draining,
    #[error("no first bytes within {0:?}")]
    FirstByteTimeout(Duration),
    #[error("too many connections from its address")]
    TooMany,
    #[error("{0}")]
    ProxyHeader(#[from] HeaderError),
    #[error("incomplete PROXY header")]
    IncompleteHeader,
    #[error("the TLS handshake failed: {0}")]
    Handshake(#[source] io::Error),
    #[error("the TLS handshake took longer than {0:?}")]
    HandshakeTimeout(Duration),
    /// The client was told.
    #[error("plain HTTP on a TLS port")]
    PlainHttp,
    #[error("TLS on a port without TLS")]
    PlainPort,
    #[error("{0}")]
    Io(#[from] io::Error),
}

impl OpenError {
    /// Returns what to count it as; `None` if an operator need not look into it.
    const fn failure(&self) -> Option<ConnectionFailure> {
        match self {
            Self::Closed | Self::Draining | Self::Io(_) | Self::TooMany => None,
            Self::FirstByteTimeout(_) => Some(ConnectionFailure::FirstByteTimeout),
            Self::ProxyHeader(_) | Self::IncompleteHeader => Some(ConnectionFailure::ProxyHeader),
            Self::Handshake(_) => Some(ConnectionFailure::TlsHandshake),
            Self::HandshakeTimeout(_) => Some(ConnectionFailure::TlsHandshakeTimeout),
            Self::PlainHttp => Some(ConnectionFailure::PlainHttp),
            Self::PlainPort => Some(ConnectionFailure::PlainPort),
        }
    }
}

/// Takes a worker's connections up to the start of HTTP.
pub(crate) struct Acceptor {
    pub(crate) options: AcceptOptions,
    /// Timeout for a PROXY header, and then for the first bytes of TLS or HTTP.
    pub(crate) patience: Duration,
    pub(crate) admission: Arc<Admission>,
    pub(crate) observer: Rc<dyn Observer>,
    /// True if clients' addresses may be logged.
    pub(crate) logs_peers: bool,
}

impl Acceptor {
    /// Takes a new connection up to the start of HTTP; `None` if it ends before. Once `drain` is cancelled, connections
    /// without a byte end soon, and others continue.
    ///
    /// A plain HTTP/1.1 connection costs one `recv` that peeks at its first bytes.
    pub(crate) async fn open(
        &self,
        stream: Stream,
        peer: IpAddr,
        drain: &CancellationToken,
    ) -> Option<OpenedConnection> {
        let error = match self.try_open(stream, peer, drain).await {
            Ok(opened) => {
                if let Some(tls) = &opened.tls {
                    self.observer.tls_handshake(tls.is_resumed);
                }
                return Some(opened);
            }
            Err(error) => error,
        };
        if let Some(failure) = error.failure() {
            self.observer.connection_failed(failure);
        } else if matches!(error, OpenError::TooMany) {
            self.observer.connection_rejected();
        }
        let peer = self.logs_peers.then(|| peer.to_string());
        tracing::debug!(peer, "a connection ended before HTTP: {error}");
        None
    }

    async fn try_open(
        &self,
        mut stream: Stream,
        peer: IpAddr,
        drain: &CancellationToken,
    ) -> Result<OpenedConnection, OpenError> {
        let AcceptOptions { proxy_protocol_from, tls, handshake_timeout, from_gateways } = &self.options;
        let has_header = proxy_protocol_from.iter().any(|network| network.contains(&peer));
        let source = if has_header { self.proxied(&mut stream, drain).await? } else { Source::Address(peer) };
        // Before the handshake, which is expensive. Clients without a known address share the load balancer's bound.
        let client = if let Source::Address(client) = source { client } else { peer };
        let permit = self.admission.admit_address(client).ok_or(OpenError::TooMany)?;
        let Some(tls) = tls else {
            let protocol = self.detect_protocol(&stream, drain).await?;
            return Ok(OpenedConnection { stream, source, tls: None, protocol, permit });
        };
        // A method starts with a letter, usually in upper case; a TLS record with [`HANDSHAKE`].
        let is_method = |bytes: &[u8]| Some(bytes.first()?.is_ascii_uppercase());
        if self.first_bytes(&stream, &mut [0; 1], is_method, drain).await? == Some(true) {
            reject_plain(&mut stream).await;
            return Err(OpenError::PlainHttp);
        }
        let accepted = timeout(*handshake_timeout, tls.accept(stream)).await;
        let accepted = accepted.map_err(|_| OpenError::HandshakeTimeout(*handshake_timeout))?;
        let (stream, mut info) = accepted.map_err(OpenError::Handshake)?;
        if *from_gateways {
            info.subject = None;
        }
        let protocol = if info.is_http2 { Protocol::Http2 } else { Protocol::Http1 };
        Ok(OpenedConnection { stream, source, tls: Some(info), protocol, permit })
    }

    /// Reads a PROXY header and returns where the connection comes from.
    async fn proxied(&self, stream: &mut Stream, drain: &CancellationToken) -> Result<Source, OpenError> {
        let mut buffer = vec![0; MAX_HEADER];
        let parse = |bytes: &[u8]| proxy_protocol::parse(bytes).transpose();
        let header = self.first_bytes(stream, &mut buffer, parse, drain).await?;
        let Header { length, source } = header.ok_or(OpenError::IncompleteHeader)??;
        // The whole header was peeked at, so this does not wait.
        stream.read_exact(&mut buffer[..length]).await?;
        Ok(source)
    }

    /// Tells HTTP/2 from HTTP/1 as soon as the first bytes differ from the preface.
    async fn detect_protocol(&self, stream: &Stream, drain: &CancellationToken) -> Result<Protocol, OpenError> {
        let decide = |bytes: &[u8]| match bytes {
            _ if bytes == PREFACE => Some(Ok(Protocol::Http2)),
            _ if PREFACE.starts_with(bytes) => None,
            [HANDSHAKE, ..] => Some(Err(OpenError::PlainPort)),
            _ => Some(Ok(Protocol::Http1)),
        };
        let decided = self.first_bytes(stream, &mut [0; PREFACE.len()], decide, drain).await?;
        // The HTTP/1 parser rejects connections that end within the preface.
        decided.unwrap_or(Ok(Protocol::Http1))
    }

    /// Peeks at the first bytes until `decide` returns something; `None` if they end before that.
    async fn first_bytes<T>(
        &self,
        stream: &Stream,
        buffer: &mut [u8],
        mut decide: impl FnMut(&[u8]) -> Option<T>,
        drain: &CancellationToken,
    ) -> Result<Option<T>, OpenError> {
        let mut is_empty = true;
        let decide = |bytes: &[u8]| {
            is_empty = bytes.is_empty();
            decide(bytes)
        };
        let peeking = async {
            tokio::select! {
                biased;
                ready = stream.ready() => drop(ready?),
                () = drain.cancelled() => tokio::select! {
                    biased;
                    // A client that connected a moment ago may have sent its request already.
                    ready = stream.ready() => drop(ready?),
                    () = sleep(DRAIN_PATIENCE) => return Err(OpenError::Draining),
                },
            }
            Ok(stream.peek(buffer, decide).await?)
        };
        let late = |_| OpenError::FirstByteTimeout(self.patience);
        match timeout(self.patience, peeking).await.map_err(late)?? {
            None if is_empty => Err(OpenError::Closed),
            decided => Ok(decided),
        }
    }
}

/// Answers plain HTTP on a TLS port. Errors are ignored, because the connection ends anyway.
async fn reject_plain(stream: &mut Stream) {
    let answering = async {
        stream.write_all(PLAIN_ON_TLS.as_bytes()).await?;
        stream.shutdown().await?;
        let mut scratch = [0; 1024];
        while stream.read(&mut scratch).await? > 0 {}
        io::Result::Ok(())
    };
    let _ = timeout(LINGER, answering).await;
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use tokio::net::UnixStream;

    use super::*;
    use crate::http::admission::ConnectionLimits;
    use crate::message::connection::HttpLimit;

    const PEER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));

    const PATIENCE: Duration = Duration::from_secs(10);

    struct Ignored;

    impl Observer for Ignored {
        fn limit_reached(&self, _: HttpLimit) {}

        fn connection_failed(&self, _: ConnectionFailure) {}

        fn connection_rejected(&self) {}

        fn tls_handshake(&self, _: bool) {}

        fn tunnel(&self, _: bool) {}
    }

    fn acceptor(options: AcceptOptions, patience: Duration) -> Acceptor {
        let admission = Admission::new(ConnectionLimits::default());
        Acceptor { options, patience, admission, observer: Rc::new(Ignored), logs_peers: false }
    }

    fn options(from: &str) -> AcceptOptions {
        AcceptOptions { proxy_protocol_from: vec![from.parse().unwrap()], ..AcceptOptions::default() }
    }

    /// Sends `sent` piece by piece and then closes; expects `peer` and `protocol`, and `rest` to be left to read.
    async fn check(from: &str, sent: &[&str], expected: Result<(&str, Protocol, &str), &str>) {
        let (mut client, stream) = UnixStream::pair().unwrap();
        let sending = async {
            for piece in sent {
                client.write_all(piece.as_bytes()).await.unwrap();
                tokio::task::yield_now().await;
            }
            drop(client);
        };
        let (acceptor, drain) = (acceptor(options(from), PATIENCE), CancellationToken::new());
        let (opened, ()) = tokio::join!(acceptor.try_open(Stream::Unix(stream), PEER, &drain), sending);
        let found = match opened {
            Ok(mut opened) => {
                let mut rest = String::new();
                opened.stream.read_to_string(&mut rest).await.unwrap();
                let peer = match opened.source {
                    Source::Address(peer) => peer.to_string(),
                    source => format!("{source:?}"),
                };
                Ok((peer, opened.protocol, rest))
            }
            Err(error) => Err(error.to_string()),
        };
        let expected = expected.map(|(peer, protocol, rest)| (peer.to_owned(), protocol, rest.to_owned()));
        assert_eq!(found, expected.map_err(str::to_owned), "{sent:?}");
    }

    #[tokio::test]
    async fn the_protocol_is_known_as_soon_as_the_bytes_differ_from_the_preface() {
        let preface = str::from_utf8(PREFACE).unwrap();
        let none = "192.0.2.0/24";
        for (sent, protocol) in [
            (&["GET / HTTP/1.1\r\n\r\n"][..], Protocol::Http1),
            (&["P", "OST / HTTP/1.1\r\n\r\n"], Protocol::Http1),
            (&["PRI * HTTP/2.0\r\n\r\nSM\r\n\r", "!"], Protocol::Http1),
            (&["PRI "], Protocol::Http1),
            (&["\r\n"], Protocol::Http1),
            (&[preface], Protocol::Http2),
            (&["PRI", " * HTTP/2.0\r\n", "\r\nSM\r\n\r\n", "more"], Protocol::Http2),
        ] {
            check(none, sent, Ok(("10.0.0.1", protocol, &sent.concat()))).await;
        }
        check(none, &[], Err("the peer closed before its first byte")).await;
    }

    #[tokio::test]
    async fn a_proxy_header_is_read_from_those_who_must_send_it_and_from_nobody_else() {
        let (line, get) = ("PROXY TCP4 192.0.2.1 198.51.100.1 4711 443\r\n", "GET / HTTP/1.1\r\n\r\n");
        let missing = "missing PROXY header";
        let http1 = Protocol::Http1;
        check("10.0.0.0/8", &[line, get], Ok(("192.0.2.1", http1, get))).await;
        check("10.0.0.0/8", &[&line[..3], &line[3..], get], Ok(("192.0.2.1", http1, get))).await;
        check("10.0.0.0/8", &["PROXY UNKNOWN\r\n", get], Ok(("Unknown", http1, get))).await;
        check("10.0.0.0/8", &["PROXY UNKNOWN\r\nPRI"], Ok(("Unknown", http1, "PRI"))).await;
        let local = "\r\n\r\n\0\r\nQUIT\n\x20\0\0\0";
        check("10.0.0.0/8", &[local, get], Ok(("Local", http1, get))).await;
        check("10.0.0.0/8", &[get], Err(missing)).await;
        check("10.0.0.0/8", &[&line[..20]], Err("incomplete PROXY header")).await;
        check("10.0.0.0/8", &[line], Err("the peer closed before its first byte")).await;
        check("10.0.0.0/8", &[], Err("the peer closed before its first byte")).await;
        // From other peers a PROXY header is an invalid request line.
        check("192.0.2.0/24", &[line, get], Ok(("10.0.0.1", http1, &[line, get].concat()))).await;
    }

    #[tokio::test]
    async fn what_does_not_come_in_time_is_not_waited_for() {
        for sent in ["", "PRI * HTTP"] {
            let (mut client, stream) = UnixStream::pair().unwrap();
            client.write_all(sent.as_bytes()).await.unwrap();
            let drain = CancellationToken::new();
            let acceptor = acceptor(AcceptOptions::default(), Duration::from_millis(20));
            let error = acceptor.try_open(Stream::Unix(stream), PEER, &drain).await.unwrap_err();
            assert!(matches!(error, OpenError::FirstByteTimeout(_)), "{sent}: {error}");
        }
    }

    #[tokio::test]
    async fn a_drain_ends_what_has_not_begun() {
        let drain = CancellationToken::new();
        drain.cancel();
        let (_client, stream) = UnixStream::pair().unwrap();
        let acceptor = acceptor(AcceptOptions::default(), PATIENCE);
        let error = acceptor.try_open(Stream::Unix(stream), PEER, &drain).await.unwrap_err();
        assert!(matches!(error, OpenError::Draining), "{error}");
        let (mut client, stream) = UnixStream::pair().unwrap();
        client.write_all(b"G").await.unwrap();
        let opened = acceptor.try_open(Stream::Unix(stream), PEER, &drain).await;
        assert_eq!(opened.unwrap().protocol, Protocol::Http1);
    }

    #[test]
    fn the_answer_before_tls_has_the_length_that_it_says() {
        let (head, body) = PLAIN_ON_TLS.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("content-length: {}\r\n", body.len())), "{}", body.len());
    }
}
