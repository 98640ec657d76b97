//! Health checks of servers.
//!
//! Every worker checks for itself, over a new connection each time, because what matters is whether this worker reaches
//! the server. An endpoint counts as healthy until checks fail, so a start does not wait for them.

use std::io;
use std::num::NonZeroU32;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONNECTION, HOST, USER_AGENT};
use http::{Request, Uri};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use super::address::Scheme;
use super::cluster::Cluster;
use super::connections::{Connector, is_own};
use super::endpoint::Endpoint;
use crate::http::simple;
use crate::http::transport::Protocol;

/// Concurrent checks per route. A check takes a few round trips, so hundreds of addresses are checked within the usual
/// interval.
const MAX_CHECKS: usize = 64;

const AGENT: &str = concat!("weir/", env!("CARGO_PKG_VERSION"), " (health check)");

/// Options for health checks.
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

impl Default for HealthCheck {
    /// Returns the defaults of the flags, without a path.
    fn default() -> Self {
        const COUNTS: [NonZeroU32; 2] = [NonZeroU32::new(3).unwrap(), NonZeroU32::new(2).unwrap()];
        let [unhealthy, healthy] = COUNTS;
        Self {
            path: String::new(),
            interval: Duration::from_secs(5),
            timeout: Duration::from_secs(1),
            unhealthy,
            healthy,
        }
    }
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
            tracing::warn!(upstream = %endpoint, "health checks fail; the endpoint is not used: {why}");
        }
        Err(why) => tracing::debug!(upstream = %endpoint, "a health check failed: {why}"),
        Ok(_) => {}
    }
}

/// Returns the status of an endpoint's response.
async fn ask(path: &str, endpoint: &Endpoint, connector: &Connector) -> io::Result<u16> {
    let host = endpoint.server.default_host();
    match connector.open(endpoint, true).await? {
        (stream, Protocol::Http1) => ask_http1(path, &host, stream).await,
        (stream, Protocol::Http2) => ask_http2(path, &host, endpoint.server.scheme, stream).await,
    }
}

async fn ask_http1(path: &str, host: &str, stream: impl AsyncRead + AsyncWrite + Unpin) -> io::Result<u16> {
    let request = Request::get(path).header(HOST, host).header(USER_AGENT, AGENT).header(CONNECTION, "close");
    let request = request.body(Bytes::new()).map_err(io::Error::other)?;
    Ok(simple::status(stream, request).await.map_err(io::Error::other)?.as_u16())
}

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

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
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
        let status = ask(false, async |mut stream| {
            stream.read_exact(&mut [0; 16]).await.unwrap();
            stream.write_all(b"HTTP/1.1 200 OK\r\nx: ").await.unwrap();
            while stream.write_all(&[b'x'; 1024]).await.is_ok() {}
        });
        assert!(status.is_err());
    }

    #[test]
    fn the_status_is_that_of_the_first_response_that_is_final() {
        for (response, expected) in [
            ("HTTP/1.1 200 OK\r\n\r\n", Some(200)),
            ("HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n", Some(200)),
            ("HTTP/1.0 503\r\nx: y\r\n\r\n", Some(503)),
            ("HTTP/1.1 204 \r\n\r\n", Some(204)),
            ("HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\nHTTP/1.1 301 Moved\r\n\r\n", Some(301)),
            ("", None),
            ("HTTP/1.1 20", None),
            ("HTTP/1.1 100 Continue\r\n\r\n", None),
            ("HTTP/1.1 2000 OK\r\n\r\n", None),
            ("HTTP/2 200 OK\r\n\r\n", None),
            ("220 mail.example ESMTP\r\n", None),
        ] {
            let status = ask(false, async |mut stream| {
                stream.read_exact(&mut [0; 16]).await.unwrap();
                stream.write_all(response.as_bytes()).await.unwrap();
                stream.shutdown().await.unwrap();
                let _ = stream.read_to_end(&mut Vec::new()).await;
            });
            assert_eq!(status.ok(), expected, "{response:?}");
        }
    }
}
