//! The workflows of GitHub and the scripts that they call, by their linters and by hand.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::support::checkout::Checkout;
use crate::support::process::{finish, succeed};
use crate::support::programs::{client, packaged, repository, unpacked};

const VERSION: &str = "integration/release/version.sh";

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
        ("dependabot", &["dependabot.yml"]),
        ("github-actions", &["actions/check/action.yml"]),
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
    for action in actions.iter().filter(|action| !action["uses"].as_str().unwrap().starts_with("./")) {
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

/// Without `pipefail`, the first program of a pipe may fail and its step goes on.
#[test]
fn a_step_fails_with_each_program_in_it() {
    for path in workflows() {
        let workflow = fs::read_to_string(&path).unwrap();
        assert!(workflow.contains("\ndefaults:\n  run:\n    shell: bash\n"), "{}", path.display());
        assert_eq!(workflow.matches("shell:").count(), 1, "{}: a step with another shell", path.display());
    }
}

#[test]
fn a_rehearsal_needs_no_name() {
    let version = env!("CARGO_PKG_VERSION");
    let checkout = Checkout::of("");
    let agreed =
        format!("version={version}\nprerelease={}\nrepository=\nimage=\ncharts=\nsite=\n", version.contains('-'));
    assert_eq!(succeed(checkout.script(VERSION).args(["branch", "main"])), agreed);
}

#[test]
fn a_tag_that_cannot_be_published_is_refused() {
    let version = env!("CARGO_PKG_VERSION");
    let tag = format!("v{version}");
    let named = "repository = \"https://github.com/Example/weir\"\n";
    let released = format!("# Changes\n\n## Unreleased\n\n## {version} - 2026-12-01\n\n### Added\n\n- this\n");
    let checkout = Checkout::of("");
    let asked = |lines: &str, changes: &str, tag: &str, here: Option<&str>| {
        checkout.name(lines);
        checkout.write("CHANGELOG.md", changes);
        let mut script = checkout.script(VERSION);
        if let Some(here) = here {
            script.env("GITHUB_REPOSITORY", here).env("GITHUB_SERVER_URL", "https://github.com");
        }
        finish(script.args(["tag", tag]))
    };
    for here in [None, Some("Example/weir")] {
        let published = asked(named, &released, &tag, here);
        assert!(published.code == Some(0) && published.out.contains("\nimage=ghcr.io/example/weir\n"), "{published:?}");
    }
    let open = released.replace("## Unreleased\n", "## Unreleased\n\n### Fixed\n\n- that\n");
    let undated = released.replace(" - 2026-12-01", "");
    let unwritten = released.replace(version, "0.0.1");
    for (lines, changes, tag, here, error) in [
        (named, &released, "v99.0.0", None, "the tag is `v99.0.0` and Cargo.toml has version"),
        ("", &released, &tag, None, "Cargo.toml has no `repository`"),
        (named, &released, &tag, Some("example/fork"), "would be published by https://github.com/example/fork"),
        (named, &open, &tag, None, "CHANGELOG.md has entries under `## Unreleased`"),
        (named, &undated, &tag, None, "the section of a release has its date"),
        (named, &unwritten, &tag, None, "has no changes below"),
    ] {
        let refused = asked(lines, changes, tag, here);
        assert!(refused.code == Some(1) && refused.err.contains(error), "{error}: {refused:?}");
    }
}

#[test]
fn whatever_has_another_version_is_named() {
    let version = env!("CARGO_PKG_VERSION");
    let checkout = Checkout::of("");
    for (path, word) in [
        ("helm/weir/Chart.yaml", format!("appVersion: \"{version}\"")),
        ("Dockerfile", format!("image.version=\"{version}\"")),
        ("integration/examples/compose/compose.yaml", format!("weir:{version}")),
        ("helm/weir/README.md", format!("weir:{version}")),
        ("docs/kubernetes.md", format!("weir:{version}")),
    ] {
        let text = checkout.read(path);
        assert!(text.contains(&word), "{path} has no {word}");
        checkout.write(path, &text.replace(&word, &word.replace(version, "99.0.0")));
        let refused = finish(checkout.script(VERSION).args(["branch", "main"]));
        assert!(refused.code == Some(1) && refused.err.contains(path), "{path}: {refused:?}");
        checkout.write(path, &text);
    }
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
