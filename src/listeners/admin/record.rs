//! Streams a recording of requests to an operator: a line that says what it holds, a line for each request, and a line
//! with what became of the others.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::StatusCode;
use serde_json::{Value, json};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::task::spawn_local;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};
use tokio_util::task::AbortOnDropHandle;

use super::body::{read, span};
use super::change::{AdminRequest, Caller, Rejection};
use super::{Admin, AdminAnswer};
use crate::engine::algorithms::micros::Micros;
use crate::engine::limit::WHOLE_SHARE;
use crate::http::simple::Incoming;
use crate::limiter::recording::Recording;
use crate::listeners::json::Object;
use crate::listeners::rules_json::timestamp;
use crate::telemetry::metrics::AdminWrite;

const LONGEST: Micros = Micros(24 * 3_600_000_000);

const DEFAULT_BYTES: u64 = 64 * 1024 * 1024;

/// A bound against mistakes: the process keeps only what its client has not read yet.
const MAX_BYTES: u64 = 16 * 1024 * 1024 * 1024;

/// Bytes that are sent together.
const PIECE: usize = 64 * 1024;

/// Pieces that wait for a slow client. When they are full, lines are dropped and counted.
const PIECES: usize = 16;

/// The interval of the lines that tell the progress.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);

/// The bounds of a recording.
struct Bounds {
    span: Duration,
    bytes: u64,
    share: u32,
}

/// Stops the recording when its stream ends, however it ends.
struct Running {
    admin: Rc<Admin>,
    recording: std::sync::Arc<Recording>,
    ended: Cell<&'static str>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.admin.options.shared.stop_recording();
        tracing::info!(counts = %self.recording.counts(), "the recording has ended: {}", self.ended.get());
    }
}

impl Admin {
    pub(super) async fn record(self: &Rc<Self>, request: AdminRequest) -> AdminAnswer {
        let apply = async |caller: &Caller, body: Incoming| {
            let bounds = read(body, &["for", "max_bytes", "share"], bounds).await?;
            let Some((recording, lines)) = self.options.shared.start_recording(rand::random(), bounds.share) else {
                return Err(Rejection::new(
                    StatusCode::CONFLICT,
                    "another recording is running; there is one at a time",
                ));
            };
            let (by, agent) = (&caller.name, &caller.agent);
            tracing::info!(by, agent, "a recording of requests for {:?} has started", bounds.span);
            let running = Running { admin: self.clone(), recording, ended: Cell::new("the client left") };
            let (pieces, stream) = channel(PIECES);
            let task = AbortOnDropHandle::new(spawn_local(running.stream(lines, pieces, bounds)));
            // There is no other: its recording would be running.
            self.recording.replace(Some(task));
            Ok(AdminAnswer::Stream(stream))
        };
        self.change(AdminWrite::Record, None, request, apply).await
    }
}

fn bounds(body: &Object<'_>) -> Option<Bounds> {
    let span = span(body, LONGEST, "record several times")?;
    let bytes = if body.get("max_bytes").is_some() { body.whole("max_bytes", 1)? } else { DEFAULT_BYTES };
    if bytes > MAX_BYTES {
        body.wrong("/max_bytes", &format!("must be at most {MAX_BYTES}"));
    }
    let given = if body.get("share").is_some() { body.text("share")? } else { "100%" };
    let share = share(given);
    if share.is_none() {
        body.wrong("/share", "expected a percentage with up to four decimals, as in \"10%\"");
    }
    let share = share?;
    Some(Bounds { span: Duration::from_micros(span.0), bytes, share })
}

/// Reads a percentage above 0, in parts of [`WHOLE_SHARE`].
fn share(text: &str) -> Option<u32> {
    let (whole, decimals) = text.strip_suffix('%').map(|number| number.split_once('.').unwrap_or((number, "")))?;
    if decimals.len() > 4 || !whole.bytes().chain(decimals.bytes()).all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let parts: u32 = format!("{whole}{decimals:0<4}").parse().ok()?;
    (1..=WHOLE_SHARE).contains(&parts).then_some(parts)
}

impl Running {
    async fn stream(self, mut lines: Receiver<String>, pieces: Sender<Bytes>, bounds: Bounds) {
        let deadline = Instant::now() + bounds.span;
        let started = timestamp(self.admin.operator.now());
        let mut left = bounds.bytes;
        let mut piece = BytesMut::from(format!("{}\n", self.recording.head(started.as_deref())).as_bytes());
        let mut progress = interval(PROGRESS_INTERVAL);
        progress.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let ended = loop {
            // Whatever waits is sent together.
            let is_due = tokio::select! {
                line = lines.recv() => {
                    let Some(line) = line else { break "stopped" };
                    let Some(rest) = left.checked_sub(line.len() as u64) else { break "size" };
                    left = rest;
                    piece.extend_from_slice(line.as_bytes());
                    piece.len() >= PIECE
                }
                () = sleep_until(deadline) => break "deadline",
                () = pieces.closed() => return,
                _ = progress.tick() => {
                    piece.extend_from_slice(format!("{}\n", json!({ "so_far": self.recording.counts() })).as_bytes());
                    true
                }
            };
            if is_due && pieces.send(piece.split().freeze()).await.is_err() {
                return;
            }
        };
        self.admin.options.shared.stop_recording();
        // What was recorded before the deadline is still in the queue.
        while ended == "deadline"
            && let Ok(line) = lines.try_recv()
        {
            let Some(rest) = left.checked_sub(line.len() as u64) else { break };
            left = rest;
            piece.extend_from_slice(line.as_bytes());
        }
        self.ended.set(ended);
        let last: Value = json!({ "ended": ended, "counts": self.recording.counts() });
        piece.extend_from_slice(format!("{last}\n").as_bytes());
        let _ = pieces.send(piece.freeze()).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_a_percentage() {
        for (text, expected) in [
            ("10%", Some(100_000)),
            ("100%", Some(1_000_000)),
            ("0.0001%", Some(1)),
            ("2.5%", Some(25_000)),
            ("0%", None),
            ("101%", None),
            ("0.00001%", None),
            ("10", None),
            ("-1%", None),
            (".%", None),
        ] {
            assert_eq!(share(text), expected, "{text}");
        }
    }
}
