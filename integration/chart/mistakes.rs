//! The chart's errors for wrong values.

use serde_json::{Value, json};

use super::rendering::Chart;

/// Renders all cases; each must fail with a text that contains these parts.
#[track_caller]
fn check(cases: &[(Value, &[&str])]) {
    let values: Vec<_> = cases.iter().map(|(values, _)| values.clone()).collect();
    for ((values, parts), release) in cases.iter().zip(Chart::render(&values).cases) {
        let Err(error) = release else { panic!("{values} is taken") };
        for part in *parts {
            assert!(error.contains(part), "{values}: {part} is not in\n{error}");
        }
    }
}

#[test]
fn what_the_schema_does_not_know_is_rejected_with_its_place() {
    check(&[
        (json!({ "grcp": {} }), &["at '': additional properties 'grcp' not allowed"]),
        (json!({ "grpc": { "prot": 9001 } }), &["at '/grpc': additional properties 'prot' not allowed"]),
        (json!({ "grpc": { "enabled": "yes" } }), &["at '/grpc/enabled': got string, want boolean"]),
        (json!({ "check": { "port": 70_000 } }), &["at '/check/port': maximum: got 70,000, want 65,535"]),
        (json!({ "replicaCount": -1 }), &["at '/replicaCount': minimum: got -1, want 0"]),
        (json!({ "replicaCount": "two" }), &["at '/replicaCount': got string, want integer"]),
        (
            json!({ "image": { "digest": "latest" } }),
            &["at '/image/digest': 'latest' does not match pattern '^(sha256:"],
        ),
        (
            json!({ "image": { "pullPolicy": "Sometimes" } }),
            &["at '/image/pullPolicy': value must be one of 'Always', "],
        ),
        (json!({ "rules": { "limits": { "A": {} } } }), &["at '/rules/limits': got object, want string"]),
        (json!({ "proxy": { "upstreams": "http://a" } }), &["at '/proxy/upstreams': got string, want array"]),
        (json!({ "store": { "type": "redys" } }), &["at '/store/type': value must be one of 'memory', 'redis'"]),
        (
            json!({ "store": { "type": "redis", "redis": { "url": "redis://:secret@redis" } } }),
            &["at '/store/redis/url': ", "does not match pattern '^(rediss?(\\\\+cluster|\\\\+sentinel)?://[^@]+)?$'"],
        ),
        (
            json!({ "flags": { "store-timeot": "20ms" } }),
            &["at '/flags': additional properties 'store-timeot' not allowed"],
        ),
        (json!({ "flags": { "store-timeout": "20" } }), &["at '/flags/store-timeout': '20' does not match pattern"]),
        (json!({ "flags": { "max-keys": 0 } }), &["at '/flags/max-keys': minimum: got 0, want 1"]),
        // Nothing is set twice.
        (json!({ "flags": { "grpc": "0.0.0.0:1" } }), &["at '/flags': additional properties 'grpc' not allowed"]),
        (json!({ "drain": { "graceSeconds": "30s" } }), &["at '/drain/graceSeconds': got string, want integer"]),
        (json!({ "commonLabels": { "a": 1 } }), &["at '/commonLabels/a': got number, want string"]),
        (json!({ "extraEnv": { "WEIR_LOG": "debug" } }), &["at '/extraEnv': got object, want array"]),
        (
            json!({ "envoyGateway": { "targetRefs": [{ "kind": "Service" }] } }),
            &["at '/envoyGateway/targetRefs/0': missing property 'name'", "/0/kind': value must be one of 'Gateway', "],
        ),
    ]);
}

#[test]
fn all_mistakes_are_told_at_once() {
    let values = json!({ "grpc": { "port": "a" }, "store": { "typ": 1 }, "flags": { "workers": 0 } });
    check(&[(values, &["/grpc/port", "'typ'", "/flags/workers"])]);
    let values = json!({
        "store": { "type": "redis" },
        "proxy": { "enabled": true },
        "traefik": { "enabled": true },
        "check": { "port": 9001 },
    });
    check(&[(
        values,
        &["`store.type` is redis: give `store.redis.url`", "`proxy.upstreams` is empty", "`check.enabled: true`"],
    )]);
}

#[test]
fn values_that_do_not_go_together_are_rejected() {
    let redis = |redis: Value| json!({ "store": { "type": "redis", "redis": redis } });
    let tls = json!({ "existingSecret": "a", "certKey": "tls.crt" });
    check(&[
        (json!({ "grpc": { "enabled": false } }), &["no listener is open"]),
        (json!({ "check": { "enabled": true, "port": 9001 } }), &["`grpc.port` and `check.port` are both 9001"]),
        (json!({ "grpc": { "port": 9090 } }), &["`admin.port` and `grpc.port` are both 9090"]),
        (
            json!({ "store": { "redis": { "url": "redis://redis" } } }),
            &["`store.type` is memory: set `store.type: redis`"],
        ),
        (
            redis(json!({ "url": "redis://redis", "tls": tls })),
            &["`store.redis.tls.certKey` and `keyKey` come together"],
        ),
        (json!({ "proxy": { "upstreamTLS": tls } }), &["`proxy.upstreamTLS.certKey` and `keyKey` come together"]),
        (json!({ "proxy": { "tls": { "clientCA": { "existingSecret": "a" } } } }), &["`proxy.tls.clientCA` needs TLS"]),
        (
            json!({ "rules": { "existingConfigMap": "a", "limits": "limits: {}" } }),
            &["`rules.limits`, `rules.overrides` and `rules.files` would not be used"],
        ),
        (
            json!({ "rules": { "existingConfigMap": "a", "existingVolume": { "emptyDir": {} } } }),
            &["`rules.existingConfigMap` and `rules.existingVolume` are both given"],
        ),
        (json!({ "rules": { "existingConfigMap": "a", "limitsKey": "" } }), &["`rules.limitsKey` is empty"]),
        (
            json!({ "rules": { "envoyRatelimitKeys": ["a.yaml"] } }),
            &["names `a.yaml`, and `rules.files` has no such file"],
        ),
        (json!({ "rules": { "files": { "limits.yaml": "" } } }), &["write it as `rules.limits`"]),
        (json!({ "autoscaling": { "enabled": true, "minReplicas": 11 } }), &["`autoscaling.minReplicas` is 11 and"]),
        (
            json!({ "autoscaling": { "enabled": true, "targetCPUUtilizationPercentage": 0 } }),
            &["`autoscaling` has nothing to go by"],
        ),
        (
            json!({ "proxy": { "httpRoute": { "enabled": true } } }),
            &[
                "`proxy.httpRoute` leads to the proxy: set `proxy.enabled: true`",
                "`proxy.httpRoute.parentRefs` is empty",
            ],
        ),
        (json!({ "proxy": { "ingress": { "enabled": true } } }), &["`proxy.ingress` leads to the proxy"]),
        (json!({ "envoyGateway": { "enabled": true } }), &["`envoyGateway.targetRefs` is empty"]),
        (
            json!({ "envoyGateway": { "enabled": true }, "grpc": { "enabled": false }, "check": { "enabled": true } }),
            &["`envoyGateway` asks over gRPC: set `grpc.enabled: true`"],
        ),
        (
            json!({ "istio": { "enabled": true }, "grpc": { "enabled": false }, "check": { "enabled": true } }),
            &["`istio` asks over gRPC", "`istio` would have Weir's own pods ask Weir"],
        ),
        (
            json!({ "istio": {
                "enabled": true,
                "selector": { "a": "b" },
                "targetRefs": [{ "kind": "Gateway", "name": "a" }],
            } }),
            &["`istio.selector` and `istio.targetRefs` are both given"],
        ),
    ]);
}
