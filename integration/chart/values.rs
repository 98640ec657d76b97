//! values.yaml, values.schema.json and the templates agree.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use serde_json::{Value, json};

use super::cases::everything;
use super::rendering::{Chart, NAME, file, merged};

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
            } else {
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
    assert_eq!(image(0), concat!("weir:", env!("CARGO_PKG_VERSION")));
    assert_eq!(image(1), "weir:1.2.3");
}

#[test]
fn a_mirror_takes_the_place_of_the_registry() {
    let tag = json!({ "tag": "1" });
    let chart = Chart::render(&[
        json!({ "image": merged(&tag, &json!({ "registry": "registry.example.com" })) }),
        json!({ "image": tag, "global": { "imageRegistry": "mirror.example.com", "imagePullSecrets": ["mirror"] } }),
        json!({ "image": merged(&tag, &json!({ "registry": "", "repository": "localhost:5000/weir" })) }),
    ]);
    let releases: Vec<_> = chart.cases.into_iter().map(Result::unwrap).collect();
    let images = releases.iter().map(|release| release.container()["image"].as_str().unwrap());
    let expected = ["registry.example.com/weir:1", "mirror.example.com/weir:1", "localhost:5000/weir:1"];
    assert!(images.eq(expected));
    assert_eq!(releases[1].pod()["imagePullSecrets"], json!([{ "name": "mirror" }]));
}

/// Marks the table in README.md.
const TABLE: [&str; 2] = ["<!-- values: begin -->\n", "<!-- values: end -->\n"];

/// The table of all values, from the comments in values.yaml that begin with `# --`, as helm-docs makes it.
fn table(text: &str, values: &Value) -> String {
    let mut table = String::from("| value | type | default | |\n|---|---|---|---|\n");
    let mut path: Vec<(usize, &str)> = Vec::new();
    let mut described: Option<String> = None;
    for line in text.lines() {
        let trimmed = line.trim_start();
        let indent = line.len() - trimmed.len();
        if let Some(begin) = trimmed.strip_prefix("# -- ") {
            described = Some(begin.to_owned());
        } else if let Some(more) = trimmed.strip_prefix("# ") {
            if let Some(described) = &mut described {
                described.extend([" ", more]);
            }
        } else if let Some((key, _)) = trimmed.split_once(':') {
            path.retain(|(of_parent, _)| *of_parent < indent);
            path.push((indent, key));
            let Some(described) = described.take() else { continue };
            let name = path.iter().map(|(_, name)| *name).collect::<Vec<_>>().join(".");
            let value = values.pointer(&pointer(&name)).unwrap_or_else(|| panic!("values.yaml has no {name}"));
            let kind = match value {
                Value::Object(_) => "object",
                Value::Array(_) => "list",
                Value::String(_) => "string",
                Value::Bool(_) => "bool",
                Value::Number(number) if number.is_f64() => "float",
                _ => "int",
            };
            writeln!(table, "| `{name}` | {kind} | `{value}` | {} |", described.replace('|', "\\|")).unwrap();
        } else {
            described = None;
        }
    }
    table
}

/// `WEIR_RENEW=1` writes the table instead.
#[test]
fn the_readme_lists_all_values() {
    let values = Chart::render(&[]).values;
    let (readme, expected) = (file("README.md"), table(&file("values.yaml"), &values));
    let (before, rest) = readme.split_once(TABLE[0]).expect("a table");
    let (listed, after) = rest.split_once(TABLE[1]).expect("the table's end");
    if std::env::var_os("WEIR_RENEW").is_some() {
        let path = format!("{}/helm/weir/README.md", env!("CARGO_MANIFEST_DIR"));
        return std::fs::write(path, [before, TABLE[0], &expected, TABLE[1], after].concat()).unwrap();
    }
    assert!(
        listed == expected,
        "the values in helm/weir/README.md are not those of values.yaml: run `WEIR_RENEW=1 cargo nextest run \
         --test integration chart::values::the_readme_lists_all_values`"
    );
    let missing: Vec<_> = leaves(&schema())
        .into_keys()
        .filter(|path| !path.starts_with("flags.") && !path.starts_with("probes."))
        .filter(|path| !expected.contains(&format!("| `{path}` |")))
        .collect();
    assert!(missing.is_empty(), "{missing:?} have no comment that begins with `# --`");
}
