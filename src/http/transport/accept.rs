//! From a connection to the protocol that it speaks.

use std::io;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::super::activity::DRAIN_PATIENCE;
use super::super::admission::{Admission, Permit};
use super::super::observer::{ConnectionFailure, Observer};
use super::peek::{peek, readable};
use super::proxy_protocol::{self, Header, HeaderError, MAX_HEADER, Source};
use super::{ServerTls, Stream, TlsInfo};

/// What a client of HTTP/2 sends first (RFC 9113 section 3.4).
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The answer to a client that takes the port for one of plain HTTP.
const PLAIN_ON_TLS: &str = "HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\ncontent-length: 55\r\n\
    connection: close\r\n\r\nthis port speaks TLS: write https:// instead of http://";

/// How long a client that was answered before TLS may go on sending: to close while bytes are under way would make its
/// system throw the answer away (RFC 9112 section 9.6). Its request's headers are under way already.
const LINGER: Duration = Duration::from_secs(1);

/// How new connections are taken.
#[derive(Clone, Debug)]
pub struct AcceptOptions {
    /// The peers whose connections begin with a PROXY header. They must send one, and from others none is read: that is
    /// what keeps clients from naming their own address.
    pub proxy_protocol_from: Vec<IpNet>,
    /// TLS, if it is spoken at all.
    pub tls: Option<Arc<ServerTls>>,
    /// How long a TLS handshake may take from its first byte on.
    pub handshake_timeout: Duration,
}

impl Default for AcceptOptions {
    /// Plain HTTP of everybody.
    fn default() -> Self {
        Self { proxy_protocol_from: Vec::new(), tls: None, handshake_timeout: Duration::from_secs(10) }
    }
}

/// A connection that is ready for HTTP.
#[derive(Debug)]
pub(crate) struct Opened {
    /// The connection; no byte of HTTP has been taken from it.
    pub(crate) stream: Stream,
    /// Whose connection it is: the peer's, or whose a load balancer says in its PROXY header.
    pub(crate) source: Source,
    /// What the handshake came to, if there was one.
    pub(crate) tls: Option<TlsInfo>,
    /// What the client speaks.
    pub(crate) protocol: Protocol,
    /// Its place among the connections of the peer.
    pub(crate) permit: Permit,
}

/// What a client speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// HTTP/1.1 or HTTP/1.0.
    Http1,
    /// HTTP/2, agreed on by ALPN or known beforehand (RFC 9113 section 3.3).
    Http2,
}

/// Why a connection came to no HTTP.
#[derive(Debug, thiserror::Error)]
enum Refused {
    /// It ended before the first byte, as a probe does that only connects.
    #[error("the peer closed without a byte")]
    Closed,
    /// No new requests are taken, and none had begun.
    #[error("the server is draining")]
    Draining,
    /// The bytes that tell what it speaks did not come in time.
    #[error("the first bytes did not come within {0:?}")]
    FirstByteTimeout(Duration),
    /// It is one too many.
    #[error("there are too many connections from its address")]
    Crowded,
    /// The peer must send a PROXY header and did not.
    #[error("{0}")]
    ProxyHeader(#[from] HeaderError),
    /// The PROXY header is not all there.
    #[error("the connection ended within the PROXY header")]
    CutOff,
    /// The handshake failed.
    #[error("the TLS handshake failed: {0}")]
    Handshake(#[source] io::Error),
    /// The handshake took too long.
    #[error("the TLS handshake took longer than {0:?}")]
    HandshakeTimeout(Duration),
    /// The client spoke plain HTTP where TLS is spoken. It has been told.
    #[error("the client spoke plain HTTP to a port of TLS")]
    PlainHttp,
    /// The connection broke.
    #[error("{0}")]
    Io(#[from] io::Error),
}

impl Refused {
    /// What it counts as, unless it is nothing that an operator should look into.
    const fn failure(&self) -> Option<ConnectionFailure> {
        match self {
            Self::Closed | Self::Draining | Self::Io(_) | Self::Crowded => None,
            Self::FirstByteTimeout(_) => Some(ConnectionFailure::FirstByteTimeout),
            Self::ProxyHeader(_) | Self::CutOff => Some(ConnectionFailure::ProxyHeader),
            Self::Handshake(_) => Some(ConnectionFailure::TlsHandshake),
            Self::HandshakeTimeout(_) => Some(ConnectionFailure::TlsHandshakeTimeout),
            Self::PlainHttp => Some(ConnectionFailure::PlainHttp),
        }
    }
}

/// Takes a worker's connections as far as HTTP.
pub(crate) struct Acceptor {
    /// What connections begin with.
    pub(crate) options: AcceptOptions,
    /// How long a PROXY header may take, and then the first bytes of TLS or HTTP.
    pub(crate) patience: Duration,
    /// The connections of all workers.
    pub(crate) admission: Arc<Admission>,
    pub(crate) observer: Rc<dyn Observer>,
    /// Whether clients' addresses may be logged.
    pub(crate) logs_peers: bool,
}

impl Acceptor {
    /// Takes a new connection of `peer` as far as HTTP; `None` if it came to an end before. One that has not sent a byte
    /// yet ends soon after `drain` is cancelled; what has begun goes on.
    ///
    /// A connection of plain HTTP/1.1 costs one `recv` that looks at its first bytes.
    pub(crate) async fn open(&self, stream: Stream, peer: IpAddr, drain: &CancellationToken) -> Option<Opened> {
        match open(stream, peer, &self.options, &self.admission, self.patience, drain).await {
            Ok(opened) => {
                if let Some(tls) = &opened.tls {
                    self.observer.tls_handshake(tls.is_resumed);
                }
                Some(opened)
            }
            Err(refused) => {
                if let Some(failure) = refused.failure() {
                    self.observer.connection_failed(failure);
                } else if matches!(refused, Refused::Crowded) {
                    self.observer.connection_rejected();
                }
                let peer = self.logs_peers.then(|| peer.to_string());
                tracing::debug!(peer, "a connection came to no HTTP: {refused}");
                None
            }
        }
    }
}

async fn open(
    mut stream: Stream,
    peer: IpAddr,
    options: &AcceptOptions,
    admission: &Arc<Admission>,
    patience: Duration,
    drain: &CancellationToken,
) -> Result<Opened, Refused> {
    let has_header = options.proxy_protocol_from.iter().any(|network| network.contains(&peer));
    let source = if has_header { proxied(&mut stream, patience, drain).await? } else { Source::Address(peer) };
    // Before the handshake, which is what costs. Whoever is not named shares the bound of the balancer.
    let client = if let Source::Address(client) = source { client } else { peer };
    let permit = admission.admit(client).ok_or(Refused::Crowded)?;
    let Some(tls) = &options.tls else {
        let protocol = sniff(&stream, patience, drain).await?;
        return Ok(Opened { stream, source, tls: None, protocol, permit });
    };
    // A method begins with a letter, as a rule of upper case; a TLS record with 22 (RFC 8446 section 5.1).
    let is_method = |bytes: &[u8]| Some(bytes.first()?.is_ascii_uppercase());
    if first_bytes(&stream, &mut [0; 1], is_method, patience, drain).await? == Some(true) {
        refuse_plain(&mut stream).await;
        return Err(Refused::PlainHttp);
    }
    let accepted = timeout(options.handshake_timeout, tls.accept(stream)).await;
    let accepted = accepted.map_err(|_| Refused::HandshakeTimeout(options.handshake_timeout))?;
    let (stream, info) = accepted.map_err(Refused::Handshake)?;
    let protocol = if info.is_http2 { Protocol::Http2 } else { Protocol::Http1 };
    Ok(Opened { stream, source, tls: Some(info), protocol, permit })
}

/// Takes the PROXY header off a connection, which says whose connection it is.
async fn proxied(stream: &mut Stream, patience: Duration, drain: &CancellationToken) -> Result<Source, Refused> {
    let mut buffer = vec![0; MAX_HEADER];
    let parse = |bytes: &[u8]| proxy_protocol::parse(bytes).transpose();
    let header = first_bytes(stream, &mut buffer, parse, patience, drain).await?;
    let Header { length, source } = header.ok_or(Refused::CutOff)??;
    // It has been seen whole, so this does not wait.
    stream.read_exact(&mut buffer[..length]).await?;
    Ok(source)
}

/// Tells HTTP/2 from HTTP/1 by the first bytes, as soon as they differ from the preface.
async fn sniff(stream: &Stream, patience: Duration, drain: &CancellationToken) -> Result<Protocol, Refused> {
    let decide = |bytes: &[u8]| match bytes {
        _ if bytes == PREFACE => Some(Protocol::Http2),
        _ if PREFACE.starts_with(bytes) => None,
        _ => Some(Protocol::Http1),
    };
    let decided = first_bytes(stream, &mut [0; PREFACE.len()], decide, patience, drain).await?;
    // What ends within the preface is for the parser of HTTP/1 to refuse.
    Ok(decided.unwrap_or(Protocol::Http1))
}

/// What `decide` makes of the first bytes; `None` if they come to an end before it does.
async fn first_bytes<T>(
    stream: &Stream,
    buffer: &mut [u8],
    mut decide: impl FnMut(&[u8]) -> Option<T>,
    patience: Duration,
    drain: &CancellationToken,
) -> Result<Option<T>, Refused> {
    let mut is_empty = true;
    let decide = |bytes: &[u8]| {
        is_empty = bytes.is_empty();
        decide(bytes)
    };
    let peeking = async {
        tokio::select! {
            biased;
            begun = readable(stream) => begun?,
            () = drain.cancelled() => tokio::select! {
                biased;
                // A request may be on its way from a client that has connected a moment ago.
                begun = readable(stream) => begun?,
                () = sleep(DRAIN_PATIENCE) => return Err(Refused::Draining),
            },
        }
        Ok(peek(stream, buffer, decide).await?)
    };
    let late = |_| Refused::FirstByteTimeout(patience);
    match timeout(patience, peeking).await.map_err(late)?? {
        None if is_empty => Err(Refused::Closed),
        decided => Ok(decided),
    }
}

/// Answers plain HTTP where TLS is spoken. An error of this is of no interest: the client is refused anyway.
async fn refuse_plain(stream: &mut Stream) {
    let refusing = async {
        stream.write_all(PLAIN_ON_TLS.as_bytes()).await?;
        stream.shutdown().await?;
        let mut scratch = [0; 1024];
        while stream.read(&mut scratch).await? > 0 {}
        io::Result::Ok(())
    };
    let _ = timeout(LINGER, refusing).await;
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use tokio::net::UnixStream;

    use super::super::super::admission::ConnectionLimits;
    use super::*;

    const PEER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));

    const PATIENCE: Duration = Duration::from_secs(10);

    fn admission() -> Arc<Admission> {
        Admission::new(ConnectionLimits::default())
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
        let (options, drain) = (options(from), CancellationToken::new());
        let admission = admission();
        let (opened, ()) =
            tokio::join!(open(Stream::Unix(stream), PEER, &options, &admission, PATIENCE, &drain), sending);
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
            Err(refused) => Err(refused.to_string()),
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
        check(none, &[], Err("the peer closed without a byte")).await;
    }

    #[tokio::test]
    async fn a_proxy_header_is_read_from_those_who_must_send_it_and_from_nobody_else() {
        let (line, get) = ("PROXY TCP4 192.0.2.1 198.51.100.1 4711 443\r\n", "GET / HTTP/1.1\r\n\r\n");
        let missing = "the connection does not begin with a PROXY header";
        let http1 = Protocol::Http1;
        check("10.0.0.0/8", &[line, get], Ok(("192.0.2.1", http1, get))).await;
        check("10.0.0.0/8", &[&line[..3], &line[3..], get], Ok(("192.0.2.1", http1, get))).await;
        check("10.0.0.0/8", &["PROXY UNKNOWN\r\n", get], Ok(("Unknown", http1, get))).await;
        check("10.0.0.0/8", &["PROXY UNKNOWN\r\nPRI"], Ok(("Unknown", http1, "PRI"))).await;
        let local = "\r\n\r\n\0\r\nQUIT\n\x20\0\0\0";
        check("10.0.0.0/8", &[local, get], Ok(("Local", http1, get))).await;
        check("10.0.0.0/8", &[get], Err(missing)).await;
        check("10.0.0.0/8", &[&line[..20]], Err("the connection ended within the PROXY header")).await;
        check("10.0.0.0/8", &[line], Err("the peer closed without a byte")).await;
        check("10.0.0.0/8", &[], Err("the peer closed without a byte")).await;
        // From others it is what it looks like: a request line that is none.
        check("192.0.2.0/24", &[line, get], Ok(("10.0.0.1", http1, &[line, get].concat()))).await;
    }

    #[tokio::test]
    async fn what_does_not_come_in_time_is_not_waited_for() {
        for sent in ["", "PRI * HTTP"] {
            let (mut client, stream) = UnixStream::pair().unwrap();
            client.write_all(sent.as_bytes()).await.unwrap();
            let drain = CancellationToken::new();
            let (options, patience) = (AcceptOptions::default(), Duration::from_millis(20));
            let refused = open(Stream::Unix(stream), PEER, &options, &admission(), patience, &drain).await.unwrap_err();
            assert!(matches!(refused, Refused::FirstByteTimeout(_)), "{sent}: {refused}");
        }
    }

    #[tokio::test]
    async fn a_drain_ends_what_has_not_begun() {
        let drain = CancellationToken::new();
        drain.cancel();
        let (_client, stream) = UnixStream::pair().unwrap();
        let refused = open(Stream::Unix(stream), PEER, &AcceptOptions::default(), &admission(), PATIENCE, &drain)
            .await
            .unwrap_err();
        assert!(matches!(refused, Refused::Draining), "{refused}");
        let (mut client, stream) = UnixStream::pair().unwrap();
        client.write_all(b"G").await.unwrap();
        let opened = open(Stream::Unix(stream), PEER, &AcceptOptions::default(), &admission(), PATIENCE, &drain).await;
        assert_eq!(opened.unwrap().protocol, Protocol::Http1);
    }

    #[test]
    fn the_answer_before_tls_has_the_length_that_it_says() {
        let (head, body) = PLAIN_ON_TLS.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("content-length: {}\r\n", body.len())), "{}", body.len());
    }
}
