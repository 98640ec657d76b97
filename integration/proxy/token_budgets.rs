//! The example of token budgets, in front of the API of a model.

use std::sync::atomic::Ordering;

use serde_json::{Value, json};
use weir::clock::Clock;
use weir::engine::algorithms::micros::Micros;

use crate::support::becomes;
use crate::support::server::{Setup, Weir};
use crate::support::upstream::Upstream;
use crate::support::wire::Message;

const RULES: &str = include_str!("../examples/token-budgets/limits.yaml");

/// 2023-11-14, 22:13:20 UTC.
const EVENING: Micros = Micros::from_millis(1_700_000_000_000);

/// Uses as many tokens as `max_tokens` says.
fn model() -> Upstream {
    Upstream::answering(|request| {
        let asked: Value = serde_json::from_str(request.text()).unwrap();
        let usage = json!({ "usage": { "total_tokens": asked["max_tokens"] } });
        let (kind, body) = if asked["stream"] == true {
            ("text/event-stream", format!("data: {{\"usage\":null}}\n\ndata: {usage}\n\ndata: [DONE]\n\n"))
        } else {
            ("application/json", usage.to_string())
        };
        format!("HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n\r\n{body}", body.len())
    })
}

fn ask(weir: &Weir, key: &str, body: &Value) -> Message {
    let (mut client, body) = (weir.connect(), body.to_string());
    client.send(format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {key}\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    ));
    client.response()
}

#[test]
fn tokens_are_counted_per_key_model_and_day() {
    let upstream = model();
    let clock = Clock::set(EVENING);
    let weir = Setup { clock: clock.clone(), ..Setup::new(RULES) }.start(&format!("http://{}", upstream.address));
    let set = |minutes: u64| {
        let Clock::Set(now) = &clock else { panic!("the machine's clock") };
        now.store(EVENING.0 + minutes * 60_000_000, Ordering::Relaxed);
    };
    let charged = || weir.metric("weir_settlements_total{limit=\"TokensPerKeyAndModel\",result=\"charged\"}");
    let mut count = 0;
    let mut asks = |key: &str, model: &str, tokens: u64, stream: bool| {
        let status = ask(&weir, key, &json!({ "model": model, "max_tokens": tokens, "stream": stream })).status();
        if status == 200 {
            count += 1;
            becomes("it is settled", count, charged);
        }
        status
    };
    assert_eq!(asks("sk-1", "gpt-4o", 60_000, false), 200);
    assert_eq!(asks("sk-1", "gpt-4o", 39_500, true), 200);
    assert_eq!(asks("sk-1", "gpt-4o", 2_000, false), 429, "500 are left of this model");
    assert_eq!(asks("sk-1", "o1", 50_000, true), 200);
    assert_eq!(asks("sk-1", "o3", 2_000, true), 429, "500 are left of all models");
    assert_eq!(asks("sk-2", "gpt-4o", 2_000, true), 200);
    assert_eq!(asks("sk-batch", "gpt-4o", 400_000, true), 200);
    assert_eq!(asks("sk-batch", "gpt-4o", 400_000, true), 200);
    assert_eq!(ask(&weir, "sk-1", &json!({ "messages": [] })).status(), 429, "without a model it is denied");
    // Until midnight.
    set(106);
    assert_eq!(asks("sk-1", "gpt-4o", 2_000, false), 429);
    set(107);
    assert_eq!(asks("sk-1", "gpt-4o", 2_000, false), 200);
}
