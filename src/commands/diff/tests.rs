//! Tests the directions of changes, and the predictions about buckets against the memory store.

use std::path::Path;

use super::limits::{Change, LimitDiff, compare};
use super::source::Rulebook;
use crate::config::{self, Source, Sources};
use crate::engine::algorithms::decision::Outcome;
use crate::engine::algorithms::micros::Micros;
use crate::engine::charging::plan::Plan;
use crate::engine::limit::fingerprint::Fingerprinter;
use crate::engine::limit::rules::Rules;
use crate::engine::request::{Request, sample};
use crate::engine::telling::order::Effect;
use crate::message::headers::Headers;
use crate::store::Batch;
use crate::store::memory::MemoryStore;

fn rulebook(text: &str) -> Rulebook {
    let read = Rulebook::read(Path::new("-"), &[], &mut text.as_bytes());
    read.unwrap_or_else(|error| panic!("{text}: {error:?}"))
}

fn diff(old: &str, new: &str) -> Vec<LimitDiff> {
    compare(&rulebook(old), &rulebook(new))
}

/// The rules of one limit with these settings.
fn one(settings: &str) -> String {
    format!("limits: {{ L: {{ {settings} }} }}")
}

const S: Effect = Effect::STRICTER;
const L: Effect = Effect::LOOSER;
const B: Effect = Effect::BOTH;
const N: Effect = Effect::NONE;

#[test]
fn every_kind_of_change_has_a_direction() {
    let ten = "count: 10, period: 1s";
    let with = |more: &str| format!("{ten}, {more}");
    let elevated = |activations: u8| {
        with(&format!(
            "elevated: {{ burst: 20, count: 20, period: 1s, for: 1m, activations_per_month: {activations} }}"
        ))
    };
    let plain = ten.to_owned();
    for (old, new, expected) in [
        (plain.clone(), plain.clone(), N),
        (plain.clone(), "count: 600, period: 1m, burst: 10".into(), N),
        (plain.clone(), "burst: 5, count: 10, period: 1s".into(), S),
        (plain.clone(), "burst: 10, count: 9, period: 1s".into(), S),
        (plain.clone(), "burst: 20, count: 5, period: 1s".into(), B),
        (plain.clone(), "burst: 10".into(), S),
        (plain.clone(), "unlimited: true".into(), L),
        (plain.clone(), "deny: true".into(), S),
        (plain.clone(), "rates: [{ count: 10, period: 1s }, { count: 100, period: 1h }]".into(), S),
        (plain.clone(), with("match: { path: /a }"), L),
        (with("match: { path: /a }"), with("match: { path: [/a, /b] }"), S),
        (with("match: { path: /a }"), with("match: { path: /b }"), B),
        (with("match: { path: /a/** }"), with("match: { path: /a/b }"), L),
        (with("match: { path: [/a/**, /b] }"), with("match: { path: '/a/{x}' }"), L),
        (with("match: { path: '/a/{x}' }"), with("match: { path: '/a/{y}' }"), N),
        (with("match: { path: /a/** }"), with("match: { path: [/a/b, /c] }"), B),
        (with("match: { methods: [GET, POST] }"), with("match: { methods: [POST, GET] }"), N),
        (with("match: { host: '*.example' }"), with("match: { host: [a.example, b.example] }"), L),
        (with("match: { cidr: 10.0.0.0/8 }"), with("match: { cidr: [10.1.0.0/16, 10.2.0.0/16] }"), L),
        (with("match: { cidr: { not: 10.0.0.0/8 } }"), with("match: { cidr: { not: 10.1.0.0/16 } }"), S),
        (with("match: { cidr: [10.0.0.0/9, 10.128.0.0/9] }"), with("match: { cidr: 10.0.0.0/8 }"), N),
        (with("match: { cidr: { not: [10.0.0.0/9, 10.128.0.0/9] } }"), with("match: { cidr: { not: 10.0.0.0/8 } }"), N),
        (plain.clone(), with("match: { cidr: { not: 10.0.0.0/8 } }"), L),
        (with("match: { host: { not: '*.example' } }"), with("match: { host: { not: [a.example, c.test] } }"), B),
        (plain.clone(), with("short: s"), N),
        (plain.clone(), with("tag: t"), N),
        (with("match: { methods: [GET] }"), with("match: { methods: [GET], headers: { x-a: present } }"), L),
        (with("match: { host: { not: a.example.com } }"), plain.clone(), S),
        (with("match: { headers: { x-a: b } }"), with("match: { headers: { x-a: [b, c] } }"), S),
        (with("match: { headers: { x-a: [b, c] } }"), with("match: { headers: { x-a: [c, b] } }"), N),
        (with("match: { headers: { x-a: [b, c] } }"), with("match: { headers: { x-a: [b, d] } }"), B),
        (with("match: { headers: { x-a: [b, { prefix: c }] } }"), with("match: { headers: { x-a: c1 } }"), L),
        (with("match: { descriptor: { a: [b, 'c*'] } }"), with("match: { descriptor: { a: [b, 'c*', d] } }"), S),
        (with("match: { descriptor: { a: b } }"), with("match: { descriptor: { a: b, c: d } }"), L),
        (with("by: ip/64"), with("by: ip/56"), S),
        (with("by: ip/64"), with("by: [ip/64, host]"), L),
        (with("by: ip/64"), with("by: [ip/64, { header: x-a }], missing: deny"), B),
        (with("by: [ip, host]"), with("by: [host, ip]"), N),
        (with("by: { header: x-a }"), with("by: { header: x-b }"), B),
        (with("by: ip"), with("by: global"), S),
        (with("mode: shadow"), plain.clone(), S),
        (plain.clone(), with("mode: off"), L),
        (with("mode: shadow"), "mode: shadow, deny: true".into(), N),
        (with("enforce_for: 10%"), with("enforce_for: 20%"), S),
        (with("enforce_for: 10%"), with("enforce_for: 0%"), L),
        (plain.clone(), with("cost: 2"), S),
        (plain.clone(), with("cost: { header: x-cost }"), B),
        (
            with("cost_from_response: { usage: openai }"),
            with("cost_from_response: { usage: openai, weights: { output: 2 } }"),
            B,
        ),
        (plain.clone(), with("spend_when: { status: 401 }"), B),
        (with("by: { header: x-a }"), with("by: { header: x-a }, missing: deny"), S),
        (with("by: { header: x-a }, missing: deny"), with("by: { header: x-a }, missing: shared"), L),
        (plain.clone(), with("on_store_error: deny"), S),
        (with("on_store_error: deny"), with("on_store_error: local"), L),
        (with("max_keys: 10"), with("max_keys: 5"), S),
        (plain.clone(), with("per_call: true"), B),
        (plain.clone(), with("drain_over_limit: true"), S),
        (plain.clone(), with("candidate: { burst: 1 }"), N),
        (plain.clone(), with("algorithm: fixed_window"), B),
        (with("algorithm: fixed_window"), "burst: 20, count: 10, period: 1s".into(), L),
        (plain.clone(), with("algorithm: sliding_log"), S),
        (with("algorithm: sliding_log"), plain.clone(), L),
        (with("algorithm: fixed_window"), with("algorithm: fixed_window, aligned: clock"), B),
        (with("algorithm: sliding_window"), with("algorithm: sliding_window, count_denied: true"), S),
        (with("algorithm: sliding_window"), plain.clone(), L),
        (
            "algorithm: fixed_window, count: 10, period: 1s, burst: 5".into(),
            "algorithm: fixed_window, count: 5, period: 1s".into(),
            N,
        ),
        ("algorithm: concurrency, burst: 5".into(), "algorithm: concurrency, burst: 4".into(), S),
        ("algorithm: concurrency, burst: 5".into(), "algorithm: concurrency, burst: 5, lease: 30s".into(), L),
        (plain.clone(), with("elevated: { burst: 20, count: 20, period: 1s, for: 1m, activations_per_month: 2 }"), L),
        (elevated(2), elevated(3), L),
        (elevated(2), elevated(2).replace("burst: 20", "burst: 30"), B),
    ] {
        let found = diff(&one(&old), &one(&new)).remove(0);
        assert_eq!(found.effect, expected, "{old} -> {new}: {found:?}");
        let back = diff(&one(&new), &one(&old)).remove(0);
        assert_eq!(back.effect, expected.reversed(), "{new} -> {old}: {back:?}");
    }
}

/// The values of each key of `match`, and the requests on which they differ.
const METHODS: [&str; 4] = ["", "methods: [GET]", "methods: [POST, GET]", "methods: [POST]"];
const HOSTS: [&str; 6] = [
    "",
    "host: a.test",
    "host: '*.a.test'",
    "host: ['*.test']",
    "host: { not: '*.a.test' }",
    "host: ['*.test', { not: c.test }]",
];
const PATHS: [&str; 14] = [
    "",
    "path: /a",
    "path: /a/**",
    "path: [/a/b, /c]",
    "path: '/a/{x}'",
    "path: ['/{x}', '/{x}/b']",
    "path: { prefix: /a }",
    "path: { prefix: /a/b }",
    "path: { regex: b$ }",
    "path: { not: /a/b }",
    "path: { not: [{ prefix: /a/ }, /c] }",
    "path: ['/a/**', { not: { regex: b$ } }]",
    "path: [{ prefix: /ab }, { regex: c }, { not: /c/** }]",
    "path: ['/{x}', { not: { prefix: /a } }]",
];
const NETWORKS: [&str; 6] = [
    "",
    "cidr: 10.0.0.0/8",
    "cidr: [10.1.0.0/16, 192.0.2.0/24]",
    "cidr: { not: 10.0.0.0/8 }",
    "cidr: { not: [10.1.0.0/16, 192.0.2.0/24] }",
    "cidr: [10.0.0.0/8, { not: 10.1.0.0/16 }]",
];

/// If diff says that a change covers no more requests, or no fewer, then no request is an exception.
#[test]
fn the_effect_of_a_match_is_that_on_each_request() {
    let headers = Headers::default();
    let (hosts, paths) =
        (["a.test", "b.a.test", "c.test", "d.example"], ["/", "/a", "/ab", "/a/b", "/a/c", "/c", "/c/d/b"]);
    let clients = ["10.1.2.3", "10.2.2.3", "192.0.2.1", "198.51.100.1"];
    let mut requests = Vec::new();
    for method in ["GET", "POST", "PUT"] {
        for (host, path) in hosts.iter().flat_map(|host| paths.iter().map(move |path| (host, path))) {
            let with = |client: &str| Request { method, host, path, client: client.parse().ok(), ..sample(&headers) };
            requests.extend(clients.map(with));
        }
    }
    let pick = |number: usize| {
        let keys = [METHODS[number % 4], HOSTS[number / 4 % 6], PATHS[number / 24 % 14], NETWORKS[number / 336 % 6]];
        let keys: Vec<_> = keys.into_iter().filter(|key| !key.is_empty()).collect();
        one(&format!("count: 1, period: 1s, match: {{ {} }}", keys.join(", ")))
    };
    let rules: Vec<_> = (0..2016).step_by(23).map(|number| rulebook(&pick(number))).collect();
    for (old, new) in rules.iter().flat_map(|old| rules.iter().map(move |new| (old, new))) {
        let covers = |rules: &Rulebook, request| rules.rules.limits()[0].conditions.check(request).is_ok();
        let effect = compare(old, new).remove(0).effect;
        let differs = |has, lacks| requests.iter().find(|request| covers(has, request) && !covers(lacks, request));
        let [more, fewer] = [differs(new, old), differs(old, new)];
        // In doubt, it says that a change may do both.
        let shown = || [old, new].map(|rules| format!("{:?}", rules.rules.limits()[0].conditions));
        assert!(effect.stricter || more.is_none(), "{:?} {more:?}", shown());
        assert!(effect.looser || fewer.is_none(), "{:?} {fewer:?}", shown());
    }
}

#[test]
fn an_exemption_makes_its_limits_looser() {
    let rules = |exempt: &str| {
        format!("limits: {{ A: {{ count: 9, period: 1s }}, B: {{ count: 9, period: 1s }} }}\nexempt: [{exempt}]\n")
    };
    let wide = "{ match: { cidr: 10.0.0.0/8 } }";
    let of_a = "{ match: { cidr: 10.0.0.0/8 }, limits: [A] }";
    let narrow = "{ match: { cidr: 10.1.0.0/16 } }";
    for (old, new, expected) in [
        ("", wide, [L, L]),
        ("", of_a, [L, N]),
        (of_a, wide, [N, L]),
        (wide, narrow, [S, S]),
        (narrow, "{ match: { cidr: 10.2.0.0/16 } }", [B, B]),
        (of_a, "{ match: { cidr: 10.0.0.0/8 }, limits: [B, A], comment: c }", [N, L]),
        (wide, "{ match: { cidr: 10.0.0.0/8 } }, { match: { cidr: 10.1.0.0/16 } }", [N, N]),
    ] {
        for (old, new, expected) in [(old, new, expected), (new, old, expected.map(Effect::reversed))] {
            let found = diff(&rules(old), &rules(new));
            assert_eq!([found[0].effect, found[1].effect], expected, "{old} -> {new}: {found:?}");
        }
    }
    let found = diff(&rules(""), &rules(wide));
    let Change { what, from, to, note, .. } = &found[0].changes[0];
    assert_eq!([what, &**from, to, note], ["exempt", "nothing", "10.0.0.0/8", "exempts more requests"]);
}

#[test]
fn a_limit_on_descriptors_does_not_cover_all_requests() {
    let limit = |conditions: &str| one(&format!("burst: 1, match: {{ {conditions} }}"));
    let found = diff(&limit("descriptor: { tenant: a }"), &limit("headers: { x-a: b }"));
    let change = found[0].changes.iter().find(|change| change.what == "match").unwrap();
    let some = "conditions on headers, claims, entries or exclusions";
    assert_eq!([&change.from, &change.to, &change.note], [some, some, "covers other requests: headers, descriptor"]);
}

#[test]
fn a_part_is_named_with_how_it_is_read() {
    let by = |part: &str| one(&format!("burst: 1, by: {part}"));
    for (old, new, expected) in [
        ("ip", "{ host: true, as: registered-domain }", ["ip/64", "host as registered-domain"]),
        ("{ header: x-a }", "{ header: x-a, as: integer }", ["header x-a", "header x-a as integer"]),
        ("{ query: q, duplicates: first }", "{ query: q }", ["query q, the first", "query q"]),
        ("{ tls: subject }", "[method, { body: /a }]", ["tls subject", "method and body /a"]),
    ] {
        let found = diff(&by(old), &by(new));
        let change = found[0].changes.iter().find(|change| change.what == "by").unwrap();
        assert_eq!([&change.from, &change.to], expected, "{old} {new}");
    }
}

#[test]
fn overrides_have_a_direction_too() {
    let rules = |overrides: &str| format!("limits: {{ L: {{ count: 10, period: 1s }} }}\noverrides:\n{overrides}\n");
    let (more, fewer) = ("{ count: 20, period: 1s }", "{ count: 5, period: 1s }");
    let of = |value: &str| rules(&format!("  L:10.0.0.1: {value}"));
    let none = rules("  {}");
    for (old, new, stricter, looser) in [
        (&none, &of(more), false, true),
        (&none, &of(fewer), true, false),
        (&of("{ unlimited: true }"), &none, true, false),
        (&of("{ deny: true }"), &of("{ unlimited: true }"), false, true),
        (&of("{ unlimited: true }"), &of("{ unlimited: true, until: 2030-01-01 }"), true, false),
        (
            &rules("  - L: { deny: true, cidr: 10.0.0.0/8 }"),
            &rules("  - L: { deny: true, cidr: 10.0.0.0/7 }"),
            true,
            true,
        ),
    ] {
        let found = diff(old, new).remove(0);
        assert_eq!(found.effect, Effect { stricter, looser }, "{old}{new}{found:?}");
    }
    let labels: Vec<_> = diff(&none, &of(more)).remove(0).overrides.into_iter().map(|change| change.label).collect();
    assert_eq!(labels, ["10.0.0.1 (standard input:3)"]);
}

#[test]
fn limits_are_found_under_new_names() {
    let verdicts = |old: &str, new: &str| -> Vec<(String, &str)> {
        diff(old, new).iter().map(|limit| (limit.name.clone(), limit.verdict())).collect()
    };
    let limit = "{ count: 10, period: 1s }";
    let (a, b) = (format!("limits: {{ A: {limit} }}"), format!("limits: {{ B: {limit} }}"));
    assert_eq!(verdicts(&a, &b), [("B".to_owned(), "renamed")]);
    assert_eq!(verdicts("limits: {}", &a), [("A".to_owned(), "new")]);
    assert_eq!(verdicts(&a, "limits: {}"), [("A".to_owned(), "gone")]);
    let short = "limits: { B: { short: A, count: 5, period: 1s } }";
    assert_eq!(verdicts(&a, short), [("B".to_owned(), "stricter")]);
    assert_eq!(diff(&a, short)[0].buckets, "carry over what was used");
    assert_eq!(
        verdicts(&a, "limits: { B: { count: 5, period: 1s } }"),
        [("B".to_owned(), "new"), ("A".to_owned(), "gone")]
    );
}

/// Spends one token as rules that took effect at an instant say. Returns what is left.
fn spend(store: &MemoryStore, text: &str, effective_from: Micros, now: Micros) -> u64 {
    let source = Source { name: "limits.yaml".into(), text: text.to_owned() };
    let sources = Sources { limits: Some(source), ..Sources::default() };
    let rules: Rules = config::load(&sources, Fingerprinter::new((0, 0)), effective_from).rules.unwrap();
    let headers = Headers::from_iter([("x-a", "1"), ("x-b", "1")]);
    let plan = Plan::of_request(&rules, &Request { now, ..sample(&headers) }, None).unwrap();
    let decisions = store.decide(&Batch { charges: &plan.charges, effective_from, now }).unwrap();
    assert_eq!(decisions[0].outcome, Outcome::Allowed, "{text}");
    decisions[0].remaining
}

/// The engine does with the bucket of a client what is said of it.
#[test]
fn buckets_carry_over_or_start_full_as_it_says() {
    let (carries, full) = ("carry over what was used", "start full");
    let ten = "burst: 10, count: 10, period: 1h";
    let with = |more: &str| format!("{ten}, {more}");
    for (old, new, expected) in [
        (ten.to_owned(), "burst: 20, count: 1, period: 1h".to_owned(), carries),
        (ten.to_owned(), with("match: { methods: [GET] }"), "stay as they are"),
        (ten.to_owned(), with("algorithm: fixed_window"), carries),
        (with("algorithm: fixed_window"), with("algorithm: fixed_window, aligned: clock"), carries),
        (ten.to_owned(), "algorithm: sliding_log, count: 10, period: 1h".into(), full),
        (
            "algorithm: sliding_log, count: 10, period: 1h".into(),
            "algorithm: sliding_log, count: 8, period: 2h".into(),
            carries,
        ),
        (
            "algorithm: sliding_window, count: 10, period: 1h".into(),
            "algorithm: sliding_window, count: 9, period: 2h".into(),
            carries,
        ),
        (
            "algorithm: sliding_window, count: 10, period: 1h".into(),
            "algorithm: sliding_log, count: 9, period: 2h".into(),
            full,
        ),
        (ten.to_owned(), with("short: M"), full),
        (ten.to_owned(), with("by: [ip, method]"), full),
        (
            with("by: { header: x-a }"),
            with("by: { header: x-b }"),
            "stay as they are where the id's text stays the same",
        ),
        (
            ten.to_owned(),
            with("elevated: { burst: 50, count: 10, period: 1h, for: 1m, activations_per_month: 1 }"),
            carries,
        ),
        (
            "rates: [{ count: 10, period: 1h }, { count: 50, period: 1d }]".into(),
            ten.into(),
            "carry over what was used; those of removed windows expire",
        ),
    ] {
        let found = diff(&one(&old), &one(&new)).remove(0);
        // It is said once.
        assert!(found.changes.iter().all(|change| !change.note.contains("start full")), "{:?}", found.changes);
        let found = found.buckets;
        assert!(found.starts_with(expected), "{old} -> {new}: {found}");
        let (store, start) = (MemoryStore::new(100), Micros(1_767_225_600_000_000));
        let changed = start.after(Micros(1_000));
        for _ in 0..3 {
            spend(&store, &one(&old), Micros(0), start);
        }
        let left = spend(&store, &one(&new), changed, changed.after(Micros(1_000)));
        let fresh = spend(&MemoryStore::new(100), &one(&new), Micros(0), start);
        let used = if expected.starts_with(full) { 0 } else { 3 };
        assert_eq!(left, fresh - used, "{old} -> {new}: {found}");
    }
}

#[test]
fn other_issuers_of_the_claims_that_a_limit_uses_are_a_change() {
    let rules = |issuer: &str, more: &str| {
        format!(
            "jwt: {{ main: {{ issuer: \"{issuer}\", jwks_url: \"https://keys.example/\", {more} }} }}\n\
             limits:\n  A: {{ by: {{ claim: sub }}, count: 1, period: 1s }}\n  B: {{ by: ip, count: 1, period: 1s }}"
        )
    };
    let one = rules("https://one.example", "audiences: [api]");
    for (new, expected) in [
        (one.clone(), None),
        (
            rules("https://two.example", "audiences: [api]"),
            Some("main: https://two.example, for api, keys of https://keys.example/"),
        ),
        (
            rules("https://one.example", "audiences: []"),
            Some("main: https://one.example, any audience, keys of https://keys.example/"),
        ),
        (
            rules("https://one.example", "audiences: [api], leeway: 5s"),
            Some("main: https://one.example, for api, keys of https://keys.example/"),
        ),
    ] {
        let found = diff(&one, &new);
        let change = found[0].changes.first().map(|change| (&*change.what, change.to.as_str()));
        assert_eq!(change, expected.map(|to| ("jwt", to)), "{new}");
        assert!(!found[1].is_changed(), "{new}");
    }
}
