//! What a limit may say, and what it is told.

use super::{NOW, check, load_texts};
use crate::engine::algorithms::algorithm::Aligned;
use crate::engine::algorithms::calendar::{Calendar, Unit};
use crate::engine::algorithms::charge::Elevated;
use crate::engine::algorithms::micros::Micros;
use crate::engine::algorithms::numbers::Numbers;
use crate::engine::algorithms::tag::Tag;
use crate::engine::charging::plan::Plan;
use crate::engine::limit::allowance::Allowance;
use crate::engine::limit::identity::Fallback;
use crate::engine::limit::overrides::OverrideOrigin;
use crate::engine::limit::response_cost::{CostSource, ResponseCost, Statuses};
use crate::engine::limit::{Cost, CostFallback, LimitMode, StoreErrorPolicy, WHOLE_SHARE};
use crate::engine::request::part::{Part, TypedPart};
use crate::engine::request::value_type::ValueType;
use crate::engine::request::{Request, sample};
use crate::message::headers::Headers;
use crate::message::host_pattern::HostPattern;

#[test]
fn every_field_reaches_the_engine() {
    let limits = r#"
limits:
  Full:
    match:
      methods: [POST, PUT]
      host: ["API.example.com", "*.example.org"]
      path: "/v1/{kind}/{id}/**"
      headers: { X-Plan: free, x-a: { prefix: b }, x-r: { regex: "^\\d+$" }, x-p: { present: false } }
      cidr: [10.0.0.0/8, 192.0.2.7]
    by: [{ header: X-Id, as: integer }, { path: id }, ip/56, { cookie: sid }, { query: q, as: hostname-set }]
    rates: [{ burst: 20, count: 10, period: 1s }, { count: 1000, period: 1d }]
    cost: { header: X-Cost }
    mode: enforce
    enforce_for: 12.5%
    missing: shared
    on_store_error: local
    max_keys: 1000
    max_new_keys: 50
    per_call: true
    short: f
    tag: Orders
    algorithm: token_bucket
  Plain: {}
  Fixed: { by: global, burst: 3, cost: { query: n }, mode: off }
  Told: { burst: 9, cost_from_response: { header: X-Used }, reserve: 4, spend_when: { status: [401, 5xx] } }
overrides:
  Plain:192.0.2.1: { count: 5, period: 1s, until: 2026-12-31, comment: why }
"#;
    let loaded = load_texts(limits, &["- Plain: { unlimited: true, ids: [{ id: \"::ffff:192.0.2.9\", comment: x }] }"]);
    let Some(rules) = loaded.rules else { panic!("{}", loaded.report) };
    let [full, plain, fixed, told] = rules.limits() else { panic!("four limits") };

    assert_eq!((full.name.as_str(), full.short.as_str()), ("Full", "f"));
    assert_eq!(full.conditions.methods, ["POST", "PUT"]);
    let hosts = [HostPattern::Exact("api.example.com".into()), HostPattern::Below(".example.org".into())];
    assert_eq!(full.conditions.hosts, hosts);
    assert!(full.conditions.paths[0].matches("/v1/a/b/c") && !full.conditions.paths[0].matches("/v2"));
    let tests: Vec<String> = full
        .conditions
        .parts
        .iter()
        .map(|wanted| format!("{} {:?}", wanted.part.name().unwrap(), wanted.test))
        .collect();
    let expected =
        [r#"x-plan Value("free")"#, r#"x-a Prefix("b")"#, r#"x-r Regex(Regex("^\\d+$"))"#, "x-p Present(false)"];
    assert_eq!(tests, expected);
    let networks: Vec<String> = full.conditions.networks.iter().map(ToString::to_string).collect();
    assert_eq!(networks, ["10.0.0.0/8", "192.0.2.7/32"]);
    let by = [
        (Part::Header("x-id".parse().unwrap()), ValueType::Integer),
        (Part::PathParameter { name: "id".into(), segment: 2 }, ValueType::Text),
        (Part::Ip { ipv6_prefix: 56 }, ValueType::Text),
        (Part::Cookie("sid".into()), ValueType::Text),
        (Part::Query("q".into()), ValueType::HostnameSet),
    ];
    assert_eq!(full.by, by.map(|(source, form)| TypedPart::new(source, form)));
    let second = 1_000_000_000;
    let windows = [Numbers::new(20, 10, second).unwrap(), Numbers::new(1_000, 1_000, 86_400 * second).unwrap()];
    assert_eq!(full.allowance, Allowance::Windows(windows.into()));
    assert_eq!(full.cost, Cost::Part(Part::Header("x-cost".parse().unwrap())));
    assert_eq!((full.mode, full.enforce_for), (LimitMode::Enforce, 125_000));
    assert_eq!((full.missing, full.on_store_error, full.per_call), (Fallback::Shared, StoreErrorPolicy::Local, true));
    assert_eq!((full.max_keys, full.max_new_keys), (Some(1_000), Some(50)));
    assert_eq!((full.tag, plain.tag, fixed.tag), (Tag::named("Orders"), Tag::OfId, Tag::named("Fixed")));

    let client = TypedPart::new(Part::Ip { ipv6_prefix: 64 }, ValueType::Text);
    assert_eq!((&plain.allowance, plain.short.as_str()), (&Allowance::Disabled, "Plain"));
    assert_eq!(plain.by, [client]);
    assert_eq!((plain.cost.clone(), plain.enforce_for, plain.mode), (Cost::Fixed(1), WHOLE_SHARE, LimitMode::Enforce));
    let first = plain.overrides.get(0).unwrap();
    assert_eq!(first.until, Some(Micros(1_798_761_600_000_000)));
    assert_eq!(first.allowance, Allowance::Windows([Numbers::new(5, 5, second).unwrap()].into()));
    assert_eq!(first.origin, OverrideOrigin { file: 0, line: 27, comment: Some("why".into()) });
    let second = plain.overrides.get(1).unwrap();
    assert_eq!(second.origin, OverrideOrigin { file: 1, line: 1, comment: Some("x".into()) });
    assert_eq!(rules.file(second.origin.file), "o1.yaml");
    let headers = Headers::new();
    let request = Request { client: "192.0.2.9".parse().ok(), now: NOW, ..sample(&headers) };
    assert_eq!(Plan::of_request(&rules, &request, None).unwrap().unlimited, [1], "the folded address is found");

    assert_eq!((fixed.by.len(), fixed.mode), (0, LimitMode::Off));
    assert_eq!(fixed.allowance, Allowance::Windows([Numbers::fixed(3).unwrap()].into()));
    assert_eq!(fixed.cost, Cost::Part(Part::Query("n".into())));

    assert_eq!(told.cost, Cost::Fixed(4));
    let expected = ResponseCost {
        source: Some(CostSource::Header("x-used".parse().unwrap())),
        when: Some(Statuses(vec![(401, 401), (500, 599)])),
    };
    assert_eq!(told.response_cost.as_deref(), Some(&expected));
    assert_eq!(plain.response_cost, None);
}

#[test]
fn exclusions_and_lists_of_values_say_what_would_be_right() {
    for (conditions, expected) in [
        ("host: { not: api.example.com }", ""),
        ("host: { not: [] }", "the list is empty"),
        ("host: {}", "a condition needs exactly one test, found 0"),
        ("host: { is: a.example }", "unknown key `is` in a condition"),
        ("host: ['*.example.com', { not: admin.example.com }], cidr: [10.0.0.0/8, { not: [10.1.0.0/16] }]", ""),
        ("host: [a.example, { not: { not: b.example } }]", "expected text, found a map"),
        ("host: { not: 'a:443' }", "hosts are matched without the port; write a"),
        ("cidr: { not: [10.0.0.0/8, 10.0.0.1/8] }", "host bits"),
        ("headers: { x-a: { not: ' b' } }", "write `b`"),
        ("headers: { x-a: { not: { regex: '(' } } }", "invalid regular expression"),
        ("headers: { x-a: { not: b, present: false } }", "remove `not`, or write `present: true`"),
        ("headers: { x-a: { not: b, value: c } }", "a condition needs exactly one test, found 2"),
        ("headers: { x-a: { not: { present: true } } }", "to require absence, write `present: false`"),
        ("descriptor: { a: { not: { glob: b } } }", "has no `*`"),
        ("descriptor: { a: { not: { not: b } } }", "`not` only excludes values"),
        ("headers: { x-a: [b, { prefix: c }], x-b: [d] }", ""),
        ("descriptor: { a: [b, 'c*', { regex: '^d' }], e: { regex: '^f' } }", ""),
        ("headers: { x-a: [] }", "the list is empty"),
        ("headers: { x-a: [b, { not: c }] }", "a list only has values"),
        ("headers: { x-a: [{ present: true }] }", "a list only has values"),
        ("headers: { x-a: [b, [c]] }", "expected text, found a list"),
        ("headers: { x-a: [b, ' c'] }", "write `c`"),
        ("headers: { x-a: [b, c, b] }", "duplicate value `b`"),
        ("descriptor: { a: [b, { glob: c }] }", "has no `*`"),
    ] {
        let expected: Vec<&str> = Some(expected).filter(|part| !part.is_empty()).into_iter().collect();
        field(&format!("match: {{ {conditions} }}"), &expected);
    }
}

#[test]
fn conditions_on_paths_say_what_would_be_right() {
    let long = |length: usize| format!("{{ prefix: /{} }}", "a".repeat(length - 1));
    let regexes = |count: usize| format!("[{}]", vec!["{ regex: a }"; count].join(", "));
    for (path, expected) in [
        ("{ prefix: /api }", ""),
        ("{ prefix: /. }", ""),
        ("{ regex: '\\.php$' }", ""),
        ("{ not: [/static/**, { regex: '\\.css$' }, { prefix: /im }] }", ""),
        ("[/v1/**, { prefix: /v2 }, { not: /v1/health }, { not: [{ prefix: /v1/x }] }]", ""),
        (&long(1_024), ""),
        (&long(1_025), "use at most 1024 bytes"),
        (&regexes(64), ""),
        (&format!("[{{ prefix: /b }}, {{ not: {} }}]", regexes(65)), "`path` has 65 regular expressions"),
        ("{ prefix: api }", "a path must begin with `/`; write `/api`"),
        ("{ prefix: '/api/*' }", "a prefix is plain text"),
        ("{ prefix: '/{id}' }", "a prefix is plain text"),
        ("{ prefix: '/a?b' }", "query or fragment"),
        ("{ prefix: /a/../b }", "dot segments"),
        ("{ prefix: /a%2 }", "two hexadecimal digits"),
        ("{ prefix: '/a;b' }, path_params: strip", "never matches"),
        ("{ prefix: [/a] }", "expected text, found a list"),
        ("{ regex: '(' }", "unclosed group"),
        ("{ regex: a, prefix: /b }", "a condition needs exactly one test, found 2"),
        ("{ prefx: /b }", "did you mean `prefix`?"),
        ("{ not: { not: /a } }", "unknown key `not` in a condition"),
        ("{ not: [] }", "the list is empty"),
        ("{}", "a condition needs exactly one test, found 0"),
        ("[{ not: b }, { regex: '(' }]", "unclosed group"),
        ("[{ not: b }, { regex: '(' }]", "write `/b`"),
    ] {
        let expected: Vec<&str> = Some(expected).filter(|part| !part.is_empty()).into_iter().collect();
        field(&format!("match: {{ path: {path} }}"), &expected);
    }
}

/// A limit with these fields, beside valid numbers.
#[track_caller]
fn field(fields: &str, expected: &[&str]) {
    check(&format!("limits:\n  A: {{ count: 10, period: 1s, {fields} }}\n"), &[], expected);
}

#[test]
fn costs_have_a_default_and_settings_for_what_is_not_one() {
    let cost = |text: &str| {
        let rules = load_texts(&format!("limits: {{ A: {{ burst: 9, cost: {text} }} }}"), &[]).rules.unwrap();
        (rules.limits()[0].cost.clone(), rules.limits()[0].cost_fallback)
    };
    let usual = CostFallback::default();
    assert_eq!(cost("{ query: n }"), (Cost::Part(Part::Query("n".into())), usual));
    let strict = CostFallback { default: 0, denies_missing: true, denies_malformed: false };
    assert_eq!(
        cost("{ query: n, default: 0, missing: deny, malformed: default }"),
        (Cost::Part(Part::Query("n".into())), strict)
    );
    let plain = CostFallback { default: 50, ..usual };
    assert_eq!(cost("{ query: n, default: 50, missing: default, malformed: deny }").1, plain);
    for (cost, expected) in [
        ("{ default: 5 }", "`cost` needs exactly one source"),
        ("{ query: ' n' }", "must not be empty or have spaces around it"),
        ("{ query: '' }", "must not be empty or have spaces around it"),
        ("{ body: /n, default: x }", "is not a whole number"),
        ("{ body: /n, missing: skip }", "unknown value `skip`"),
        ("{ body: /n, malformed: shared }", "unknown value `shared`"),
        ("{ bytes: request, malformed: deny }", "`malformed` does not apply to `bytes`"),
    ] {
        field(&format!("cost: {cost}"), &[expected]);
    }
}

#[test]
fn overrides_name_credentials_in_any_spelling() {
    let text = "limits: { A: { by: credentials, burst: 9, max_keys: 5 } }\noverrides: { \"A:ID\": { burst: 7 } }";
    let limits = |id: &str| text.replace("ID", id);
    let headers = Headers::from_iter([("authorization", "bearer  sk-1")]);
    for id in ["sk-1", "Bearer sk-1", "bearer   sk-1"] {
        let rules = load_texts(&limits(id), &[]).rules.unwrap();
        let plan = Plan::of_request(&rules, &Request { now: NOW, ..sample(&headers) }, None).unwrap();
        assert_eq!(plan.charges[0].numbers.burst(), 7, "{id}");
    }
    check(&limits("Digest a=b, c=d"), &[], &["is not a scheme and a token"]);
}

#[test]
fn numbers_say_what_would_be_right() {
    for (fields, expected) in [
        ("burst: 5", ""),
        ("per_call: true", ""),
        ("count: 5", "`count` without `period`"),
        ("period: 1s", "`period` without `count`"),
        ("burst: 5, period: 1s", "add `count`"),
        ("count: 0, period: 1s", "count must be at least 1"),
        ("burst: 0", "write `deny: true`"),
        ("count: 1, period: 0s", "period must be longer than 0"),
        ("count: 2000000000, period: 1s", "the largest count is 1000000000"),
        ("burst: 1000000000, count: 1, period: 2160h", "the largest burst is 1158"),
        ("count: 5000000, period: 1s", "warning: tokens refill faster"),
        ("unlimited: true, burst: 1", "`unlimited: true` and `burst` cannot be combined"),
        ("unlimited: true, deny: true", "cannot be combined"),
        ("unlimited: true", ""),
        ("unlimited: false, deny: false, count: 1, period: 1s", ""),
        ("unlimited: yes", "write `true`"),
        ("rates: [{ count: 10, period: 1s }, { burst: 50, count: 1000, period: 1d }]", ""),
        ("rates: []", "use 1 to 8"),
        ("rates: [{ burst: 1 }]", "`burst` needs `count` and `period`"),
        ("rates: [{}]", "a window needs"),
        ("rates: [{ count: 1, period: 1s }], burst: 3", "move it into one of the `rates`"),
        ("rates: { count: 1, period: 1s }", "must be a list"),
        ("rates: [{ count: x, period: 1s }, { count: 1, period: y }]", "invalid duration `y`"),
        ("burst:", "`burst` has no value"),
        ("count: [1], period: 1s", "found a list"),
    ] {
        let expected: Vec<&str> = Some(expected).filter(|part| !part.is_empty()).into_iter().collect();
        check(&format!("limits:\n  A: {{ {fields} }}\n"), &[], &expected);
    }
}

#[test]
fn fields_say_what_would_be_right() {
    for (fields, expected) in [
        ("by: ip", ""),
        ("by: ip/64", ""),
        ("by: ip/0", "invalid IPv6 prefix"),
        ("by: ip/064", "invalid IPv6 prefix"),
        ("by: ip/129", "1 to 128"),
        ("by: headers", "a map such as"),
        ("by: header", "write `{ header: NAME }`"),
        ("by: x-api-key", "write `{ header: x-api-key }`"),
        ("by: { header: x-api-key, as: integr }", "did you mean `integer`?"),
        ("by: { header: \"x y\" }", "invalid header name"),
        ("by: { header: a, query: b }", "exactly one source, found 2"),
        ("by: { as: text }", "exactly one source, found 0"),
        ("by: { ip: 64 }", "`ip/64`"),
        ("by: { host: true, as: registered-domain }", ""),
        ("by: { tls: subject }", ""),
        ("by: [{ tls: subject, as: text }, ip]", ""),
        ("by: { tls: subjekt }", "did you mean `subject`?"),
        ("by: { tls: true }", "subject"),
        ("by: tls", "write `{ tls: subject }`"),
        ("by: { descriptor: tenant }", ""),
        ("by: [{ descriptor: tenant, as: integer }, ip]", ""),
        ("by: descriptor", "write `{ descriptor: NAME }`"),
        ("by: [ip, global]", "remove it from the list"),
        ("by: [ip, ip]", "duplicate component"),
        ("by: []", "by: global"),
        ("by: [[ip]]", "cannot be nested"),
        ("by: { path: id }", "`match` has no path pattern"),
        ("by: { path: id }, match: { path: { not: /v1 } }", "`match` has no path pattern"),
        (
            "by: { path: id }, match: { path: [\"/{id}\", { prefix: /v1 }] }",
            "prefixes and regular expressions do not have",
        ),
        ("by: { path: id }, match: { path: [\"/{id}\", { not: { prefix: /v1 } }] }", ""),
        ("by: { path: id }, match: { path: /v1 }", "have no parameters"),
        ("by: { path: id }, match: { path: \"/v1/{ids}\" }", "did you mean `ids`?"),
        ("by: { path: id }, match: { path: [\"/a/{id}\", \"/b/c/{id}\"] }", "not the same segment"),
        ("by: { path: id }, match: { path: [\"/a/{id}\", \"/b\"] }", "every path needs this parameter"),
        ("by: { path: id }, match: { path: [\"/a/{id}\", \"/b/{id}/**\"] }", ""),
        ("match: { methods: post }", "write POST"),
        ("match: { methods: [GET, PSOT] }", "did you mean POST?"),
        ("match: { methods: [] }", "the list is empty"),
        ("match: { methods: \"GET POST\" }", "invalid method"),
        ("match: { host: https://api.example.com/v1 }", "write the host alone, api.example.com"),
        ("match: { host: api.example.com:443 }", "write api.example.com"),
        ("match: { host: api.*.com }", "invalid host pattern"),
        ("match: { host: \"::1\" }", ""),
        ("match: { host: [localhost, \"*.Example.com\", \"[::1]\"] }", ""),
        ("match: { path: v1 }", "write `/v1`"),
        ("match: { headers: { x-plan: free, x-v: 2 } }", ""),
        ("match: { headers: { x-plan: { prefix: a, regex: b } } }", "found 2"),
        ("match: { headers: { x-plan: { regex: \"(\" } } }", "unclosed group"),
        ("match: { headers: { x-plan: { regex: \"(?i)^\\\\d+\\\\b\" } } }", ""),
        ("match: { headers: { x-plan: { present: true } } }", ""),
        ("match: { headers: { x-plan: true } }", "`{ present: true }`"),
        ("match: { headers: { x-plan: a, X-Plan: b } }", "duplicate header"),
        ("match: { headers: { x-plan: } }", "has no value"),
        ("match: { headers: [x-plan] }", "must be a map"),
        ("match: { cidr: [10.0.0.0/8, \"2001:db8::/32\", 192.0.2.7] }", ""),
        ("match: { cidr: 10.1.2.3/8 }", "write 10.0.0.0/8"),
        ("match: { cidr: \"::ffff:10.0.0.0/104\" }", "write 10.0.0.0/8"),
        ("match: { cidr: ten }", "invalid network"),
        ("match: { when: x }", "not supported by this version"),
        ("match: { domain: [x, y] }, by: { descriptor: tenant }", ""),
        ("match: { domain: x }, by: global", ""),
        ("match: { domain: x }", "needs `by`"),
        ("match: { domain: x }, by: [{ descriptor: tenant }, ip]", "only consist of descriptor entries"),
        ("match: { domain: x, path: /v1 }, by: global", "`path` and `domain` cannot be combined"),
        ("match: { domain: \"\" }, by: global", "the domain is empty"),
        ("match: { descriptor: { tenant: acme, path: \"/v1/*\", n: 5, e: \"\" } }", ""),
        ("match: { descriptor: { a: { present: false }, b: { value: \"*\" }, c: { glob: \"*x\" } } }", ""),
        ("match: { descriptor: { a: { glob: x } } }", "use `value:`"),
        ("match: { descriptor: { a: { glob: \"*\", value: x } } }", "found 2"),
        ("match: { descriptor: { a: true } }", "`{ present: true }`"),
        ("match: { descriptor: { a: } }", "`a` has no value"),
        ("match: { descriptor: { a: x, a: y } }", "duplicate key"),
        ("match: { descriptor: {} }", "the map is empty"),
        ("match: { descriptor: tenant }", "must be a map"),
        ("match: /v1", "`match` must be a map"),
        ("match: { paths: /v1 }", "did you mean `path`?"),
        ("cost: 5", ""),
        ("cost: { header: x-cost }", ""),
        ("cost: { query: n }", ""),
        ("cost: { cookie: n }", "unknown key `cookie`"),
        ("cost: -1", "negative"),
        ("cost: 0", "warning: with a cost of 0"),
        ("cost: 11", "warning: the cost exceeds the burst of 10"),
        ("mode: shadow", ""),
        ("mode: of", "did you mean `off`?"),
        ("enforce_for: 0.5%", ""),
        ("review_by: 2027-01-31", ""),
        ("review_by: 2020-01-31", "warning: the review date of this limit has passed"),
        ("review_by: 2027-02-29", "`2027-02-29` is not a date"),
        ("review_by: 2027-01-31T12:00:00Z", "write the last day, such as 2027-01-31"),
        ("review_by: [2027-01-31]", "expected"),
        ("mode: shadow, enforce_for: 5%", "warning: `enforce_for` has no effect"),
        ("enforce_for: 10", "write 10%"),
        ("enforce_for: 101%", "0% to 100%"),
        ("enforce_for: 1.00001%", "four decimals"),
        ("candidate: { count: 5, period: 1s }", ""),
        ("candidate: { burst: 5, count: 5, period: 1s, enforce_for: 10% }", ""),
        ("candidate: { rates: [{ count: 5, period: 1s }, { count: 50, period: 1m }] }", ""),
        ("candidate: { burst: 5 }", ""),
        ("algorithm: fixed_window, candidate: { count: 100, period: month }", ""),
        ("algorithm: sliding_log, candidate: { count: 5, period: 1s }", ""),
        ("algorithm: sliding_window, count_denied: true, candidate: { count: 5, period: 1s }", ""),
        ("lease: { tokens: 50, for: 100ms }, candidate: { count: 5, period: 1s }", ""),
        ("candidate: { count: 10, period: 1s }", "warning: the candidate has the numbers of the limit"),
        ("cost: 7, candidate: { count: 5, period: 1s }", "warning: the cost exceeds the candidate's burst of 5"),
        ("candidate: 5/s", "`candidate` must be a map, found a single value"),
        ("candidate: {}", "write `candidate: { count: 5, period: 1s }`"),
        ("candidate: { enforce_for: 10% }", "`candidate` has no numbers"),
        ("candidate: { count: 5 }", "`count` without `period`"),
        ("candidate: { count: 0, period: 1s }", "write `deny: true` to deny every request"),
        ("candidate: { count: 5, period: month }", "calendar periods need `algorithm: fixed_window`"),
        ("candidate: { count: 5, period: 1s, enforce_for: 10 }", "write 10%"),
        ("candidate: { count: 5, period: 1s, enforce: 10% }", "unknown key `enforce` in `candidate`"),
        ("algorithm: sliding_log, candidate: { count: 5, burst: 6, period: 1s }", "`burst` must equal `count`"),
        (
            "candidate: { count: 5, period: 1s }, elevated: { count: 90, period: 1s, for: 1m, activations_per_month: 1 }",
            "`elevated` and `candidate` cannot be combined",
        ),
        (
            "candidates: { low: { count: 5, period: 1s }, 2: { burst: 3 }, v.2_a-b: { rates: [{ count: 5, period: 2s }] } }",
            "",
        ),
        ("candidates: { low: { burst: 5 }, high: { burst: 7, enforce_for: 10% } }", ""),
        ("candidates: { low: { burst: 5, enforce_for: 0% }, high: { burst: 7, enforce_for: 10% } }", ""),
        ("candidates: { a: { burst: 1 }, b: { burst: 2 }, c: { burst: 3 }, d: { burst: 4 } }", ""),
        (
            "candidates: { a: { burst: 1 }, b: { burst: 2 }, c: { burst: 3 }, d: { burst: 4 }, e: { burst: 5 } }",
            "help: use 1 to 4",
        ),
        ("candidates: {}", "`candidates` has 0 entries"),
        ("candidates: [{ burst: 5 }]", "`candidates` must be a map, found a list"),
        ("candidates: { low: 5/s }", "`low` must be a map, found a single value"),
        ("candidates: { low: {} }", "write `low: { count: 5, period: 1s }`"),
        ("candidates: { low: { burst: 5, burts: 6 } }", "unknown key `burts` in `low`"),
        ("candidates: { a:b: { burst: 5 } }", "invalid name of a candidate `a:b`"),
        ("candidates: { an_overly_long_name_of_a_candidate: { burst: 5 } }", "use 1 to 32 letters"),
        ("candidates: { low: { burst: 5 }, low: { burst: 6 } }", "duplicate key `low`"),
        (
            "candidate: { burst: 5 }, candidates: { low: { burst: 6 } }",
            "`candidate` and `candidates` cannot be combined",
        ),
        (
            "candidates: { low: { burst: 5, enforce_for: 1% }, high: { burst: 7, enforce_for: 10% } }",
            "only one candidate can have `enforce_for`",
        ),
        (
            "candidates: { low: { burst: 10, count: 10, period: 1s } }",
            "warning: the candidate has the numbers of the limit",
        ),
        ("candidates: { low: { burst: 5 }, again: { burst: 5 } }", "warning: the candidate has the numbers of `low`"),
        ("cost: 7, candidates: { low: { burst: 5 } }", "warning: the cost exceeds the candidate's burst of 5"),
        (
            "candidates: { low: { burst: 5 } }, elevated: { count: 90, period: 1s, for: 1m, activations_per_month: 1 }",
            "`elevated` and `candidates` cannot be combined",
        ),
        ("missing: ignore", "expected one of `skip`, `deny`, `shared`"),
        ("on_store_error: fail", "expected one of"),
        ("max_keys: 5, max_new_keys: 5", ""),
        ("max_keys: 0", "at least 1"),
        ("max_new_keys: 1e3", "1e3"),
        ("per_call: true", ""),
        ("per_call: yes", "write `true`"),
        ("short: rq", ""),
        ("short: \"a:b\"", "invalid short name"),
        ("tag: orders-2.b_c", ""),
        ("tag: 2b", "invalid tag `2b`"),
        ("tag: \"{a}\"", "start with a letter"),
        ("tag: ''", "invalid tag ``"),
        ("tag: [a]", "expected text"),
        ("algorithm: token_bucket", ""),
        ("algorithm: fixed_window, aligned: clock", ""),
        ("algorithm: sliding_log", ""),
        ("algorithm: sliding_window, count_denied: true", ""),
        ("algorithm: sliding_window, count_denied: 1", "write `true`"),
        ("count_denied: true", "`count_denied` needs `algorithm: sliding_window`"),
        ("capacity: 5", "`capacity` needs `algorithm: concurrency` or `queue`"),
        ("lease: 5s", "`lease` must be a map, found a single value"),
        ("lease: { tokens: 50, for: 100ms }", ""),
        ("algorithm: fixed_window, lease: { tokens: 1, for: 10s }", ""),
        ("lease: { tokens: 50 }", "`lease` needs `for`"),
        ("lease: { for: 1s }", "`lease` needs `tokens`"),
        ("lease: { tokens: 0, for: 1s }", "remove `lease` to charge each request in Redis"),
        ("lease: { tokens: 4294967296, for: 1s }", "use at most 4294967295"),
        ("lease: { tokens: 50, for: 999us }", "1ms to 10s long"),
        ("lease: { tokens: 50, for: 11s }", "1ms to 10s long"),
        ("lease: { tokens: 50, for: 1000500ns }", "in whole microseconds"),
        ("lease: { tokens: 50, span: 1s }", "unknown key `span`"),
        ("algorithm: sliding_log, lease: { tokens: 50, for: 1s }", "`lease` needs `algorithm: gcra` or `fixed_window`"),
        (
            "lease: { tokens: 50, for: 1s }, elevated: { count: 90, period: 1s, for: 1m, activations_per_month: 1 }",
            "`lease` and `elevated` cannot be combined",
        ),
        ("algorithm: queue", "`count` does not apply to `algorithm: queue`"),
        ("algorithm: magic", "expected one of"),
        ("cost_from_response: { header: x }", ""),
        ("cost_from_response: { header: x, reserve: 5 }", ""),
        ("cost_from_response: { header: x }, reserve: 5", ""),
        ("cost_from_response: { header: x }, cost: { header: y }", ""),
        ("cost_from_response: { header: x }, spend_when: { status: 2xx }", ""),
        ("cost_from_response: { header: x }, reserve: 5, cost: 6", "warning: `cost` has no effect with `reserve`"),
        ("cost_from_response: { header: x, reserve: 4 }, reserve: 5", "`reserve` is set twice"),
        ("cost_from_response: { header: x }, reserve: 0", "use 1 to let requests pass"),
        ("cost_from_response: { header: x }, cost: 0", "use 1 to let requests pass"),
        ("cost_from_response: { header: x }, reserve: many", "not a whole number"),
        ("cost_from_response: { reserve: 5 }", "needs exactly one source"),
        ("cost_from_response: { header: \"x y\" }", "invalid header name"),
        ("cost_from_response: { heder: x }", "did you mean `header`?"),
        ("cost_from_response: x-tokens-used", "`cost_from_response` must be a map"),
        ("cost_from_response: { header: x }, algorithm: queue", "does not apply to `algorithm: queue`"),
        ("cost_from_response: { usage: openai, weights: { input: 1, cached_input: 0.1, output: 4 } }", ""),
        ("cost_from_response: { usage: anthropic, weights: { reasoning: 1000.000 }, reserve: 5 }", ""),
        ("cost_from_response: { usage: gemini, weights: { input: 0 } }", ""),
        ("cost_from_response: { usage: gemini, weights: { cache_write: 2 } }", "does not report `cache_write` tokens"),
        ("cost_from_response: { usage: openai, weights: {} }", "has no kinds of tokens"),
        ("cost_from_response: { usage: openai, weights: 2 }", "`weights` must be a map"),
        ("cost_from_response: { usage: openai, weights: { input: } }", "`input` has no value"),
        ("cost_from_response: { usage: openai, weights: { cached_inputs: 1 } }", "did you mean `cached_input`?"),
        (
            "cost_from_response: { usage: openai, weights: { input: 0, output: 0 } }",
            "more than 0 for at least one kind",
        ),
        ("cost_from_response: { usage: openai, weights: { output: 1 } }", "weights of 1 have no effect [no-effect]"),
        ("cost_from_response: { usage: openai, weights: { output: 0.0001 } }", "with up to three decimals"),
        ("cost_from_response: { usage: openai, weights: { output: 1000.001 } }", "a number from 0 to 1000"),
        ("cost_from_response: { usage: openai, weights: { output: -1 } }", "invalid weight `-1`"),
        ("cost_from_response: { usage: openai, weights: { output: 1e1 } }", "invalid weight `1e1`"),
        ("cost_from_response: { usage: openai, weights: { output: 04 } }", "invalid weight `04`"),
        ("cost_from_response: { usage: openai, weights: { output: \"4\" } }", "invalid weight `4`"),
        ("cost_from_response: { usage: openai, weights: { output: [4] } }", "expected text, found a list"),
        ("cost_from_response: { json: /cost, weights: { output: 4 } }", "`weights` needs `usage`"),
        ("spend_when: { status: 401 }, algorithm: concurrency", "does not apply to `algorithm: concurrency`"),
        ("cost: { bytes: request }", ""),
        ("cost: { bytes: request }, reserve: 5, spend_when: { status: 2xx }", ""),
        ("cost: { bytes: request }, reserve: 0", "use 1 to let requests pass"),
        ("cost: { bytes: response }", "write `cost_from_response: { bytes: response }`"),
        ("cost: { bytes: both }", "expected one of `request`"),
        ("cost: { bytes: request, header: x }", "needs exactly one source"),
        ("cost: { bytes: request }, cost_from_response: { header: x }", "remove one of them, or write two limits"),
        ("cost: { bytes: request }, match: { domain: a }, by: { descriptor: k }", "`cost` needs the body"),
        ("cost: { bytes: request }, algorithm: queue", "does not apply to `algorithm: queue`"),
        ("reserve: 5", "add `cost_from_response: { header: NAME }`"),
        ("spend_when: { status: 401 }", ""),
        ("spend_when: { status: [401, 403, 5xx, 101] }", ""),
        ("spend_when: { status: 401 }, reserve: 5", "`reserve` needs `cost_from_response`"),
        ("spend_when: { status: [] }", "the list is empty"),
        ("spend_when: { status: [100] }", "a code from 200 to 599"),
        ("spend_when: { status: [1xx, 600, 4XX, +40] }", "a class such as 4xx"),
        ("spend_when: { code: 401 }", "expected one of `status`"),
        ("spend_when: 401", "`spend_when` must be a map"),
        (
            "spend_when: { status: 401 }, match: { domain: a }, by: { descriptor: k }",
            "with `match: { domain }` never sees one",
        ),
        ("spend_when: { status: 401 }, match: { descriptor: { k: v } }", "with `match: { descriptor }` never sees"),
        ("spend_when: { status: 401 }, match: { descriptor: { k: { present: false } } }", ""),
        ("spend_when: { status: 401 }, by: { descriptor: k }", "with `by: { descriptor }` never sees one"),
        ("spend_when: { status: 401 }, by: { descriptor: k }, missing: shared", ""),
        ("deny_with: { status: 503, headers: { x-why: \"{limit}\" }, body: \"{retry_after} s\" }", ""),
        ("deny_with: { body: '' }", ""),
        ("deny_with: { body: '{\"wait\": {retry_after}}', content_type: application/json }", ""),
        ("deny_with: {}", "add `status`, `headers` or `body`"),
        ("deny_with: 503", "`deny_with` must be a map"),
        ("deny_with: { status: 200 }", "must be 400 to 599"),
        ("deny_with: { status: 66000 }", "must be 400 to 599"),
        ("deny_with: { statos: 503 }", "did you mean `status`?"),
        ("deny_with: { body: 'wait {retry_after_ms}' }", "did you mean `retry_after`?"),
        ("deny_with: { headers: { x-why: '{id}' } }", "unknown placeholder `{id}`"),
        ("deny_with: { headers: { content-type: a/b } }", "write `content_type` beside `body`"),
        ("deny_with: { headers: { transfer-encoding: chunked } }", "a denial cannot set `transfer-encoding`"),
        ("deny_with: { headers: { x-why: \"a\\r\\nb: c\" } }", "invalid value of header `x-why`"),
        ("deny_with: { headers: { 'x y': b } }", "invalid header name `x y`"),
        ("deny_with: { headers: {} }", "use 1 to 16"),
        ("deny_with: { status: 503, content_type: text/html }", "`content_type` needs `body`"),
        ("deny_with: { body: a, content_type: html }", "invalid content type `html`"),
        ("deny_with: { body: { file: absent.html } }", "`absent.html` was not read"),
        ("deny_with: { body: { path: absent.html } }", "unknown key `path`"),
        ("headers: none", ""),
        ("headers: [x-a]", "`headers` needs `algorithm: script`"),
        ("headers: some", "`headers` needs `algorithm: script`"),
        ("when: x", "not supported by this version"),
    ] {
        let expected: Vec<&str> = Some(expected).filter(|part| !part.is_empty()).into_iter().collect();
        field(fields, &expected);
    }
}

#[test]
fn windows_say_what_would_be_right() {
    for (fields, expected) in [
        ("aligned: clock, burst: 20, count: 10, period: 1m", ""),
        ("aligned: first, count: 10, period: 30d", ""),
        ("count: 10, period: month, timezone: Europe/Berlin, resets_on: 31", ""),
        ("count: 10, period: month, aligned: clock", ""),
        ("count: 10, period: year, timezone: asia/tokyo", ""),
        ("burst: 10", ""),
        ("unlimited: true", ""),
        ("aligned: clocks, count: 10, period: 1m", "did you mean `clock`?"),
        ("aligned: first, count: 10, period: month", "cannot start with the first request"),
        ("count: 10, period: month, timezone: Europe/Berlim", "did you mean `Europe/Berlin`?"),
        ("count: 10, period: month, timezone: CET+1x", "IANA name"),
        ("count: 10, period: month, resets_on: 0", "31 means the last day of every month"),
        ("count: 10, period: month, resets_on: first", "not a whole number"),
        ("count: 10, period: year, resets_on: 15", "`resets_on` needs `period: month`"),
        ("count: 10, period: 1d, resets_on: 15", "`resets_on` needs `period: month`"),
        ("count: 10, period: 1d, timezone: UTC", "`timezone` needs `period: month`"),
        ("count: 10, period: months", "invalid duration `months`"),
        ("burst: 1000, count: 10, period: month", "more than 24 windows of the calendar"),
        ("burst: 9007199254740991, count: 1, period: 1s", "the largest burst is 9007199254"),
        ("count: 10, period: 1500ns", "whole number of microseconds"),
        ("timezone: UTC, rates: [{ count: 10, period: 1s }, { count: 100, period: month }]", ""),
    ] {
        let expected: Vec<&str> = Some(expected).filter(|part| !part.is_empty()).into_iter().collect();
        check(&format!("limits:\n  A: {{ algorithm: fixed_window, {fields} }}\n"), &[], &expected);
    }
    for (fields, expected) in [
        ("count: 10, period: month", "calendar periods need `algorithm: fixed_window`"),
        ("count: 10, period: 1s, aligned: clock", "`aligned` needs `algorithm: fixed_window`"),
        ("algorithm: gcra, timezone: UTC, count: 10, period: 1s", "`timezone` needs `algorithm: fixed_window`"),
        // One mistake is told once, whatever the numbers would need.
        ("algorithm: fixed_windows, aligned: clock, count: 10, period: month", "did you mean `fixed_window`?"),
    ] {
        check(&format!("limits:\n  A: {{ {fields} }}\n"), &[], &[expected]);
    }
}

#[test]
fn what_slides_says_what_would_be_right() {
    for (fields, expected) in [
        ("sliding_log, burst: 20, count: 10, period: 1m", "`burst` must equal `count` with `algorithm: sliding_log`"),
        ("sliding_window, burst: 20, count: 10, period: 1m", "remove `burst`, or write 10"),
        ("sliding_window, burst: 20", "`burst` needs `count` and `period`"),
        ("sliding_window, count: 10, period: month", "calendar periods need `algorithm: fixed_window`"),
        ("sliding_window, count: 10, period: 1m, aligned: clock", "`aligned` needs `algorithm: fixed_window`"),
        ("sliding_window, count: 10, period: 1500ns", "whole number of microseconds"),
        ("sliding_window, count: 4503599627371, period: 1m", "the largest count is 4503599627370"),
        ("sliding_window, count: 4503599627370495, period: 1us", ""),
        ("sliding_window, count: 4503599627370496, period: 1us", "the largest count is 4503599627370495"),
        ("sliding_window, count: 10, period: 52125d", "the longest period is 52124d"),
        ("sliding_log, count: 10001, period: 1m", "use `algorithm: sliding_window`, which stores two numbers"),
    ] {
        let expected: Vec<&str> = Some(expected).filter(|part| !part.is_empty()).into_iter().collect();
        check(&format!("limits:\n  A: {{ algorithm: {fields} }}\n"), &[], &expected);
    }
}

#[test]
fn requests_in_flight_say_what_would_be_right() {
    let below = "overrides:\n  A:10.0.0.1: ";
    for (fields, expected) in [
        ("capacity: 10", ""),
        ("capacity: 10, lease: 1s", ""),
        ("capacity: 10, lease: 24h, mode: shadow, on_store_error: local, missing: deny", ""),
        ("count: 10", ""),
        ("burst: 10, cost: 1, per_call: false", ""),
        ("unlimited: true", ""),
        ("lease: 30s", "warning: `A` never applies"),
        ("capacity: 0", "write `deny: true`"),
        ("capacity: 10001", "at most 10000 requests in flight"),
        ("capacity: 10, count: 10", "`capacity` and `count` both set the capacity"),
        ("count: 10, burst: 10", "`count` and `burst` both set the capacity"),
        ("capacity: 10, period: 1s", "`period` does not apply to `algorithm: concurrency`"),
        ("rates: [{ count: 10, period: 1s }]", "`rates` does not apply to `algorithm: concurrency`"),
        ("capacity: 10, unlimited: true", "`unlimited: true` and `capacity` cannot be combined"),
        ("capacity: 10, lease: 999ms", "a lease is 1s to 24h long"),
        ("capacity: 10, lease: 25h", "a lease is 1s to 24h long"),
        ("capacity: 10, lease: 1500000500ns", "in whole microseconds"),
        ("capacity: 10, lease: 60", "`60`"),
        ("capacity: 10, lease: { tokens: 50, for: 1s }", "write a duration such as 60s"),
        ("capacity: 10, cost: 2", "a request takes one slot"),
        ("capacity: 10, cost: { header: x }", "a request takes one slot"),
        ("capacity: 10, per_call: true", "`per_call` does not apply"),
        ("capacity: 10, aligned: clock", "`aligned` needs `algorithm: fixed_window`"),
        ("capacity: 10, match: { domain: d }, by: global", "only decision services receive descriptors"),
        ("capacity: 10, match: { descriptor: { a: x } }", "only decision services receive descriptors"),
        ("capacity: 10, match: { descriptor: { a: { present: false } } }", ""),
        ("capacity: 10, by: { descriptor: a }", "only decision services receive descriptors"),
        ("capacity: 10, by: { descriptor: a }, missing: shared", ""),
    ] {
        let expected: Vec<&str> = Some(expected).filter(|part| !part.is_empty()).into_iter().collect();
        check(&format!("limits:\n  A: {{ algorithm: concurrency, {fields} }}\n"), &[], &expected);
    }
    for (given, expected) in [
        ("{ capacity: 20 }", ""),
        ("{ count: 20, lease: 5s }", ""),
        ("{ deny: true }", ""),
        ("{ lease: 5s }", "add `capacity`"),
        ("{ capacity: 20, period: 1s }", "`period` does not apply to `algorithm: concurrency`"),
    ] {
        let expected: Vec<&str> = Some(expected).filter(|part| !part.is_empty()).into_iter().collect();
        check(&format!("limits:\n  A: {{ algorithm: concurrency, capacity: 1 }}\n{below}{given}\n"), &[], &expected);
    }
    let leased = format!("limits:\n  A: {{ count: 1, period: 1s }}\n{below}{{ count: 2, period: 1s, lease: 5s }}\n");
    check(&leased, &[], &["an override cannot have a `lease` of tokens"]);
    let gcra = format!("limits:\n  A: {{ count: 1, period: 1s }}\n{below}{{ capacity: 5 }}\n");
    check(&gcra, &[], &["`capacity` needs `algorithm: concurrency`"]);
}

#[test]
fn an_override_keeps_the_lease_of_its_limit_unless_it_gives_one() {
    let limits = "limits:\n  A: { algorithm: concurrency, capacity: 10, lease: 30s }\n";
    let second = 1_000_000_000;
    for (fields, expected) in [
        ("capacity: 20", Numbers::concurrency(20, 30 * second).unwrap()),
        ("burst: 20, lease: 5s", Numbers::concurrency(20, 5 * second).unwrap()),
    ] {
        let rules = load_texts(&format!("{limits}overrides:\n  A:10.0.0.1: {{ {fields} }}\n"), &[]).rules.unwrap();
        let given = rules.limits()[0].overrides.get(0).unwrap();
        assert_eq!(given.allowance, Allowance::Windows([expected].into()), "{fields}");
    }
}

#[test]
fn windows_of_a_limit_are_those_of_its_overrides() {
    let limits = "limits:\n  A: { algorithm: fixed_window, aligned: clock, timezone: Asia/Tokyo, resets_on: 3, \
                  count: 10, period: month }\n";
    let second = 1_000_000_000;
    for (fields, expected) in [
        ("count: 20, period: 1m", Numbers::fixed_window(20, 20, 60 * second, Aligned::Clock).unwrap()),
        ("aligned: first, count: 20, period: 1m", Numbers::fixed_window(20, 20, 60 * second, Aligned::First).unwrap()),
        ("count: 20, period: month", monthly(20, 3, "Asia/Tokyo")),
        ("count: 20, period: month, resets_on: 1", monthly(20, 1, "Asia/Tokyo")),
        ("count: 20, period: month, timezone: UTC", monthly(20, 3, "UTC")),
    ] {
        let text = format!("{limits}overrides:\n  A:10.0.0.1: {{ {fields} }}\n");
        let rules = load_texts(&text, &[]).rules.unwrap();
        let given = rules.limits()[0].overrides.get(0).unwrap();
        assert_eq!(given.allowance, Allowance::Windows([expected].into()), "{fields}");
    }
}

#[test]
fn elevated_numbers_say_what_would_be_right() {
    for (fields, expected) in [
        ("{ count: 20, period: 1m, for: 15m, activations_per_month: 5 }", ""),
        (
            "{ burst: 20, for: 15m, activations_per_month: 5 }",
            "refills more slowly than the limit itself: burst 20, never refills, compared with burst 10, 10 per 1m",
        ),
        (
            "{ count: 10, period: 1s, for: 15m, activations_per_month: 5 }",
            "never switches on: its burst must be greater than 10",
        ),
        ("{ count: 20, period: 1h, for: 15m, activations_per_month: 5 }", "refills more slowly"),
        ("{ for: 15m, activations_per_month: 5 }", "`elevated` needs numbers"),
        ("{ count: 20, for: 15m, activations_per_month: 5 }", "`count` without `period`"),
        ("{ count: 20, period: 1m, activations_per_month: 5 }", "such as `for: 15m`"),
        ("{ count: 20, period: 1m, for: 15m }", "`elevated` needs `activations_per_month`"),
        ("{ count: 20, period: 1m, for: 0s, activations_per_month: 5 }", "use a duration such as 1s"),
        ("{ count: 20, period: 1m, for: 1ns, activations_per_month: 5 }", "a whole number of microseconds"),
        ("{ count: 20, period: 1m, for: 500w500w, activations_per_month: 5 }", ""),
        ("{ count: 20, period: 1m, for: 15000w, activations_per_month: 5 }", "longer than 285 years"),
        ("{ count: 20, period: 1m, for: month, activations_per_month: 5 }", "`for` must be a duration"),
        ("{ count: 20, period: 1m, for: 15m, activations_per_month: 0 }", "must be at least 1"),
        ("{ count: 20, period: 1m, for: 15m, activations_per_month: 9007199254740992 }", "9007199254740991"),
        ("{ count: 20, period: 1m, four: 15m }", "did you mean `for`?"),
        ("5", "`elevated` must be a map, found"),
    ] {
        let expected: Vec<&str> = Some(expected).filter(|part| !part.is_empty()).into_iter().collect();
        check(&format!("limits:\n  A: {{ count: 10, period: 1m, elevated: {fields} }}\n"), &[], &expected);
    }
    let elevated = "elevated: { count: 20, period: 1m, for: 15m, activations_per_month: 5 }";
    for (fields, expected) in [
        ("algorithm: sliding_log, count: 10, period: 1m", "`elevated` needs `algorithm: gcra`"),
        ("algorithm: sliding_window, count: 10, period: 1m", "`elevated` needs `algorithm: gcra`"),
        ("algorithm: concurrency, capacity: 10", "`elevated` needs `algorithm: gcra`"),
        ("algorithm: queue, capacity: 10, fields: { path: path }", "`elevated` needs `algorithm: gcra`"),
        ("rates: [{ count: 1, period: 1s }, { count: 10, period: 1m }]", "`elevated` and `rates` cannot be combined"),
        ("unlimited: true", "`unlimited: true` and `elevated` cannot be combined"),
        ("deny: true", "`deny: true` and `elevated` cannot be combined"),
        ("by: ip", "`elevated` needs numbers beside it"),
        ("cost: 15, count: 10, period: 1m", ""),
        ("cost: 21, count: 10, period: 1m", "the cost exceeds the burst of 20"),
    ] {
        let expected: Vec<&str> = Some(expected).filter(|part| !part.is_empty()).into_iter().collect();
        check(&format!("limits:\n  A: {{ {fields}, {elevated} }}\n"), &[], &expected);
    }
}

/// What limitd's `normalizeElevatedOverrides` makes of them, and what it leaves to the caller.
#[test]
fn overrides_keep_what_they_do_not_say_of_elevated_numbers() {
    const MINUTE: u64 = 60_000_000_000;
    let all = |count, span, activations_per_month| {
        Some(Elevated {
            numbers: Numbers::new(count, count, MINUTE).unwrap(),
            span,
            activations_per_month,
            quota: None,
        })
    };
    let limit = "count: 10, period: 1m";
    let raised = "count: 10, period: 1m, elevated: { count: 20, period: 1m, for: 15m, activations_per_month: 5 }";
    let minutes = 60_000_000;
    for (limit, fields, burst, expected) in [
        (limit, "elevated: { count: 200, period: 1m, for: 1m, activations_per_month: 2 }", 10, all(200, minutes, 2)),
        (raised, "count: 15, period: 1m", 15, all(20, 15 * minutes, 5)),
        (raised, "elevated: { count: 200, period: 1m, for: 1m }", 10, all(200, minutes, 5)),
        (raised, "count: 15, period: 1m, elevated: { count: 200, period: 1m }", 15, all(200, 15 * minutes, 5)),
        (raised, "rates: [{ count: 12, period: 1m }]", 12, all(20, 15 * minutes, 5)),
        (raised, "rates: [{ count: 12, period: 1m }, { count: 20, period: 1h }]", 12, None),
    ] {
        let text = format!("limits:\n  A: {{ {limit} }}\noverrides:\n  A:10.0.0.1: {{ {fields} }}\n");
        let rules = load_texts(&text, &[]).rules.unwrap();
        let given = &rules.limits()[0].overrides.get(0).unwrap().allowance;
        let found = given.elevated().map(|elevated| elevated.as_ref().clone());
        assert_eq!((given.windows().unwrap()[0].burst(), found), (burst, expected), "{fields}");
    }
    for fields in ["unlimited: true", "deny: true"] {
        check(&format!("limits:\n  A: {{ {raised} }}\noverrides:\n  A:10.0.0.1: {{ {fields} }}\n"), &[], &[]);
    }
}

fn monthly(count: u64, day: i8, zone: &str) -> Numbers {
    Numbers::calendar_window(count, count, Calendar::find(Unit::Month(day), zone).unwrap()).unwrap()
}
