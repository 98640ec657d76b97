//! The check listener: gateways and applications that ask over HTTP.

mod applications;
mod contracts;
mod conventions;
mod delaying;
mod mistakes;
mod taking;

use serde_json::{Value, json};
use std::sync::Arc;
use weir::clock::Clock;
use weir::engine::algorithms::micros::Micros;
use weir::store::Store;
use weir::store::redis::{RedisOptions, RedisStore};

use crate::support::redis::{RedisServer, STORE_TIMEOUT};
use crate::support::server::{Setup, Weir};
use crate::support::wire::{Message, Wire};
use crate::support::{becomes, eventually};

type Fields<'a> = &'a [(&'a str, &'a str)];

/// A check listener and a proxy with common buckets, on a clock that stands still.
fn stopped(rules: &str) -> Setup {
    Setup {
        check: true,
        // The tests' own address, so that the proxy takes the client from `X-Forwarded-For`, too.
        trusted: vec!["127.0.0.0/8"],
        clock: Clock::set(Micros::from_millis(1_700_000_000_000)),
        ..Setup::new(rules)
    }
}

/// The same with buckets in Redis.
fn on_redis(rules: &str, server: &RedisServer) -> Weir {
    on_redis_with(stopped(rules), server)
}

fn on_redis_with(setup: Setup, server: &RedisServer) -> Weir {
    // A late answer on a busy machine would be an allowance.
    let options = RedisOptions { timeout: STORE_TIMEOUT, ..RedisOptions::new(server.url(), setup.clock.clone()) };
    let target = options.target().unwrap();
    let store: weir::server::MakeStore = Arc::new(move || Ok(Store::Redis(RedisStore::connect(&target))));
    let before = server.calls("evalsha");
    let weir = Setup { store: Some(store), ..setup }.start("echo");
    // The worker and the admin thread have tested their connections, which counts as calls.
    becomes("both have made a call", before + 2, || server.calls("evalsha"));
    eventually("the store is connected", || match weir.metric("weir_store_connections") {
        1 => Ok(()),
        other => Err(other),
    });
    weir
}

/// Sends a request without a body and reads the response.
#[track_caller]
fn send(wire: &mut Wire, method: &str, target: &str, headers: Fields<'_>) -> Message {
    let mut head = format!("{method} {target} HTTP/1.1\r\n");
    for (name, value) in headers {
        head.extend([*name, ": ", *value, "\r\n"]);
    }
    wire.send(head + "\r\n");
    if method == "HEAD" { wire.head().expect("a response") } else { wire.response() }
}

/// Sends a call and reads the answer.
#[track_caller]
fn call(wire: &mut Wire, call: &Value) -> Message {
    post(wire, "application/json", &call.to_string())
}

#[track_caller]
fn post(wire: &mut Wire, content_type: &str, body: &str) -> Message {
    let length = body.len();
    wire.send(format!(
        "POST /json HTTP/1.1\r\nhost: limiter\r\ncontent-type: {content_type}\r\ncontent-length: {length}\r\n\r\n{body}"
    ));
    wire.response()
}

#[track_caller]
fn body(message: &Message) -> Value {
    serde_json::from_slice(&message.body).unwrap_or_else(|error| panic!("{error}: {message:?}"))
}

/// A call that charges one limit.
fn charge(limit: &str, id: &str) -> Value {
    json!({ "limit": limit, "id": id })
}
