//! The host and the scheme that upstreams see.

use ::weir::http::{Connector, ConnectorOptions, Routes, UpstreamOptions};
use h2::server::Builder;

use super::upstream_http2::{Http2Upstream, say};
use super::upstream_tls::{TlsUpstream, server_config};
use crate::support::certificates::Authority;
use crate::support::process::succeed;
use crate::support::server::{Setup, WIDE, Weir};
use crate::support::upstream::{Upstream, ok};
use crate::support::weir as command;

/// A proxy with this route that trusts this authority.
fn proxy(route: &str, authority: &Authority) -> Weir {
    let ca = Some(authority.path("ca.pem"));
    let (connector, _) = Connector::load(&ConnectorOptions { ca, ..ConnectorOptions::default() }).unwrap();
    let routes = Routes::parse(&[route]).unwrap();
    Setup::new(WIDE).start_with(UpstreamOptions { tls: Some(connector), ..UpstreamOptions::new(routes) })
}

/// An HTTP/1 upstream that answers with `Host` and `X-Forwarded-Host`.
fn hosts() -> Upstream {
    Upstream::answering(|request| {
        let header = |name| request.header(name).unwrap_or("none").to_owned();
        ok(&format!("{} for {}", header("host"), header("x-forwarded-host")))
    })
}

#[test]
fn a_name_with_tls_gets_its_own_host_unless_a_setting_says_otherwise() {
    let upstream = TlsUpstream::start(&["localhost", "127.0.0.1"]);
    let port = upstream.address.port();
    for (url, expected) in [
        (format!("https://localhost:{port}"), format!("localhost:{port}")),
        (format!("https://localhost:{port}#host=upstream"), format!("localhost:{port}")),
        (format!("https://localhost:{port}#host=client"), "a.example".to_owned()),
        (format!("https://localhost:{port}#host=api.example.com"), "api.example.com".to_owned()),
        (format!("https://127.0.0.1:{port}"), "a.example".to_owned()),
        (format!("https://127.0.0.1:{port}#host=upstream"), format!("127.0.0.1:{port}")),
        (format!("/=https://127.0.0.1:{port}#host=b.example:8443"), "b.example:8443".to_owned()),
    ] {
        let weir = proxy(&url, &upstream.authority);
        let response = weir.connect().get("/");
        assert_eq!(response.header("x-seen-host"), Some(expected.as_str()), "{url}");
        assert_eq!(response.header("x-seen-forwarded-host"), Some("a.example"), "{url}");
    }
}

#[test]
fn other_upstreams_get_the_clients_host_unless_a_setting_says_otherwise() {
    let upstream = hosts();
    let port = upstream.address.port();
    for (url, expected) in [
        (format!("http://127.0.0.1:{port}"), "a.example for a.example".to_owned()),
        (format!("http://127.0.0.1:{port}#host=upstream"), format!("127.0.0.1:{port} for a.example")),
        (format!("http://127.0.0.1:{port}#host=shop.example"), "shop.example for a.example".to_owned()),
    ] {
        let weir = Setup::new(WIDE).start(&url);
        let mut client = weir.connect();
        for _ in 0..2 {
            assert_eq!(client.get("/").text(), expected, "{url}");
        }
        // HTTP/1.0 needs no host.
        client.send("GET / HTTP/1.0\r\n\r\n");
        let expected =
            expected.replace("a.example for a.example", &format!("127.0.0.1:{port}")).replace(" for a.example", "")
                + " for none";
        assert_eq!(client.response().text(), expected, "{url}");
    }
}

#[test]
fn a_retry_gets_the_host_of_its_own_server() {
    let good = hosts();
    let bad = || Upstream::start(|wire, _| drop(wire.request()));
    for (first, second, expected) in
        [("#host=bad.example", "", "a.example for a.example"), ("", "#host=good.example", "good.example for a.example")]
    {
        let bad = bad();
        let url = format!("http://{}{first},http://{}{second}", bad.address, good.address);
        let weir = Setup::new(WIDE).start(&url);
        assert_eq!(weir.connect().get("/").text(), expected, "{url}");
        assert_eq!(bad.accepted(), 1);
    }
}

#[test]
fn http2_servers_see_the_scheme_of_their_connection() {
    let seen = |_, request: http::Request<h2::RecvStream>, respond| async move {
        let proto = request.headers()["x-forwarded-proto"].to_str().unwrap();
        say(respond, format!("{} by {proto}", request.uri()));
    };
    let authority = Authority::new();
    let mut config = server_config(&authority, &["localhost"]);
    config.alpn_protocols = vec![b"h2".to_vec()];
    let with_tls = Http2Upstream::start_over(Some(config), &Builder::new(), seen);
    let plain = Http2Upstream::start(seen);

    let port = with_tls.address.port();
    let weir = proxy(&format!("https://localhost:{port}"), &authority);
    assert_eq!(weir.connect().get("/x").text(), format!("https://localhost:{port}/x by http"));

    authority.sign("own", &["a.example"]);
    let [certificate, key, ca] = ["own.pem", "own.key", "ca.pem"].map(|name| authority.file(name));
    let weir = command::Weir::serve(WIDE, &["--upstream", &plain.url(), "--tls-cert", &certificate, "--tls-key", &key]);
    let (url, resolve) =
        (format!("https://a.example:{}/x", weir.proxy.port()), format!("a.example:{}:127.0.0.1", weir.proxy.port()));
    let answer =
        succeed(std::process::Command::new("curl").args(["-sS", "--cacert", &ca, "--resolve", &resolve, &url]));
    assert_eq!(answer, format!("http://a.example:{}/x by https", weir.proxy.port()));
}

#[test]
fn the_log_says_which_upstreams_do_not_get_the_clients_host() {
    let routes =
        ["/a=https://api.example.com", "/b=https://api.example.com#host=client", "/c=http://10.0.0.1#host=c.example"];
    let weir = command::Weir::serve(WIDE, &["--upstream", routes[0], "--upstream", routes[1], "--upstream", routes[2]]);
    weir.until_logged("\"upstream\":\"http://10.0.0.1:80\",\"host\":\"c.example\"");
    let log = weir.log();
    let told = log.matches("get this Host").count();
    assert!(
        told == 2 && log.contains("\"upstream\":\"https://api.example.com:443\",\"host\":\"api.example.com\""),
        "{log}"
    );
}
