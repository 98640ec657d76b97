//! The `restricted` Pod Security Standard
//! (<https://kubernetes.io/docs/concepts/security/pod-security-standards/#restricted>), `baseline` included.

use serde_json::{Value, json};

use super::rendering::{Release, render};

/// The types of volume that the standard allows.
const VOLUMES: [&str; 8] =
    ["configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"];

/// A release's violations of the standard.
pub(super) fn of_release(release: &Release) -> Vec<String> {
    let tests = release.of("Pod").map(|pod| &pod["spec"]);
    std::iter::once(release.pod()).chain(tests).flat_map(of_pod).collect()
}

/// A pod's violations.
pub(super) fn of_pod(pod: &Value) -> Vec<String> {
    let mut wrong = Vec::new();
    for host in ["hostNetwork", "hostPID", "hostIPC"] {
        if pod[host] == true {
            wrong.push(format!("{host} is true"));
        }
    }
    let context = &pod["securityContext"];
    for forbidden in ["sysctls", "windowsOptions", "seLinuxOptions"] {
        if context.get(forbidden).is_some() {
            wrong.push(format!("the pod has {forbidden}"));
        }
    }
    for volume in pod["volumes"].as_array().into_iter().flatten() {
        let kinds: Vec<_> = volume.as_object().unwrap().keys().filter(|key| *key != "name").collect();
        if !kinds.iter().all(|kind| VOLUMES.contains(&kind.as_str())) {
            wrong.push(format!("a volume is a {kinds:?}"));
        }
    }
    for kind in ["initContainers", "containers"] {
        for container in pod[kind].as_array().into_iter().flatten() {
            let name = container["name"].as_str().unwrap();
            wrong.extend(of_container(container, context).into_iter().map(|what| format!("{name}: {what}")));
        }
    }
    wrong
}

/// A container's violations. `pod` is the pod's security context, which the container's overrides.
fn of_container(container: &Value, pod: &Value) -> Vec<String> {
    let own = &container["securityContext"];
    let either = |pointer: &str| own.pointer(pointer).or_else(|| pod.pointer(pointer)).cloned().unwrap_or_default();
    let mut wrong = Vec::new();
    let mut demand = |is_so: bool, what: &str| {
        if !is_so {
            wrong.push(what.to_owned());
        }
    };
    demand(own["privileged"] != true, "is privileged");
    demand(own["allowPrivilegeEscalation"] == false, "may escalate its privileges");
    demand(own["capabilities"]["drop"].as_array().is_some_and(|all| all.contains(&json!("ALL"))), "keeps capabilities");
    let added = own["capabilities"]["add"].as_array().cloned().unwrap_or_default();
    demand(added.iter().all(|capability| capability == "NET_BIND_SERVICE"), "adds capabilities");
    demand(either("/runAsNonRoot") == true, "may run as root");
    demand(either("/runAsUser") != 0, "runs as root");
    demand(
        ["RuntimeDefault", "Localhost"].iter().any(|kind| either("/seccompProfile/type") == *kind),
        "has no seccomp profile",
    );
    demand(own.get("procMount").is_none(), "has a procMount");
    let ports = container["ports"].as_array().into_iter().flatten();
    demand(ports.into_iter().all(|port| port.get("hostPort").is_none()), "has a port of the host");
    wrong
}

/// The chart's defaults comply, and the container is unprivileged with a read-only root.
#[test]
fn pods_keep_to_the_restricted_standard() {
    let release = render(&json!({}));
    assert_eq!(of_release(&release), [""; 0]);
    for container in [release.container(), &release.pod()["initContainers"][0]] {
        assert_eq!(container["securityContext"]["readOnlyRootFilesystem"], true);
        assert!(container["resources"]["requests"].is_object(), "{container}");
    }
    let context = &release.pod()["securityContext"];
    assert_eq!([&context["runAsUser"], &context["runAsGroup"]], [65532, 65532]);
    assert_eq!(release.pod()["automountServiceAccountToken"], false);
    assert_eq!(release.get("ServiceAccount", "weir")["automountServiceAccountToken"], false);
}

/// The check itself: it sees violations.
#[test]
fn what_the_standard_forbids_is_noticed() {
    let cases = [
        (json!({ "securityContext": { "allowPrivilegeEscalation": true } }), "weir: may escalate its privileges"),
        (json!({ "securityContext": { "capabilities": { "drop": [] } } }), "weir: keeps capabilities"),
        (json!({ "securityContext": { "capabilities": { "add": ["SYS_ADMIN"] } } }), "check-rules: adds capabilities"),
        (json!({ "securityContext": { "privileged": true } }), "health: is privileged"),
        (json!({ "podSecurityContext": { "runAsNonRoot": false } }), "weir: may run as root"),
        (json!({ "podSecurityContext": { "runAsUser": 0 } }), "weir: runs as root"),
        (
            json!({ "podSecurityContext": { "seccompProfile": { "type": "Unconfined" } } }),
            "weir: has no seccomp profile",
        ),
        (json!({ "podSecurityContext": { "sysctls": [] } }), "the pod has sysctls"),
        (json!({ "extraVolumes": [{ "name": "host", "hostPath": { "path": "/" } }] }), "a volume is a [\"hostPath\"]"),
        (json!({ "extraContainers": [{ "name": "beside", "image": "a" }] }), "beside: keeps capabilities"),
    ];
    let values: Vec<_> = cases.iter().map(|(values, _)| values.clone()).collect();
    let chart = super::rendering::Chart::render(&values);
    for ((values, expected), release) in cases.iter().zip(chart.cases) {
        let wrong = of_release(&release.unwrap());
        assert!(wrong.iter().any(|what| what == expected), "{values}: {wrong:?}");
    }
}
