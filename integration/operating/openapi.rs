//! The admin API keeps to its `OpenAPI` document: the document is valid, and every example in it is sent and answered as it says.

use std::fs;

use jsonschema::Validator;
use serde_json::{Value, json};

use super::{TOKEN, ask_with};
use crate::support::programs::packaged;
use crate::support::weir::Weir;

const METHODS: [&str; 4] = ["put", "get", "post", "delete"];

fn document(weir: &Weir) -> Value {
    let answer = weir.admin("/openapi.json");
    assert_eq!((answer.status(), answer.header("content-type")), (200, Some("application/json")));
    serde_json::from_str(answer.text()).unwrap()
}

/// The rules that the examples are about.
fn serve() -> Weir {
    let rules = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/limits.yaml")).unwrap();
    Weir::serve(&rules, &["--admin-token", TOKEN])
}

fn validator(document: &Value, schema: &Value) -> Validator {
    let mut whole = document.clone();
    whole["$schema"] = "https://json-schema.org/draft/2020-12/schema".into();
    for (key, value) in schema.as_object().unwrap() {
        whole[key] = value.clone();
    }
    jsonschema::validator_for(&whole).unwrap()
}

#[test]
fn the_document_is_valid() {
    let weir = serve();
    let file = weir.directory().join("openapi.json");
    fs::write(&file, document(&weir).to_string()).unwrap();
    let said = packaged("openapi-spec-validator", &[file.to_str().unwrap()]);
    assert!(said.contains("OK"), "{said}");
}

/// The bodies of an operation's examples; one without a body if it has none.
fn bodies(operation: &Value) -> Vec<String> {
    let examples = operation["requestBody"]["content"]["application/json"]["examples"].as_object();
    let bodies: Vec<String> =
        examples.into_iter().flat_map(|all| all.values()).map(|example| example["value"].to_string()).collect();
    if bodies.is_empty() { vec![String::new()] } else { bodies }
}

/// The path with the examples of its parameters.
fn target(path: &str, item: &Value, operation: &Value) -> String {
    let (mut path, mut query) = (path.to_owned(), Vec::new());
    let parameters = [&item["parameters"], &operation["parameters"]].into_iter().filter_map(Value::as_array).flatten();
    for parameter in parameters {
        let name = parameter["name"].as_str().unwrap();
        let example = &parameter["example"];
        assert!(!example.is_null(), "{path}: {name} has no example");
        let example = example.as_str().map_or_else(|| example.to_string(), str::to_owned);
        if parameter["in"] == "path" {
            path = path.replace(&format!("{{{name}}}"), &example);
        } else {
            query.push(format!("{name}={example}"));
        }
    }
    if query.is_empty() { path } else { format!("{path}?{}", query.join("&")) }
}

#[test]
fn every_example_is_answered_as_the_document_says() {
    let weir = serve();
    let document = document(&weir);
    let token = format!("Bearer {TOKEN}");
    let problem = validator(&document, &json!({ "$ref": "#/components/schemas/Problem" }));
    let mut sent = 0;
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in METHODS.iter().filter_map(|method| Some((method, item.get(*method)?))) {
            let target = target(path, item, operation);
            let described = &operation["responses"]["200"]["content"];
            let (kind, content) = described.as_object().unwrap().iter().next().unwrap();
            for body in bodies(operation) {
                let request = &operation["requestBody"]["content"]["application/json"]["schema"];
                if !request.is_null() {
                    let body: Value = serde_json::from_str(&body).unwrap();
                    let is_valid = validator(&document, request).validate(&body);
                    is_valid.unwrap_or_else(|error| panic!("{method} {path} {body}: {error}"));
                }
                let answer =
                    ask_with(&weir, &method.to_ascii_uppercase(), &target, &[("authorization", &token)], &body);
                let found = answer.header("content-type").unwrap().split(';').next().unwrap().to_owned();
                assert_eq!((answer.status(), &found), (200, kind), "{method} {target}: {}", answer.text());
                sent += 1;
                for line in lines(&answer, kind) {
                    let told: Value = serde_json::from_str(line).unwrap();
                    let is_valid = validator(&document, &content["schema"]).validate(&told);
                    is_valid.unwrap_or_else(|error| panic!("{method} {target}: {error} in {told}"));
                }
                if operation.get("security").is_some_and(|security| security == &json!([{ "token": [] }])) {
                    let answer = ask_with(&weir, &method.to_ascii_uppercase(), &target, &[], &body);
                    assert_eq!(answer.status(), 401, "{method} {target} needs a token");
                    problem.validate(&serde_json::from_str(answer.text()).unwrap()).unwrap();
                }
            }
        }
    }
    assert!(sent > 20, "{sent} examples");
}

/// The JSON texts of an answer.
fn lines<'a>(answer: &'a crate::support::wire::Message, kind: &str) -> Vec<&'a str> {
    match kind {
        "application/json" => vec![answer.text()],
        "application/x-ndjson" => answer.text().lines().collect(),
        _ => Vec::new(),
    }
}
