//! A container of the rendered Deployment as a process on this machine, with its arguments, variables and files.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use super::rendering::Release;
use crate::support::binary;

/// Secrets and `ConfigMap`s from outside the chart: values by key, by name.
pub(super) type Given = BTreeMap<String, BTreeMap<String, String>>;

/// `ENV` of the Dockerfile.
const IMAGE: [(&str, &str); 1] = [("WEIR_CONFIG", "/usr/share/weir/weir.yaml")];

/// The directory of all volumes.
const ROOT: &str = "/etc/weir/";

/// A pod of the Deployment, with a temporary directory in place of `/etc/weir`.
pub(super) struct Pod {
    pub(super) release: Release,
    given: Given,
    root: TempDir,
}

impl Pod {
    /// Writes the files of all volumes.
    #[track_caller]
    pub(super) fn new(release: Release, given: Given) -> Self {
        let pod = Self { release, given, root: tempfile::tempdir().unwrap() };
        for volume in pod.release.pod()["volumes"].as_array().unwrap() {
            let files = pod.files(volume);
            for place in pod.mounts(volume["name"].as_str().unwrap()) {
                fs::create_dir_all(&place).unwrap();
                for (name, text) in &files {
                    fs::write(place.join(name), text).unwrap();
                }
            }
        }
        pod
    }

    /// The directory of a volume, such as `rules`.
    #[track_caller]
    pub(super) fn volume(&self, name: &str) -> PathBuf {
        self.mounts(name).pop().unwrap_or_else(|| panic!("{name} is not mounted"))
    }

    /// The command of a container, also of the pod of `helm test`, with only the variables of the pod and the image.
    #[track_caller]
    pub(super) fn command(&self, container: &str) -> Command {
        let pod = self.release.pod();
        let containers = ["initContainers", "containers"].into_iter().flat_map(|kind| pod[kind].as_array().unwrap());
        let tests = self.release.of("Pod").flat_map(|pod| pod["spec"]["containers"].as_array().unwrap());
        let container = containers.chain(tests).find(|known| known["name"] == container).expect("a container");
        assert!(container.get("command").is_none(), "the image's entrypoint is the binary");
        let mut command = binary::command(&[]);
        command.current_dir(self.root.path()).env_clear();
        let mut variables: BTreeMap<String, String> =
            IMAGE.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        for variable in container["env"].as_array().into_iter().flatten() {
            let value = self.value(variable, &variables);
            variables.insert(variable["name"].as_str().unwrap().to_owned(), value);
        }
        command.envs(variables.iter().map(|(name, value)| (name, self.here(value))));
        command.args(container["args"].as_array().unwrap().iter().map(|text| self.here(text.as_str().unwrap())));
        command
    }

    /// A program of Weir's container, as a probe runs it.
    #[track_caller]
    pub(super) fn exec(&self, words: &[Value]) -> Command {
        assert_eq!(words[0], "/usr/bin/weir");
        let mut command = binary::command(&[]);
        let serving = self.command("weir");
        let variables = serving.get_envs().filter_map(|(name, value)| Some((name, value?)));
        command.current_dir(self.root.path()).env_clear().envs(variables);
        command.args(words[1..].iter().map(|word| self.here(word.as_str().unwrap())));
        command
    }

    /// The value of a variable, with earlier variables expanded.
    fn value(&self, variable: &Value, before: &BTreeMap<String, String>) -> String {
        let secret = &variable["valueFrom"]["secretKeyRef"];
        if let (Some(name), Some(key)) = (secret["name"].as_str(), secret["key"].as_str()) {
            return self.given[name][key].clone();
        }
        let text = variable["value"].as_str().unwrap_or_else(|| panic!("{variable}")).to_owned();
        before.iter().fold(text, |text, (name, value)| text.replace(&format!("$({name})"), value))
    }

    #[track_caller]
    fn files(&self, volume: &Value) -> BTreeMap<String, String> {
        let name = volume["configMap"]["name"].as_str().or(volume["secret"]["secretName"].as_str());
        let name = name.unwrap_or_else(|| panic!("{volume} is neither"));
        let files = self.given.get(name).cloned().unwrap_or_else(|| self.release.config_map(name));
        files.into_iter().map(|(name, text)| (name, self.here(&text))).collect()
    }

    /// The mount points of a volume, each once.
    fn mounts(&self, volume: &str) -> Vec<PathBuf> {
        let pod = self.release.pod();
        let containers = ["initContainers", "containers"].into_iter().flat_map(|kind| pod[kind].as_array().unwrap());
        let mounts = containers.flat_map(|container| container["volumeMounts"].as_array().into_iter().flatten());
        let mut places: Vec<_> = mounts
            .filter(|mount| mount["name"] == volume)
            .map(|mount| PathBuf::from(self.here(mount["mountPath"].as_str().unwrap())))
            .collect();
        places.dedup();
        places
    }

    /// Replaces the container's paths with this machine's.
    fn here(&self, text: &str) -> String {
        text.replace(ROOT, &format!("{}/", self.root.path().display()))
    }
}

/// A variable of the image would override the file of flags, so the pod sets it, too.
#[test]
fn the_pod_says_what_the_image_says() {
    let dockerfile = fs::read_to_string(format!("{}/Dockerfile", env!("CARGO_MANIFEST_DIR"))).unwrap();
    let mut said: Vec<_> = dockerfile.split_whitespace().filter(|word| word.starts_with("WEIR_")).collect();
    said.sort_unstable();
    let mut expected = IMAGE.map(|(name, value)| format!("{name}={value}"));
    expected.sort_unstable();
    assert_eq!(said, expected);
    let release = super::rendering::render(&super::cases::everything());
    let environment = release.container()["env"].as_array().unwrap();
    for (name, _) in IMAGE {
        assert!(environment.iter().any(|variable| variable["name"] == name), "{name} is not in {environment:?}");
    }
}
