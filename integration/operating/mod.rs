//! Operators' work with buckets, by the admin API and `weir bucket`, in memory and in Redis, and its effect on clients.

mod api;
mod at_once;
mod bans;
mod blocks;
mod buckets;
mod candidates;
mod command;
mod conditions;
mod denied;
mod exemptions;
mod health;
mod impact;
mod listeners;
mod notices;
mod openapi;
mod override_feed;
mod overrides;
mod record;
mod recorded;
mod reset_all;
mod rights;
mod top;
mod unread;
mod warnings;

use serde_json::Value;

use crate::support::eventually;
use crate::support::redis::RedisServer;
use crate::support::weir::Weir;
use crate::support::wire::{Message, Wire};

/// Every algorithm and every kind of id.
const LIMITS: &str = "\
limits:
  Even: { match: { path: /even }, by: { header: x-id }, burst: 10, count: 1, period: 1h }
  Windows: { match: { path: /windows }, by: { header: x-id }, algorithm: fixed_window, count: 10, period: 10h }
  Log: { match: { path: /log }, by: { header: x-id }, algorithm: sliding_log, count: 10, period: 10h }
  Fixed: { match: { path: /fixed }, by: global, burst: 10 }
  Rates:
    match: { path: /rates }
    by: [{ header: x-id, as: integer }, { header: x-zone }]
    rates: [{ count: 10, period: 10h }, { count: 100, period: 100d }]
  Watched: { match: { path: /watched }, by: { header: x-id }, burst: 10, mode: shadow }
  Off: { match: { path: /off }, by: { header: x-id }, burst: 10, mode: off }
  Sliding: { match: { path: /sliding }, by: { header: x-id }, algorithm: sliding_window, count: 10, period: 10h }
  AtOnce: { match: { path: /at-once }, by: { header: x-id }, algorithm: concurrency, count: 10 }
  Wide: { match: { path: /wide }, by: { header: x-id }, burst: 1000000 }
overrides:
  Even:partner: { burst: 50, count: 1, period: 1h }
  Even:free: { unlimited: true }
  Even:shut: { deny: true }
";

const TOKEN: &str = "s3cret";

/// In memory and in a new Redis, with a long timeout for a busy machine.
fn each_store(test: impl Fn(&[&str], &str)) {
    test(&["--store", "memory"], "memory");
    let redis = RedisServer::plain();
    test(&["--store", &redis.url()], "redis");
}

/// A process with a check listener and a token.
fn serve(store: &[&str]) -> Weir {
    let weir = Weir::serve(LIMITS, &[&["--check", "127.0.0.1:0", "--admin-token", TOKEN], store].concat());
    weir.until_connected();
    weir
}

/// Sends a request to the admin listener.
fn ask_with(weir: &Weir, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Message {
    let mut request = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n", body.len());
    for (name, value) in headers {
        request.extend([*name, ": ", *value, "\r\n"]);
    }
    let mut wire = Wire::connect(weir.admin);
    wire.send(request + "\r\n" + body);
    wire.response()
}

/// Sends a request with the token; returns the status and the body.
fn ask(weir: &Weir, method: &str, path: &str, body: &str) -> (u16, Value) {
    let token = format!("Bearer {TOKEN}");
    let answer = ask_with(weir, method, path, &[("authorization", &token), ("user-agent", "a test")], body);
    (answer.status(), serde_json::from_str(answer.text()).unwrap())
}

/// Sends a request that must succeed once the operator's own connection to the store is there; returns what it says.
#[track_caller]
fn done(weir: &Weir, method: &str, path: &str, body: &str) -> Value {
    let (status, state) = eventually("the store is there", || match ask(weir, method, path, body) {
        (503, answer) => Err(answer),
        answer => Ok(answer),
    });
    assert_eq!(status, 200, "{method} {path} {body}: {state}");
    state
}

/// Spends with one request; returns whether it passed.
fn spend(weir: &Weir, path: &str, headers: &[(&str, &str)]) -> bool {
    weir.get(path, headers).status() == 200
}
