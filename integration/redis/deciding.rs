//! Decisions in Redis: commands, keys and replies.

use std::collections::BTreeMap;
use std::io::Write;
use std::net::TcpStream;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tempfile::NamedTempFile;
use tokio::task::JoinSet;
use weir::clock::Clock;
use weir::engine::algorithms::algorithm::Aligned;
use weir::engine::algorithms::calendar::{Calendar, Unit};
use weir::engine::algorithms::charge::{Charge, Elevated, Input, Mode};
use weir::engine::algorithms::decision::Outcome;
use weir::engine::algorithms::micros::{EXACT, Micros};
use weir::engine::algorithms::numbers::{Numbers, NumbersError};
use weir::store::redis::{RedisOptions, RedisStore};
use weir::store::{Batch, StoreError};

use super::{charge, connected, decide, fixed, options};
use crate::support::becomes;
use crate::support::redis::RedisServer;

/// 10 tokens, one per second.
fn slow() -> Numbers {
    Numbers::new(10, 1, 1_000_000_000).unwrap()
}

#[tokio::test]
async fn one_call_a_request_and_no_write_where_nothing_is_taken() {
    let server = RedisServer::plain();
    let store = connected(&options(&server.url())).await;
    let spend_all = [charge("A:1", slow(), 10, Mode::Spend), charge("B:1", fixed(10), 4, Mode::Spend)];
    assert!(decide(&store, &spend_all).await.unwrap().iter().all(|decision| decision.outcome == Outcome::Allowed));
    let before = (server.cli(&["GET", "weir:{0}:A:1"]), server.cli(&["GET", "weir:{0}:B:1"]));
    let idle: [&[Charge]; 7] = [
        &[charge("B:1", fixed(10), 1, Mode::Spend), charge("A:1", slow(), 10, Mode::Spend)],
        &[charge("B:1", fixed(10), 1, Mode::Refund), charge("A:1", slow(), 10, Mode::Spend)],
        &[charge("B:1", fixed(10), 0, Mode::Reset), charge("A:1", slow(), 11, Mode::Check)],
        &[charge("A:1", slow(), 0, Mode::Spend), charge("B:1", fixed(10), 3, Mode::Check)],
        &[charge("A:1", slow(), 10, Mode::SpendOnly)],
        &[charge("C:1", slow(), 3, Mode::Refund)],
        &[charge("C:1", slow(), 0, Mode::SpendOnly)],
    ];
    server.cli(&["CONFIG", "RESETSTAT"]);
    for charges in idle {
        decide(&store, charges).await.unwrap();
    }
    assert_eq!((server.calls("evalsha"), server.calls("eval")), (7, 0));
    assert_eq!((server.calls("set"), server.calls("del"), server.calls("get")), (0, 0, 11));
    let after = (server.cli(&["GET", "weir:{0}:A:1"]), server.cli(&["GET", "weir:{0}:B:1"]));
    assert_eq!((before, server.cli(&["DBSIZE"])), (after, "2".into()));
}

#[tokio::test]
async fn the_value_carries_its_expiry_and_a_full_bucket_is_no_key() {
    let server = RedisServer::plain();
    let store = connected(&options(&server.url())).await;
    let left = |key: &str| server.cli(&["PTTL", key]).parse::<i64>().unwrap();
    decide(&store, &[charge("A:1", slow(), 5, Mode::Spend), charge("B:1", fixed(10), 1, Mode::Spend)]).await.unwrap();
    let expiry = left("weir:{0}:A:1");
    assert!((5_000..=10_000).contains(&expiry), "{expiry}: as long again, in case the rules change");
    assert_eq!(left("weir:{0}:B:1"), -1, "a bucket that never refills stays");
    // One token per nanosecond: the bucket is full within a millisecond.
    let fast = Numbers::new(1, 1, 1).unwrap();
    decide(&store, &[charge("C:1", fast, 1, Mode::Spend)]).await.unwrap();
    assert_eq!((server.calls("set"), server.calls("expire") + server.calls("pexpire")), (3, 0));

    let given = RedisOptions { clock: Clock::set(Micros::from_millis(1)), ..options(&server.url()) };
    let given = connected(&given).await;
    decide(&given, &[charge("D:1", slow(), 1, Mode::Spend), charge("E:1", fixed(2), 1, Mode::Spend)]).await.unwrap();
    for key in ["weir:{0}:D:1", "weir:{0}:E:1"] {
        assert!((500_000..=600_000).contains(&left(key)), "{key}: {}", left(key));
    }

    let full = [charge("A:1", slow(), 9, Mode::Refund), charge("B:1", fixed(10), 0, Mode::Reset)];
    decide(&store, &full).await.unwrap();
    assert_eq!(server.cli(&["EXISTS", "weir:{0}:A:1", "weir:{0}:B:1"]), "0");
}

/// The server's clock in microseconds since the Unix epoch.
pub(super) fn server_time(server: &RedisServer) -> u64 {
    let time = server.cli(&["TIME"]);
    let (seconds, micros) = time.split_once('\n').unwrap();
    seconds.parse::<u64>().unwrap() * 1_000_000 + micros.trim().parse::<u64>().unwrap()
}

#[tokio::test]
async fn a_bucket_of_windows_lives_until_it_is_full() {
    const HOUR: u64 = 3_600_000_000_000;
    let server = RedisServer::plain();
    let store = connected(&options(&server.url())).await;
    let month = Calendar::find(Unit::Month(1), "UTC").unwrap();
    let windows = |burst, aligned| Numbers::fixed_window(burst, 10, 10_000 * HOUR, aligned).unwrap();
    let charges = [
        charge("First:1", windows(10, Aligned::First), 1, Mode::Spend),
        charge("Three:1", windows(30, Aligned::First), 21, Mode::Spend),
        charge("Clock:1", windows(10, Aligned::Clock), 1, Mode::Spend),
        charge("Month:1", Numbers::calendar_window(10, 10, month.clone()).unwrap(), 1, Mode::Spend),
        charge("Given:1", windows(10, Aligned::Clock), 1, Mode::SpendOnly),
    ];
    let now = Micros(server_time(&server));
    let decided = store.decide(&Batch { charges: &charges, effective_from: Micros(0), now }).await.unwrap();
    let period = 10_000 * HOUR / 1_000;
    let ends = [period, 3 * period, period - now.0 % period, month.start(month.number(now) + 1).0 - now.0];
    for ((charge, decision), end) in charges.iter().zip(decided.iter()).zip(ends) {
        let key = format!("weir:{{0}}:{}", charge.bucket.key);
        let left: u64 = server.cli(&["PTTL", &key]).parse().unwrap();
        // In milliseconds, of the state after this decision and of one made another moment earlier; plus a minute for
        // changed rules.
        let end_in_ms = end / 1_000 + 60_000;
        assert!((end_in_ms - 2_000..=end_in_ms + 1).contains(&left), "{key}: {left} of {end} us");
        assert_eq!((decision.outcome, decision.remaining), (Outcome::Allowed, charge.numbers.burst() - charge.cost));
        let window = if key.contains("Three") { period } else { end };
        assert!(decision.reset_after.unwrap().0.abs_diff(window) < 2_000_000, "{key}: {decision:?}");
    }
    assert_eq!((server.calls("set"), server.calls("pexpire"), server.calls("pexpireat")), (5, 0, 0));
    let back = [charge("First:1", windows(10, Aligned::First), 5, Mode::Refund)];
    decide(&store, &back).await.unwrap();
    assert_eq!(server.cli(&["EXISTS", "weir:{0}:First:1"]), "0");
}

/// Asks with a clock that is off by these days for a monthly limit; returns what remains of 10.
async fn ask_with_clock_off_by(server: &RedisServer, store: &RedisStore, days: i64) -> Result<u64, StoreError> {
    const DAY: i64 = 86_400_000_000;
    let month = Calendar::find(Unit::Month(1), "Europe/Berlin").unwrap();
    let charges = [charge("M:1", Numbers::calendar_window(10, 10, month.clone()).unwrap(), 1, Mode::Spend)];
    let now = Micros(server_time(server).saturating_add_signed(days * DAY));
    let decided = store.decide(&Batch { charges: &charges, effective_from: Micros(0), now }).await?;
    let end = month.start(month.number(Micros(server_time(server))) + 1).0 - server_time(server);
    assert!(decided[0].reset_after.unwrap().0.abs_diff(end) < 2_000_000, "the server's month ends: {decided:?}");
    Ok(decided[0].remaining)
}

#[tokio::test]
async fn the_server_decides_which_month_it_is_and_one_that_is_far_off_is_an_error() {
    let server = RedisServer::plain();
    let store = connected(&options(&server.url())).await;
    for (remaining, days) in [(9, 0), (8, 28), (7, -28)] {
        assert_eq!(ask_with_clock_off_by(&server, &store, days).await, Ok(remaining), "{days} days");
    }
    for days in [70, -70] {
        let Err(StoreError::Failed(text)) = ask_with_clock_off_by(&server, &store, days).await else {
            panic!("{days} days")
        };
        assert!(text.contains("the clock is not within the windows of month/1/Europe/Berlin"), "{text}");
    }
    assert_eq!(ask_with_clock_off_by(&server, &store, 0).await, Ok(6), "errors have written nothing");
    assert!(store.health().connected);
}

#[tokio::test]
async fn a_lost_script_is_sent_again() {
    let server = RedisServer::plain();
    let store = connected(&options(&server.url())).await;
    let spend = [charge("A:1", fixed(3), 1, Mode::Spend)];
    server.cli(&["CONFIG", "RESETSTAT"]);
    for remaining in [2, 1, 0] {
        server.cli(&["SCRIPT", "FLUSH"]);
        assert_eq!(decide(&store, &spend).await.unwrap()[0].remaining, remaining);
    }
    assert_eq!((server.calls("eval"), server.calls("evalsha")), (3, 3));
}

/// Text that is not a valid bucket is treated in the same way. A check finds a full bucket, too.
#[tokio::test]
async fn a_key_of_another_type_is_a_full_bucket_and_is_counted() {
    let server = RedisServer::plain();
    let store = connected(&options(&server.url())).await;
    let kinds = [
        ("A:1", fixed(3)),
        ("C:1#sliding", Numbers::sliding_window(3, 60_000_000_000, false).unwrap()),
        ("D:1#log", Numbers::sliding_log(3, 60_000_000_000).unwrap()),
    ];
    let mut corrupt = 0;
    for (key, numbers) in &kinds {
        for mode in [Mode::Spend, Mode::Check] {
            server.cli(&["DEL", &format!("weir:{{0}}:{key}")]);
            server.cli(&["HSET", &format!("weir:{{0}}:{key}"), "mine", "1"]);
            corrupt += 1;
            let decision = decide(&store, &[charge(key, numbers, 1, mode)]).await.unwrap()[0];
            assert_eq!(decision.outcome, Outcome::Allowed, "{key} {mode:?}");
            assert_eq!(store.health().corrupt_values, corrupt, "{key} {mode:?}");
            let left = if mode == Mode::Spend { 2 } else { 3 };
            let look = decide(&store, &[charge(key, numbers, 0, Mode::Check)]).await.unwrap()[0];
            assert_eq!((look.remaining, store.health().corrupt_values), (left, corrupt), "{key} {mode:?}");
        }
    }
    assert!(store.health().connected);
}

#[tokio::test]
async fn text_that_is_no_bucket_is_a_full_one_and_is_counted() {
    let server = RedisServer::plain();
    let store = connected(&options(&server.url())).await;
    let foreign = [
        "hello",
        "",
        "1 2 3",
        "1 2 3 4 5",
        "-1 2 3 4",
        "1 2 0 4",
        "1 9007199254740992 3 4",
        "0x1 2 3 4",
        "1 2 3 first:0",
        "1 2 0 first:5",
        "1 2 3 month/1/UTC:5:",
        "1 2 3 clock:x",
        "1 2 3 :5",
        "1 2 3 elevated:1:1:1:1:1:1",
        "1 2 3 4 5 6",
        "1 2 0 4 5 6 7",
        "1 2 3 first:5 5 6 7",
    ];
    for (place, text) in foreign.into_iter().enumerate() {
        server.cli(&["SET", "weir:{0}:A:1", text]);
        let decision = decide(&store, &[charge("A:1", fixed(3), 1, Mode::Spend)]).await.unwrap()[0];
        assert_eq!((decision.outcome, decision.remaining), (Outcome::Allowed, 2), "{text}");
        assert_eq!(store.health().corrupt_values, place as u64 + 1, "{text}");
        assert!(server.cli(&["GET", "weir:{0}:A:1"]).ends_with(" 1 1 0"));
    }
}

#[tokio::test]
async fn sixty_four_at_once_from_two_workers_spend_exactly_the_burst() {
    let server = RedisServer::plain();
    let stores = [connected(&options(&server.url())).await, connected(&options(&server.url())).await];
    let allowed = Arc::new(AtomicUsize::new(0));
    let mut tasks = JoinSet::new();
    for task in 0..64 {
        let (store, allowed) = (stores[task % 2].clone(), allowed.clone());
        tasks.spawn(async move {
            let spend = [charge("A:1", fixed(1_000), 1, Mode::Spend)];
            for _ in 0..20 {
                if !decide(&store, &spend).await.unwrap()[0].is_denied() {
                    allowed.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
    }
    while let Some(task) = tasks.join_next().await {
        task.unwrap();
    }
    assert_eq!(allowed.load(Ordering::Relaxed), 1_000);
}

#[tokio::test]
async fn one_bucket_twice_in_a_request_is_a_mistake() {
    let server = RedisServer::plain();
    let store = connected(&options(&server.url())).await;
    let twice = [charge("A:1", fixed(3), 1, Mode::Spend), charge("A:1", fixed(3), 1, Mode::Check)];
    assert_eq!(decide(&store, &twice).await, Err(StoreError::Duplicate));
}

/// Runs a file of `lua/` by hand with the arguments after its name.
pub(super) fn eval(server: &RedisServer, file: &str, arguments: &str) -> String {
    eval_words(server, file, &arguments.split(' ').collect::<Vec<_>>())
}

/// A file of `lua/` and its includes, assembled once.
fn assembled(file: &str) -> Vec<u8> {
    static ASSEMBLED: Mutex<BTreeMap<String, Vec<u8>>> = Mutex::new(BTreeMap::new());
    let assemble = || {
        let assemble = format!("{}/lua/assemble", env!("CARGO_MANIFEST_DIR"));
        let assembled = Command::new(assemble).arg(file).output().unwrap();
        assert!(assembled.status.success(), "{assembled:?}");
        assembled.stdout
    };
    ASSEMBLED.lock().unwrap().entry(file.to_owned()).or_insert_with(assemble).clone()
}

fn eval_words(server: &RedisServer, file: &str, arguments: &[&str]) -> String {
    let mut script = NamedTempFile::new().unwrap();
    script.write_all(&assembled(file)).unwrap();
    let script = script.path().to_str().unwrap();
    server.cli(&[&["--eval", script], arguments].concat()).replace('\n', " ")
}

#[test]
fn the_script_of_gcra_runs_by_hand() {
    let server = RedisServer::plain();
    let eval = |arguments: &str| eval(&server, "gcra.lua", arguments);
    // A microsecond after 1 s, 1 of 2 tokens remains; the bucket is full a second after the spend.
    assert_eq!(eval("k , 1000001 0 2 1000000 1 1 spend"), "0 0 1 0 1000000");
    assert_eq!(eval("k , 1500001 0 2 1000000 1 2 check"), "0 1 1 500000 500000");
    assert_eq!(server.cli(&["GET", "k"]), "1000001 1000000 1000000 1");
    assert_eq!(eval("k , 1500001 0 2 1000000 1 9 spend_only"), "0 3 1 -1 500000");
    assert_eq!(eval("k , 1500001 0 2 1000000 1 9 spend_up_to"), "0 0 0 0 2000000");
    // Other numbers, a microsecond later: what is used stays used.
    assert_eq!(eval("k , 1500002 1500002 5 2000000 1 0 check"), "0 0 3 0 3999998");
    // Numbers that did not change since: the bucket is full when it is so by the last ones.
    assert_eq!(eval("k , 1500002 0 5 2000000 1 4 check"), "0 1 3 1999999 1999999");
    assert_eq!(eval("k , 1500001 0 2 1000000 1 1 refund"), "0 0 1 0 1000000");
    assert_eq!(eval("k , 1500001 0 2 1000000 1 0 reset"), "0 0 2 0 0");
    assert_eq!(server.cli(&["EXISTS", "k"]), "0");
    assert!(eval("k , 0").starts_with("ERR usage: KEY , NOW EFFECTIVE_FROM"));
    assert!(eval("k , 0 0 2 1 1 1 take").starts_with("ERR unknown mode take"));
    server.cli(&["LPUSH", "l", "mine"]);
    assert_eq!(eval("l , 0 0 1 1 1 1 spend"), eval("n , 0 0 1 1 1 1 spend").replacen('0', "1", 1));
    // By the server's clock.
    assert_eq!(eval("t ,  0 2 1000000 1 1 spend"), "0 0 1 0 1000000");
    assert!((1..=2_000).contains(&server.cli(&["PTTL", "t"]).parse::<u64>().unwrap()));
}

#[test]
fn a_malformed_charge_fails_alone() {
    let server = RedisServer::plain();
    for wrong in ["2 5 nonsense:1 1 spend", "2 0 1 1 spend", "2 1 1 1 take"] {
        let words = ["a", "b", "a", ",", "1", "0", "2 1 1 1 spend", wrong, "2 1 1 1 spend"];
        let reply = eval_words(&server, "decide.lua", &words);
        assert!(reply.starts_with("0 0 1 0 1 ERR ") && reply.ends_with(" 0 0 1 2"), "{wrong}: {reply}");
        assert_eq!(server.cli(&["KEYS", "*"]), "a");
        server.cli(&["FLUSHALL"]);
    }
}

#[test]
fn the_script_of_elevated_numbers_runs_by_hand() {
    // 2 per second, or 10 per second with a burst of 20 for 5 seconds, twice a month; a minute before the end of a UTC
    // month.
    const START: u64 = 1_711_929_540_000_000;
    const WORD: &str = "elevated:1:20:100000:1:5000000:2";
    let server = RedisServer::plain();
    let at = |millis: u64, cost: u64, mode: &str| {
        let now = START + millis * 1_000;
        eval(&server, "elevated.lua", &format!("k , {now} 0 2 500000 {WORD} {cost} {mode}"))
    };
    assert_eq!(at(0, 2, "spend"), "0 0 0 0 1000000 0 elevated 0 0 -1");
    assert_eq!(at(0, 19, "spend"), "0 1 0 500000 1000000 0 elevated 0 0 -1");
    assert_eq!(at(0, 21, "spend"), "0 1 0 -1 1000000 0 elevated 0 0 -1");
    assert_eq!(at(0, 3, "check"), "0 0 15 0 500000 0 elevated 1 1 1");
    assert_eq!(server.cli(&["GET", "k"]), format!("{START} 1000000 500000 1"));
    assert_eq!(at(0, 3, "spend"), "0 0 15 0 500000 0 elevated 1 1 1");
    let until = START + 5_000_000;
    assert_eq!(server.cli(&["GET", "k"]), format!("{START} 500000 100000 1 {until} 1 {}", START + 60_000_000));
    assert_eq!(at(4_000, 20, "spend"), "0 0 0 1000000 2000000 0 elevated 0 1 -1", "they end, and switch on again");
    assert_eq!(at(4_500, 9, "spend_up_to"), "0 0 0 0 2000000 0 elevated 0 1 -1");
    assert_eq!(at(4_500, 1, "refund"), "0 0 1 0 1900000 0 elevated 0 1 -1");
    // At the end 6 of 20 remain, of which the base burst holds 2.
    assert_eq!(at(5_000, 2, "spend"), "0 0 0 0 1000000 0 elevated 0 0 -1");
    assert_eq!(at(5_000, 1, "spend"), "0 0 17 0 300000 0 elevated 1 1 0");
    assert_eq!(at(5_000, 0, "reset"), "0 0 20 0 0 0 elevated 0 1 -1");
    assert_eq!(at(10_000, 3, "spend"), "0 1 2 50000000 0 0 elevated 0 0 -1", "until the month is over");
    assert_eq!(at(60_000, 3, "spend"), "0 0 17 0 300000 0 elevated 1 1 1");
    assert_eq!(at(80_000, 0, "reset"), "0 0 2 0 0 0 elevated 0 0 -1");
    assert_eq!(server.cli(&["EXISTS", "k"]), "1", "the month's count stays");
    // Without elevated numbers the usage stays and the rest is forgotten.
    assert_eq!(at(80_000, 5, "spend"), "0 0 15 0 500000 0 elevated 1 1 0");
    let now = START + 80_000_000;
    let plain = |arguments: &str| eval(&server, "gcra.lua", &format!("k , {now} 0 10 500000 1 {arguments}"));
    assert_eq!(plain("1 check"), "0 0 4 0 3000000");
    assert_eq!(plain("1 spend"), "0 0 4 0 3000000");
    assert_eq!(server.cli(&["GET", "k"]), format!("{now} 3000000 500000 1"));
    assert_eq!(at(80_000, 2, "spend"), "0 0 12 0 800000 0 elevated 1 1 1", "6 of another limit's 10 stay used");
    assert!(eval(&server, "elevated.lua", "k , 0 0 2 1 1 1 spend").starts_with("ERR usage: KEY [QUOTA] , NOW"));
    assert!(at(0, 1, "take").starts_with("ERR unknown mode take"));
    server.cli(&["LPUSH", "l", "mine"]);
    let spend = |key| eval(&server, "elevated.lua", &format!("{key} , 0 0 2 1 {WORD} 1 spend"));
    assert_eq!(spend("l"), spend("n").replacen('0', "1", 1));
}

#[test]
fn the_script_of_gateways_runs_by_hand() {
    let server = RedisServer::plain();
    let eval = |arguments: &str| eval(&server, "decide.lua", arguments);
    assert_eq!(eval("k j , 1000000 0 2 1000000 1 1 spend 5 5 sliding_log:500 2 spend"), "0 0 1 0 1000000 0 3 0 500");
    assert_eq!(eval("k j , 1000000 0 2 1000000 1 1 spend 5 5 sliding_log:500 9 spend"), "0 2 1 0 1000000 1 3 -1 500");
    for wrong in ["k j , 0 0 2 1 1 1 spend", "k , 0 0 2 2 none:5 1 spend", "k , 0"] {
        assert!(eval(wrong).starts_with("ERR usage: KEY [KEY ...] , NOW EFFECTIVE_FROM"), "{wrong}");
    }
}

/// 10 per second, or 100 with a burst of 200 for 15 minutes, 5 times a month.
fn elevated(mut charge: Charge) -> Charge {
    let numbers = Numbers::new(200, 100, 1_000_000_000).unwrap();
    let elevated = Elevated { numbers, span: 900_000_000, activations_per_month: 5, quota: None };
    charge.input = Some(Box::new(Input::Elevated(Arc::new(elevated))));
    charge
}

#[tokio::test]
async fn elevated_numbers_are_kept_while_they_are_on_and_for_the_month() {
    let server = RedisServer::plain();
    let store = connected(&options(&server.url())).await;
    let numbers = Numbers::new(10, 10, 1_000_000_000).unwrap();
    let ask = |cost, mode| elevated(charge("A:1", &numbers, cost, mode));
    let left = || server.cli(&["PTTL", "weir:{0}:A:1"]).parse::<u64>().unwrap();
    let none = decide(&store, &[ask(10, Mode::Spend)]).await.unwrap();
    assert_eq!((none[0].limit, none.detail(0).unwrap().elevation().unwrap().active), (10, false));
    assert!(left() <= 2_000);
    // Neither a check nor a denial writes.
    for charges in [vec![ask(50, Mode::Check)], vec![ask(50, Mode::Spend), charge("B:1", fixed(1), 2, Mode::Spend)]] {
        decide(&store, &charges).await.unwrap();
    }
    assert!((server.calls("set"), server.cli(&["GET", "weir:{0}:A:1"]).split(' ').count()) == (1, 4));
    let switched = decide(&store, &[ask(150, Mode::Spend)]).await.unwrap();
    let elevation = switched.detail(0).unwrap().elevation().unwrap();
    assert_eq!((switched[0].limit, elevation.triggered, elevation.activations_left), (200, true, Some(4)));
    let month = Calendar::find(Unit::Month(1), "UTC").unwrap();
    let now = Micros(server_time(&server));
    let end = month.start(month.number(now) + 1).0 - now.0;
    let lives = end.max(900_000_000) / 1_000 + 60_000;
    assert!((lives - 2_000..=lives + 2_000).contains(&left()), "{} of {lives}", left());
    decide(&store, &[ask(0, Mode::Reset)]).await.unwrap();
    assert_eq!(server.cli(&["EXISTS", "weir:{0}:A:1"]), "1");
    let denied = decide(&store, &[ask(201, Mode::Spend)]).await.unwrap();
    assert_eq!((denied[0].limit, denied[0].remaining, denied[0].retry_after), (200, 200, None));
    // The limit has no elevated numbers anymore: the usage stays, under the plain key.
    decide(&store, &[ask(7, Mode::Spend)]).await.unwrap();
    let plain = decide(&store, &[charge("A:1", &numbers, 1, Mode::Spend)]).await.unwrap();
    assert!(plain.details.is_empty() && plain[0].remaining >= 2 && left() <= 2_000, "{plain:?}");
    assert_eq!(store.health().corrupt_values, 0);
}

#[test]
fn the_script_of_logs_runs_by_hand() {
    let server = RedisServer::plain();
    let eval = |arguments: &str| eval(&server, "sliding_log.lua", arguments);
    assert_eq!(eval("k , 1000 3 500 2 spend"), "0 0 1 500 500");
    assert_eq!(eval("k , 1000 3 500 1 spend"), "0 0 0 500 500");
    assert_eq!(server.cli(&["LRANGE", "k", "0", "-1"]), "1000\n1000\n1000");
    assert_eq!(eval("k , 1499 3 500 1 spend"), "0 1 0 1 1");
    assert_eq!(eval("k , 1499 3 500 4 spend"), "0 1 0 -1 1");
    assert_eq!(eval("k , 1499 3 500 2 refund"), "0 0 2 0 1");
    assert_eq!(eval("k , 1499 3 500 1 spend"), "0 0 1 0 500");
    assert_eq!(eval("k , 1500 3 500 0 check"), "0 0 2 0 499");
    assert_eq!(eval("k , 1500 3 500 9 spend_up_to"), "0 0 0 0 500");
    assert_eq!(server.cli(&["LLEN", "k"]), "3", "the one that counts no longer has gone");
    assert_eq!(eval("k , 1500 3 500 0 reset"), "0 0 3 0 0");
    assert_eq!(server.cli(&["EXISTS", "k"]), "0");
    assert!(eval("k , 0 3 0 1 spend").starts_with("ERR usage: KEY , NOW COUNT PERIOD COST MODE"));
    server.cli(&["SET", "s", "mine"]);
    assert_eq!(eval("s , 0 1 1 1 spend"), eval("n , 0 1 1 1 spend").replacen('0', "1", 1));
    assert_eq!(eval("t ,  2 60000000 1 spend"), "0 0 1 0 60000000");
    assert!((119_000..=120_000).contains(&server.cli(&["PTTL", "t"]).parse::<u64>().unwrap()));
    assert_eq!(eval("t ,  9000 60000000 2500 spend"), "0 0 6499 0 60000000");
    assert_eq!(server.cli(&["LLEN", "t"]), "2501");
}

#[test]
fn the_script_of_requests_in_flight_runs_by_hand() {
    let server = RedisServer::plain();
    let eval = |arguments: &str| eval(&server, "concurrency.lua", arguments);
    assert_eq!(eval("k , 1000 2 500 a 1 spend"), "0 0 1 0 -1");
    assert_eq!(eval("k , 1100 2 500 b 1 spend"), "0 0 0 1000000 -1");
    assert_eq!(eval("k , 1200 2 500 c 1 spend"), "0 1 0 1000000 -1");
    assert_eq!(eval("k , 1200 2 500 c 1 spend_only"), "0 3 0 1000000 -1");
    assert_eq!(eval("k , 1200 2 500 c 1 spend_up_to"), "0 2 0 0 -1");
    assert_eq!(eval("k , 1200 2 500  1 spend"), "0 1 0 1000000 -1");
    assert_eq!(server.cli(&["ZRANGE", "k", "0", "-1", "WITHSCORES"]), "a\n1500\nb\n1600");
    // The first is renewed, the second ends.
    assert_eq!(eval("k , 1499 2 500 a 1 spend"), "0 0 0 1000000 -1");
    assert_eq!(eval("k , 1599 2 500  0 check"), "0 0 0 0 -1");
    assert_eq!(eval("k , 1600 2 500 c 1 check"), "0 0 0 1000000 -1");
    assert_eq!(eval("k , 1600 2 500 b 1 refund"), "0 2 1 0 -1");
    assert_eq!(eval("k , 1600 2 500 c 1 spend"), "0 0 0 1000000 -1");
    assert_eq!(server.cli(&["ZRANGE", "k", "0", "-1"]), "a\nc", "what has ended has gone");
    assert_eq!(eval("k , 1600 2 500 a 1 refund"), "0 0 1 0 -1");
    assert_eq!(eval("k , 1600 2 500 a 1 refund"), "0 2 1 0 -1");
    assert_eq!(eval("k , 1600 2 500 c 1 refund"), "0 0 2 0 0");
    assert_eq!(server.cli(&["EXISTS", "k"]), "0");
    assert_eq!(eval("k , 1600 2 500 c 1 spend"), "0 0 1 0 -1");
    assert_eq!(eval("k , 1600 2 500 c 0 reset"), "0 0 2 0 0");
    assert_eq!(server.cli(&["EXISTS", "k"]), "0");
    for wrong in ["k , 0 2 0 a 1 spend", "k , 0 2 500 a:b 1 spend", "k , 0 2 500 a 1", "k , 0 two 500 a 1 spend"] {
        assert!(eval(wrong).starts_with("ERR usage: KEY , NOW CAPACITY LEASE NAME COST MODE"), "{wrong}");
    }
    server.cli(&["LPUSH", "l", "mine"]);
    assert_eq!(eval("l , 0 1 1 a 1 spend"), eval("n , 0 1 1 a 1 spend").replacen('0', "1", 1));
    // By the server's clock; the key lives as long as its last lease.
    assert_eq!(eval("t ,  2 60000000 a 1 spend"), "0 0 1 0 -1");
    assert_eq!(eval("t ,  2 5000000 b 1 spend"), "0 0 0 1000000 -1");
    assert!((59_000..=60_000).contains(&server.cli(&["PTTL", "t"]).parse::<u64>().unwrap()));
}

#[test]
fn the_script_of_queues_runs_by_hand() {
    let server = RedisServer::plain();
    let eval = |arguments: &str| eval(&server, "queue.lua", arguments);
    for (kind, key, first, third) in [("stream", "s", "1-0", "1-2"), ("list", "l", "1000-0", "1000-2")] {
        let at = |now: u64, words: &str| eval(&format!("{key} , {now} 2 {kind} 500000 {words}"));
        assert_eq!(at(1_000, "user=a%2Cb,path=/x 1 spend"), format!("0 0 1 0 500000 0 entry {first}"));
        assert_eq!(at(1_000, "user=c 0 spend"), "0 0 1 0 500000");
        assert_eq!(at(1_000, "user=c 1 check"), "0 0 0 500000 500000");
        assert!(at(1_000, "user=c 1 spend_up_to").starts_with("0 0 0 0 500000 "));
        assert_eq!(at(1_000, "user=d 1 spend_up_to"), "0 2 0 0 500000");
        assert_eq!(at(101_000, "user=d 1 spend"), "0 1 0 400000 400000");
        assert_eq!(at(101_000, "user=d 1 spend_only"), "0 3 0 400000 400000");
        assert_eq!(at(101_000, "x 0 reset"), "0 2 0 0 400000");
        assert_eq!(at(101_000, &format!("{first} 1 refund")), "0 0 1 0 400000");
        assert_eq!(at(101_000, &format!("{first} 1 refund")), "0 2 1 0 400000");
        assert_eq!(at(1_000, "user=e 1 spend").split(' ').next_back(), Some(third));
        // At exactly that age they are stale, and leave when another is added.
        assert_eq!(at(500_999, "user=f 1 spend"), "0 1 0 1 1");
        assert_eq!(at(501_000, "user=f 0 check"), "0 0 2 0 0");
        assert!(at(501_000, "user=f 1 spend").starts_with("0 0 1 0 500000 "));
        let length = if kind == "stream" { "XLEN" } else { "LLEN" };
        assert_eq!(server.cli(&[length, key]), "1");
        // A clock that steps back changes no age.
        assert_eq!(at(400_000, "user=g 1 check"), "0 0 0 500000 500000");
        assert!((500_000..=600_000).contains(&server.cli(&["PTTL", key]).parse::<u64>().unwrap()));
    }
    assert!(eval("k , 0 2 set 0 a=b 1 spend").starts_with("ERR usage: KEY , NOW CAPACITY KIND MAX_AGE FIELDS"));
    assert!(eval("l , 0 2 stream 0 a=b 1 spend").contains("WRONGTYPE"));
    // By the server's clock: forever without an age, and with consumers as long as they exist.
    assert!(eval("t ,  2 stream 0 a=b 1 spend").starts_with("0 0 1 0 -1 "));
    assert_eq!(server.cli(&["PTTL", "t"]), "-1");
    assert!(eval("t ,  2 stream 60000000 a=b 1 spend").starts_with("0 0 0 "));
    assert!((59_000..=60_000).contains(&server.cli(&["PTTL", "t"]).parse::<u64>().unwrap()));
    server.cli(&["XGROUP", "CREATE", "t", "workers", "0"]);
    assert!(eval("t ,  3 stream 60000000 a=b 1 spend").starts_with("0 0 0 "));
    assert_eq!(server.cli(&["PTTL", "t"]), "-1");
}

#[test]
fn a_queue_with_more_stale_entries_than_are_counted_at_once_admits_all_the_same() {
    let server = RedisServer::plain();
    let hash = server.cli(&["SCRIPT", "LOAD", &String::from_utf8(assembled("queue.lua")).unwrap()]);
    let mut connection = TcpStream::connect(server.address()).unwrap();
    for (kind, length) in [("stream", "XLEN"), ("list", "LLEN")] {
        let spend = |now| format!("EVALSHA {hash} 1 {kind} {} 250 {kind} 1000000 a=b 1 spend\r\n", 1_000 * (now + 1));
        connection.write_all((0..250).map(spend).collect::<String>().as_bytes()).unwrap();
        becomes("all entries are there", 250, || server.cli(&[length, kind]).parse().unwrap());
        // A hundred are counted beside the ones to remove, be it one or, under a lower capacity, 241.
        let at = |capacity: u64, mode: &str| {
            eval(&server, "queue.lua", &format!("{kind} , 2000000 {capacity} {kind} 1000000 a=b 1 {mode}"))
        };
        assert_eq!(at(250, "check"), "0 0 100 0 1000000", "{kind}");
        assert_eq!(at(10, "check"), "0 0 9 0 1000000", "{kind}");
        assert!(at(10, "spend").starts_with("0 0 9 0 1000000 "), "{kind}");
        assert_eq!(at(10, "check"), "0 0 8 0 1000000", "{kind}: the stale ones have gone");
    }
}

#[test]
fn the_script_of_windows_runs_by_hand() {
    let server = RedisServer::plain();
    let eval = |arguments: &str| eval(&server, "fixed_window.lua", arguments);
    assert_eq!(eval("k , 70000000 0 3 3 clock:60000000 2 spend"), "0 0 1 50000000 50000000");
    assert_eq!(server.cli(&["GET", "k"]), "60000000 2 3 clock:60000000");
    // Denied, and the other bucket is untouched.
    let both = "k j , 71000000 0 3 3 clock:60000000 2 spend 9 3 first:60000000 9 spend";
    assert_eq!(eval(both), "0 1 1 49000000 49000000 2 9 0 0");
    assert_eq!(server.cli(&["EXISTS", "j"]), "0");
    assert_eq!(eval("j , 71000000 0 9 3 first:60000000 7 spend"), "0 0 2 120000000 60000000");
    assert_eq!(eval("j , 131000000 0 9 3 first:60000000 0 check"), "0 0 5 0 60000000");
    assert_eq!(eval("j , 131000000 0 9 3 first:60000000 9 refund"), "0 0 9 0 0");
    assert_eq!(server.cli(&["EXISTS", "j"]), "0");
    // Windows 7, 8, 9 and 10 of a calendar.
    assert_eq!(eval("m , 250 0 5 5 month/1/UTC:7:100,200,350,400 4 spend"), "0 0 1 100 100");
    assert_eq!(server.cli(&["GET", "m"]), "200 4 5 month/1/UTC:8:150");
    assert_eq!(eval("m , 360 0 5 5 month/1/UTC:8:200,350,400,500 4 spend"), "0 0 1 40 40");
    assert!(eval("m , 360 0 5 5 month/1/UTC:5:10,100,200,350 1 spend").starts_with("0 ERR the clock is not within"));
    // Other numbers: usage stays in a window that continues.
    assert_eq!(eval("k , 79000000 75000000 9 9 clock:40000000 0 check"), "0 0 7 0 1000000");
    assert_eq!(eval("k , 80000000 80000000 9 9 clock:3600000000 1 check"), "0 0 6 0 3520000000");
    assert!(eval("k , 0 0 1 1 clock:5 1").starts_with("ERR usage: KEY [KEY ...] , NOW EFFECTIVE_FROM"));
    assert!(eval("k , 0 0 1 1 clock:0 1 spend").starts_with("ERR usage: KEY [KEY ...] , NOW EFFECTIVE_FROM"));
    assert!(eval("k , 0 0 1 1 clock:5 1 take").starts_with("ERR unknown mode take"));
    // By the server's clock.
    assert!(eval("t ,  0 2 2 first:60000000 1 spend").starts_with("0 0 1 0 60000000"));
    assert!((119_000..=120_000).contains(&server.cli(&["PTTL", "t"]).parse::<u64>().unwrap()));
}

#[test]
fn the_script_of_sliding_windows_runs_by_hand() {
    let server = RedisServer::plain();
    let eval = |arguments: &str| eval(&server, "sliding_window.lua", arguments);
    assert_eq!(eval("k , 1000 0 10 500:1 10 spend"), "0 0 0 1000 1000");
    assert_eq!(eval("k , 1499 0 10 500:1 1 spend"), "0 1 0 51 501");
    assert_eq!(server.cli(&["GET", "k"]), "1000 0 10 500 1");
    assert_eq!(eval("k , 1549 0 10 500:1 1 spend"), "0 1 0 1 451");
    assert_eq!(eval("k , 1550 0 10 500:1 1 spend"), "0 0 0 50 950");
    assert_eq!(server.cli(&["GET", "k"]), "1550 10 1 500 1");
    assert_eq!(eval("k , 1550 0 10 500:1 11 check"), "0 1 0 -1 950");
    assert_eq!(eval("k , 1750 0 10 500:1 9 spend_up_to"), "0 0 0 0 750");
    assert_eq!(eval("k , 1750 0 10 500:1 6 refund"), "0 0 5 0 250");
    assert_eq!(eval("k , 1750 0 10 500:1 0 reset"), "0 0 10 0 0");
    assert_eq!(server.cli(&["EXISTS", "k"]), "0");
    // Denials count up to twice the count; then in a longer window, as of instant 1250.
    assert_eq!(eval("d , 1000 0 2 500:1:count_denied 2 spend"), "0 0 0 1000 1000");
    assert_eq!(eval("d , 1000 0 2 500:1:count_denied 1 spend"), "0 1 0 834 1000");
    assert_eq!(eval("d , 1000 0 2 500:1:count_denied 9 spend"), "0 1 0 -1 1000");
    assert_eq!(server.cli(&["GET", "d"]), "1000 0 4 500 1");
    assert_eq!(eval("d , 1600 1250 10 1000:1 0 check"), "0 0 6 0 1400");
    server.cli(&["SET", "x", "hello"]);
    assert_eq!(eval("x , 5 0 2 10:1 1 spend"), "1 0 1 0 15");
    for window in ["0:1", "5:6", "5:0", "5", "5:1:x", "4503599627370496:1"] {
        assert!(
            eval(&format!("k , 0 0 1 {window} 1 spend")).starts_with("ERR usage: KEY , NOW EFFECTIVE_FROM"),
            "{window}"
        );
    }
    assert!(eval("k , 0 0 1 5:1 1 take").starts_with("ERR unknown mode take"));
    server.cli(&["LPUSH", "l", "mine"]);
    assert_eq!(eval("l , 0 0 1 5:1 1 spend"), eval("n , 0 0 1 5:1 1 spend").replacen('0', "1", 1));
    // By the server's clock.
    assert!(eval("t ,  0 2 60000000:1 1 spend").starts_with("0 0 1 0 "));
    assert!((119_000..=180_000).contains(&server.cli(&["PTTL", "t"]).parse::<u64>().unwrap()));
}

/// Makes an algorithm's numbers from a count and a period.
type Make<'a> = &'a dyn Fn(u64, u64) -> Result<Numbers, NumbersError>;

/// Under slower rules the former usage counts, though it has come back under these.
#[tokio::test]
async fn a_key_outlives_its_bucket_in_case_the_rules_change() {
    const SECOND: u64 = 1_000_000_000;
    let server = RedisServer::plain();
    let store = connected(&options(&server.url())).await;
    let windows = |aligned| move |count, period| Numbers::fixed_window(count, count, period, aligned);
    let algorithms: [(&str, u64, Make<'_>); 5] = [
        ("Even:1", 10, &|count, period| Numbers::new(count, count, period)),
        ("First:1", 10, &windows(Aligned::First)),
        // Long enough that no window ends meanwhile.
        ("Clock:1", 100_000, &windows(Aligned::Clock)),
        ("Log:1#log", 10, &Numbers::sliding_log),
        ("Sliding:1#sliding", 10, &|count, period| Numbers::sliding_window(count, period, false)),
    ];
    for (key, seconds, numbers) in algorithms {
        let in_redis = format!("weir:{{0}}:{key}");
        let left = || server.cli(&["PTTL", &in_redis]).parse::<u64>().unwrap();
        let fast = charge(key, numbers(10, seconds * SECOND).unwrap(), 10, Mode::Spend);
        let first = decide(&store, std::slice::from_ref(&fast)).await.unwrap()[0];
        let full = first.reset_after.unwrap().0 / 1_000;
        let kept = full + full.min(60_000);
        assert!((kept - 2_000..=kept + 1).contains(&left()), "{key}: {} of {kept} ms", left());
        // A check leaves the value and extends the key.
        let value = || {
            let list = ["LRANGE", &in_redis, "0", "-1"];
            if key.contains("#log") { server.cli(&list) } else { server.cli(&["GET", &in_redis]) }
        };
        let before = value();
        let slow = numbers(5, 100 * seconds * SECOND).unwrap();
        let effective_from = Micros(server_time(&server));
        for mode in [Mode::Check, Mode::Spend, Mode::SpendOnly] {
            let charges = [charge(key, &slow, 1, mode)];
            let given = store.decide(&Batch { charges: &charges, effective_from, now: Micros(0) }).await.unwrap()[0];
            assert_eq!(given.remaining, 0, "{key} {given:?}");
            let needed = given.retry_after.unwrap().0 / 1_000;
            assert!(needed >= full && left() + 1_000 > needed, "{key}: {} of {needed} ms", left());
        }
        assert_eq!(value(), before, "{key}");
    }
    // For logs, each spend sets the expiry.
    assert_eq!(server.calls("pexpire"), 6);
}

/// A denial writes only where denials count.
#[tokio::test]
async fn a_denial_is_written_where_it_counts_and_only_there() {
    let server = RedisServer::plain();
    let store = connected(&options(&server.url())).await;
    // Long enough that no window ends meanwhile.
    let century = 36_500 * 86_400_000_000_000;
    let window = |count_denied| Numbers::sliding_window(2, century, count_denied).unwrap();
    let (plain, counting) = (window(false), window(true));
    let spend = |key, numbers: &Numbers, cost| charge(key, numbers, cost, Mode::Spend);
    decide(&store, &[spend("P:1#sliding", &plain, 2), spend("C:1#sliding", &counting, 2)]).await.unwrap();
    server.cli(&["CONFIG", "RESETSTAT"]);
    let used = |key: &str| server.cli(&["GET", key]).split(' ').nth(2).map(String::from);
    let denied = decide(&store, &[spend("P:1#sliding", &plain, 1)]).await.unwrap();
    assert_eq!((denied[0].outcome, server.calls("set")), (Outcome::Denied, 0));
    for (writes, charges) in [
        (1, vec![spend("C:1#sliding", &counting, 1)]),
        (2, vec![spend("P:1#sliding", &plain, 1), spend("N:1#sliding", &counting, 1)]),
        (3, vec![spend("C:1#sliding", &counting, 9), spend("N:2#sliding", &plain, 1)]),
        (3, vec![spend("C:1#sliding", &counting, 1)]),
        (3, vec![charge("N:1#sliding", &counting, 2, Mode::Check)]),
    ] {
        let decided = decide(&store, &charges).await.unwrap();
        assert!(decided.iter().any(|decision| decision.outcome == Outcome::Denied), "{decided:?}");
        assert_eq!(server.calls("set"), writes, "{charges:?}");
    }
    let counted = ["P:1", "C:1", "N:1", "N:2"].map(|id| used(&format!("weir:{{0}}:{id}#sliding")));
    assert_eq!(counted, [Some("2".into()), Some("4".into()), Some("1".into()), None]);
    assert_eq!((server.calls("del"), store.health().corrupt_values), (0, 0));

    server.cli(&["SET", "weir:{0}:N:2#sliding", "hello"]);
    let two = [spend("N:2#sliding", &plain, 1), spend("N:1#sliding", &counting, 1)];
    let remaining: Vec<u64> = decide(&store, &two).await.unwrap().iter().map(|decision| decision.remaining).collect();
    assert_eq!((remaining, store.health().corrupt_values), (vec![1, 0], 1));
}

#[tokio::test]
async fn no_time_is_beyond_the_year_2255() {
    let server = RedisServer::plain();
    let given = RedisOptions { clock: Clock::set(Micros(EXACT)), ..options(&server.url()) };
    let beyond = decide(&*connected(&given).await, &[charge("A:1", fixed(1), 1, Mode::Spend)]).await;
    assert_eq!(beyond, Err(StoreError::Failed("the clock is set beyond the year 2255".into())));
}
