//! Recordings of what rules see: no id in clear, every listener, one at a time, and an end whatever the client does.

use std::collections::HashSet;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use serde_json::{Value, json};

use super::{TOKEN, ask};
use crate::support::binary;
use crate::support::weir::Weir;
use crate::support::{PATIENCE, becomes};

const RULES: &str = "\
limits:
  PerAddress: { by: ip, burst: 1000 }
  PerAccount:
    match: { path: '/v1/{tenant}/orders' }
    by: [{ header: x-account, as: integer }, { path: tenant }]
    burst: 2
  PerSession: { match: { path: /session }, by: { cookie: sid }, burst: 1000 }
  PerKey: { match: { path: /key }, by: { query: key }, burst: 1000 }
  Free: { match: { headers: { x-plan: free } }, by: { header: authorization }, burst: 1000 }
  PerUser: { match: { domain: api, descriptor: { user: '*' } }, by: { descriptor: user }, burst: 1 }
overrides:
  PerAccount:4711:acme: { burst: 1 }
";

fn serve() -> Weir {
    let flags = ["--admin-token", TOKEN, "--grpc", "127.0.0.1:0", "--trusted-proxies", "127.0.0.1", "--workers", "1"];
    Weir::serve(RULES, &flags)
}

/// A recording that is read line by line. It ends when this is dropped.
pub(super) struct Recording(BufReader<TcpStream>);

impl Recording {
    pub(super) fn start(weir: &Weir, body: &str) -> Self {
        let mut stream = TcpStream::connect(weir.admin).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let head = format!(
            "POST /record HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {TOKEN}\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(head.as_bytes()).unwrap();
        Self(BufReader::new(stream))
    }

    /// The next line of JSON. Each chunk has whole lines.
    pub(super) fn next(&mut self) -> Value {
        let mut line = String::new();
        loop {
            line.clear();
            assert!(self.0.read_line(&mut line).unwrap() > 0, "the stream has ended");
            if line.starts_with('{') {
                return serde_json::from_str(&line).unwrap();
            }
        }
    }

    /// The next line about a request.
    pub(super) fn request(&mut self) -> Value {
        std::iter::repeat_with(|| self.next()).find(|line| line.get("at_us").is_some()).unwrap()
    }
}

async fn call(weir: &Weir, user: &str) {
    let entry = Entry { key: "user".to_owned(), value: user.to_owned() };
    let descriptor = RateLimitDescriptor { entries: vec![entry], ..RateLimitDescriptor::default() };
    let question = RateLimitRequest { domain: "api".to_owned(), descriptors: vec![descriptor], hits_addend: 1 };
    let mut client = RateLimitServiceClient::connect(format!("http://{}", weir.listener("grpc"))).await.unwrap();
    client.should_rate_limit(question).await.unwrap();
}

#[test]
fn a_recording_has_every_request_and_no_id() {
    let weir = serve();
    let mut recording = Recording::start(&weir, r#"{"for": "1h"}"#);
    let head = recording.next();
    assert_eq!(head["weir_recording"], 1);
    assert_eq!(head["headers"], json!(["authorization", "x-account", "x-plan"]));
    assert_eq!((&head["cookies"], &head["query"], &head["uncertain"]), (&json!(["sid"]), &json!(["key"]), &json!([])));
    assert_eq!(ask(&weir, "POST", "/record", r#"{"for": "1h"}"#).0, 409);

    let orders = |account: &str, tenant: &str| {
        weir.get(
            &format!("/v1/{tenant}/orders?page=31337"),
            &[("x-account", account), ("x-forwarded-for", "192.0.2.77")],
        )
    };
    for (account, verdict, by) in [
        ("90210", "allowed", None),
        ("+90210", "allowed", None),
        ("90210", "denied", Some("PerAccount")),
        ("31415", "allowed", None),
    ] {
        orders(account, "hooli");
        let line = recording.request();
        assert_eq!((line["verdict"].as_str(), line["by"].as_str()), (Some(verdict), by), "{line}");
    }
    let mut lines = Vec::new();
    let mut recorded = |recording: &mut Recording| {
        let line = recording.request();
        lines.push(line.to_string());
        line
    };
    let parts = |line: &Value| (line["client"].clone(), line["target"].clone(), line["headers"].clone());
    orders("90210", "hooli");
    let first = recorded(&mut recording);
    orders("90210", "hooli");
    assert_eq!(parts(&recorded(&mut recording)), parts(&first), "an id has one stand-in");
    assert_eq!(first["method"], "GET");
    let target = first["target"].as_str().unwrap();
    assert!(target.starts_with("/v1/") && target.ends_with("/orders"), "{target}");
    assert!(first["headers"][0][1].as_str().unwrap().parse::<u64>().is_ok(), "an integer stays one: {first}");
    assert!(first["client"].as_str().unwrap().parse::<std::net::Ipv4Addr>().is_ok(), "{first}");

    orders("4711", "acme");
    let named = recorded(&mut recording);
    assert_eq!(
        (&named["headers"][0][1], &named["target"]),
        (&json!("4711"), &json!("/v1/acme/orders")),
        "an override names it"
    );
    weir.get(
        "/session",
        &[("cookie", "theme=dark; sid=s3ss1on"), ("authorization", "Bearer t0ken"), ("x-plan", "free")],
    );
    let session = recorded(&mut recording);
    assert_eq!(session["headers"][1], json!(["x-plan", "free"]), "rules compare it");
    assert!(session["headers"][2][1].as_str().unwrap().starts_with("sid="), "{session}");
    weir.get("/key?key=k3y&other=1", &[]);
    recorded(&mut recording);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for verdict in ["allowed", "denied"] {
        runtime.block_on(call(&weir, "robert"));
        let line = recorded(&mut recording);
        assert_eq!((&line["domain"], &line["verdict"]), (&json!("api"), &json!(verdict)));
        assert_eq!(line["descriptors"][0][0][0], "user");
    }
    for line in &lines {
        for id in ["90210", "31337", "192.0.2.77", "hooli", "s3ss1on", "dark", "t0ken", "k3y", "robert"] {
            assert!(!line.contains(id), "{id} is in {line}");
        }
    }
    drop(recording);
    becomes("the client has left, so another recording may start", 200, || ask_status(&weir, r#"{"for": "1ms"}"#));
}

fn ask_status(weir: &Weir, body: &str) -> u64 {
    let headers = [("authorization", "Bearer s3cret")];
    super::ask_with(weir, "POST", "/record", &headers, body).status().into()
}

#[test]
fn a_share_keeps_all_requests_of_some_clients() {
    let weir = serve();
    let mut recording = Recording::start(&weir, r#"{"for": "1h", "share": "50%"}"#);
    assert_eq!(recording.next()["share_percent"], 50.0);
    let mut connection = weir.connect();
    for _ in 0..2 {
        for client in 0..40 {
            connection.get_with("/", &[("x-forwarded-for", &format!("192.0.2.{client}"))]);
        }
    }
    let counts = |recording: &mut Recording| {
        let mut kept = Vec::new();
        loop {
            let line = recording.next();
            if line.get("at_us").is_some() {
                kept.push(line["client"].as_str().unwrap().to_owned());
            } else if line["so_far"]["kept"].as_u64().unwrap() + line["so_far"]["outside_the_share"].as_u64().unwrap()
                == 80
            {
                return kept;
            }
        }
    };
    let kept = counts(&mut recording);
    let clients: HashSet<&String> = kept.iter().collect();
    assert!((5..=35).contains(&clients.len()), "{} of 40", clients.len());
    assert_eq!(kept.len(), clients.len() * 2, "both requests of each");
}

#[test]
fn the_command_writes_a_file_and_says_what_is_in_it() {
    let weir = serve();
    let admin = weir.admin.to_string();
    let file = weir.directory().join("recording.jsonl");
    let record = |more: &[&str]| {
        let words = ["record", "--admin", &admin, "--output", file.to_str().unwrap()];
        binary::run(&[&words[..], more].concat())
    };
    let done = record(&["--for", "10ms", "--admin-token", TOKEN]);
    assert_eq!((done.code, done.out.as_str(), done.err.as_str()), (Some(0), "", "0 requests recorded\n"));
    let text = std::fs::read_to_string(&file).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((&lines[0]["weir_recording"], &lines[1]["ended"]), (&json!(1), &json!("deadline")));

    let ended = std::thread::scope(|scope| {
        let command = scope.spawn(|| record(&["--for", "10m", "--max-size", "1KiB", "--admin-token", TOKEN]));
        weir.until_logged("for 600s has started");
        while !command.is_finished() {
            weir.get("/", &[]);
        }
        command.join().unwrap()
    });
    assert!(ended.code == Some(0) && ended.err.ends_with("; ended at --max-size\n"), "{ended:?}");
    assert!(std::fs::metadata(&file).unwrap().len() < 2_048);

    for (more, code, part) in [
        (&["--for", "1s"][..], 1, "a change needs a token"),
        (&["--for", "1s", "--admin-token", "wrong"], 1, "unknown token"),
        (&["--for", "25h", "--admin-token", TOKEN], 1, "at most 1 days"),
        (&["--for", "1s", "--share", "ten", "--admin-token", TOKEN], 1, "expected a percentage"),
        (&["--for", "0s"], 2, "longer than 0"),
        (&["--for", "1s", "--max-size", "1MB"], 2, "a size such as 64MiB"),
        (&[], 2, "--for"),
    ] {
        let failed = record(more);
        assert!(failed.code == Some(code) && failed.err.contains(part), "{more:?}: {failed:?}");
    }
}

const SIMULATED: &str = "\
limits:
  PerAddress: { by: ip/64, burst: 9 }
  PerAccount: { match: { path: '/v1/{tenant}' }, by: [{ header: x-account, as: integer }, { path: tenant }], burst: 3 }
  PerSession: { match: { path: /session }, by: { cookie: sid }, algorithm: fixed_window, count: 4, period: 10h }
  PerKey: { match: { path: /key }, by: { query: key }, algorithm: sliding_log, count: 5, period: 10h }
  Inside: { match: { cidr: 10.1.0.0/16 }, by: global, burst: 12 }
overrides:
  PerAccount:7:acme: { burst: 6 }
  PerAddress:10.1.0.9: { unlimited: true }
";

/// Sends requests of several clients; returns how many were denied.
fn send(weir: &Weir) -> u64 {
    let paths = ["/", "/session", "/key?key=a&page=2", "/key?key=b", "/v1/acme", "/v1/hooli"];
    let mut connection = weir.connect();
    let mut denied = 0;
    for number in 0..150_usize {
        let client = match number % 4 {
            0 => format!("192.0.2.{}", number % 5),
            1 => format!("2001:db8::{:x}", number % 3),
            _ => format!("10.1.0.{}", 7 + number % 5),
        };
        let (account, session) = ((number % 7 + 4).to_string(), format!("sid=s{}", number % 3));
        let headers = [("x-forwarded-for", &*client), ("x-account", &*account), ("cookie", &*session)];
        denied += u64::from(connection.get_with(paths[number % 6], &headers).status() == 429);
    }
    denied
}

#[test]
fn a_recording_is_simulated_to_the_same_denials() {
    let weir = Weir::serve(SIMULATED, &["--admin-token", TOKEN, "--trusted-proxies", "127.0.0.1"]);
    let mut recording = Recording::start(&weir, r#"{"for": "1h"}"#);
    let mut lines = recording.next().to_string() + "\n";
    let denied = send(&weir);
    for _ in 0..150 {
        lines.extend([recording.request().to_string(), "\n".to_owned()]);
    }
    drop(recording);
    let file = weir.directory().join("recording.jsonl");
    std::fs::write(&file, lines).unwrap();
    let limits = weir.limits_file();
    let words = ["simulate", file.to_str().unwrap(), "--limits", limits.to_str().unwrap(), "--format", "json"];
    let simulated: Value = serde_json::from_str(&binary::run(&words).out).unwrap();
    assert_eq!((&simulated["requests"], &simulated["unreadable"]), (&json!(150), &json!(0)));
    assert_eq!(simulated["denied"], denied, "{simulated}");
    assert!((20..140).contains(&denied), "{denied}");
}
