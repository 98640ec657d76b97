//! Limits that need Redis: queues of work and users' scripts.

mod in_memory;
mod queue;
mod script;
mod values;

use serde_json::Value;

use crate::support::becomes;
use crate::support::redis::RedisServer;
use crate::support::weir::Weir;
use crate::support::wire::{Message, Wire};

/// A process with these rules and files, connected to its Redis.
#[track_caller]
fn serve(limits: &str, files: &[(&str, &str)], redis: &RedisServer, flags: &[&str]) -> Weir {
    let url = redis.url();
    let flags = [&["--check", "127.0.0.1:0", "--workers", "1", "--store", &url], flags].concat();
    let weir = Weir::serve_with(limits, &flags, |_, directory| {
        for (name, text) in files {
            std::fs::write(directory.join(name), text).unwrap();
        }
    });
    becomes("the worker is connected", 1, || weir.metric("weir_store_connections"));
    weir
}

/// Loads other rules.
#[track_caller]
fn reload(weir: &Weir, limits: &str) {
    let before = weir.metric("weir_config_reloads_total{result=\"success\"}");
    std::fs::write(weir.limits_file(), limits).unwrap();
    weir.signal("HUP");
    becomes("the rules are read", before + 1, || weir.metric("weir_config_reloads_total{result=\"success\"}"));
}

/// Sends an application's call.
#[track_caller]
fn call(weir: &Weir, call: &Value) -> (u16, Value) {
    let (mut wire, body) = (Wire::connect(weir.listener("check")), call.to_string());
    wire.send(format!(
        "POST /json HTTP/1.1\r\nhost: limiter\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    ));
    let answer = wire.response();
    (answer.status(), serde_json::from_slice(&answer.body).unwrap())
}

/// Sends a gateway's question to the check listener.
#[track_caller]
fn asked(weir: &Weir, path: &str, headers: &[(&str, &str)]) -> Message {
    Wire::connect(weir.listener("check")).get_with(path, headers)
}

fn cases(text: &str) -> impl Iterator<Item = Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap())
}
