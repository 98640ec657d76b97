//! The Dockerfile, and whether it builds from the files that the builder gets.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::contents::{Image, files_read};
use crate::support::programs::{client, packaged, repository};

/// A Dockerfile's instructions.
pub(super) struct Dockerfile {
    instructions: Vec<Instruction>,
}

pub(super) struct Instruction {
    name: String,
    flags: Vec<String>,
    /// A JSON list, which runs without a shell.
    is_exec: bool,
    pub(super) words: Vec<String>,
}

fn strings(list: &Value) -> Vec<String> {
    list.as_array().unwrap().iter().map(|word| word.as_str().unwrap().to_owned()).collect()
}

impl Dockerfile {
    pub(super) fn read() -> Self {
        let path = repository().join("Dockerfile");
        let parsed = client("dockerfile_instructions.py", &[path.to_str().unwrap()]);
        let instruction = |parsed: &Value| Instruction {
            name: parsed["name"].as_str().unwrap().to_owned(),
            flags: strings(&parsed["flags"]),
            is_exec: parsed["exec"].as_bool().unwrap(),
            words: strings(&parsed["words"]),
        };
        Self { instructions: parsed.as_array().unwrap().iter().map(instruction).collect() }
    }

    fn all(&self, name: &str) -> Vec<&Instruction> {
        self.instructions.iter().filter(|instruction| instruction.name == name).collect()
    }

    /// The only instruction of this name in the last stage.
    #[track_caller]
    pub(super) fn last(&self, name: &str) -> &Instruction {
        let start = self.instructions.iter().rposition(|instruction| instruction.name == "FROM").unwrap();
        let mut found = self.instructions[start..].iter().filter(|instruction| instruction.name == name);
        let (first, second) = (found.next(), found.next());
        assert!(second.is_none(), "{name} comes more than once");
        first.unwrap_or_else(|| panic!("there is no {name}"))
    }

    /// The words of an instruction in exec form.
    #[track_caller]
    pub(super) fn command(&self, name: &str) -> &[String] {
        let instruction = self.last(name);
        assert!(instruction.is_exec, "{name} needs a shell, and the image has none");
        instruction.words.strip_prefix(&["CMD".to_owned()]).unwrap_or(&instruction.words)
    }

    /// The pairs of an ENV or a LABEL.
    #[track_caller]
    pub(super) fn pairs(&self, name: &str) -> BTreeMap<&str, &str> {
        let words = &self.last(name).words;
        words.chunks(2).map(|pair| (pair[0].as_str(), pair[1].trim_matches('"'))).collect()
    }

    /// The sources of COPY from the build context.
    fn sources(&self) -> Vec<&str> {
        let given = self.all("COPY").into_iter().filter(|copy| copy.flags.is_empty());
        given.flat_map(|copy| copy.words.split_last().unwrap().1).map(String::as_str).collect()
    }
}

/// Returns whether `.dockerignore` keeps a file: the last pattern that matches it or one of its parents decides.
fn is_given(ignore: &str, file: &Path) -> bool {
    let patterns = ignore.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let mut given = true;
    for pattern in patterns {
        let (keeps, pattern) = pattern.strip_prefix('!').map_or((false, pattern), |rest| (true, rest));
        assert!(pattern == "*" || !pattern.contains(['*', '?', '[']), "this test does not know `{pattern}`");
        if pattern == "*" || file.starts_with(pattern) {
            given = keeps;
        }
    }
    given
}

#[test]
fn a_linter_has_nothing_to_say() {
    packaged("hadolint", &["--failure-threshold", "style", "Dockerfile"]);
}

#[test]
fn what_is_copied_is_there_and_given_to_the_builder() {
    let ignore = fs::read_to_string(repository().join(".dockerignore")).unwrap();
    let dockerfile = Dockerfile::read();
    let sources = dockerfile.sources();
    assert!(sources.len() > 3, "{sources:?}");
    for source in sources {
        assert!(repository().join(source).exists(), "{source} is not there");
        assert!(is_given(&ignore, Path::new(source)), "{source} is ignored");
    }
    for file in ["README.md", "target/release/weir", ".git/config", "integration/main.rs", "integration/image/mod.rs"] {
        assert!(!is_given(&ignore, Path::new(file)), "{file} is given");
    }
}

/// Without emulation, the compiler must run on the builder's platform.
#[test]
fn other_platforms_are_cross_compiled() {
    let dockerfile = Dockerfile::read();
    assert_eq!(dockerfile.all("FROM")[0].flags, ["--platform=${BUILDPLATFORM}"]);
}

/// The compiler lists the files that it read; the build step names the others.
#[test]
fn what_the_build_reads_is_copied() {
    let dockerfile = Dockerfile::read();
    let sources = dockerfile.sources();
    Image::build();
    let read = files_read();
    assert!(read.iter().any(|file| file.starts_with("lua")), "{read:?}");
    let named = [
        "Cargo.toml",
        "Cargo.lock",
        "limits.yaml",
        "integration/image/weir.yaml",
        "integration/image/toolchain.sh",
        "integration/image/build.sh",
        "integration/release/licenses.py",
    ];
    for file in read.iter().map(PathBuf::as_path).chain(named.map(Path::new)) {
        assert!(sources.iter().any(|source| file.starts_with(source)), "{} is not copied", file.display());
    }
    let steps: Vec<_> = dockerfile.all("RUN").into_iter().flat_map(|step| &step.words).collect();
    let expected = [
        "integration/image/toolchain.sh \"${TARGETARCH}\"",
        "integration/image/build.sh dist /image \"${TARGETARCH}\"",
    ];
    assert_eq!(steps, expected, "the builder does something that is not tested here");
}

#[test]
fn labels_are_those_of_the_manifest() {
    let dockerfile = Dockerfile::read();
    let labels = dockerfile.pairs("LABEL");
    for (label, value) in [("version", env!("CARGO_PKG_VERSION")), ("licenses", env!("CARGO_PKG_LICENSE"))] {
        assert_eq!(labels[format!("org.opencontainers.image.{label}").as_str()], value, "{label}");
    }
    let compiler = dockerfile.all("ARG")[0].words[0].strip_prefix("RUST_IMAGE=").unwrap();
    let oldest = env!("CARGO_PKG_RUST_VERSION");
    assert!(compiler.contains(&format!("/rust:{oldest}-")), "{compiler} has not Rust {oldest}");
}

#[test]
fn the_result_has_one_program_and_an_unprivileged_user() {
    let dockerfile = Dockerfile::read();
    assert_eq!(dockerfile.last("FROM").words, ["scratch"]);
    assert_eq!(dockerfile.last("USER").words, ["65532:65532"], "Kubernetes needs numbers");
    assert_eq!(dockerfile.command("ENTRYPOINT"), ["/usr/bin/weir"]);
    assert_eq!(dockerfile.command("CMD"), ["serve"]);
    assert_eq!(dockerfile.command("HEALTHCHECK"), ["/usr/bin/weir", "health"]);
    let copy = dockerfile.last("COPY");
    assert_eq!(
        (&copy.flags[..], &copy.words[..]),
        (&["--from=build".to_owned()][..], &["/image/", "/"].map(str::to_owned)[..])
    );
}
