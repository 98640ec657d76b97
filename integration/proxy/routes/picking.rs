//! The choice of the route for a request.

use super::{mirror, ruled, weir};
use crate::support::server::WIDE;

/// The order is that of nginx (`server_name`, then `location` with prefixes) and Caddy (hosts, then `handle`).
#[test]
fn the_most_specific_host_and_then_the_longest_prefix_take_a_request() {
    let upstream = mirror();
    let routes = [
        ("/", "any"),
        ("/api", "api"),
        ("/api/v2/", "v2"),
        ("shop.example", "shop"),
        ("Shop.Example/api", "shop-api"),
        ("\"*.shop.example\"", "below"),
        ("\"*.eu.shop.example/api\"", "eu"),
        ("\"[2001:db8::1]\"", "six"),
    ];
    let routes = routes.map(|(key, name)| {
        format!("  {key}: {{ upstream: http://UPSTREAM, request-headers: {{ set: {{ x-route: {name} }} }} }}")
    });
    let weir = weir(&upstream, &routes.join("\n"), &[]);
    let mut client = weir.connect();
    for (host, target, route) in [
        ("other.example", "/", "any"),
        ("other.example", "/apiary", "any"),
        ("other.example", "/api", "api"),
        ("other.example", "/api/", "api"),
        ("other.example", "/api?x=/api/v2", "api"),
        ("other.example", "/api/v20", "api"),
        ("other.example", "/api/v2", "v2"),
        ("other.example", "/api/v2/x", "v2"),
        ("other.example", "//%61pi//v2/../v2/x", "v2"),
        ("other.example", "/api%2Fv2", "any"),
        ("shop.example", "/", "shop"),
        ("SHOP.example:8080", "/x", "shop"),
        ("shop.example.", "/api/x", "shop-api"),
        ("shop.example", "/api/v2/x", "shop-api"),
        ("a.shop.example", "/", "below"),
        ("a.b.eu.shop.example", "/api", "eu"),
        ("a.eu.shop.example", "/x", "below"),
        ("notshop.example", "/", "any"),
        ("[2001:DB8:0::1]:443", "/api", "six"),
    ] {
        let answer = client.get_from(host, target, &[]);
        assert_eq!(answer.text(), format!("{route} {host} {target}"), "{host}{target}");
    }
}

#[test]
fn requests_without_a_route_go_to_the_upstream_of_the_flags_or_get_404() {
    let upstream = mirror();
    let routes = "  /a: { upstream: http://UPSTREAM }\n";
    let alone = weir(&upstream, routes, &[]);
    assert_eq!((alone.get("/a/x", &[]).status(), alone.get("/b", &[]).status()), (200, 404));
    assert!(alone.get("/b", &[]).text().contains("no route"), "{}", alone.get("/b", &[]).text());
    let rest = mirror();
    let (url, b) = (format!("http://{}#host=rest", rest.address), format!("/a/b=http://{}#host=b", rest.address));
    let weir = super::weir(&upstream, routes, &["--upstream", &url, "--upstream", &b]);
    for (target, host) in [("/a", "a.example"), ("/a/b", "b"), ("/b", "rest")] {
        assert_eq!(weir.get(target, &[]).text(), format!("none {host} {target}"));
    }
}

#[test]
fn limits_see_the_path_that_the_client_has_sent() {
    const LIMITS: &str = "limits: { Api: { by: path, match: { path: '/api/**' }, count: 1, period: 1h } }";
    let upstream = mirror();
    let routes = "  /api: { upstream: http://UPSTREAM, strip-prefix: true }\n  /x: { upstream: http://UPSTREAM, add-prefix: /api }\n";
    let weir = ruled(LIMITS, &upstream, routes, &[]);
    for (target, expected) in [("/api/a", 200), ("/api/a", 429), ("/x/a", 200), ("/x/a", 200), ("/api/b", 200)] {
        assert_eq!(weir.get(target, &[]).status(), expected, "{target}");
    }
    assert_eq!(upstream.requests().len(), 4);
}

#[test]
fn a_route_may_have_several_servers_and_their_host() {
    let (one, two) = (mirror(), mirror());
    let routes = format!(
        "  /a:\n    upstream:\n      - http://UPSTREAM\n      - http://{}#host=two\n    host: one\n  /b: {{ upstream: http://UPSTREAM, host: upstream }}\n",
        two.address
    );
    let weir = ruled(WIDE, &one, &routes, &["--workers", "1"]);
    let mut hosts: Vec<_> = (0..4).map(|_| weir.get("/a", &[]).text().to_owned()).collect();
    hosts.sort();
    assert_eq!(hosts, ["none one /a", "none one /a", "none two /a", "none two /a"]);
    assert_eq!(weir.get("/b", &[]).text(), format!("none {} /b", one.address));
}
