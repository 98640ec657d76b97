//! Several listeners of the proxy: with TLS, without it, and those that send clients to `https://`.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;

use crate::handover::{under_load, until_more};
use crate::support::becomes;
use crate::support::certificates::Authority;
use crate::support::process::{free_port, succeed};
use crate::support::server::WIDE;
use crate::support::upstream::{Upstream, ok};
use crate::support::weir::Weir;
use crate::support::wire::Wire;

const ANY: &str = "127.0.0.1:0";

/// `weir serve` with a certificate for a.example, these addresses of the proxy and more flags.
fn weir(rules: &str, authority: &Authority, proxies: &[&str], flags: &[&str]) -> Weir {
    authority.sign("own", &["a.example"]);
    let [certificate, key] = ["own.pem", "own.key"].map(|name| authority.file(name));
    let proxies = proxies.iter().flat_map(|proxy| ["--proxy", proxy]);
    let tls = ["--tls-cert", &certificate, "--tls-key", &key];
    let flags: Vec<_> = proxies.chain(tls).chain(flags.iter().copied()).collect();
    Weir::serve(rules, &flags)
}

/// The addresses of the proxy of the process that started last, in the order of the flags.
fn addresses(weir: &Weir) -> Vec<SocketAddr> {
    let log = weir.log();
    let events: Vec<serde_json::Value> = log.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let fields = events.iter().map(|event| &event["fields"]);
    let opened = fields.filter(|fields| fields["message"] == "listening");
    let mut all: Vec<Vec<SocketAddr>> = vec![Vec::new()];
    for fields in opened {
        if fields["listener"] == "proxy" {
            all.last_mut().unwrap().push(fields["address"].as_str().unwrap().parse().unwrap());
        } else {
            // The admin listener is the last one of a process.
            all.push(Vec::new());
        }
    }
    all.retain(|addresses| !addresses.is_empty());
    all.pop().unwrap()
}

/// Asks over TLS and returns the status and the body.
fn over_tls(authority: &Authority, address: SocketAddr, path: &str) -> String {
    let (url, port) = (format!("https://a.example:{}{path}", address.port()), address.port());
    let (ca, resolve) = (authority.file("ca.pem"), format!("a.example:{port}:127.0.0.1"));
    succeed(Command::new("curl").args(["-sS", "-w", " %{http_code}", "--cacert", &ca, "--resolve", &resolve, &url]))
}

/// Asks without TLS and returns the status and `Location`.
fn plainly(address: SocketAddr) -> (u16, Option<String>) {
    let answer = Wire::connect(address).get("/x?y");
    (answer.status(), answer.header("location").map(str::to_owned))
}

fn schemes() -> Upstream {
    Upstream::answering(|request| ok(request.header("x-forwarded-proto").unwrap()))
}

#[test]
fn one_process_serves_with_tls_and_without_and_redirects() {
    let (authority, upstream) = (Authority::new(), schemes());
    let url = format!("http://{}", upstream.address);
    let proxies = [ANY, "plain:127.0.0.1:0", "redirect:127.0.0.1:0", "tls:127.0.0.1:0"];
    let flags = ["--upstream", &url, "--workers", "1", "--upstream-idle-timeout", "10m"];
    let weir = weir(WIDE, &authority, &proxies, &flags);
    let all = addresses(&weir);
    assert_eq!(all.len(), 4);
    for address in [all[0], all[3]] {
        assert_eq!(over_tls(&authority, address, "/"), "https 200");
        let mut client = Wire::connect(address);
        client.send("GET / HTTP/1.1\r\nhost: a.example\r\n\r\n");
        assert_eq!(client.response().status(), 400, "only TLS");
    }
    assert_eq!(Wire::connect(all[1]).get("/").text(), "http");
    assert_eq!(plainly(all[2]), (308, Some("https://a.example/x?y".to_owned())));
    assert_eq!(upstream.accepted(), 1, "all listeners of a worker share its connections");
    becomes("the endpoint is counted once", 1, || weir.metric("weir_upstream_endpoints{state=\"healthy\"}"));
    assert_eq!(weir.metric("weir_http_requests_total{code=\"3xx\",listener=\"proxy\"}"), 1);
    assert!(!weir.log().contains("without TLS"), "{}", weir.log());
}

#[test]
fn a_redirect_leads_to_the_same_target_over_tls() {
    const DENY: &str = "limits: { All: { by: global, deny: true } }";
    let authority = Authority::new();
    let weir = weir(DENY, &authority, &["tls:127.0.0.1:0", "redirect:127.0.0.1:0"], &["--redirect-port", "8443"]);
    let mut client = Wire::connect(addresses(&weir)[1]);
    for (host, target, location) in [
        ("a.example", "/", "https://a.example:8443/"),
        ("A.example:8080", "/v1/x%20y?q=/a//b", "https://a.example:8443/v1/x%20y?q=/a//b"),
        ("a.example.", "//evil.example/", "https://a.example:8443//evil.example/"),
        ("[2001:DB8::1]:80", "/", "https://[2001:db8::1]:8443/"),
        ("a.example", "http://b.example:81/x?y", "https://b.example:8443/x?y"),
    ] {
        let answer = client.get_from(host, target, &[]);
        assert_eq!((answer.status(), answer.header("location")), (308, Some(location)), "{host} {target}");
    }
    // The method and the body stay, so the client sends them again; here the body is not read.
    client.send("POST /x HTTP/1.1\r\nhost: a.example\r\ncontent-length: 2\r\n\r\nhi");
    assert_eq!(client.response().header("location"), Some("https://a.example:8443/x"));
    client.send("OPTIONS * HTTP/1.1\r\nhost: a.example\r\n\r\n");
    assert_eq!(client.response().header("location"), Some("https://a.example:8443/"));
    client.send("GET / HTTP/1.0\r\n\r\n");
    assert_eq!(client.response().status(), 400);
    let url = format!("http://{}/x", addresses(&weir)[1]);
    let arguments = ["-sS", "--http2-prior-knowledge", "-o", "/dev/null", "-w", "%{http_code} %{redirect_url}", &url];
    assert_eq!(succeed(Command::new("curl").args(arguments)), "308 https://127.0.0.1:8443/x");
    // Nothing was decided, so nothing was denied.
    assert!(!weir.admin("/metrics").text().contains("result=\"denied\"} 1"));
}

#[test]
fn every_listener_is_handed_over_as_what_it_was() {
    let authority = Authority::new();
    let weir = weir(WIDE, &authority, &["redirect:127.0.0.1:0", "tls:127.0.0.1:0", "plain:127.0.0.1:0"], &[]);
    let before = addresses(&weir);
    under_load(before[2], |answered| {
        until_more(answered, 50);
        weir.hand_over();
        until_more(answered, 50);
    });
    assert_eq!(addresses(&weir), before);
    assert_eq!(plainly(before[0]).0, 308);
    assert!(over_tls(&authority, before[1], "/").ends_with(" 200"));
    assert_eq!(plainly(before[2]).0, 200);
}

#[test]
fn a_listener_keeps_its_socket_when_the_flags_change_their_order() {
    let [one, two] = [free_port(), free_port()].map(|port| format!("127.0.0.1:{port}"));
    let weir = Weir::launch(WIDE, |directory| {
        let text = format!("upstream: echo\nproxy: [\"plain:{one}\", \"redirect:{two}\"]\n");
        std::fs::write(directory.join("weir.yaml"), text).unwrap();
        crate::support::binary::command(&["serve", "--config", "weir.yaml", "--admin", ANY, "--log-format", "json"])
    });
    let [plain, redirect]: [SocketAddr; 2] = [&one, &two].map(|address| address.parse().unwrap());
    assert_eq!((plainly(plain).0, plainly(redirect).0), (200, 308));
    let third = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
    let text = format!("upstream: echo\nproxy: [\"redirect:{two}\", \"plain:{third}\", \"plain:{one}\"]\n");
    std::fs::write(weir.directory().join("weir.yaml"), text).unwrap();
    weir.hand_over();
    assert_eq!(addresses(&weir), [redirect, third, plain]);
    assert_eq!((plainly(plain).0, plainly(redirect).0, plainly(third).0), (200, 308, 200));
}
