//! Reloads of the routes: no request is lost, and a broken file changes nothing.

use std::sync::Mutex;
use std::sync::mpsc;

use super::{mirror, weir, write};
use crate::handover::{under_load, until_more};
use crate::proxy::upstream_tls::TlsUpstream;
use crate::support::upstream::{Upstream, ok};
use crate::support::weir::Weir;
use crate::support::{becomes, eventually};

fn reloads(weir: &Weir, result: &str) -> u64 {
    weir.metric(&format!("weir_routes_reloads_total{{result=\"{result}\"}}"))
}

/// Replaces the routes, and waits until they are in force.
fn replace(weir: &Weir, upstream: &Upstream, routes: &str) {
    let before = reloads(weir, "success");
    write(weir.directory(), upstream, routes);
    weir.signal("HUP");
    becomes("the routes are in force", before + 1, || reloads(weir, "success"));
}

#[test]
fn no_request_is_lost_when_routes_change() {
    let (one, two) = (mirror(), mirror());
    let route = |more: &str| format!("  /: {{ upstream: http://UPSTREAM{more} }}\n");
    let weir = weir(&one, &route(""), &["--workers", "2"]);
    under_load(weir.proxy, |answered| {
        for number in 0..6 {
            until_more(answered, 50);
            let upstream = if number % 2 == 0 { &two } else { &one };
            replace(&weir, upstream, &route(&format!(", max-body-bytes: {number}")));
            until_more(answered, 50);
        }
    });
    assert!(!one.requests().is_empty() && !two.requests().is_empty());
    assert_eq!(reloads(&weir, "failure"), 0);
}

#[test]
fn a_request_keeps_the_route_that_it_began_with() {
    let (release, released) = mpsc::channel::<()>();
    let released = Mutex::new(released);
    let slow = Upstream::answering(move |_| {
        released.lock().unwrap().recv().unwrap();
        ok("old")
    });
    let new = Upstream::saying("new");
    let route = |value: &str| {
        format!("  /: {{ upstream: http://UPSTREAM, response-headers: {{ set: {{ x-route: {value} }} }} }}\n")
    };
    let weir = weir(&slow, &route("old"), &["--workers", "1"]);
    let mut waiting = weir.connect();
    waiting.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    becomes("the upstream has it", 1, || slow.accepted());
    replace(&weir, &new, &route("new"));
    let answer = weir.get("/", &[]);
    assert_eq!((answer.text(), answer.header("x-route")), ("new", Some("new")));
    release.send(()).unwrap();
    let answer = waiting.response();
    assert_eq!((answer.text(), answer.header("x-route")), ("old", Some("old")));
    assert_eq!(waiting.get("/").text(), "new", "the next one on the same connection");
}

#[test]
fn routes_that_stay_the_same_keep_their_connections() {
    let upstream = mirror();
    let route = "  /a: { upstream: http://UPSTREAM }\n";
    let weir = weir(&upstream, route, &["--workers", "1", "--upstream-idle-timeout", "10m"]);
    assert_eq!(weir.get("/a", &[]).status(), 200);
    replace(&weir, &upstream, &format!("{route}  /b: {{ upstream: echo }}\n"));
    assert_eq!((weir.get("/a", &[]).status(), weir.get("/b", &[]).status()), (200, 200));
    assert_eq!(upstream.accepted(), 1);
    replace(&weir, &upstream, "  /a: { upstream: http://UPSTREAM, max-body-bytes: 1 }\n");
    assert_eq!((weir.get("/a", &[]).status(), weir.get("/b", &[]).status()), (200, 404));
    assert_eq!(upstream.accepted(), 2, "other options may need other connections");
}

#[test]
fn a_broken_file_changes_nothing_and_is_told_until_it_is_mended() {
    let upstream = mirror();
    let route = "  /a: { upstream: http://UPSTREAM }\n";
    let weir = weir(&upstream, route, &["--workers", "1"]);
    // Found without a signal.
    write(weir.directory(), &upstream, "  /a: { upstream: http://UPSTREAM, add-prefix: b }\n");
    becomes("the failure is counted", 1, || reloads(&weir, "failure"));
    let ready = weir.admin("/readyz");
    assert_eq!(ready.status(), 200);
    let body: serde_json::Value = serde_json::from_str(ready.text()).unwrap();
    assert_eq!((&body["status"], &body["config"]), (&"degraded".into(), &"ok".into()), "{body}");
    assert!(body["routes_error"].as_str().unwrap().starts_with("weir.yaml:2:"), "{body}");
    let health = crate::support::binary::run(&["health", "--admin", &weir.admin.to_string()]);
    assert!(health.out.contains("the routes on disk are broken"), "{}{}", health.out, health.err);
    assert_eq!(weir.get("/a", &[]).status(), 200);
    std::fs::remove_file(weir.directory().join("weir.yaml")).unwrap();
    becomes("a missing file is a failure, too", 2, || reloads(&weir, "failure"));
    write(weir.directory(), &upstream, route);
    eventually("all is well", || match weir.admin("/readyz") {
        ready if ready.text().contains("\"ready\"") => Ok(()),
        ready => Err(ready),
    });
    assert_eq!((reloads(&weir, "failure"), reloads(&weir, "success")), (2, 1));
    assert_eq!(weir.log().matches("the routes are broken").count(), 2, "{}", weir.log());
}

/// For a moment, a file may be empty before it is written again.
#[test]
fn a_file_without_the_key_removes_no_routes() {
    let upstream = mirror();
    let weir = weir(&upstream, "  /a: { upstream: http://UPSTREAM }\n", &["--workers", "1", "--upstream", "/b=echo"]);
    let file = weir.directory().join("weir.yaml");
    for (failures, text) in [(1, ""), (2, "# Nothing.\n"), (3, "shadow: false\n"), (4, "routes:\n")] {
        std::fs::write(&file, text).unwrap();
        weir.signal("HUP");
        becomes("the failure is counted", failures, || reloads(&weir, "failure"));
        let body: serde_json::Value = serde_json::from_str(weir.admin("/readyz").text()).unwrap();
        let error = body["routes_error"].as_str().unwrap();
        assert!(failures == 4 || error.contains("write `routes: {}` to remove all"), "{error}");
        assert_eq!((weir.get("/a", &[]).status(), weir.get("/b", &[]).status()), (200, 200), "{text}");
    }
    std::fs::write(&file, "routes: {}\n").unwrap();
    weir.signal("HUP");
    becomes("they are removed", 1, || reloads(&weir, "success"));
    assert_eq!((weir.get("/a", &[]).status(), weir.get("/b", &[]).status()), (404, 200));
    assert!(!weir.admin("/readyz").text().contains("routes_error"));
    // There is nothing more to lose.
    std::fs::write(&file, "shadow: false\n").unwrap();
    weir.signal("HUP");
    write(weir.directory(), &upstream, "  /c: { upstream: http://UPSTREAM }\n");
    weir.signal("HUP");
    becomes("routes are back", 2, || reloads(&weir, "success"));
    assert_eq!((weir.get("/c", &[]).status(), reloads(&weir, "failure")), (200, 4));
}

#[test]
fn rules_and_routes_are_reloaded_each_by_itself() {
    let upstream = mirror();
    let weir = weir(&upstream, "  /a: { upstream: http://UPSTREAM }\n", &["--workers", "1"]);
    write(weir.directory(), &upstream, "  /b: { upstream: http://UPSTREAM }\n");
    weir.reload("limits: { None: { match: { path: /b }, deny: true } }");
    becomes("the routes are in force", 1, || reloads(&weir, "success"));
    assert_eq!((weir.get("/a", &[]).status(), weir.get("/b", &[]).status()), (404, 429));
    std::fs::write(weir.limits_file(), "limits: broken").unwrap();
    replace(&weir, &upstream, "  /a: { upstream: http://UPSTREAM }\n");
    assert_eq!((weir.get("/a", &[]).status(), weir.get("/b", &[]).status()), (200, 429));
}

#[test]
fn the_first_upstream_with_tls_may_come_by_a_reload() {
    let (plain, upstream) = (mirror(), TlsUpstream::start(&["localhost"]));
    let ca = upstream.authority.file("ca.pem");
    let weir = weir(&plain, "  /a: { upstream: http://UPSTREAM }\n", &["--workers", "1", "--upstream-ca", &ca]);
    let tls = format!("  /a: {{ upstream: https://localhost:{} }}\n", upstream.address.port());
    replace(&weir, &plain, &tls);
    let answer = weir.get("/a", &[]);
    assert_eq!(answer.status(), 200, "{}", answer.text());
    weir.until_logged("get this Host");
}
