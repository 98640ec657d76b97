//! Applications that ask about limits by name. Every call and every answer matches the `OpenAPI` document.

use std::sync::Arc;

use jsonschema::Validator;
use serde_json::{Value, json};

use super::{body, call, charge, on_redis, post, send, stopped};
use crate::support::redis::RedisServer;
use crate::support::server::Weir;
use crate::support::wire::{Message, Wire};

const RULES: &str = r"
limits:
  Logins: { by: { header: x-user }, burst: 2, count: 2, period: 1h }
  Domains: { by: [{ header: x-account, as: integer }, { query: domain, as: registered-domain }], count: 2, period: 1h }
  Networks: { by: ip/64, burst: 2 }
  Tenants: { by: { header: x-tenant }, per_call: true }
  Plans: { by: { header: x-tenant }, count: 5, period: 1h, per_call: true }
  Both: { match: { path: /both }, by: { header: x-user }, rates: [{ count: 3, period: 1m }, { count: 4, period: 1h }] }
  Watched: { by: { header: x-user }, burst: 1, mode: shadow }
  Tokens: { by: { header: x-user }, count: 1000, period: 1h, drain_over_limit: true, match: { path: /tokens } }
  Work: { by: { header: x-worker }, burst: 1000, match: { path: /work } }
  Everything: { by: global, burst: 1000, match: { path: /none } }
  Shut: { by: { header: x-user }, deny: true, match: { path: /shut } }
  Raised:
    by: { header: x-tenant }
    per_call: true
    count: 1
    period: 1h
    elevated: { count: 10, period: 1h, for: 15m, activations_per_month: 1 }
overrides:
  Logins:vip: { burst: 9, count: 9, period: 1h }
  Logins:free: { unlimited: true }
  Plans:shut: { deny: true }
";

/// The listener's document as schemas.
struct Contract {
    call: Validator,
    verdict: Validator,
    problem: Validator,
}

impl Contract {
    fn of(weir: &Weir) -> Self {
        let answer = weir.connect_check().get("/openapi.json");
        assert_eq!((answer.status(), answer.header("content-type")), (200, Some("application/json")));
        let document = body(&answer);
        assert_eq!(document["openapi"], "3.1.0");
        let schema = |name: &str| {
            let mut schema = document.clone();
            schema["$schema"] = "https://json-schema.org/draft/2020-12/schema".into();
            schema["$ref"] = format!("#/components/schemas/{name}").into();
            jsonschema::validator_for(&schema).unwrap()
        };
        let statuses = document["paths"]["/json"]["post"]["responses"].as_object().unwrap();
        assert_eq!(statuses.keys().collect::<Vec<_>>(), ["200", "400", "403", "405", "413", "415", "429", "503"]);
        let contract = Self { call: schema("Call"), verdict: schema("Verdict"), problem: schema("Problem") };
        let content = &document["paths"]["/json"]["post"]["requestBody"]["content"]["application/json"];
        for (name, example) in content["examples"].as_object().unwrap() {
            contract.call.validate(&example["value"]).unwrap_or_else(|error| panic!("{name}: {error}"));
        }
        contract
    }

    /// Returns whether the document describes an answer.
    #[track_caller]
    fn check(&self, answer: &Message) {
        let (validator, kind) = match answer.status() {
            200 | 429 | 503 => (&self.verdict, "application/json"),
            400 | 403 | 405 | 413 | 415 => (&self.problem, "application/problem+json"),
            other => panic!("{other} is not in the document"),
        };
        assert_eq!(answer.header("content-type"), Some(kind));
        validator.validate(&body(answer)).unwrap_or_else(|error| panic!("{error}: {}", answer.text()));
    }
}

/// A connection whose answers are checked against the document.
struct Application {
    contract: Arc<Contract>,
    wire: Wire,
}

impl Application {
    fn new(weir: &Weir) -> Self {
        Self { contract: Arc::new(Contract::of(weir)), wire: weir.connect_check() }
    }

    #[track_caller]
    fn call(&mut self, asked: &Value) -> Message {
        let answer = call(&mut self.wire, asked);
        self.contract.check(&answer);
        let fits = self.contract.call.validate(asked);
        if answer.status() != 400 {
            fits.unwrap_or_else(|error| panic!("{asked} is taken, and does not fit: {error}"));
        }
        answer
    }

    /// The status, whether the call is allowed, the binding limit, and `name outcome limit remaining` of each limit.
    #[track_caller]
    fn expect(&mut self, asked: &Value, status: u16, binding: Option<&str>, limits: &[&str]) -> Value {
        let answer = self.call(asked);
        assert_eq!(answer.status(), status, "{asked}: {}", answer.text());
        let told = body(&answer);
        assert_eq!(told["allowed"], status == 200, "{asked}: {told}");
        assert_eq!(told["binding"].as_str(), binding, "{asked}: {told}");
        let shown = |limit: &Value| {
            let text = |key: &str| limit[key].as_str().unwrap().to_owned();
            format!("{} {} {} {}", text("name"), text("outcome"), limit["limit"], limit["remaining"])
        };
        let shown: Vec<String> = told["limits"].as_array().unwrap().iter().map(shown).collect();
        assert_eq!(shown, limits, "{asked}: {told}");
        assert_eq!(answer.header("cache-control"), Some("no-store"));
        told
    }
}

/// Charges a budget once the cost is known.
fn check_budget(app: &mut Application) {
    let ask = json!({ "limit": "Tokens", "id": "alice", "op": "check", "cost": 0 });
    let report = json!({ "limit": "Tokens", "id": "alice", "op": "spend_only", "cost": 300 });
    for left in [700, 400, 100] {
        app.expect(&ask, 200, Some("Tokens"), &[&format!("Tokens allowed 1000 {}", left + 300)]);
        app.expect(&report, 200, Some("Tokens"), &[&format!("Tokens allowed 1000 {left}")]);
    }
    app.expect(&ask, 200, Some("Tokens"), &["Tokens allowed 1000 100"]);
    app.expect(&report, 200, Some("Tokens"), &["Tokens allowed 1000 0"]);
    let denied = app.expect(&ask, 429, Some("Tokens"), &["Tokens denied 1000 0"]);
    assert_eq!(denied["retry_after_ms"], 3_600);
    app.expect(&report, 200, Some("Tokens"), &["Tokens unchanged 1000 0"]);
    let request = json!({ "url": "/tokens", "ip": "192.0.2.9", "headers": { "host": "a", "x-user": "carl" } });
    let described = json!({ "request": request, "op": "spend_only", "cost": 2000 });
    let shown = ["Logins short 2 2", "Networks short 2 2", "Watched short 1 1", "Tokens allowed 1000 0"];
    app.expect(&described, 200, Some("Tokens"), &shown);
    let asked = json!({ "request": request, "op": "check", "cost": 0 });
    let shown = ["Logins unchanged 2 2", "Networks unchanged 2 2", "Watched unchanged 1 1", "Tokens denied 1000 0"];
    app.expect(&asked, 429, Some("Tokens"), &shown);
}

/// Holds tokens of a budget for work whose cost is known afterwards.
fn check_reservations(app: &mut Application) {
    let with = |op: &str, key: &str, value: Value| {
        let mut call = json!({ "limit": "Work", "id": "alice", "op": op, "cost": 400 });
        call[key] = value;
        call
    };
    let told = app.expect(&with("reserve", "ttl", "30s".into()), 200, Some("Work"), &["Work allowed 1000 600"]);
    let first = told["reservation"].clone();
    let told = app.expect(&with("reserve", "cost", 600.into()), 200, Some("Work"), &["Work allowed 1000 0"]);
    let second = told["reservation"].clone();
    let denied = app.expect(&with("reserve", "cost", 1.into()), 429, Some("Work"), &["Work denied 1000 0"]);
    assert_eq!((&denied["reservation"], &denied["retry_after_ms"]), (&Value::Null, &json!(30_000)), "or earlier");
    let told = app.expect(&with("commit", "reservation", first.clone()), 200, Some("Work"), &["Work allowed 1000 0"]);
    assert_eq!(told["committed"], true);
    let told = app.expect(&with("commit", "reservation", first), 200, Some("Work"), &["Work unchanged 1000 0"]);
    assert_eq!(told["committed"], false);
    let release =
        json!({ "limits": [{ "limit": "Work", "id": "alice", "cost": 0 }], "op": "commit", "reservation": second });
    app.expect(&release, 200, Some("Work"), &["Work allowed 1000 600"]);
    let report = with("commit", "reservation", Value::Null);
    let told = app.expect(&report, 200, Some("Work"), &["Work allowed 1000 200"]);
    assert_eq!(told.get("committed"), None);
    app.expect(&report, 200, Some("Work"), &["Work allowed 1000 0"]);
    let nothing = app.expect(&with("reserve", "cost", 0.into()), 200, Some("Work"), &["Work allowed 1000 0"]);
    assert_eq!(nothing["reservation"], Value::Null);

    for (call, pointer) in [
        (with("reserve", "ttl", "0s".into()), "#/ttl"),
        (with("reserve", "ttl", "61m".into()), "#/ttl"),
        (with("spend", "ttl", "1m".into()), "#/ttl"),
        (with("commit", "reservation", "abc".into()), "#/reservation"),
        (with("reserve", "reservation", Value::Null), "#/reservation"),
        (json!({ "limit": "Raised", "id": "a", "op": "reserve" }), "#"),
    ] {
        let answer = app.call(&call);
        assert_eq!((answer.status(), &body(&answer)["errors"][0]["pointer"]), (400, &json!(pointer)), "{call}");
    }

    let request = json!({ "url": "/work", "ip": "192.0.2.99", "headers": { "host": "a", "x-worker": "bob" } });
    let reserve = json!({ "request": request, "op": "reserve", "cost": 2 });
    let told = app.expect(&reserve, 200, Some("Networks"), &["Networks allowed 2 0", "Work allowed 1000 998"]);
    let commit = json!({ "request": request, "op": "commit", "cost": 1, "reservation": told["reservation"] });
    app.expect(&commit, 200, Some("Networks"), &["Networks allowed 2 1", "Work allowed 1000 999"]);
}

fn check_all(weir: &Weir) {
    let mut app = Application::new(weir);
    let with = |mut call: Value, key: &str, value: Value| {
        call[key] = value;
        call
    };

    // By name and id until it is denied, on a clock that stands still.
    let alice = charge("Logins", "alice");
    app.expect(&alice, 200, Some("Logins"), &["Logins allowed 2 1"]);
    let told = app.expect(&alice, 200, Some("Logins"), &["Logins allowed 2 0"]);
    assert_eq!(told["retry_after_ms"], 0);
    assert_eq!(told["limits"][0]["retry_after_ms"], 1_800_000, "when another one would fit");
    assert_eq!(told["limits"][0]["reset_after_ms"], 3_600_000);
    let denied = app.call(&alice);
    assert_eq!((denied.status(), denied.header("retry-after")), (429, Some("1800")));
    assert_eq!(denied.header("ratelimit"), Some("\"Logins\";r=0;t=1800"));
    assert_eq!(denied.header("ratelimit-policy"), Some("\"Logins\";q=2;w=3600"));
    assert_eq!(body(&denied)["retry_after_ms"], 1_800_000);

    // The other uses of a bucket.
    app.expect(&with(alice.clone(), "op", "check".into()), 429, Some("Logins"), &["Logins denied 2 0"]);
    app.expect(&with(alice.clone(), "op", "spend_only".into()), 200, Some("Logins"), &["Logins short 2 0"]);
    app.expect(&with(alice.clone(), "op", "refund".into()), 200, Some("Logins"), &["Logins allowed 2 1"]);
    app.expect(&with(alice.clone(), "op", "check".into()), 200, Some("Logins"), &["Logins allowed 2 0"]);
    app.expect(&with(alice.clone(), "cost", 0.into()), 200, Some("Logins"), &["Logins allowed 2 1"]);
    app.expect(&with(alice.clone(), "op", "reset".into()), 200, Some("Logins"), &["Logins allowed 2 2"]);
    let never = app.expect(&with(alice, "cost", 3.into()), 429, Some("Logins"), &["Logins denied 2 2"]);
    assert_eq!((&never["retry_after_ms"], &never["limits"][0]["cost"]), (&Value::Null, &json!(3)));

    check_budget(&mut app);
    check_reservations(&mut app);

    // Overrides, and limits that do not reach the store.
    app.expect(&charge("Logins", "vip"), 200, Some("Logins"), &["Logins allowed 9 8"]);
    app.expect(&charge("Logins", "free"), 200, None, &[]);
    let shut = app.expect(&charge("Shut", "x"), 429, Some("Shut"), &["Shut denied 0 0"]);
    assert_eq!(shut["retry_after_ms"], Value::Null);
    app.expect(&json!({ "op": "refund", "limit": "Shut", "id": "x" }), 200, None, &[]);
    app.expect(&charge("Watched", "x"), 200, None, &["Watched allowed 1 0"]);
    app.expect(&charge("Watched", "x"), 200, None, &["Watched short 1 0"]);
    app.expect(&json!({ "limit": "Everything" }), 200, Some("Everything"), &["Everything allowed 1000 999"]);

    // Ids are normalised.
    app.expect(&charge("Networks", "2001:db8::1"), 200, Some("Networks"), &["Networks allowed 2 1"]);
    app.expect(&charge("Networks", "2001:db8:0:0:ffff::2"), 200, Some("Networks"), &["Networks allowed 2 0"]);
    app.expect(&charge("Domains", "7:example.com"), 200, Some("Domains"), &["Domains allowed 2 1"]);
    let listed = json!({ "limit": "Domains", "id": ["7", "www.EXAMPLE.com"] });
    app.expect(&listed, 200, Some("Domains"), &["Domains allowed 2 0"]);

    // All or nothing.
    let together = json!({ "limits": [charge("Logins", "bob"), listed] });
    app.expect(&together, 429, Some("Domains"), &["Logins unchanged 2 2", "Domains denied 2 0"]);
    let together = json!({ "limits": [charge("Logins", "bob"), { "limit": "Everything", "cost": 99 }] });
    app.expect(&together, 200, Some("Logins"), &["Logins allowed 2 1", "Everything allowed 1000 900"]);

    // Numbers in the call.
    app.expect(&charge("Tenants", "a"), 200, None, &[]);
    let of_call = |limit: &str, id: &str, count: u64| json!({ "limit": limit, "id": id, "burst": 20, "count": count, "period": "1m", "cost": 15 });
    app.expect(&of_call("Tenants", "a", 10), 200, Some("Tenants"), &["Tenants allowed 20 5"]);
    let told = app.expect(&of_call("Tenants", "a", 10), 429, Some("Tenants"), &["Tenants denied 20 5"]);
    assert_eq!(told["retry_after_ms"], 60_000);
    // Usage survives a call with other numbers.
    let told = app.expect(&of_call("Tenants", "a", 20), 429, Some("Tenants"), &["Tenants denied 20 5"]);
    assert_eq!(told["retry_after_ms"], 30_000);
    app.expect(&of_call("Plans", "a", 10), 200, Some("Plans"), &["Plans allowed 20 5"]);
    app.expect(&of_call("Plans", "shut", 10), 429, Some("Plans"), &["Plans denied 0 0"]);

    // Elevated numbers switch on at the bucket's end and are the only ones in the answer.
    let raised = || charge("Raised", "a");
    let told = app.expect(&raised(), 200, Some("Raised"), &["Raised allowed 1 0"]);
    let quiet = json!({ "triggered": false, "active": false, "activations_left": null });
    assert_eq!((&told["limits"][0]["elevated"], &told["limits"][0]["retry_after_ms"]), (&quiet, &json!(0)));
    let told = app.expect(&with(raised(), "op", "check".into()), 200, Some("Raised"), &["Raised allowed 10 8"]);
    assert_eq!(told["limits"][0]["elevated"]["triggered"], true);
    let together = json!({ "limits": [with(charge("Logins", "vip"), "cost", 9.into()), raised()] });
    app.expect(&together, 429, Some("Logins"), &["Logins denied 9 8", "Raised unchanged 1 0"]);
    let switched = app.call(&raised());
    assert_eq!(switched.header("ratelimit-policy"), Some("\"Raised\";q=10;w=3600"));
    assert_eq!(switched.header("ratelimit"), Some("\"Raised\";r=8;t=720"));
    let elevated = json!({ "triggered": true, "active": true, "activations_left": 0 });
    assert_eq!(body(&switched)["limits"][0]["elevated"], elevated);
    app.expect(&together, 429, Some("Logins"), &["Logins denied 9 8", "Raised unchanged 10 8"]);
    app.expect(&with(of_call("Raised", "a", 2), "cost", 8.into()), 200, Some("Raised"), &["Raised allowed 10 0"]);
    app.expect(&raised(), 429, Some("Raised"), &["Raised denied 10 0"]);

    // A request with its cost.
    let request = json!({ "url": "https://a.example/both", "ip": "192.0.2.1", "headers": { "X-User": "carol" } });
    let all =
        ["Logins allowed 2 1", "Networks allowed 2 1", "Both allowed 3 2", "Both allowed 4 3", "Watched allowed 1 0"];
    app.expect(&json!({ "request": request }), 200, Some("Networks"), &all);
    let check = json!({ "request": request, "cost": 3, "op": "check" });
    app.expect(
        &check,
        429,
        Some("Networks"),
        &["Logins denied 2 1", "Networks denied 2 1", "Both denied 3 2", "Both unchanged 4 3", "Watched short 1 0"],
    );
    let back =
        ["Logins allowed 2 2", "Networks allowed 2 2", "Both allowed 3 3", "Both allowed 4 4", "Watched allowed 1 1"];
    app.expect(&json!({ "request": request, "op": "refund" }), 200, Some("Networks"), &back);
    let named = json!({ "url": "/both", "ip": "192.0.2.1", "headers": { "host": "a.example", "x-user": ["carol"] } });
    app.expect(
        &json!({ "request": named, "cost": 2 }),
        200,
        Some("Networks"),
        &["Logins allowed 2 0", "Networks allowed 2 0", "Both allowed 3 1", "Both allowed 4 2", "Watched short 1 1"],
    );
    // The same client meets the same buckets behind a gateway.
    let headers = [("host", "a.example"), ("x-user", "carol"), ("x-forwarded-for", "192.0.2.1")];
    assert_eq!(send(&mut app.wire, "GET", "/envoy/both", &headers).status(), 429);
}

#[test]
fn applications_ask_by_name_on_memory() {
    let weir = stopped(RULES).start("echo");
    check_all(&weir);
    // Calls that check or refund are not decisions about requests.
    assert_eq!(weir.metric("weir_decisions_total{limit=\"Shut\",result=\"denied\"}"), 1);
    assert_eq!(weir.metric("weir_decisions_total{limit=\"Tenants\",result=\"denied\"}"), 2);
    assert_eq!(weir.metric("weir_decisions_total{limit=\"Both\",result=\"denied\"}"), 0);
    assert_eq!(weir.metric("weir_panics_total"), 0);
}

#[test]
fn applications_ask_by_name_on_redis() {
    let server = RedisServer::plain();
    check_all(&on_redis(RULES, &server));
}

#[test]
fn mistakes_are_told_with_their_places() {
    let weir = stopped(RULES).start("echo");
    let mut app = Application::new(&weir);
    for (asked, expected) in [
        (json!({}), &[("#", "give `limit` and `id`")][..]),
        (json!({ "limit": "Login", "id": "a" }), &[("#/limit", "there is no limit `Login`")]),
        (json!({ "limit": "Logins" }), &[("#/id", "an id is missing")]),
        (json!({ "limit": "Domains", "id": ["x", "a.example"] }), &[("#/id/0", "not an unsigned 64-bit integer")]),
        (json!({ "limit": "Logins", "id": "a", "count": 1, "period": "1s" }), &[("#/count", "per_call")]),
        (
            json!({ "limits": [charge("Logins", "a"), charge("Logins", "a")] }),
            &[("#/limits/1/id", "two charges for this id; combine them")],
        ),
        (
            json!({ "limits": [{ "limit": "Logins", "id": 1 }, { "limit": 2 }], "op": "burn" }),
            &[("#/op", "expected one of `spend`"), ("#/limits/0/id", "found 1"), ("#/limits/1/limit", "expected text")],
        ),
        (json!({ "request": { "url": "https://a.example/" } }), &[("#/request", "the client's address is missing")]),
        (json!({ "request": { "url": "/", "ip": "192.0.2.1" } }), &[("#/request", "`Host` is missing")]),
        (
            json!({ "request": { "url": "a.example/", "ip": "192.0.2.1" } }),
            &[("#/request", "a target must be a path, or an `http://` or `https://` URL")],
        ),
        (json!({ "request": { "url": "http://a/\\", "ip": "192.0.2.1" } }), &[("#/request", "backslash")]),
    ] {
        let answer = app.call(&asked);
        assert_eq!(answer.status(), 400, "{asked}");
        let told = body(&answer);
        let errors = told["errors"].as_array().unwrap();
        assert_eq!(errors.len(), expected.len(), "{told}");
        assert_eq!(told["detail"], errors[0]["detail"]);
        for (error, (pointer, part)) in errors.iter().zip(expected) {
            assert_eq!(error["pointer"], *pointer, "{told}");
            assert!(error["detail"].as_str().unwrap().contains(part), "{told}");
        }
    }
    let mut told = |content_type: &str, text: &str, status: u16, part: &str| {
        let answer = post(&mut app.wire, content_type, text);
        app.contract.check(&answer);
        assert_eq!(answer.status(), status, "{content_type}: {text:.40}");
        assert!(body(&answer)["detail"].as_str().unwrap().contains(part), "{}", answer.text());
    };
    let good = charge("Logins", "a").to_string();
    told(
        "application/json; charset=utf-8",
        "{\"limit\": \"Logins\", \"limit\": \"Logins\"}",
        400,
        "duplicate key `limit` at line 1",
    );
    told("Application/JSON", "nope", 400, "invalid JSON");
    told("text/plain", &good, 415, "Content-Type: application/json");
    told("application/x-www-form-urlencoded", &good, 415, "Content-Type: application/json");
    // A page whose own name resolves to the listener's address (DNS rebinding) is the listener's own site to its browser.
    for origin in ["http://rebound.example:9002", "https://a.example", "null"] {
        let mut page = weir.connect_check();
        page.send(format!(
            "POST /json HTTP/1.1\r\nhost: rebound.example:9002\r\norigin: {origin}\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n\r\n{good}",
            good.len()
        ));
        let answer = page.response();
        app.contract.check(&answer);
        assert_eq!(answer.status(), 403, "{origin}");
    }
    let answer = send(&mut weir.connect_check(), "GET", "/json", &[("host", "limiter")]);
    app.contract.check(&answer);
    assert_eq!((answer.status(), answer.header("allow")), (405, Some("POST")));
    assert_eq!(weir.metric("weir_decisions_total{limit=\"Logins\",result=\"allowed\"}"), 0, "nothing was charged");
}
