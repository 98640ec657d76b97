//! The values that the chart is tested with.

use serde_json::{Value, json};

/// Everything that can be switched on, with TLS on the proxy and plain Redis.
pub(super) fn everything() -> Value {
    json!({
        "grpc": { "enabled": true, "tls": listener_tls("grpc") },
        "check": { "enabled": true, "tls": listener_tls("check") },
        "spoe": { "enabled": true, "tls": { "clientCA": { "existingSecret": "spoe-clients" } } },
        "certManager": {
            "listeners": ["spoe", "proxy"],
            "issuerRef": { "name": "inner" },
            "dnsNames": { "proxy": ["www.example.com"], "spoe": ["limits.example.com"] },
            "duration": "2160h",
        },
        "proxy": {
            "enabled": true,
            "upstreams": ["api.example.com/v1=http://a.default.svc:3000,http://b.default.svc:3000", "echo"],
            "service": {
                "type": "LoadBalancer",
                "nodePort": 30080,
                "loadBalancerClass": "example.com/inner",
                "loadBalancerSourceRanges": ["10.0.0.0/8"],
                "externalTrafficPolicy": "Local",
            },
            "httpRoute": {
                "enabled": true,
                "parentRefs": [{ "name": "web", "namespace": "gateways", "sectionName": "https" }],
                "hostnames": ["api.example.com"],
            },
            "ingress": {
                "enabled": true,
                "className": "nginx",
                "hosts": ["api.example.com", "www.example.com"],
                "tls": [{ "hosts": ["api.example.com"], "secretName": "api-tls" }],
            },
            "tls": { "existingSecrets": ["www-tls", "api.example.com"], "clientCA": { "existingSecret": "clients" } },
            "upstreamTLS": { "existingSecret": "inner", "certKey": "tls.crt", "keyKey": "tls.key" },
        },
        "admin": { "tokens": { "existingSecret": "operators" }, "tls": listener_tls("admin") },
        "rules": {
            "limits": "limits: { Three: { by: ip, burst: 3, count: 3, period: 60s } }",
            "overrides": "Three:10.0.0.1: { deny: true }",
            "files": { "script.lua": "return {}", "web.yaml": "domain: web\ndescriptors: []\n" },
            "envoyRatelimitKeys": ["web.yaml"],
            "overridesUrls": ["https://plans.example.com/overrides.yaml"],
        },
        "store": {
            "type": "redis",
            "redis": {
                "url": "rediss://redis.default.svc:6379/1",
                "existingSecret": "redis",
                "username": "limiter",
                "tls": { "existingSecret": "redis-tls", "certKey": "tls.crt", "keyKey": "tls.key" },
            },
        },
        "flags": { "max-keys": 10_000_000, "trusted-proxies": ["10.0.0.0/8"], "shadow": true },
        "imagePullSecrets": [{ "name": "registry" }],
        "service": {
            "type": "LoadBalancer",
            "nodePorts": { "grpc": 30081, "check": 30082, "spoe": 30083 },
            "loadBalancerSourceRanges": ["10.0.0.0/8"],
            "ipFamilyPolicy": "PreferDualStack",
        },
        "deploymentAnnotations": { "reloader.stakater.com/auto": "true" },
        "lifecycle": { "preStop": { "exec": { "command": ["/usr/bin/weir", "health"] } } },
        "autoscaling": { "enabled": true, "targetMemoryUtilizationPercentage": 80 },
        "networkPolicy": {
            "enabled": true,
            "gateways": [{ "ipBlock": { "cidr": "10.0.0.0/8" } }],
            "upstreams": { "ports": [3000] },
            "keys": { "ports": [443] },
            "traces": { "ports": [4318] },
        },
        "serviceMonitor": { "enabled": true, "labels": { "release": "prometheus" }, "scrapeTimeout": "10s", "tlsConfig": { "ca": { "secret": { "name": "ca", "key": "ca.crt" } } } },
        "prometheusRule": { "enabled": true, "labels": { "release": "prometheus" } },
        "dashboards": { "enabled": true, "annotations": { "grafana_folder": "Weir" } },
        "envoyGateway": {
            "enabled": true,
            "namespace": "gateways",
            "targetRefs": [{ "kind": "Gateway", "name": "web", "sectionName": "https" }],
        },
        "istio": {
            "enabled": true,
            "providerRegistered": true,
            "namespace": "istio-ingress",
            "selector": { "istio": "ingress" },
        },
        "traefik": { "enabled": true, "namespace": "web", "authResponseHeaders": ["x-queue-entry"], "tls": { "caSecret": "weir-ca" } },
    })
}

/// A certificate of a listener and authorities for its clients.
fn listener_tls(name: &str) -> Value {
    json!({ "existingSecret": format!("{name}-tls"), "clientCA": { "existingSecret": format!("{name}-clients") } })
}

/// Typical choices of users.
pub(super) fn combinations() -> Vec<Value> {
    let flags = ["imagePullSecrets", "autoscaling", "networkPolicy", "serviceMonitor", "istio", "traefik"];
    let mut all: Vec<Value> =
        flags.iter().map(|flag| json!({ *flag: everything()[flag], "check": { "enabled": true } })).collect();
    let recreate = json!({ "type": "Recreate", "rollingUpdate": null });
    all.extend([
        json!({}),
        everything(),
        json!({
            "proxy": { "enabled": true, "upstreams": ["echo"], "ingress": { "enabled": true } },
            "global": { "imageRegistry": "mirror.example.com", "imagePullSecrets": ["mirror", { "name": "other" }] },
            "serviceMonitor": { "enabled": true, "namespace": "monitoring" },
            "prometheusRule": { "enabled": true, "namespace": "monitoring" },
        }),
        json!({ "grpc": { "enabled": false }, "check": { "enabled": true }, "headlessService": { "enabled": false } }),
        json!({ "grpc": { "enabled": false }, "spoe": { "enabled": true }, "listenAddress": "::" }),
        json!({ "grpc": { "enabled": false }, "proxy": { "enabled": true, "upstreams": ["echo"] },
                "networkPolicy": { "enabled": true, "clients": [{ "ipBlock": { "cidr": "192.0.2.0/24" } }] } }),
        json!({ "store": { "type": "redis", "redis": { "url": "redis://redis:6379" } } }),
        json!({
            "store": { "type": "redis", "redis": { "existingSecret": "redis" } },
            "networkPolicy": {
                "enabled": true,
                "redis": { "to": [{ "podSelector": { "matchLabels": { "app": "redis" } } }], "ports": [6380] },
            },
        }),
        json!({ "rules": { "existingConfigMap": "our-limits", "overridesKeys": ["a.yaml", "b.yaml"] } }),
        json!({ "rules": { "limitsKey": "", "envoyRatelimitKeys": ["web.yaml"],
                "existingVolume": { "projected": { "sources": [{ "configMap": { "name": "web" } }] } } } }),
        json!({ "serviceAccount": { "create": false, "name": "ours", "automountServiceAccountToken": true } }),
        json!({ "image": { "digest": format!("sha256:{}", "0".repeat(64)) }, "fullnameOverride": "limiter" }),
        json!({ "podDisruptionBudget": { "enabled": false }, "updateStrategy": recreate }),
        json!({ "podDisruptionBudget": { "maxUnavailable": "25%" }, "replicaCount": 0 }),
        json!({ "kind": "DaemonSet", "service": { "internalTrafficPolicy": "Local" }, "rules": { "limits": "limits: {}" } }),
        names_of_digits(),
        json!({ "envoyGateway": { "enabled": true, "targetRefs": [{ "kind": "HTTPRoute", "name": "api" }] } }),
        json!({ "istio": { "enabled": true, "providerRegistered": true, "targetRefs": [{ "kind": "Gateway", "name": "web" }] } }),
        json!({
            "affinity": { "nodeAffinity": {} },
            "tolerations": [{ "key": "edge", "operator": "Exists" }],
            "topologySpreadConstraints": [
                { "maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule" },
            ],
            "priorityClassName": "high",
            "runtimeClassName": "gvisor",
            "dnsPolicy": "Default",
            "dnsConfig": { "options": [{ "name": "ndots", "value": "1" }] },
            "hostAliases": [{ "ip": "192.0.2.1", "hostnames": ["redis"] }],
            "nodeSelector": { "disk": "ssd" },
        }),
        json!({
            "extraEnv": [{ "name": "WEIR_LOG", "value": "debug" }],
            "extraEnvFrom": [{ "configMapRef": { "name": "more" } }],
            "extraVolumes": [{ "name": "more", "emptyDir": {} }],
            "extraVolumeMounts": [{ "name": "more", "mountPath": "/more" }],
            "extraInitContainers": [{ "name": "before", "image": "before:1", "securityContext": hardened() }],
            "extraContainers": [{ "name": "beside", "image": "beside:1", "securityContext": hardened() }],
            "extraObjects": [
                { "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "{{ .Release.Name }}-more" } },
            ],
        }),
        json!({
            "commonLabels": { "team": "edge", "helm.sh/chart": "theirs", "app.kubernetes.io/component": "theirs" },
            "commonAnnotations": { "owner": "edge" },
            "podLabels": { "a": "b", "app.kubernetes.io/name": "theirs" },
            "podAnnotations": { "c": "d" },
            "service": { "annotations": { "e": "f" } },
        }),
    ]);
    all
}

/// Names that YAML would read as numbers.
fn names_of_digits() -> Value {
    let secret = json!({ "existingSecret": "123" });
    json!({
        "check": { "enabled": true },
        "image": { "registry": "", "repository": "123", "tag": "1e3" },
        "rules": { "existingConfigMap": "123", "limitsKey": "123", "overridesKeys": ["456"] },
        "proxy": {
            "enabled": true,
            "upstreams": ["echo"],
            "tls": { "existingSecrets": ["123"], "clientCA": secret },
            "service": { "type": "LoadBalancer", "loadBalancerClass": "123" },
        },
        "admin": { "tokens": { "existingSecret": "123", "key": "123" } },
        "store": { "type": "redis", "redis": { "existingSecret": "123", "urlKey": "123", "tls": secret } },
        "priorityClassName": "123",
        "runtimeClassName": "123",
        "nodeSelector": { "a": "123" },
        "commonLabels": { "a": "true" },
        "imagePullSecrets": [{ "name": "123" }],
        "envoyGateway": { "enabled": true, "namespace": "123", "targetRefs": [{ "kind": "Gateway", "name": "123" }] },
        "istio": { "enabled": true, "providerRegistered": true, "namespace": "123", "provider": "123" },
        "traefik": { "enabled": true, "namespace": "123" },
    })
}

fn hardened() -> Value {
    json!({ "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] } })
}
