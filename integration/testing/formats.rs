//! The formats of `weir test` for programs.

use super::check;
use crate::support::binary::{command, run_in};
use crate::support::process::finish;

/// A test that passes, and one that fails, with a name that means something in each format.
const RULES: &str = "\
limits:
  A: { burst: 1 }
  B: { match: { path: /b }, burst: 1 }
tests:
  one passes: [{ get: /, expect: allow }]
  'not <ok> & \"100%\" # \\ ::error::':
    - { get: /, expect: allow }
    - { get: /?a<b, expect: allow }
";

const SCENARIO: &str = r#"{"case":"s","limits":{"L":{"burst":1}},"steps":[{"at_ms":0,"op":"spend","limit":"L","id":"k","expect":{"allowed":false}}]}"#;

/// Runs the tests of the rules and of the scenario.
fn told(format: &str) -> String {
    check(&[("r.yaml", RULES), ("s.jsonl", SCENARIO)], &["test", "r.yaml", "s.jsonl", "--format", format], 1)
}

/// Replaces the times that the tests took.
fn without_times(text: &str) -> String {
    regex::Regex::new(r#"time="\d+\.\d{3}""#).unwrap().replace_all(text, "time=\"T\"").into_owned()
}

#[test]
fn junit_has_a_suite_for_each_file() {
    let expected = r#"<?xml version="1.0" encoding="UTF-8"?>
<testsuites name="weir test" tests="3" failures="2" errors="0" time="T">
  <testsuite name="r.yaml" file="r.yaml" tests="2" failures="1" errors="0" time="T" skipped="0">
    <testcase name="one passes" classname="r.yaml" time="T"/>
    <testcase name="not &lt;ok&gt; &amp; &quot;100%&quot; # \ ::error::" classname="r.yaml" time="T">
      <failure type="difference" message="step 2: GET /?a&lt;b from 127.0.0.1, at 0s">r.yaml:8
  step 2: GET /?a&lt;b from 127.0.0.1, at 0s
  verdict  expected allow, got deny
  limits   A denies: burst 1, never refills, 0 left, retry never</failure>
    </testcase>
  </testsuite>
  <testsuite name="s.jsonl" file="s.jsonl" tests="1" failures="1" errors="0" time="T" skipped="0">
    <testcase name="s" classname="s.jsonl" time="T">
      <failure type="difference" message="step 1 (spend at 0 ms): allowed is true, expected false">s.jsonl:1
step 1 (spend at 0 ms): allowed is true, expected false</failure>
    </testcase>
  </testsuite>
</testsuites>
"#;
    assert_eq!(without_times(&told("junit")), expected);
}

#[test]
fn tap_escapes_directives_and_says_where() {
    let expected = r#"TAP version 14
1..3
ok 1 - r.yaml: one passes
not ok 2 - r.yaml: not <ok> & "100%" \# \\ ::error::
  ---
  at:
    file: "r.yaml"
    line: 8
  message: |2-
    step 2: GET /?a<b from 127.0.0.1, at 0s
    verdict  expected allow, got deny
    limits   A denies: burst 1, never refills, 0 left, retry never
  ...
not ok 3 - s.jsonl: s
  ---
  at:
    file: "s.jsonl"
    line: 1
  message: |2-
    step 1 (spend at 0 ms): allowed is true, expected false
  ...
"#;
    assert_eq!(told("tap"), expected);
}

#[test]
fn github_gets_an_annotation_at_the_step() {
    let expected = "\
::error file=r.yaml,line=8,col=1,endColumn=2,title=not <ok> & \"100%25\" # \\ %3A%3Aerror%3A%3A::step 2: GET /?a<b from 127.0.0.1, at 0s%0A  verdict  expected allow, got deny%0A  limits   A denies: burst 1, never refills, 0 left, retry never
::error file=s.jsonl,line=1,col=1,endColumn=2,title=s::step 1 (spend at 0 ms): allowed is true, expected false
";
    assert_eq!(told("github"), expected);
}

#[test]
fn programs_learn_of_limits_that_no_test_sees_deny() {
    let passing = RULES.split("  'not").next().unwrap();
    let told = |format: &str, code: i32| {
        let flags = if code == 0 { &[][..] } else { &["--require-denials"] };
        check(&[("r.yaml", passing)], &[&["test", "r.yaml", "--format", format], flags].concat(), code)
    };
    let expected = "TAP version 14\n1..1\nok 1 - r.yaml: one passes\n# r.yaml: no test touches these limits: B\n\
                    # r.yaml: no test sees these limits deny: A\n";
    assert_eq!(told("tap", 0), expected);
    let expected = "::warning file=r.yaml,title=untested limits::no test touches these limits: B\n\
                    ::warning file=r.yaml,title=untested limits::no test sees these limits deny: A\n";
    assert_eq!(told("github", 1), expected);
}

/// A terminal, or a pipeline that forces colors, changes nothing in what programs read.
#[test]
fn documents_for_programs_have_no_colors_and_junit_a_reason_for_its_exit_code() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("r.yaml"), RULES).unwrap();
    let unseen = "limits: { A: { burst: 1 } }\ntests: { one passes: [{ get: /, expect: allow }] }\n";
    std::fs::write(directory.path().join("unseen.yaml"), unseen).unwrap();
    for format in ["junit", "tap", "github"] {
        let mut forced = command(&["test", "r.yaml", "--format", format]);
        let done = finish(forced.current_dir(directory.path()).env("CLICOLOR_FORCE", "1"));
        let plain = run_in(directory.path(), &["test", "r.yaml", "--format", format]);
        assert_eq!(without_times(&done.out), without_times(&plain.out));
    }
    let done = run_in(directory.path(), &["test", "unseen.yaml", "--require-denials", "--format", "junit"]);
    assert_eq!(done.code, Some(1), "{}", done.text());
    let told = "error: --require-denials: unseen.yaml: no test sees these limits deny: A";
    assert!(done.err.contains(told), "{}", done.err);
}
