//! `weir diff`: what becomes of denials when a candidate is enforced, for more or fewer ids, or becomes the limit.

use serde_json::Value;

use crate::support::binary::run_in;

/// The rules before and after, each the settings of one limit; the verdict, and the lines that are shown.
type Case = (&'static str, &'static str, &'static str, &'static [&'static str]);

const NONE: &str = "no effect on denials";

const CASES: &[Case] = &[
    // It begins to be enforced.
    (
        "count: 10, period: 1m",
        "count: 10, period: 1m, candidate: { burst: 1 }",
        NONE,
        &["candidate       none -> burst 1, never refills: it is counted, and never denies\n"],
    ),
    (
        "count: 10, period: 1m, candidate: { count: 1, period: 1m }",
        "count: 10, period: 1m, candidate: { count: 1, period: 1m, enforce_for: 10% }",
        "stricter",
        &[
            "candidate       burst 1, 1 per 1m -> burst 1, 1 per 1m, enforced for 10%: the ids in its share have its numbers in place of the limit's (stricter)\n",
            "buckets         carry over what was used\n",
        ],
    ),
    (
        "count: 10, period: 1m",
        "count: 10, period: 1m, candidate: { count: 1, period: 1m, enforce_for: 10% }",
        "stricter",
        &[],
    ),
    (
        "count: 10, period: 1m",
        "count: 10, period: 1m, candidate: { count: 1, period: 1m, enforce_for: 0.0001% }",
        "stricter",
        &["enforced for 0.0001%"],
    ),
    ("count: 10, period: 1m", "count: 10, period: 1m, candidate: { count: 1, period: 1m, enforce_for: 0% }", NONE, &[]),
    // Several, by name.
    (
        "count: 10, period: 1m, candidates: { low: { burst: 1 }, gone: { burst: 2 } }",
        "count: 10, period: 1m, candidates: { low: { burst: 3 }, new: { burst: 4 } }",
        NONE,
        &[
            "candidate low   burst 1, never refills -> burst 3, never refills: it is counted, and never denies\n",
            "candidate new   none -> burst 4, never refills: it is counted, and never denies\n",
            "candidate gone  burst 2, never refills -> none: it is counted, and never denies\n",
        ],
    ),
    (
        "count: 10, period: 1m, candidates: { low: { burst: 1 }, high: { burst: 8 } }",
        "count: 10, period: 1m, candidates: { low: { burst: 1, enforce_for: 10% }, high: { burst: 8 } }",
        "stricter",
        &[
            "candidate low   burst 1, never refills -> burst 1, never refills, enforced for 10%: the ids in its share have its numbers",
        ],
    ),
    (
        "count: 10, period: 1m, candidates: { low: { count: 2, period: 1m, enforce_for: 10% }, high: { count: 4, period: 1m } }",
        "count: 10, period: 1m, candidates: { low: { count: 2, period: 1m }, high: { count: 4, period: 1m, enforce_for: 10% } }",
        "looser",
        &[
            "candidate low   burst 2, 2 per 1m, enforced for 10% -> burst 2, 2 per 1m: another candidate is enforced in its place\n",
            "candidate high  burst 4, 4 per 1m -> burst 4, 4 per 1m, enforced for 10%: the ids in its share have its numbers in place of the limit's (looser)\n",
        ],
    ),
    (
        "count: 10, period: 1m",
        "count: 10, period: 1m, candidate: { count: 20, period: 1m, enforce_for: 10% }",
        "looser",
        &[],
    ),
    (
        "count: 10, period: 1m",
        "count: 10, period: 1m, candidate: { burst: 20, count: 5, period: 1m, enforce_for: 10% }",
        "stricter and looser",
        &[],
    ),
    (
        "count: 10, period: 1m",
        "count: 10, period: 1m, candidate: { count: 10, period: 1m, enforce_for: 100% }",
        NONE,
        &[],
    ),
    (
        "count: 10, period: 1m",
        "count: 10, period: 1m, candidate: { rates: [{ count: 10, period: 1m }, { count: 20, period: 1h }], enforce_for: 50% }",
        "stricter",
        &[],
    ),
    // For more ids.
    (
        "count: 10, period: 1m, candidate: { count: 1, period: 1m, enforce_for: 10% }",
        "count: 10, period: 1m, candidate: { count: 1, period: 1m, enforce_for: 10.0001% }",
        "stricter",
        &[],
    ),
    (
        "count: 10, period: 1m, candidate: { count: 20, period: 1m, enforce_for: 10% }",
        "count: 10, period: 1m, candidate: { count: 20, period: 1m, enforce_for: 100% }",
        "looser",
        &[],
    ),
    // Its numbers change.
    (
        "count: 10, period: 1m, candidate: { count: 2, period: 1m, enforce_for: 10% }",
        "count: 10, period: 1m, candidate: { count: 1, period: 1m, enforce_for: 10% }",
        "stricter",
        &[],
    ),
    (
        "count: 10, period: 1m, candidate: { count: 2, period: 1m, enforce_for: 10% }",
        "count: 10, period: 1m, candidate: { count: 3, period: 1m, enforce_for: 50% }",
        "stricter and looser",
        &[],
    ),
    // It becomes the limit.
    (
        "count: 10, period: 1m, candidate: { count: 5, period: 1m, enforce_for: 100% }",
        "count: 5, period: 1m",
        NONE,
        &["numbers         burst 10, 10 per 1m -> burst 5, 5 per 1m\n", "buckets         stay as they are\n"],
    ),
    (
        "count: 10, period: 1m, candidate: { count: 5, period: 1m, enforce_for: 50% }",
        "count: 5, period: 1m",
        "stricter",
        &["numbers         burst 10, 10 per 1m -> burst 5, 5 per 1m (stricter)\n"],
    ),
    (
        "count: 10, period: 1m, candidate: { count: 5, period: 1m, enforce_for: 100% }",
        "count: 4, period: 1m",
        "stricter",
        &["(stricter)"],
    ),
    (
        "count: 10, period: 1m, candidate: { count: 5, period: 1m, enforce_for: 100% }",
        "count: 5, period: 1m, candidate: { count: 3, period: 1m, enforce_for: 10% }",
        "stricter",
        &[],
    ),
    // The limit's own numbers hold for the other ids only.
    (
        "count: 10, period: 1m, candidate: { count: 5, period: 1m, enforce_for: 100% }",
        "count: 1, period: 1m, candidate: { count: 5, period: 1m, enforce_for: 100% }",
        NONE,
        &[],
    ),
    (
        "count: 10, period: 1m, candidate: { count: 5, period: 1m, enforce_for: 99.9999% }",
        "count: 9, period: 1m, candidate: { count: 5, period: 1m, enforce_for: 99.9999% }",
        "stricter",
        &[],
    ),
    (
        "count: 10, period: 1m, candidate: { count: 5, period: 1m, enforce_for: 50% }",
        "count: 8, period: 1m, candidate: { count: 9, period: 1m, enforce_for: 50% }",
        "stricter and looser",
        &["numbers         burst 10, 10 per 1m -> burst 8, 8 per 1m (stricter)\n", "(looser)"],
    ),
    // The limit is enforced for some ids only, which are the first of the candidate's share.
    (
        "enforce_for: 10%, count: 10, period: 1m, candidate: { count: 1, period: 1m, enforce_for: 50% }",
        "enforce_for: 10%, count: 10, period: 1m, candidate: { count: 1, period: 1m, enforce_for: 60% }",
        NONE,
        &[],
    ),
    (
        "enforce_for: 10%, count: 10, period: 1m, candidate: { count: 1, period: 1m, enforce_for: 5% }",
        "enforce_for: 10%, count: 10, period: 1m, candidate: { count: 1, period: 1m, enforce_for: 60% }",
        "stricter",
        &[],
    ),
    (
        "enforce_for: 0%, count: 10, period: 1m",
        "enforce_for: 0%, count: 10, period: 1m, candidate: { count: 1, period: 1m, enforce_for: 100% }",
        NONE,
        &[],
    ),
    (
        "mode: shadow, count: 10, period: 1m",
        "mode: shadow, count: 10, period: 1m, candidate: { count: 1, period: 1m, enforce_for: 100% }",
        NONE,
        &[],
    ),
    (
        "mode: shadow, count: 10, period: 1m, candidate: { count: 1, period: 1m, enforce_for: 10% }",
        "count: 10, period: 1m, candidate: { count: 1, period: 1m, enforce_for: 10% }",
        "stricter",
        &[],
    ),
    // Other ids are in a share of the same size.
    (
        "count: 10, period: 1m, candidate: { count: 1, period: 1m, enforce_for: 10% }",
        "short: M, count: 10, period: 1m, candidate: { count: 1, period: 1m, enforce_for: 10% }",
        "stricter and looser",
        &["other ids are in its share (stricter and looser)\n"],
    ),
    (
        "by: [ip, host], count: 10, period: 1m, candidate: { count: 1, period: 1m, enforce_for: 10% }",
        "by: [host, ip], count: 10, period: 1m, candidate: { count: 1, period: 1m, enforce_for: 10% }",
        "stricter and looser",
        &[],
    ),
    (
        "count: 10, period: 1m, enforce_for: 10%",
        "short: M, count: 10, period: 1m, enforce_for: 10%",
        "stricter and looser",
        &["enforce_for     10% -> 10%: other ids are in the share (stricter and looser)\n"],
    ),
];

/// Runs `weir diff` on the settings of one limit, with overrides.
fn diff(old: &str, new: &str, format: &str) -> (Option<i32>, String) {
    let directory = tempfile::tempdir().unwrap();
    for (file, settings) in [("old.yaml", old), ("new.yaml", new)] {
        std::fs::write(directory.path().join(file), settings).unwrap();
    }
    let finished = run_in(directory.path(), &["diff", "old.yaml", "new.yaml", "--format", format]);
    (finished.code, finished.text())
}

/// The verdict for a change the other way round.
fn reversed(verdict: &str) -> &str {
    match verdict {
        "stricter" => "looser",
        "looser" => "stricter",
        same => same,
    }
}

#[track_caller]
fn check(old: &str, new: &str, verdict: &str, shown: &[&str]) {
    let code = i32::from(verdict.starts_with("stricter"));
    let (found, text) = diff(old, new, "text");
    assert!(text.starts_with(&format!("L: {verdict}\n")), "{old} -> {new}: {text}");
    assert_eq!(found, Some(code), "{old} -> {new}: {text}");
    for part in shown {
        assert!(text.contains(part), "{old} -> {new}: {part} is not in\n{text}");
    }
    let (found, json) = diff(old, new, "json");
    let json = json.split("\nstricter: ").next().unwrap();
    let limit = serde_json::from_str::<Value>(json).unwrap()["limits"]["L"].clone();
    let told = [&limit["stricter"], &limit["looser"]].map(|side| side.as_bool().unwrap());
    assert_eq!(told, [verdict.contains("stricter"), verdict.contains("looser")], "{old} -> {new}: {limit}");
    assert_eq!(found, Some(code));
}

#[test]
fn a_candidate_that_is_enforced_is_judged_by_what_it_denies() {
    let one = |settings: &str| format!("limits: {{ L: {{ {settings} }} }}\n");
    for (old, new, verdict, shown) in CASES {
        check(&one(old), &one(new), verdict, shown);
        check(&one(new), &one(old), reversed(verdict), &[]);
    }
}

#[test]
fn a_date_for_a_review_changes_nobody() {
    let rules = |date: &str| format!("limits: {{ L: {{ count: 10, period: 1m{date} }} }}\n");
    for (old, new) in [("", ", review_by: 2027-01-31"), (", review_by: 2020-01-31", "")] {
        assert_eq!(diff(&rules(old), &rules(new), "text"), (Some(0), "1 unchanged\n".to_owned()));
    }
}

/// An id without an override has the candidate's numbers if it is in the share.
#[test]
fn overrides_are_compared_with_an_enforced_candidate() {
    let rules = |share: &str, given: &str| {
        format!(
            "limits: {{ L: {{ count: 10, period: 1m, candidate: {{ count: 1, period: 1m, enforce_for: {share} }} }} }}\n\
             overrides: {{ {given} }}\n"
        )
    };
    let ten = "L:10.0.0.1: { count: 10, period: 1m }";
    let one = "L:10.0.0.1: { count: 1, period: 1m }";
    for (share, given, gone) in [
        ("0%", ten, NONE),
        ("50%", ten, "stricter"),
        ("100%", ten, "stricter"),
        ("0%", one, "looser"),
        ("50%", one, "looser"),
        ("100%", one, NONE),
    ] {
        check(&rules(share, given), &rules(share, ""), gone, &[]);
        check(&rules(share, ""), &rules(share, given), reversed(gone), &[]);
    }
    let ends = "L:10.0.0.1: { count: 10, period: 1m, until: 2030-01-01 }";
    check(&rules("50%", ten), &rules("50%", ends), "stricter", &[]);
    check(&rules("0%", ten), &rules("0%", ends), NONE, &[]);
}
