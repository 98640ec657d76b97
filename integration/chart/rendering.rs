//! Renders the chart with Helm.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::support::programs::client;

/// The oldest version of Kubernetes in `Chart.yaml`, and the newest with schemas.
const VERSIONS: [&str; 2] = ["1.27", "1.37"];

/// The default release and namespace.
pub(super) const NAME: &str = "weir";
pub(super) const NAMESPACE: &str = "limits";

/// A file of the chart.
pub(super) fn file(name: &str) -> String {
    let path = format!("{}/helm/weir/{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The chart and its renderings.
pub(super) struct Chart {
    pub(super) metadata: Value,
    pub(super) values: Value,
    /// The complaints of `helm lint`.
    pub(super) lint: Vec<Value>,
    /// The size of the chart's archive in bytes.
    pub(super) size: u64,
    /// A result for each case in order; the error is the user's.
    pub(super) cases: Vec<Result<Release, String>>,
    /// The objects of other files.
    files: Vec<Release>,
}

/// A release's objects.
#[derive(Clone, Debug)]
pub(super) struct Release {
    pub(super) objects: Vec<Value>,
    /// The text of NOTES.txt.
    pub(super) notes: String,
    /// Kinds unknown to Kubernetes.
    pub(super) unknown: Vec<String>,
    /// Violations of Kubernetes' schemas.
    pub(super) mistakes: Vec<String>,
}

impl Chart {
    /// Renders the chart with each of these values.
    #[track_caller]
    pub(super) fn render(cases: &[Value]) -> Self {
        Self::ask(cases.iter().map(|values| (NAME, values)), &VERSIONS)
    }

    /// Like [`Self::render`], for named releases. Without versions, Kubernetes' schemas are not checked.
    #[track_caller]
    pub(super) fn ask<'a>(cases: impl Iterator<Item = (&'a str, &'a Value)>, versions: &[&str]) -> Self {
        Self::ask_with(cases, versions, &[])
    }

    /// Like [`Self::ask`], with files of plain objects, by their paths in the chart.
    #[track_caller]
    fn ask_with<'a>(cases: impl Iterator<Item = (&'a str, &'a Value)>, versions: &[&str], files: &[&str]) -> Self {
        let cases: Vec<_> =
            cases.map(|(name, values)| json!({ "name": name, "namespace": NAMESPACE, "values": values })).collect();
        let chart = format!("{}/helm/weir", env!("CARGO_MANIFEST_DIR"));
        let asked = tempfile::NamedTempFile::new().unwrap();
        let files: Vec<_> = files.iter().map(|file| std::path::Path::new(&chart).join(file)).collect();
        let question = json!({ "chart": chart, "cases": cases, "versions": versions, "files": files });
        std::fs::write(asked.path(), question.to_string()).unwrap();
        let mut answer = client("chart.py", &[asked.path().to_str().unwrap()]);
        let cases = answer["cases"].as_array_mut().unwrap().iter_mut().map(Release::read).collect();
        let files = answer["files"].as_array_mut().unwrap().iter_mut();
        let files = files.map(|file| Release::read(file).unwrap()).collect();
        let lint = answer["lint"].as_array().unwrap().clone();
        let size = answer["size"].as_u64().unwrap();
        Self { metadata: answer["chart"].take(), values: answer["values"].take(), lint, size, cases, files }
    }
}

/// The objects in a file of the chart that is not a template.
#[track_caller]
pub(super) fn objects(file: &str) -> Release {
    Chart::ask_with(std::iter::empty(), &VERSIONS, &[file]).files.pop().unwrap()
}

/// Renders one release with these values.
#[track_caller]
pub(super) fn render(values: &Value) -> Release {
    let mut chart = Chart::render(std::slice::from_ref(values));
    chart.cases.pop().unwrap().unwrap_or_else(|error| panic!("{values}: {error}"))
}

impl Release {
    fn read(answer: &mut Value) -> Result<Self, String> {
        if let Some(error) = answer["error"].as_str() {
            return Err(error.to_owned());
        }
        let Value::Array(objects) = answer["objects"].take() else { panic!("no objects in {answer}") };
        Ok(Self {
            objects,
            notes: answer["notes"].as_str().unwrap().to_owned(),
            unknown: texts(&answer["unknown"]),
            mistakes: texts(&answer["mistakes"]),
        })
    }

    pub(super) fn of(&self, kind: &str) -> impl Iterator<Item = &Value> {
        self.objects.iter().filter(move |object| object["kind"] == kind)
    }

    #[track_caller]
    pub(super) fn get(&self, kind: &str, name: &str) -> &Value {
        let found = self.of(kind).find(|object| object["metadata"]["name"] == name);
        found.unwrap_or_else(|| panic!("no {kind} {name} among {:?}", self.of(kind).collect::<Vec<_>>()))
    }

    #[track_caller]
    pub(super) fn workload(&self) -> &Value {
        self.of("Deployment").chain(self.of("DaemonSet")).next().expect("a Deployment or a DaemonSet")
    }

    /// Its pod template.
    #[track_caller]
    pub(super) fn pod(&self) -> &Value {
        &self.workload()["spec"]["template"]["spec"]
    }

    /// Weir's container.
    #[track_caller]
    pub(super) fn container(&self) -> &Value {
        self.pod()["containers"].as_array().unwrap().iter().find(|container| container["name"] == "weir").unwrap()
    }

    #[track_caller]
    pub(super) fn config_map(&self, name: &str) -> BTreeMap<String, String> {
        strings(self.get("ConfigMap", name)["data"].as_object().unwrap())
    }
}

#[track_caller]
pub(super) fn texts(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().map(|text| text.as_str().unwrap().to_owned()).collect()
}

fn strings(map: &Map<String, Value>) -> BTreeMap<String, String> {
    map.iter().map(|(key, value)| (key.clone(), value.as_str().unwrap().to_owned())).collect()
}

/// All texts in a value, with the keys that lead to them.
pub(super) fn visit<'a>(value: &'a Value, path: &str, see: &mut impl FnMut(&str, &'a Value)) {
    see(path, value);
    match value {
        Value::Object(map) => map.iter().for_each(|(key, value)| visit(value, &format!("{path}/{key}"), see)),
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(place, value)| visit(value, &format!("{path}/{place}"), see));
        }
        _ => {}
    }
}

/// Merges `changes` into `values`, recursively.
pub(super) fn merged(values: &Value, changes: &Value) -> Value {
    match (values, changes) {
        (Value::Object(values), Value::Object(changes)) => {
            let mut all = values.clone();
            for (key, change) in changes {
                let value = all.get(key).map_or_else(|| change.clone(), |value| merged(value, change));
                all.insert(key.clone(), value);
            }
            Value::Object(all)
        }
        _ => changes.clone(),
    }
}
