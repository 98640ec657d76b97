//! Weir under the name of envoyproxy/ratelimit, with its environment, ports and paths.

mod files;

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use serde_json::{Value as Json, json};

use crate::support::binary::PATH;
use crate::support::process::{Finished, finish};
use crate::support::programs::repository;
use crate::support::redis::{RedisConfig, RedisServer};
use crate::support::weir::Weir;
use crate::support::wire::{Message, Wire};
use crate::support::{becomes, eventually};
use crate::xds::management_server::ManagementServer;
use crate::xds::{certificates, config, descriptor, mount};

const PASSWORD: &str = "s3cret-of-redis";

const RULES: &str = "domain: web
descriptors:
- key: user
  rate_limit: { unit: hour, requests_per_unit: 5 }
- key: user
  value: ann
  rate_limit: { unit: minute, requests_per_unit: 1 }
  shadow_mode: true
- key: path
  value: /free
  rate_limit: { unlimited: true }
";

/// `ratelimit` in this directory, as a link to Weir, on ports that the system picks.
fn ratelimit(directory: &Path) -> Command {
    let program = directory.join("ratelimit");
    let _ = symlink(PATH, &program);
    let mut command = Command::new(program);
    command.envs([("HOST", "127.0.0.1"), ("PORT", "0"), ("DEBUG_HOST", "127.0.0.1"), ("DEBUG_PORT", "0")]);
    command.envs([("GRPC_HOST", "127.0.0.1"), ("GRPC_PORT", "0"), ("LOG_FORMAT", "json"), ("LOG_LEVEL", "info")]);
    command
}

/// Starts it with further variables. The proxy and the admin listener are what the tests' harness waits for.
#[track_caller]
fn start(variables: &[(&str, &str)]) -> Weir {
    start_with(&["--store-timeout", "1m"], variables)
}

/// The same with these flags.
#[track_caller]
fn start_with(flags: &[&str], variables: &[(&str, &str)]) -> Weir {
    Weir::launch("", |directory| {
        let rules = directory.join("data/ratelimit/config");
        fs::create_dir_all(&rules).unwrap();
        fs::write(rules.join("web.yaml"), RULES).unwrap();
        let mut command = ratelimit(directory);
        command.args(["--upstream", "echo", "--proxy", "127.0.0.1:0", "--admin", "127.0.0.1:0"]).args(flags);
        command.env("RUNTIME_ROOT", directory.join("data")).env("RUNTIME_SUBDIRECTORY", "ratelimit");
        command.envs(variables.iter().copied());
        command
    })
}

/// Its HTTP and its debug address, which are those of the check listeners.
fn ports(weir: &Weir) -> [SocketAddr; 2] {
    let log = weir.log();
    let events = log.lines().filter_map(|line| serde_json::from_str::<Json>(line).ok());
    let open =
        events.filter(|event| event["fields"]["message"] == "listening" && event["fields"]["listener"] == "check");
    let addresses: Vec<_> = open.map(|event| event["fields"]["address"].as_str().unwrap().parse().unwrap()).collect();
    addresses.try_into().unwrap()
}

fn get(address: SocketAddr, path: &str) -> Message {
    Wire::connect(address).get_from("10-0-0-1.pod.cluster.local", path, &[])
}

fn post(address: SocketAddr, headers: &str, body: &str) -> Message {
    let mut wire = Wire::connect(address);
    wire.send(format!("POST /json HTTP/1.1\r\nhost: a\r\n{headers}content-length: {}\r\n\r\n{body}", body.len()));
    wire.response()
}

fn ask(address: SocketAddr, user: &str) -> (u16, Json) {
    let call = json!({ "domain": "web", "descriptors": [{ "entries": [{ "key": "user", "value": user }] }] });
    let answer = post(address, "", &call.to_string());
    (answer.status(), serde_json::from_str(answer.text()).unwrap())
}

/// The variables that Envoy Gateway sets, where files stand in for the management server, on a Redis with a password.
#[test]
fn it_counts_in_redis_and_answers_at_each_port() {
    let redis = RedisServer::start(&RedisConfig { password: Some(PASSWORD.to_owned()), ..RedisConfig::default() });
    let address = redis.address();
    let weir = start(&[
        ("RUNTIME_IGNOREDOTFILES", "true"),
        ("RUNTIME_WATCH_ROOT", "false"),
        ("USE_STATSD", "false"),
        ("FORCE_START_WITHOUT_INITIAL_CONFIG", "true"),
        ("REDIS_SOCKET_TYPE", "tcp"),
        ("REDIS_URL", &address),
        ("REDIS_AUTH", PASSWORD),
        ("USE_PROMETHEUS", "true"),
        ("PROMETHEUS_ADDR", "127.0.0.1:0"),
        ("PROMETHEUS_MAPPER_YAML", "/etc/statsd-exporter/conf.yaml"),
    ]);
    weir.until_connected();
    let [http, debug] = ports(&weir);
    let health = get(http, "/healthcheck");
    assert_eq!((health.status(), health.text()), (200, "OK"));
    let rules = get(debug, "/rlconfig");
    let mut lines: Vec<_> = rules.text().lines().collect();
    lines.sort_unstable();
    let expected = [
        "web.path_/free: unit=UNKNOWN requests_per_unit=0, shadow_mode: false",
        "web.user: unit=HOUR requests_per_unit=5, shadow_mode: false",
        "web.user_ann: unit=MINUTE requests_per_unit=1, shadow_mode: true",
    ];
    assert_eq!((rules.status(), &lines[..]), (200, &expected[..]));

    let (status, answer) = ask(http, "bob");
    assert_eq!((status, &answer["overallCode"]), (200, &json!("OK")));
    let left = &answer["statuses"][0];
    assert_eq!(left["currentLimit"], json!({ "requestsPerUnit": 5, "unit": "HOUR" }));
    assert_eq!((&left["code"], &left["limitRemaining"]), (&json!("OK"), &json!(4)));
    assert!(left["durationUntilReset"].as_str().is_some_and(|time| time.ends_with('s')), "{answer}");
    assert_eq!(answer.get("responseHeadersToAdd"), None, "LIMIT_RESPONSE_HEADERS_ENABLED is not set");
    for left in [3, 2, 1, 0] {
        let (status, answer) = ask(debug, "bob");
        assert_eq!((status, answer["statuses"][0]["limitRemaining"].as_u64().unwrap_or(0)), (200, left));
    }
    let (status, answer) = ask(http, "bob");
    assert_eq!((status, &answer["overallCode"]), (429, &json!("OVER_LIMIT")));
    assert!(redis.cli(&["DBSIZE"]).trim().ends_with('1'), "{}", redis.cli(&["KEYS", "*"]));

    let metrics = get(weir.listener("metrics"), "/metrics");
    let near = "weir_near_limit_total{limit=\"web/user\"} 2";
    assert!(metrics.status() == 200 && metrics.text().lines().any(|line| line == near), "{}", metrics.text());
    let log = weir.log();
    let notes: Vec<_> = log.lines().filter(|line| line.contains("has no effect")).collect();
    assert!(notes.len() == 1 && notes[0].contains("PROMETHEUS_MAPPER_YAML has no effect: "), "{log}");
    let line = fs::read_to_string(format!("/proc/{}/cmdline", weir.id())).unwrap();
    assert!(!log.contains(PASSWORD) && !line.contains(PASSWORD), "{line}\n{log}");
}

/// The defaults are those of envoyproxy/ratelimit, for which Redis may take 10 s.
#[test]
fn it_waits_for_a_slow_redis() {
    let redis = RedisServer::plain();
    let address = redis.address();
    let weir = start_with(&[], &[("REDIS_SOCKET_TYPE", "tcp"), ("REDIS_URL", &address)]);
    weir.until_connected();
    let [http, _] = ports(&weir);
    assert_eq!(ask(http, "bob").0, 200);
    redis.cli(&["CLIENT", "PAUSE", "1500"]);
    let (status, answer) = ask(http, "bob");
    assert_eq!((status, &answer["statuses"][0]["limitRemaining"]), (200, &json!(3)), "{answer}");
}

/// A port of its own has the place of the admin listener's, and the metrics are at both families of addresses.
#[test]
fn the_admin_listener_is_told_apart_from_the_ports() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let admin = taken.local_addr().unwrap().to_string();
    let directory = tempfile::tempdir().unwrap();
    fs::create_dir(directory.path().join("config")).unwrap();
    let mut command = ratelimit(directory.path());
    command.env("RUNTIME_ROOT", directory.path()).envs([("WEIR_STORE", "memory"), ("WEIR_ADMIN", &admin)]);
    let Finished { code, err, .. } = finish(&mut command);
    assert!(code == Some(3) && err.contains("; set another address with --admin or WEIR_ADMIN"), "{code:?} {err}");

    let weir = in_memory(&[("USE_PROMETHEUS", "true"), ("PROMETHEUS_ADDR", ":0")]);
    let port = weir.listener("metrics").port();
    for address in [SocketAddr::from(([127, 0, 0, 1], port)), SocketAddr::from((std::net::Ipv6Addr::LOCALHOST, port))] {
        assert_eq!(get(address, "/metrics").status(), 200, "{address}");
    }
}

/// All variables that Envoy Gateway sets, with Redis, Prometheus and traces enabled; its names and values, but for places and ports.
#[test]
fn the_environment_of_envoy_gateway_is_enough() {
    let (authority, tls) = certificates();
    let server = ManagementServer::start_with(Some(tls));
    let folder = tempfile::tempdir().unwrap();
    mount(folder.path(), &authority, 0);
    let [cert, key, ca] = ["tls.crt", "tls.key", "ca.crt"].map(|name| folder.path().join(name).display().to_string());
    let redis = RedisServer::plain();
    let (management, store) = (format!("localhost:{}", server.address.port()), redis.address());
    let weir = start(&[
        ("RUNTIME_ROOT", "/data"),
        ("RUNTIME_SUBDIRECTORY", "ratelimit"),
        ("RUNTIME_IGNOREDOTFILES", "true"),
        ("RUNTIME_WATCH_ROOT", "false"),
        ("LOG_LEVEL", "info"),
        ("USE_STATSD", "false"),
        ("CONFIG_TYPE", "GRPC_XDS_SOTW"),
        ("CONFIG_GRPC_XDS_SERVER_URL", &management),
        ("CONFIG_GRPC_XDS_NODE_ID", "envoy-ratelimit"),
        ("GRPC_SERVER_USE_TLS", "true"),
        ("GRPC_SERVER_TLS_CERT", &cert),
        ("GRPC_SERVER_TLS_KEY", &key),
        ("GRPC_SERVER_TLS_CA_CERT", &ca),
        ("CONFIG_GRPC_XDS_SERVER_USE_TLS", "true"),
        ("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", &cert),
        ("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", &key),
        ("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", &ca),
        ("FORCE_START_WITHOUT_INITIAL_CONFIG", "true"),
        ("REDIS_SOCKET_TYPE", "tcp"),
        ("REDIS_URL", &store),
        ("USE_PROMETHEUS", "true"),
        ("PROMETHEUS_ADDR", "127.0.0.1:0"),
        ("PROMETHEUS_MAPPER_YAML", "/etc/statsd-exporter/conf.yaml"),
        ("TRACING_ENABLED", "true"),
        ("TRACING_SERVICE_NAME", "envoy-ratelimit"),
        ("TRACING_SERVICE_NAMESPACE", "envoy-gateway-system"),
        ("TRACING_SERVICE_INSTANCE_ID", "envoy-ratelimit-0"),
        ("TRACING_SAMPLING_RATE", "1.0"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9"),
    ]);
    weir.until_connected();
    let [http, debug] = ports(&weir);
    // No configuration has come, and the probes pass: Envoy Gateway starts the service before there are policies.
    assert_eq!(get(http, "/healthcheck").status(), 200);
    assert_eq!(get(debug, "/rlconfig").text(), "");
    server.set("envoy-ratelimit", "1", &[config("web", vec![descriptor("user", "", 1)])]);
    server.until_accepted("1");
    let line = "web.user: unit=HOUR requests_per_unit=1, shadow_mode: false\n";
    eventually("the limits are in force", || Some(get(debug, "/rlconfig")).filter(|it| it.text() == line).ok_or(()));
    assert_eq!([ask(http, "bob").0, ask(http, "bob").0], [200, 429]);
    assert!(redis.cli(&["DBSIZE"]).trim().ends_with('1'));
    let log = weir.log();
    let events: Vec<Json> = log.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let grpc = events.iter().find(|event| event["fields"]["listener"] == "grpc").unwrap();
    assert_eq!(grpc["fields"]["tls"], true);
    let notes = events.iter().filter_map(|event| event["fields"]["message"].as_str()?.split_once(" has no effect: "));
    let expected = [
        "GRPC_SERVER_TLS_CA_CERT",
        "PROMETHEUS_MAPPER_YAML",
        "TRACING_SERVICE_NAME",
        "TRACING_SERVICE_NAMESPACE",
        "TRACING_SERVICE_INSTANCE_ID",
    ];
    assert!(notes.map(|(name, _)| name).eq(expected), "{log}");
}

/// In memory, by Weir's own variable.
fn in_memory(variables: &[(&str, &str)]) -> Weir {
    start(&[&[("WEIR_STORE", "memory"), ("REDIS_TLS", "true"), ("REDIS_TLS_CACERT", "/none")], variables].concat())
}

#[test]
fn its_ports_have_these_paths_alone() {
    let metrics = [("USE_PROMETHEUS", "true"), ("PROMETHEUS_ADDR", "127.0.0.1:0"), ("PROMETHEUS_PATH", "/stats")];
    let weir = in_memory(&[&metrics[..], &[("WEIR_ADMIN_TOKEN", "a-token-of-operators")]].concat());
    let [http, debug] = ports(&weir);
    let metrics = weir.listener("metrics");
    for (address, path, status) in [
        (http, "/healthcheck?verbose", 200),
        (http, "/rlconfig", 404),
        (http, "/json", 405),
        (http, "/metrics", 404),
        (debug, "/healthcheck", 404),
        (debug, "/rlconfig", 200),
        (debug, "/", 404),
        (metrics, "/stats", 200),
        (metrics, "/metrics", 404),
        (metrics, "/limits", 404),
        (metrics, "/healthz", 404),
    ] {
        assert_eq!(get(address, path).status(), status, "{path}");
    }
    // A change of the admin listener, with its token.
    let change = "POST /reload HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer a-token-of-operators\r\ncontent-length: 0\r\n\r\n";
    for (address, status) in [(http, 404), (debug, 404), (metrics, 405), (weir.admin, 200)] {
        let mut wire = Wire::connect(address);
        wire.send(change);
        assert_eq!(wire.response().status(), status);
    }
    assert_eq!(post(http, "", "{").status(), 400);
    assert_eq!(post(http, "", r#"{"domain":"web","descriptor":[]}"#).status(), 400);
    assert_eq!(post(http, "", r#"{"domain":"web"}"#).status(), 400);
    assert_eq!(post(http, "origin: https://page.example\r\n", r#"{"domain":"web"}"#).status(), 403);
    assert_eq!(post(http, "", &"x".repeat(70_000)).status(), 413);
}

/// Each series that the page names for a statistic is in the metrics.
#[test]
fn the_page_names_series_that_exist() {
    let weir =
        in_memory(&[("USE_PROMETHEUS", "true"), ("PROMETHEUS_ADDR", "127.0.0.1:0"), ("NEAR_LIMIT_RATIO", "0.2")]);
    assert_eq!(ask(ports(&weir)[0], "bob").0, 200);
    let page = fs::read_to_string(repository().join("docs/migration/envoyproxy-ratelimit-in-place.md")).unwrap();
    let rows: Vec<_> = page.lines().filter(|line| line.starts_with("| `ratelimit")).collect();
    assert_eq!(rows.len(), 13);
    let metrics = get(weir.listener("metrics"), "/metrics");
    for row in rows {
        let series = row.split('`').nth(3).unwrap();
        let (name, labels) = series.trim_end_matches('}').split_once('{').unwrap_or((series, ""));
        let is_it = |line: &&str| {
            let rest = line.strip_prefix(name).unwrap_or_default();
            rest.starts_with(['{', ' ']) && labels.split(',').all(|label| rest.contains(label))
        };
        assert!(metrics.text().lines().any(|line| is_it(&line)), "{series} is not in {}", metrics.text());
    }
}

#[test]
fn probes_fail_while_it_drains_and_a_hand_over_keeps_all_ports() {
    let metrics = [("USE_PROMETHEUS", "true"), ("PROMETHEUS_ADDR", "127.0.0.1:0"), ("WEIR_DRAIN_DELAY", "30s")];
    let weir = in_memory(&metrics);
    let ([http, debug], metrics) = (ports(&weir), weir.listener("metrics"));
    let successor = weir.hand_over();
    eventually("the old process has left", || {
        let is_there = Path::new(&format!("/proc/{}/fd/0", weir.id())).exists();
        if is_there { Err(weir.log()) } else { Ok(()) }
    });
    for (address, path) in [(http, "/healthcheck"), (debug, "/rlconfig"), (metrics, "/metrics")] {
        assert_eq!(get(address, path).status(), 200, "{path}");
    }
    assert!(crate::support::process::kill("TERM", successor));
    becomes("the probe fails", 500, || get(http, "/healthcheck").status());
}

#[test]
fn what_it_cannot_do_stops_the_start_and_is_named() {
    let directory = tempfile::tempdir().unwrap();
    for (variable, value) in [
        ("BACKEND_TYPE", "memcache"),
        ("QUOTA_MODE", "true"),
        ("REDIS_PERSECOND", "true"),
        ("GRPC_CLIENT_TLS_SAN", "envoy"),
        ("REDIS_TYPE", "PROXY"),
        ("PORT", "http"),
    ] {
        let Finished { code, err, .. } = finish(ratelimit(directory.path()).env(variable, value));
        assert!(code == Some(2) && err.starts_with(&format!("error: {variable}: ")), "{code:?} {err}");
    }
}
