//! Drives an upstream connection.

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::{Duration, Instant};

use bytes::Bytes;
use h2::{Ping, PingPong};
use tokio::time::sleep_until;

use super::output::Output;
use super::watch::{Traffic, WatchedStream};

/// An upstream that is silent for this long while a response is due is sent a PING.
const PING_AFTER: Duration = Duration::from_secs(10);

/// The time to a second PING if nothing but the answer to the first came in between: gRPC servers treat two PINGs
/// within five minutes as an attack, unless they have sent something in between.
const PING_AGAIN_AFTER: Duration = Duration::from_secs(310);

/// The timeout for the answer to a PING.
const PING_TIMEOUT: Duration = Duration::from_secs(10);

/// Drives the connection until it is closed or the upstream no longer answers.
pub(super) async fn drive(
    connection: h2::client::Connection<WatchedStream, Bytes>,
    mut pings: Option<PingPong>,
    traffic: Rc<Traffic>,
    output: Rc<Output>,
    active: Rc<Cell<usize>>,
) {
    output.gather();
    let mut connection = pin!(connection);
    let mut alarm = pin!(sleep_until((traffic.now() + PING_AFTER).into()));
    let mut asked: Option<SentPing> = None;
    poll_fn(|cx| {
        let now = traffic.wake();
        loop {
            if let Poll::Ready(ended) = connection.as_mut().poll(cx) {
                if let Err(error) = ended {
                    tracing::debug!("an upstream connection ended: {error}");
                }
                return Poll::Ready(());
            }
            // Responses are never held back: the task that waits for one requests it.
            if !traffic.release() {
                break;
            }
        }
        while alarm.as_mut().poll(cx).is_ready() {
            let heard = traffic.heard.get();
            let deadline = deadline(asked, heard, traffic.content());
            if deadline > now {
                alarm.as_mut().reset(deadline.into());
                continue;
            }
            if asked.is_some_and(|asked| heard <= asked.at) {
                tracing::debug!("an upstream connection ended: PING timeout");
                return Poll::Ready(());
            }
            if active.get() == 0 {
                // The endpoint decides how long it is kept idle.
                alarm.as_mut().reset((now + PING_AFTER).into());
                continue;
            }
            if let Some(pings) = &mut pings {
                let _ = pings.poll_pong(cx);
                let _ = pings.send_ping(Ping::opaque());
            }
            asked = Some(SentPing { at: now, content: traffic.content() });
            cx.waker().wake_by_ref();
        }
        if let Poll::Ready(Err(error)) = output.poll_flush(cx) {
            tracing::debug!("an upstream connection ended: {error}");
            return Poll::Ready(());
        }
        Poll::Pending
    })
    .await;
}

/// Returns when the next PING is due, or the answer to the last one. The upstream was last heard at `heard`, and has sent
/// this much content.
fn deadline(asked: Option<SentPing>, heard: Instant, content: u64) -> Instant {
    match asked {
        Some(asked) if heard <= asked.at => asked.at + PING_TIMEOUT,
        Some(asked) if content == asked.content => asked.at + PING_AGAIN_AFTER,
        _ => heard + PING_AFTER,
    }
}

/// A PING that was sent.
#[derive(Clone, Copy, Debug)]
struct SentPing {
    at: Instant,
    /// The content received until then.
    content: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_ping_waits_for_content_or_five_minutes() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let asked = Some(SentPing { at: at(100), content: 7 });
        for (asked, heard, content, due) in [
            (None, 90, 7, 100),
            (asked, 90, 7, 110),
            (asked, 100, 8, 110),
            // Only the answer came, and then content.
            (asked, 101, 7, 410),
            (asked, 101, 8, 111),
        ] {
            assert_eq!(deadline(asked, at(heard), content), at(due), "{asked:?}, heard at {heard}, {content}");
        }
    }
}
