//! The table of requests with mTLS between a gateway and Weir, by the settings of docs/gateways/tls.md.

use std::fs;

use super::check_with;
use super::example::Change;
use super::examples::{ENVOY_EXT_AUTHZ_GRPC, ENVOY_EXT_AUTHZ_HTTP, ENVOY_RLS, Gateway, HAPROXY_SPOE, NGINX};
use crate::support::certificates::Authority;
use crate::support::programs::repository;

/// The first block of a language in a section of the page.
fn block(section: &str, language: &str) -> String {
    let page = fs::read_to_string(repository().join("docs/gateways/tls.md")).unwrap();
    let section = page.split("\n## ").find(|part| part.starts_with(section)).unwrap();
    let block = section.split_once(&format!("```{language}\n")).unwrap().1;
    block.split_once("```").unwrap().0.to_owned()
}

/// The page's paths are those of the gateway's machine.
fn moved(settings: &str, folder: &str, authority: &Authority) -> &'static str {
    settings.replace(&format!("/etc/{folder}/weir"), authority.file("").trim_end_matches('/')).leak()
}

/// Checks the table over mTLS. `change` gets the text of the example and the page's settings.
#[track_caller]
fn check(gateway: &'static Gateway, change: impl FnOnce(&Authority) -> Change) {
    let authority = Authority::new();
    authority.sign("weir", &["weir.example.com"]);
    authority.sign("client", &["gateway.example.com"]);
    let both = ["client.pem", "client.key"].map(|name| fs::read_to_string(authority.path(name)).unwrap()).concat();
    fs::write(authority.path("client.both"), both).unwrap();
    let listener = gateway.listener.trim_start_matches('-');
    let flags = [("cert", "weir.pem"), ("key", "weir.key"), ("client-ca", "ca.pem")];
    let flags: Vec<String> =
        flags.iter().flat_map(|(flag, file)| [format!("--{listener}-tls-{flag}"), authority.file(file)]).collect();
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let chain = check_with(gateway, &[change(&authority)], &flags);
    let weir = chain.weir.as_ref().unwrap();
    let handshakes = ["full", "resumed"]
        .map(|kind| weir.metric(&format!("weir_tls_handshakes_total{{kind=\"{kind}\",listener=\"{listener}\"}}")));
    assert!(handshakes.iter().sum::<u64>() > 0, "{handshakes:?}");
}

fn envoy(authority: &Authority) -> Change {
    let settings = block("Envoy", "yaml");
    ("  - name: weir\n", format!("  - name: weir\n{}", moved(&settings, "envoy", authority)).leak())
}

#[test]
fn envoy_with_ext_authz_over_grpc() {
    check(&ENVOY_EXT_AUTHZ_GRPC, envoy);
}

#[test]
fn envoy_with_ext_authz_over_http() {
    check(&ENVOY_EXT_AUTHZ_HTTP, envoy);
}

#[test]
fn envoy_with_the_rate_limit_service() {
    check(&ENVOY_RLS, envoy);
}

#[test]
fn nginx() {
    check(&NGINX, |authority| {
        ("    proxy_pass http://weir/nginx;\n", moved(&block("nginx", "text"), "nginx", authority))
    });
}

#[test]
fn haproxy_over_spoe() {
    check(&HAPROXY_SPOE, |authority| {
        let server = "    server weir 127.0.0.1:9003 check inter 1s rise 1\n";
        (server, moved(&block("HAProxy", "text"), "haproxy", authority))
    });
}
