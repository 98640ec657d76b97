//! The task that owns the connection: it opens it, probes it, and replaces it.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, ErrorKind, RedisError, Value};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::task::AbortOnDropHandle;

use super::calls::Sent;
use super::options::Target;
use super::patience::within;
use super::script::Requests;
use super::trouble::{PERHAPS_TLS, Trouble, WANTS_CERTIFICATE};
use super::{Live, Shared, State, describe};
use crate::engine::algorithms::charge::{Bucket, Charge, Mode};
use crate::engine::algorithms::numbers::{Micros, Numbers};
use crate::store::Fault;

/// How long opening a connection may take, name lookup, TLS, AUTH and the trial included. With the longest pause it stays
/// below the 2 s within which limiting resumes.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// The interval of probes.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);

/// How long a probe of the current connection may take. Longer than a request waits: a probe has nobody waiting for it,
/// and a stall that requests survive is no reason to reconnect.
const PROBE_TIMEOUT: Duration = Duration::from_millis(250);

/// The pause before the second attempt to reconnect. It doubles up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// The longest pause between attempts.
const LONGEST_PAUSE: Duration = Duration::from_millis(400);

/// A connection that lasted this long was a good one: what happens next is a new trouble, told from the start.
const SETTLED: Duration = Duration::from_secs(10);

/// Commands that the library queues until they are written. Calls of requests are fewer (`calls`), other commands rare.
const COMMANDS_KEPT: usize = 64;

/// The bucket of the trial call. No limit's name begins with `!`.
const TRIAL: &str = "!trial";

/// Keeps `shared` supplied with a connection to `target`, until it is aborted.
pub(super) async fn run(shared: Arc<Shared>, target: Target) {
    let mut log = Log { target: target.to_string(), said: Said::Nothing, reported: Vec::new(), cut: None };
    let mut pause = FIRST_PAUSE;
    loop {
        match open_for_those_who_wait(&shared, &target).await {
            Ok(live) => {
                let live = Arc::new(live);
                *shared.state.lock() = State::default();
                shared.live.store(Some(live.clone()));
                nobody_waits(&shared);
                log.connected();
                watch(&shared, &live).await;
                if live.opened.elapsed() >= SETTLED {
                    pause = FIRST_PAUSE;
                    log.reported.clear();
                }
                let trouble = shared.state.lock().trouble.clone();
                if shared.is_returning.load(Ordering::Relaxed) {
                    log.cut = trouble.map(|trouble| trouble.text);
                    continue;
                }
                log.lost(trouble);
            }
            Err(trouble) => {
                shared.state.lock().trouble = Some(trouble.clone());
                nobody_waits(&shared);
                log.lost(Some(trouble));
            }
        }
        sleep(jittered(pause)).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Opens a connection. Requests that wait for it wait no longer than the store's timeout.
async fn open_for_those_who_wait(shared: &Arc<Shared>, target: &Target) -> Result<Live, Trouble> {
    let mut opened = pin!(open(shared, target));
    if shared.is_returning.load(Ordering::Relaxed) {
        if let Some(opened) = within(shared.timeout, opened.as_mut()).await {
            return opened;
        }
        nobody_waits(shared);
    }
    opened.await
}

/// Wakes the requests that wait for a connection.
fn nobody_waits(shared: &Shared) {
    shared.is_returning.store(false, Ordering::Relaxed);
    shared.returned.notify_waiters();
}

/// A connection to a server that can decide.
async fn open(shared: &Arc<Shared>, target: &Target) -> Result<Live, Trouble> {
    let opened = timeout(CONNECT_TIMEOUT, async {
        let live = connect(shared, target).await?;
        identify(&live).await?;
        try_out(&live, shared, target).await?;
        Ok(live)
    });
    let silent = |_| Trouble::new(Fault::Silent, format!("no connection within {CONNECT_TIMEOUT:?}"));
    opened.await.map_err(silent)?
}

/// Opens a connection and logs in.
async fn connect(shared: &Arc<Shared>, target: &Target) -> Result<Live, Trouble> {
    let stream = target.place.open().await?;
    let config = AsyncConnectionConfig::new()
        // Each call and each probe brings its own deadline; a second timer for each would buy nothing.
        .set_response_timeout(None)
        .set_pipeline_buffer_size(COMMANDS_KEPT);
    let opened = MultiplexedConnection::new_with_config(&target.login, stream, config).await;
    let (connection, driver) = opened.map_err(|error| on_opening(target, &error))?;
    let has_ended = Arc::new(AtomicBool::new(false));
    let (shared, ended) = (shared.clone(), has_ended.clone());
    let driver = AbortOnDropHandle::new(tokio::spawn(async move {
        driver.await;
        ended.store(true, Ordering::Relaxed);
        shared.lost.notify_one();
    }));
    let (heard, overdue) = (AtomicU64::new(0), AtomicU32::new(0));
    Ok(Live { connection, opened: Instant::now(), heard, overdue, has_ended, driver })
}

/// Asks the server for its mode and role. A user without `+hello` learns them from the trial and from errors.
async fn identify(live: &Live) -> Result<(), Trouble> {
    let mut hello = Cmd::new();
    hello.arg("HELLO");
    let Ok(Value::Array(said)) = live.reply(&hello).await else { return Ok(()) };
    let said_of = |name: &[u8]| {
        let (names, values) = (said.iter().step_by(2), said.iter().skip(1).step_by(2));
        names.zip(values).find_map(|pair| match pair {
            (Value::BulkString(found), Value::BulkString(value)) if found == name => str::from_utf8(value).ok(),
            _ => None,
        })
    };
    match Trouble::of_kind(said_of(b"mode").unwrap_or_default(), said_of(b"role").unwrap_or_default()) {
        Some(trouble) => Err(trouble),
        None => Ok(()),
    }
}

/// Makes a call that needs the same permissions as others and leaves nothing behind: a reset of an unused bucket.
async fn try_out(live: &Live, shared: &Shared, target: &Target) -> Result<(), Trouble> {
    let Ok(numbers) = Numbers::fixed(1) else { return Ok(()) };
    let charge = Charge::new(Bucket { key: TRIAL.into(), fingerprint: 0 }, numbers, 0, Mode::Reset);
    let mut requests = Requests::default();
    requests.push(&[charge], Micros(0));
    let sent = Sent { requests, now: None, effective_from: Micros(0), number: shared.number() };
    let trouble = match live.ask(&sent).await {
        Err(error) if error.code().is_none() => Some(on_opening(target, &error)),
        Err(error) => Trouble::of_call(&describe(&error)),
        Ok(value) => match sent.requests.reply(value, sent.number) {
            Ok(reply) => reply.answers.iter().find_map(|answer| Trouble::of_call(answer.as_ref().err()?)),
            Err(reply) => {
                return Err(Trouble::new(
                    Fault::Failing,
                    format!("the server answers a call of a script by {reply:?}"),
                ));
            }
        },
    };
    trouble.map_or(Ok(()), Err)
}

/// The trouble behind an error before the first reply.
fn on_opening(target: &Target, error: &RedisError) -> Trouble {
    let text = describe(error);
    if error.kind() == ErrorKind::AuthenticationFailed {
        return Trouble::new(Fault::Authentication, text);
    }
    if let Some(trouble) = error.code().and_then(|_| Trouble::of_call(&text)) {
        return trouble;
    }
    if text.contains("CertificateRequired") {
        return Trouble::new(Fault::Tls, format!("{text}: {WANTS_CERTIFICATE}"));
    }
    if error.is_io_error() && target.place.is_plain_tcp() {
        return Trouble::new(Fault::Unreachable, format!("{text}: {PERHAPS_TLS}"));
    }
    Trouble::new(Fault::Unreachable, text)
}

/// Returns when `live` is no longer what requests use.
async fn watch(shared: &Shared, live: &Arc<Live>) {
    while shared.live.load().as_ref().is_some_and(|current| Arc::ptr_eq(current, live)) {
        // A request that gives up before this is polled leaves its permit in `lost`; one that is left over from an
        // earlier connection costs a turn of the loop.
        let trouble = if live.has_ended.load(Ordering::Relaxed) {
            Some(Trouble::new(Fault::Unreachable, "the connection was cut"))
        } else if timeout(PROBE_INTERVAL, shared.lost.notified()).await.is_err() {
            ping(live, shared).await.err()
        } else {
            None
        };
        if let Some(trouble) = trouble {
            shared.give_up(live, trouble);
        }
    }
}

/// Asks the server to repeat a number.
async fn ping(live: &Live, shared: &Shared) -> Result<(), Trouble> {
    let number = shared.number().text();
    let mut ping = Cmd::new();
    ping.arg("PING").arg(&number);
    let silent = || Trouble::new(Fault::Silent, format!("PING had no answer within {PROBE_TIMEOUT:?}"));
    let answer = within(PROBE_TIMEOUT, pin!(live.reply(&ping))).await.ok_or_else(silent)?;
    match answer.and_then(Value::extract_error) {
        Ok(Value::BulkString(echo)) if echo == number.as_bytes() => Ok(()),
        Ok(other) => {
            let text = format!("a reply was lost or duplicated on the way, PING was answered by {other:?}");
            Err(Trouble::new(Fault::Unreachable, text))
        }
        Err(error) => {
            let text = describe(&error);
            let trouble = error.code().and_then(|_| Trouble::of_call(&text));
            Err(trouble.unwrap_or_else(|| Trouble::new(Fault::Unreachable, text)))
        }
    }
}

/// Between half of `pause` and all of it, so that gateways that lost one server do not all come back at once.
fn jittered(pause: Duration) -> Duration {
    pause.mul_f64(rand::random_range(0.5..=1.0))
}

/// Reasons logged per outage.
const MOST_REASONS: usize = 8;

/// A line for each reason why there is no connection and one when it is back, however often it is tried in between.
struct Log {
    target: String,
    said: Said,
    /// Reasons logged since the last good connection. A server that accepts connections and then refuses to serve would
    /// otherwise fill the log.
    reported: Vec<String>,
    /// The reason for the end of the connection that is being replaced.
    cut: Option<String>,
}

/// What the last line says.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Said {
    Nothing,
    Connected,
    Lost,
}

impl Log {
    fn connected(&mut self) {
        if self.said != Said::Connected {
            tracing::info!(store = %self.target, "connected to the store");
            self.said = Said::Connected;
        } else if let Some(reason) = self.cut.take()
            && self.is_new(&reason)
        {
            tracing::info!(store = %self.target, reason, "replaced the connection to the store");
        }
    }

    /// Notes a reason; false if it was logged before.
    fn is_new(&mut self, reason: &str) -> bool {
        let is_new = self.reported.len() < MOST_REASONS && self.reported.iter().all(|reported| reported != reason);
        if is_new {
            self.reported.push(reason.to_owned());
        }
        is_new
    }

    fn lost(&mut self, trouble: Option<Trouble>) {
        self.cut = None;
        let reason = trouble.map(|trouble| trouble.text).unwrap_or_default();
        if self.is_new(&reason) {
            tracing::warn!(store = %self.target, reason, "no connection to the store, trying again");
            self.said = Said::Lost;
        }
    }
}
