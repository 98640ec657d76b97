//! Configurations in the shapes that Envoy Gateway and Envoy AI Gateway push, and what their requests get. A line of
//! `cases/xds.jsonl` has the resources, as JSON of the messages, and the requests, in order: each asks `domain` about all descriptors in
//! `of`, written `key=value,key=value`, `repeat` times, with `hits` if given; `passed` of them pass.

use std::fs;
use std::path::PathBuf;

use envoy_types::pb::ratelimit::config::ratelimit::v3::{
    RateLimitConfig, RateLimitDescriptor, RateLimitPolicy, RateLimitReplace, RateLimitUnit,
};
use serde_json::Value;

use super::management_server::ManagementServer;
use super::{Client, NODE, serve};

fn text(object: &Value, key: &str) -> String {
    object[key].as_str().unwrap_or_default().to_owned()
}

fn list<T>(object: &Value, key: &str, read: impl FnMut(&Value) -> T) -> Vec<T> {
    object[key].as_array().into_iter().flatten().map(read).collect()
}

fn descriptor(given: &Value) -> RateLimitDescriptor {
    let is_on = |key: &str| given[key].as_bool().unwrap_or_default();
    let policy = |limit: &Value| RateLimitPolicy {
        unit: RateLimitUnit::from_str_name(&text(limit, "unit")).unwrap().into(),
        requests_per_unit: limit["requests_per_unit"].as_u64().unwrap().try_into().unwrap(),
        name: text(limit, "name"),
        replaces: list(limit, "replaces", |one| RateLimitReplace { name: text(one, "name") }),
        ..RateLimitPolicy::default()
    };
    RateLimitDescriptor {
        key: text(given, "key"),
        value: text(given, "value"),
        rate_limit: given.get("rate_limit").map(policy),
        descriptors: list(given, "descriptors", descriptor),
        shadow_mode: is_on("shadow_mode"),
        quota_mode: is_on("quota_mode"),
        ..RateLimitDescriptor::default()
    }
}

#[test]
fn configurations_of_gateways_limit_as_they_say() {
    let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("integration/cases/xds.jsonl");
    let cases = fs::read_to_string(file).unwrap();
    let server = ManagementServer::start();
    server.set(NODE, "nothing", &[]);
    // Buckets of one case are not those of the next.
    for (number, line) in cases.lines().enumerate() {
        let case: Value = serde_json::from_str(line).unwrap();
        let resources = list(&case, "resources", |config| RateLimitConfig {
            name: text(config, "name"),
            domain: text(config, "domain"),
            descriptors: list(config, "descriptors", descriptor),
        });
        let version = number.to_string();
        server.set(NODE, &version, &resources);
        let weir = serve(&server.url(), &["--workers", "1"]);
        server.until_accepted(&version);
        let mut client = Client::of(&weir);
        for ask in case["asks"].as_array().unwrap() {
            let descriptors = list(ask, "of", |of| of.as_str().unwrap().to_owned());
            let repeat = ask["repeat"].as_u64().unwrap();
            let passed =
                (0..repeat).filter(|_| client.ask(&text(ask, "domain"), &descriptors, ask["hits"].as_u64())).count();
            assert_eq!(Some(passed as u64), ask["passed"].as_u64(), "{}: {ask}", case["case"]);
        }
        assert!(!weir.log().contains("the rules have warnings"), "{}: {}", case["case"], weir.log());
    }
}
