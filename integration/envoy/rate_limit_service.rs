//! The rate limit service over gRPC: cases from the tests and documents of envoyproxy/ratelimit, gubernator, redis-cell
//! and others, in memory and in Redis.
//!
//! A case is a line of `cases.jsonl`. `config` are files of envoyproxy/ratelimit and `limits` is a rules file, by name
//! in the same folder or as text. A step asks `domain` about the descriptors in `of`, written `key=value,key=value`, at
//! second `at_s` or millisecond `at_ms`, `repeat` times. `addend` is the request's; `hits`, `give_back` and `limit`
//! have an item for each descriptor. `reload` are new files. `expect` is compared where it says something: `statuses`
//! are written `CODE LIMIT REMAINING`, with an optional ` reset=SECONDS`, `passed` is the number of passed repetitions,
//! and the rest describes the last one.

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{Entry, RateLimitOverride};
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::{Code, DescriptorStatus};
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use envoy_types::pb::google::protobuf::value::Kind;
use envoy_types::pb::google::protobuf::{Struct, UInt64Value, Value as ProtoValue};
use serde_json::{Map, Value as Json, json};
use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tonic::client::Grpc;
use tonic::transport::Channel;
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;
use weir::clock::Clock;
use weir::config::{self, Source, Sources};
use weir::engine::algorithms::micros::Micros;
use weir::engine::limit::fingerprint::Fingerprinter;
use weir::engine::limit::rules::Rules;
use weir::server::MakeStore;
use weir::store::Store;
use weir::store::redis::{RedisOptions, RedisStore};

use crate::support::eventually_async;
use crate::support::redis::{RedisServer, STORE_TIMEOUT};
use crate::support::server::{Setup, Weir};

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("integration/cases/rate_limit_service")
}

fn cases() -> Vec<Json> {
    let text = std::fs::read_to_string(folder().join("cases.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The text of a case's file: a file in the folder, or the text itself.
fn source(name: &Json) -> Source {
    let name = name.as_str().unwrap();
    let text = if name.contains('\n') {
        name.to_owned()
    } else {
        std::fs::read_to_string(folder().join(format!("{name}.yaml"))).unwrap()
    };
    Source { name: "rules.yaml".to_owned(), text }
}

/// A case's rules. In memory, the number in the hash gives each case its own buckets.
fn rules(config: &Json, limits: &Json, number: u64, now: Micros) -> Rules {
    let sources = Sources {
        limits: limits.as_str().map(|_| source(limits)),
        envoy_ratelimit: config.as_array().unwrap().iter().map(source).collect(),
        ..Sources::default()
    };
    let loaded = config::load(&sources, Fingerprinter::new((number, 2)), now);
    loaded.rules.unwrap_or_else(|| panic!("{}", loaded.report))
}

/// A server and its clock.
struct Player {
    weir: Weir,
    client: RateLimitServiceClient<Channel>,
    channel: Channel,
    clock: Arc<AtomicU64>,
}

impl Player {
    /// With buckets in memory or in this Redis.
    async fn new(redis: Option<&RedisServer>) -> Self {
        let clock = Arc::new(AtomicU64::new(0));
        let set = Clock::Set(clock.clone());
        let target = redis.map(|redis| {
            let options = RedisOptions { timeout: STORE_TIMEOUT, ..RedisOptions::new(redis.url(), set.clone()) };
            options.target().unwrap()
        });
        let store =
            target.map(|target| -> MakeStore { Arc::new(move || Ok(Store::Redis(RedisStore::connect(&target)))) });
        let weir = Setup { clock: set, store, ..Setup::new("limits: {}") }.start("echo");
        let channel = Channel::from_shared(format!("http://{}", weir.grpc)).unwrap().connect().await.unwrap();
        let client = RateLimitServiceClient::new(channel.clone());
        Self { weir, client, channel, clock }
    }

    /// Calls Envoy's method or one of Kuadrant's.
    async fn call(&mut self, method: Option<&str>, request: RateLimitRequest) -> Result<RateLimitResponse, Status> {
        let Some(method) = method else {
            return self.client.should_rate_limit(request).await.map(Response::into_inner);
        };
        let path = format!("/kuadrant.service.ratelimit.v1.RateLimitService/{method}").parse().unwrap();
        let mut client = Grpc::new(self.channel.clone());
        client.ready().await.unwrap();
        client.unary(Request::new(request), path, ProstCodec::default()).await.map(Response::into_inner)
    }

    /// Plays a case; the error is the difference.
    async fn play(&mut self, number: u64, case: &Json) -> Result<(), String> {
        let mut config = case["config"].clone();
        for (place, step) in case["steps"].as_array().unwrap().iter().enumerate() {
            let millis = step["at_ms"].as_u64().unwrap_or(step["at_s"].as_u64().unwrap_or(0) * 1_000);
            self.clock.store(millis * 1_000, Ordering::Relaxed);
            let is_new = step["reload"].is_array();
            if is_new {
                config = step["reload"].clone();
            }
            if is_new || place == 0 {
                self.weir.shared.replace(rules(&config, &case["limits"], number, Micros(millis * 1_000)), None);
            }
            let request = request(case, step);
            let (mut passed, mut last) = (0, None);
            for _ in 0..step["repeat"].as_u64().unwrap_or(1) {
                let answer = self.call(step["call"].as_str(), request.clone()).await;
                passed += u64::from(answer.as_ref().is_ok_and(|answer| answer.overall_code() == Code::Ok));
                last = Some(answer);
            }
            let last = last.unwrap().map_err(|status| format!("{:?}: {}", status.code(), status.message()));
            compare(&step["expect"], passed, &last).map_err(|what| format!("step {}: {what}", place + 1))?;
        }
        Ok(())
    }

    /// Plays all cases. Calls `clean` before each of them.
    async fn play_all(mut self, clean: impl Fn()) {
        let (cases, mut failed) = (cases(), String::new());
        assert!(cases.len() > 100);
        for (number, case) in (0..).zip(&cases) {
            clean();
            if let Err(what) = self.play(number, case).await {
                let _ = writeln!(failed, "{}: {what}", case["case"]);
            }
        }
        assert!(failed.is_empty(), "{failed}");
    }
}

fn request(case: &Json, step: &Json) -> RateLimitRequest {
    let descriptors = step["of"].as_array().unwrap().iter().enumerate().map(|(place, text)| {
        let entries = text.as_str().unwrap().split(',').filter(|entry| !entry.is_empty()).map(|entry| {
            let (key, value) = entry.split_once('=').unwrap();
            Entry { key: key.to_owned(), value: value.to_owned() }
        });
        let limit = step["limit"][place].as_str().map(|text| {
            let (requests, unit) = text.split_once('/').unwrap();
            RateLimitOverride {
                requests_per_unit: requests.parse().unwrap(),
                unit: Unit::from_str_name(unit).unwrap().into(),
            }
        });
        RateLimitDescriptor {
            entries: entries.collect(),
            limit,
            hits_addend: step["hits"][place].as_u64().map(|value| UInt64Value { value }),
            is_negative_hits: step["give_back"][place].as_bool().unwrap_or(false),
        }
    });
    RateLimitRequest {
        domain: step["domain"].as_str().unwrap_or(case["domain"].as_str().unwrap()).to_owned(),
        descriptors: descriptors.collect(),
        hits_addend: step["addend"].as_u64().map_or(0, |addend| addend.try_into().unwrap()),
    }
}

fn compare(expect: &Json, passed: u64, answer: &Result<RateLimitResponse, String>) -> Result<(), String> {
    for (key, expected) in expect.as_object().unwrap() {
        let found = match (key.as_str(), answer) {
            ("passed", _) => passed.into(),
            ("error", Err(error)) if error.contains(expected.as_str().unwrap()) => {
                assert!(error.starts_with("InvalidArgument"), "{error}");
                expected.clone()
            }
            (_, Err(error)) => return Err(error.clone()),
            ("code", Ok(answer)) => answer.overall_code().as_str_name().into(),
            ("statuses", Ok(answer)) => statuses(answer, expected),
            ("metadata", Ok(answer)) => answer.dynamic_metadata.as_ref().map_or(Json::Null, object),
            ("headers", Ok(answer)) => headers(answer, expected),
            ("body", Ok(answer)) => {
                let body = std::str::from_utf8(&answer.raw_body).unwrap();
                let wanted = expected.as_str().unwrap();
                if body.contains(wanted) && body.is_empty() == wanted.is_empty() { wanted } else { body }.into()
            }
            (key, Ok(_)) => return Err(format!("nothing is known of `{key}`")),
        };
        if found != *expected {
            return Err(format!("{key} is {found}, expected {expected}"));
        }
    }
    Ok(())
}

/// The statuses in the cases' notation.
fn statuses(answer: &RateLimitResponse, expected: &Json) -> Json {
    let written = answer.statuses.iter().enumerate().map(|(place, status)| {
        let with_reset = expected[place].as_str().is_some_and(|text| text.contains(" reset="));
        Json::String(written(status, with_reset))
    });
    let written: Vec<Json> = written.collect();
    // One status may be written without a list.
    if expected.is_string() { written.first().cloned().unwrap_or_default() } else { written.into() }
}

fn written(status: &DescriptorStatus, with_reset: bool) -> String {
    let limit = status.current_limit.as_ref().map_or_else(
        || "none".to_owned(),
        |limit| {
            let name = if limit.name.is_empty() { String::new() } else { format!("({})", limit.name) };
            format!("{}/{}{name}", limit.requests_per_unit, limit.unit().as_str_name())
        },
    );
    let mut text = format!("{} {limit} {}", status.code().as_str_name(), status.limit_remaining);
    if with_reset {
        let reset = status.duration_until_reset.as_ref().map_or(-1, |reset| reset.seconds);
        let _ = write!(text, " reset={reset}");
    }
    text
}

/// The expected headers, as they came.
fn headers(answer: &RateLimitResponse, expected: &Json) -> Json {
    let value = |name: &str| {
        let found = answer.response_headers_to_add.iter().find(|header| header.key == name);
        found.map_or(Json::Null, |header| header.value.clone().into())
    };
    expected.as_object().unwrap().keys().map(|name| (name.clone(), value(name))).collect::<Map<_, _>>().into()
}

fn object(data: &Struct) -> Json {
    data.fields.iter().map(|(key, value)| (key.clone(), json_of(value))).collect::<Map<_, _>>().into()
}

fn json_of(value: &ProtoValue) -> Json {
    match value.kind.as_ref().unwrap() {
        Kind::NullValue(_) => Json::Null,
        // The cases have integers where possible.
        #[expect(clippy::cast_possible_truncation, reason = "the cases have small numbers")]
        Kind::NumberValue(number) if number.fract() == 0.0 => (*number as i64).into(),
        Kind::NumberValue(number) => (*number).into(),
        Kind::StringValue(text) => text.clone().into(),
        Kind::BoolValue(truth) => (*truth).into(),
        Kind::StructValue(data) => object(data),
        Kind::ListValue(list) => list.values.iter().map(json_of).collect::<Vec<_>>().into(),
    }
}

#[tokio::test]
async fn every_case_comes_out_in_memory() {
    Player::new(None).await.play_all(|| {}).await;
}

#[tokio::test]
async fn every_case_comes_out_in_redis() {
    let redis = RedisServer::plain();
    let player = Player::new(Some(&redis)).await;
    player.weir.shared.replace(rules(&json!(["another"]), &Json::Null, 0, Micros(0)), None);
    // Without a connection, the limits of such a file are missing from the answer.
    let first = json!({ "domain": "another", "of": ["key2=first"] });
    eventually_async("the store connects", async || {
        player.client.clone().should_rate_limit(request(&first, &first)).await.map_err(|status| status.code())
    })
    .await;
    player
        .play_all(|| {
            redis.cli(&["FLUSHALL"]);
        })
        .await;
}

/// Plays a case of one step.
fn step(domain: &str, of: &[&str]) -> RateLimitRequest {
    let step = json!({ "domain": domain, "of": of });
    request(&step, &step)
}

#[tokio::test]
async fn in_shadow_the_statuses_tell_and_the_request_passes() {
    let mut player = Player::new(None).await;
    player.weir.shared.replace(rules(&json!(["modes"]), &Json::Null, 0, Micros(0)).in_shadow(), None);
    for (of, expected) in [
        (&["normal=x"][..], "OVER_LIMIT 2/HOUR 0"),
        (&["shadow=x"], "OK 2/HOUR 0"),
        (&["quota1=x", "normal=y"], "OVER_LIMIT 2/HOUR 0"),
    ] {
        let mut last = None;
        for _ in 0..3 {
            last = Some(player.client.should_rate_limit(step("modes", of)).await.unwrap().into_inner());
        }
        let answer = last.unwrap();
        assert_eq!((answer.overall_code(), written(&answer.statuses[0], false).as_str()), (Code::Ok, expected));
        assert!(answer.raw_body.is_empty());
    }
}

/// Envoy's `failure_mode_deny` decides about requests whose limits fail closed.
#[tokio::test]
async fn without_a_store_each_limit_has_its_policy() {
    let redis = RedisServer::plain();
    let mut player = Player::new(Some(&redis)).await;
    drop(redis);
    let limits = "limits:
  Open: { match: { domain: open }, by: global, count: 1, period: 1h }
  Closed: { match: { domain: closed }, by: global, count: 1, period: 1h, on_store_error: deny }
  Local: { match: { domain: local }, by: { descriptor: k }, count: 1, period: 1h, on_store_error: local }
";
    player.weir.shared.replace(rules(&json!(["another"]), &limits.into(), 0, Micros(0)), None);
    for (domain, of, expected) in [
        ("open", &["k=v"][..], Ok("OK none 0")),
        ("closed", &["k=v"], Err(tonic::Code::Unavailable)),
        ("another", &["key2=v"], Err(tonic::Code::Unavailable)),
        ("another", &["none=v"], Ok("OVER_LIMIT 0/HOUR 0")),
        ("another", &["no=limit"], Ok("OK none 0")),
        ("local", &["k=v"], Ok("OK 1/HOUR(Local) 0")),
        ("local", &["k=v", "k=w"], Ok("OVER_LIMIT 1/HOUR(Local) 0")),
        ("local", &["k=w"], Ok("OK 1/HOUR(Local) 0")),
    ] {
        let answer = player.client.should_rate_limit(step(domain, of)).await;
        let found = answer.map(|answer| written(&answer.into_inner().statuses[0], false));
        assert_eq!(found.as_deref().map_err(Status::code), expected, "{domain} {of:?}");
    }
    for (answer, count) in [("ok", 4), ("over_limit", 2), ("unavailable", 2), ("unknown_domain", 0)] {
        let series = format!("weir_rate_limit_service_answers_total{{answer=\"{answer}\"}}");
        assert_eq!(player.weir.metric(&series), count, "{answer}");
    }
}

/// Callers cannot add series to the metrics.
#[tokio::test]
async fn callers_make_no_series() {
    let mut player = Player::new(None).await;
    player.weir.shared.replace(rules(&json!(["another"]), &Json::Null, 0, Micros(0)), None);
    let series = |player: &Player| player.weir.page("/metrics").text().lines().count();
    // The listener's own counters start with its first call.
    player.client.should_rate_limit(step("domain", &["key2=x"])).await.unwrap();
    let before = series(&player);
    for number in 1..20 {
        let request = step(&format!("domain{number}"), &["key2=x"]);
        player.client.should_rate_limit(request).await.unwrap();
        let request = step("another", &[&format!("key2=x{number}"), &format!("key{number}=x")]);
        player.client.should_rate_limit(request).await.unwrap();
    }
    assert_eq!(series(&player), before);
    let unknown = player.weir.metric("weir_rate_limit_service_answers_total{answer=\"unknown_domain\"}");
    assert_eq!(unknown, 20);
    assert_eq!(player.weir.metric("weir_decisions_total{limit=\"another/key2\",result=\"allowed\"}"), 19);
}

/// What does not fit takes what is left, also in the memory that replaces a store which is gone.
#[tokio::test]
async fn a_limit_that_drains_drains_in_memory_while_redis_is_gone() {
    let mut redis = RedisServer::plain();
    let player = Player::new(Some(&redis)).await;
    let limits = "limits:\n  Tenants: { match: { domain: d }, by: { descriptor: k }, burst: 5, drain_over_limit: true, \
                  on_store_error: local }\n";
    player.weir.shared.replace(rules(&json!([]), &json!(limits), 1, Micros(0)), None);
    eventually_async("the store is connected", async || match player.weir.metric("weir_store_connections") {
        0 => Err(()),
        _ => Ok(()),
    })
    .await;
    let mut client = player.client;
    let mut ask = async |hits| {
        let case = json!({ "domain": "d", "steps": [] });
        let asked = request(&case, &json!({ "of": ["k=a"], "addend": hits }));
        let answer = client.should_rate_limit(asked).await.unwrap().into_inner();
        (answer.overall_code(), answer.statuses[0].limit_remaining)
    };
    assert_eq!(ask(1).await, (Code::Ok, 4), "in Redis");
    redis.kill();
    let first = ask(1).await;
    assert_eq!(first, (Code::Ok, 4), "in memory");
    let drained = [ask(1).await, ask(4).await, ask(1).await];
    assert_eq!(drained, [(Code::Ok, 3), (Code::OverLimit, 0), (Code::OverLimit, 0)]);
}
