//! One client's connection, from its first byte to its last.

use std::future::poll_fn;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::AsyncReadExt;
use tokio::time::{sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::activity::{Activity, Watched};
use super::fields::Peer;
use super::stream::Compact;
use super::transport::{Opened, Stream};
use super::{MAX_BUFFER, Proxy};

/// Fields of a request. hyper answers 431 to more.
const MAX_FIELDS: usize = 100;

/// How long a client may go on sending a body that nobody reads, so that it gets to read the answer: to close while
/// bytes are under way would make the client's system throw the answer away (RFC 9112 section 9.6).
const LINGER: Duration = Duration::from_secs(5);

impl Proxy {
    /// Serves a client's connection to its end. When `drain` is cancelled, what runs is answered and nothing after it.
    pub async fn serve_connection(self: Rc<Self>, stream: Stream, peer: IpAddr, drain: CancellationToken) {
        let Some(opened) = self.acceptor.open(stream, peer, &drain).await else { return };
        let Opened { stream, peer, tls, protocol: _ } = opened;
        let activity = Rc::new(Activity::new());
        let peer = Rc::new(Peer::new(peer, self.trusted_proxies.contains(peer), tls));
        let service = {
            let (proxy, activity) = (self.clone(), activity.clone());
            service_fn(move |request| {
                let (proxy, peer, activity) = (proxy.clone(), peer.clone(), activity.clone());
                async move { proxy.serve(&peer, &activity, request).await }
            })
        };
        let io = TokioIo::new(Watched::new(Compact(stream), activity.clone()));
        // The deadlines are ours: hyper's for the fields would take a timer and an allocation a request, and would
        // treat an idle connection like a slow one.
        let mut connection = http1::Builder::new()
            .header_read_timeout(None)
            .max_headers(MAX_FIELDS)
            .max_buf_size(MAX_BUFFER)
            .serve_connection(io, service);
        let mut drained = pin!(drain.cancelled());
        let mut is_draining = false;
        let mut alarm = pin!(sleep_until(activity.deadline(&self.timeouts).into()));
        let ended = poll_fn(|cx| {
            activity.wake();
            loop {
                if let Poll::Ready(ended) = Pin::new(&mut connection).poll(cx) {
                    return Poll::Ready(Some(ended));
                }
                if !is_draining && drained.as_mut().poll(cx).is_ready() {
                    is_draining = true;
                    Pin::new(&mut connection).graceful_shutdown();
                    continue;
                }
                // The alarm is set only to an earlier time than it has. When it rings, the deadline has usually moved on.
                let deadline = activity.deadline(&self.timeouts);
                if deadline < alarm.deadline().into_std() {
                    alarm.as_mut().reset(deadline.into());
                }
                while alarm.as_mut().poll(cx).is_ready() {
                    if deadline <= activity.now() {
                        break;
                    }
                    alarm.as_mut().reset(deadline.into());
                }
                if !alarm.is_elapsed() {
                    return Poll::Pending;
                }
                if !activity.expire() {
                    return Poll::Ready(None);
                }
                alarm.as_mut().reset(activity.deadline(&self.timeouts).into());
            }
        })
        .await;
        match ended {
            Some(Ok(())) if activity.has_unread() => {
                linger(connection.into_parts().io.into_inner().into_inner().0).await;
            }
            Some(Ok(())) => {}
            Some(Err(error)) => tracing::debug!("a client's connection ended: {error}"),
            None => tracing::debug!("a client's connection was closed: nothing moved in time"),
        }
    }
}

/// Reads and throws away what the client still sends, until it closes. The sending side is shut down already.
async fn linger(mut stream: Stream) {
    let mut scratch = vec![0; 8 * 1024];
    let reading = async { while stream.read(&mut scratch).await.is_ok_and(|count| count > 0) {} };
    let _ = timeout(LINGER, reading).await;
}
