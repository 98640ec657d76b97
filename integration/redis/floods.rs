//! Floods: every algorithm is asked for a hundred times its limit, window after window. What passes stays within the
//! limit, something passes in every window, and denials write nothing.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use weir::clock::Clock;
use weir::engine::algorithms::algorithm::Aligned;
use weir::engine::algorithms::charge::{Bucket, Charge, Elevated, Input, Mode, Slot};
use weir::engine::algorithms::decision::{Decisions, Detail};
use weir::engine::algorithms::micros::Micros;
use weir::engine::algorithms::numbers::Numbers;
use weir::engine::algorithms::queue::{Storage, Work};
use weir::engine::algorithms::script::{Run, ScriptSource, arguments};
use weir::engine::limit::queue::{FollowUp, Queue};
use weir::engine::request::part::{Part, TypedPart};
use weir::engine::request::value_type::ValueType;
use weir::store::Batch;
use weir::store::redis::{RedisOptions, RedisStore};

use super::{charge, connected, fixed, options};
use crate::support::PATIENCE;
use crate::support::redis::RedisServer;

/// A limit's tokens in a window, and the multiple that is asked for.
const LIMIT: u64 = 10;
const TIMES: u64 = 100;

/// A window in nanoseconds, as in numbers, and in microseconds, as in clocks.
const PERIOD: u64 = 1_000_000_000;
const WINDOW: u64 = PERIOD / 1_000;

const WINDOWS: u64 = 6;

/// The instants of a window, each asked equally often.
const INSTANTS: u64 = 25;

/// An instant in October 2025 at which a clock window starts.
const START: u64 = 1_760_000_000_000_000;

/// The most in any window that starts at or after `from`.
#[derive(Clone, Copy)]
struct Bound {
    from: u64,
    /// Windows follow each other from [`START`]. Otherwise they start anywhere.
    is_aligned: bool,
    most: u64,
}

struct Flood {
    name: &'static str,
    /// The charge of the request with this number.
    ask: Box<dyn Fn(u64) -> Charge>,
    bounds: Vec<Bound>,
}

/// A flood of a limit that only needs numbers.
fn plain(name: &'static str, numbers: Numbers, bound: Bound) -> Flood {
    Flood { name, ask: Box::new(move |_| charge(name, &numbers, 1, Mode::Spend)), bounds: vec![bound] }
}

/// A flood of a limit that needs input, which may depend on the request's number.
fn with_input(name: &'static str, numbers: Numbers, input: impl Fn(u64) -> Input + 'static, bounds: &[Bound]) -> Flood {
    let ask = move |number| Charge { input: Some(Box::new(input(number))), ..charge(name, &numbers, 1, Mode::Spend) };
    Flood { name, ask: Box::new(ask), bounds: bounds.to_vec() }
}

/// Adds an entry to a queue.
fn work(storage: Storage) -> Input {
    let fields = vec![("n".to_owned(), TypedPart::new(Part::Method, ValueType::Text))];
    let entry =
        Queue { storage, then: FollowUp::Accept, fields }.entry_of(&[("n".to_owned(), "1".to_owned())]).unwrap();
    Input::Queue(Work { storage, entry, given_back: None })
}

/// Every algorithm whose clock the test can set.
fn floods() -> Vec<Flood> {
    // With even refill, the burst and what comes back in less than a window.
    let any = |most| Bound { from: 0, is_aligned: false, most };
    let aligned = Bound { from: 0, is_aligned: true, most: LIMIT };
    let even = |burst, count| Numbers::new(burst, count, PERIOD).unwrap();
    let windows = |burst, aligned| Numbers::fixed_window(burst, LIMIT, PERIOD, aligned).unwrap();
    let slots = Numbers::concurrency(LIMIT, PERIOD).unwrap();
    let queue = Numbers::queue(LIMIT, Some(PERIOD)).unwrap();
    // Twice as much for two windows, once a month.
    let elevated =
        Elevated { numbers: even(2 * LIMIT, 2 * LIMIT), span: 2 * WINDOW, activations_per_month: 1, quota: None };
    let elevated = Arc::new(elevated);
    let after = Bound { from: START + 2 * WINDOW, ..any(2 * LIMIT - 1) };
    vec![
        plain("Limiter", even(1, LIMIT), any(LIMIT)),
        plain("Gcra", even(LIMIT, LIMIT), any(2 * LIMIT - 1)),
        plain("First", windows(LIMIT, Aligned::First), aligned),
        plain("Clock", windows(LIMIT, Aligned::Clock), aligned),
        plain("Log", Numbers::sliding_log(LIMIT, PERIOD).unwrap(), any(LIMIT)),
        plain("Sliding", Numbers::sliding_window(LIMIT, PERIOD, false).unwrap(), any(LIMIT)),
        with_input("Slots", slots, |number| Input::Slot(Slot(number.into())), &[any(LIMIT)]),
        with_input(
            "Elevated",
            even(LIMIT, LIMIT),
            move |_| Input::Elevated(elevated.clone()),
            &[any(4 * LIMIT - 1), after],
        ),
        with_input("Stream", queue.clone(), |_| work(Storage::Stream), &[any(LIMIT)]),
        with_input("List", queue, |_| work(Storage::List), &[any(LIMIT)]),
    ]
}

/// Asks all at once, in this order.
async fn ask(store: &RedisStore, charges: impl IntoIterator<Item = Charge>) -> Vec<Decisions> {
    let ask = |charge| store.ask(&Batch { charges: &[charge], effective_from: Micros(0), now: Micros(0) });
    let mut answers = Vec::new();
    for coming in charges.into_iter().map(ask).collect::<Vec<_>>() {
        answers.push(coming.wait().await.unwrap());
    }
    answers
}

fn admitted(answers: &[Decisions]) -> u64 {
    answers.iter().filter(|decisions| !decisions[0].is_denied()).count() as u64
}

/// The server's count of changes.
fn changes(server: &RedisServer) -> u64 {
    let persistence = server.cli(&["INFO", "persistence"]);
    let line = persistence.lines().find_map(|line| line.strip_prefix("rdb_changes_since_last_save:"));
    line.unwrap().trim().parse().unwrap()
}

/// Asks for a hundred times the limit at once; asserts that nothing passes and nothing is written.
async fn denies(server: &RedisServer, store: &RedisStore, name: &str, ask_for: impl Fn(u64) -> Charge) {
    let before = changes(server);
    let answers = ask(store, (0..TIMES * LIMIT).map(|number| ask_for(u64::MAX - number))).await;
    assert_eq!((admitted(&answers), changes(server)), (0, before), "{name}: passed, and changes of data");
}

/// Floods a limit and returns the number that passed at each instant.
async fn play(server: &RedisServer, store: &RedisStore, time: &AtomicU64, flood: &Flood) -> Vec<(u64, u64)> {
    let share = TIMES * LIMIT / INSTANTS;
    let mut passed = Vec::new();
    for instant in 0..WINDOWS * INSTANTS {
        let now = START + instant * WINDOW / INSTANTS;
        time.store(now, Ordering::Relaxed);
        let answers = ask(store, (instant * share..(instant + 1) * share).map(&flood.ask)).await;
        passed.push((now, admitted(&answers)));
        if instant % INSTANTS == 0 {
            denies(server, store, flood.name, &flood.ask).await;
        }
    }
    passed
}

/// Asserts that each window has something and none more than its bound.
fn check(name: &str, passed: &[(u64, u64)], bounds: &[Bound]) {
    let within = |from: u64| -> u64 {
        passed.iter().filter(|(at, _)| (from..from + WINDOW).contains(at)).map(|(_, many)| many).sum()
    };
    for bound in bounds {
        let begins = |at: u64| at >= bound.from && (!bound.is_aligned || (at - START).is_multiple_of(WINDOW));
        for (from, _) in passed.iter().filter(|(at, _)| begins(*at)) {
            let found = within(*from);
            assert!(found <= bound.most, "{name}: {found} pass in the window from {} us", from - START);
        }
    }
    for window in 0..WINDOWS {
        assert!(within(START + window * WINDOW) > 0, "{name}: none passes in window {window}: {passed:?}");
    }
}

#[tokio::test]
async fn no_flood_gets_more_than_its_limit_or_ends_it_or_has_its_denials_written() {
    let server = RedisServer::plain();
    let time = Arc::new(AtomicU64::new(START));
    let clock = Clock::Set(time.clone());
    let store = connected(&RedisOptions { clock, ..options(&server.url()) }).await;
    for flood in floods() {
        check(flood.name, &play(&server, &store, &time, &flood).await, &flood.bounds);
    }
    assert_eq!(store.health().corrupt_values, 0);
}

const FIXED_WINDOW: &str = include_str!("../../lua/pluglimit_fixed_window.lua");
const TOKEN_BUCKET: &str = include_str!("../../lua/pluglimit_token_bucket.lua");

/// A charge of a `PlugLimit` script.
fn scripted(key: &str, text: &str, given: &[&str]) -> Charge {
    let run = Run { source: Arc::new(ScriptSource::new("my.lua", text)), arguments: arguments(given.iter().copied()) };
    let bucket = Bucket::new(format!("{key}#script"), 0);
    let input = Some(Box::new(Input::Script(run)));
    Charge { input, ..Charge::new(bucket, Numbers::script(0), 1, Mode::Spend) }
}

/// The remaining tokens of the window in a script's third value.
fn said_left(decisions: &Decisions) -> u64 {
    let Some(Detail::Script(said)) = decisions.detail(0) else { panic!("{decisions:?}") };
    said.values[2].text.parse().unwrap()
}

/// Floods a script in windows of a second, its shortest, until `least` or more have passed in four, and asserts that no window has more than
/// the limit.
async fn flood_script(store: &RedisStore, charge: &Charge, least: u64) {
    let key = &charge.bucket.key;
    let (start, mut passed) = (Instant::now(), Vec::new());
    // A window in which the machine was busy with something else does not count.
    while passed.iter().filter(|window| **window >= least).count() < 4 {
        assert!(start.elapsed() < PATIENCE, "{key}: only {passed:?} within {PATIENCE:?}");
        for decisions in ask(store, (0..TIMES * LIMIT).map(|_| charge.clone())).await {
            if !decisions[0].is_denied() {
                // The first one leaves one less than the limit.
                if said_left(&decisions) == LIMIT - 1 {
                    passed.push(0);
                }
                *passed.last_mut().unwrap() += 1;
            }
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(passed.iter().all(|window| *window <= LIMIT), "{key}: {passed:?}");
    // Each window but the first starts after the end of the one before.
    let least = Duration::from_secs(passed.len() as u64 - 1).mul_f64(0.99);
    assert!(start.elapsed() >= least, "{key}: {passed:?} in {:?}", start.elapsed());
}

#[tokio::test]
async fn no_flood_gets_more_of_a_script_than_it_allows() {
    let server = RedisServer::plain();
    let options = options(&server.url());
    let store = connected(&options).await;
    let [limit, burst] = [LIMIT, LIMIT / 2].map(|number| number.to_string());
    let fixed_window = scripted("F:1", FIXED_WINDOW, &[&limit, "1"]);
    let token_bucket = scripted("T:1", TOKEN_BUCKET, &[&limit, "1", &burst]);
    tokio::join!(flood_script(&store, &fixed_window, LIMIT), flood_script(&store, &token_bucket, LIMIT / 2));
    // In windows that do not end meanwhile, without refill.
    for charge in
        [scripted("F:2", FIXED_WINDOW, &[&limit, "3600"]), scripted("T:2", TOKEN_BUCKET, &[&limit, "3600", &limit])]
    {
        assert_eq!(admitted(&ask(&store, (0..2 * LIMIT).map(|_| charge.clone())).await), LIMIT);
        denies(&server, &store, &charge.bucket.key, |_| charge.clone()).await;
    }
}

/// The number of times that the server loses its scripts, and the pause before each.
const FLUSHES: usize = 100;
const PAUSE: Duration = Duration::from_millis(2);

/// Flushes the server's scripts repeatedly.
fn flush(address: &str) {
    let mut connection = TcpStream::connect(address).unwrap();
    for _ in 0..FLUSHES {
        std::thread::sleep(PAUSE);
        connection.write_all(b"SCRIPT FLUSH\r\n").unwrap();
        let mut reply = [0; 5];
        connection.read_exact(&mut reply).unwrap();
        assert_eq!(&reply, b"+OK\r\n");
    }
}

#[tokio::test]
async fn scripts_that_are_lost_under_load_again_and_again_cost_no_request() {
    const BURST: u64 = 1_000;
    let server = RedisServer::plain();
    let store = connected(&options(&server.url())).await;
    let charges =
        [charge("A:1", fixed(BURST), 1, Mode::Spend), scripted("F:1", FIXED_WINDOW, &[&BURST.to_string(), "3600"])];
    let address = server.address();
    let flushing = Arc::new(tokio::task::spawn_blocking(move || flush(&address)));
    let mut tasks = JoinSet::new();
    for task in 0..64 {
        let (store, flushing, charge) = (store.clone(), flushing.clone(), charges[task % 2].clone());
        tasks.spawn(async move {
            let (mut asked, mut passed) = (0, 0);
            // 32 tasks want 40 each of two buckets, which is more than they hold.
            while asked < 40 || !flushing.is_finished() {
                let batch = Batch { charges: std::slice::from_ref(&charge), effective_from: Micros(0), now: Micros(0) };
                passed += u64::from(!store.decide(&batch).await.unwrap()[0].is_denied());
                asked += 1;
            }
            (task % 2, passed)
        });
    }
    let mut passed = [0, 0];
    while let Some(task) = tasks.join_next().await {
        let (bucket, admitted) = task.unwrap();
        passed[bucket] += admitted;
    }
    Arc::into_inner(flushing).unwrap().await.unwrap();
    assert_eq!(passed, [BURST, BURST]);
    let sent_again = server.calls("eval");
    assert!(sent_again >= 10, "the load met {sent_again} of {FLUSHES} flushes");
}
