//! The log filter, changed through the admin API.

use serde_json::{Value, json};

use super::lines;
use crate::support::eventually;
use crate::support::server::WIDE;
use crate::support::weir::Weir;
use crate::support::wire::Wire;

/// The log line for an admin client that does not speak HTTP, at `debug` only.
const DETAIL: &str = "an admin connection ended: invalid HTTP method parsed";

fn ask(weir: &Weir, method: &str, token: Option<&str>, body: &str) -> (u16, Value) {
    let token = token.map(|token| format!("authorization: Bearer {token}\r\n")).unwrap_or_default();
    let mut wire = Wire::connect(weir.admin);
    wire.send(format!(
        "{method} /log HTTP/1.1\r\nhost: localhost\r\n{token}user-agent: a test\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    ));
    let answer = wire.response();
    (answer.status(), serde_json::from_str(answer.text()).unwrap())
}

/// Sends bytes other than HTTP to the admin listener, and waits until it has noticed.
fn provoke(weir: &Weir) {
    let mut wire = Wire::connect(weir.admin);
    wire.send("\u{1}\r\n\r\n");
    while wire.head().is_some() {}
}

fn serve(flags: &[&str]) -> Weir {
    Weir::serve(WIDE, &[&["--admin-token", "s3cret"], flags].concat())
}

#[test]
fn a_filter_holds_until_it_is_taken_back() {
    let weir = serve(&[]);
    let usual = json!({"filter": "info", "flag": "info", "until": null, "left_ms": null, "by": null});
    assert_eq!(ask(&weir, "GET", None, ""), (200, usual.clone()));
    provoke(&weir);
    let (status, set) = ask(&weir, "PUT", Some("s3cret"), r#"{"filter": "info,weir=debug"}"#);
    assert_eq!((status, &set["filter"], &set["by"]), (200, &json!("info,weir=debug"), &json!("127.0.0.1")));
    let left = set["left_ms"].as_u64().unwrap();
    assert!((3_590_000..=3_600_000).contains(&left), "an hour unless something else is asked: {set}");
    assert!(set["until"].as_str().unwrap().ends_with('Z'), "{set}");
    provoke(&weir);
    weir.until_logged(DETAIL);
    assert_eq!(ask(&weir, "DELETE", Some("s3cret"), ""), (200, usual.clone()));
    provoke(&weir);
    // A second marker: earlier lines are in the log when it is.
    assert_eq!(ask(&weir, "DELETE", Some("s3cret"), ""), (200, usual));
    let again = "the log's filter was reset";
    eventually("both are told", || match lines(&weir, again) {
        told if told.len() == 2 => Ok(()),
        told => Err(told),
    });
    assert_eq!(lines(&weir, DETAIL).len(), 1, "{}", weir.log());
    let told = lines(&weir, "the log's filter was changed for 3600s");
    assert_eq!((&told[0]["by"], &told[0]["agent"]), (&json!("127.0.0.1"), &json!("a test")));
    assert_eq!(weir.metric("weir_admin_writes_total{op=\"log\",result=\"done\"}"), 3);
}

#[test]
fn a_filter_that_nobody_takes_back_ends_by_itself() {
    let weir = serve(&["--log", "info,weir=info"]);
    assert_eq!(ask(&weir, "PUT", Some("s3cret"), r#"{"filter": "debug", "for": "50ms"}"#).0, 200);
    eventually("it has ended", || match ask(&weir, "GET", None, "").1 {
        state if state["filter"] == "info,weir=info" && state["until"].is_null() => Ok(()),
        state => Err(state),
    });
    weir.until_logged("the log's filter expired and was reset");
    // A new filter replaces the earlier one and its time.
    assert_eq!(ask(&weir, "PUT", Some("s3cret"), r#"{"filter": "debug", "for": "50ms"}"#).0, 200);
    assert_eq!(ask(&weir, "PUT", Some("s3cret"), r#"{"filter": "trace", "for": "1h"}"#).0, 200);
    eventually("the time of the first is over", || match ask(&weir, "GET", None, "").1 {
        state if state["left_ms"].as_u64().is_some_and(|left| left < 3_599_900) => {
            assert_eq!(state["filter"], "trace");
            Ok(())
        }
        state => Err(state),
    });
    assert_eq!(lines(&weir, "the log's filter expired and was reset").len(), 1);
}

#[test]
fn whoever_makes_the_log_silent_is_in_it() {
    let weir = serve(&[]);
    assert_eq!(ask(&weir, "PUT", Some("s3cret"), r#"{"filter": "off", "for": "1m"}"#).0, 200);
    weir.until_logged("the log's filter was changed for 60s");
    assert_eq!(ask(&weir, "PUT", Some("s3cret"), r#"{"filter": "info", "for": "2m"}"#).0, 200);
    weir.until_logged("the log's filter was changed for 120s");
}

#[test]
fn only_who_has_a_token_changes_the_filter_and_only_to_one_that_is() {
    let weir = serve(&[]);
    for (method, token, body, expected, part) in [
        ("PUT", None, r#"{"filter": "debug"}"#, 401, "a change needs a token"),
        ("PUT", Some("guess"), r#"{"filter": "debug"}"#, 401, "unknown token"),
        ("DELETE", None, "", 401, "a change needs a token"),
        ("POST", Some("s3cret"), "{}", 405, "use GET, HEAD, PUT, DELETE instead of POST"),
        ("PUT", Some("s3cret"), "{}", 400, "`filter` is missing"),
        ("PUT", Some("s3cret"), r#"{"filter": 1}"#, 400, "`filter`: expected text, found 1"),
        ("PUT", Some("s3cret"), "debug", 400, "invalid JSON"),
        ("PUT", Some("s3cret"), r#"{"filter": "debg"}"#, 400, "`filter`: unknown level `debg`: did you mean `debug`?"),
        ("PUT", Some("s3cret"), r#"{"filter": "weir"}"#, 400, "as in `weir::store=debug`"),
        (
            "PUT",
            Some("s3cret"),
            r#"{"filter": "debug", "for": "8d"}"#,
            400,
            "at most 7 days; for good, start Weir with",
        ),
        ("PUT", Some("s3cret"), r#"{"filter": "debug", "for": "10"}"#, 400, "has no unit"),
        ("PUT", Some("s3cret"), r#"{"filter": "debug", "until": "10"}"#, 400, "unknown member `until`"),
    ] {
        let (status, answer) = ask(&weir, method, token, body);
        let detail = answer["detail"].as_str().unwrap_or_default();
        assert!(status == expected && detail.contains(part), "{method} {body}: {status} {answer}");
    }
    assert_eq!(ask(&weir, "GET", None, "").1["filter"], "info");
    assert_eq!(weir.metric("weir_admin_writes_total{op=\"log\",result=\"unauthorized\"}"), 3);
    weir.until_logged("a change was rejected: a change needs a token");
    let without = Weir::serve(WIDE, &[]);
    let (status, answer) = ask(&without, "PUT", None, r#"{"filter": "debug"}"#);
    assert!(status == 403 && answer["detail"].as_str().unwrap().contains("--admin-token-file"), "{answer}");
}
