//! What Helm makes of the chart.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::support::programs::client;

/// The oldest version of Kubernetes that `Chart.yaml` names, and the newest whose schemas there are.
const VERSIONS: [&str; 2] = ["1.27", "1.37"];

/// The release and its namespace, unless a case says otherwise.
pub(super) const NAME: &str = "weir";
pub(super) const NAMESPACE: &str = "limits";

/// A file of the chart.
pub(super) fn file(name: &str) -> String {
    let path = format!("{}/helm/weir/{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// What Helm knows of the chart, and what it has rendered.
pub(super) struct Chart {
    /// Chart.yaml.
    pub(super) metadata: Value,
    /// values.yaml.
    pub(super) values: Value,
    /// What `helm lint` complains of.
    pub(super) lint: Vec<Value>,
    /// The bytes of the chart's archive.
    pub(super) size: u64,
    /// A result for each case, in their order; the error is what the user reads.
    pub(super) cases: Vec<Result<Release, String>>,
    /// The objects of files.
    files: Vec<Release>,
}

/// All objects of one release.
#[derive(Clone, Debug)]
pub(super) struct Release {
    pub(super) objects: Vec<Value>,
    /// NOTES.txt.
    pub(super) notes: String,
    /// The kinds that are none of Kubernetes' own.
    pub(super) unknown: Vec<String>,
    /// Where Kubernetes' schemas disagree.
    pub(super) mistakes: Vec<String>,
}

impl Chart {
    /// Renders the chart with each of these values.
    #[track_caller]
    pub(super) fn render(cases: &[Value]) -> Self {
        Self::ask(cases.iter().map(|values| (NAME, values)), &VERSIONS)
    }

    /// The same for releases with names, and without a look at Kubernetes' schemas unless versions are given.
    #[track_caller]
    pub(super) fn ask<'a>(cases: impl Iterator<Item = (&'a str, &'a Value)>, versions: &[&str]) -> Self {
        Self::ask_with(cases, versions, &[])
    }

    /// The same, with files of objects that are no templates, by their paths in the chart.
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

/// The objects of a file of the chart that is no template.
#[track_caller]
pub(super) fn objects(file: &str) -> Release {
    Chart::ask_with(std::iter::empty(), &VERSIONS, &[file]).files.pop().unwrap()
}

/// One release with these values.
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

    /// The objects of a kind.
    pub(super) fn of(&self, kind: &str) -> impl Iterator<Item = &Value> {
        self.objects.iter().filter(move |object| object["kind"] == kind)
    }

    /// An object by its kind and name.
    #[track_caller]
    pub(super) fn get(&self, kind: &str, name: &str) -> &Value {
        let found = self.of(kind).find(|object| object["metadata"]["name"] == name);
        found.unwrap_or_else(|| panic!("no {kind} {name} among {:?}", self.of(kind).collect::<Vec<_>>()))
    }

    /// The Deployment.
    #[track_caller]
    pub(super) fn deployment(&self) -> &Value {
        self.of("Deployment").next().expect("a Deployment")
    }

    /// What its pods are.
    #[track_caller]
    pub(super) fn pod(&self) -> &Value {
        &self.deployment()["spec"]["template"]["spec"]
    }

    /// Weir's container.
    #[track_caller]
    pub(super) fn container(&self) -> &Value {
        self.pod()["containers"].as_array().unwrap().iter().find(|container| container["name"] == "weir").unwrap()
    }

    /// The files of a `ConfigMap`.
    #[track_caller]
    pub(super) fn config_map(&self, name: &str) -> BTreeMap<String, String> {
        strings(self.get("ConfigMap", name)["data"].as_object().unwrap())
    }
}

/// A list of texts.
#[track_caller]
pub(super) fn texts(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().map(|text| text.as_str().unwrap().to_owned()).collect()
}

fn strings(map: &Map<String, Value>) -> BTreeMap<String, String> {
    map.iter().map(|(key, value)| (key.clone(), value.as_str().unwrap().to_owned())).collect()
}

/// All of a value's texts, with the keys that lead to them.
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

/// `changes` put into `values`, maps into maps.
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
