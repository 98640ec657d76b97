//! Health checks of servers.
//!
//! Every worker checks for itself, over a new connection each time, because what matters is whether this worker reaches
//! the server. An endpoint counts as healthy until checks fail, so a start does not wait for them.

use std::io;
use std::num::NonZeroU32;
use std::rc::Rc;
use std::time::Duration;

use http::header::USER_AGENT;
use http::{Request, Uri};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use super::super::transport::Protocol;
use super::address::Scheme;
use super::cluster::Cluster;
use super::connect::{Connector, is_own};
use super::endpoint::Endpoint;

/// Concurrent checks per route. A check takes a few round trips, so hundreds of addresses are checked within the usual
/// interval.
const MAX_CHECKS: usize = 64;

/// Bytes of a response that are read to find its status, including interim responses.
const MAX_RESPONSE: usize = 16 * 1024;

const AGENT: &str = concat!("weir/", env!("CARGO_PKG_VERSION"), " (health check)");

/// How servers are checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthCheck {
    /// The path to GET. 2xx and 3xx are good.
    pub path: String,
    /// From one check to the next.
    pub interval: Duration,
    /// For a connection and the response's headers.
    pub timeout: Duration,
    /// Consecutive failures that make an endpoint unhealthy.
    pub unhealthy: NonZeroU32,
    /// Consecutive successes that make it healthy again.
    pub healthy: NonZeroU32,
}

/// Checks the endpoints of a cluster until dropped.
pub(super) async fn keep(check: Rc<HealthCheck>, cluster: Rc<Cluster>, connector: Rc<Connector>) {
    // Spreads the checks of workers that start together.
    sleep(check.interval.mul_f64(rand::random())).await;
    let mut ticks = interval(check.interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        for endpoints in cluster.endpoints().chunks(MAX_CHECKS) {
            let mut checks = JoinSet::new();
            for endpoint in endpoints {
                checks.spawn_local(examine(check.clone(), endpoint.clone(), connector.clone()));
            }
            while checks.join_next().await.is_some() {}
        }
    }
}

/// Checks an endpoint and records the result.
async fn examine(check: Rc<HealthCheck>, endpoint: Rc<Endpoint>, connector: Rc<Connector>) {
    let finding = match timeout(check.timeout, ask(&check.path, &endpoint, &connector)).await {
        Ok(Ok(status @ 200..400)) => Ok(status),
        Ok(Ok(status)) => Err(format!("status {status}")),
        Ok(Err(error)) if is_own(&error) => return tracing::debug!(upstream = %endpoint, "not checked: {error}"),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("no answer within {:?}", check.timeout)),
    };
    let needed = if finding.is_ok() { check.healthy } else { check.unhealthy };
    let changed = endpoint.checked(finding.is_ok(), needed);
    match finding {
        Ok(_) if changed => tracing::info!(upstream = %endpoint, "health checks succeed; the endpoint is used again"),
        Err(why) if changed => {
            tracing::warn!(upstream = %endpoint, "health checks fail; the endpoint is not used: {why}")
        }
        Err(why) => tracing::debug!(upstream = %endpoint, "a health check failed: {why}"),
        Ok(_) => {}
    }
}

/// Returns the status of an endpoint's response.
async fn ask(path: &str, endpoint: &Endpoint, connector: &Connector) -> io::Result<u16> {
    let host = endpoint.server.authority();
    match connector.open(endpoint, true).await? {
        (stream, Protocol::Http1) => ask_http1(path, &host, stream).await,
        (stream, Protocol::Http2) => ask_http2(path, &host, endpoint.server.scheme, stream).await,
    }
}

/// Sends the request over HTTP/1.1. Only the status line matters and the connection is not reused, so framing is
/// ignored.
async fn ask_http1(path: &str, host: &str, mut stream: impl AsyncRead + AsyncWrite + Unpin) -> io::Result<u16> {
    let request = format!("GET {path} HTTP/1.1\r\nhost: {host}\r\nuser-agent: {AGENT}\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    stream.flush().await?;
    let mut response = Vec::with_capacity(1024);
    loop {
        match final_status(&response) {
            Some(Ok(status)) => return Ok(status),
            Some(Err(())) => return Err(io::Error::new(io::ErrorKind::InvalidData, "not an HTTP/1.1 response")),
            None if response.len() > MAX_RESPONSE => {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "endless response head"));
            }
            None => {}
        }
        if stream.read_buf(&mut response).await? == 0 {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "the server closed the connection without a response",
            ));
        }
    }
}

/// Sends the request over HTTP/2.
async fn ask_http2(
    path: &str,
    host: &str,
    scheme: Scheme,
    stream: impl AsyncRead + AsyncWrite + Unpin,
) -> io::Result<u16> {
    let scheme = if scheme == Scheme::Https { "https" } else { "http" };
    let uri = Uri::builder().scheme(scheme).authority(host).path_and_query(path).build();
    let request = Request::get(uri.map_err(io::Error::other)?).header(USER_AGENT, AGENT).body(());
    let request = request.map_err(io::Error::other)?;
    let (sender, connection) = h2::client::handshake(stream).await.map_err(io::Error::other)?;
    let exchange = async {
        let mut sender = sender.ready().await?;
        let (response, _) = sender.send_request(request, true)?;
        Ok(response.await?.status().as_u16())
    };
    // Polling the connection drives the exchange. It ends without a response if the server closes it.
    tokio::select! {
        answered = exchange => answered.map_err(|error: h2::Error| io::Error::other(error)),
        _ = connection => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the server closed the connection without a response")),
    }
}

/// Returns the status of the first final response, if it is there yet.
fn final_status(mut response: &[u8]) -> Option<Result<u16, ()>> {
    loop {
        let end = response.windows(2).position(|pair| pair == b"\r\n")?;
        // RFC 9112 section 4: `HTTP/1.1 200 OK`. The reason may be empty.
        let status = match &response[..end] {
            [b'H', b'T', b'T', b'P', b'/', b'1', b'.', b'0' | b'1', b' ', digits @ ..] if digits.len() >= 3 => {
                let (digits, reason) = digits.split_at(3);
                let is_status = digits.iter().all(u8::is_ascii_digit) && matches!(reason.first(), None | Some(b' '));
                is_status.then(|| digits.iter().fold(0, |status, digit| status * 10 + u16::from(digit - b'0')))
            }
            _ => None,
        };
        match status {
            None => return Some(Err(())),
            Some(100..200) => {
                let head = response.windows(4).position(|four| four == b"\r\n\r\n")?;
                response = &response[head + 4..];
            }
            Some(status) => return Some(Ok(status)),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::DuplexStream;
    use tokio::runtime::{Builder, LocalOptions};
    use tokio::task::spawn_local;

    use super::*;

    /// What a check makes of a server.
    fn ask<S: Future<Output = ()> + 'static>(is_http2: bool, serve: impl FnOnce(DuplexStream) -> S) -> io::Result<u16> {
        let runtime = Builder::new_current_thread().enable_all().build_local(LocalOptions::default()).unwrap();
        let (ours, theirs) = tokio::io::duplex(64 * 1024);
        let serving = serve(theirs);
        runtime.block_on(async {
            let server = spawn_local(serving);
            let status = if is_http2 {
                ask_http2("/up?x", "a:1", Scheme::H2c, ours).await
            } else {
                ask_http1("/up?x", "a:1", ours).await
            };
            server.await.unwrap();
            status
        })
    }

    #[test]
    fn http2_servers_are_asked_in_http2() {
        let status = ask(true, async |stream| {
            let mut connection = h2::server::handshake(stream).await.unwrap();
            let (request, mut respond) = connection.accept().await.unwrap().unwrap();
            assert_eq!((request.method().as_str(), request.uri().to_string().as_str()), ("GET", "http://a:1/up?x"));
            let response = http::Response::builder().status(503).body(()).unwrap();
            respond.send_response(response, true).unwrap();
            assert!(connection.accept().await.is_none_or(|next| next.is_err()));
        });
        assert_eq!(status.unwrap(), 503);
    }

    #[test]
    fn a_server_that_closes_is_not_well() {
        for is_http2 in [false, true] {
            assert!(ask(is_http2, async |stream| drop(stream)).is_err());
        }
    }

    #[test]
    fn http1_servers_are_asked_in_http1() {
        let status = ask(false, async |mut stream| {
            let mut request = vec![0; 16];
            stream.read_exact(&mut request).await.unwrap();
            assert_eq!(request, b"GET /up?x HTTP/1");
            stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await.unwrap();
        });
        assert_eq!(status.unwrap(), 204);
    }

    #[test]
    fn an_answer_without_an_end_is_none() {
        let status = ask(false, async |mut stream| while stream.write_all(&[b'x'; 1024]).await.is_ok() {});
        assert_eq!(status.unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn the_status_is_that_of_the_first_response_that_is_final() {
        for (response, expected) in [
            ("HTTP/1.1 200 OK\r\n", Some(Ok(200))),
            ("HTTP/1.0 503\r\nx: y\r\n", Some(Ok(503))),
            ("HTTP/1.1 204 \r\n", Some(Ok(204))),
            ("HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\nHTTP/1.1 301 Moved\r\n", Some(Ok(301))),
            ("", None),
            ("HTTP/1.1 20", None),
            ("HTTP/1.1 100 Continue\r\n\r\n", None),
            ("HTTP/1.1 2000 OK\r\n", Some(Err(()))),
            ("HTTP/2 200 OK\r\n", Some(Err(()))),
            ("220 mail.example ESMTP\r\n", Some(Err(()))),
        ] {
            assert_eq!(final_status(response.as_bytes()), expected, "{response:?}");
        }
    }
}
