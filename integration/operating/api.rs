//! The admin API beside buckets: limits, overrides, explanations, reloads, and who may use it.

use std::fs;

use serde_json::{Value, json};

use super::{TOKEN, ask, ask_with, serve};
use crate::support::binary;
use crate::support::weir::Weir;
use crate::support::wire::Wire;

fn get(weir: &Weir, path: &str) -> Value {
    let (status, body) = ask(weir, "GET", path, "");
    assert_eq!(status, 200, "{path}: {body}");
    body
}

#[test]
fn limits_are_told_with_their_numbers() {
    let weir = serve(&[]);
    let all = get(&weir, "/limits");
    let names: Vec<&str> =
        all["limits"].as_array().unwrap().iter().map(|limit| limit["name"].as_str().unwrap()).collect();
    assert_eq!(names[..3], ["Even", "Windows", "Log"]);
    let even = get(&weir, "/limits/Even");
    assert_eq!(even, all["limits"][0]);
    assert_eq!(even["by"], json!([{ "header": "x-id" }]));
    assert_eq!(even["match"], json!({ "paths": ["/even"] }));
    assert_eq!((&even["overrides"], &even["mode"], &even["enforced"]), (&json!(3), &json!("enforce"), &json!(true)));
    let window =
        json!({ "algorithm": "gcra", "allows": "burst 10, 1 per 1h", "burst": 10, "count": 1, "period": "1h" });
    assert_eq!(even["windows"], json!([window]));
    let (status, problem) = ask(&weir, "GET", "/limits/even", "");
    assert_eq!((status, &problem["detail"]), (404, &json!("there is no limit `even`; did you mean `Even`?")));
}

#[test]
fn overrides_are_told_page_by_page() {
    let weir = serve(&[]);
    let first = get(&weir, "/overrides?limit=Even&n=2");
    assert_eq!(first["next"], 2);
    let second = get(&weir, "/overrides?n=2&after=2");
    assert_eq!((second["overrides"].as_array().unwrap().len(), &second["next"]), (1, &Value::Null));
    let given = &first["overrides"][0];
    assert_eq!((&given["place"], &given["allows"]), (&json!("limits.yaml:16"), &json!("windows")));
    assert_eq!(given["windows"][0]["burst"], 50);
    for (query, part) in [
        ("n=0", "`n` must be a whole number from 1 to 10000"),
        ("limit=Evn", "did you mean `Even`?"),
        ("limits=Even", "unknown parameter `limits`"),
    ] {
        let (status, problem) = ask(&weir, "GET", &format!("/overrides?{query}"), "");
        assert!(status >= 400 && problem["detail"].as_str().unwrap().contains(part), "{query}: {problem}");
    }
}

#[test]
fn a_request_is_explained_as_by_the_command() {
    let weir = serve(&[]);
    let body = r#"{"method": "GET", "url": "http://a.example/rates", "headers": [["x-id", "7"], ["x-zone", "a:b"]], "ip": "192.0.2.7"}"#;
    let (status, told) = ask(&weir, "POST", "/explain", body);
    assert_eq!(status, 200, "{told}");
    let of = |name: &str| {
        told["limits"]
            .as_array()
            .unwrap()
            .iter()
            .find(|limit| limit["name"] == name)
            .unwrap_or_else(|| panic!("{name}"))
    };
    assert_eq!(of("Even")["because"], "the path is /rates, the limit covers /even");
    assert_eq!((&of("Rates")["applies"], &of("Rates")["bucket"]), (&json!(true), &json!("Rates:7:a%3Ab")));
    assert_eq!(get(&weir, "/buckets/Rates:7:a%253Ab")["bucket"], "Rates:7:a%3Ab", "its name leads to the bucket");
    let limits = weir.limits_file();
    let words = ["explain", "GET", "http://a.example/rates", "-H", "x-id: 7", "-H", "x-zone: a:b", "--ip", "192.0.2.7"];
    let said = binary::run(&[&words[..], &["--format", "json", "--limits", limits.to_str().unwrap()]].concat());
    assert_eq!(serde_json::from_str::<Value>(&said.out).unwrap(), told);
    for (body, part) in [
        ("{}", "give `url`, or `host` and `path`"),
        (r#"{"url": "/", "host": "a"}"#, "`url` stands alone"),
        (r#"{"url": "/", "ip": "x"}"#, "invalid IP address `x`"),
        (r#"{"url": "/", "headers": [["x"]]}"#, "expected a header's name and value"),
        (r#"{"uri": "/"}"#, "unknown member `uri`"),
    ] {
        let (status, problem) = ask(&weir, "POST", "/explain", body);
        assert!(status == 400 && problem["detail"].as_str().unwrap().contains(part), "{body}: {problem}");
    }
}

#[test]
fn a_reload_answers_with_its_result() {
    let weir = serve(&[]);
    let file = weir.limits_file();
    let rules = fs::read_to_string(&file).unwrap();
    assert_eq!(ask(&weir, "POST", "/reload", ""), (200, json!({ "rules": "unchanged", "limits": 10 })));
    fs::write(&file, format!("{rules}# more\n").replace("  Fixed:", "  Fixed2: { burst: 1 }\n  Fixed:")).unwrap();
    assert_eq!(ask(&weir, "POST", "/reload", ""), (200, json!({ "rules": "replaced", "limits": 11 })));
    fs::write(&file, "limits: { L: { burst: 0 } }").unwrap();
    for _ in 0..2 {
        let (status, problem) = ask(&weir, "POST", "/reload", "");
        let detail = problem["detail"].as_str().unwrap();
        assert!(status == 422 && detail.contains("limits.yaml:1:"), "{status}: {detail}");
    }
    assert_eq!(get(&weir, "/version")["rules"]["limits"], 11, "the last good rules stay in force");
    fs::write(&file, rules).unwrap();
    assert_eq!(ask(&weir, "POST", "/reload", "").0, 200);
    assert!(weir.metric("weir_admin_writes_total{op=\"reload\",result=\"done\"}") >= 3);
}

/// The status of a request with this `Host`.
fn status(weir: &Weir, host: &str, method: &str, path: &str, headers: &str) -> u16 {
    let mut wire = Wire::connect(weir.admin);
    wire.send(format!("{method} {path} HTTP/1.1\r\nhost: {host}\r\ncontent-length: 0\r\n{headers}\r\n"));
    wire.response().status()
}

/// A listener on all addresses, which is asked on loopback.
fn public(flags: &[&str]) -> Weir {
    Weir::serve(super::LIMITS, &[&["--admin", "0.0.0.0:0"], flags].concat())
}

#[test]
fn a_public_listener_keeps_ids_from_those_without_a_token() {
    let weir = public(&["--admin-token", TOKEN, "--admin-host", "weir.internal"]);
    let token = format!("authorization: Bearer {TOKEN}\r\n");
    let port = weir.admin.port();
    for (host, path, headers, expected) in [
        ("rebound.example", "/metrics", "", 200),
        ("rebound.example", "/readyz", "", 200),
        ("rebound.example", "/limits", "", 421),
        ("rebound.example", "/nothing", "", 421),
        ("rebound.example", "/limits", &*token, 200),
        ("rebound.example", "/limits", "authorization: Bearer wrong\r\n", 421),
        ("weir.internal:9090", "/limits", "", 200),
        ("WEIR.internal", "/", "", 200),
        ("10.1.2.3:9090", "/limits", "", 200),
        ("localhost", "/version", "", 200),
        ("localhost", "/buckets/Even:7", "", 401),
        ("localhost", "/blocks", "", 401),
        ("localhost", "/overrides", "", 401),
        ("localhost", "/buckets/Even:7", "authorization: Bearer wrong\r\n", 401),
        ("localhost", "/buckets/Even:7", &*token, 200),
    ] {
        assert_eq!(status(&weir, host, "GET", path, headers), expected, "{host} {path} {headers}");
    }
    let own = format!("origin: http://localhost:{port}\r\nsec-fetch-site: same-origin\r\n{token}");
    let foreign = format!("origin: http://evil.example\r\n{token}");
    let cross = format!("sec-fetch-site: cross-site\r\n{token}");
    let host = format!("localhost:{port}");
    for (headers, expected) in [(&own, 200), (&foreign, 403), (&cross, 403), (&token, 200)] {
        assert_eq!(status(&weir, &host, "POST", "/buckets/Even:7/reset", headers), expected, "{headers}");
    }
    assert_eq!(status(&weir, &host, "GET", "/metrics", &cross), 200);

    let open = public(&[]);
    assert_eq!(
        (status(&open, "localhost", "GET", "/limits", ""), status(&open, "localhost", "GET", "/blocks", "")),
        (200, 403)
    );
    let answer = ask_with(&open, "GET", "/blocks", &[], "");
    assert!(answer.text().contains("--admin-token-file FILE"), "{}", answer.text());
}
