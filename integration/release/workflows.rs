//! The workflows of GitHub and the scripts that they call, by their linters and by hand.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::support::process::{finish, succeed};
use crate::support::programs::{client, packaged, repository, unpacked};

fn workflows() -> Vec<PathBuf> {
    let folder = fs::read_dir(repository().join(".github/workflows")).unwrap();
    let mut files: Vec<_> = folder.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert_eq!(files.len(), 2, "name the new one in the test of the linters: {files:?}");
    files
}

/// The workflows' steps and actions, from `workflow_steps.py`.
fn parsed(list: &str) -> Vec<Value> {
    let paths = workflows();
    let paths: Vec<_> = paths.iter().map(|path| path.to_str().unwrap()).collect();
    client("workflow_steps.py", &paths)[list].as_array().unwrap().clone()
}

fn script(name: &str) -> Command {
    let mut command = Command::new(repository().join("integration/release").join(name));
    command.current_dir(repository());
    command
}

/// Returns what shellcheck finds wrong.
fn shellcheck(arguments: &[&str], path: &Path) -> String {
    finish(Command::new("shellcheck").args(arguments).arg(path)).text()
}

#[test]
fn linters_have_nothing_to_say_about_the_workflows() {
    let zizmor = ["--offline", "--no-progress", "--quiet", ".github"];
    packaged("zizmor", &zizmor);
    for (schema, paths) in [
        ("github-workflows", &["workflows/ci.yml", "workflows/release.yml"][..]),
        ("github-issue-forms", &["ISSUE_TEMPLATE/bug.yml", "ISSUE_TEMPLATE/feature.yml"]),
        ("github-issue-config", &["ISSUE_TEMPLATE/config.yml"]),
        ("dependabot", &["dependabot.yml"]),
    ] {
        let paths: Vec<_> = paths.iter().map(|path| format!(".github/{path}")).collect();
        let schema = format!("vendor.{schema}");
        let arguments = ["--builtin-schema", schema.as_str()].into_iter().chain(paths.iter().map(String::as_str));
        packaged("check-jsonschema", &arguments.collect::<Vec<_>>());
    }
}

#[test]
fn the_linters_would_find_mistakes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bad.yml");
    let lint = |text: &str, program: &str, arguments: &[&str]| {
        fs::write(&path, text).unwrap();
        finish(Command::new(unpacked(&format!("test-venv/bin/{program}"))).args(arguments).arg(&path))
    };
    let injection = "on: issues\npermissions: {}\njobs:\n  a:\n    runs-on: ubuntu-24.04\n    steps:\n      \
                     - run: echo ${{ github.event.issue.title }}\n";
    let found = lint(injection, "zizmor", &["--offline", "--no-progress"]);
    assert!(found.code != Some(0) && found.out.contains("template-injection"), "{found:?}");
    let found = lint(
        "on: push\njobs: { a: { step: [] } }\n",
        "check-jsonschema",
        &["--builtin-schema", "vendor.github-workflows"],
    );
    assert_eq!(found.code, Some(1), "{found:?}");
}

/// A tag of somebody else's repository can be moved.
#[test]
fn actions_are_pinned_to_commits_with_their_version() {
    let actions = parsed("actions");
    assert!(actions.len() > 5, "{actions:?}");
    for action in actions {
        let commit = action["uses"].as_str().unwrap().rsplit_once('@').unwrap().1;
        assert!(commit.len() == 40 && commit.bytes().all(|byte| byte.is_ascii_hexdigit()), "{action}");
    }
    for path in workflows() {
        for line in
            fs::read_to_string(path).unwrap().lines().filter(|line| line.contains("uses: ") && line.contains('@'))
        {
            assert!(line.contains(" # v"), "no version behind the commit: {line}");
        }
    }
}

#[test]
fn the_tests_run_on_the_oldest_compiler() {
    let workflow = fs::read_to_string(repository().join(".github/workflows/ci.yml")).unwrap();
    let image = concat!("container: docker.io/library/rust:", env!("CARGO_PKG_RUST_VERSION"), "-bookworm\n");
    assert!(workflow.contains(image), "ci.yml has no `{image}`");
}

#[test]
fn shellcheck_has_nothing_to_say_about_the_scripts() {
    let listed = succeed(Command::new("git").args(["ls-files", "*.sh", ".ci/run"]).current_dir(repository()));
    let mut wrong: Vec<_> = listed
        .lines()
        .map(|path| shellcheck(&[], &repository().join(path)))
        .filter(|findings| !findings.is_empty())
        .collect();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("step.sh");
    let steps = parsed("steps");
    assert!(steps.len() > 15, "{} steps", steps.len());
    for step in steps {
        fs::write(&path, step["run"].as_str().unwrap()).unwrap();
        let findings = shellcheck(&["--shell=bash"], &path);
        if !findings.is_empty() {
            wrong.push(format!("{}:\n{findings}", step["place"]));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    fs::write(&path, "rm $1\n").unwrap();
    assert!(shellcheck(&["--shell=bash"], &path).contains("SC2086"));
}

#[test]
fn a_tag_must_name_the_version_of_the_manifest() {
    let version = env!("CARGO_PKG_VERSION");
    let agreed = format!("version={version}\nprerelease={}\n", version.contains('-'));
    assert_eq!(succeed(script("version.sh").args(["tag", &format!("v{version}")])), agreed);
    assert_eq!(succeed(script("version.sh").args(["branch", "main"])), agreed);
    let other = finish(script("version.sh").args(["tag", "v99.0.0"]));
    assert_eq!(other.code, Some(1));
    assert!(other.err.contains(&format!("the tag is `v99.0.0` and Cargo.toml has version {version}")), "{other:?}");
}

#[test]
fn the_notes_of_a_release_are_its_section_of_the_change_log() {
    let folder = tempfile::tempdir().unwrap();
    let changes = folder.path().join("CHANGELOG.md");
    let text = "# Changes\n\n## Unreleased\n\n- next\n\n## 0.2.0 - 2026-12-01\n\n### Added\n\n- this\n\n## 0.1.0 - 2026-01-01\n\n- old\n";
    fs::write(&changes, text).unwrap();
    let notes = |version: &str| finish(script("notes.py").arg(version).arg(&changes));
    assert_eq!(notes("0.2.0").out, "### Added\n\n- this\n");
    assert_eq!(notes("0.1.0").out, "- old\n");
    // Neither a prefix of a version nor the text of another section.
    for unknown in ["0.2", "0.3.0"] {
        let missing = notes(unknown);
        assert_eq!(missing.code, Some(1), "{missing:?}");
        assert!(missing.err.contains(&format!("has no changes below `## {unknown} - DATE`")), "{missing:?}");
    }
}
