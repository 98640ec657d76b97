//! The names under which Weir is published: all follow from Cargo.toml, and whatever a release builds has them.

use std::fs;
use std::path::Path;
use std::process::Command;

use regex::Regex;
use serde_json::{Value, json};

use crate::support::checkout::{Checkout, files};
use crate::support::process::{finish, succeed};
use crate::support::programs::{client, prometheus, repository};

/// Nobody's.
const REPOSITORY: &str = "repository = \"https://github.com/Example/weir\"\n";

/// Addresses of forges, registries, sites and badges of a Weir, and commands that install one from a registry.
fn names() -> Regex {
    let forge =
        r"(?:github\.com|raw\.githubusercontent\.com|gitlab\.com|codeberg\.org|bitbucket\.org)(?:/[\w.{}-]+)*/weir\b";
    let registry = r"(?:ghcr|quay|gcr|docker|artifacthub)\.io(?:/[\w.-]+)*/weir\b|hub\.docker\.com/\S*weir\b";
    let index = r"(?:crates\.io/crates|docs\.rs|pypi\.org/project|npmjs\.com/package)/weir\b";
    let site = r"[\w-]+\.(?:github|gitlab)\.io/weir\b|\bweir[\w-]*\.(?:github\.io|gitlab\.io|readthedocs\.io)\b|://(?:[\w-]+\.)*weir\.[a-z]{2,}\b";
    let badge = r"img\.shields\.io|badge\.svg";
    let command = r"\b(?:cargo|brew|apt|apt-get|dnf|pip|npm) (?:install|add) (?:-\S+ )*weir\b";
    Regex::new(&format!("(?i)(?:{forge}|{registry}|{index}|{site}|{badge}|{command})[^\\s)>\"'`]*")).unwrap()
}

/// Most lines have none, and the expression takes far longer than this to say so.
fn may_have_a_name(line: &str) -> bool {
    let parts = ["://", ".com/", ".io", ".org/", "docs.rs", " install ", " add ", "badge.svg"];
    parts.iter().any(|part| line.contains(part))
}

/// Returns whether a name is one that is reserved for examples, or one within a cluster.
fn is_nobodys(name: &str) -> bool {
    ["example", "owner/", ".invalid", ".internal", ".svc"].iter().any(|part| name.to_lowercase().contains(part))
}

#[test]
fn no_file_has_a_name_that_does_not_follow_from_the_manifest() {
    let printed = succeed(&mut Command::new(repository().join("integration/release/names.py")));
    let ours: Vec<_> = printed.lines().filter_map(|line| line.split_once('=')).map(|(_, name)| name).collect();
    let ours: Vec<_> = ours.iter().filter(|name| !name.is_empty()).map(|name| name.replace("https://", "")).collect();
    let (names, mut wrong) = (names(), Vec::new());
    for path in files() {
        // Pictures are not text, and this file has what the next test finds.
        let Ok(text) = fs::read_to_string(repository().join(&path)) else { continue };
        let lines = (1..).zip(text.lines()).filter(|(_, line)| path != file!() && may_have_a_name(line));
        for (number, found) in lines.filter_map(|(number, line)| Some((number, names.find(line)?.as_str()))) {
            let name = found.trim_start_matches("://");
            if !is_nobodys(name) && !ours.iter().any(|own| name.starts_with(own.trim_end_matches('/'))) {
                wrong.push(format!("{path}:{number}: {found}"));
            }
        }
    }
    assert!(wrong.is_empty(), "these do not follow from `repository` in Cargo.toml:\n{}", wrong.join("\n"));
}

#[test]
fn names_of_all_kinds_are_found() {
    let names = names();
    for text in [
        "https://github.com/weir/weir/issues",
        "git clone git@github.com/somebody/weir",
        "image: ghcr.io/weir/weir:0.1.0",
        "oci://ghcr.io/weir/charts/weir",
        "docker.io/weir/weir",
        "https://weir.github.io/weir/rules/",
        "https://somebody.github.io/weir/",
        "https://weir.dev/",
        "https://docs.weir.io/rules/",
        "https://weir.readthedocs.io",
        "https://crates.io/crates/weir",
        "cargo install --locked weir",
        "brew install weir",
        "https://img.shields.io/badge/docs",
    ] {
        let found = names.find(text).unwrap_or_else(|| panic!("{text} is not found"));
        assert!(may_have_a_name(text) && !is_nobodys(found.as_str()), "{text}");
    }
    for text in [
        "integration/support/weir.rs",
        "cargo install --locked --path .",
        "docker build --tag weir .",
        "https://github.com/rust-lang/rust",
        "the crate `weir` on crates.io",
    ] {
        assert!(!names.is_match(text), "{text}");
    }
    for text in ["https://github.com/OWNER/weir", "http://weir.weir.svc:9002/", "https://weir.example.com:9090"] {
        assert!(names.find(text).is_none_or(|found| is_nobodys(found.as_str())), "{text}");
    }
}

/// The same table as in `src/engine/text/site.rs`.
#[test]
fn all_names_follow_from_the_repository() {
    let checkout = Checkout::of("");
    let printed = |lines: &str| {
        checkout.name(lines);
        finish(&mut checkout.script("integration/release/names.py"))
    };
    let none = printed("");
    assert_eq!((none.code, none.out.as_str()), (Some(0), "repository=\nimage=\ncharts=\nsite=\n"), "{none:?}");
    for (lines, repository, image, owner, site) in [
        (REPOSITORY, "Example/weir", "example/weir", "example", "https://example.github.io/weir/"),
        (
            "repository = \"https://github.com/example/Limiter/\"\n",
            "example/Limiter",
            "example/limiter",
            "example",
            "https://example.github.io/Limiter/",
        ),
        (
            "repository = \"https://github.com/example/weir\"\nhomepage = \"https://docs.example.com/weir\"\n",
            "example/weir",
            "example/weir",
            "example",
            "https://docs.example.com/weir/",
        ),
    ] {
        let expected = format!(
            "repository=https://github.com/{repository}\nimage=ghcr.io/{image}\ncharts=ghcr.io/{owner}/charts\nsite={site}\n"
        );
        assert_eq!(printed(lines).text(), expected, "{lines}");
    }
    for (lines, error) in [
        ("homepage = \"https://docs.example.com/\"\n", "a `homepage` and no `repository`"),
        ("repository = \"https://example.com/weir\"\n", "expected `https://github.com/OWNER/NAME`"),
    ] {
        let refused = printed(lines);
        assert!(refused.code == Some(1) && refused.err.contains(error), "{refused:?}");
    }
}

/// Renders a chart with these values, and returns its metadata and the result.
fn rendered(chart: &Path, values: &Value) -> (Value, Value) {
    let asked = tempfile::NamedTempFile::new().unwrap();
    let case = json!({ "name": "weir", "namespace": "limits", "values": values });
    let question = json!({ "chart": chart, "cases": [case], "versions": [], "files": [] });
    fs::write(asked.path(), question.to_string()).unwrap();
    let mut answer = client("chart.py", &[asked.path().to_str().unwrap()]);
    assert_eq!(answer["lint"], json!([]));
    let chart = answer["chart"].take();
    (chart, answer["cases"][0].take())
}

#[test]
fn the_chart_of_a_release_has_its_names() {
    let checkout = Checkout::of(REPOSITORY);
    succeed(checkout.script("integration/release/names.py").args(["write", "named"]));
    let chart = checkout.path("named/helm/weir");
    let (metadata, release) = rendered(&chart, &json!({ "prometheusRule": { "enabled": true } }));
    let site = "https://example.github.io/weir/";
    assert_eq!(metadata["home"], site);
    assert_eq!(metadata["icon"], format!("{site}images/icon.svg"));
    assert!(repository().join("docs/images/icon.svg").is_file());
    assert_eq!(metadata["sources"], json!(["https://github.com/Example/weir"]));
    let image = concat!("ghcr.io/example/weir:", env!("CARGO_PKG_VERSION"));
    let annotation = |name: &str| metadata["annotations"][format!("artifacthub.io/{name}")].as_str().unwrap();
    assert!(annotation("images").contains(&format!("image: {image}\n")), "{metadata}");
    assert!(annotation("links").contains(&format!("url: {site}kubernetes/\n")), "{metadata}");
    assert_eq!(annotation("license"), "Apache-2.0");

    let objects = release["objects"].as_array().unwrap();
    let of = |kind: &str| objects.iter().find(|object| object["kind"] == kind).unwrap();
    assert_eq!(of("Deployment")["spec"]["template"]["spec"]["containers"][0]["image"], image);
    let alerts = of("PrometheusRule").to_string();
    assert!(alerts.contains(&format!("{site}runbook/#weirdown\"")) && !alerts.contains("docs/runbook.md"), "{alerts}");
    succeed(prometheus("promtool").args(["test", "rules"]).arg(chart.join("alerts/weir_test.yaml")));

    let readme = fs::read_to_string(chart.join("README.md")).unwrap();
    assert!(readme.contains("published as `oci://ghcr.io/example/charts/weir`") && !readme.contains("<!-- published"));
    assert!(readme.contains("](https://github.com/Example/weir/blob/HEAD/docs/runbook.md)"), "{readme}");
    assert!(readme.contains("| `image.repository` | string | `\"example/weir\"` |"), "{readme}");
    let relative = Regex::new(r"\]\((?:\.\.|[a-z])[\w/.-]*\)").unwrap();
    assert_eq!(relative.find(&readme).map(|link| link.as_str()), None);
}

/// A release that nobody may publish is rehearsed with the chart of a checkout.
#[test]
fn without_a_repository_the_chart_stays_as_it_is() {
    let checkout = Checkout::of("");
    succeed(checkout.script("integration/release/names.py").args(["write", "named"]));
    for file in ["helm/weir/Chart.yaml", "helm/weir/values.yaml", "helm/weir/README.md", "helm/weir/alerts/weir.yaml"] {
        assert!(checkout.read(file) == checkout.read(&format!("named/{file}")), "{file} has changed");
    }
}

#[test]
fn the_examples_of_a_release_start_its_image() {
    let checkout = Checkout::of(REPOSITORY);
    let name = concat!("weir-", env!("CARGO_PKG_VERSION"), "-examples");
    let archive = |out: &str| {
        succeed(checkout.script("integration/release/examples.sh").arg(out));
        fs::read(checkout.path(format!("{out}/{name}.tar.gz"))).unwrap()
    };
    assert!(archive("first") == archive("second"), "two archives of the same files differ");
    succeed(
        Command::new("tar")
            .arg("-xzf")
            .arg(checkout.path(format!("first/{name}.tar.gz")))
            .current_dir(checkout.path("")),
    );
    let compose = checkout.path(name).join("integration/examples/compose/compose.yaml");
    let parsed = client("compose_file.py", &[compose.to_str().unwrap()]);
    let services = &parsed["services"];
    assert_eq!(services["weir"]["image"], concat!("ghcr.io/example/weir:", env!("CARGO_PKG_VERSION")));
    assert!(services["weir"]["build"].is_null() && services["weir"]["pull_policy"].is_null(), "{services}");
    // What it mounts is in the archive.
    let volumes = services.as_object().unwrap().values().filter_map(|service| service["volumes"].as_array()).flatten();
    let mounted: Vec<_> = volumes.filter_map(|volume| volume.as_str()?.split(':').next()).collect();
    let mounted: Vec<_> = mounted.into_iter().filter(|path| path.starts_with('.')).collect();
    assert!(mounted.len() > 4, "{mounted:?}");
    for path in mounted {
        assert!(compose.parent().unwrap().join(path).exists(), "{path} is not in the archive");
    }
}

#[test]
fn the_image_of_a_release_says_where_it_comes_from() {
    let workflow = fs::read_to_string(repository().join(".github/workflows/release.yml")).unwrap();
    for (label, name) in [("source", "REPOSITORY"), ("url", "SITE")] {
        assert!(workflow.contains(&format!("--label \"org.opencontainers.image.{label}=${name}\"")), "{label}");
        let from = format!(
            "{name}: ${{{{ needs.version.outputs.{} }}}}\n",
            if name == "SITE" { "site" } else { "repository" }
        );
        assert!(workflow.contains(&from), "{from}");
    }
    for name in ["image", "charts"] {
        let from = format!("{}: ${{{{ needs.version.outputs.{name} }}}}\n", name.to_uppercase());
        assert!(
            workflow.contains(&from)
                && workflow.contains(&format!("{name}: ${{{{ steps.version.outputs.{name} }}}}\n"))
        );
    }
}
