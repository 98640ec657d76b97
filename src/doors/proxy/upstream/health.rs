//! Asking servers whether they are well.
//!
//! Every worker asks for itself, over a new connection each time: what it finds out is whether this worker gets through to
//! a server, and the state of an endpoint stays with its worker. An endpoint is taken for well until the checks say
//! otherwise, so that a start needs no round of them first.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::num::NonZeroU32;
use std::rc::Rc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use super::cluster::Cluster;
use super::connect::Connector;
use super::endpoint::Endpoint;

/// Checks of a route that run at once. A check takes one round trip or a few, so hundreds of addresses are still asked
/// within the usual interval.
const MAX_CHECKS: usize = 64;

/// Bytes of a response that are read to find its status: interim ones that come before it included.
const MAX_RESPONSE: usize = 16 * 1024;

/// How servers are asked whether they are well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthCheck {
    /// What is asked for with GET; 2xx and 3xx are good answers.
    pub path: String,
    /// From one check to the next.
    pub interval: Duration,
    /// For a connection and the response's fields.
    pub timeout: Duration,
    /// Checks in a row that fail until an endpoint is left out.
    pub unhealthy: NonZeroU32,
    /// Checks in a row that succeed until it is used again.
    pub healthy: NonZeroU32,
}

/// Checks the endpoints of a cluster, until dropped.
pub(super) async fn keep(check: Rc<HealthCheck>, cluster: Rc<Cluster>, connector: Rc<Connector>) {
    // Many workers start at one time; they need not ask at one time.
    sleep(check.interval.mul_f64(random_fraction())).await;
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

/// Checks an endpoint and notes what is found.
async fn examine(check: Rc<HealthCheck>, endpoint: Rc<Endpoint>, connector: Rc<Connector>) {
    let finding = match timeout(check.timeout, ask(&check.path, &endpoint, &connector)).await {
        Ok(Ok(status @ 200..400)) => Ok(status),
        Ok(Ok(status)) => Err(format!("it answers with {status}")),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("no answer within {:?}", check.timeout)),
    };
    let needed = if finding.is_ok() { check.healthy } else { check.unhealthy };
    let changed = endpoint.checked(finding.is_ok(), needed);
    match finding {
        Ok(_) if changed => tracing::info!(upstream = %endpoint, "its health checks succeed: it is used again"),
        Err(why) if changed => tracing::warn!(upstream = %endpoint, "its health checks fail, it is left out: {why}"),
        Err(why) => tracing::debug!(upstream = %endpoint, "a health check failed: {why}"),
        Ok(_) => {}
    }
}

/// The status that an endpoint answers with.
async fn ask(path: &str, endpoint: &Endpoint, connector: &Connector) -> io::Result<u16> {
    let stream = connector.open(endpoint).await?;
    ask_http1(path, &endpoint.server.authority(), stream).await
}

/// Asks over HTTP/1.1. Nothing but the status line counts, and the connection is not used again, so there is no framing
/// to be careful about.
async fn ask_http1(path: &str, host: &str, mut stream: impl AsyncRead + AsyncWrite + Unpin) -> io::Result<u16> {
    let request = format!(
        "GET {path} HTTP/1.1\r\nhost: {host}\r\nuser-agent: weir/{} (health check)\r\nconnection: close\r\n\r\n",
        env!("CARGO_PKG_VERSION")
    );
    stream.write_all(request.as_bytes()).await?;
    stream.flush().await?;
    let mut response = Vec::with_capacity(1024);
    loop {
        match final_status(&response) {
            Some(Ok(status)) => return Ok(status),
            Some(Err(())) => return Err(io::Error::new(io::ErrorKind::InvalidData, "its answer is no HTTP/1.1")),
            None if response.len() > MAX_RESPONSE => {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "its answer has no end"));
            }
            None => {}
        }
        if stream.read_buf(&mut response).await? == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it closed the connection without an answer"));
        }
    }
}

/// The status of the first response that is not an interim one (1xx), if it is there yet.
fn final_status(mut response: &[u8]) -> Option<Result<u16, ()>> {
    loop {
        let end = response.windows(2).position(|pair| pair == b"\r\n")?;
        // RFC 9112 section 4: `HTTP/1.1 200 OK`, the reason may be empty.
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

/// From 0 to 1. Each `RandomState` has keys of the system's randomness, so the hash of nothing is a random number.
fn random_fraction() -> f64 {
    let bits = u32::try_from(RandomState::new().hash_one(()) >> 32).unwrap_or(0);
    f64::from(bits) / f64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

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
