//! 5.5: the client's address and its sources.

use weir::message::client_address::AddressSource;

use super::{ROW, Row, check, check_all};
use crate::support::server::Setup;
use crate::support::upstream::Upstream;

/// Trusts the test's address and 10.0.0.0/8; denies 192.0.2.1 and `2001:db8:0:1::/64`.
fn trusting(setup: &mut Setup) {
    setup.trusted = vec!["127.0.0.0/8", "10.0.0.0/8"];
    banning(setup);
}

fn banning(setup: &mut Setup) {
    setup.rules = "limits: { Banned: { by: ip/64 } }\noverrides:\n  \"Banned:192.0.2.1\": { deny: true }\n  \
                   \"Banned:2001:db8:0:1::/64\": { deny: true }\n"
        .into();
}

/// Returns whether a request with these headers is the banned client's.
#[track_caller]
fn check_client(setup: fn(&mut Setup), headers: &[&str], is_banned: bool) {
    let sent = format!("GET / HTTP/1.1\r\nhost: a\r\n{}\r\n", [headers, &[""]].concat().join("\r\n"));
    let row = Row { line: "5.5", sent: sent.leak(), setup, ..ROW };
    check(&if is_banned { Row { back: &["429"], ..row } } else { Row { seen: &["GET / HTTP/1.1"], ..row } });
}

#[test]
fn the_client_is_the_first_from_the_right_that_is_not_trusted() {
    for (headers, is_banned) in [
        (&["x-forwarded-for: 192.0.2.1"][..], true),
        (&["x-forwarded-for: 192.0.2.1, 10.0.0.1, 10.0.0.2"], true),
        (&["x-forwarded-for: 192.0.2.1,10.0.0.1"], true),
        (&["x-forwarded-for: 192.0.2.1", "x-forwarded-for: 10.0.0.1"], true),
        (&["x-forwarded-for: 192.0.2.2, 192.0.2.1"], true),
        (&["x-forwarded-for: 192.0.2.1, 192.0.2.2"], false),
        (&["x-forwarded-for: 192.0.2.1", "x-forwarded-for: 192.0.2.2"], false),
        (&["x-forwarded-for: 192.0.2.1:4711"], true),
        (&["x-forwarded-for: ::ffff:192.0.2.1"], true),
        (&["x-forwarded-for: [::ffff:192.0.2.1]:80"], true),
        (&["x-forwarded-for: 2001:db8:0:1::7"], true),
        (&["x-forwarded-for: [2001:db8:0:1:ffff::]:80"], true),
        (&["x-forwarded-for: 2001:db8:0:2::7"], false),
        (&["x-forwarded-for: 192.0.2.1, unknown"], false),
        (&["x-forwarded-for: 192.0.2.1, garbage, 10.0.0.1"], false),
        (&["x-forwarded-for: 192.0.2.1, 10.0.0.1x"], false),
        (&["x-forwarded-for: 192.0.2.1, [::1]x"], false),
        (&["x-forwarded-for: 192.0.2.1, 10.0.0.1:x y"], false),
        (&["x-forwarded-for: 192.0.2.001"], false),
        (&["x-forwarded-for: 192.0.2.1 10.0.0.1"], false),
        (&["x-forwarded-for: fe80::1%eth0"], false),
        (&["x-real-ip: 192.0.2.1"], false),
        (&["forwarded: for=192.0.2.1"], true),
        (&["forwarded: For=\"192.0.2.1:80\";proto=https, for=10.0.0.1"], true),
        (&["forwarded: for=\"[2001:db8:0:1::7]:4711\""], true),
        (&["forwarded: for=\"[2001:db8:0:1::7]:_port\""], true),
        (&["forwarded: by=192.0.2.1;for=192.0.2.2"], false),
        (&["forwarded: for=192.0.2.1, for=_hidden"], false),
        (&["forwarded: for=192.0.2.1, for=unknown"], false),
        (&["forwarded: for=192.0.2.1, proto=https"], false),
        // A host is the client's word even in a proxy's header; its commas and semicolons are text.
        (&["forwarded: for=192.0.2.2;host=\"x,for=192.0.2.1\""], false),
        (&["forwarded: host=\"x;for=192.0.2.1\";for=192.0.2.2"], false),
        (&["forwarded: for=192.0.2.2;host=\"x\\\",for=192.0.2.1\""], false),
        // An open quote is the client's, too, and ends before the proxy's own part.
        (&["forwarded: for=\"192.0.2.2, for=192.0.2.1"], true),
        (&["forwarded: for=\"192.0.2.1, for=192.0.2.2"], false),
        // A byte from 0x80 on is the client's, and hides nothing that a proxy has appended.
        (&["x-forwarded-for: \u{e9}, 192.0.2.1"], true),
        (&["x-forwarded-for: \u{e9}", "x-forwarded-for: 192.0.2.1, 10.0.0.1"], true),
        (&["x-forwarded-for: 192.0.2.1, \u{e9}, 10.0.0.1"], false),
        (&["forwarded: for=\u{e9}, for=192.0.2.1"], true),
        (&["forwarded: for=192.0.2.1;host=\"\u{e9}\""], true),
        (&["forwarded: for=\"\u{e9}, for=192.0.2.1;by=10.0.0.1"], true),
        // The two are not mixed.
        (&["forwarded: for=192.0.2.1", "x-forwarded-for: 192.0.2.2"], false),
        (&["forwarded: for=192.0.2.2", "x-forwarded-for: 192.0.2.1"], true),
    ] {
        check_client(trusting, headers, is_banned);
    }
}

#[test]
fn the_client_is_in_the_header_that_is_said_to_name_it() {
    const BOTH: [&str; 2] = ["x-forwarded-for: 192.0.2.1", "forwarded: for=192.0.2.2"];
    const OTHER_WAY: [&str; 2] = ["forwarded: for=192.0.2.1", "x-forwarded-for: 192.0.2.2"];
    const LIST: [&str; 1] = ["x-forwarded-for: 192.0.2.1, 192.0.2.2"];
    let forwarded: fn(&mut Setup) = |setup| {
        trusting(setup);
        setup.client_address = AddressSource::Forwarded;
    };
    let hops: fn(&mut Setup) = |setup| {
        trusting(setup);
        setup.client_address = "hops=2".parse().unwrap();
    };
    for (setup, headers, is_banned) in [
        (trusting as fn(&mut Setup), &BOTH[..], true),
        (trusting, &OTHER_WAY, false),
        (forwarded, &BOTH, false),
        (forwarded, &OTHER_WAY, true),
        (forwarded, &["x-forwarded-for: 192.0.2.1"], true),
        (forwarded, &["x-forwarded-for: 192.0.2.1", "forwarded: for=unknown"], false),
        (trusting, &LIST, false),
        (hops, &LIST, true),
        (hops, &["x-forwarded-for: 192.0.2.2, 192.0.2.1, 10.0.0.1"], true),
        (hops, &["x-forwarded-for: 192.0.2.1"], true),
        (hops, &["x-forwarded-for: 192.0.2.1, unknown, 10.0.0.1"], false),
        (hops, &["forwarded: for=192.0.2.1, for=10.0.0.1"], false),
    ] {
        check_client(setup, headers, is_banned);
    }
}

/// The trusted header names the client; that the other one disagrees is counted.
#[test]
fn a_contradiction_is_counted() {
    let upstream = Upstream::saying("hello");
    let mut setup = Setup::new("limits: { PerAddress: { by: ip, burst: 1, count: 1, period: 1h } }");
    setup.trusted = vec!["127.0.0.0/8"];
    setup.check = true;
    let weir = setup.start(&format!("http://{}", upstream.address));
    let (mut client, mut gateway) = (weir.connect(), weir.connect_check());
    let count =
        |listener: &str| weir.metric(&format!("weir_client_address_conflicts_total{{listener=\"{listener}\"}}"));
    for (list, forwarded, status, counted) in [
        ("203.0.113.7", "for=203.0.113.7", 200, 0),
        ("203.0.113.7", "for=203.0.113.8", 429, 1),
        ("203.0.113.9", "proto=https", 200, 1),
        ("203.0.113.9", "for=203.0.113.10, for=127.0.0.2", 429, 2),
    ] {
        let headers = [("x-forwarded-for", list), ("forwarded", forwarded)];
        assert_eq!(client.get_with("/", &headers).status(), status, "{list} {forwarded}");
        assert_eq!(count("proxy"), counted, "{list} {forwarded}");
    }
    // A gateway's peer that is a client counts as one; a proxy before the gateway may be contradicted.
    for (list, counted) in [("203.0.113.11", 0), ("203.0.113.11, 127.0.0.3", 1)] {
        gateway.get_with("/envoy/", &[("x-forwarded-for", list), ("forwarded", "for=203.0.113.12")]);
        assert_eq!(count("check"), counted, "{list}");
    }
}

#[test]
fn a_peer_that_is_not_trusted_is_the_client() {
    for header in ["x-forwarded-for: 192.0.2.1", "forwarded: for=192.0.2.1", "x-real-ip: 192.0.2.1"] {
        check_client(banning, &[header], false);
    }
}

#[test]
fn what_the_upstream_is_told_of_the_client() {
    const CLAIMS: &str = "GET / HTTP/1.1\r\nhost: a.example\r\nx-forwarded-for: 1.2.3.4\r\nX-Forwarded-For: 5.6.7.8\r\n\
                          x-forwarded-proto: https\r\nx-forwarded-host: b\r\nx-forwarded-port: 443\r\nx-real-ip: 1.2.3.4\r\n\
                          forwarded: for=1.2.3.4\r\nx-forwarded-prefix: /admin\r\nx-forwarded-ssl: on\r\n\
                          x-forwarded-server: b\r\nx-ratelimit-limit: 9\r\nratelimit: 9\r\nRateLimit-Policy: 9\r\n\r\n";
    check_all(&[
        Row {
            line: "5.5",
            sent: CLAIMS,
            seen: &[
                "GET / HTTP/1.1",
                "x-forwarded-for: 127.0.0.1",
                "x-forwarded-proto: http",
                "x-forwarded-host: a.example",
                "-x-forwarded-port",
                "-x-real-ip",
                "-forwarded",
                "-x-forwarded-prefix",
                "-x-forwarded-ssl",
                "-x-forwarded-server",
                "-x-ratelimit-limit",
                "-ratelimit",
                "-ratelimit-policy",
            ],
            ..ROW
        },
        Row {
            line: "5.5",
            sent: CLAIMS,
            seen: &[
                "GET / HTTP/1.1",
                "x-forwarded-for: 1.2.3.4, 5.6.7.8, 127.0.0.1",
                "x-forwarded-proto: https",
                "x-forwarded-host: b",
                "x-forwarded-port: 443",
                "x-real-ip: 1.2.3.4",
                "forwarded: for=1.2.3.4",
                "x-forwarded-prefix: /admin",
                "-x-ratelimit-limit",
                "-ratelimit",
                "-ratelimit-policy",
            ],
            setup: |setup| setup.trusted = vec!["127.0.0.0/8"],
            ..ROW
        },
    ]);
}

/// A subscriber has a /64, so a /64 has one bucket.
#[test]
fn addresses_of_version_6_count_by_their_network() {
    let upstream = Upstream::saying("hello");
    let mut setup = Setup::new("limits: { PerAddress: { by: ip/64, burst: 1, count: 1, period: 1h } }");
    setup.trusted = vec!["127.0.0.0/8"];
    let weir = setup.start(&format!("http://{}", upstream.address));
    let mut client = weir.connect();
    for (address, status) in [
        ("2001:db8:0:1::1", 200),
        ("2001:db8:0:1:ffff:ffff:ffff:ffff", 429),
        ("2001:db8:0:2::1", 200),
        ("192.0.2.1", 200),
        ("::ffff:192.0.2.1", 429),
        ("192.0.2.2", 200),
    ] {
        assert_eq!(client.get_with("/", &[("x-forwarded-for", address)]).status(), status, "5.5: {address}");
    }
}
