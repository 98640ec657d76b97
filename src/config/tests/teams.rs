//! Directories of rules files: what a file may refer to, and whose mistake is whose.

use std::fs;
use std::path::Path;

use tempfile::TempDir;

use super::*;

const ORDERS: (&str, &str) =
    ("payments.yaml", "limits: { Orders: { match: { path: /o }, by: ip, count: 5, period: 1s, short: o } }");
const QUERIES: (&str, &str) =
    ("search.yaml", "limits: { Queries: { match: { path: /q }, by: ip, count: 5, period: 1s, short: o } }");

fn written(files: &[(&str, &str)]) -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    for (name, text) in files {
        fs::write(directory.path().join(name), text).unwrap();
    }
    directory
}

fn read_all(directory: &Path, overrides: &[&str]) -> Result<Sources, Problem> {
    let sources = Files { limits: Some(directory.to_owned()), ..Files::default() }.read()?;
    let named = |text: &&str| Source { name: "overrides.yaml".into(), text: (*text).into() };
    Ok(Sources { overrides: overrides.iter().map(named).collect(), ..sources })
}

/// Checks a directory with these files and overrides. `expected` is all of the report, as one line each, without the directory.
#[track_caller]
fn case(files: &[(&str, &str)], overrides: &[&str], expected: &[&str]) {
    let directory = written(files);
    let sources = read_all(directory.path(), overrides).unwrap();
    let loaded = check_sources(&sources, Fingerprinter::new((1, 2)), NOW, &[]);
    let prefix = format!("{}/", directory.path().display());
    let found: Vec<String> =
        loaded.report.problems.iter().map(|problem| problem.one_line().replace(&prefix, "")).collect();
    assert_eq!(found, expected);
    assert_eq!(loaded.rules.is_some(), loaded.report.errors == 0);
}

#[test]
fn the_limits_of_a_team_bear_its_name() {
    let base = ("base.yaml", "limits: { Orders: { by: ip, count: 9, period: 1s } }");
    let directory = written(&[QUERIES, ORDERS, base, (".hidden.yaml", "?"), ("notes.md", "?")]);
    let sources = read_all(directory.path(), &["payments/Orders:192.0.2.1: { count: 6, period: 1s }"]).unwrap();
    let loaded = load(&sources, Fingerprinter::new((1, 2)), NOW);
    let rules = loaded.rules.unwrap_or_else(|| panic!("{}", loaded.report));
    let found = rules.limits().iter().map(|limit| {
        (limit.name.as_str(), limit.own_name(), limit.owner.as_deref(), limit.short.as_str(), limit.overrides.len())
    });
    let expected = [
        ("Orders", "Orders", None, "Orders", 0),
        ("payments/Orders", "Orders", Some("payments"), "payments/o", 1),
        ("search/Queries", "Queries", Some("search"), "search/o", 0),
    ];
    assert_eq!(found.collect::<Vec<_>>(), expected);
}

#[test]
fn a_file_refers_to_its_own_limits() {
    let own = "limits: { Orders: { match: { path: /o }, by: ip, count: 5, period: 1s } }\noverrides: { Orders:192.0.2.1: { count: 6, period: 1s } }";
    case(&[("payments.yaml", own), QUERIES], &[], &[]);
    let other = "limits: { Orders: { match: { path: /o }, by: ip, count: 5, period: 1s } }\noverrides: { Queries:192.0.2.1: { deny: true } }";
    let unknown = "payments.yaml:2:14: unknown limit `Queries` (add it under `limits`; a limit without numbers applies only to \
                   its overrides)";
    case(&[("payments.yaml", other), QUERIES], &[], &[unknown]);
    let later = "limits: { Queries: { match: { path: /q }, by: ip, count: 5, period: 1s } }\noverrides: { Orders:192.0.2.1: { deny: true } }";
    let unknown = "search.yaml:2:14: unknown limit `Orders` (add it under `limits`; a limit without numbers applies only to its overrides)";
    case(&[ORDERS, ("search.yaml", later)], &[], &[unknown]);
    let misspelt = "limits: { Orders: { match: { path: /o }, by: ip, count: 5, period: 1s } }\noverrides: { Order:192.0.2.1: { deny: true } }";
    case(&[("payments.yaml", misspelt)], &[], &["payments.yaml:2:14: unknown limit `Order` (did you mean `Orders`?)"]);
    let exempt = "limits: {}\nexempt: [{ match: { cidr: 192.0.2.0/24 }, limits: [payments/Orders] }]";
    let unknown = "base.yaml:2:52: there is no limit `payments/Orders` (add it under `limits`; a limit without numbers applies \
                   only to its overrides)";
    case(&[("base.yaml", exempt), ORDERS], &[], &[unknown]);
}

#[test]
fn overrides_outlast_the_limit_of_a_team_and_no_other() {
    let gone = "payments/Gone:192.0.2.1: { count: 1, period: 1s }";
    let warning = "overrides.yaml:1:1: no team has the limit `payments/Gone` (correct or remove it)";
    case(&[ORDERS], &[gone], &[warning]);
    let wrong = "Gone:192.0.2.1: { count: 1, period: 1s }";
    let error = "overrides.yaml:1:1: unknown limit `Gone` (add it under `limits`; a limit without numbers applies only to its \
                 overrides)";
    case(&[ORDERS], &[wrong], &[error]);
}

#[test]
fn what_concerns_all_is_in_the_base() {
    let jwt = "jwt: { main: { issuer: a, audiences: [b], jwks_url: https://a.example/ } }\n";
    let by = "limits: { Orders: { by: { claim: sub }, count: 5, period: 1s } }";
    case(&[("base.yaml", &format!("{jwt}limits: {{}}")), ("payments.yaml", by)], &[], &[]);
    let moved = format!("{jwt}limits: {{}}");
    let error = "payments.yaml:1:1: issuers of tokens are those of all teams (move `jwt` to `base.yaml`)";
    case(&[("payments.yaml", &moved)], &[], &[error]);
    let ban =
        "limits: { Orders: { by: ip, count: 5, period: 1s, ban: { after: 3, within: 1m, for: 1h, scope: all } } }";
    case(&[("base.yaml", ban)], &[], &[]);
    let error = "payments.yaml:1:51: a team's ban cannot be from the limits of others (remove `scope: all`, or move the limit to \
                 `base.yaml`)";
    case(&[("payments.yaml", ban)], &[], &[error]);
}

#[test]
fn a_team_exempts_from_its_own_limits() {
    let exempting = |name: &str| {
        (name.to_owned(), "exempt: [{ match: { cidr: 192.0.2.0/24 } }]\nlimits: { L: { by: ip, burst: 1 } }")
    };
    let limits = |exempting: (String, &str)| {
        let directory = written(&[(&exempting.0, exempting.1), ORDERS, QUERIES]);
        let loaded = load(&read_all(directory.path(), &[]).unwrap(), Fingerprinter::new((1, 2)), NOW);
        let rules = loaded.rules.unwrap_or_else(|| panic!("{}", loaded.report));
        let one = rules.exemptions().next().expect("one");
        let place = rules.place_of(&one.origin);
        let names =
            (0..).zip(rules.limits()).filter(|(place, _)| one.is_from(*place)).map(|(_, limit)| limit.name.clone());
        (names.collect::<Vec<_>>(), place.rsplit('/').next().map(str::to_owned))
    };
    assert_eq!(limits(exempting("refunds.yaml")), (vec!["refunds/L".to_owned()], Some("refunds.yaml:1".to_owned())));
    let all = ["L", "payments/Orders", "search/Queries"].map(str::to_owned).to_vec();
    assert_eq!(limits(exempting("base.yaml")), (all, Some("base.yaml:1".to_owned())));
    // From none is not from all.
    let error = "payments.yaml:1:10: there are no limits to be exempt from (add one below `limits`, or remove this)";
    case(&[("payments.yaml", "exempt: [{ match: { cidr: 192.0.2.0/24 } }]\nlimits: {}")], &[], &[error]);
}

#[test]
fn lints_are_silenced_for_the_file_of_a_team() {
    let text = |path: &str| {
        format!(
            "limits: {{ L: {{ match: {{ path: {path} }}, by: ip, count: 5, period: 1s }} }}\nexempt: [{{ match: {{ path: {path} }} }}]"
        )
    };
    let (silent, loud) = (text("/a") + "\nignore_lints: [claimable-exemption]", text("/b"));
    let warning = "search.yaml:2:19: any client that sends such requests is exempt (add `cidr` or `claims`; ignore this if your \
                   gateway sets what it tests)";
    case(&[("payments.yaml", &silent), ("search.yaml", &loud)], &[], &[warning]);
}

#[test]
fn the_file_is_named_after_the_team() {
    let text = "limits: { L: { count: 1, period: 1s } }";
    for good in ["a", "a.b_c-1", &"x".repeat(32)] {
        case(&[(&format!("{good}.yaml"), text)], &[], &[]);
    }
    for bad in ["1a", "A", "a b", "-a", &"x".repeat(33)] {
        let expected = format!(
            "{bad}.yaml: `{bad}` is not a valid name of a team (start with a letter; use at most 32 lower-case letters, digits, `_`, `.` \
             and `-`)"
        );
        case(&[(&format!("{bad}.yaml"), text), ORDERS], &[], &[&expected]);
    }
    let directory = written(&[("a.yaml", text), ("a.yml", text)]);
    let files = read_all(directory.path(), &[]).unwrap().teams;
    let wrong: Vec<bool> = files.iter().map(|file| file.problem.is_some()).collect();
    assert_eq!(wrong, [false, true]);
}

#[test]
fn the_number_and_the_size_of_files_are_bounded() {
    let text = "limits: { L: { count: 1, period: 1s } }";
    let directory = written(&[("base.yaml", text)]);
    for team in 0..256 {
        fs::write(directory.path().join(format!("t{team}.yaml")), text).unwrap();
    }
    assert_eq!(read_all(directory.path(), &[]).unwrap().teams.len(), 257);
    fs::write(directory.path().join("more.yaml"), text).unwrap();
    let error = read_all(directory.path(), &[]).unwrap_err();
    assert_eq!(error.message, "257 teams in this directory, at most 256 are supported");
    fs::remove_file(directory.path().join("base.yaml")).unwrap();
    assert!(read_all(directory.path(), &[]).is_err(), "without a base, there is no room for one more");

    for (size, is_read) in [(2 << 20, true), ((2 << 20) + 1, false)] {
        let long = text.to_owned() + &" ".repeat(size - text.len());
        let directory = written(&[("a.yaml", &long), ("base.yaml", &long)]);
        let files = read_all(directory.path(), &[]).unwrap().teams;
        assert_eq!([&files[0], &files[1]].map(|file| file.problem.is_none()), [true, is_read], "{size}");
    }
}

/// A team's file reaches neither the keys of others nor what else Weir can read.
#[test]
fn scripts_and_files_of_others_are_not_for_teams() {
    let script = "limits: { L: { algorithm: script, file: own.lua, by: ip } }";
    let own = ("own.lua", "return {'allow', {}}");
    let expected = "payments.yaml:1:27: a team's limit cannot have a script (move the limit to `base.yaml`; a script can change every key in Redis)";
    case(&[("payments.yaml", script), own], &[], &[expected]);
    let directory = written(&[("base.yaml", script), own]);
    assert!(load(&read_all(directory.path(), &[]).unwrap(), Fingerprinter::new((1, 2)), NOW).rules.is_some());

    let body = |file: &str| {
        format!("limits: {{ L: {{ by: ip, count: 5, period: 1s, deny_with: {{ body: {{ file: '{file}' }} }} }} }}")
    };
    let page = ("page.txt", "slow down");
    case(&[("payments.yaml", &body("page.txt")), page], &[], &[]);
    let outside = tempfile::NamedTempFile::new().unwrap();
    let outside = outside.path().to_str().unwrap();
    for file in [outside, &format!("../{}", outside.rsplit('/').next().unwrap())] {
        let directory = written(&[("payments.yaml", &body(file))]);
        let loaded = load(&read_all(directory.path(), &[]).unwrap(), Fingerprinter::new((1, 2)), NOW);
        let found = loaded.report.to_string();
        assert!(loaded.rules.is_none() && found.contains("is outside of the directory"), "{file}: {found}");
    }
}

#[test]
fn what_is_no_file_is_a_mistake_of_its_owner() {
    let directory = written(&[QUERIES]);
    std::os::unix::fs::symlink("nowhere", directory.path().join("payments.yaml")).unwrap();
    let socket = std::os::unix::net::UnixListener::bind(directory.path().join("orders.yaml")).unwrap();
    let files = read_all(directory.path(), &[]).unwrap().teams;
    drop(socket);
    let found = files.iter().map(|file| (&*file.owner, file.problem.as_ref().map(|problem| problem.message.clone())));
    let expected = [
        ("orders", Some("is not a file".to_owned())),
        ("payments", Some("does not exist".to_owned())),
        ("search", None),
    ];
    assert_eq!(found.collect::<Vec<_>>(), expected);
}

#[test]
fn tests_of_a_team_name_its_limits_and_those_of_the_base() {
    let base = ("base.yaml", "limits: { All: { by: global, burst: 9 }, Orders: { by: global, burst: 9 } }");
    let tests = "limits: { Orders: { by: ip, burst: 1 } }\ntests: { one: [{ get: /, expect: { deny: Orders, limits: { All: allow } } }] }";
    let directory = written(&[base, ("payments.yaml", tests), QUERIES]);
    let sources = read_all(directory.path(), &[]).unwrap();
    let rules = load(&sources, Fingerprinter::new((1, 2)), NOW).rules.unwrap();
    let expected_of = |team| {
        let read = super::super::rule_tests::tests(&sources.teams[1].source, team, &rules).unwrap();
        let expected = read[0].steps[0].expectation.clone().unwrap();
        (expected.limit, expected.limits[0].name.clone())
    };
    assert_eq!(expected_of(Some("payments")), (Some("payments/Orders".to_owned()), "All".to_owned()));
    assert_eq!(expected_of(None), (Some("Orders".to_owned()), "All".to_owned()));
}
