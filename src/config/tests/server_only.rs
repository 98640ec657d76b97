//! Queues and scripts: what only Redis can keep.

use super::*;

const QUEUE: &str = "limits:\n  Jobs: { algorithm: queue, capacity: 10, fields: { path: path } }\n";
const SCRIPT: &str = "limits:\n  Mine: { algorithm: script, file: my.lua, args: [10, \"a b\"] }\n";

/// Loads rules that name the script `my.lua`, which has this text or cannot be read.
fn load_script(limits: &str, text: Result<&str, &str>) -> LoadResult {
    let limits = Source { name: "limits.yaml".into(), text: limits.into() };
    let text = text.map(str::to_owned).map_err(str::to_owned);
    let scripts = vec![NamedFile { name: "my.lua".into(), text }];
    load(&Sources { limits: Some(limits), named_files: scripts, ..Sources::default() }, Fingerprinter::new((1, 2)), NOW)
}

#[track_caller]
fn check_script(limits: &str, text: Result<&str, &str>, expected: Option<&str>) {
    let loaded = load_script(limits, text);
    let report = loaded.report.to_string();
    match expected {
        Some(part) => assert!(loaded.rules.is_none() && report.contains(part), "`{part}` is not in\n{report}"),
        None => assert!(loaded.rules.is_some() && report.is_empty(), "{report}"),
    }
}

#[test]
fn a_script_is_read_where_the_limit_names_it() {
    check_script(SCRIPT, Ok("return { 'allow', {} }"), None);
    check_script(SCRIPT, Err("cannot be read: No such file"), Some("`my.lua` cannot be read: No such file"));
    check_script(SCRIPT, Err("cannot be read: x"), Some("limits.yaml:2:36"));
    check_script(SCRIPT, Ok("#!lua flags=no-writes\nreturn 1"), Some("starts with `#!`"));
}

#[test]
fn overrides_give_a_script_other_arguments() {
    let overrides = "overrides:\n  Mine:192.0.2.1: { args: [20] }\n  Mine:192.0.2.2: { args: [10, \"a b\"] }\n";
    let loaded = load_script(&format!("{SCRIPT}{overrides}"), Ok("x"));
    let rules = loaded.rules.expect("good rules");
    let script = rules.limits()[0].script.as_ref().expect("a script");
    assert_eq!(script.arguments.iter().map(|text| &**text).collect::<Vec<_>>(), ["=10=a%20b", "=20"]);
    let given = |place: usize| match &rules.limits()[0].overrides.get(place).expect("an override").allowance {
        crate::engine::limit::allowance::Allowance::Windows(windows) => windows[0].count(),
        other => panic!("{other:?}"),
    };
    assert_eq!((given(0), given(1)), (1, 0));
    let wrong = "overrides:\n  Mine:192.0.2.1: { count: 20, period: 1s }\n";
    check_script(&format!("{SCRIPT}{wrong}"), Ok("x"), Some("`count` does not apply to `algorithm: script`"));
    let wrong = "overrides:\n  Mine:192.0.2.1: { comment: x }\n";
    check_script(&format!("{SCRIPT}{wrong}"), Ok("x"), Some("add `args`, `unlimited: true` or `deny: true`"));
}

#[test]
fn memory_keeps_neither_queues_nor_scripts_and_says_where_they_are() {
    for (text, place) in [(QUEUE, "limits.yaml:2:22"), (SCRIPT, "limits.yaml:2:22")] {
        let loaded = load_script(text, Ok("x"));
        assert!(loaded.rules.is_some(), "{}", loaded.report);
        let loaded = loaded.in_memory();
        let report = loaded.report.to_string();
        assert!(loaded.rules.is_none() && report.contains("needs Redis") && report.contains(place), "{report}");
        assert!(report.contains("--store redis://"), "{report}");
    }
    let off = "limits:\n  Jobs: { mode: off, algorithm: queue, capacity: 10, fields: { path: path } }\n";
    assert!(load_script(off, Ok("x")).in_memory().rules.is_some(), "what does nothing is kept anywhere");
}

#[test]
fn mistakes_say_what_would_be_right() {
    let queue = |rest: &str| format!("limits:\n  Jobs: {{ algorithm: queue, capacity: 10, {rest} }}\n");
    for (rest, part) in [
        ("kind: list", "a queue needs `fields`"),
        ("fields: {}", "use 1 to 16"),
        ("fields: [path]", "`fields` must be a map, found a list"),
        ("fields: { all: global }", "`global` has no value to put into an entry"),
        ("fields: { p: { path: id } }", "is a path parameter, but `match` has no path pattern"),
        ("fields: { path: path }, cost: { header: x-cost }", "each request adds one entry"),
        ("fields: { path: path }, count: 10, period: 1s", "`count` does not apply to `algorithm: queue`"),
        ("fields: { path: path }, file: my.lua", "`file` needs `algorithm: script`"),
        ("fields: { path: path }, aligned: clock", "`aligned` needs `algorithm: fixed_window`"),
        ("fields: { path: path }, unlimited: true", "`unlimited: true` and `capacity` cannot be combined"),
        ("fields: { path: path }, mode: shadow", "`mode: shadow` adds nothing to this queue"),
        ("fields: { path: path }, max_age: 1500ns", "a whole number of microseconds"),
    ] {
        check(&queue(rest), &[], &[part]);
    }
}

#[test]
fn a_request_that_a_queue_answers_does_not_pass_without_it() {
    use crate::engine::limit::StoreErrorPolicy::{Allow, Deny};

    let policy = |rest: &str| {
        let text = format!("limits:\n  Jobs: {{ algorithm: queue, capacity: 10, fields: {{ path: path }}{rest} }}\n");
        load_texts(&text, &[]).rules.expect("good rules").limits()[0].on_store_error
    };
    assert_eq!((policy(""), policy(", then: forward")), (Deny, Allow));
    assert_eq!((policy(", on_store_error: allow"), policy(", then: forward, on_store_error: deny")), (Allow, Deny));
}
