//! The chart's README, as far as it goes without Kubernetes: an Envoy with the example's configuration asks the
//! container that the chart starts.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::process::Command;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::pod::Given;
use super::rendering::{Chart, file, merged, objects, render};
use super::running::{address, listeners, pod, start};
use super::values::{leaves, schema};
use super::{kinds, security};
use crate::support::eventually;
use crate::support::process::{Process, finish, on_free_port};
use crate::support::programs::Program;
use crate::support::wire::Wire;

const EXAMPLE: &str = "examples/envoy.yaml";

/// Envoy as the example configures it. It is killed when this is dropped.
struct Envoy {
    address: SocketAddr,
    _process: Process,
    _directory: TempDir,
}

impl Envoy {
    /// Starts an Envoy that asks this address.
    #[track_caller]
    fn start(listener: SocketAddr) -> Self {
        on_free_port("Envoy", |address| Self::listen(listener, address))
    }

    fn listen(listener: SocketAddr, address: SocketAddr) -> Option<Self> {
        let mut config = objects(EXAMPLE).config_map("envoy").remove("envoy.yaml").unwrap();
        for (there, here) in [
            ("address: 0.0.0.0, port_value: 8000", format!("address: 127.0.0.1, port_value: {}", address.port())),
            (
                "address: weir-headless.weir.svc.cluster.local, port_value: 9001",
                format!("address: 127.0.0.1, port_value: {}", listener.port()),
            ),
        ] {
            assert_eq!(config.matches(there).count(), 1, "{there} in {config}");
            config = config.replace(there, &here);
        }
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("envoy.yaml");
        std::fs::write(&path, config).unwrap();
        let process = Process::listening(&mut Program::Envoy.command(&path), address)?;
        Some(Self { address, _process: process, _directory: directory })
    }

    fn get(&self) -> (u16, String) {
        let answer = Wire::connect(self.address).get("/");
        (answer.status(), answer.header("ratelimit-policy").unwrap_or_default().to_owned())
    }
}

/// The README's blocks in a language.
fn blocks(language: &str) -> Vec<String> {
    let readme = file("README.md");
    let fence = format!("```{language}\n");
    let blocks = readme.split(&fence).skip(1);
    blocks.map(|block| block.split("```").next().unwrap().to_owned()).collect()
}

#[test]
fn the_first_ten_minutes_go_as_the_readme_says() {
    let yaml = blocks("yaml");
    let [limits, overrides, ..] = &yaml[..] else { panic!("{yaml:?}") };
    let rules = json!({ "rules": { "limits": limits } });
    let pod = pod(&rules, Given::new());
    let _weir = start(&pod);
    let envoy = Envoy::start(address(&pod, "grpc"));
    // Envoy passes requests until it is connected. They are not counted and lack the header.
    let mut first =
        eventually("Envoy asks Weir", || Some(envoy.get()).filter(|(_, policy)| !policy.is_empty()).ok_or(()));
    let mut statuses = Vec::new();
    for _ in 0..7 {
        statuses.push(first.0.to_string());
        first = envoy.get();
    }
    let told = format!("{}\n", statuses.join(" "));
    assert!(blocks("text").concat().contains(&told), "the README says something else than {told}");
    assert_eq!(statuses.concat(), "200200200200200429429");
    // The commands that the README runs in the pod.
    let exec = |arguments: &[&str]| {
        let mut command = pod.command("weir");
        finish(without_arguments(&mut command).args(arguments)).text()
    };
    let bucket = exec(&["bucket", "get", "RequestsPerAddress:127.0.0.1"]);
    assert!(bucket.contains("burst 5, 5 per 1m"), "{bucket}");
    let explained = exec(&["explain", "GET", "http://www.example.com/", "--ip", "127.0.0.1"]);
    assert!(explained.contains("RequestsPerAddress: applies"), "{explained}");
    let values = merged(&merged(&listeners(), &rules), &json!({ "rules": { "overrides": overrides } }));
    for (name, text) in render(&values).config_map("weir-rules") {
        std::fs::write(pod.volume("rules").join(name), text).unwrap();
    }
    let after = (200, "\"RequestsPerAddress\";q=50;w=60".to_owned());
    eventually("the client may do more", || Some(envoy.get()).filter(|got| *got == after).ok_or(()));
    assert!(blocks("text").concat().contains(&format!("ratelimit-policy: {}\n", after.1)));
}

/// The binary in the same environment, as `kubectl exec` runs it.
fn without_arguments(command: &mut Command) -> Command {
    let mut other = Command::new(command.get_program());
    other.env_clear().current_dir(command.get_current_dir().unwrap());
    other.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    other
}

#[test]
fn the_example_is_of_kubernetes_schemas_and_restricted() {
    let example = objects(EXAMPLE);
    assert_eq!(example.mistakes, [""; 0]);
    assert_eq!(security::of_pod(example.pod()), [""; 0]);
    assert!(example.unknown.is_empty(), "{:?}", kinds::ALL);
}

/// The values that the README names exist.
#[test]
fn the_readme_names_values_that_there_are() {
    let schema = schema();
    let mut known: BTreeSet<String> = BTreeSet::new();
    for path in leaves(&schema).keys() {
        let parts: Vec<_> = path.split('.').collect();
        known.extend((1..=parts.len()).map(|count| parts[..count].join(".")));
    }
    let readme = file("README.md");
    let rows = readme.lines().filter(|line| line.starts_with("| `")).filter_map(|line| line.split('|').nth(1));
    let gateways = readme.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| `"));
    let gateways = gateways.filter(|line| line.contains(".enabled`"));
    let gateways = gateways.filter_map(|line| line.split('|').nth(2));
    let typed = blocks("sh").concat();
    let set =
        typed.match_indices("--set").map(|(start, _)| typed[start..].split([' ', '=']).nth(1).unwrap_or_default());
    let quoted = rows.chain(gateways).flat_map(|cell| cell.split('`').skip(1).step_by(2));
    let named: BTreeSet<&str> = quoted.chain(set).filter(|name| !name.contains(": ") && !name.is_empty()).collect();
    assert!(named.len() > 30 && named.contains("rules.limits") && named.contains("traefik.enabled"), "{named:?}");
    let unknown: Vec<_> = named.iter().filter(|name| !known.contains(**name)).collect();
    assert!(unknown.is_empty(), "values.yaml has no {unknown:?}");
}

#[test]
fn the_values_of_the_readme_render() {
    let yaml = blocks("yaml");
    let read = |values: &String| {
        let path = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(path.path(), values).unwrap();
        objects(path.path().to_str().unwrap()).objects.remove(0)
    };
    // Behind the limits and the overrides.
    let values: Vec<Value> = yaml[2..].iter().map(read).collect();
    let releases: Vec<_> = Chart::render(&values).cases.into_iter().map(Result::unwrap).collect();
    for release in &releases {
        assert_eq!(release.mistakes, [""; 0]);
    }
    let [release, outside] = &releases[..] else { panic!("{yaml:?}") };
    assert!(outside.of("Certificate").count() == 1 && outside.get("Service", "weir")["spec"]["type"] == "LoadBalancer");
    let config = &release.config_map("weir-config")["weir.yaml"];
    assert!(config.contains("store-password-file: \"/etc/weir/password/redis-password\""), "{config}");
    assert!(release.of("NetworkPolicy").count() == 1 && release.of("ServiceMonitor").count() == 1);
}
