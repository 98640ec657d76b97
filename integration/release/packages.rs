//! The archive of a release, and the lists of files in the packages for Debian and for rpm.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::support::binary;
use crate::support::process::succeed;
use crate::support::programs::repository;

/// The files below a directory, by their paths in it.
fn files(directory: &Path) -> BTreeSet<String> {
    let listed = succeed(Command::new("find").args([".", "-type", "f"]).current_dir(directory));
    listed.lines().map(|path| path.trim_start_matches("./").to_owned()).collect()
}

/// The files that `weir` generates for a release.
fn generated(directory: &Path) -> BTreeSet<String> {
    let script = repository().join("integration/release/generated.sh");
    succeed(Command::new(script).arg(binary::PATH).arg(directory));
    files(directory)
}

/// A directory like that of `integration/image/build.sh`, but with a small program, which is soon compressed.
fn image(directory: &Path) {
    for (source, path) in [
        ("/bin/true", "usr/bin/weir"),
        ("LICENSE", "usr/share/doc/weir/LICENSE"),
        ("LICENSE", "usr/share/doc/weir/THIRD-PARTY-LICENSES.txt"),
        ("limits.yaml", "etc/weir/limits.yaml"),
    ] {
        let path = directory.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::copy(repository().join(source), path).unwrap();
    }
}

#[test]
fn an_archive_has_everything_and_is_the_same_each_time() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("image");
    image(&root);
    let name = format!("weir-{}-linux-{}", env!("CARGO_PKG_VERSION"), std::env::consts::ARCH);
    let archive = |out: &str| {
        let mut command = Command::new(repository().join("integration/release/packages.sh"));
        command.arg("archive").arg(&root).arg(binary::PATH).arg(folder.path().join(out));
        succeed(&mut command);
        fs::read(folder.path().join(out).join(format!("{name}.tar.gz"))).unwrap()
    };
    assert!(archive("first") == archive("second"), "two archives of the same files differ");
    let mut tar = Command::new("tar");
    succeed(tar.arg("-xzf").arg(folder.path().join(format!("first/{name}.tar.gz"))).arg("-C").arg(folder.path()));
    let unpacked = folder.path().join(name);
    let found = files(&unpacked);
    for expected in [
        "weir",
        "LICENSE",
        "THIRD-PARTY-LICENSES.txt",
        "README.md",
        "CHANGELOG.md",
        "limits.yaml",
        "man/weir.1",
        "completions/weir.bash",
        "completions/_weir",
        "completions/weir.fish",
        "systemd/weir.service",
        "systemd/weir.socket",
        "systemd/weir.yaml",
    ] {
        assert!(found.contains(expected), "{expected} is missing in {found:?}");
    }
    let manual = fs::read_to_string(unpacked.join("man/weir.1")).unwrap();
    assert!(manual.contains(env!("CARGO_PKG_VERSION")), "{manual}");
}

/// The files of both packages exist, or are made when the package is.
#[test]
fn what_the_packages_hold_is_there() {
    let folder = tempfile::tempdir().unwrap();
    let mut made = generated(folder.path());
    made.insert("THIRD-PARTY-LICENSES.txt".to_owned());
    let metadata = packages();
    let deb = metadata["deb"]["assets"].as_array().unwrap().iter().map(|asset| (&asset[0], &asset[1]));
    let rpm =
        metadata["generate-rpm"]["assets"].as_array().unwrap().iter().map(|asset| (&asset["source"], &asset["dest"]));
    let (deb, rpm): (Vec<_>, Vec<_>) = (deb.collect(), rpm.collect());
    for (source, _) in deb.iter().chain(&rpm) {
        let source = source.as_str().unwrap();
        let exists = match source.strip_prefix("target/package/") {
            Some("man/*.1") => made.contains("man/weir.1"),
            Some(path) => made.contains(path),
            None => source == "target/release/weir" || repository().join(source).is_file(),
        };
        assert!(exists, "{source} is neither in the repository nor in {made:?}");
    }
    // cargo-deb takes the units from `unit-scripts`.
    let units = metadata["deb"]["systemd-units"]["unit-scripts"].as_str().unwrap();
    assert!(repository().join(units).join("weir.service").is_file());
    let holds = |list: &[(&Value, &Value)], source: &str| list.iter().any(|(asset, _)| *asset == source);
    for source in made.iter().filter(|path| !path.ends_with(".1")).map(|path| format!("target/package/{path}")) {
        assert!(holds(&deb, &source) && holds(&rpm, &source), "{source} is in only one package, or in none");
    }
}

/// An upgrade keeps what an operator has changed.
#[test]
fn the_packages_keep_changed_settings() {
    let metadata = packages();
    let settings = ["/etc/weir/limits.yaml", "/etc/weir/weir.yaml"];
    assert_eq!(metadata["deb"]["conf-files"], serde_json::json!(settings));
    let rpm = metadata["generate-rpm"]["assets"].as_array().unwrap();
    for path in settings {
        assert!(rpm.iter().any(|asset| asset["dest"] == path && asset["config"] == "noreplace"), "{path}");
    }
}

/// The packages' metadata in Cargo.toml.
fn packages() -> Value {
    let mut command = Command::new(env!("CARGO"));
    command.args(["metadata", "--locked", "--offline", "--no-deps", "--format-version", "1"]);
    let metadata: Value = serde_json::from_str(&succeed(command.current_dir(repository()))).unwrap();
    metadata["packages"][0]["metadata"].clone()
}
