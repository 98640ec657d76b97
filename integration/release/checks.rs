//! The action and the hooks by which other repositories check their rules.

use std::fs;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use crate::support::binary;
use crate::support::process::{Finished, finish, succeed};
use crate::support::programs::{packaged, repository, unpacked};

const RULES: &str = "limits: { A: { by: ip, count: 1, period: 1s } }\n";
const TYPING_MISTAKE: &str = "limits: { A: { by: ip, cuont: 1, period: 1s } }\n";
/// A client can make up keys.
const QUESTIONABLE: &str = "limits: { A: { by: { header: x-key }, count: 1, period: 1s } }\n";

/// A directory whose `bin` has a `weir`.
fn directory() -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    fs::create_dir(directory.path().join("bin")).unwrap();
    std::os::unix::fs::symlink(binary::PATH, directory.path().join("bin/weir")).unwrap();
    directory
}

fn path_with(directory: &Path) -> String {
    format!("{}:/usr/bin:/bin", directory.join("bin").display())
}

/// Runs the action's script as its step does.
fn check(directory: &Path, files: &str, changes: &[(&str, &str)]) -> Finished {
    let action = repository().join(".github/actions/check");
    let mut script = Command::new(action.join("check.sh"));
    script.current_dir(directory).env_clear().env("GITHUB_ACTION_PATH", &action).env("RUNNER_TEMP", directory);
    script.env("PATH", path_with(directory)).env("GITHUB_PATH", directory.join("path"));
    let inputs = [("FILES", files), ("STRICT", "true"), ("VERSION", ""), ("REPOSITORY", "")];
    finish(script.envs(inputs).envs(changes.iter().copied()))
}

#[test]
fn the_action_annotates_mistakes_and_fails() {
    let directory = directory();
    for (name, text) in [("limits.yaml", RULES), ("mistake.yaml", TYPING_MISTAKE), ("question.yaml", QUESTIONABLE)] {
        fs::write(directory.path().join(name), text).unwrap();
    }
    let fine = check(directory.path(), "limits.yaml", &[]);
    assert_eq!(fine.code, Some(0), "{fine:?}");
    let mistake = check(directory.path(), "limits.yaml mist*.yaml", &[]);
    assert!(mistake.code == Some(1) && mistake.text().contains("::error file=mistake.yaml,line=1"), "{mistake:?}");
    let question = check(directory.path(), "question.yaml", &[]);
    assert!(question.code == Some(1) && question.text().contains("::warning file=question.yaml"), "{question:?}");
    let lenient = check(directory.path(), "question.yaml", &[("STRICT", "false")]);
    assert_eq!(lenient.code, Some(0), "{lenient:?}");
    let unclear = check(directory.path(), "question.yaml", &[("STRICT", "True")]);
    assert!(unclear.code == Some(1) && unclear.text().contains("expected true or false"), "{unclear:?}");
    // A version that is asked for is installed, whatever is on the PATH.
    let other = check(directory.path(), "limits.yaml", &[("VERSION", "9.9.9")]);
    assert!(other.code == Some(1) && other.text().contains("does not know where releases are"), "{other:?}");
    let failing = format!("{RULES}tests:\n  t: [{{ get: /, expect: deny }}]\n");
    fs::write(directory.path().join("failing.yaml"), failing).unwrap();
    let failing = check(directory.path(), "failing.yaml", &[]);
    assert!(failing.code == Some(1) && failing.text().contains("::error file=failing.yaml"), "{failing:?}");
}

/// The server is a directory with what a release has.
#[test]
fn the_action_installs_a_release_whose_checksum_is_right() {
    let directory = directory();
    fs::write(directory.path().join("limits.yaml"), RULES).unwrap();
    let name = format!("weir-{}-linux-{}", env!("CARGO_PKG_VERSION"), std::env::consts::ARCH);
    let downloads = concat!("example/weir/releases/download/v", env!("CARGO_PKG_VERSION"));
    let downloads = directory.path().join(downloads);
    fs::create_dir_all(&downloads).unwrap();
    let mut pack = Command::new("bash");
    let steps = "mkdir \"$1\" && mv bin/weir \"$1/weir\" && tar -czf \"$2/$1.tar.gz\" \"$1\" && rm -r \"$1\" && cd \"$2\" && \
                 echo other >other && sha256sum \"$1.tar.gz\" other >SHA256SUMS && rm other";
    succeed(pack.args(["-euc", steps, "pack", &name]).arg(&downloads).current_dir(directory.path()));

    let server = format!("file://{}", directory.path().display());
    let release = [("REPOSITORY", "example/weir"), ("GITHUB_SERVER_URL", server.as_str())];
    let installed = check(directory.path(), "limits.yaml", &release);
    assert_eq!(installed.code, Some(0), "{installed:?}");
    let path = fs::read_to_string(directory.path().join("path")).unwrap();
    assert!(Path::new(path.trim()).join("weir").is_file(), "later steps find no weir in {path}");

    let unknown = check(directory.path(), "limits.yaml", &[release[0], release[1], ("VERSION", "99.0.0")]);
    assert!(unknown.code.is_some_and(|code| code != 0), "{unknown:?}");
    fs::OpenOptions::new().append(true).open(downloads.join(format!("{name}.tar.gz"))).unwrap().set_len(100).unwrap();
    let damaged = check(directory.path(), "limits.yaml", &release);
    assert!(damaged.code == Some(1) && damaged.text().contains("did NOT match"), "{damaged:?}");
    let nowhere = check(directory.path(), "limits.yaml", &[]);
    assert!(nowhere.code == Some(1) && nowhere.err.contains("no `weir` can be installed"), "{nowhere:?}");
}

#[test]
fn a_hook_checks_the_rules_of_a_commit() {
    packaged("pre-commit", &["validate-manifest", ".pre-commit-hooks.yaml"]);
    let directory = directory();
    let git = |arguments: &[&str], place: &str| {
        let identity = ["-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "commit.gpgsign=false"];
        let place = directory.path().join(place);
        succeed(Command::new("git").args(identity).args(arguments).current_dir(place))
    };
    for (place, file, text) in [
        ("weir", ".pre-commit-hooks.yaml", fs::read_to_string(repository().join(".pre-commit-hooks.yaml")).unwrap()),
        ("rules", "limits.yaml", RULES.to_owned()),
    ] {
        fs::create_dir(directory.path().join(place)).unwrap();
        fs::write(directory.path().join(place).join(file), text).unwrap();
        git(&["init", "--quiet"], place);
        git(&["add", "."], place);
        git(&["commit", "--quiet", "--message", "First"], place);
    }
    let revision = git(&["rev-parse", "HEAD"], "weir");
    let rules = directory.path().join("rules");
    let configuration = format!(
        "repos: [{{ repo: {}, rev: {}, hooks: [{{ id: weir-check-system }}] }}]\n",
        directory.path().join("weir").display(),
        revision.trim()
    );
    fs::write(rules.join(".pre-commit-config.yaml"), configuration).unwrap();
    git(&["add", "."], "rules");
    let run = || {
        let mut hook = Command::new(unpacked("test-venv/bin/pre-commit"));
        hook.args(["run", "--all-files", "--color", "never"])
            .current_dir(&rules)
            .env("PATH", path_with(directory.path()));
        finish(hook.env("PRE_COMMIT_HOME", directory.path().join("home")))
    };
    let fine = run();
    assert!(fine.code == Some(0) && fine.out.contains("Passed"), "{fine:?}");
    fs::write(rules.join("limits.yaml"), TYPING_MISTAKE).unwrap();
    git(&["add", "."], "rules");
    let mistake = run();
    assert!(mistake.code == Some(1) && mistake.text().contains("did you mean `count`?"), "{mistake:?}");
}
