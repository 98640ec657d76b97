//! Values as people set them: the chart renders what they expect, or fails in words.

use serde_json::Value;

use super::combinations::mistakes;
use super::kinds;
use super::rendering::{Chart, Release, objects, texts};

/// The differences between the release and what the case expects.
fn differences(case: &Value, release: &Release) -> Vec<String> {
    let find = |path: &str| {
        let (kind, name) = path.split_once('/').unwrap();
        release.of(kind).find(|object| object["metadata"]["name"] == name)
    };
    let mut wrong = Vec::new();
    for (place, expected) in case["has"].as_object().into_iter().flatten() {
        let (path, pointer) = place.split_once('#').unwrap();
        let Some(object) = find(path) else {
            wrong.push(format!("there is no {path}"));
            continue;
        };
        let found = object.pointer(pointer).unwrap_or(&Value::Null);
        let is_expected = match expected.as_str().and_then(|text| text.strip_prefix('~')) {
            Some(part) => found.as_str().is_some_and(|text| text.contains(part)),
            None => found == expected,
        };
        if !is_expected {
            wrong.push(format!("{place} is {found}, not {expected}"));
        }
    }
    let unwanted = texts(&case["lacks"]).into_iter().filter(|path| find(path).is_some());
    wrong.extend(unwanted.map(|path| format!("there is a {path}")));
    wrong
}

/// Violations of the schemas, without those of versions that do not know a field, and of kinds that the user adds.
fn violations(case: &Value, release: &Release) -> Vec<String> {
    let minor = |version: &str| version.split_once('.').and_then(|(_, minor)| minor.parse::<u32>().ok());
    let since = case["since"].as_str().and_then(minor).unwrap_or(0);
    let mut release = release.clone();
    let unknown = &release.unknown;
    release.objects.retain(|object| {
        let kind = object["kind"].as_str().unwrap();
        kinds::ALL.contains(&kind) || !unknown.iter().any(|unknown| unknown == kind)
    });
    release.mistakes.retain(|mistake| mistake.split_once(':').and_then(|(version, _)| minor(version)) >= Some(since));
    mistakes(&release)
}

#[test]
fn what_users_set_renders_or_fails_in_words() {
    let cases = objects(concat!(env!("CARGO_MANIFEST_DIR"), "/integration/chart/users.yaml")).objects;
    assert!(cases.len() >= 40, "{}", cases.len());
    let values: Vec<Value> = cases.iter().map(|case| case["values"].clone()).collect();
    let mut wrong = Vec::new();
    for (case, release) in cases.iter().zip(Chart::render(&values).cases) {
        let found = match (case["fails"].as_str(), release) {
            (Some(part), Err(error)) if error.contains(part) => continue,
            (Some(part), Err(error)) => vec![format!("{part} is not in {error}")],
            (Some(_), Ok(_)) => vec!["it is taken".to_owned()],
            (None, Err(error)) => vec![error],
            (None, Ok(release)) => [differences(case, &release), violations(case, &release)].concat(),
        };
        wrong.extend(found.iter().map(|what| format!("{}: {what}", case["name"])));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
