//! NOTES.txt, which Helm prints after an installation.

use serde_json::{Value, json};

use super::cases::everything;
use super::rendering::{NAMESPACE, Release, render};

/// Checks which parts a release's notes contain and which they lack.
#[track_caller]
fn check(values: &Value, parts: &[&str], others: &[&str]) -> Release {
    let release = render(values);
    for part in parts {
        assert!(release.notes.contains(part), "{part} is not in\n{}", release.notes);
    }
    for other in others {
        assert!(!release.notes.contains(other), "{other} is in\n{}", release.notes);
    }
    release
}

const NO_LIMITS: &str = "THERE ARE NO LIMITS YET";
const APART: &str = "EACH POD COUNTS FOR ITSELF";

#[test]
fn they_say_what_is_missing() {
    let rules = json!({ "limits": "limits: { A: { burst: 1 } }" });
    let redis = json!({ "type": "redis", "redis": { "url": "redis://redis" } });
    check(&json!({}), &[NO_LIMITS, APART], &[]);
    check(&json!({ "rules": rules }), &[APART, "--set-file rules.limits=limits.yaml"], &[NO_LIMITS]);
    check(&json!({ "replicaCount": 1 }), &[NO_LIMITS], &[APART]);
    check(&json!({ "rules": rules, "store": redis }), &[], &[APART, NO_LIMITS]);
    let existing = json!({ "rules": { "existingConfigMap": "our-limits" } });
    check(&existing, &["edit configmap our-limits"], &[NO_LIMITS, "--set-file"]);
}

#[test]
fn they_warn_of_what_is_open_and_of_a_second_provider() {
    let open = "EVERY CLIENT THAT CAN CONNECT TO THE LOADBALANCER";
    let balancer = json!({ "service": { "type": "LoadBalancer" } });
    check(&balancer, &[open, "required by\ngrpc. Set `tls.clientCA`"], &[]);
    let limited = json!({ "service": { "type": "LoadBalancer", "loadBalancerSourceRanges": ["10.0.0.0/8"] } });
    check(&limited, &[], &[open]);
    check(&everything(), &[], &[open]);
    check(&json!({}), &[], &["EVERY CLIENT", "CUSTOM"]);
    for is_registered in [false, true] {
        let istio = json!({ "enabled": true, "selector": { "a": "b" }, "providerRegistered": is_registered });
        check(&json!({ "istio": istio }), &["another policy with `action: CUSTOM` names another"], &[]);
    }
}

/// The names in the notes exist.
#[test]
fn they_name_the_listeners_that_are_open() {
    let listeners = ["9001   with STRICT_DNS", ":9002/nginx", ":9003", "https://weir-proxy."];
    let release = check(&everything(), &listeners, &[]);
    check(&json!({}), &listeners[..1], &listeners[1..]);
    let suffix = format!(".{NAMESPACE}.svc.cluster.local");
    let hosts: Vec<_> = release.notes.match_indices(&suffix).map(|(end, _)| &release.notes[..end]).collect();
    assert!(hosts.len() >= 5, "{}", release.notes);
    for host in hosts {
        let name = host.rsplit([' ', '/']).next().unwrap();
        assert!(release.of("Service").any(|service| service["metadata"]["name"] == name), "there is no Service {name}");
    }
    assert!(release.notes.contains("exec deploy/weir ") && release.notes.contains("svc/weir-admin "));
    assert!(release.notes.contains("--reset-then-reuse-values") && !release.notes.contains(" --reuse-values"));
    let _ = (release.get("Service", "weir-admin"), release.get("ConfigMap", "weir-istio-provider"));
}
