//! Combinations of values: every object fits Kubernetes' schemas, and the objects fit each other.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::cases::{combinations, everything};
use super::rendering::{Chart, NAMESPACE, Release, file, merged, visit};
use super::{kinds, security};

pub(super) fn mistakes(release: &Release) -> Vec<String> {
    let mut mistakes = release.mistakes.clone();
    mistakes.extend(release.objects.iter().flat_map(|object| kinds::mistakes(object, &release.unknown)));
    mistakes.extend(security::of_release(release));
    mistakes.extend(names(release));
    mistakes.extend(selections(release));
    mistakes.extend(pods(release));
    mistakes
}

/// Every object is unique, has a valid name, and is in the release's namespace unless a gateway or Prometheus reads it.
fn names(release: &Release) -> Vec<String> {
    let mut seen = BTreeSet::new();
    let mut mistakes = Vec::new();
    for object in &release.objects {
        let (kind, name) = (object["kind"].as_str().unwrap(), object["metadata"]["name"].as_str().unwrap());
        if !seen.insert((kind, name)) {
            mistakes.push(format!("{kind} {name} is there twice"));
        }
        // Names of Services and Pods are DNS labels, others are DNS names.
        let longest = if ["Service", "Pod"].contains(&kind) { 63 } else { 253 };
        if name.len() > longest || !name.starts_with(|first: char| first.is_ascii_lowercase()) || name.ends_with('-') {
            mistakes.push(format!("{kind} has the name {name}"));
        }
        let of_others = ["SecurityPolicy", "AuthorizationPolicy", "Middleware", "ServiceMonitor", "PrometheusRule"];
        if !of_others.contains(&kind) && object["metadata"].get("namespace").is_some() {
            mistakes.push(format!("{kind} {name} says in which namespace it is"));
        }
    }
    mistakes
}

/// Selectors match the workload's pods and not the pod of `helm test`.
fn selections(release: &Release) -> Vec<String> {
    let labels = &release.workload()["spec"]["template"]["metadata"]["labels"];
    let test = &release.of("Pod").next().unwrap()["metadata"]["labels"];
    let ports = release.container()["ports"].as_array().unwrap();
    let mut mistakes = Vec::new();
    for (kind, path) in [
        ("Deployment", "/spec/selector/matchLabels"),
        ("DaemonSet", "/spec/selector/matchLabels"),
        ("Service", "/spec/selector"),
        ("PodDisruptionBudget", "/spec/selector/matchLabels"),
        ("NetworkPolicy", "/spec/podSelector/matchLabels"),
    ] {
        for object in release.of(kind) {
            let selector = object.pointer(path).unwrap();
            let name = &object["metadata"]["name"];
            if !selects(selector, labels) || selects(selector, test) {
                mistakes.push(format!("{kind} {name} selects {selector}"));
            }
        }
    }
    for service in release.of("Service") {
        for port in service["spec"]["ports"].as_array().unwrap() {
            if !ports.iter().any(|open| open["name"] == port["targetPort"]) {
                mistakes.push(format!("Service {} leads to {port}", service["metadata"]["name"]));
            }
        }
    }
    for monitor in release.of("ServiceMonitor") {
        let selector = &monitor["spec"]["selector"]["matchLabels"];
        let selected: Vec<_> =
            release.of("Service").filter(|service| selects(selector, &service["metadata"]["labels"])).collect();
        let port = &monitor["spec"]["endpoints"][0]["port"];
        let is_there = selected.len() == 1 && selected[0]["spec"]["ports"][0]["name"] == *port;
        if !is_there {
            mistakes.push(format!("the ServiceMonitor selects {selected:?}"));
        }
    }
    mistakes
}

/// Returns whether the labels contain the selector.
fn selects(selector: &Value, labels: &Value) -> bool {
    selector.as_object().unwrap().iter().all(|(key, value)| labels.get(key) == Some(value))
}

/// Everything that the pods name exists, and they have time to drain.
fn pods(release: &Release) -> Vec<String> {
    let pod = release.pod();
    let mut mistakes = Vec::new();
    let volumes: BTreeSet<_> =
        pod["volumes"].as_array().unwrap().iter().map(|volume| &volume["name"]).map(text).collect();
    for kind in ["initContainers", "containers"] {
        for container in pod[kind].as_array().unwrap() {
            for mount in container["volumeMounts"].as_array().into_iter().flatten() {
                if !volumes.contains(text(&mount["name"])) {
                    mistakes.push(format!("there is no volume for {mount}"));
                }
                if mount.get("subPath").is_some() || mount.get("subPathExpr").is_some() {
                    mistakes.push(format!("{mount} is never updated"));
                }
            }
        }
    }
    for volume in pod["volumes"].as_array().unwrap() {
        if let Some(name) = volume["configMap"]["name"].as_str()
            && name.starts_with("weir")
            && !release.of("ConfigMap").any(|map| map["metadata"]["name"] == name)
        {
            mistakes.push(format!("there is no ConfigMap {name}"));
        }
    }
    let account = text(&pod["serviceAccountName"]);
    let is_made = release.of("ServiceAccount").any(|made| made["metadata"]["name"] == account);
    if !is_made && account != "ours" {
        mistakes.push(format!("there is no ServiceAccount {account}"));
    }
    let config = release.of("ConfigMap").find_map(|map| map["data"]["weir.yaml"].as_str()).unwrap();
    let seconds = |flag: &str| -> u64 {
        let line = config.lines().find_map(|line| line.strip_prefix(flag)).unwrap();
        line.trim_matches(|letter: char| !letter.is_ascii_digit()).parse().unwrap()
    };
    let needed = seconds("drain-delay:") + seconds("grace:");
    if pod["terminationGracePeriodSeconds"].as_u64().unwrap() <= needed {
        mistakes.push(format!("a pod drains for {needed} s and is killed before"));
    }
    mistakes
}

#[track_caller]
fn text(value: &Value) -> &str {
    value.as_str().unwrap()
}

#[test]
fn every_combination_is_of_kubernetes_schemas_and_fits_together() {
    let combinations = combinations();
    let long = "a-name-of-a-release-that-is-as-long-as-helm-lets-it-bee"[..53].to_owned();
    let everything = everything();
    let cases = combinations.iter().map(|values| ("weir", values)).chain([(long.as_str(), &everything)]);
    let chart = Chart::ask(cases.clone(), &["1.27", "1.37"]);
    assert!(chart.lint.is_empty(), "{:?}", chart.lint);
    let mut seen = BTreeSet::new();
    for ((_, values), release) in cases.zip(&chart.cases) {
        let release = release.as_ref().unwrap_or_else(|error| panic!("{values}: {error}"));
        let mistakes = mistakes(release);
        assert!(mistakes.is_empty(), "{values}:\n{}", mistakes.join("\n"));
        seen.extend(release.unknown.iter().cloned());
    }
    let expected: BTreeSet<_> = kinds::ALL.iter().copied().collect();
    assert!(seen.iter().map(String::as_str).eq(expected), "{seen:?}");
}

#[test]
fn the_name_of_the_release_is_in_every_name() {
    let values = [json!({}), json!({ "nameOverride": "limiter" }), json!({ "fullnameOverride": "limiter" })];
    let cases = [("weir", 0), ("edge", 0), ("edge", 1), ("edge", 2), ("the-weir", 0)];
    let chart = Chart::ask(cases.iter().map(|(name, values_of)| (*name, &values[*values_of])), &[]);
    let expected = ["weir", "edge-weir", "edge-limiter", "limiter", "the-weir"];
    for (release, name) in chart.cases.into_iter().zip(expected) {
        let release = release.unwrap();
        assert_eq!(release.workload()["metadata"]["name"], name);
        let others = release.objects.iter().map(|object| text(&object["metadata"]["name"]).to_owned());
        assert!(others.clone().all(|other| other.starts_with(name)), "{:?}", others.collect::<Vec<_>>());
    }
}

/// A selector is immutable, so values must not change it.
#[test]
fn selectors_stay_as_they_are() {
    let all = Chart::render(&[
        json!({}),
        everything(),
        json!({ "commonLabels": { "team": "edge" }, "podLabels": { "a": "b" } }),
    ]);
    let selector = |release: &Result<Release, String>| {
        release.as_ref().unwrap().workload()["spec"]["selector"]["matchLabels"].clone()
    };
    let first = selector(&all.cases[0]);
    assert_eq!(first, json!({ "app.kubernetes.io/name": "weir", "app.kubernetes.io/instance": "weir" }));
    assert!(all.cases.iter().all(|release| selector(release) == first));
}

#[test]
fn gateways_are_told_where_weir_is() {
    let release = super::rendering::render(&everything());
    let policy = release.get("SecurityPolicy", "weir");
    assert_eq!(policy["metadata"]["namespace"], "gateways");
    let backend = json!([{ "name": "weir", "namespace": NAMESPACE, "port": 9001 }]);
    assert_eq!(policy["spec"]["extAuth"]["grpc"]["backendRefs"], backend);
    let grant = release.get("ReferenceGrant", "weir");
    assert_eq!(grant["spec"]["to"], json!([{ "group": "", "kind": "Service", "name": "weir" }]));
    assert_eq!(grant["spec"]["from"][0]["namespace"], "gateways");
    let middleware = release.get("Middleware", "weir");
    let address = &middleware["spec"]["forwardAuth"]["address"];
    assert_eq!(*address, format!("https://weir.{NAMESPACE}.svc.cluster.local:9002/forward"));
    let provider = &release.config_map("weir-istio-provider")["mesh-config.yaml"];
    let provider = kinds::mesh_config(provider);
    let asked = &provider["meshConfig"]["extensionProviders"][0]["envoyExtAuthzGrpc"];
    assert_eq!(asked["service"], format!("weir.{NAMESPACE}.svc.cluster.local"));
    // The line that yq appends is the same provider.
    let line = &release.config_map("weir-istio-provider")["provider.json"];
    let line: Value = serde_json::from_str(line).unwrap();
    assert_eq!(line, provider["meshConfig"]["extensionProviders"][0]);
    // All refer to ports of this Service.
    let service = release.get("Service", "weir");
    let port = |name: &str| {
        let ports = service["spec"]["ports"].as_array().unwrap();
        ports.iter().find(|port| port["name"] == name).unwrap_or_else(|| panic!("no {name} in {service}")).clone()
    };
    assert_eq!((&port("grpc")["port"], &port("http-check")["port"]), (&json!(9001), &json!(9002)));
    assert_eq!(port("grpc")["appProtocol"], "https");
    assert_eq!(service["spec"]["type"], "LoadBalancer");
    let headless = release.get("Service", "weir-headless");
    let mut ports = service["spec"]["ports"].clone();
    let node_ports: Vec<_> =
        ports.as_array_mut().unwrap().iter_mut().map(|port| port.as_object_mut().unwrap().remove("nodePort")).collect();
    assert_eq!(node_ports, [30081, 30082, 30083].map(|port| Some(json!(port))));
    let headless = &headless["spec"];
    assert_eq!(
        (&headless["type"], &headless["clusterIP"], &headless["ports"]),
        (&json!("ClusterIP"), &json!("None"), &ports)
    );
    // No Service for gateways or clients has the admin listener.
    for service in release.of("Service").filter(|service| service["metadata"]["name"] != "weir-admin") {
        visit(service, "", &mut |_, value| assert_ne!(value, "admin", "{service}"));
    }
}

/// Istio denies every request of a policy whose provider it does not know.
#[test]
fn istio_gets_a_policy_only_for_a_registered_provider() {
    let istio = json!({ "enabled": true, "selector": { "a": "b" } });
    let registered = merged(&istio, &json!({ "providerRegistered": true }));
    let outer = json!({ "grpc-client-address": ["external", "forwarded"] });
    let chart = Chart::render(&[
        json!({ "istio": istio }),
        json!({ "istio": registered }),
        json!({ "istio": registered, "flags": outer }),
        json!({}),
    ]);
    let releases: Vec<_> = chart.cases.into_iter().map(Result::unwrap).collect();
    let policies: Vec<_> = releases.iter().map(|release| release.of("AuthorizationPolicy").count()).collect();
    assert_eq!(policies, [0, 1, 1, 0]);
    assert!(releases[0].notes.contains("ISTIO DOES NOT ASK WEIR YET"), "{}", releases[0].notes);
    assert!(!releases[1].notes.contains("ISTIO DOES NOT ASK WEIR YET"), "{}", releases[1].notes);
    assert!(
        releases[..2]
            .iter()
            .all(|release| release.of("ConfigMap").any(|map| map["data"].get("provider.json").is_some()))
    );
    let believed = releases.iter().map(|release| {
        let config = &release.config_map("weir-config")["weir.yaml"];
        config
            .split("grpc-client-address:\n")
            .nth(1)
            .map(|rest| rest.lines().take_while(|line| line.starts_with("  - ")).map(str::to_owned).collect::<Vec<_>>())
    });
    let source = || Some(vec!["  - \"source\"".to_owned()]);
    let both = Some(vec!["  - \"external\"".to_owned(), "  - \"forwarded\"".to_owned()]);
    assert!(believed.eq([source(), source(), both, None]));
}

/// The defaults are the file's numbers, and each changes its own alert.
#[test]
fn thresholds_are_those_of_the_alerts() {
    let defaults = Chart::render(&[]).values["prometheusRule"]["thresholds"].clone();
    let names: Vec<_> = defaults.as_object().unwrap().keys().cloned().collect();
    let changed = |name: &String| if name == "WeirCertificateExpires" { json!(77) } else { json!(0.77) };
    let cases: Vec<_> = std::iter::once(json!({}))
        .chain(names.iter().map(|name| json!({ "thresholds": { name: changed(name) } })))
        .map(|rule| json!({ "prometheusRule": merged(&json!({ "enabled": true }), &rule) }))
        .collect();
    let mut rules = Chart::render(&cases).cases.into_iter().map(|release| {
        let rule = release.unwrap().get("PrometheusRule", "weir").clone();
        rule["spec"]["groups"][0]["rules"].as_array().unwrap().clone()
    });
    let before = rules.next().unwrap();
    let file = kinds::plain("alerts/weir.yaml");
    assert_eq!(json!(before), file["groups"][0]["rules"]);
    for (name, after) in names.iter().zip(rules) {
        let changes: Vec<_> = before.iter().zip(&after).filter(|(before, after)| before != after).collect();
        let [(_, alert)] = &changes[..] else { panic!("{name}: {changes:?}") };
        assert!(alert["alert"] == **name && text(&alert["expr"]).contains("77"), "{name}: {alert}");
    }
}

#[test]
fn passwords_and_keys_are_in_no_config_map() {
    let release = super::rendering::render(&everything());
    let config = &release.config_map("weir-config")["weir.yaml"];
    let store = "store: \"rediss://redis.default.svc:6379/1\"\nstore-password-file: \"/etc/weir/password/redis-password\"\n\
        store-user: \"limiter\"\n";
    assert!(config.contains(store), "{config}");
    let environment = release.container()["env"].to_string();
    assert!(!environment.contains("WEIR_STORE") && !environment.contains("secretKeyRef"), "{environment}");
    let url =
        super::rendering::render(&json!({ "store": { "type": "redis", "redis": { "existingSecret": "redis" } } }));
    assert!(!url.config_map("weir-config")["weir.yaml"].contains("store:"), "the variable says it");
    let environment = url.container()["env"].as_array().unwrap();
    let store = environment.iter().find(|variable| variable["name"] == "WEIR_STORE").unwrap();
    assert_eq!(store["valueFrom"]["secretKeyRef"], json!({ "name": "redis", "key": "url" }));
}

/// Alerts and dashboards are in the objects as they are in the files, braces included.
#[test]
fn alerts_and_dashboards_are_those_of_the_files() {
    let release = super::rendering::render(&everything());
    let directory = format!("{}/helm/weir", env!("CARGO_MANIFEST_DIR"));
    let mut dashboards = 0;
    for entry in std::fs::read_dir(format!("{directory}/dashboards")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        let Some(stem) = name.strip_suffix(".json") else { continue };
        let map = release.get("ConfigMap", &format!("weir-dashboard-{stem}"));
        assert_eq!(map["metadata"]["labels"]["grafana_dashboard"], "1");
        assert_eq!(map["metadata"]["annotations"]["grafana_folder"], "Weir");
        let text = std::fs::read_to_string(&path).unwrap();
        let read = |text: &str| serde_json::from_str::<Value>(text).unwrap();
        assert_eq!(read(map["data"][name].as_str().unwrap()), read(&text), "{name}");
        dashboards += 1;
    }
    let labelled = |object: &&Value| object["metadata"]["labels"].get("grafana_dashboard").is_some();
    assert!(dashboards > 0 && release.of("ConfigMap").filter(labelled).count() == dashboards, "{dashboards}");
    let text = file("alerts/weir.yaml");
    let rule = release.get("PrometheusRule", "weir");
    assert_eq!(rule["metadata"]["labels"]["release"], "prometheus");
    let groups = rule["spec"]["groups"].as_array().unwrap();
    let rules = groups.iter().flat_map(|group| group["rules"].as_array().unwrap());
    let names: Vec<_> = rules.filter_map(|rule| rule["alert"].as_str()).collect();
    let written = text.lines().filter_map(|line| line.trim_start().trim_start_matches("- ").strip_prefix("alert: "));
    assert!(names.iter().copied().eq(written) && names.len() > 5, "{names:?}");
    assert_eq!(
        rule["spec"].to_string().matches("{{").count(),
        text.matches("{{").count(),
        "Helm leaves the braces alone"
    );
}
