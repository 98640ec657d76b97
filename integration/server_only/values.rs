//! `PlugLimit`'s two limiters, run by hand like `redis-cli --eval`, with a case's time.

use serde_json::Value;

use super::cases;
use crate::support::redis::RedisServer;

/// Runs a limiter of `lua/`: the verdict and the values, or an error.
fn take(redis: &RedisServer, file: &str, arguments: &[String]) -> Result<(String, Vec<String>), String> {
    let script = format!("{}/lua/{file}", env!("CARGO_MANIFEST_DIR"));
    let mut words = vec!["--eval", &script, "k", ","];
    words.extend(arguments.iter().map(String::as_str));
    let said = redis.cli(&words);
    if said.starts_with("ERR") {
        return Err(said);
    }
    let mut lines = said.lines().map(str::to_owned);
    Ok((lines.next().unwrap(), lines.collect()))
}

/// The server's clock in microseconds.
fn server_time(redis: &RedisServer) -> i64 {
    let time = redis.cli(&["TIME"]);
    let (seconds, micros) = time.split_once('\n').unwrap();
    seconds.parse::<i64>().unwrap() * 1_000_000 + micros.trim().parse::<i64>().unwrap()
}

/// Moves a bucket in time so that now is a case's `now` in milliseconds: its window started at `started`, and its last
/// write was at `written`.
fn set_time(redis: &RedisServer, now: i64, started: i64, written: i64, window: i64) {
    if redis.cli(&["EXISTS", "k"]) == "0" {
        return;
    }
    if now - started >= window {
        redis.cli(&["DEL", "k"]);
        return;
    }
    redis.cli(&["PEXPIRE", "k", &(window - (now - started)).to_string()]);
    let at = server_time(redis) - 1_000 * (now - written);
    redis.cli(&["HSET", "k", "at", &at.to_string()]);
}

/// A key exists until the millisecond in which it expires is over. In that one its window has ended, and nobody waits on.
#[test]
fn a_window_that_ends_now_no_longer_counts() {
    const ENDING: &str = "local real = redis
        local redis = setmetatable({
          call = function(command, ...) return command == 'PTTL' and 0 or real.call(command, ...) end,
        }, { __index = real })\n";
    let redis = RedisServer::plain();
    for (file, arguments) in
        [("pluglimit_fixed_window.lua", &["2", "60"][..]), ("pluglimit_token_bucket.lua", &["2", "60", "2"])]
    {
        let script = std::fs::read_to_string(format!("{}/lua/{file}", env!("CARGO_MANIFEST_DIR"))).unwrap();
        let take = |script: &str| {
            let words = [&["EVAL", script, "1", "k"], arguments].concat();
            redis.cli(&words).lines().next().map(str::to_owned)
        };
        redis.cli(&["FLUSHALL"]);
        let ended = format!("{ENDING}{script}");
        let said = [&script, &script, &script, &ended, &script, &script].map(|script| take(script));
        let said: Vec<&str> = said.iter().flatten().map(String::as_str).collect();
        assert_eq!(said, ["allow", "allow", "deny", "allow", "allow", "deny"], "{file}");
        assert!(redis.cli(&["PTTL", "k"]).parse::<u64>().unwrap() > 50_000, "{file}");
    }
}

fn check(redis: &RedisServer, case: &Value) {
    let limit = &case["limit"];
    let (file, numbers) = match case["algorithm"].as_str().unwrap() {
        "fixed_window" => ("pluglimit_fixed_window.lua", ["limit", "window_s"].as_slice()),
        _ => ("pluglimit_token_bucket.lua", ["limit", "window_s", "burst"].as_slice()),
    };
    let arguments: Vec<String> = numbers.iter().map(|name| limit[name].to_string()).collect();
    redis.cli(&["FLUSHALL"]);
    let window = limit["window_s"].as_i64().unwrap() * 1_000;
    let (mut started, mut written) = (0, 0);
    let has_seed = case["steps"][0]["op"] == "seed_state";
    for step in case["steps"].as_array().unwrap() {
        let (now, expect) = (step["at_ms"].as_i64().unwrap(), &step["expect"]);
        if step["op"] == "take" && !has_seed {
            set_time(redis, now, started, written, window);
        }
        let place = format!("{}: {step}", case["case"]);
        match step["op"].as_str().unwrap() {
            "seed_state" => {
                // 0.9 of 3 tokens remain, in parts: a token has a million for each second of the window.
                let token = 1_000_000 * limit["window_s"].as_i64().unwrap();
                // In the future, so that nothing comes back until the next step.
                let at = server_time(redis) + 10_000_000;
                let (parts, at) = ((token * 21 / 10).to_string(), at.to_string());
                redis.cli(&["HSET", "k", "used", "10", "parts", &parts, "at", &at]);
                redis.cli(&["PEXPIRE", "k", "60000"]);
                continue;
            }
            "repeat_take" => {
                let mut allowed = 0;
                for _ in 0..step["n"].as_u64().unwrap() {
                    set_time(redis, now, started, written, window);
                    if take(redis, file, &arguments).unwrap().0 == "allow" {
                        (allowed, written) = (allowed + 1, now);
                    }
                }
                assert_eq!(Some(allowed), expect["allowed_count"].as_u64(), "{place}");
                continue;
            }
            _ => {}
        }
        let is_new = redis.cli(&["EXISTS", "k"]) == "0";
        let answer = take(redis, file, &arguments);
        if expect["error"].is_string() {
            assert!(answer.unwrap_err().contains("usage: KEY , LIMIT WINDOW"), "{place}");
            assert_eq!(redis.cli(&["EXISTS", "k"]), "0", "{place}");
            continue;
        }
        let (verdict, values) = answer.unwrap();
        if verdict == "allow" {
            (started, written) = (if is_new { now } else { started }, now);
        }
        assert_eq!(verdict == "allow", expect["allowed"] == true, "{place}: {verdict} {values:?}");
        if let Some(expected) = expect["header_values"].as_array() {
            let expected: Vec<&str> = expected.iter().filter_map(Value::as_str).collect();
            assert_eq!(values, expected, "{place}");
        }
        if let Some(seconds) = expect["http_retry_after_s"].as_i64() {
            assert_eq!(values[3], seconds.to_string(), "{place}");
        }
    }
}

#[test]
fn every_case_of_plug_limits_limiters_holds() {
    let redis = RedisServer::plain();
    let mut played = 0;
    for case in cases(include_str!("../cases/pluglimit.jsonl")) {
        // Their off switch is `mode: off`, which other tests cover.
        if case["algorithm"] != "custom_script" && case["limit"].get("enabled").is_none() {
            check(&redis, &case);
            played += 1;
        }
    }
    assert_eq!(played, 10);
}

#[test]
fn the_limiters_of_plug_limit_have_not_its_bugs() {
    let redis = RedisServer::plain();
    let window = |limit: &str, seconds: &str| {
        take(&redis, "pluglimit_fixed_window.lua", &[limit.to_owned(), seconds.to_owned()])
    };
    let values = |answer: Result<(String, Vec<String>), String>| {
        answer.map(|(verdict, values)| format!("{verdict} {}", values.join(" ")))
    };
    assert_eq!(values(window("0", "60")), Ok("deny 0 60 0".into()), "a limit of 0 denies");
    assert_eq!(redis.cli(&["EXISTS", "k"]), "0", "a denial writes nothing");
    assert!(window("5", "0.5").is_err() && window("x", "60").is_err() && window("5", "").is_err());
    assert_eq!(values(window("2", "60")), Ok("allow 2 60 1".into()));
    redis.cli(&["PEXPIRE", "k", "300"]);
    assert_eq!(values(window("2", "60")), Ok("allow 2 1 0".into()), "the last half second is no 0");
    redis.cli(&["PEXPIRE", "k", "60000"]);
    assert_eq!(values(window("5", "60")), Ok("allow 5 60 2".into()), "another limit holds at once");
    redis.cli(&["SET", "k", "hello"]);
    assert!(window("5", "60").unwrap_err().contains("is no bucket of this script"));
}
