//! The Compose example. Its file is read as Compose reads it; its Weir, Envoy and Redis run on this machine, and
//! promtool reads Prometheus' configuration.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::example::{Example, Ports, examples};
use crate::support::binary;
use crate::support::process::{Finished, finish, free_port, succeed};
use crate::support::programs::{Program, client, prometheus};
use crate::support::redis::RedisServer;
use crate::support::upstream::Upstream;
use crate::support::weir::Weir;
use crate::support::wire::Wire;
use crate::support::{becomes, eventually};

/// The only image without a program for a health check.
const WITHOUT_HEALTH: &str = "application";

fn directory() -> PathBuf {
    examples().join("compose")
}

fn read(path: &Path) -> Value {
    client("compose_file.py", &[path.to_str().unwrap()])
}

fn strings(list: &Value) -> Vec<&str> {
    list.as_array().into_iter().flatten().map(|word| word.as_str().unwrap()).collect()
}

/// Bind mounts, by their paths in the container.
fn mounts(service: &Value) -> Vec<(PathBuf, &str)> {
    let mounts = strings(&service["volumes"]).into_iter().filter(|volume| volume.starts_with('.'));
    mounts
        .map(|volume| {
            let mut parts = volume.split(':');
            let (from, to, mode) = (parts.next().unwrap(), parts.next().unwrap(), parts.next());
            assert_eq!(mode, Some("ro"), "{volume}");
            (directory().join(from), to)
        })
        .collect()
}

/// A container's file in this repository.
#[track_caller]
fn mounted(service: &Value, path: &str) -> PathBuf {
    let found = mounts(service).into_iter().find_map(|(from, to)| {
        let rest = Path::new(path).strip_prefix(to).ok()?;
        Some(if rest == Path::new("") { from } else { from.join(rest) })
    });
    found.unwrap_or_else(|| panic!("{path} is not mounted in {service}"))
}

#[test]
fn the_file_is_one_of_compose_and_every_service_is_confined() {
    let compose = read(&directory().join("compose.yaml"));
    assert_eq!(compose["error"], Value::Null);
    let services = compose["services"].as_object().unwrap();
    for (name, service) in services {
        let image = service["image"].as_str().unwrap();
        let tag = image.rsplit_once(':').map(|(_, tag)| tag);
        assert!(
            tag.is_some_and(|tag| tag.starts_with(|first: char| first.is_ascii_digit() || first == 'v')),
            "{image}"
        );
        assert_eq!(service["read_only"], true, "{name}");
        assert_eq!(service["cap_drop"], serde_json::json!(["ALL"]), "{name}");
        assert_eq!(service["security_opt"], serde_json::json!(["no-new-privileges:true"]), "{name}");
        assert_eq!(service["healthcheck"].is_null(), name == WITHOUT_HEALTH, "{name}");
        for (other, how) in service["depends_on"].as_object().into_iter().flatten() {
            let expected = if other == WITHOUT_HEALTH { "service_started" } else { "service_healthy" };
            assert_eq!(how["condition"], expected, "{name} waits for {other}");
        }
        for (from, _) in mounts(service) {
            assert!(from.exists(), "{name} mounts {}, which is not there", from.display());
        }
    }
    // No registry is asked for an image of this name.
    let weir = &services["weir"];
    assert_eq!(weir["image"], concat!("weir:", env!("CARGO_PKG_VERSION")));
    assert_eq!(weir["pull_policy"], "build");
    assert!(directory().join(weir["build"].as_str().unwrap()).join("Dockerfile").is_file());
}

#[test]
fn a_key_that_there_is_not_is_rejected() {
    let text = fs::read_to_string(directory().join("compose.yaml")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("compose.yaml");
    fs::write(&path, text.replace("    depends_on:", "    depend_on:")).unwrap();
    assert!(read(&path)["error"].as_str().is_some_and(|error| error.contains("depend_on")));
}

#[test]
fn envoy_asks_weir_by_both_protocols_as_the_example_says() {
    let compose = read(&directory().join("compose.yaml"));
    let service = &compose["services"]["weir"];
    let redis = RedisServer::plain();
    let application = Upstream::saying("hello");
    let ports = Ports { application: application.address.port(), listener: free_port() };
    let listener = format!("127.0.0.1:{}", ports.listener);
    let url = redis.url();
    let words = strings(&service["command"]).into_iter().map(|word| match word {
        "0.0.0.0:9001" => listener.as_str(),
        "redis://redis:6379" => url.as_str(),
        word => word,
    });
    let words: Vec<&str> = words.collect();
    assert!(words.contains(&listener.as_str()) && words.contains(&url.as_str()), "{words:?}");
    let rules = fs::read_to_string(mounted(service, "/etc/weir/limits.yaml")).unwrap();
    let weir = Weir::launch(&rules, |_| {
        let mut command = binary::command(&words);
        // The ports that the tests know, and timeouts for a busy machine.
        command.args(["--upstream", "echo", "--store-timeout", "1m", "--workers", "1"]);
        command.env("WEIR_PROXY", "127.0.0.1:0").env("WEIR_ADMIN", "127.0.0.1:0");
        command
    });
    becomes("Redis is there", 1, || weir.metric("weir_store_connections"));
    let changes = [
        ("address: weir,", "address: 127.0.0.1,"),
        ("address: application,", "address: 127.0.0.1,"),
        ("timeout: 0.2s", "timeout: 60s"),
        ("timeout: 0.02s", "timeout: 60s"),
        ("connect_timeout: 0.1s", "connect_timeout: 60s"),
        ("connect_timeout: 1s", "connect_timeout: 60s"),
    ];
    let envoy = Example::start(Program::Envoy, "compose/envoy", &changes, ports);
    let ask = |method: &str, path: &str| {
        let mut wire = Wire::connect(envoy.address);
        wire.send(format!("{method} {path} HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"));
        wire.response()
    };
    let answer = ask("GET", "/");
    assert_eq!((answer.status(), answer.text()), (200, "hello"));
    assert!(answer.header("ratelimit").is_some_and(|left| left.starts_with("\"RequestsPerAddress\";r=")), "{answer:?}");
    for (method, path, limit, passing) in
        [("POST", "/login", "LoginsPerAddress", 5), ("GET", "//reports/1", "Reports", 3)]
    {
        for number in 1..=passing {
            let answer = ask(method, path);
            assert_eq!(answer.status(), 200, "{path} {number}: {answer:?}");
            let left = answer.all("ratelimit").join(", ");
            assert!(left.contains(&format!("\"{limit}\";r={}", passing - number)), "{path} {number}: {left}");
        }
        let denied = ask(method, path);
        assert_eq!(denied.status(), 429, "{denied:?}");
        let problem: Value = serde_json::from_str(denied.text()).unwrap();
        assert_eq!(problem["violated-policies"], serde_json::json!([limit]));
    }
    assert_ne!(redis.cli(&["DBSIZE"]), "0", "the counts are in Redis");

    let check = strings(&service["healthcheck"]["test"]);
    let ["CMD", "/usr/bin/weir", rest @ ..] = &check[..] else { panic!("{check:?}") };
    eventually("it is well", || match finish(binary::command(rest).env("WEIR_ADMIN", weir.admin.to_string())) {
        Finished { code: Some(0), out, .. } if out == "ready\n" => Ok(()),
        other => Err(other),
    });
}

#[test]
fn prometheus_and_grafana_find_what_is_mounted_for_them() {
    let compose = read(&directory().join("compose.yaml"));
    let service = &compose["services"]["prometheus"];
    let text = fs::read_to_string(mounted(service, "/etc/prometheus/prometheus.yml")).unwrap();
    let alerts = "/etc/weir-alerts.yaml";
    assert_eq!(text.matches(alerts).count(), 1);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("prometheus.yml");
    fs::write(&path, text.replace(alerts, mounted(service, alerts).to_str().unwrap())).unwrap();
    let said = succeed(prometheus("promtool").args(["check", "config", path.to_str().unwrap()]));
    assert!(said.contains("1 rule files found") && said.contains("is valid prometheus config"), "{said}");

    let service = &compose["services"]["grafana"];
    let provider = mounted(service, "/etc/grafana/provisioning/dashboards/weir.yaml");
    let provider = fs::read_to_string(provider).unwrap();
    let place = provider.split_once("path: ").unwrap().1.split_whitespace().next().unwrap();
    let dashboards = fs::read_dir(mounted(service, place)).unwrap().map(|file| file.unwrap().path());
    let dashboards: Vec<_> = dashboards.filter(|file| file.extension().is_some_and(|kind| kind == "json")).collect();
    assert!(!dashboards.is_empty());
    let source = fs::read_to_string(mounted(service, "/etc/grafana/provisioning/datasources/prometheus.yaml")).unwrap();
    assert!(source.contains("url: http://prometheus:9090\n"), "{source}");
}
