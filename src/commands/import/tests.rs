//! What is refused, and that whatever is in a file, what is written are rules.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use proptest::prelude::*;
use serde_json::{Map, Value as Json, json};

use super::*;
use crate::config::Sources;
use crate::engine::algorithms::micros::Micros;
use crate::engine::charging::plan::Plan;
use crate::engine::limit::fingerprint::Fingerprinter;
use crate::engine::limit::rules::Rules;
use crate::engine::request::{DescriptorEntry, Request, sample};
use crate::message::headers::Headers;

/// Runs the command on files with these texts: the exit code and both outputs.
fn import(format: &str, files: &[&str]) -> (ExitCode, String, String) {
    let directory = tempfile::tempdir().unwrap();
    let mut line = vec!["weir".to_owned(), "import".to_owned(), format.to_owned()];
    for (number, text) in (1..).zip(files) {
        let path = directory.path().join(format!("f{number}.yml"));
        std::fs::write(&path, text).unwrap();
        line.push(path.display().to_string());
    }
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let code = crate::commands::run(line.into_iter().map(Into::into).collect(), None, &mut out, &mut err).unwrap();
    (code, String::from_utf8(out).unwrap(), String::from_utf8(err).unwrap())
}

/// The rules of a text that must be good.
#[track_caller]
fn rules(text: &str) -> Rules {
    let limits = Some(Source { name: "limits.yaml".to_owned(), text: text.to_owned() });
    let loaded = config::load(&Sources { limits, ..Sources::default() }, Fingerprinter::new((1, 2)), Micros(0));
    loaded.rules.unwrap_or_else(|| panic!("{}\n{text}", loaded.report))
}

/// What is made of a text that must be good, and the rules that it is.
#[track_caller]
fn good(format: &str, text: &str) -> (String, Rules) {
    let (code, out, err) = import(format, &[text]);
    assert_eq!(code, ExitCode::Success, "{err}\n{text}");
    let rules = rules(&out);
    (out, rules)
}

#[test]
fn mistakes_are_shown_where_they_are() {
    for (format, text, expected) in [
        ("limitd", "", "missing value"),
        ("limitd", "[]", "limitd's configuration must be a map, found a list"),
        ("limitd", "port: 1", "the file has no `buckets`"),
        ("limitd", "buckets: 1", "`buckets` must be a map, found a single value"),
        ("limitd", "buckets: { a: 1 }", "a bucket must be a map, found a single value"),
        ("limitd", "buckets: { a: {} }", "`a` has neither a size nor a rate\n --> "),
        ("limitd", "buckets: { a: { size: -1 } }", "`-1` is negative"),
        ("limitd", "buckets: { a: { size: '10' } }", "write it without quotes, 10"),
        ("limitd", "buckets: { a: { per_second: 0.0000001 } }", "`0.0000001` is not a whole number"),
        ("limitd", "buckets: { a: { per_second: .5 } }", "`.5` is not a whole number"),
        ("limitd", "buckets: { a: { per_interval: 1 } }", "`per_interval` without `interval`"),
        ("limitd", "buckets: { a: { per_interval: 1, interval: 0 } }", "`interval` is 0"),
        ("limitd", "buckets: { a: { size: 1, unlimited: yes } }", "expected `true` or `false`"),
        ("limitd", "buckets: { a: { size: 1, overrides: [] } }", "overrides must be a map, found a list"),
        ("limitd", "buckets: { a: { size: 1, overrides: { b: {} } } }", "`b` has neither a size nor a rate"),
        ("limitd", "buckets: { a: { size: 1, elevated_limits: 1 } }", "`elevated_limits` must be a map"),
        ("limitd", "buckets: { a: { size: 1 }, a: { size: 2 } }", "duplicate key `a`"),
        ("limitd", "a:\n\tb: 1", "a tab in the indentation"),
        (
            "limitd",
            "buckets: { a: { size: 1, overrides: { b: { size: 1, until: 99999999999999999 } } } }",
            "invalid time",
        ),
        ("limitador", "a: 1", "the file must be a list, found a map"),
        ("limitador", "- 1", "a limit must be a map, found a single value"),
        ("limitador", "- { max_value: 1, seconds: 1 }", "a limit needs `namespace`"),
        ("limitador", "- { namespace: a, seconds: 1 }", "a limit needs `max_value`"),
        ("limitador", "- { namespace: a, max_value: 1 }", "a limit needs `seconds`"),
        ("limitador", "- { namespace: a, max_value: -1, seconds: 1 }", "`-1` is negative"),
        ("limitador", "- { namespace: a, max_value: 1, seconds: 0 }", "at least 1 second long"),
        ("limitador", "- { namespace: a, max_value: 1, seconds: 1, conditions: x }", "`conditions` must be a list"),
        ("limitador", "- { namespace: a, max_value: 1, seconds: 1, variables: [[x]] }", "expected text"),
        ("boulder", "1", "the file must be a map or a list, found a single value"),
        ("boulder", "A: { burst: 0, count: 1, period: 1s }", "`burst` must be at least 1"),
        ("boulder", "A: { burst: 1, period: 1s }", "`count` is missing"),
        ("boulder", "A: { burst: 1, count: 1 }", "`period` is missing"),
        ("boulder", "A: { burst: 1, count: 1, period: 60 }", "write 60s for seconds"),
        ("boulder", "A: { burst: 1, count: 1, period: 0s }", "period must be longer than 0"),
        ("boulder", "A: { burst: 1, count: 1, period: 1s, brust: 1 }", "did you mean `burst`?"),
        ("boulder", "A:1: { burst: 1, count: 1, period: 1s, ids: [1] }", "unknown key `ids` in an override"),
        ("boulder", "'A: ': { burst: 1, count: 1, period: 1s }", "needs a limit and an id"),
        ("boulder", "- A: { burst: 1, count: 1, period: 1s }", "`A` needs `ids`"),
        ("boulder", "- A: { burst: 1, count: 1, period: 1s, ids: [] }", "the list is empty"),
        ("boulder", "- A: { burst: 1, count: 1, period: 1s, ids: [{ comment: x }] }", "an item of `ids` needs `id`"),
        ("boulder", "- 1", "an override must be a map"),
        ("envoy-ratelimit", "domain: a\ndescriptors: [{ key: a, rate_limit: {} }]", "`rate_limit` needs `unit`"),
        ("envoy-ratelimit", "descriptors: []", "the file needs `domain`"),
        ("envoy-ratelimit", "domain: a\nratelimit: 1", "unknown key `ratelimit` in the file"),
    ] {
        let (code, out, err) = import(format, &[text]);
        assert_eq!((code, out.as_str()), (ExitCode::BadInput, ""), "{text}");
        assert!(err.contains(expected), "{text}: `{expected}` is not in\n{err}");
    }
    let default = "A: { burst: 1, count: 1, period: 1s }";
    let (code, _, err) = import("boulder", &[default, default]);
    assert!(code == ExitCode::BadInput && err.contains("the first one is at f1.yml:1"), "{err}");
}

#[test]
fn mistakes_in_files_of_envoyproxy_ratelimit_are_those_that_serving_finds() {
    let limit = "rate_limit: { unit: day, requests_per_unit: 1 }";
    let twice = format!("domain: d\ndescriptors: [{{ key: k, {limit} }}]\n---\n").repeat(2);
    let idle = (0..60).map(|n| format!("{{ key: k{n}, quota_mode: true, metadata: {{ a: b }} }}"));
    let idle = format!("domain: d\ndescriptors: [{}]", idle.collect::<Vec<_>>().join(", "));
    for (text, errors, warnings) in [
        ("", 1, 0),
        ("a: b", 1, 0),
        ("domain: d\n---\ndescriptors: [{ value: v }, { key: k, descriptors: [{ key: '' }] }]", 3, 0),
        (&twice, 1, 0),
        ("domain: d\ndescriptors: [{ key: k, value_to_metric: true, shadow_mode: true }]", 0, 2),
        (&idle, 0, 120),
    ] {
        let envoy_ratelimit = vec![Source { name: "f1.yml".to_owned(), text: text.to_owned() }];
        let sources = Sources { envoy_ratelimit, ..Sources::default() };
        let served = config::load(&sources, Fingerprinter::new((1, 2)), Micros(0)).report;
        assert_eq!((served.errors, served.warnings), (errors, warnings), "{served}");
        let (code, out, err) = import("envoy-ratelimit", &[text]);
        assert_eq!(code == ExitCode::Success, errors == 0, "{err}");
        let told = if errors > 0 { err } else { out };
        for problem in &served.problems {
            let place = problem.place.map(|place| format!("f1.yml:{}:", place.line)).unwrap_or_default();
            assert!(told.contains(&place) && told.contains(&problem.message), "{place} {problem}\n{told}");
        }
        let kept = served.problems.len();
        assert!(kept == errors + warnings || told.contains(&format!("{} more", errors + warnings - kept)), "{told}");
    }
}

#[test]
fn what_our_own_loader_refuses_is_a_comment_with_the_reason() {
    let bucket = "{ size: 1000000000, per_interval: 1, interval: 86400000000 }";
    for (format, text, expected) in [
        (
            "limitd",
            format!("{{ a: {bucket}, b: {{ size: 1, overrides: {{ '': {{ size: 2 }}, c: {bucket} }} }} }}"),
            &[
                "  # left out: burst x period / count is more than",
                "  #   a:\n  #     match: ",
                "\n  # left out: the id is empty (write the id that the override applies to)\n  #   \"b:\": { burst: 2 }\n",
                "  #   b:c: { burst: 1000000000, ",
            ][..],
        ),
        (
            "limitd",
            "{ a: { size: 1, override: { b: { match: '(', size: 2 }, c: { until: soon, size: 2 } } } }".to_owned(),
            &["  # left out: invalid regular expression `(?i)(`", "  # left out: `soonZ` is neither a date nor"],
        ),
        (
            "limitd",
            format!("{{ a: {{ size: 1, elevated_limits: {bucket} }} }}"),
            &["left out: burst x period / count is more than"],
        ),
        (
            "limitd",
            "{ a: { size: 2, per_second: 1, fixed_window: true, elevated_limits: { size: 5 }, \
             overrides: { b: { elevated_limits: { size: 6 } } } } }"
                .to_owned(),
            &[
                "1: `elevated_limits` is left out: it cannot be combined with `fixed_window`.",
                "period: 1s\n\noverrides:\n",
                "  a:b: { burst: 2, count: 1, period: 1s }\n",
            ],
        ),
        (
            "envoy-ratelimit",
            "{ domain: d, descriptors: [{ key: ' a', rate_limit: { unit: day, requests_per_unit: 1 } }, \
             { key: b, descriptors: [{ key: b, rate_limit: { unit: day, requests_per_unit: 1 } }] }] }"
                .to_owned(),
            &["# left out: a name must not be empty or have spaces around it", "`b` occurs twice in the path"],
        ),
        (
            "boulder",
            "- NewOrdersPerAccount: { burst: 1, count: 1, period: 1s, ids: [7, '007', 7] }".to_owned(),
            &["`007` is left out: ", "has leading zeros", "duplicate id `7`", "NewOrdersPerAccount:7: { "],
        ),
    ] {
        let (out, _) = good(format, &text);
        for part in expected {
            assert!(out.contains(part), "`{part}` is not in\n{out}");
        }
    }
}

#[test]
fn regular_expressions_beyond_the_most_are_left_out() {
    let overrides: Map<String, Json> =
        (0..1_003).map(|n| (format!("{n:04}"), json!({ "match": format!("^{n}$"), "size": 1 }))).collect();
    let (out, rules) = good("limitd", &json!({ "a": { "size": 1, "overrides": overrides } }).to_string());
    assert_eq!(rules.limits()[0].overrides.len(), 1_000);
    assert_eq!(out.matches("left out: a limit can have at most 1000 regular expressions").count(), 3);
}

#[test]
fn secrets_stay_where_they_are() {
    let text = json!({ "uri": "redis://:hush@a", "nodes": [{ "password": "hush" }], "password": "hush", "tls": { "key": "hush" },
        "unknown": "hush", "buckets": { "a": { "size": 1 } } });
    let (out, _) = good("limitd", &text.to_string());
    assert!(!out.contains("hush") && out.contains("`uri`, `nodes`") | out.contains("`nodes`, "), "{out}");
}

/// Text with what means something to YAML, to ids, to comments and to programs that print it.
fn hostile() -> impl Strategy<Value = String> {
    let piece = "(a|B|7|'|\"|\\\\|#|: |:|,|\\n|\\r|\\t| |%3A|%|\\{|\\}|\\[|\\]|&|\\*|!|\\||- |---|\\u{0}|\\u{7f}|\\u{85}|\\u{2028}|\\u{202e}|\\u{feff}|\\PC)";
    proptest::string::string_regex(&format!("{piece}{{0,12}}")).unwrap()
}

fn map(entries: impl IntoIterator<Item = (String, Json)>) -> Json {
    Json::Object(entries.into_iter().collect())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn buckets_are_rules_whatever_they_are_called(
        types in prop::collection::btree_map(hostile(), prop::collection::btree_map(hostile(), hostile(), 0..4), 1..4),
        purpose in hostile(),
        setting in hostile(),
    ) {
        let buckets = types.iter().map(|(name, overrides)| {
            let given = overrides.iter().enumerate().map(|(place, (key, text))| (key.clone(), match place {
                0 => json!({ "per_second": 1 }),
                1 => json!({ "size": 1, "match": text }),
                _ => json!({ "size": 1, "until": text, (format!("x{text}")): 1 }),
            }));
            (name.clone(), json!({ "size": 2, "purpose": (format!("p{purpose}")), "overrides": map(given) }))
        });
        let file = json!({ "buckets": map(buckets), (format!("x{setting}")): setting });
        let (out, rules) = good("limitd", &file.to_string());
        prop_assert_eq!(rules.limits().len(), types.len(), "{}", out);
    }

    #[test]
    fn limits_of_limitador_are_rules_whatever_they_say(
        limits in prop::collection::vec((hostile(), hostile(), hostile(), hostile()), 1..4),
    ) {
        let list: Vec<Json> = limits.iter().map(|(namespace, name, condition, variable)| json!({
            "namespace": (format!("n{namespace}")), "name": (format!("n{name}")), "max_value": 1, "seconds": 1,
            "conditions": [format!("c{condition}"), format!("k == '{condition}'")],
            "variables": [format!("v{variable}"), format!("descriptors[0]['{variable}']")],
            (format!("x{name}")): name,
        })).collect();
        let (out, rules) = good("limitador", &Json::from(list).to_string());
        // A key with spaces around it makes no `by`, and is left out.
        prop_assert_eq!(rules.limits().len() + out.matches("# left out").count(), limits.len(), "{}", out);
    }

    #[test]
    fn limits_of_boulder_are_rules_whatever_they_say(
        entries in prop::collection::vec((hostile(), prop::collection::vec((hostile(), hostile()), 1..4)), 1..4),
        known in prop::sample::select(vec!["NewOrdersPerAccount", "CertificatesPerDomain", "CertificatesPerFQDNSet"]),
    ) {
        let names: Vec<String> = entries.iter().map(|(name, _)| format!("n{}", name.replace(':', ""))).collect();
        let list: Vec<Json> = entries.iter().zip(&names).flat_map(|((_, ids), name)| {
            let ids: Vec<Json> = ids.iter().map(|(id, comment)| json!({ "id": (format!("i{id}")), "comment": comment })).collect();
            let of = |name: &str| json!({ name: { "burst": 1, "count": 1, "period": "1s", "ids": ids.clone() } });
            [of(name), of(known)]
        }).collect();
        let (out, rules) = good("boulder", &Json::from(list).to_string());
        let different: BTreeSet<&String> = names.iter().collect();
        prop_assert_eq!(rules.limits().len(), different.len() + 1, "{}", out);
    }

    #[test]
    fn domains_are_rules_whatever_they_say(domain in hostile(), entries in prop::collection::btree_map(hostile(), hostile(), 1..5)) {
        let descriptors: Vec<Json> = entries.iter().map(|(key, value)| json!({
            "key": (format!("k{key}")), "value": value, "metadata": { (value): 1 },
            "rate_limit": { "unit": "day", "requests_per_unit": 1 },
            "descriptors": [{ "key": (format!("s{value}")), "rate_limit": { "unlimited": true } }],
        })).collect();
        let file = json!({ "domain": (format!("d{domain}")), "descriptors": descriptors });
        good("envoy-ratelimit", &file.to_string());
    }
}

/// What a descriptor comes to.
struct Counted {
    /// The numbers that it is counted by and may be refused by, and whose bucket each is.
    enforced: BTreeMap<(u64, u64), String>,
    /// Those that it is counted by in shadow.
    in_shadow: BTreeSet<(u64, u64)>,
    /// Whether some limit refuses it whatever has been counted; the other is one in shadow.
    is_refused: (bool, bool),
}

fn counted(rules: &Rules, descriptor: &[(&str, &str)]) -> Counted {
    let entries: Vec<DescriptorEntry<'_>> =
        descriptor.iter().map(|(key, value)| DescriptorEntry { key, value }).collect();
    let headers = Headers::new();
    let request = Request { domain: Some("d"), descriptor: &entries, client: None, ..sample(&headers) };
    let plan = Plan::of_request(rules, &request, None).unwrap();
    let mut counted = Counted { enforced: BTreeMap::new(), in_shadow: BTreeSet::new(), is_refused: (false, false) };
    for charge in &plan.charges {
        let numbers = (charge.numbers.count(), charge.numbers.period());
        if charge.origin.is_enforced() {
            counted.enforced.insert(numbers, charge.bucket.key.clone());
        } else {
            counted.in_shadow.insert(numbers);
        }
    }
    let refused = |enforced| plan.denials.iter().any(|refused| refused.enforced == enforced);
    counted.is_refused = (refused(true), refused(false));
    counted
}

/// Values of descriptors, some of which the patterns below fit.
const VALUES: &[&str] = &["1", "2", "x1", "x1y", "y", "z", "a:b%3A"];

fn value() -> impl Strategy<Value = Option<&'static str>> {
    prop::sample::select(vec![None, Some("1"), Some("2"), Some("x*"), Some("*y"), Some("a:b%3A")])
}

/// Descriptors of the first of these levels, each with a few keys.
fn descriptors(levels: &'static [&'static [&'static str]]) -> BoxedStrategy<Vec<Json>> {
    let [keys, below @ ..] = levels else { return Just(Vec::new()).boxed() };
    let one = (prop::sample::select(*keys), value(), 0..9u32, any::<bool>(), descriptors(below)).prop_map(
        |(key, value, kind, shares, below)| {
            let mut descriptor = json!({ "key": key, "descriptors": below, "kind": kind });
            if let Some(value) = value {
                descriptor["value"] = value.into();
                if value.contains('*') && shares {
                    descriptor["share_threshold"] = true.into();
                }
            }
            descriptor
        },
    );
    prop::collection::vec(one, 0..4).boxed()
}

/// Gives each limit a number of its own, and leaves out what stands on a level twice, and most of what repeats a key of
/// the path.
fn finished(descriptors: &[Json], above: &[&str], next: &mut u64) -> Vec<Json> {
    let mut seen = HashSet::new();
    let mut kept = Vec::new();
    for descriptor in descriptors {
        let (key, kind) = (descriptor["key"].as_str().unwrap(), descriptor["kind"].as_u64().unwrap());
        if !seen.insert((key, descriptor["value"].to_string())) || (above.contains(&key) && kind != 8) {
            continue;
        }
        let below = finished(descriptor["descriptors"].as_array().unwrap(), &[above, &[key]].concat(), next);
        let mut descriptor = descriptor.clone();
        *next += 1;
        match kind {
            0 => {}
            1 => descriptor["rate_limit"] = json!({ "unit": "hour", "requests_per_unit": 0 }),
            _ => descriptor["rate_limit"] = json!({ "unit": "hour", "requests_per_unit": *next }),
        }
        let fields = descriptor.as_object_mut().unwrap();
        fields.remove("kind");
        fields.remove("descriptors");
        if !below.is_empty() {
            fields.insert("descriptors".to_owned(), below.into());
        }
        kept.push(descriptor);
    }
    kept
}

/// All sequences of keys on the way down a tree.
fn paths(descriptors: &[Json], above: &[String], found: &mut Vec<Vec<String>>) {
    for descriptor in descriptors {
        let path = [above, &[descriptor["key"].as_str().unwrap().to_owned()]].concat();
        if let Some(below) = descriptor["descriptors"].as_array() {
            paths(below, &path, found);
        }
        found.push(path);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    /// A descriptor that goes along a path of the file is refused by nothing that would not have refused it, and shares its
    /// buckets with those that it shared them with. All that counted it still does, in shadow at least.
    #[test]
    fn domains_decide_as_the_files_that_are_served_as_they_are(
        tree in descriptors(&[&["a", "b"], &["c", "d", "a", "b"], &["e"]]),
        values in prop::collection::vec(prop::sample::select(VALUES), 3),
        others in prop::collection::vec(prop::sample::select(VALUES), 3),
    ) {
        let tree = finished(&tree, &[], &mut 0);
        let text = json!({ "domain": "d", "descriptors": tree }).to_string();
        let envoy_ratelimit = vec![Source { name: "f".to_owned(), text: text.clone() }];
        let loaded = config::load(
            &Sources { envoy_ratelimit, ..Sources::default() }, Fingerprinter::new((1, 2)), Micros(0),
        );
        prop_assert!(loaded.rules.is_some(), "{}", loaded.report);
        let original = loaded.rules.unwrap();
        let (out, imported) = good("envoy-ratelimit", &text);
        let mut all = Vec::new();
        paths(&tree, &[], &mut all);
        for path in &all {
            let of = |values: &[&'static str]| -> Vec<(&str, &str)> {
                path.iter().map(String::as_str).zip(values.iter().copied()).collect()
            };
            let (first, second) = (of(&values), of(&others));
            let (was, other_was) = (counted(&original, &first), counted(&original, &second));
            let (is, other_is) = (counted(&imported, &first), counted(&imported, &second));
            for (numbers, bucket) in &is.enforced {
                prop_assert!(was.enforced.contains_key(numbers), "{:?} is counted by {:?}\n{}", first, numbers, out);
                if let (Some(was_other), Some(is_other)) = (other_was.enforced.get(numbers), other_is.enforced.get(numbers)) {
                    let shared = Some(was_other) == was.enforced.get(numbers);
                    prop_assert_eq!(shared, is_other == bucket, "{:?} {:?}\n{}", first, second, out);
                }
            }
            prop_assert!(!is.is_refused.0 || was.is_refused.0, "{:?} is refused\n{}", first, out);
            if !out.contains("left out") {
                for numbers in was.enforced.keys() {
                    let counts = is.enforced.contains_key(numbers) || is.in_shadow.contains(numbers);
                    prop_assert!(counts, "{:?} is not counted by {:?}\n{}", first, numbers, out);
                }
                prop_assert!(!was.is_refused.0 || is.is_refused.0 || is.is_refused.1, "{:?} is not refused\n{}", first, out);
            }
        }
    }
}

/// limitador's own examples of what a limit covers (`doc/how-it-works.md`), and those of its sandbox.
#[test]
fn limits_of_limitador_cover_what_they_did() {
    let limit = |most: u64, conditions: &[&str], variables: &[&str]| json!({ "namespace": "d", "max_value": most, "seconds": 3_600, "conditions": conditions, "variables": variables });
    let limits = [
        limit(1, &["KEY_A == 'VALUE_A'"], &[]),
        limit(2, &["KEY_B == 'VALUE_B'"], &[]),
        limit(3, &["KEY_A == 'VALUE_A'", "OTHER_KEY == 'WRONG_VALUE'"], &[]),
        limit(4, &[], &["MY_VAR"]),
        limit(5, &["descriptors[0]['req.method'] == 'GET'"], &["descriptors[0].user", "descriptors[0]['plan']"]),
        limit(6, &["descriptors[0].path.startsWith('/v1/')", "'user' in descriptors[0]"], &[]),
        limit(7, &["descriptors[0].path != '/json'", "'/*' != descriptors[0].path"], &["user"]),
    ];
    let (_, rules) = good("limitador", &json!(limits).to_string());
    let numbers = |descriptor: &[(&str, &str)]| {
        counted(&rules, descriptor).enforced.keys().map(|(count, _)| *count).collect::<Vec<u64>>()
    };
    for (descriptor, expected) in [
        (&[("KEY_A", "VALUE_A"), ("OTHER_KEY", "OTHER_VALUE")][..], &[1][..]),
        (&[("OTHER_KEY", "WRONG_VALUE"), ("KEY_A", "VALUE_A")], &[1, 3]),
        (&[("MY_VAR", "x")], &[4]),
        (&[("KEY_B", "VALUE_B"), ("MY_VAR", "x")], &[2, 4]),
        (&[("req.method", "GET"), ("user", "u")], &[]),
        (&[("req.method", "GET"), ("user", "u"), ("plan", "p")], &[5]),
        (&[("path", "/v1/x"), ("user", "u")], &[6, 7]),
        (&[("path", "/json"), ("user", "u")], &[]),
        (&[("path", "/*"), ("user", "u")], &[]),
        (&[("user", "u")], &[]),
        (&[("path", "/v1")], &[]),
    ] {
        assert_eq!(numbers(descriptor), expected, "{descriptor:?}");
    }
    let (out, _) =
        good("limitador", "spec: { limits: [{ namespace: a, max_value: 1, seconds: 1, conditions: null }] }");
    assert!(out.contains("  a.1:\n    match: { domain: a }\n    by: global\n"), "{out}");
}

/// The name in the store of the first limit that a text is imported as.
fn short(format: &str, text: &str) -> String {
    good(format, text).1.limits()[0].short.clone()
}

#[test]
fn a_limit_that_is_renamed_keeps_its_name_in_the_store() {
    let limitador = |name: &str, most: u64, seconds: u64| {
        let conditions = "[\"descriptors[0].a == '1'\", \"descriptors[0].b == '2'\"]";
        format!("- {{ name: {name}, namespace: n, max_value: {most}, seconds: {seconds}, conditions: {conditions} }}\n")
    };
    let envoy = |name: &str, requests: u64, unit: &str| {
        let limit = format!("{{ name: {name}, unit: {unit}, requests_per_unit: {requests} }}");
        format!("domain: d\ndescriptors:\n  - {{ key: k, value: v, rate_limit: {limit} }}\n")
    };
    for (format, old, new, other) in [
        ("limitador", limitador("old", 1, 60), limitador("new", 9, 60), limitador("old", 1, 61)),
        ("envoy-ratelimit", envoy("old", 1, "day"), envoy("new", 9, "day"), envoy("old", 1, "hour")),
    ] {
        assert_eq!(short(format, &old), short(format, &new));
        assert_ne!(short(format, &old), short(format, &other), "another limit");
    }
    let both = limitador("same", 1, 60) + &limitador("same", 2, 60);
    let (out, rules) = good("limitador", &both);
    assert_ne!(rules.limits()[0].short, rules.limits()[1].short, "{out}");
    assert_eq!(short("limitd", "buckets: { ip: { size: 10, per_second: 5 } }"), "ip");
}
