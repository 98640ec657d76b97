//! Custom kinds. No registry that the tests install from has strict schemas of them, so `kinds.json` lists what the
//! published definitions allow of the parts that the chart uses.

use serde_json::{Value, json};

const SCHEMA: &str = include_str!("kinds.json");

pub(super) const ALL: &[&str] = &[
    "PrometheusRule",
    "AuthorizationPolicy",
    "Certificate",
    "HTTPRoute",
    "Middleware",
    "ReferenceGrant",
    "SecurityPolicy",
    "ServiceMonitor",
];

/// The mistakes of an object of one of these kinds. `unknown` lists the kinds that Kubernetes does not know.
pub(super) fn mistakes(object: &Value, unknown: &[String]) -> Vec<String> {
    let kind = object["kind"].as_str().unwrap();
    if !unknown.iter().any(|known| known == kind) {
        return Vec::new();
    }
    let mut schema: Value = serde_json::from_str(SCHEMA).unwrap();
    if schema["$defs"].get(kind).is_none() {
        return vec![format!("unknown kind {kind}")];
    }
    schema["$ref"] = json!(format!("#/$defs/{kind}"));
    let validator = jsonschema::validator_for(&schema).unwrap();
    validator.iter_errors(object).map(|error| format!("{kind}{}: {error}", error.instance_path())).collect()
}

/// The content of a YAML file of the chart.
#[track_caller]
pub(super) fn plain(file: &str) -> Value {
    super::rendering::objects(file).objects.remove(0)
}

/// Reads istiod's configuration by the schema that the examples use.
#[track_caller]
pub(super) fn mesh_config(text: &str) -> Value {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    let told = super::rendering::objects(file.path().to_str().unwrap()).objects.remove(0);
    let mut schema: Value = serde_json::from_str(include_str!("../gateways/manifests.json")).unwrap();
    schema["$ref"] = json!("#/$defs/istio~1mesh-config.yaml");
    let validator = jsonschema::validator_for(&schema).unwrap();
    let mistakes: Vec<_> = validator.iter_errors(&told).map(|error| error.to_string()).collect();
    assert_eq!(mistakes, [""; 0]);
    told
}

#[test]
fn other_fields_than_the_published_ones_are_noticed() {
    let release = super::rendering::render(&super::cases::everything());
    for (kind, right, wrong) in [
        ("Certificate", "\"issuerRef\"", "\"issuer\""),
        ("Certificate", "\"ECDSA\"", "\"ecdsa\""),
        ("ServiceMonitor", "\"interval\"", "\"every\""),
        ("ServiceMonitor", "\"15s\"", "\"15 s\""),
        ("HTTPRoute", "\"PathPrefix\"", "\"Prefix\""),
        ("HTTPRoute", "\"hostnames\"", "\"hosts\""),
        ("SecurityPolicy", "\"200ms\"", "\"0.2s\""),
        ("SecurityPolicy", "\"failOpen\":true", "\"failOpen\":\"yes\""),
        ("SecurityPolicy", "\"extAuth\"", "\"extAuthz\""),
        ("ReferenceGrant", "\"to\"", "\"too\""),
        ("AuthorizationPolicy", "\"CUSTOM\"", "\"custom\""),
        ("AuthorizationPolicy", "\"paths\"", "\"path\""),
        ("Middleware", "\"forwardAuth\"", "\"forwardauth\""),
        ("Middleware", "\"trustForwardHeader\":false", "\"trustForwardHeader\":\"no\""),
    ] {
        let object = release.of(kind).next().unwrap();
        assert_eq!(mistakes(object, &release.unknown), [""; 0]);
        let text = object.to_string();
        assert!(text.contains(right), "{text}");
        let object = serde_json::from_str(&text.replacen(right, wrong, 1)).unwrap();
        assert!(!mistakes(&object, &release.unknown).is_empty(), "a {kind} may say {wrong}");
    }
}
