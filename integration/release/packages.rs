//! The lists of files in the packages for Debian and for rpm.

use std::process::Command;

use serde_json::Value;

use crate::support::process::succeed;
use crate::support::programs::repository;

/// The files that `integration/release/generated.sh` makes.
const GENERATED: [&str; 4] = ["man/weir.1", "completions/weir.bash", "completions/_weir", "completions/weir.fish"];

/// The files of both packages exist, or are made when the package is.
#[test]
fn what_the_packages_hold_is_there() {
    let made: Vec<_> = GENERATED.into_iter().chain(["THIRD-PARTY-LICENSES.txt"]).collect();
    let metadata = packages();
    let deb = metadata["deb"]["assets"].as_array().unwrap().iter().map(|asset| (&asset[0], &asset[1]));
    let rpm =
        metadata["generate-rpm"]["assets"].as_array().unwrap().iter().map(|asset| (&asset["source"], &asset["dest"]));
    let (deb, rpm): (Vec<_>, Vec<_>) = (deb.collect(), rpm.collect());
    for (source, _) in deb.iter().chain(&rpm) {
        let source = source.as_str().unwrap();
        let exists = match source.strip_prefix("target/package/") {
            Some("man/*.1") => made.contains(&"man/weir.1"),
            Some(path) => made.contains(&path),
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
