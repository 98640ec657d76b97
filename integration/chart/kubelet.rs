//! What the kubelet does with a pod, done with directories and processes of this machine: volumes are filled, variables
//! are put together, and the container's arguments are given to the binary that was built.

use std::collections::BTreeMap;
use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::Value;
use tempfile::TempDir;

use super::rendering::Release;

/// Secrets and `ConfigMap`s that are not the chart's, by name, with their values by key.
pub(super) type Given = BTreeMap<String, BTreeMap<String, String>>;

/// What the image sets: `ENV` of Dockerfile.
const IMAGE: [(&str, &str); 1] = [("WEIR_CONFIG", "/usr/share/weir/weir.yaml")];

/// Where all volumes of the chart are.
const ROOT: &str = "/etc/weir/";

/// A pod of the Deployment. Where its containers see `/etc/weir`, there is a directory of this pod's own.
pub(super) struct Pod {
    pub(super) release: Release,
    given: Given,
    root: TempDir,
}

impl Pod {
    /// Fills the volumes of all containers.
    #[track_caller]
    pub(super) fn new(release: Release, given: Given) -> Self {
        let pod = Self { release, given, root: tempfile::tempdir().unwrap() };
        for volume in pod.release.pod()["volumes"].as_array().unwrap() {
            let files = pod.files(volume);
            for place in pod.mounts(volume["name"].as_str().unwrap()) {
                if !place.exists() {
                    write_volume(&place, &files);
                }
            }
        }
        pod
    }

    /// The directory of a volume: `rules`.
    #[track_caller]
    pub(super) fn volume(&self, name: &str) -> PathBuf {
        self.mounts(name).pop().unwrap_or_else(|| panic!("nobody mounts {name}"))
    }

    /// Changes the files of a volume as the kubelet does when a `ConfigMap` has changed.
    #[track_caller]
    pub(super) fn update(&self, volume: &str, files: &BTreeMap<String, String>) {
        write_volume(&self.volume(volume), files);
    }

    /// The process that a container is, with nothing in its environment but what the pod and the image say.
    #[track_caller]
    pub(super) fn command(&self, container: &str) -> Command {
        let pod = self.release.pod();
        let containers = ["initContainers", "containers"].into_iter().flat_map(|kind| pod[kind].as_array().unwrap());
        let container = containers.into_iter().find(|known| known["name"] == container).expect("a container");
        assert!(container.get("command").is_none(), "the image's entrypoint is the binary");
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
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

    /// The value of a variable, with those before it put in.
    fn value(&self, variable: &Value, before: &BTreeMap<String, String>) -> String {
        let secret = &variable["valueFrom"]["secretKeyRef"];
        if let (Some(name), Some(key)) = (secret["name"].as_str(), secret["key"].as_str()) {
            return self.given[name][key].clone();
        }
        let text = variable["value"].as_str().unwrap_or_else(|| panic!("{variable}")).to_owned();
        before.iter().fold(text, |text, (name, value)| text.replace(&format!("$({name})"), value))
    }

    /// The files that a volume of the pod has.
    #[track_caller]
    fn files(&self, volume: &Value) -> BTreeMap<String, String> {
        let name = volume["configMap"]["name"].as_str().or(volume["secret"]["secretName"].as_str());
        let name = name.unwrap_or_else(|| panic!("{volume} is neither"));
        let files = self.given.get(name).cloned().unwrap_or_else(|| self.release.config_map(name));
        files.into_iter().map(|(name, text)| (name, self.here(&text))).collect()
    }

    /// Where containers have a volume, each place once.
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

    /// A text with the paths of this machine in the place of the container's.
    fn here(&self, text: &str) -> String {
        text.replace(ROOT, &format!("{}/", self.root.path().display()))
    }
}

/// A port that nobody listens on, below those that the system gives to connections (32768 and up, unless it is told
/// otherwise): none of another test can take it while Helm renders.
pub(super) fn quiet_port() -> u16 {
    static TAKEN: AtomicU32 = AtomicU32::new(0);
    let begin = std::process::id().wrapping_mul(16);
    let ports = std::iter::repeat_with(|| begin.wrapping_add(TAKEN.fetch_add(1, Ordering::Relaxed)) % 20_000 + 10_000);
    let mut ports = ports.map(|port| u16::try_from(port).unwrap());
    ports.find(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok()).unwrap()
}

/// Writes files into a new directory beside the last one, and swaps the link to it: the names in the volume are links
/// through `..data`.
fn write_volume(place: &Path, files: &BTreeMap<String, String>) {
    fs::create_dir_all(place).unwrap();
    let versions = fs::read_dir(place).unwrap().count();
    let version = format!("..2026_11_22_{versions}");
    fs::create_dir(place.join(&version)).unwrap();
    for (name, text) in files {
        fs::write(place.join(&version).join(name), text).unwrap();
    }
    symlink(&version, place.join("..data_tmp")).unwrap();
    fs::rename(place.join("..data_tmp"), place.join("..data")).unwrap();
    for name in files.keys() {
        let link = place.join(name);
        if fs::symlink_metadata(&link).is_err() {
            symlink(format!("..data/{name}"), link).unwrap();
        }
    }
}

/// A variable of the image would beat the file of flags, or name another, so the pod has to say it too.
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
