//! Limits by verified claims: through every listener that sees headers, with keys in files and behind URLs that fail, lie and
//! rotate.

use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use serde_json::{Value, json};

use self::signing::{TestKey, key_set};
use crate::envoy::authorization;
use crate::spoe::{Peer, question, string};
use crate::support::binary::run_in;
use crate::support::certificates::Authority;
use crate::support::eventually;
use crate::support::redis::RedisServer;
use crate::support::server::WIDE;
use crate::support::upstream::{Upstream, ok};
use crate::support::weir::Weir;
use crate::support::wire::Wire;

#[path = "../src/jwt/testing.rs"]
mod signing;

const ISSUER: &str = "https://auth.example.com";

/// One request for each user, and two for all of the plan `free`.
const LIMITS: &str = "
limits:
  PerUser: { by: { claim: sub }, missing: deny, malformed: deny, burst: 1 }
  Free: { match: { claims: { /app/plan: free } }, by: global, cost: { claim: weight }, burst: 4 }
";

/// Seconds since the epoch.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

fn claims(user: &str) -> Value {
    json!({ "iss": ISSUER, "aud": ["api"], "exp": now() + 600, "sub": user })
}

fn with_file(audiences: &str) -> String {
    format!("jwt: {{ main: {{ issuer: '{ISSUER}', audiences: {audiences}, jwks_file: keys.json }} }}\n{LIMITS}")
}

fn with_url(url: &str) -> String {
    format!("jwt: {{ main: {{ issuer: '{ISSUER}', audiences: [api], jwks_url: '{url}' }} }}\n{LIMITS}")
}

fn bearer(token: &str) -> String {
    format!("Bearer {token}")
}

/// Asks the check listener as an application does.
fn check(weir: &Weir, token: &str) -> u16 {
    let request =
        json!({ "url": "http://a.example/", "ip": "192.0.2.1", "headers": { "authorization": bearer(token) } });
    let body = json!({ "request": request }).to_string();
    let mut wire = Wire::connect(weir.listener("check"));
    let head = "POST /json HTTP/1.1\r\nhost: a\r\ncontent-type: application/json";
    wire.send(format!("{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len()));
    let answer: Value = serde_json::from_str(wire.response().text()).unwrap();
    if answer["allowed"] == true { 200 } else { 429 }
}

#[tokio::test]
async fn each_listener_goes_by_the_same_claims() {
    let (key, stranger) = (TestKey::rsa("k1", true), TestKey::eddsa("k1"));
    let keys = key_set(&[&TestKey::eddsa("k0"), &key]);
    let flags = ["--grpc", "127.0.0.1:0", "--check", "127.0.0.1:0"];
    let weir = Weir::serve_with(&with_file("[api]"), &flags, |_, directory: &Path| {
        std::fs::write(directory.join("keys.json"), keys).unwrap();
    });
    let mut envoy = authorization::client(weir.listener("grpc")).await;
    let mut ask = async |listener: &str, token: &str| -> u16 {
        match listener {
            "proxy" => weir.get("/", &[("authorization", &bearer(token))]).status(),
            "check" => check(&weir, token),
            _ => {
                let request = authorization::request("192.0.2.1", "/", &[("authorization", &bearer(token))]);
                let answer = envoy.check(request).await.unwrap().into_inner();
                u16::try_from(authorization::seen(&answer, "").0).unwrap()
            }
        }
    };
    for listener in ["proxy", "check", "grpc"] {
        let token = |name: &str| key.token("k1", &claims(&format!("{listener}-{name}")));
        for (what, token, expected) in [
            ("a user", token("a"), 200),
            ("the same user again", token("a"), 429),
            ("another user", token("b"), 200),
            ("a stranger's key", stranger.token("k1", &claims("c")), 429),
            ("an expired token", key.token("k1", &json!({ "iss": ISSUER, "aud": "api", "exp": 5, "sub": "d" })), 429),
            ("no signature", key.sign(&json!({ "alg": "none" }), &claims("e")), 429),
            ("no token", String::new(), 429),
        ] {
            assert_eq!(ask(listener, &token).await, expected, "{listener}: {what}");
        }
    }
    // The plan has 4 tokens, and a request of weight 3 takes most of them.
    let plan = |user: &str, weight: u64| {
        let mut claims = claims(user);
        claims["app"] = json!({ "plan": "free" });
        claims["weight"] = weight.into();
        key.token("k1", &claims)
    };
    for (listener, weight, expected) in [("proxy", 3, 200), ("check", 2, 429), ("grpc", 1, 200), ("proxy", 1, 429)] {
        let token = plan(&format!("{listener}-{weight}"), weight);
        assert_eq!(ask(listener, &token).await, expected, "{listener} {weight}");
    }
    for (result, at_least) in [("valid", 11), ("expired", 3), ("unsupported_algorithm", 3), ("unknown_key", 3)] {
        let counted = weir.metric(&format!("weir_jwt_tokens_total{{result=\"{result}\"}}"));
        assert!(counted >= at_least, "{result}: {counted}");
    }
}

#[test]
fn a_claim_that_no_limit_uses_exempts() {
    let key = TestKey::rsa("k1", true);
    let keys = key_set(&[&key]);
    let rules = format!(
        "jwt: {{ main: {{ issuer: '{ISSUER}', audiences: [api], jwks_file: keys.json }} }}\n\
         exempt: [{{ match: {{ claims: {{ /app/plan: [partner, internal] }} }} }}]\n\
         limits: {{ All: {{ by: global, burst: 1 }} }}\n"
    );
    let weir = Weir::serve_with(&rules, &[], |_, directory: &Path| {
        std::fs::write(directory.join("keys.json"), keys).unwrap();
    });
    let plan = |plan: &str, key: &TestKey| {
        let mut claims = claims("a");
        claims["app"] = json!({ "plan": plan });
        key.token("k1", &claims)
    };
    let of = |token: &str| weir.get("/", &[("authorization", &bearer(token))]).status();
    let partner = plan("partner", &key);
    assert_eq!([of(&partner), of(&plan("free", &key)), of(&partner)], [200; 3]);
    let forged = plan("partner", &TestKey::eddsa("k1"));
    assert_eq!([&plan("free", &key), &forged, "", &partner].map(of), [429, 429, 429, 200]);
}

#[test]
fn a_ban_by_a_claim_reaches_all_requests_with_the_token() {
    let key = TestKey::rsa("k1", true);
    let keys = key_set(&[&key]);
    let rules = format!(
        "jwt: {{ main: {{ issuer: '{ISSUER}', audiences: [api], jwks_file: keys.json }} }}\nlimits:\n  Login: {{ match: {{ path: \
         /login }}, by: {{ claim: sub }}, burst: 1, ban: {{ after: 1, within: 1m, for: 1h, scope: all }} }}\n"
    );
    let weir = Weir::serve_with(&rules, &[], |_, directory: &Path| {
        std::fs::write(directory.join("keys.json"), keys).unwrap();
    });
    let get = |path: &str, user: &str| {
        weir.get(path, &[("authorization", &bearer(&key.token("k1", &claims(user))))]).status()
    };
    assert_eq!(["/login", "/login", "/", "/login"].map(|path| get(path, "a")), [200, 429, 429, 429]);
    assert_eq!(get("/", "b"), 200, "another user's token");
}

/// Lines of `Authorization` that servers' common libraries read as the token, and those in which some of them may find it. `{t}` is
/// the token, `{s}` the token with another spelling of its signature.
const SPELLINGS: &[(&[&str], TokenRead)] = &[
    (&["Bearer {t}"], TokenRead::Valid),
    (&["bearer {t}"], TokenRead::Valid),
    (&["BEARER {t}"], TokenRead::Valid),
    (&["Bearer\t{t}"], TokenRead::Valid),
    (&["Bearer    {t}"], TokenRead::Valid),
    (&["Bearer \t{t}\t "], TokenRead::Valid),
    (&["{t}"], TokenRead::Valid),
    (&["JWT {t}"], TokenRead::Valid),
    (&["Token {t}"], TokenRead::Valid),
    (&["Bearer {s}"], TokenRead::Valid),
    (&["Bearer {t}="], TokenRead::Valid),
    (&["Bearer {t}=="], TokenRead::Valid),
    (&["Bearer {t}==x"], TokenRead::Valid),
    (&["Bearer {t}~"], TokenRead::Valid),
    (&["Bearer {t}!"], TokenRead::Valid),
    (&["Bearer {t}", "Bearer {t}"], TokenRead::Valid),
    (&["Bearer {t}", "bearer  {t}"], TokenRead::Valid),
    (&["Bearer {t}", "Basic YTpi"], TokenRead::Malformed),
    (&["Basic YTpi", "Bearer {t}"], TokenRead::Malformed),
    (&["Bearer {t}", "Bearer x"], TokenRead::Malformed),
    (&["Bearer {t}", "x"], TokenRead::Malformed),
    (&["Bearer {t}", ""], TokenRead::Malformed),
    (&["", "Bearer {t}"], TokenRead::Malformed),
    (&["Bearer {t},"], TokenRead::Malformed),
    (&["Bearer {t}, Basic YTpi"], TokenRead::Malformed),
    (&["Basic YTpi, Bearer {t}"], TokenRead::Malformed),
    (&["Basic YTpi,Bearer {t}"], TokenRead::Malformed),
    (&["Bearer {t} x"], TokenRead::Malformed),
    (&["x Bearer {t}"], TokenRead::Malformed),
    (&["Bearer {t}A"], TokenRead::Malformed),
    (&["Bearer {t}.x"], TokenRead::Malformed),
    (&["Bearer: {t}"], TokenRead::Valid),
    (&["Bearer{t}"], TokenRead::Malformed),
    (&["Bearer={t}"], TokenRead::Malformed),
    (&["\"Bearer {t}\""], TokenRead::Malformed),
    (&["Bearer \"{t}\""], TokenRead::Malformed),
    (&["Bearer x"], TokenRead::Malformed),
    (&["Bearer"], TokenRead::Absent),
    (&["Basic YTpi"], TokenRead::Absent),
    (&["Digest username=\"a\", realm=\"a.b.c\""], TokenRead::Absent),
    (&[], TokenRead::Absent),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TokenRead {
    /// It is charged to the user.
    Valid,
    /// It is denied.
    Malformed,
    /// It is not charged.
    Absent,
}

/// A spelling of the token whose signature has other unused bits.
fn respelled(token: &str) -> String {
    const DIGITS: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let (rest, last) = token.split_at(token.len() - 1);
    let place = DIGITS.find(last).unwrap();
    format!("{rest}{}", DIGITS.chars().nth(place ^ 1).unwrap())
}

#[tokio::test]
async fn no_spelling_of_a_token_is_uncharged() {
    let key = TestKey::es256("k1");
    let rules = format!(
        "jwt: {{ main: {{ issuer: '{ISSUER}', audiences: [api], jwks_file: keys.json }} }}\n\
         limits:\n\
         \x20 PerUser: {{ by: {{ claim: sub }}, malformed: deny, burst: 1000 }}\n\
         \x20 Free: {{ match: {{ claims: {{ plan: free }} }}, by: global, malformed: deny, burst: 1000 }}\n"
    );
    let weir = Weir::serve_with(&rules, &["--grpc", "127.0.0.1:0"], |_, directory: &Path| {
        std::fs::write(directory.join("keys.json"), key_set(&[&key])).unwrap();
    });
    let mut envoy = authorization::client(weir.listener("grpc")).await;
    let mut claims = claims("mallory");
    claims["plan"] = "free".into();
    let token = key.token("k1", &claims);
    let mut wire = weir.connect();
    let mut charged = 0;
    for (lines, expected) in SPELLINGS {
        let lines: Vec<String> =
            lines.iter().map(|line| line.replace("{t}", &token).replace("{s}", &respelled(&token))).collect();
        let headers = lines.iter().fold(String::new(), |head, line| head + "authorization: " + line + "\r\n");
        // Both limits are charged or neither.
        let mut check = |listener: &str, status: u16, left: Option<&str>| {
            let left = left.filter(|_| status == 200).map(remaining);
            let wanted = match expected {
                TokenRead::Valid => {
                    charged += 1;
                    (200, Some(1000 - charged))
                }
                TokenRead::Malformed => (429, None),
                TokenRead::Absent => (200, None),
            };
            assert_eq!((status, left), wanted, "{listener}: {lines:?}");
        };
        wire.send(format!("GET / HTTP/1.1\r\nhost: a\r\n{headers}\r\n"));
        let answer = wire.response();
        check("proxy", answer.status(), answer.header("ratelimit"));
        // Envoy joins lines with a comma.
        if lines.len() < 2 {
            let headers: Vec<(&str, &str)> = lines.iter().map(|line| ("authorization", line.as_str())).collect();
            let answer = envoy.check(authorization::request("192.0.2.1", "/", &headers)).await.unwrap().into_inner();
            let (status, left) = authorization::seen(&answer, "ratelimit");
            check("grpc", u16::try_from(status).unwrap(), left.as_deref());
        }
    }
    // Python and JavaScript read headers as Latin-1, in which this is a blank.
    wire.send([b"GET / HTTP/1.1\r\nhost: a\r\nauthorization: Bearer\xa0", token.as_bytes(), b"\r\n\r\n"].concat());
    assert_eq!(wire.response().header("ratelimit").map(remaining), Some(999 - charged));
}

/// The tokens left, by the header `ratelimit`, in which all limits have the same number.
fn remaining(header: &str) -> u64 {
    let left: Vec<&str> = header.split(";r=").skip(1).map(|left| left.split(',').next().unwrap()).collect();
    assert!(left.len() == 2 && left[0] == left[1], "{header}");
    left[0].parse().unwrap()
}

/// By default, all tokens that are not valid share a bucket.
#[test]
fn tokens_that_are_not_valid_share_a_bucket() {
    let key = TestKey::es256("k1");
    let rules = format!(
        "jwt: {{ main: {{ issuer: '{ISSUER}', audiences: [api], jwks_file: keys.json }} }}\n\
         limits: {{ PerUser: {{ by: {{ claim: sub }}, burst: 2 }} }}\n"
    );
    let weir = Weir::serve_with(&rules, &[], |_, directory: &Path| {
        std::fs::write(directory.join("keys.json"), key_set(&[&key])).unwrap();
    });
    let token = |user: &str| bearer(&key.token("k1", &claims(user)));
    let get = |lines: &[&str]| {
        let lines: Vec<(&str, &str)> = lines.iter().map(|line| ("authorization", *line)).collect();
        weir.get("/", &lines).status()
    };
    let (one, other) = (token("a"), token("b"));
    let (one, other) = (one.as_str(), other.as_str());
    assert_eq!(get(&[one, "Basic YTpi"]), 200);
    assert_eq!(get(&["Bearer x.y.z"]), 200);
    assert_eq!(get(&[other, "x"]), 429);
    assert_eq!([get(&[one]), get(&[one]), get(&[one]), get(&[other]), get(&[])], [200, 200, 429, 200, 200]);
}

#[test]
fn a_condition_on_a_claim_and_an_id_of_the_body_work_together() {
    let key = TestKey::es256("k1");
    let rules = format!(
        "jwt: {{ main: {{ issuer: '{ISSUER}', audiences: [api], jwks_file: keys.json }} }}\n\
         limits: {{ Model: {{ match: {{ claims: {{ plan: free }} }}, by: {{ body: /model }}, missing: deny, burst: 1 }} }}"
    );
    let weir = Weir::serve_with(&rules, &[], |_, directory: &Path| {
        std::fs::write(directory.join("keys.json"), key_set(&[&key])).unwrap();
    });
    let post = |plan: &str, model: &str| {
        let mut claims = claims("a");
        claims["plan"] = plan.into();
        let (token, body) = (key.token("k1", &claims), json!({ "model": model }).to_string());
        let mut wire = weir.connect();
        wire.send(format!(
            "POST / HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {token}\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n\r\n{body}",
            body.len()
        ));
        wire.response().status()
    };
    assert_eq!([post("free", "x"), post("free", "x"), post("free", "y"), post("paid", "x")], [200, 429, 200, 200]);
}

/// A server of keys that answers as it is told.
fn key_server(answer: &Arc<Mutex<String>>) -> (Upstream, String) {
    let answer = answer.clone();
    let server = Upstream::answering(move |_| answer.lock().clone());
    let url = format!("http://{}/keys", server.address);
    (server, url)
}

#[test]
fn keys_come_over_tls_from_a_server_that_is_trusted() {
    let (authority, stranger, key) = (Authority::new(), Authority::new(), TestKey::es256("k1"));
    authority.sign("keys", &["127.0.0.1"]);
    let server = Upstream::answering({
        let keys = ok(&key_set(&[&key]));
        move |_| keys.clone()
    });
    let (upstream, certificate) = (format!("http://{}", server.address), authority.file("keys.pem"));
    let flags = ["--upstream", &upstream, "--tls-cert", &certificate, "--tls-key", &authority.file("keys.key")];
    let front = Weir::serve(WIDE, &flags);
    for (trusted, expected) in [(Some(&authority), 200), (Some(&stranger), 429), (None, 429)] {
        let file = trusted.map(|authority| format!("jwks_ca_file: '{}', ", authority.file("ca.pem")));
        let issuer = format!("issuer: '{ISSUER}', audiences: [api], {}", file.unwrap_or_default());
        let url = format!("https://{}/keys", front.proxy);
        let weir = Weir::serve(&format!("jwt: {{ main: {{ {issuer} jwks_url: '{url}' }} }}\n{LIMITS}"), &[]);
        if expected == 200 {
            eventually("the keys are there", || keys_error(&weir).map_or(Ok(()), Err));
        } else {
            weir.until_logged("certificate");
            assert!(keys_error(&weir).is_some());
        }
        let token = bearer(&key.token("k1", &claims("a")));
        assert_eq!(weir.get("/", &[("authorization", &token)]).status(), expected);
    }
}

#[test]
fn the_agent_goes_by_claims() {
    let key = TestKey::es256("k1");
    let weir = Weir::serve_with(&with_file("[api]"), &["--spoe", "127.0.0.1:0"], |_, directory: &Path| {
        std::fs::write(directory.join("keys.json"), key_set(&[&key])).unwrap();
    });
    let mut haproxy = Peer::connect(weir.listener("spoe"));
    haproxy.greet();
    for (id, user, denied) in [(1, "a", false), (2, "a", true), (3, "b", false), (4, "", true)] {
        let token = if user.is_empty() { "x.y.z".to_owned() } else { key.token("k1", &claims(user)) };
        let lines = format!("host: a\r\nauthorization: {}\r\n\r\n", bearer(&token));
        // A length of two bytes: from 240 on, the first one has the lowest four bits.
        let length = if lines.len() < 240 {
            vec![u8::try_from(lines.len()).unwrap()]
        } else {
            vec![0xf0 | u8::try_from(lines.len() % 16).unwrap(), u8::try_from((lines.len() - 240) / 16).unwrap()]
        };
        haproxy.send(&question(id, &[string(b"headers"), vec![8], length, lines.into_bytes()].concat()));
        assert_eq!(haproxy.answer(), (id, denied), "{user}");
    }
}

fn keys_error(weir: &Weir) -> Option<String> {
    let page: Value = serde_json::from_str(weir.admin("/readyz").text()).unwrap();
    page["keys_error"].as_str().map(str::to_owned)
}

#[test]
fn keys_come_by_url_rotate_and_outlive_their_server() {
    let (old, new) = (TestKey::es256("k1"), TestKey::es256("k2"));
    let answer = Arc::new(Mutex::new("HTTP/1.1 503 Down\r\ncontent-length: 0\r\n\r\n".to_owned()));
    let (server, url) = key_server(&answer);
    let weir = Weir::serve(&with_url(&url), &[]);
    let get = |key: &TestKey, kid: &str, user: &str| {
        weir.get("/", &[("authorization", &bearer(&key.token(kid, &claims(user))))]).status()
    };
    eventually("the missing keys are told", || keys_error(&weir).ok_or("no error"));
    assert_eq!(get(&old, "k1", "a"), 429);
    weir.until_logged("expected status 200, got 503");

    *answer.lock() = ok(&key_set(&[&old]));
    eventually("the keys are there", || keys_error(&weir).map_or(Ok(()), Err));
    assert_eq!(get(&old, "k1", "a"), 200);

    // A rotation is noticed by the first token with an unknown key.
    *answer.lock() = ok(&key_set(&[&old, &new]));
    let mut user = 0;
    eventually("the new key is there", || {
        user += 1;
        if get(&new, "k2", &format!("n{user}")) == 200 { Ok(()) } else { Err(user) }
    });
    assert_eq!(get(&old, "k1", "b"), 200);

    // Whatever the server says now, the keys stay, and a flood of unknown keys hardly reaches it.
    let failures = || weir.metric("weir_jwks_fetches_total{result=\"failure\"}");
    let (fetched, failed) = (server.requests().len(), failures());
    *answer.lock() = "HTTP/1.1 302 Found\r\nlocation: file:///etc/passwd\r\ncontent-length: 0\r\n\r\n".to_owned();
    eventually("the redirect is rejected", || {
        user += 1;
        assert_eq!(get(&new, "../../keys", &format!("f{user}")), 429);
        if failures() > failed { Ok(()) } else { Err(user) }
    });
    assert!(user > 10 && server.requests().len() - fetched <= 3, "{user} tokens, {} fetches", server.requests().len());
    assert_eq!((get(&old, "k1", "c"), get(&new, "k2", "d")), (200, 200));
    weir.until_logged("the last good ones stay in force");
}

#[test]
fn hostile_key_servers_give_nothing() {
    let key = TestKey::es256("k1");
    let huge = format!("HTTP/1.1 200 OK\r\ncontent-length: 99999999\r\n\r\n{}", " ".repeat(200_000));
    for (answer, reason) in [
        (ok("<html>"), "invalid JSON"),
        (ok("{\"keys\":[{\"kty\":\"oct\",\"k\":\"c2VjcmV0\"}]}"), "shared secret"),
        (ok(&format!("{}{}", "[".repeat(9000), "]".repeat(9000))), "recursion limit"),
        (huge, "length limit exceeded"),
        ("HTTP/1.1 301 Moved\r\nlocation: http://127.0.0.1/\r\ncontent-length: 0\r\n\r\n".into(), "redirects"),
    ] {
        let (_server, url) = key_server(&Arc::new(Mutex::new(answer)));
        let weir = Weir::serve(&with_url(&url), &[]);
        eventually(reason, || if weir.log().contains(reason) { Ok(()) } else { Err(weir.log()) });
        assert_eq!(weir.get("/", &[("authorization", &bearer(&key.token("k1", &claims("a"))))]).status(), 429);
    }
}

#[test]
fn a_changed_key_file_is_in_force_and_a_broken_one_is_not() {
    let (old, new) = (TestKey::es256("k1"), TestKey::eddsa("k2"));
    let weir = Weir::serve_with(&with_file("[]"), &[], |_, directory: &Path| {
        std::fs::write(directory.join("keys.json"), key_set(&[&old])).unwrap();
    });
    let get = |key: &TestKey, kid: &str, user: &str| {
        weir.get("/", &[("authorization", &bearer(&key.token(kid, &claims(user))))]).status()
    };
    assert_eq!((get(&old, "k1", "a"), get(&new, "k2", "b")), (200, 429));
    let write = |text: &str| std::fs::write(weir.directory().join("keys.json"), text).unwrap();
    write("{}");
    eventually("the broken file is told", || {
        let log = weir.log();
        if log.contains("not a key set") { Ok(()) } else { Err(log) }
    });
    assert_eq!(get(&old, "k1", "c"), 200);
    write(&key_set(&[&new]));
    let mut user = 0;
    eventually("the new keys are in force", || {
        user += 1;
        let status = get(&old, "k1", &format!("d{user}"));
        if status == 429 { Ok(()) } else { Err(status) }
    });
    assert_eq!(get(&new, "k2", "e"), 200);
}

#[test]
fn commands_know_tokens_and_claims() {
    let key = TestKey::es256("k1");
    let directory = tempfile::tempdir().unwrap();
    let tests = "
tests:
  users have their own bucket:
    - { get: /, claims: { sub: u1 }, expect: allow }
    - { get: /, claims: { sub: u1 }, expect: deny }
    - { get: /, claims: { sub: u2, app: { plan: free }, weight: 5 }, expect: { deny: Free } }
    - { get: /, expect: { deny: PerUser } }
";
    std::fs::write(directory.path().join("limits.yaml"), with_file("[api]") + tests).unwrap();
    std::fs::write(directory.path().join("keys.json"), key_set(&[&key])).unwrap();
    let run = |arguments: &[&str]| run_in(directory.path(), arguments);
    let tested = run(&["test", "limits.yaml"]);
    assert!(tested.code == Some(0) && tested.text().contains("1 passed"), "{}", tested.text());
    let header = format!("authorization: {}", bearer(&key.token("k1", &claims("u7"))));
    let explained = run(&["explain", "GET", "http://a.example/", "-H", &header]).text();
    for part in ["token: valid", "u7", "the claim `/app/plan` is absent, the limit requires it to be `free`"] {
        assert!(explained.contains(part), "`{part}` is not in {explained}");
    }
    let expired = key.token("k1", &json!({ "iss": ISSUER, "aud": "api", "exp": 5 }));
    let explained = run(&["explain", "GET", "/", "-H", &format!("authorization: {}", bearer(&expired))]).text();
    assert!(explained.contains("token: expired") && explained.contains("(malformed)"), "{explained}");
}

#[test]
fn keys_that_cannot_be_used_are_counted_and_told() {
    let key = TestKey::es256("k1");
    let good: Value = serde_json::from_str(&key_set(&[&key])).unwrap();
    let set = json!({ "keys": [{ "kty": "oct", "k": "c2VjcmV0" }, good["keys"][0], { "kty": "RSA", "use": "enc" }] });
    let told =
        "2 of 3 keys cannot be used: key 1 is a shared secret (`oct`), which is not supported, key 3 is for `enc`";
    let (_server, url) = key_server(&Arc::new(Mutex::new(ok(&set.to_string()))));
    let weir = Weir::serve(&with_url(&url), &[]);
    weir.until_logged(told);
    crate::support::becomes("they are counted", 2, || weir.metric("weir_jwks_unusable_keys"));
    eventually("the other one is used", || {
        let answer = weir.get("/", &[("authorization", &bearer(&key.token("k1", &claims("a"))))]);
        if answer.status() == 200 { Ok(()) } else { Err(answer) }
    });

    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("limits.yaml"), with_file("[api]")).unwrap();
    std::fs::write(directory.path().join("keys.json"), set.to_string()).unwrap();
    let checked = run_in(directory.path(), &["check", "limits.yaml"]);
    assert_eq!(checked.code, Some(0), "{}", checked.text());
    assert!(checked.err.contains(told) && checked.err.contains("[unusable-key]"), "{}", checked.err);
    std::fs::write(directory.path().join("keys.json"), good.to_string()).unwrap();
    let checked = run_in(directory.path(), &["check", "limits.yaml"]);
    assert!(!checked.err.contains("unusable-key"), "{}", checked.err);
}

/// A request's rate is in its token. With a leeway for slow machines, nothing comes back within the test.
#[test]
fn a_verified_claim_brings_the_numbers_of_its_limit() {
    let (key, stranger) = (TestKey::rsa("k1", true), TestKey::eddsa("k1"));
    let keys = key_set(&[&key]);
    let rules = format!(
        "jwt: {{ main: {{ issuer: '{ISSUER}', audiences: [api], jwks_file: keys.json }} }}\nlimits:\n  PerUser: {{ by: {{ claim: \
         sub }}, count: {{ claim: /limits/rpm, at_most: 5, default: 2 }}, period: 100h }}\n"
    );
    let redis = RedisServer::plain();
    for store in ["memory", &redis.url()] {
        let flags = ["--check", "127.0.0.1:0", "--store", store];
        let weir = Weir::serve_with(&rules, &flags, |_, directory: &Path| {
            std::fs::write(directory.join("keys.json"), &keys).unwrap();
        });
        weir.until_connected();
        let with = |user: &str, rate: Value| {
            let mut claims = claims(user);
            claims["limits"] = json!({ "rpm": rate });
            claims
        };
        let passed = |token: &str| (0..7).filter(|_| check(&weir, token) == 200).count();
        for (user, rate, expected) in [
            ("three", json!(3), 3),
            ("text", json!("4"), 4),
            ("capped", json!(50), 5),
            ("zero", json!(0), 2),
            ("odd", json!("many"), 2),
            ("negative", json!(-3), 2),
        ] {
            assert_eq!(passed(&key.token("k1", &with(user, rate))), expected, "{user} on {store}");
        }
        assert_eq!(passed(&key.token("k1", &claims("nobody"))), 2, "without the claim, on {store}");
        assert_eq!(passed(&stranger.token("k1", &with("forged", json!(5)))), 2, "a forged token, on {store}");
        // What was used stays used: two of three, and so two of five.
        let token = |rate: u64| key.token("k1", &with("mover", json!(rate)));
        assert_eq!([0; 2].map(|_| check(&weir, &token(3))), [200; 2]);
        assert_eq!(passed(&token(5)), 3, "on {store}");
        assert_eq!(passed(&token(3)), 0, "on {store}");
        let counted = ["given", "capped", "missing", "malformed"]
            .map(|result| weir.metric(&format!("weir_request_numbers_total{{limit=\"PerUser\",result=\"{result}\"}}")));
        assert_eq!(counted, [30, 7, 7, 28], "on {store}");
    }
}
