//! The rate limit quota service, with a client that stands for Envoy.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use envoy_types::pb::envoy::service::rate_limit_quota::v3::rate_limit_quota_response::bucket_action::BucketAction;
use envoy_types::pb::envoy::service::rate_limit_quota::v3::rate_limit_quota_service_client::RateLimitQuotaServiceClient;
use envoy_types::pb::envoy::service::rate_limit_quota::v3::rate_limit_quota_usage_reports::BucketQuotaUsage;
use envoy_types::pb::envoy::service::rate_limit_quota::v3::{
    BucketId, RateLimitQuotaResponse, RateLimitQuotaUsageReports,
};
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use envoy_types::pb::envoy::r#type::v3::rate_limit_strategy::Strategy;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::time::{sleep, timeout};
use tonic::codegen::tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::transport::Channel;
use tonic::{Code, Status, Streaming};
use weir::config::{self, Source, Sources};
use weir::engine::algorithms::micros::Micros;
use weir::engine::limit::fingerprint::Fingerprinter;
use weir::server::MakeStore;
use weir::store::Store;
use weir::store::redis::{RedisOptions, RedisStore};

use crate::support::redis::{RedisConfig, RedisServer, STORE_TIMEOUT};
use crate::support::server::{Setup, Weir, rules};
use crate::support::{PATIENCE, eventually_async};

/// The action for a bucket.
#[derive(Clone, Debug, PartialEq)]
enum Told {
    Blanket(i32),
    /// The most tokens, and those of a minute.
    Tokens(u64, u64),
    Abandon,
}

const ALLOW: Told = Told::Blanket(0);
const DENY: Told = Told::Blanket(1);

/// An Envoy's stream.
struct Gateway {
    reports: UnboundedSender<RateLimitQuotaUsageReports>,
    answers: Streaming<RateLimitQuotaResponse>,
}

async fn channel(address: SocketAddr) -> Channel {
    Channel::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap()
}

fn usage(id: &[(&str, &str)], allowed: u64, denied: u64) -> BucketQuotaUsage {
    let bucket = id.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    BucketQuotaUsage {
        bucket_id: Some(BucketId { bucket }),
        num_requests_allowed: allowed,
        num_requests_denied: denied,
        ..BucketQuotaUsage::default()
    }
}

impl Gateway {
    async fn open(address: SocketAddr) -> Self {
        let (reports, received) = unbounded_channel();
        let mut client = RateLimitQuotaServiceClient::new(channel(address).await);
        let answers =
            client.stream_rate_limit_quotas(UnboundedReceiverStream::new(received)).await.unwrap().into_inner();
        Self { reports, answers }
    }

    fn report(&self, domain: &str, bucket_quota_usages: Vec<BucketQuotaUsage>) {
        let domain = domain.to_owned();
        self.reports.send(RateLimitQuotaUsageReports { domain, bucket_quota_usages }).unwrap();
    }

    /// The next message, by the value of the bucket's entry `name`; the error is the end.
    async fn next(&mut self) -> Result<HashMap<String, Told>, Status> {
        let message = timeout(PATIENCE, self.answers.message()).await.expect("nothing came")?;
        let actions = message.ok_or_else(|| Status::ok("the end"))?.bucket_action.into_iter();
        Ok(actions
            .map(|action| {
                let told = match action.bucket_action.unwrap() {
                    BucketAction::AbandonAction(_) => Told::Abandon,
                    BucketAction::QuotaAssignmentAction(assigned) => {
                        assert_eq!(assigned.assignment_time_to_live.unwrap().seconds, 15);
                        match assigned.rate_limit_strategy.unwrap().strategy.unwrap() {
                            Strategy::BlanketRule(rule) => Told::Blanket(rule),
                            Strategy::TokenBucket(bucket) => {
                                let interval = bucket.fill_interval.unwrap();
                                assert_eq!((interval.seconds, interval.nanos), (60, 0));
                                let fill = bucket.tokens_per_fill.unwrap().value;
                                assert!(bucket.max_tokens > 0 && fill > 0);
                                Told::Tokens(bucket.max_tokens.into(), fill.into())
                            }
                            Strategy::RequestsPerTimeUnit(_) => panic!("Envoy would pass everything"),
                        }
                    }
                };
                (action.bucket_id.unwrap().bucket["name"].clone(), told)
            })
            .collect())
    }

    /// Waits for such an action for a bucket.
    async fn until(&mut self, name: &str, is_it: impl Fn(&Told) -> bool) -> Told {
        loop {
            if let Some(told) = self.next().await.unwrap().remove(name).filter(|told| is_it(told)) {
                return told;
            }
        }
    }
}

/// Asks the rate limit service. Returns whether the request passes, and the rest.
async fn left(address: SocketAddr, domain: &str, entries: &[(&str, &str)], hits: u32) -> (bool, u64) {
    let entries = entries.iter().map(|(key, value)| Entry { key: (*key).to_owned(), value: (*value).to_owned() });
    let descriptor = RateLimitDescriptor { entries: entries.collect(), ..RateLimitDescriptor::default() };
    let request = RateLimitRequest { domain: domain.to_owned(), descriptors: vec![descriptor], hits_addend: hits };
    let mut client = RateLimitServiceClient::new(channel(address).await);
    let answer = client.should_rate_limit(request).await.unwrap().into_inner();
    (answer.overall_code == 1, answer.statuses[0].limit_remaining.into())
}

const LIMITS: &str = "limits:
  Web: { match: { domain: web, descriptor: { kind: web } }, by: { descriptor: name }, burst: 1000, count: 1, period: 1h }
  Closed: { match: { domain: web, descriptor: { kind: closed } }, by: global, deny: true }
  Open: { match: { domain: web, descriptor: { kind: open } }, by: global, unlimited: true }
  Shadow: { match: { domain: web, descriptor: { kind: shadow } }, by: global, burst: 3, mode: shadow }
";

#[tokio::test]
async fn each_kind_of_limit_has_its_assignment() {
    let weir = Setup::new(LIMITS).start("echo");
    let mut envoy = Gateway::open(weir.grpc).await;
    let kinds = ["web", "closed", "open", "shadow", "other"];
    envoy.report("web", kinds.iter().map(|kind| usage(&[("kind", kind), ("name", kind)], 1, 0)).collect());
    let told = envoy.next().await.unwrap();
    assert!(matches!(told["web"], Told::Tokens(..)), "{told:?}");
    assert_eq!(["closed", "open", "shadow", "other"].map(|kind| &told[kind]), [&DENY, &ALLOW, &ALLOW, &ALLOW]);
    // What passes under a limit in shadow is counted.
    envoy.report("web", vec![usage(&[("kind", "shadow"), ("name", "shadow")], 2, 0)]);
    envoy.report("web", vec![usage(&[("kind", "shadow"), ("name", "shadow")], 5, 0)]);
    let denied = "weir_decisions_total{limit=\"Shadow\",result=\"shadow_denied\"}";
    eventually_async("a denial in shadow", async || match weir.metric(denied) {
        1 => Ok(()),
        other => Err(other),
    })
    .await;
    let metric = |name: &str| weir.metric(name);
    assert_eq!(metric("weir_rate_limit_quota_requests_total{result=\"allowed\"}"), 12);
    assert_eq!(metric("weir_rate_limit_quota_reports_total{result=\"ok\"}"), 3);
    assert_eq!(metric("weir_decisions_total{limit=\"Web\",result=\"allowed\"}"), 0, "a lease is no decision");
}

#[tokio::test]
async fn a_share_is_taken_from_the_bucket_of_the_rate_limit_service_and_comes_back() {
    let redis = RedisServer::start(&RedisConfig::default());
    for redis in [None, Some(&redis)] {
        let weir = start(redis, LIMITS).await;
        let entries = [("kind", "web"), ("name", "x")];
        assert_eq!(left(weir.grpc, "web", &entries, 1).await, (true, 999));
        let mut envoy = Gateway::open(weir.grpc).await;
        envoy.report("web", vec![usage(&[("name", "x"), ("kind", "web")], 1, 0)]);
        let Told::Tokens(most, fill) = envoy.until("x", |_| true).await else { panic!("no share") };
        let (_, now) = left(weir.grpc, "web", &entries, 1).await;
        // The request that has passed, the tokens at once, and those of the next second.
        assert!(now <= 997 - most - fill / 60 && now > 0, "{now} of {most} and {fill}");
        // It has used only one, and is gone. That it was slow before says how much it may have used since.
        sleep(Duration::from_millis(2_500)).await;
        envoy.report("web", vec![usage(&[("name", "x"), ("kind", "web")], 0, 0)]);
        sleep(Duration::from_millis(200)).await;
        drop(envoy);
        eventually_async("what is left comes back", async || match left(weir.grpc, "web", &entries, 0).await {
            (_, left) if left >= 985 => Ok(()),
            other => Err(other),
        })
        .await;
    }
}

/// A process whose store answers.
async fn start(redis: Option<&RedisServer>, limits: &str) -> Weir {
    let store = redis.map(|redis| -> MakeStore {
        let clock = weir::clock::Clock::machine();
        let options = RedisOptions { timeout: STORE_TIMEOUT, ..RedisOptions::new(redis.url(), clock) };
        let target = options.target().unwrap();
        Arc::new(move || Ok(Store::Redis(RedisStore::connect(&target))))
    });
    let weir = Setup { store, ..Setup::new(limits) }.start("echo");
    let other = [("kind", "web"), ("name", "other")];
    eventually_async("the store answers", async || match left(weir.grpc, "web", &other, 1).await {
        (true, 0) => Err("nothing"),
        _ => Ok(()),
    })
    .await;
    weir
}

/// Two processes at one Redis, each with a greedy Envoy, and the rate limit service. The limit never refills.
#[tokio::test]
async fn shares_of_several_processes_and_calls_are_one_count() {
    let redis = RedisServer::start(&RedisConfig::default());
    let limits = "limits: { Web: { match: { domain: web }, by: { descriptor: name }, burst: 200 } }";
    let weirs = [start(Some(&redis), limits).await, start(Some(&redis), limits).await];
    let mut granted = 0;
    let mut envoys = Vec::new();
    for weir in &weirs {
        let mut envoy = Gateway::open(weir.grpc).await;
        envoy.report("web", vec![usage(&[("name", "x")], 0, 500)]);
        let Told::Tokens(most, fill) = envoy.until("x", |_| true).await else { panic!("no share") };
        granted += most + fill / 60;
        envoys.push(envoy);
    }
    let mut passed = 0;
    while left(weirs[0].grpc, "web", &[("name", "x")], 1).await.0 {
        passed += 1;
    }
    assert!(passed > 0 && granted > 0 && passed + granted <= 200, "{passed} and {granted}");
    // The shares cannot go on.
    for envoy in &mut envoys {
        envoy.until("x", |told| *told == DENY).await;
    }
}

#[tokio::test]
async fn changed_rules_are_told_without_a_report() {
    let weir = Setup::new(LIMITS).start("echo");
    let mut envoy = Gateway::open(weir.grpc).await;
    let id = [("kind", "web"), ("name", "x")];
    envoy.report("web", vec![usage(&id, 1, 0)]);
    envoy.until("x", |told| matches!(told, Told::Tokens(..))).await;
    for (to, expected) in
        [("deny: true", DENY), ("unlimited: true", ALLOW), ("deny: true", DENY), ("burst: 500, mode: shadow", ALLOW)]
    {
        let changed = LIMITS.replace("burst: 1000, count: 1, period: 1h", to);
        weir.shared.replace(rules(&changed), None);
        envoy.until("x", |told| *told == expected).await;
    }
    weir.shared.replace(rules(LIMITS), None);
    envoy.until("x", |told| matches!(told, Told::Tokens(..))).await;
}

/// The tokens that were taken by the old numbers do not pass by the new ones.
#[tokio::test]
async fn a_lowered_limit_takes_back_what_gateways_have() {
    let high = "limits: { Web: { match: { domain: web }, by: { descriptor: name }, burst: 1000000, count: 1000000, period: 1s } }";
    let low = "limits: { Web: { match: { domain: web }, by: { descriptor: name }, burst: 10, count: 10, period: 1h } }";
    let redis = RedisServer::start(&RedisConfig::default());
    for redis in [None, Some(&redis)] {
        let weir = start(redis, high).await;
        let mut envoy = Gateway::open(weir.grpc).await;
        envoy.report("web", vec![usage(&[("name", "x")], 0, 900_000)]);
        envoy.until("x", |told| matches!(told, Told::Tokens(most, _) if *most > 10_000)).await;
        weir.shared.replace(rules(low), None);
        envoy.until("x", |told| *told == DENY || matches!(told, Told::Tokens(most, _) if *most <= 10)).await;
        // It has used nothing, and gets no more than the limit has.
        envoy.report("web", vec![usage(&[("name", "x")], 0, 900_000)]);
        let mut passed = 0;
        while left(weir.grpc, "web", &[("name", "x")], 1).await.0 {
            passed += 1;
        }
        assert!(passed <= 10, "{passed}");
        let told = envoy.until("x", |told| *told == DENY || matches!(told, Told::Tokens(..))).await;
        assert!(matches!(told, Told::Blanket(_) | Told::Tokens(..=10, ..=600)), "{told:?}");
    }
}

#[tokio::test]
async fn blocks_and_overrides_are_told_without_a_report() {
    use crate::support::weir::Weir;

    let limits =
        "limits: { Web: { match: { domain: web }, by: { descriptor: name }, burst: 1000, count: 1000, period: 1h } }";
    let weir = Weir::serve(limits, &["--grpc", "127.0.0.1:0", "--admin-token", "s3cret"]);
    let send = async |method: &str, path: &str, body: &str| {
        let head = format!("{method} {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer s3cret\r\ncontent-length: ");
        let request = format!("{head}{}\r\n\r\n{body}", body.len());
        let address = weir.admin;
        let answer = tokio::task::spawn_blocking(move || {
            let mut wire = crate::support::wire::Wire::connect(address);
            wire.send(request);
            wire.response().status()
        });
        assert_eq!(answer.await.unwrap(), 200, "{method} {path}");
    };
    let mut envoy = Gateway::open(weir.listener("grpc")).await;
    envoy.report("web", vec![usage(&[("name", "x")], 1, 0)]);
    let is_share = |told: &Told| matches!(told, Told::Tokens(..));
    envoy.until("x", is_share).await;
    send("PUT", "/buckets/Web:x/block", r#"{"for": "1h"}"#).await;
    envoy.until("x", |told| *told == DENY).await;
    send("DELETE", "/buckets/Web:x/block", "").await;
    envoy.until("x", is_share).await;
    send("PUT", "/overrides/Web:x", r#"{"unlimited": true}"#).await;
    envoy.until("x", |told| *told == ALLOW).await;
    send("PUT", "/overrides/Web:x", r#"{"burst": 2, "count": 1, "period": "1h"}"#).await;
    // What it had comes back with a report.
    envoy.until("x", |told| *told == DENY).await;
    sleep(Duration::from_millis(600)).await;
    envoy.report("web", vec![usage(&[("name", "x")], 0, 1)]);
    envoy.until("x", |told| matches!(told, Told::Tokens(..=2, _))).await;
    send("DELETE", "/overrides/Web:x", "").await;
    envoy.until("x", |told| matches!(told, Told::Tokens(3.., _))).await;
}

#[tokio::test]
async fn one_request_an_hour_passes_at_one_gateway() {
    let limits =
        "limits: { Web: { match: { domain: web }, by: { descriptor: name }, burst: 1, count: 1, period: 1h } }";
    let weir = Setup::new(limits).start("echo");
    let mut envoys = [Gateway::open(weir.grpc).await, Gateway::open(weir.grpc).await];
    let id = [("name", "x")];
    envoys[0].report("web", vec![usage(&id, 0, 1)]);
    let told = envoys[0].until("x", |_| true).await;
    assert!(matches!(told, Told::Tokens(1, _)), "{told:?}");
    envoys[1].report("web", vec![usage(&id, 0, 1)]);
    assert_eq!(envoys[1].until("x", |_| true).await, DENY);
    // It keeps its token until it is used.
    let told = envoys[0].until("x", |_| true).await;
    assert!(matches!(told, Told::Tokens(1, _)), "{told:?}");
    assert_eq!(left(weir.grpc, "web", &id, 1).await, (false, 0));
    envoys[0].report("web", vec![usage(&id, 1, 0)]);
    envoys[0].until("x", |told| *told == DENY).await;
}

/// A report that cannot be true does not disturb other gateways for long.
#[tokio::test]
async fn immense_reports_do_no_harm() {
    let weir = Setup::new(LIMITS).start("echo");
    let mut envoys = [Gateway::open(weir.grpc).await, Gateway::open(weir.grpc).await];
    let id = [("kind", "web"), ("name", "x")];
    for envoy in &mut envoys {
        envoy.report("web", vec![usage(&id, 0, 1)]);
        envoy.until("x", |_| true).await;
    }
    sleep(Duration::from_millis(2_100)).await;
    for envoy in &envoys {
        envoy.report("web", vec![usage(&id, 0, u64::MAX)]);
    }
    for envoy in &mut envoys {
        envoy.until("x", |told| matches!(told, Told::Tokens(..))).await;
    }
    envoys[0].report("web", vec![usage(&id, u64::MAX, u64::MAX)]);
    envoys[1].until("x", |told| *told == DENY).await;
    weir.shared.replace(rules(&LIMITS.replace("count: 1, period: 1h", "count: 1000, period: 1s")), None);
    envoys[1].until("x", |told| matches!(told, Told::Tokens(..))).await;
}

/// The order of entries matters there, and an id has none.
#[tokio::test]
async fn rules_of_envoyproxy_ratelimit_cover_buckets_in_their_order() {
    let tree = "domain: web
descriptors:
- key: name
  descriptors:
  - key: kind
    value: api
    rate_limit: { unit: hour, requests_per_unit: 1000 }
";
    let source = Source { name: "web.yaml".into(), text: tree.to_owned() };
    let sources = Sources { envoy_ratelimit: vec![source], ..Sources::default() };
    let loaded = config::load(&sources, Fingerprinter::new((1, 2)), Micros(0)).rules.unwrap();
    let weir = Setup::new("limits: {}").start("echo");
    weir.shared.replace(loaded, None);
    let mut envoy = Gateway::open(weir.grpc).await;
    envoy.report("web", ["api", "other"].map(|kind| usage(&[("kind", kind), ("name", kind)], 1, 0)).to_vec());
    let told = envoy.next().await.unwrap();
    assert!(matches!(told["api"], Told::Tokens(..)), "{told:?}");
    assert_eq!(told["other"], ALLOW);
    assert!(left(weir.grpc, "web", &[("name", "api"), ("kind", "api")], 1).await.1 < 990);
}

#[tokio::test]
async fn streams_are_bounded_and_mistakes_end_them() {
    let weir = Setup::new(LIMITS).start("echo");
    let many = |from: usize, to: usize| -> Vec<BucketQuotaUsage> {
        (from..to).map(|number| usage(&[("name", &number.to_string())], 1, 0)).collect()
    };
    let long: Vec<(String, String)> = (0..17).map(|key| (format!("k{key}"), "v".to_owned())).collect();
    let long: Vec<(&str, &str)> = long.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
    for (domain, second, usages, code) in [
        ("", "", many(0, 1), Code::InvalidArgument),
        ("web", "other", many(0, 1), Code::InvalidArgument),
        ("web", "web", vec![usage(&[], 1, 0)], Code::InvalidArgument),
        ("web", "web", vec![usage(&long, 1, 0)], Code::InvalidArgument),
        ("web", "web", vec![usage(&[("name", &"x".repeat(600_000))], 1, 0)], Code::ResourceExhausted),
    ] {
        let mut envoy = Gateway::open(weir.grpc).await;
        envoy.report(domain, if second.is_empty() { usages.clone() } else { Vec::new() });
        if !second.is_empty() {
            envoy.report(second, usages);
        }
        assert_eq!(envoy.next().await.unwrap_err().code(), code, "{domain} {second}");
    }
    assert_eq!(weir.metric("weir_rate_limit_quota_reports_total{result=\"invalid\"}"), 5);
    let mut envoy = Gateway::open(weir.grpc).await;
    envoy.report("web", many(0, 1_000));
    assert!(envoy.next().await.unwrap().values().all(|told| *told == ALLOW));
    envoy.report("web", many(1_000, 1_001));
    envoy.until("1000", |told| *told == Told::Abandon).await;
    // The end of the process ends the stream.
    weir.stop();
    let ended = loop {
        if let Err(status) = envoy.next().await {
            break status;
        }
    };
    assert_eq!(ended.code(), Code::Unavailable, "{ended}");
}
