//! The examples for Traefik, Istio, Envoy Gateway, Contour, kgateway, APISIX and ingress-nginx, which are in no registry that
//! the tests install from. Their files are checked against a strict schema of the parts that they use.

use std::fs;

use saphyr_parser::{Event, Parser, ScalarStyle};
use serde_json::{Map, Value, json};

use super::example::examples;
use crate::support::programs::packaged;

const SCHEMA: &str = include_str!("manifests.json");

#[track_caller]
fn documents(text: &str) -> Vec<Value> {
    let mut events = Parser::new_from_str(text).map(|event| event.unwrap().0);
    let mut documents = Vec::new();
    while let Some(event) = events.next() {
        if let Event::DocumentStart(_) = event {
            let first = events.next().unwrap();
            documents.push(value(first, &mut events));
        }
    }
    documents
}

/// The value that starts with an event.
#[track_caller]
fn value<'text>(event: Event<'text>, events: &mut impl Iterator<Item = Event<'text>>) -> Value {
    match event {
        // Plain scalars that look like numbers or booleans are such, as Kubernetes' tools read them.
        Event::Scalar(text, ScalarStyle::Plain, ..) => serde_json::from_str(&text).unwrap_or_else(|_| json!(text)),
        Event::Scalar(text, ..) => json!(text),
        Event::SequenceStart(..) => {
            let mut items = Vec::new();
            loop {
                match events.next().unwrap() {
                    Event::SequenceEnd => return Value::Array(items),
                    first => items.push(value(first, events)),
                }
            }
        }
        Event::MappingStart(..) => {
            let mut map = Map::new();
            loop {
                let key = match events.next().unwrap() {
                    Event::MappingEnd => return Value::Object(map),
                    Event::Scalar(key, ..) => key.into_owned(),
                    other => panic!("a key that is {other:?}"),
                };
                let first = events.next().unwrap();
                assert!(map.insert(key.clone(), value(first, events)).is_none(), "{key} stands there twice");
            }
        }
        other => panic!("{other:?} where a value should be"),
    }
}

/// The mistakes in an example's file.
#[track_caller]
fn mistakes(file: &str, text: &str) -> Vec<String> {
    let mut schema: Value = serde_json::from_str(SCHEMA).unwrap();
    schema["$ref"] = json!(format!("#/$defs/{}", file.replace('/', "~1")));
    let validator = jsonschema::validator_for(&schema).unwrap();
    let documents = documents(text);
    assert!(!documents.is_empty(), "{file} has no document");
    let of_one = |document| validator.iter_errors(document).map(|error| format!("{}: {error}", error.instance_path()));
    documents.iter().flat_map(of_one).map(|error| format!("{file}: {error}")).collect()
}

/// Each file with a text in it and wrong replacements for that.
const FILES: &[(&str, &[(&str, &str)])] = &[
    ("traefik/traefik.yml", &[("address: ", "adress: "), ("filename:", "file:")]),
    (
        "traefik/dynamic.yml",
        &[("forwardAuth:", "forwardauth:"), ("address: http", "address: htp"), ("service: application", "")],
    ),
    (
        "istio/mesh-config.yaml",
        &[("timeout: 0.2s", "timeout: 200ms"), ("statusOnError: \"503\"", "statusOnError: 503"), ("port: 9001", "")],
    ),
    ("istio/authorization-policy.yaml", &[("action: CUSTOM", "action: custom"), ("provider:", "providers:")]),
    (
        "envoy-gateway/security-policy.yaml",
        &[("timeout: 200ms", "timeout: 0.2s"), ("failOpen: true", "failOpen: yes"), ("to:\n", "too:\n")],
    ),
    ("envoy-gateway/client-traffic-policy.yaml", &[("numTrustedHops: 1", "numTrustedHops: 0"), ("spec:", "specs:")]),
    (
        "contour/http-proxy.yaml",
        &[("protocol: h2c", "protocol: http2"), ("responseTimeout: 200ms", "timeout: 200ms"), ("fqdn:", "host:")],
    ),
    (
        "kgateway/traffic-policy.yaml",
        &[("requestTimeout: 200ms", "requestTimeout: 0.2s"), ("extensionRef:", "extension:"), ("to:\n", "too:\n")],
    ),
    (
        "apisix/config.yaml",
        &[("config_provider: yaml", "config_provider: yml"), ("node_listen: 8000", "node_listen: a")],
    ),
    (
        "apisix/apisix.yaml",
        &[("timeout: 200", "timeout: 200ms"), ("uri: http", "uri: htp"), ("client_headers:", "response_headers:")],
    ),
];

/// Kubernetes' own schema, as `kubernetes-validate` has it.
#[test]
fn the_ingress_is_one_of_kubernetes() {
    let path = examples().join("ingress-nginx/ingress.yaml");
    packaged("kubernetes-validate", &["--strict", path.to_str().unwrap()]);
    let text = fs::read_to_string(path).unwrap();
    assert!(text.contains("/nginx\n"), "only this path denies with a status that nginx passes on");
}

/// APISIX ignores a file without its last line.
#[test]
fn the_routes_of_apisix_are_complete() {
    let text = fs::read_to_string(examples().join("apisix/apisix.yaml")).unwrap();
    assert!(text.ends_with("\n#END\n"), "{text}");
}

#[test]
fn files_of_gateways_that_cannot_be_started_are_of_their_schemas() {
    for (file, wrong) in FILES {
        let text = fs::read_to_string(examples().join(file)).unwrap();
        assert_eq!(mistakes(file, &text), [""; 0]);
        for (right, wrong) in *wrong {
            assert!(text.contains(right), "{right} is not in {file}");
            assert!(!mistakes(file, &text.replacen(right, wrong, 1)).is_empty(), "{file} may say `{wrong}`");
        }
    }
}
