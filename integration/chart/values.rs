//! values.yaml, values.schema.json and the templates agree.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::cases::everything;
use super::rendering::{Chart, NAME, file, merged};

/// Helm gives every chart this value; the templates do not use it.
const OF_HELM: &str = "global";

pub(super) fn schema() -> Value {
    serde_json::from_str(&file("values.schema.json")).unwrap()
}

/// A schema, with a reference resolved.
fn resolved<'a>(schema: &'a Value, part: &'a Value) -> &'a Value {
    match part["$ref"].as_str() {
        Some(reference) => schema.pointer(reference.trim_start_matches('#')).unwrap(),
        None => part,
    }
}

/// All values that are not maps, by path, such as `grpc.port`.
pub(super) fn leaves(schema: &Value) -> BTreeMap<String, &Value> {
    fn walk<'a>(part: &'a Value, path: &str, leaves: &mut BTreeMap<String, &'a Value>) {
        for (name, part) in part["properties"].as_object().unwrap() {
            let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            if part.get("properties").is_some() {
                walk(part, &path, leaves);
            } else if path != OF_HELM {
                leaves.insert(path, part);
            }
        }
    }
    let mut leaves = BTreeMap::new();
    walk(schema, "", &mut leaves);
    leaves
}

fn pointer(path: &str) -> String {
    format!("/{}", path.replace('.', "/"))
}

/// Nests a value in maps along its path.
fn at(path: &str, value: Value) -> Value {
    path.rsplit('.').fold(value, |inner, key| json!({ key: inner }))
}

/// A value that the schema allows: its example, or one that differs from the current one.
#[track_caller]
pub(super) fn sample(schema: &Value, leaf: &Value, present: Option<&Value>) -> Value {
    let meant = resolved(schema, leaf);
    let given = |from: &Value| from["examples"][0].clone();
    if !given(leaf).is_null() {
        given(leaf)
    } else if !given(meant).is_null() {
        given(meant)
    } else if let Some(all) = meant["enum"].as_array() {
        all.iter().find(|value| Some(*value) != present && *value != "").unwrap().clone()
    } else if meant["type"] == "boolean" {
        json!(present != Some(&json!(true)))
    } else if meant["type"] == "integer" {
        json!(present.and_then(Value::as_i64).map_or(meant["minimum"].as_i64().unwrap(), |present| present + 1))
    } else {
        panic!("`examples` are missing in {leaf}")
    }
}

/// Every value has an effect: changed alone, it changes the rendering or gives an error that names it.
#[test]
fn every_value_is_used_by_a_template() {
    let schema = schema();
    let defaults = Chart::render(&[]).values;
    let bases = [
        everything(),
        json!({}),
        json!({ "store": { "type": "redis", "redis": { "existingSecret": "redis" } } }),
        json!({ "rules": { "existingConfigMap": "our-limits" } }),
    ];
    let mut unused = leaves(&schema);
    for base in bases {
        let present = merged(&defaults, &base);
        let changed: Vec<Value> = unused
            .iter()
            .map(|(path, leaf)| merged(&base, &at(path, sample(&schema, leaf, present.pointer(&pointer(path))))))
            .collect();
        let cases = std::iter::once((NAME, &base)).chain(changed.iter().map(|values| (NAME, values)));
        let mut releases = Chart::ask(cases, &[]).cases.into_iter();
        let before = releases.next().unwrap().unwrap();
        let used: BTreeSet<String> = unused
            .keys()
            .zip(releases)
            .filter(|(path, release)| match release {
                Ok(release) => release.objects != before.objects,
                Err(error) => error.contains(path.as_str()),
            })
            .map(|(path, _)| path.clone())
            .collect();
        unused.retain(|path, _| !used.contains(path));
    }
    assert!(unused.is_empty(), "changing these values changes nothing: {:?}", unused.keys());
}

#[test]
fn every_property_of_the_schema_is_in_the_values() {
    let schema = schema();
    let values = Chart::render(&[]).values;
    let missing: Vec<_> = leaves(&schema)
        .into_keys()
        .filter(|path| !path.starts_with("flags.") && values.pointer(&pointer(path)).is_none())
        .collect();
    assert!(missing.is_empty(), "{missing:?} are not in values.yaml");
}

/// Unknown keys are errors at every level, except in Kubernetes' objects and maps of texts.
#[test]
fn the_schema_rejects_unknown_keys_everywhere() {
    fn walk(part: &Value, path: &str, open: &mut Vec<String>) {
        if part["type"] == "object" {
            let is_closed = part["additionalProperties"] == false && part.get("properties").is_some();
            let is_map_of_texts = part["additionalProperties"]["type"] == "string";
            if !is_closed && !is_map_of_texts {
                open.push(path.to_owned());
            }
        }
        match part {
            Value::Object(map) => map.iter().for_each(|(key, part)| walk(part, &format!("{path}/{key}"), open)),
            Value::Array(items) => items.iter().for_each(|part| walk(part, path, open)),
            _ => {}
        }
    }
    let schema = schema();
    assert_eq!(schema["$schema"], "http://json-schema.org/draft-07/schema#");
    let mut open = Vec::new();
    walk(&schema, "", &mut open);
    let expected = ["/definitions/kubernetesList/items", "/definitions/kubernetesObject", "/properties/global"];
    assert_eq!(open.iter().map(String::as_str).collect::<BTreeSet<_>>(), expected.into());
}

/// Each key in values.yaml has a comment above it.
#[test]
fn every_value_has_a_comment() {
    let schema = schema();
    let text = file("values.yaml");
    let mut path: Vec<(usize, &str)> = Vec::new();
    let (mut above, mut seen, mut silent) = ("", BTreeSet::new(), Vec::new());
    for line in text.lines().filter(|line| !line.is_empty()) {
        let trimmed = line.trim_start();
        if let Some((key, _)) = trimmed.split_once(':').filter(|_| !trimmed.starts_with('#')) {
            let indent = line.len() - trimmed.len();
            path.retain(|(of_parent, _)| *of_parent < indent);
            path.push((indent, key));
            let names = path.iter().map(|(_, name)| *name);
            let pointer: String = names.clone().flat_map(|name| ["/properties/", name]).collect();
            if schema.pointer(&pointer).is_some() {
                seen.insert(names.collect::<Vec<_>>().join("."));
                if !above.trim_start().starts_with("# ") {
                    silent.push(line);
                }
            }
        }
        above = line;
    }
    assert!(silent.is_empty(), "nothing says what these are: {silent:#?}");
    assert!(seen.len() > 150 && seen.contains("proxy.service.nodePort"), "{seen:?}");
}

/// Helm stores the packed chart in a Secret for each revision, in base64; Kubernetes allows 1 MiB.
#[test]
fn the_chart_fits_into_a_secret() {
    let size = Chart::render(&[]).size;
    assert!((1000..400_000).contains(&size), "the archive has {size} bytes");
}

#[test]
fn the_chart_installs_the_version_of_this_repository() {
    let chart = Chart::render(&[json!({}), json!({ "image": { "tag": "1.2.3" } })]);
    assert_eq!(chart.metadata["appVersion"], env!("CARGO_PKG_VERSION"));
    let image = |case: usize| chart.cases[case].as_ref().unwrap().container()["image"].clone();
    assert_eq!(image(0), concat!("ghcr.io/weir/weir:", env!("CARGO_PKG_VERSION")));
    assert_eq!(image(1), "ghcr.io/weir/weir:1.2.3");
}
