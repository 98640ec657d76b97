//! `weir init`: what it writes is right, and the commands that it names work.

use std::fs;

use crate::support::binary::run_in;

const GATEWAYS: [&str; 7] = ["proxy", "nginx", "haproxy", "traefik", "caddy", "ext-authz", "envoy-ratelimit"];

#[test]
fn each_gateway_has_a_file_whose_next_commands_work() {
    for gateway in GATEWAYS {
        let directory = tempfile::tempdir().unwrap();
        let run = |arguments: &[&str]| run_in(directory.path(), arguments);
        let written = run(&["init", "--for", gateway]);
        assert_eq!((written.code, written.out.as_str()), (Some(0), ""), "{gateway}");
        let checked = run(&["check", "--strict"]);
        assert_eq!(
            checked.text(),
            "limits.yaml: ok, 3 limits, 2 overrides, 3 tests\n".replace("2 overrides", overrides(gateway))
        );
        let commands: Vec<Vec<&str>> = written
            .err
            .lines()
            .filter_map(|line| Some(line.trim().strip_prefix("weir ")?.split(' ').collect()))
            .collect();
        assert_eq!(commands.len(), 2, "{}", written.err);
        for command in commands {
            let dry: &[&str] = if command[0] == "serve" { &["--dry-run"] } else { &[] };
            let finished = run(&[command.as_slice(), dry].concat());
            assert_eq!(finished.code, Some(0), "{gateway}: {command:?}: {}", finished.text());
        }
    }
}

fn overrides(gateway: &str) -> &'static str {
    if gateway == "envoy-ratelimit" { "1 override" } else { "2 overrides" }
}

/// Envoy can ask in two ways, which need different rules.
#[test]
fn envoy_has_two_names() {
    let directory = tempfile::tempdir().unwrap();
    let refused = run_in(directory.path(), &["init", "--for", "envoy"]);
    assert!(
        refused.code == Some(2) && refused.err.contains("`ext-authz`, which sees whole requests"),
        "{}",
        refused.err
    );
    let shown = |gateway| run_in(directory.path(), &["init", "-", "--for", gateway]).out;
    assert_eq!(shown("istio"), shown("ext-authz"));
}

#[test]
fn a_file_that_exists_stays() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("mine.yaml");
    fs::write(&path, "mine").unwrap();
    let refused = run_in(directory.path(), &["init", "mine.yaml"]);
    assert_eq!((refused.code, refused.err.as_str()), (Some(1), "error: mine.yaml exists; --force replaces it\n"));
    assert_eq!(fs::read_to_string(&path).unwrap(), "mine");
    assert_eq!(run_in(directory.path(), &["init", "mine.yaml", "--force"]).code, Some(0));
    let shown = run_in(directory.path(), &["init", "-"]);
    assert_eq!(shown.out, fs::read_to_string(&path).unwrap());
    assert_eq!(shown.err, "");
    let missing = run_in(directory.path(), &["init", "no/such/limits.yaml"]);
    assert!(missing.code == Some(1) && missing.err.contains("cannot write no/such/limits.yaml"), "{}", missing.err);
}
