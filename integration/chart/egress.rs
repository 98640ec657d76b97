//! The `NetworkPolicy` lets the pods connect to what the values name, or the chart says what to add.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::rendering::{Chart, Release, merged};

/// Values with the policy.
fn policy(values: &Value) -> Value {
    merged(&json!({ "networkPolicy": { "enabled": true } }), values)
}

fn redis(url: &str) -> Value {
    json!({ "store": { "type": "redis", "redis": { "url": url } } })
}

/// A store that a variable names, with a user and a password.
fn variable(name: &str, value: &str) -> Value {
    json!({ "extraEnv": [{ "name": name, "value": value }] })
}

fn upstreams(upstreams: &[&str]) -> Value {
    json!({
        "proxy": { "enabled": true, "upstreams": upstreams },
        "networkPolicy": { "upstreams": { "ports": "auto" } },
    })
}

fn keys(url: &str) -> Value {
    let rules = format!(
        "jwt:\n  main: {{ issuer: https://auth.example.com:1/, audiences: [api], jwks_url: \"{url}\" }}\n\
         limits:\n  A: {{ by: {{ claim: sub }}, count: 1, period: 1s }}\n"
    );
    json!({ "rules": { "limits": rules } })
}

/// The TCP ports of each rule for egress but that for DNS, which is there always.
fn ports(release: &Release) -> Vec<Vec<u64>> {
    let egress = release.get("NetworkPolicy", "weir")["spec"]["egress"].as_array().unwrap();
    let of_rule = |rule: &Value| -> Vec<u64> {
        // A rule without ports would be one for all.
        let ports = rule["ports"].as_array().unwrap().iter();
        ports.filter(|port| port["protocol"] == "TCP").map(|port| port["port"].as_u64().unwrap()).collect()
    };
    let (dns, others) = egress.split_first().unwrap();
    assert_eq!(dns["ports"], json!([{ "protocol": "UDP", "port": 53 }, { "protocol": "TCP", "port": 53 }]));
    let all: Vec<Vec<u64>> = others.iter().map(of_rule).collect();
    assert!(all.iter().all(|ports| !ports.is_empty()), "{egress:?}");
    all
}

#[test]
fn the_ports_of_all_urls_are_open() {
    let secret = json!({ "store": { "redis": { "existingSecret": "redis", "username": "limiter" } } });
    let explicit = |kind: &str, ports: Value| json!({ "networkPolicy": { kind: { "ports": ports } } });
    let cases: Vec<(Value, Vec<Vec<u64>>)> = vec![
        (json!({}), vec![]),
        // Redis.
        (redis("redis://redis"), vec![vec![6379]]),
        (redis("redis://redis:6380"), vec![vec![6380]]),
        (redis("redis://redis:6380/2"), vec![vec![6380]]),
        (redis("redis://redis/2"), vec![vec![6379]]),
        (redis("rediss://redis.default.svc"), vec![vec![6379]]),
        (redis("rediss://redis:6390/"), vec![vec![6390]]),
        (redis("redis://[2001:db8::1]"), vec![vec![6379]]),
        (redis("redis://[2001:db8::1]:6380/0"), vec![vec![6380]]),
        (redis("redis://10.0.0.1:65535"), vec![vec![65535]]),
        (redis("redis+cluster://a:7000,b:7001,[::1]:7002,d"), vec![vec![6379, 7000, 7001, 7002]]),
        (redis("rediss+cluster://a,b:6379/0"), vec![vec![6379]]),
        (merged(&redis("redis://redis:6380"), &secret), vec![vec![6380]]),
        (variable("WEIR_STORE", "redis://u:p@redis:6380/2"), vec![vec![6380]]),
        (variable("WEIR_STORE", "redis://:p@ss:w@redis:6380"), vec![vec![6380]]),
        (variable("WEIR_STORE", "redis://u:1@redis"), vec![vec![6379]]),
        (variable("WEIR_STORE", "redis://u:p%40%2F@[::1]:6380"), vec![vec![6380]]),
        (variable("WEIR_STORE", "redis://:$(PASSWORD)@redis:6380"), vec![vec![6380]]),
        (variable("WEIR_STORE", "redis+cluster://u:p,:1@a:7000,b:7001"), vec![vec![7000, 7001]]),
        (variable("WEIR_STORE", "unix:///run/redis.sock?db=1"), vec![]),
        (variable("WEIR_STORE", "redis+unix:///run/redis.sock"), vec![]),
        (variable("WEIR_STORE", "memory"), vec![]),
        // What is listed takes the place of what the URLs tell.
        (merged(&redis("redis://redis:6380"), &explicit("redis", json!([7000, 7001]))), vec![vec![7000, 7001]]),
        (merged(&redis("redis://redis:6380"), &explicit("redis", json!([]))), vec![]),
        (
            merged(&redis("redis+sentinel://a:26379,b:26380/main/1"), &explicit("redis", json!([26379, 26380, 6380]))),
            vec![vec![6380, 26379, 26380]],
        ),
        (
            merged(
                &json!({ "store": { "type": "redis", "redis": { "existingSecret": "redis" } } }),
                &explicit("redis", json!([6380])),
            ),
            vec![vec![6380]],
        ),
        // Upstreams.
        (upstreams(&["echo"]), vec![]),
        (upstreams(&["http://app"]), vec![vec![80]]),
        (upstreams(&["https://app"]), vec![vec![443]]),
        (upstreams(&["h2c://app"]), vec![vec![80]]),
        (upstreams(&["unix:/run/app.sock"]), vec![]),
        (
            upstreams(&[
                "api.example.com/v1=http://a:3000,https://[::1]:8443,h2c://c:50051",
                "/x=http://d:3000",
                "echo",
            ]),
            vec![vec![3000, 8443, 50051]],
        ),
        (upstreams(&["/v1=unix:/run/app.sock,http://b:8080"]), vec![vec![8080]]),
        (merged(&upstreams(&["http://a:3000"]), &json!({ "proxy": { "enabled": false } })), vec![]),
        (merged(&upstreams(&["http://a:3000"]), &explicit("upstreams", json!([9]))), vec![vec![9]]),
        (
            merged(&variable("WEIR_UPSTREAM", "http://a:3000,/x=https://b"), &explicit("upstreams", json!("auto"))),
            vec![vec![443, 3000]],
        ),
        // Overrides, keys and traces.
        (
            json!({ "rules": { "overridesUrls": [
                "https://plans.example.com/o.yaml?x=http://h:1/", "http://[::1]:8080/o.yaml", "http://a/#b:9"] } }),
            vec![vec![80, 443, 8080]],
        ),
        (keys("https://auth.example.com/.well-known/jwks.json"), vec![vec![443]]),
        (keys("http://auth:8080/keys?a=b:1"), vec![vec![8080]]),
        (
            json!({ "rules": { "limits": "jwt:\n  a: { jwks_file: keys.json }\n  b: { jwks_url: 'https://k:444/' }\n" } }),
            vec![vec![444]],
        ),
        (json!({ "rules": { "limits": "limits: {}" } }), vec![]),
        (json!({ "flags": { "otlp-endpoint": "http://collector:4318" } }), vec![vec![4318]]),
        (json!({ "flags": { "otlp-endpoint": "https://collector.example.com/otlp" } }), vec![vec![443]]),
        (variable("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4319"), vec![vec![4319]]),
        (variable("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://[::1]:4320/v1/traces"), vec![vec![4320]]),
        (variable("OTEL_SERVICE_NAME", "http://h:1"), vec![]),
        // Rules that the chart does not see.
        (
            merged(&json!({ "rules": { "existingConfigMap": "ours" } }), &explicit("keys", json!([443]))),
            vec![vec![443]],
        ),
        (merged(&json!({ "rules": { "existingConfigMap": "ours" } }), &explicit("keys", json!([]))), vec![]),
        (
            json!({ "rules": { "existingConfigMap": "ours", "limitsKey": "", "envoyRatelimitKeys": ["web.yaml"] } }),
            vec![],
        ),
    ];
    let values: Vec<Value> = cases.iter().map(|(values, _)| policy(values)).collect();
    for ((values, expected), release) in cases.iter().zip(Chart::render(&values).cases) {
        let release = release.unwrap_or_else(|error| panic!("{values}: {error}"));
        assert_eq!(ports(&release), *expected, "{values}");
        assert_eq!(release.mistakes, [""; 0], "{values}");
    }
}

#[test]
fn each_kind_has_a_rule_with_its_peers() {
    let peers = |app: &str| json!([{ "podSelector": { "matchLabels": { "app": app } } }]);
    let kinds = ["redis", "upstreams", "overrides", "keys", "traces"];
    let mut values = merged(&redis("redis://redis:6380"), &upstreams(&["http://app:3000"]));
    values = merged(&values, &keys("https://auth.example.com:444/"));
    values = merged(
        &values,
        &json!({
            "rules": { "overridesUrls": ["https://plans.example.com:445/"] },
            "flags": { "otlp-endpoint": "http://collector:4318" },
            "networkPolicy": { "extraEgress": [{ "ports": [{ "protocol": "TCP", "port": 1 }] }] },
        }),
    );
    for kind in kinds {
        values = merged(&values, &json!({ "networkPolicy": { kind: { "to": peers(kind) } } }));
    }
    let chart = Chart::render(&[policy(&values)]);
    let release = chart.cases[0].as_ref().unwrap();
    assert_eq!(ports(release), [vec![6380], vec![3000], vec![445], vec![444], vec![4318], vec![1]]);
    let egress = release.get("NetworkPolicy", "weir")["spec"]["egress"].as_array().unwrap();
    for (kind, rule) in kinds.iter().zip(&egress[1..]) {
        assert_eq!(rule["to"], peers(kind));
    }
    let told = "The NetworkPolicy lets the pods connect to the ports 53, 444, 445, 3000, 4318, 6380, to what \
        `networkPolicy.extraEgress` has, and to no others.";
    assert!(release.notes.contains(told), "{}", release.notes);
    let without = Chart::render(&[json!({})]);
    assert!(!without.cases[0].as_ref().unwrap().notes.contains("NetworkPolicy"));
}

#[test]
fn a_port_that_no_value_tells_is_asked_for() {
    let secret = |name: &str| {
        let from = json!({ "secretKeyRef": { "name": "a", "key": "b" } });
        json!({ "extraEnv": [{ "name": name, "valueFrom": from }] })
    };
    let cases: Vec<(Value, &str)> = vec![
        (
            json!({ "store": { "type": "redis", "redis": { "existingSecret": "redis" } } }),
            "`store.redis.existingSecret` has the URL, whose port the chart does not see: list it, `networkPolicy.redis.ports: [6379]`",
        ),
        (
            redis("redis+sentinel://a,b:26380/main"),
            "`store.redis.url` names Sentinels, and only they know the port of the master: list it with theirs, `networkPolicy.redis.ports: [26379, 26380, 6379]`",
        ),
        (
            redis("redis://redis:port"),
            "`store.redis.url` does not tell a port that the chart can read: list it, `networkPolicy.redis.ports: [6379]`",
        ),
        (redis("redis://redis:0"), "`networkPolicy.redis.ports: [6379]`"),
        (redis("redis://redis:65536"), "`networkPolicy.redis.ports: [6379]`"),
        (redis("redis://::1"), "`networkPolicy.redis.ports: [6379]`"),
        (
            secret("WEIR_STORE"),
            "`WEIR_STORE` of `extraEnv` has the URL, whose port the chart does not see: list it, `networkPolicy.redis.ports: [6379]`",
        ),
        (variable("WEIR_STORE", "redis://$(HOST)"), "`WEIR_STORE` of `extraEnv` does not tell a port"),
        (variable("WEIR_STORE", "redis://redis:$(PORT)/0"), "`WEIR_STORE` of `extraEnv` does not tell a port"),
        (variable("WEIR_STORE", "redis://u:s/cret@redis:6380"), "`WEIR_STORE` of `extraEnv` does not tell a port"),
        (variable("WEIR_STORE", "redis+sentinel://:p@a/main"), "`networkPolicy.redis.ports: [26379, 6379]`"),
        (merged(&secret("WEIR_UPSTREAM"), &upstreams(&["echo"])), "`networkPolicy.upstreams.ports: [3000]`"),
        (
            upstreams(&["/a=http://app:x"]),
            "`proxy.upstreams` does not tell a port that the chart can read: list it, `networkPolicy.upstreams.ports: [3000]`",
        ),
        (secret("WEIR_OVERRIDES"), "`networkPolicy.overrides.ports: [443]`"),
        (secret("OTEL_EXPORTER_OTLP_ENDPOINT"), "`networkPolicy.traces.ports: [4318]`"),
        (variable("OTEL_EXPORTER_OTLP_ENDPOINT", "http://$(HOST_IP):4318"), "`networkPolicy.traces.ports: [4318]`"),
        (
            json!({ "rules": { "existingConfigMap": "ours" } }),
            "the chart does not see whether the rules fetch keys (`jwks_url`): list the ports of these URLs, `networkPolicy.keys.ports: [443]`, or `[]` if there are none",
        ),
        (json!({ "rules": { "existingVolume": { "emptyDir": {} } } }), "`networkPolicy.keys.ports: [443]`"),
        (json!({ "rules": { "limits": "limits: { : }}" } }), "`networkPolicy.keys.ports: [443]`"),
    ];
    let values: Vec<Value> = cases.iter().map(|(values, _)| policy(values)).collect();
    let plain: Vec<Value> = cases.iter().map(|(values, _)| values.clone()).collect();
    let without = Chart::render(&plain).cases;
    for (((values, part), release), without) in cases.iter().zip(Chart::render(&values).cases).zip(without) {
        let error = release.err().unwrap_or_else(|| panic!("{values} is taken"));
        assert!(error.contains(part), "{values}: {part} is not in\n{error}");
        assert!(!error.contains("s/cret"), "{error}");
        // Without the policy nothing is cut off.
        without.unwrap_or_else(|error| panic!("{values}: {error}"));
    }
    let both = merged(&secret("WEIR_STORE"), &json!({ "rules": { "existingConfigMap": "ours" } }));
    let error = Chart::render(&[policy(&both)]).cases.remove(0).err().unwrap();
    let told: BTreeSet<bool> =
        ["networkPolicy.redis.ports", "networkPolicy.keys.ports"].map(|name| error.contains(name)).into();
    assert_eq!(told, [true].into(), "all at once: {error}");
}

/// A policy sees the port of a pod, and a Service may change it: upstreams are on any port unless the values say otherwise.
#[test]
fn upstreams_are_on_any_port_by_default() {
    let peers = json!([{ "podSelector": { "matchLabels": { "app": "shop" } } }]);
    let egress = |upstreams: &[&str]| {
        let proxy = json!({ "proxy": { "enabled": true, "upstreams": upstreams } });
        let release =
            Chart::render(&[policy(&merged(&proxy, &json!({ "networkPolicy": { "upstreams": { "to": peers } } })))]);
        let release = release.cases.into_iter().next().unwrap().unwrap();
        assert_eq!(release.mistakes, [""; 0]);
        (release.get("NetworkPolicy", "weir")["spec"]["egress"].as_array().unwrap()[1..].to_vec(), release.notes)
    };
    let (rules, notes) = egress(&["http://shop"]);
    assert_eq!(rules, [json!({ "to": peers })]);
    assert!(notes.contains("the ports 53, to all ports of upstreams, and to no others."), "{notes}");
    assert_eq!(egress(&["echo", "unix:/run/app.sock"]).0, [json!(null); 0]);
}
