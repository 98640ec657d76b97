//! A steady load on all gateways.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;

use super::limits::LIMITS;
use crate::support::eventually;
use crate::support::weir::Weir;
use crate::support::wire::Wire;

/// The connections to each gateway, and the interval of the requests on each: 350 per second on three gateways.
const CONNECTIONS: usize = 4;
const INTERVAL: Duration = Duration::from_millis(34);

/// The distance between the connections in the list of buckets.
const STEP: usize = 7;

/// The most requests of one connection.
const MOST: usize = 20_000;

#[derive(Clone, Copy, Debug)]
pub(super) struct Answer {
    pub(super) gateway: usize,
    /// The place in [`LIMITS`].
    pub(super) limit: usize,
    pub(super) id: usize,
    pub(super) status: u16,
    /// Microseconds since 1970, as are all times here.
    pub(super) sent: u64,
    pub(super) answered: u64,
}

impl Answer {
    pub(super) const fn took(&self) -> u64 {
        self.answered - self.sent
    }

    /// Returns whether the store decided. Without its answer, all limits deny with 503.
    pub(super) const fn is_decided(&self) -> bool {
        self.status != 503
    }
}

pub(super) struct Load {
    stopping: Arc<AtomicBool>,
    answers: Arc<Mutex<Vec<Answer>>>,
    threads: Vec<JoinHandle<()>>,
    gateways: usize,
}

impl Load {
    pub(super) fn start(gateways: &[Weir]) -> Self {
        let mut load =
            Self { stopping: Arc::default(), answers: Arc::default(), threads: Vec::new(), gateways: gateways.len() };
        for (gateway, weir) in gateways.iter().enumerate() {
            for connection in 0..CONNECTIONS {
                let (stopping, answers) = (Arc::clone(&load.stopping), Arc::clone(&load.answers));
                let address = weir.proxy;
                let first = gateway * CONNECTIONS + connection;
                load.threads.push(std::thread::spawn(move || ask(address, gateway, first, &stopping, &answers)));
            }
        }
        load
    }

    /// Waits until each gateway has been told the store's decision on each id, for a request sent after this instant.
    #[track_caller]
    pub(super) fn until_decided(&self, since: u64) {
        let all = self.gateways * LIMITS.iter().map(|kind| kind.ids).sum::<usize>();
        eventually("each gateway decides each id", || {
            assert!(!self.threads.iter().any(JoinHandle::is_finished), "a request was not answered");
            let answers = self.answers.lock();
            let decided = answers.iter().filter(|answer| answer.sent >= since && answer.is_decided());
            let seen: BTreeSet<_> = decided.map(|answer| (answer.gateway, answer.limit, answer.id)).collect();
            if seen.len() == all { Ok(()) } else { Err(format!("{} of {all}: {seen:?}", seen.len())) }
        });
    }

    /// Stops; fails if a request was not answered.
    pub(super) fn stop(self) -> Vec<Answer> {
        self.stopping.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.join().expect("each request is answered");
        }
        std::mem::take(&mut *self.answers.lock())
    }
}

/// Pairs of limit and id, in the order in which a connection asks for them. The only id of a limit comes four times: that is
/// eight times per second on each of six workers, twice as often as one must be asked to lease tokens for a second.
fn buckets() -> Vec<(usize, usize)> {
    let turns = |limit: usize| if LIMITS[limit].ids == 1 { 4 } else { LIMITS[limit].ids };
    let ids = |limit: usize| (0..turns(limit)).map(move |turn| (limit, turn % LIMITS[limit].ids));
    (0..LIMITS.len()).flat_map(ids).collect()
}

/// The value of `x-id`. Limits do not share ids, so that a cluster spreads them.
pub(super) fn id(limit: usize, id: usize) -> String {
    format!("{}-{id}", LIMITS[limit].name)
}

fn ask(address: SocketAddr, gateway: usize, first: usize, stopping: &AtomicBool, answers: &Mutex<Vec<Answer>>) {
    let buckets = buckets();
    let mut wire = Wire::connect(address);
    let mut due = Instant::now() + INTERVAL / 12 * u32::try_from(first).unwrap();
    for number in 0..MOST {
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        if stopping.load(Ordering::Relaxed) {
            return;
        }
        let (limit, of) = buckets[(first * STEP + number) % buckets.len()];
        let sent = now();
        let answer =
            wire.get_with(&format!("/{}", LIMITS[limit].name), &[("x-id", &id(limit, of)), ("x-shared", "all")]);
        let answer = Answer { gateway, limit, id: of, status: answer.status(), sent, answered: now() };
        answers.lock().push(answer);
        // Requests that were held up are not caught up on.
        due = (due + INTERVAL).max(Instant::now());
    }
}

pub(super) fn now() -> u64 {
    let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    u64::try_from(since_epoch.as_micros()).unwrap()
}
