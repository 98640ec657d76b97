//! A steady load on all gateways.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;

use super::gateways::GATEWAYS;
use super::limits::{Ids, KINDS, Kind, Policy};
use crate::support::eventually;
use crate::support::weir::Weir;
use crate::support::wire::Wire;

/// The connections to each gateway, one for each kind of request with leases, and the interval of the requests on each: 525 per second
/// on three gateways.
const CONNECTIONS: usize = 7;
const INTERVAL: Duration = Duration::from_millis(40);

/// The distance between the connections in the list of buckets.
const STEP: usize = 7;

/// A connection asks for the id with leases this many times in a row, which is worth a lease, then for others.
const LEASED: usize = 4;
const OTHERS: usize = 6;

/// The most requests of one connection.
const MOST: usize = 20_000;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Answer {
    pub(super) gateway: usize,
    /// The place in [`KINDS`].
    pub(super) kind: usize,
    pub(super) id: usize,
    pub(super) status: u16,
    /// The limits of the kind that were decided, by the headers.
    pub(super) decided: [bool; 2],
    /// Microseconds since 1970, as are all times here.
    pub(super) sent: u64,
    pub(super) answered: u64,
}

impl Answer {
    pub(super) const fn took(&self) -> u64 {
        self.answered - self.sent
    }

    /// An answer of a gateway to a request of a kind with an id. `ratelimit` is the header that lists the limits that were decided.
    pub(super) fn new(
        (gateway, kind, id): (usize, usize, usize),
        status: u16,
        [sent, answered]: [u64; 2],
        ratelimit: Option<&str>,
    ) -> Self {
        let is_listed = |name: &str| ratelimit.is_some_and(|list| list.contains(&format!("\"{name}\"")));
        let mut decided = [false; 2];
        for (decided, limit) in decided.iter_mut().zip(&KINDS[kind].limits) {
            *decided = is_listed(&limit.name);
        }
        Self { gateway, kind, id, status, decided, sent, answered }
    }

    /// Returns whether the store decided, or with `local` the memory in its place: all limits that let the request pass, or one
    /// that denied it.
    pub(super) fn is_decided(&self) -> bool {
        let limits = KINDS[self.kind].limits.len();
        self.status == 429 || self.status == 200 && self.decided[..limits].iter().all(|decided| *decided)
    }
}

pub(super) struct Load {
    stopping: Arc<AtomicBool>,
    answers: Arc<Mutex<Vec<Answer>>>,
    threads: Vec<JoinHandle<()>>,
}

impl Load {
    pub(super) fn start(gateways: &[Weir], ids: &Arc<Ids>) -> Self {
        let mut load = Self { stopping: Arc::default(), answers: Arc::default(), threads: Vec::new() };
        for (gateway, weir) in gateways.iter().enumerate() {
            for connection in 0..CONNECTIONS {
                let (stopping, answers) = (Arc::clone(&load.stopping), Arc::clone(&load.answers));
                let (address, ids) = (weir.proxy, Arc::clone(ids));
                let place = (gateway, connection);
                load.threads.push(std::thread::spawn(move || ask(address, place, &ids, &stopping, &answers)));
            }
        }
        load
    }

    /// Waits until each gateway has been told the store's decision on each id, for a request sent after this instant.
    #[track_caller]
    pub(super) fn until_decided(&self, since: u64) {
        let all = GATEWAYS * KINDS.iter().map(|kind| kind.ids).sum::<usize>();
        eventually("each gateway decides each id", || {
            assert!(!self.threads.iter().any(JoinHandle::is_finished), "a request was not answered");
            let answers = self.answers.lock();
            let decided = answers.iter().filter(|answer| answer.sent >= since && answer.is_decided());
            let seen: BTreeSet<_> = decided.map(|answer| (answer.gateway, answer.kind, answer.id)).collect();
            if seen.len() == all { Ok(()) } else { Err(format!("{} of {all}: {seen:?}", seen.len())) }
        });
    }

    /// Waits until a request of each combination got no decision that was sent after this instant. With `local`, nobody can tell.
    #[track_caller]
    pub(super) fn until_undecided(&self, since: u64) {
        let is_told = |kind: &&Kind| kind.is_combination && kind.policy != Policy::Local;
        let all = KINDS.iter().filter(is_told).count();
        eventually("the store decides for no combination", || {
            let answers = self.answers.lock();
            let undecided = answers.iter().filter(|answer| answer.sent >= since && !answer.is_decided());
            let kinds: BTreeSet<usize> =
                undecided.map(|answer| answer.kind).filter(|kind| is_told(&&KINDS[*kind])).collect();
            if kinds.len() == all { Ok(()) } else { Err(kinds) }
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

/// Pairs of kind and id, in the order in which a connection asks for them.
fn turns(first: usize) -> Vec<(usize, usize)> {
    let all = |is_leased: bool| {
        let of = (0..KINDS.len()).filter(move |kind| KINDS[*kind].is_leased == is_leased);
        of.flat_map(|kind| (0..KINDS[kind].ids).map(move |id| (kind, id))).collect::<Vec<_>>()
    };
    let (leased, mut others) = (all(true), all(false));
    let leased = leased[first % CONNECTIONS];
    let step = first * STEP % others.len();
    others.rotate_left(step);
    let mut turns: Vec<_> = others.chunks(OTHERS).flat_map(|others| [&[leased; LEASED], others].concat()).collect();
    // Not all ask for ids with leases at the same time.
    turns.rotate_left(first / CONNECTIONS * 3);
    turns
}

fn ask(
    address: SocketAddr,
    (gateway, connection): (usize, usize),
    ids: &Ids,
    stopping: &AtomicBool,
    answers: &Mutex<Vec<Answer>>,
) {
    let first = gateway * CONNECTIONS + connection;
    let turns = turns(first);
    let mut wire = Wire::connect(address);
    let mut due = Instant::now() + INTERVAL * u32::try_from(first).unwrap() / 21;
    for (kind, id) in turns.into_iter().cycle().take(MOST) {
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        if stopping.load(Ordering::Relaxed) {
            return;
        }
        let sent = now();
        let message = wire.get_with(&format!("/{}", KINDS[kind].name), &ids.headers(kind, id));
        let (status, times) = (message.status(), [sent, now()]);
        answers.lock().push(Answer::new((gateway, kind, id), status, times, message.header("ratelimit")));
        // Requests that were held up are not caught up on.
        due = (due + INTERVAL).max(Instant::now());
    }
}

pub(super) fn now() -> u64 {
    micros(SystemTime::now())
}

pub(super) fn micros(time: SystemTime) -> u64 {
    u64::try_from(time.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_micros()).unwrap()
}
