//! Runs the commands of the rendered Deployment, with its variables and files, on this machine.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpStream};
use std::process::Command;

use serde_json::{Value, json};

use super::pod::{Given, Pod};
use super::rendering::{Chart, NAMESPACE, merged, render, texts};
use crate::support::binary;
use crate::support::certificates::Authority;
use crate::support::process::{finish, free_port, succeed};
use crate::support::redis::{RedisConfig, RedisServer};
use crate::support::weir::Weir;
use crate::support::wire::Wire;
use crate::support::{becomes, eventually};

/// Three requests for each address.
const THREE: &str = "limits: { Three: { by: ip/64, burst: 3, count: 3, period: 60s } }";

/// All listeners on free ports, with the chart's number of threads.
pub(super) fn listeners() -> Value {
    let listener = || json!({ "enabled": true, "port": free_port() });
    json!({
        "listenAddress": "127.0.0.1",
        "grpc": listener(),
        "check": listener(),
        "spoe": listener(),
        "proxy": merged(&listener(), &json!({ "upstreams": ["echo"] })),
        "admin": { "port": free_port() },
        "drain": { "delaySeconds": 0, "graceSeconds": 5 },
        "rules": { "limits": THREE },
    })
}

/// A pod with these values beside those of [`listeners`].
#[track_caller]
pub(super) fn pod(values: &Value, given: Given) -> Pod {
    Pod::new(render(&merged(&listeners(), values)), given)
}

/// Starts Weir's container and waits until its probes succeed.
#[track_caller]
pub(super) fn start(pod: &Pod) -> Weir {
    for first in pod.release.pod()["initContainers"].as_array().unwrap() {
        succeed(&mut pod.command(first["name"].as_str().unwrap()));
    }
    let weir = Weir::launch("limits: {}", |_| pod.command("weir"));
    for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
        let asked = &pod.release.container()[probe];
        if let Some(words) = asked["exec"]["command"].as_array() {
            eventually(probe, || match finish(&mut pod.exec(words)) {
                finished if finished.code == Some(0) => Ok(()),
                finished => Err(finished),
            });
            continue;
        }
        let asked = &asked["httpGet"];
        let (port, path) = (asked["port"].as_str().unwrap(), asked["path"].as_str().unwrap());
        eventually(probe, || match Wire::connect(address(pod, port)).get(path) {
            answer if answer.status() == 200 => Ok(()),
            answer => Err(answer),
        });
    }
    weir
}

/// The container's address for a named port.
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
fn every_listener_that_is_on_serves() {
    let operators = Given::from([secret("operators", &[("tokens", "alice 0123456789abcdef0123456789abcdef\n")])]);
    let pod = pod(&json!({ "admin": { "tokens": { "existingSecret": "operators" } } }), operators);
    let mut weir = start(&pod);
    // Every port of the Services leads to a listener.
    let mut named = 0;
    for service in pod.release.of("Service") {
        for port in service["spec"]["ports"].as_array().unwrap() {
            TcpStream::connect(address(&pod, port["targetPort"].as_str().unwrap())).unwrap();
            named += 1;
        }
    }
    assert_eq!(named, 3 + 3 + 1 + 1, "the decision listeners twice, the proxy and the admin listener");
    assert_eq!(weir.proxy, address(&pod, "proxy"));
    let answer = weir.get("/", &[]);
    assert_eq!((answer.status(), answer.header("ratelimit")), (200, Some("\"Three\";r=2;t=20")));
    // An operator's token works.
    let bucket = |headers: &[(&str, &str)]| {
        let mut wire = Wire::connect(weir.admin);
        let mut head =
            "POST /buckets/Three:127.0.0.1/reset HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n".to_owned();
        for (name, value) in headers {
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

#[test]
fn a_broken_rules_file_starts_no_pod() {
    let script = "limits: { Mine: { by: ip/64, algorithm: script, file: script.lua } }";
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
    let values: Vec<_> = cases.iter().map(|rules| merged(&listeners(), &json!({ "rules": rules }))).collect();
    let mut outputs = Chart::render(&values).cases.into_iter().map(|release| {
        let finished = finish(&mut Pod::new(release.unwrap(), Given::new()).command("check-rules"));
        (finished.code, finished.text())
    });
    for ((rules, counted), (code, text)) in good.iter().zip(&mut outputs) {
        assert!(code == Some(0) && text.contains(counted), "{rules}: {text}");
    }
    for ((rules, parts), (code, text)) in broken.iter().zip(outputs) {
        assert_eq!(code, Some(1), "{rules}: {text}");
        for part in *parts {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
    }
}

/// The command of `helm test`, with the Service's address on this machine.
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
        finish(binary::command(&[]).args(here).env_clear())
    };
    let ready = run();
    assert_eq!(ready.code, Some(0), "{}", ready.text());
    weir.signal("KILL");
    eventually("the pod is gone", || Some(run()).filter(|gone| gone.code == Some(1)).ok_or(()));
}

/// The pod of `helm test` applies the release's rules to a request, and fails if they are broken.
#[test]
fn helm_test_decides_about_a_request() {
    let pod = pod(&json!({}), Given::new());
    let decided = finish(&mut pod.command("decision"));
    assert!(decided.code == Some(0) && decided.text().contains("Three: applies"), "{}", decided.text());
    std::fs::write(pod.volume("rules").join("limits.yaml"), "limits: { Three: { burst: many } }").unwrap();
    let broken = finish(&mut pod.command("decision"));
    assert!(broken.code == Some(1) && broken.text().contains("limits.yaml:1:"), "{}", broken.text());
}

#[test]
fn rules_may_come_from_a_config_map_of_ones_own() {
    let rules = json!({
        "limits": "",
        "existingConfigMap": "our-limits",
        "limitsKey": "ours.yaml",
        "overridesKeys": ["a.yaml", "b.yaml"],
    });
    let values = merged(&listeners(), &json!({ "rules": rules }));
    let files = [
        ("ours.yaml", THREE),
        ("a.yaml", "Three:192.0.2.1: { deny: true }"),
        ("b.yaml", "Three:127.0.0.1: { burst: 9, count: 9, period: 90s }"),
    ];
    let pod = Pod::new(render(&values), Given::from([secret("our-limits", &files)]));
    succeed(&mut pod.command("check-rules"));
    let weir = start(&pod);
    assert_eq!(weir.get("/", &[]).header("ratelimit"), Some("\"Three\";r=8;t=10"));
}

#[test]
fn redis_is_reached_with_the_password_of_a_secret() {
    // A URL would need all of these percent-encoded.
    let password = "s3cret/@:?#%25";
    let redis = RedisServer::start(&RedisConfig { password: Some(password.to_owned()), ..RedisConfig::default() });
    let alone = json!({ "url": format!("redis://{}/1", redis.address()), "existingSecret": "redis" });
    let whole = json!({ "existingSecret": "redis", "urlKey": "the-url" });
    let url = format!("redis://:s3cret%2F%40%3A%3F%23%2525@{}/1", redis.address());
    let values = [("redis-password", password), ("the-url", &url)];
    for of_redis in [alone, whole] {
        let values_of = json!({ "store": { "type": "redis", "redis": of_redis } });
        let pod = pod(&values_of, Given::from([secret("redis", &values)]));
        let weir = start(&pod);
        becomes("both workers are connected", 2, || weir.metric("weir_store_connections"));
        assert!(!weir.log().contains("s3cret"), "{}", weir.log());
    }
}

#[test]
fn every_listener_takes_its_certificate_from_a_secret() {
    let authority = Authority::new();
    authority.sign("own", &[&format!("weir-admin.{NAMESPACE}.svc.cluster.local"), "weir.example.com"]);
    let read = |name: &str| std::fs::read_to_string(authority.path(name)).unwrap();
    let (certificate, key, ca) = (read("own.pem"), read("own.key"), read("ca.pem"));
    let tls = json!({ "tls": { "existingSecret": "own", "clientCA": { "existingSecret": "clients" } } });
    let values = ["grpc", "check", "spoe", "admin"].map(|name| (name.to_owned(), tls.clone())).into_iter().collect();
    let secrets = Given::from([
        secret("own", &[("tls.crt", &certificate), ("tls.key", &key), ("ca.crt", &ca)]),
        secret("clients", &[("ca.crt", &ca)]),
    ]);
    let pod = pod(&Value::Object(values), secrets);
    // The probes succeed, with the pod's own certificate.
    let _weir = start(&pod);
    let config = authority.client(Some("own"), &[]);
    for name in ["grpc", "http-check", "tcp-spoe", "admin"] {
        let mut stream = TcpStream::connect(address(&pod, name)).unwrap();
        let host = rustls::pki_types::ServerName::try_from("weir.example.com").unwrap();
        let mut connection = rustls::ClientConnection::new(config.clone(), host).unwrap();
        connection.complete_io(&mut stream).unwrap();
        assert!(!connection.is_handshaking(), "{name}");
    }
    // `helm test` asks the Service by its name.
    let test = pod.release.of("Pod").next().unwrap();
    let health = &test["spec"]["containers"][0];
    assert!(health["args"][2].as_str().unwrap().starts_with("https://weir-admin."), "{health}");
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
        finish(Command::new("curl").args(fixed).args(more)).out
    };
    let (certificate, key) = (authority.file("www.pem"), authority.file("www.key"));
    assert_eq!(curl(&["--cert", &certificate, "--key", &key]), "200");
    assert_eq!(curl(&[]), "000", "a client without a certificate");
}
