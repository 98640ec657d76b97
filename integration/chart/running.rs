//! What the chart starts is what is tested: the command lines, variables and files of the rendered Deployment, on this
//! machine.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::kubelet::{Given, Pod, quiet_port};
use super::rendering::{Chart, NAMESPACE, merged, render, texts};
use crate::handover::{under_load, until_more};
use crate::support::certificates::Authority;
use crate::support::programs::client;
use crate::support::redis::{RedisConfig, RedisServer};
use crate::support::weir::Weir;
use crate::support::wire::Wire;
use crate::support::{becomes, eventually};

/// How soon a pod takes up what the kubelet has brought.
pub(super) const TAKEN_UP: Duration = Duration::from_secs(3);

/// Of which each address may have three requests.
const THREE: &str = "limits: { Three: { by: ip, burst: 3, count: 3, period: 60s } }";

/// All doors, on ports of this machine that are free, and as many threads as the chart says.
pub(super) fn doors() -> Value {
    let door = || json!({ "enabled": true, "port": quiet_port() });
    json!({
        "listenAddress": "127.0.0.1",
        "grpc": door(),
        "check": door(),
        "spoe": door(),
        "proxy": merged(&door(), &json!({ "upstreams": ["echo"] })),
        "admin": { "port": quiet_port() },
        "drain": { "delaySeconds": 0, "graceSeconds": 5 },
        "rules": { "limits": THREE },
    })
}

/// A pod with these values beside those of [`doors`].
#[track_caller]
pub(super) fn pod(values: &Value, given: Given) -> Pod {
    Pod::new(render(&merged(&doors(), values)), given)
}

/// Starts Weir's container, and waits until the kubelet would call the pod ready.
#[track_caller]
pub(super) fn start(pod: &Pod) -> Weir {
    let weir = Weir::launch("limits: {}", |_| pod.command("weir"));
    for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
        let asked = &pod.release.container()[probe]["httpGet"];
        let (port, path) = (asked["port"].as_str().unwrap(), asked["path"].as_str().unwrap());
        eventually(probe, || match Wire::connect(address(pod, port)).get(path) {
            answer if answer.status() == 200 => Ok(()),
            answer => Err(answer),
        });
    }
    weir
}

/// Where the container listens, by the name of the port.
#[track_caller]
pub(super) fn address(pod: &Pod, name: &str) -> SocketAddr {
    let ports = pod.release.container()["ports"].as_array().unwrap();
    let port = ports.iter().find(|port| port["name"] == name).unwrap_or_else(|| panic!("no port {name}"));
    SocketAddr::from(([127, 0, 0, 1], u16::try_from(port["containerPort"].as_u64().unwrap()).unwrap()))
}

fn secret(name: &str, values: &[(&str, &str)]) -> (String, BTreeMap<String, String>) {
    (name.to_owned(), values.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect())
}

#[test]
fn every_door_that_is_on_serves() {
    let operators = Given::from([secret("operators", &[("tokens", "alice 0123456789abcdef0123456789abcdef\n")])]);
    let pod = pod(&json!({ "admin": { "tokens": { "existingSecret": "operators" } } }), operators);
    let mut weir = start(&pod);
    // What the Services lead to.
    let mut named = 0;
    for service in pod.release.of("Service") {
        for port in service["spec"]["ports"].as_array().unwrap() {
            TcpStream::connect(address(&pod, port["targetPort"].as_str().unwrap())).unwrap();
            named += 1;
        }
    }
    assert_eq!(named, 3 + 3 + 1 + 1, "the decision doors twice, the proxy and the admin door");
    assert_eq!(weir.proxy, address(&pod, "proxy"));
    let answer = weir.get("/", &[]);
    assert_eq!((answer.status(), answer.field("ratelimit")), (200, Some("\"Three\";r=2;t=20")));
    // Envoy, as its own messages ask.
    let checks = client("envoy_client.py", &[&address(&pod, "grpc").to_string()]);
    assert!(checks["passed"].as_array().is_some_and(|passed| passed.len() >= 9), "{checks}");
    // nginx.
    let asked =
        [("x-original-uri", "/"), ("x-original-method", "GET"), ("x-original-host", "a"), ("x-real-ip", "192.0.2.99")];
    let statuses: Vec<_> =
        (0..4).map(|_| Wire::connect(address(&pod, "http-check")).get_with("/nginx", &asked).status()).collect();
    assert_eq!(statuses, [200, 200, 200, 403]);
    // HAProxy, which is answered with a HELLO.
    let mut haproxy = TcpStream::connect(address(&pod, "tcp-spoe")).unwrap();
    haproxy.write_all(&crate::spoe::hello()).unwrap();
    let mut answer = [0; 5];
    haproxy.read_exact(&mut answer).unwrap();
    assert_eq!(answer[4], 101, "AGENT-HELLO");
    // An operator.
    let bucket = |fields: &[(&str, &str)]| {
        let mut wire = Wire::connect(weir.admin);
        let mut head =
            "POST /buckets/Three:127.0.0.1/reset HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n".to_owned();
        for (name, value) in fields {
            head.extend([*name, ": ", *value, "\r\n"]);
        }
        wire.send(head + "\r\n");
        wire.response().status()
    };
    assert_eq!(bucket(&[]), 401);
    assert_eq!(bucket(&[("authorization", "Bearer 0123456789abcdef0123456789abcdef")]), 200);
    weir.signal("TERM");
    assert_eq!(weir.wait().code(), Some(0), "{}", weir.log());
}

/// What the kubelet is told to ask of a pod that goes: it is taken out of service while it still answers.
#[test]
fn a_pod_that_goes_says_so_and_still_answers() {
    let pod = pod(&json!({ "drain": { "delaySeconds": 30 } }), Given::new());
    let weir = start(&pod);
    weir.signal("TERM");
    let ready = &pod.release.container()["readinessProbe"]["httpGet"]["path"];
    eventually("the pod is not ready", || match weir.admin(ready.as_str().unwrap()).status() {
        503 => Ok(()),
        status => Err(status),
    });
    assert_eq!(weir.get("/", &[]).status(), 200);
}

#[test]
fn a_broken_rules_file_starts_no_pod() {
    let script = "limits: { Mine: { by: ip, algorithm: script, file: script.lua } }";
    let good = [
        (json!({ "overrides": "Three:10.0.0.1: { deny: true }" }), "1 limit, 1 override\n"),
        (json!({ "limits": script, "files": { "script.lua": "return {'allow', {}}" } }), "1 limit, 0 overrides\n"),
    ];
    let broken: [(Value, &[&str]); 5] = [
        (json!({ "limits": script }), &["limits.yaml:1:", "script.lua"]),
        (json!({ "limits": "limits:\n  A: { burts: 3 }\n" }), &["limits.yaml:2:8", "did you mean `burst`?"]),
        (json!({ "limits": "limits: [" }), &["limits.yaml:1:"]),
        (json!({ "overrides": "Four:10.0.0.1: { deny: true }" }), &["overrides.yaml:1:1", "unknown limit `Four`"]),
        (json!({ "envoyRatelimitKeys": ["web.yaml"], "files": { "web.yaml": "domains: web" } }), &["web.yaml:1:1"]),
    ];
    let cases: Vec<_> = good.iter().map(|(rules, _)| rules).chain(broken.iter().map(|(rules, _)| rules)).collect();
    let values: Vec<_> = cases.iter().map(|rules| merged(&doors(), &json!({ "rules": rules }))).collect();
    let mut outputs = Chart::render(&values).cases.into_iter().map(|release| {
        let output = Pod::new(release.unwrap(), Given::new()).command("check-rules").output().unwrap();
        (output.status.code().unwrap(), String::from_utf8([output.stdout, output.stderr].concat()).unwrap())
    });
    for ((rules, counted), (code, text)) in good.iter().zip(&mut outputs) {
        assert!(code == 0 && text.contains(counted), "{rules}: {text}");
    }
    for ((rules, parts), (code, text)) in broken.iter().zip(outputs) {
        assert_eq!(code, 1, "{rules}: {text}");
        for part in *parts {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
    }
}

/// What `helm test` runs in its pod, told where the Service is on this machine.
#[test]
fn helm_test_succeeds_with_a_pod_that_is_ready() {
    let pod = pod(&json!({}), Given::new());
    let weir = start(&pod);
    let test = pod.release.of("Pod").next().unwrap();
    let port = pod.release.get("Service", "weir-admin")["spec"]["ports"][0]["port"].clone();
    let there = format!("weir-admin.{NAMESPACE}.svc.cluster.local:{port}");
    let arguments = texts(&test["spec"]["containers"][0]["args"]);
    assert!(arguments.iter().any(|text| text.contains(&there)), "{arguments:?}");
    let run = || {
        let here = arguments.iter().map(|text| text.replace(&there, &weir.admin.to_string()));
        let output = Command::new(env!("CARGO_BIN_EXE_weir")).args(here).env_clear().output().unwrap();
        (output.status.code(), String::from_utf8([output.stdout, output.stderr].concat()).unwrap())
    };
    let (code, text) = run();
    assert_eq!(code, Some(0), "{text}");
    weir.signal("KILL");
    eventually("the pod is gone", || if run().0 == Some(1) { Ok(()) } else { Err(run()) });
}

#[test]
fn rules_may_come_from_a_config_map_of_ones_own() {
    let rules = json!({
        "limits": "",
        "existingConfigMap": "our-limits",
        "limitsKey": "ours.yaml",
        "overridesKeys": ["a.yaml", "b.yaml"],
    });
    let values = merged(&doors(), &json!({ "rules": rules }));
    let files = [
        ("ours.yaml", THREE),
        ("a.yaml", "Three:192.0.2.1: { deny: true }"),
        ("b.yaml", "Three:127.0.0.1: { burst: 9, count: 9, period: 90s }"),
    ];
    let pod = Pod::new(render(&values), Given::from([secret("our-limits", &files)]));
    let output = pod.command("check-rules").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let weir = start(&pod);
    assert_eq!(weir.get("/", &[]).field("ratelimit"), Some("\"Three\";r=8;t=10"));
}

/// The new files come as the kubelet brings them, from the `ConfigMap` as the chart renders it with other values.
#[test]
fn new_rules_are_taken_up_while_requests_go_on() {
    let rules = |burst: u32| {
        let limits = format!("limits:\n  Wide: {{ by: ip, burst: {burst}, count: {burst}, period: 1s }}\n");
        json!({ "rules": { "limits": limits } })
    };
    let overrides =
        json!({ "rules": { "overrides": "Wide:127.0.0.1: { burst: 3000000, count: 3000000, period: 1s }" } });
    let of = |values: &Value| render(&merged(&doors(), values)).config_map("weir-rules");
    let pod = pod(&rules(1_000_000), Given::new());
    let weir = start(&pod);
    let allowed = |weir: &Weir| weir.get("/", &[]).field("ratelimit-policy").unwrap_or_default().to_owned();
    let is_broken = |weir: &Weir| weir.admin("/readyz").text().contains("limits.yaml:1:1");
    under_load(weir.proxy, |answered| {
        until_more(answered, 50);
        pod.update("rules", &of(&rules(2_000_000)));
        within(TAKEN_UP, "the new numbers hold", || allowed(&weir) == "\"Wide\";q=2000000;w=1");
        // A broken file changes nothing, is told, and does not make the pod unready.
        pod.update("rules", &of(&json!({ "rules": { "limits": "limits: nonsense" } })));
        within(TAKEN_UP, "the broken file is told", || is_broken(&weir));
        assert_eq!((weir.admin("/readyz").status(), allowed(&weir).as_str()), (200, "\"Wide\";q=2000000;w=1"));
        // The first override that there is.
        pod.update("rules", &of(&merged(&rules(2_000_000), &overrides)));
        within(TAKEN_UP, "the override holds", || allowed(&weir) == "\"Wide\";q=3000000;w=1");
        until_more(answered, 50);
    });
    assert!(!is_broken(&weir));
    assert_eq!(weir.metric("weir_config_reloads_total{result=\"failure\"}"), 1);
}

/// Looks until it is so, for so long and no longer.
#[track_caller]
pub(super) fn within(limit: Duration, what: &str, mut look: impl FnMut() -> bool) {
    let start = Instant::now();
    while !look() {
        assert!(start.elapsed() < limit, "not within {limit:?}: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn redis_is_reached_with_the_password_of_a_secret() {
    let password = Some("s3cret".to_owned());
    let redis = RedisServer::start(&RedisConfig { password, ..RedisConfig::default() });
    let alone = json!({ "url": format!("redis://{}/1", redis.address()), "existingSecret": "redis" });
    let whole = json!({ "existingSecret": "redis", "urlKey": "the-url" });
    let values = [("redis-password", "s3cret"), ("the-url", &redis.url())];
    for of_redis in [alone, whole] {
        let values_of = json!({ "store": { "type": "redis", "redis": of_redis } });
        let pod = pod(&values_of, Given::from([secret("redis", &values)]));
        let weir = start(&pod);
        becomes("both workers are connected", 2, || weir.metric("weir_store_connections"));
        assert!(!weir.log().contains("s3cret"), "{}", weir.log());
    }
}

/// A pod starts without Redis and stays in service when it goes; what the limits say then is not the kubelet's matter.
#[test]
fn readiness_does_not_hang_on_redis() {
    let mut redis = RedisServer::start(&RedisConfig { tls: true, ..RedisConfig::default() });
    let read = |path: std::path::PathBuf| std::fs::read_to_string(path).unwrap();
    let files = [
        ("ca.crt", &*read(redis.ca_file())),
        ("tls.crt", &*read(redis.client_cert_file())),
        ("tls.key", &*read(redis.client_key_file())),
    ];
    let tls = json!({ "existingSecret": "redis-tls", "certKey": "tls.crt", "keyKey": "tls.key" });
    let values = json!({ "store": { "type": "redis", "redis": { "url": redis.url(), "tls": tls } } });
    let pod = pod(&values, Given::from([secret("redis-tls", &files)]));
    let weir = start(&pod);
    becomes("both workers are connected", 2, || weir.metric("weir_store_connections"));
    redis.kill();
    becomes("no worker is connected", 0, || weir.metric("weir_store_connections"));
    let ready = weir.admin("/readyz");
    assert_eq!(ready.status(), 200);
    assert!(ready.text().contains("\"status\":\"degraded\""), "{}", ready.text());
    drop(weir);
    // `start` waits until the probes succeed.
    let weir = start(&pod);
    assert!(weir.admin("/readyz").text().contains("\"store\":\"down\""));
}

#[test]
fn certificates_are_those_of_the_secrets() {
    let authority = Authority::new();
    authority.sign("www", &["www.example.com"]);
    let read = |name: &str| std::fs::read_to_string(authority.path(name)).unwrap();
    let (certificate, key, ca) = (read("www.pem"), read("www.key"), read("ca.pem"));
    let secrets = Given::from([
        secret("www-tls", &[("tls.crt", &certificate), ("tls.key", &key)]),
        secret("clients", &[("ca.crt", &ca)]),
    ]);
    let tls = json!({ "existingSecrets": ["www-tls"], "clientCA": { "existingSecret": "clients" } });
    let pod = pod(&json!({ "proxy": { "tls": tls } }), secrets);
    let weir = start(&pod);
    let port = pod.release.get("Service", "weir-proxy")["spec"]["ports"][0]["name"].clone();
    assert_eq!(port, "https");
    let curl = |more: &[&str]| {
        let url = format!("https://www.example.com:{}/", weir.proxy.port());
        let resolve = format!("www.example.com:{}:127.0.0.1", weir.proxy.port());
        let ca = authority.file("ca.pem");
        let fixed = ["-sS", "-o", "/dev/null", "-w", "%{http_code}", "--cacert", &ca, "--resolve", &resolve, &url];
        let output = Command::new("curl").args(fixed).args(more).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let (certificate, key) = (authority.file("www.pem"), authority.file("www.key"));
    assert_eq!(curl(&["--cert", &certificate, "--key", &key]), "200");
    assert_eq!(curl(&[]), "000", "a client without a certificate");
}
