//! Exemptions, at every listener, in commands and beside blocks.

use serde_json::json;

use super::listeners::{ALL, at_listener};
use super::{TOKEN, done, each_store};
use crate::support::binary::run;
use crate::support::weir::Weir;

const LIMITS: &str = "\
exempt:
  - { match: { cidr: 192.0.2.0/24 }, limits: [PerClient], comment: monitoring }
  - { match: { domain: api, descriptor: { user: [alice, bob] } } }
limits:
  PerClient: { by: ip, burst: 1 }
  Posts: { match: { methods: [POST] }, by: ip, burst: 1 }
  PerUser: { match: { domain: api }, by: { descriptor: user }, burst: 1 }
";

fn serve(store: &[&str]) -> Weir {
    let listeners = ["--check", "127.0.0.1:0", "--grpc", "127.0.0.1:0"];
    let flags = ["--admin-token", TOKEN, "--trusted-proxies", "127.0.0.1/32"];
    let weir = Weir::serve(LIMITS, &[&listeners[..], &flags, store].concat());
    weir.until_connected();
    weir
}

fn get(weir: &Weir, client: &str) -> u16 {
    weir.get("/", &[("x-forwarded-for", client)]).status()
}

fn counted(weir: &Weir, limit: &str, result: &str) -> u64 {
    weir.metric(&format!("weir_decisions_total{{limit=\"{limit}\",result=\"{result}\"}}"))
}

#[test]
fn every_listener_exempts() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    each_store(|store, _| {
        let weir = serve(store);
        for listener in ALL {
            let statuses = [0; 3].map(|_| runtime.block_on(at_listener(&weir, listener)).status);
            assert_eq!(statuses, [200; 3], "{listener}");
        }
        for (limit, exempt) in [("PerClient", 3 * (ALL.len() as u64 - 1)), ("PerUser", 3), ("Posts", 0)] {
            assert_eq!(["exempt", "allowed"].map(|result| counted(&weir, limit, result)), [exempt, 0], "{limit}");
        }
        assert_eq!([0; 2].map(|_| get(&weir, "198.51.100.1")), [200, 429]);
    });
}

#[test]
fn a_block_does_not_deny_what_is_exempt() {
    each_store(|store, _| {
        let weir = serve(store);
        for bucket in ["PerClient:192.0.2.7", "PerClient:198.51.100.1"] {
            done(&weir, "PUT", &format!("/buckets/{bucket}/block"), r#"{"for": "1h"}"#);
        }
        assert_eq!(["192.0.2.7", "198.51.100.1"].map(|client| get(&weir, client)), [200, 429]);
        let question = json!({ "method": "GET", "url": "http://a/", "ip": "192.0.2.7" }).to_string();
        let told = done(&weir, "POST", "/explain", &question);
        let because = "the request is exempt, by exempt[0] at limits.yaml:2 (monitoring)";
        assert_eq!(told["limits"][0], json!({ "name": "PerClient", "applies": false, "because": because }));
    });
}

#[test]
fn commands_show_exemptions() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let limits = file("limits.yaml", LIMITS);
    let said = run(&["explain", "GET", "/", "--ip", "192.0.2.7", "--limits", &limits]);
    let expected = format!(
        "PerClient: does not apply\n  because     the request is exempt, by exempt[0] at {limits}:2 (monitoring)"
    );
    assert!(squeezed(&said.out).contains(&squeezed(&expected)), "{said:?}");

    let line = |client: &str| format!("{client} - - [22/Nov/2026:10:00:00 +0000] \"GET / HTTP/1.1\" 200 5\n");
    let log = file("access.log", &[line("192.0.2.7").repeat(5), line("198.51.100.1").repeat(3)].concat());
    let said = run(&["simulate", &log, "--limits", &limits, "--format", "json"]);
    let report: serde_json::Value = serde_json::from_str(&said.out).unwrap_or_else(|error| panic!("{error}: {said:?}"));
    let limit = &report["limits"]["PerClient"];
    assert_eq!([&limit["exempt"], &limit["requests"], &limit["denied"]], [5, 3, 2], "{limit}");

    let before = file(
        "before.yaml",
        LIMITS
            .split_once("limits:\n  PerClient")
            .map(|(_, rest)| format!("limits:\n  PerClient{rest}"))
            .as_deref()
            .unwrap(),
    );
    let said = run(&["diff", &before, &limits]);
    assert_eq!(said.code, Some(0), "{said:?}");
    assert!(said.out.contains("exempts more requests"), "{said:?}");
    assert_eq!(run(&["diff", &limits, &before]).code, Some(1));
}

fn squeezed(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
