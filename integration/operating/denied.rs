//! Responses to denied clients at every listener: `deny_with` and `headers: none`.

use std::fs;
use std::path::Path;

use super::listeners::{ALL, Told, at_listener};
use crate::support::becomes;
use crate::support::weir::Weir;

const FLAGS: [&str; 6] = ["--check", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--trusted-proxies", "127.0.0.1"];

/// The answers of all listeners to a request that `settings` deny.
fn each_listener(settings: &str, check: impl Fn(&str, Told)) {
    let rules = format!(
        "limits:\n  PerAddress: {{ by: ip, deny: true, {settings} }}\n  \
         PerUser: {{ match: {{ domain: api, descriptor: {{ user: '*' }} }}, by: {{ descriptor: user }}, burst: 1, {settings} }}\n"
    );
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let weir = Weir::serve(&rules, &FLAGS);
    assert_eq!(runtime.block_on(at_listener(&weir, "rate limit service")).status, 200);
    for listener in ALL {
        check(listener, runtime.block_on(at_listener(&weir, listener)));
    }
}

#[test]
fn every_listener_sends_what_the_limit_denies_with() {
    let settings =
        "deny_with: { status: 503, headers: { x-why: '{limit}', retry-after: '30' }, body: 'Not now: {limit}.' }";
    each_listener(settings, |listener, told| {
        let limit = if listener == "rate limit service" { "PerUser" } else { "PerAddress" };
        // Envoy has a setting of its own for the status after the rate limit service.
        assert_eq!(told.status, if listener == "rate limit service" { 429 } else { 503 }, "{listener}: {told:?}");
        assert_eq!((told.header("x-why"), told.header("retry-after")), (Some(limit), Some("30")), "{listener}");
        if listener == "json" {
            assert!(told.body.contains("\"binding\":\"PerAddress\""), "{told:?}");
        } else {
            assert_eq!(told.header("content-type"), Some("text/plain; charset=utf-8"), "{listener}");
            assert_eq!(told.body, format!("Not now: {limit}."), "{listener}");
        }
    });
}

#[test]
fn no_listener_tells_a_client_of_a_hidden_limit() {
    each_listener("headers: none", |listener, told| {
        assert_eq!(told.status, 429, "{listener}: {told:?}");
        for header in ["retry-after", "ratelimit", "ratelimit-policy"] {
            assert_eq!(told.header(header), None, "{listener}");
        }
        // The application that asks in JSON is no client.
        assert_eq!(told.body.contains("Per"), listener == "json", "{listener}: {}", told.body);
        // Envoy makes headers of these numbers.
        for status in told.response.iter().flat_map(|response| &response.statuses) {
            assert_eq!(status.current_limit, None);
        }
    });
}

#[test]
fn a_body_in_a_file_is_sent_and_reloaded() {
    let rules = "limits: { Shut: { deny: true, deny_with: { body: { file: denied.html } } } }";
    let write = |folder: &Path, page| fs::write(folder.join("denied.html"), page).unwrap();
    let weir = Weir::serve_with(rules, &[], |_, folder| write(folder, "<p>{limit}</p>"));
    let answer = weir.get("/", &[]);
    assert_eq!((answer.status(), answer.text()), (429, "<p>Shut</p>"));
    assert_eq!(answer.header("content-type"), Some("text/html; charset=utf-8"));
    write(weir.directory(), "<p>Closed</p>");
    let closed = || u64::from(weir.get("/", &[]).text() == "<p>Closed</p>");
    becomes("the new page", 1, closed);
    // A broken one changes nothing.
    write(weir.directory(), "{limits}");
    becomes("the mistake is seen", 1, || weir.metric("weir_config_reloads_total{result=\"failure\"}"));
    assert_eq!(closed(), 1);
}
