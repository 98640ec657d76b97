//! `weir check` and `weir serve --dry-run`: what they read, what they print in each format, and their exit codes.

mod tables;

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use crate::support::binary::{PATH, command, run_in};
use crate::support::process::{Finished, finish};

/// Two warnings and no error.
const WARNED: &str = "limits:\n  A: { match: { path: /login }, by: ip/128, count: 5, period: 1m }\n";
const CLEAN: &str = "limits:\n  A: { by: ip/64, count: 5, period: 1m }\n";
const BROKEN: &str = "limits:\n  A: { by: ip/64, count: 5, period: \"1 m\" }\n";

fn folder(files: &[(&str, &str)]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        fs::write(folder.path().join(name), text).unwrap();
    }
    folder
}

#[track_caller]
fn ends(folder: &Path, arguments: &[&str], code: i32) -> Finished {
    let finished = run_in(folder, arguments);
    assert_eq!(finished.code, Some(code), "{arguments:?}: {}", finished.text());
    finished
}

#[test]
fn warnings_fail_only_if_strict() {
    let folder = folder(&[("w.yaml", WARNED), ("c.yaml", CLEAN), ("b.yaml", BROKEN)]);
    let finished = ends(folder.path(), &["check", "w.yaml"], 0);
    assert_eq!(finished.out, "w.yaml: ok, 1 limit, 0 overrides, 2 warnings\n");
    for part in ["[whole-ipv6-address]\n --> w.yaml:2:37\n", "[fails-open]\n --> w.yaml:2:3\n", "2 |   A: {"] {
        assert!(finished.err.contains(part), "{}", finished.err);
    }
    let finished = ends(folder.path(), &["check", "--strict", "w.yaml"], 1);
    assert!(finished.err.ends_with("w.yaml: 2 warnings, and --strict allows none\n"), "{}", finished.err);
    ends(folder.path(), &["check", "--strict", "c.yaml"], 0);
    ends(folder.path(), &["check", "c.yaml", "b.yaml"], 1);
}

#[test]
fn standard_input_is_a_file() {
    let folder = folder(&[("w.yaml", WARNED), ("o.yaml", "A:192.0.2.1: { deny: true }\n")]);
    let check = |arguments: &str| {
        let script = format!("\"$0\" check {arguments} <w.yaml");
        finish(Command::new("sh").args(["-c", &script, PATH]).current_dir(folder.path()))
    };
    let finished = check("- --overrides o.yaml");
    assert_eq!(finished.out, "<stdin>: ok, 1 limit, 1 override, 2 warnings\n", "{}", finished.err);
    assert!(finished.err.contains(" --> <stdin>:2:3\n"), "{}", finished.err);
    assert_eq!(check("- -").code, Some(2));
}

#[test]
fn without_a_file_it_reads_what_a_gateway_reads() {
    let config = "limits: c.yaml\nstore: redis://127.0.0.1:1\nupstream: echo\n";
    let folder =
        folder(&[("limits.yaml", WARNED), ("c.yaml", CLEAN), ("weir.yaml", config), ("o.yaml", "B:1: { burst: 1 }\n")]);
    let path = folder.path();
    assert!(ends(path, &["check"], 0).out.starts_with("limits.yaml: ok"));
    assert!(ends(path, &["check", "--limits", "c.yaml"], 0).out.starts_with("c.yaml: ok"));
    // The store of the file is not asked.
    assert_eq!(ends(path, &["check", "--config", "weir.yaml"], 0).out, "c.yaml: ok, 1 limit, 0 overrides\n");
    assert!(ends(path, &["check", "--overrides", "o.yaml"], 1).err.contains("unknown limit `B`"));
    let finished = finish(command(&["check"]).current_dir(path).env("WEIR_LIMITS", "c.yaml"));
    assert!(finished.out.starts_with("c.yaml: ok"), "{}", finished.text());
    let empty = tempfile::tempdir().unwrap();
    assert!(ends(empty.path(), &["check"], 1).err.contains("`weir init` writes a first one"));
}

#[test]
fn overrides_beyond_those_that_are_compared_are_told() {
    let ids: Vec<String> = (0..1_002).map(|id| format!("10.0.{}.{}", id / 256, id % 256)).collect();
    let overrides = format!("overrides: {{ A: {{ unlimited: true, ids: [{}] }} }}\n", ids.join(", "));
    let folder = folder(&[("c.yaml", &format!("{CLEAN}{overrides}"))]);
    let finished = ends(folder.path(), &["check", "c.yaml"], 0);
    assert_eq!(finished.out, "c.yaml: ok, 1 limit, 1002 overrides (2 not compared with other limits)\n");
    let told: Value =
        serde_json::from_str(&ends(folder.path(), &["check", "--format", "json", "c.yaml"], 0).out).unwrap();
    assert_eq!(told["checked"][0]["not_compared"], 2);
}

#[test]
fn json_has_all_problems_of_all_files() {
    let tested = format!("{CLEAN}tests:\n  t: [{{ get: /, expect: {{ deny: A }} }}]\n");
    let folder = folder(&[("w.yaml", WARNED), ("b.yaml", BROKEN), ("t.yaml", &tested)]);
    let finished = ends(folder.path(), &["check", "--format", "json", "w.yaml", "b.yaml", "t.yaml"], 1);
    assert_eq!(finished.err, "");
    let told: Value = serde_json::from_str(&finished.out).unwrap();
    assert_eq!((&told["errors"], &told["warnings"]), (&2.into(), &2.into()));
    assert_eq!(told["checked"][0]["limits"], 1);
    assert_eq!((&told["checked"][1]["limits"], &told["checked"][1]["errors"]), (&Value::Null, &1.into()));
    assert_eq!(told["checked"][2]["tests"]["failed"], 1);
    let problems = told["problems"].as_array().unwrap();
    assert_eq!(problems.len(), 4);
    assert_eq!((&problems[1]["lint"], &problems[1]["severity"]), (&"whole-ipv6-address".into(), &"warning".into()));
    assert_eq!(
        (&problems[1]["line"], &problems[1]["column"], &problems[1]["width"]),
        (&2.into(), &37.into(), &6.into())
    );
    assert_eq!((&problems[2]["lint"], &problems[2]["file"]), (&Value::Null, &"b.yaml".into()));
    assert_eq!((&problems[3]["message"], &problems[3]["line"]), (&"test `t` failed".into(), &4.into()));
    assert!(problems[3]["help"].as_str().unwrap().contains("expected deny, got allow"), "{}", problems[3]);
}

#[test]
fn github_gets_one_command_per_problem() {
    let tested = format!("{CLEAN}tests:\n  t: [{{ get: /, expect: {{ deny: A }} }}]\n");
    let folder = folder(&[("w.yaml", WARNED), ("b.yaml", BROKEN), ("t.yaml", &tested)]);
    let out = ends(folder.path(), &["check", "--format", "github", "w.yaml", "b.yaml", "t.yaml"], 1).out;
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(lines.len(), 4, "{out}");
    assert!(
        lines[3]
            .starts_with("::error file=t.yaml,line=4,col=1,endColumn=2,title=failing-test::test `t` failed%0Astep 1:")
    );
    assert!(
        lines[1].starts_with("::warning file=w.yaml,line=2,col=37,endColumn=43,title=whole-ipv6-address::a client "),
        "{out}"
    );
    assert!(lines[2].starts_with("::error file=b.yaml,line=2,col=37,endColumn=43,title=invalid-rules::"), "{out}");
    assert!(lines.iter().all(|line| line.contains("%0A")), "{out}");
}

#[test]
fn sarif_fits_the_standard() {
    let folder = folder(&[("w.yaml", WARNED), ("b.yaml", BROKEN)]);
    let missing = folder.path().join("no such.yaml");
    let arguments = ["check", "--format", "sarif", "w.yaml", "b.yaml", missing.to_str().unwrap()];
    let log: Value = serde_json::from_str(&ends(folder.path(), &arguments, 1).out).unwrap();
    let schema: Value = serde_json::from_str(include_str!("linting/sarif.json")).unwrap();
    let schema = jsonschema::validator_for(&schema).unwrap();
    let mistakes: Vec<String> = schema.iter_errors(&log).map(|error| error.to_string()).collect();
    assert!(mistakes.is_empty(), "{mistakes:?}");
    let run = &log["runs"][0];
    let (rules, results) = (&run["tool"]["driver"]["rules"], run["results"].as_array().unwrap());
    assert_eq!(results.len(), 4);
    for result in results {
        let index = usize::try_from(result["ruleIndex"].as_u64().unwrap()).unwrap();
        assert_eq!(rules[index]["id"], result["ruleId"]);
    }
    let place = &results[0]["locations"][0]["physicalLocation"];
    let region = &place["region"];
    assert_eq!((&region["startLine"], &region["startColumn"], &region["endColumn"]), (&2.into(), &3.into(), &4.into()));
    assert_eq!((&place["artifactLocation"]["uri"], &results[0]["level"]), (&"w.yaml".into(), &"warning".into()));
    let uri = results[3]["locations"][0]["physicalLocation"]["artifactLocation"]["uri"].as_str().unwrap();
    assert!(uri.starts_with("file:///") && uri.ends_with("no%20such.yaml"), "{uri}");
}

#[test]
fn a_dry_run_opens_nothing() {
    let folder = folder(&[("limits.yaml", WARNED)]);
    let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let flags = ["serve", "--dry-run", "--upstream", "http://127.0.0.1:1", "--proxy", &address, "--admin", &address];
    let more = ["--store", "redis://127.0.0.1:1", "--access-log", "access.log"];
    let finished = ends(folder.path(), &[&flags[..], &more].concat(), 0);
    assert_eq!(finished.out, "ok: the flags, the files and 1 limit, 2 warnings\n");
    assert!(finished.err.contains("[fails-open]"), "{}", finished.err);
    assert!(!folder.path().join("access.log").exists());
}

#[test]
fn a_dry_run_says_all_that_would_keep_a_gateway_from_starting() {
    let queue = "limits: { A: { by: ip/64, algorithm: concurrency, capacity: 1 } }";
    let folder =
        folder(&[("limits.yaml", queue), ("clean.yaml", CLEAN), ("weir.yaml", "upstream: echo\nlimits: clean.yaml\n")]);
    let path = folder.path();
    let told = |flags: &[&str], code, parts: &[&str]| {
        let finished = ends(path, &[&["serve", "--dry-run"], flags].concat(), code);
        assert!(parts.iter().all(|part| finished.err.contains(part)), "{}", finished.err);
        assert_eq!(finished.out.is_empty(), code != 0);
    };
    told(&["--config", "weir.yaml"], 0, &[]);
    told(&["--config", "no.yaml"], 2, &["no.yaml"]);
    told(&["--check", "127.0.0.1:0"], 1, &["other listeners do not see when a request ends"]);
    told(&["--upstream", "echo", "--tls-cert", "no.pem", "--tls-key", "no.pem"], 1, &["no.pem"]);
    told(&["--upstream", "echo", "--access-log", "no/access.log"], 1, &["--access-log: no is not a directory"]);
    let wrong = ["--upstream", "a", "--store", "redis:/x", "--headers", "none-such", "--limits", "no.yaml"];
    told(&wrong, 2, &["--upstream: ", "--store: ", "--headers: ", "no.yaml"]);
    told(&["--admin-token-file", "no.txt"], 2, &["--upstream is missing", "no.txt"]);
}

#[test]
fn the_files_of_the_repository_are_clean() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    ends(root, &["check", "--strict", "limits.yaml", "integration/examples/limits.yaml"], 0);
}
