//! The start of a connection: with or without a PROXY header, HTTP/1.1 or HTTP/2, over TCP or a unix socket.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::process::Stdio;
use std::time::Duration;

use weir::http::{AcceptOptions, Timeouts};

use super::failed;
use crate::support::binary;
use crate::support::process::Process;
use crate::support::server::{Setup, WIDE, Weir};
use crate::support::wire::Message;
use crate::support::{becomes, eventually};

/// A server that reads PROXY headers from these networks.
fn weir(from: &[&str]) -> Weir {
    let mut setup = Setup::new(WIDE);
    let proxy_protocol_from = from.iter().map(|network| network.parse().unwrap()).collect();
    setup.accept = AcceptOptions { proxy_protocol_from, ..AcceptOptions::default() };
    setup.start("echo")
}

const REQUEST: &str = "GET / HTTP/1.1\r\nhost: a.example\r\n\r\n";

/// The `X-Forwarded-For` that the upstream gets.
fn forwarded_for(message: &Message) -> String {
    let echoed: serde_json::Value = serde_json::from_str(message.text()).unwrap();
    let headers = echoed["headers"].as_array().unwrap();
    let header = headers.iter().find(|header| header[0] == "x-forwarded-for").unwrap();
    header[1].as_str().unwrap().to_owned()
}

/// A version 2 header for 192.0.2.2 with an extension.
const BINARY: &[u8] =
    b"\r\n\r\n\0\r\nQUIT\n\x21\x11\x00\x11\xc0\x00\x02\x02\xc6\x33\x64\x01\x12\x67\x01\xbb\x04\x00\x02\x00\x00";
const LOCAL: &[u8] = b"\r\n\r\n\0\r\nQUIT\n\x20\x00\x00\x00";

#[test]
fn a_load_balancer_says_whose_connection_it_passes_on() {
    let weir = weir(&["127.0.0.0/8"]);
    for (header, client) in [
        (&b"PROXY TCP4 192.0.2.1 198.51.100.1 4711 443\r\n"[..], "192.0.2.1"),
        (b"PROXY TCP6 2001:db8::1 ::1 4711 443\r\n", "2001:db8::1"),
        (BINARY, "192.0.2.2"),
    ] {
        let mut wire = weir.connect();
        wire.send([header, REQUEST.as_bytes()].concat());
        assert_eq!(forwarded_for(&wire.response()), client);
        // The header belongs to the connection: the next request does not repeat it.
        assert_eq!(forwarded_for(&wire.get("/")), client);
    }
    let mut wire = weir.connect();
    for byte in [BINARY, REQUEST.as_bytes()].concat() {
        wire.send([byte]);
    }
    assert_eq!(forwarded_for(&wire.response()), "192.0.2.2");
}

/// A load balancer's header for a connection without a client.
const NAMELESS: [&[u8]; 4] = [
    b"PROXY UNKNOWN\r\n",
    b"PROXY UNKNOWN ffff::1 ::1 1 2\r\n",
    b"\r\n\r\n\0\r\nQUIT\n\x21\x00\x00\x00",
    b"\r\n\r\n\0\r\nQUIT\n\x21\x00\x00\x04abcd",
];

/// The statuses of requests, each on a new connection that starts with `header` and claims an address. The upstream
/// sees no claim.
#[track_caller]
fn statuses(weir: &Weir, header: &[u8], claims: &[&str]) -> Vec<u16> {
    let status = |claim: &&str| {
        let mut wire = weir.connect();
        let request =
            format!("GET / HTTP/1.1\r\nhost: a.example\r\nx-forwarded-for: {claim}\r\nforwarded: for={claim}\r\n\r\n");
        wire.send([header, request.as_bytes()].concat());
        let response = wire.response();
        assert!(!response.text().contains(claim), "{}", response.text());
        response.status()
    };
    claims.iter().map(status).collect()
}

/// The load balancer is a trusted proxy, but its clients' claims do not count.
#[test]
fn a_client_that_is_not_named_is_nobody() {
    const CLAIMS: [&str; 2] = ["203.0.113.7", "203.0.113.8"];
    for (limit, unknown, local) in [
        ("by: ip", [403, 403], [200, 200]),
        ("by: ip, mode: shadow", [200, 200], [200, 200]),
        ("by: ip, missing: shared", [200, 429], [200, 429]),
        ("by: ip, missing: deny", [429, 429], [429, 429]),
        ("by: global, match: { cidr: 203.0.113.0/24 }", [403, 403], [200, 200]),
        ("by: global", [200, 429], [200, 429]),
    ] {
        for (headers, expected) in [(&NAMELESS[..], unknown), (&[LOCAL], local)] {
            for header in headers {
                let mut setup =
                    Setup::new(&format!("limits: {{ One: {{ {limit}, burst: 1, count: 1, period: 1h }} }}"));
                setup.trusted = vec!["0.0.0.0/0"];
                setup.accept.proxy_protocol_from = vec!["127.0.0.0/8".parse().unwrap()];
                let weir = setup.start("echo");
                assert_eq!(statuses(&weir, header, &CLAIMS), expected, "{limit}: {}", header.escape_ascii());
            }
        }
    }
}

#[test]
fn one_that_must_send_a_header_is_not_served_without() {
    let weir = weir(&["127.0.0.0/8"]);
    for sent in [REQUEST.as_bytes(), b"PROXY TCP4 1.2.3.4\r\n", b"\r\n\r\n\0\r\nQUIT\n\x31\x11\0\0", &[b'P'; 8]] {
        let mut wire = weir.connect();
        wire.send(sent);
        wire.expect_end();
    }
    becomes("the failures are counted", 4, || weir.metric(&failed("proxy_header")));
    // A load balancer's check that only connects is not a failure.
    weir.connect().stream.shutdown(Shutdown::Write).unwrap();
    let mut wire = weir.connect();
    wire.send([LOCAL, REQUEST.as_bytes()].concat());
    assert_eq!(wire.response().status(), 200);
    becomes("the failures are counted", 4, || weir.metric(&failed("proxy_header")));
}

#[test]
fn nobody_else_can_name_an_address() {
    let weir = weir(&["192.0.2.0/24"]);
    for header in [&b"PROXY TCP4 10.9.8.7 198.51.100.1 4711 443\r\n"[..], BINARY] {
        let mut wire = weir.connect();
        wire.send([header, REQUEST.as_bytes()].concat());
        let response = wire.response();
        // An invalid request line: the load balancer's port is in the version's place.
        assert!(matches!(response.status(), 400 | 505), "{}", response.text());
    }
    assert_eq!(forwarded_for(&weir.connect().get("/")), "127.0.0.1");
}

#[test]
fn first_bytes_have_a_deadline() {
    let mut setup = Setup::new(WIDE);
    setup.timeouts = Timeouts { first_byte: Duration::from_millis(100), ..Timeouts::default() };
    let weir = setup.start("echo");
    for sent in ["", "PRI * HTT"] {
        let mut wire = weir.connect();
        wire.send(sent);
        wire.expect_end();
    }
    becomes("the failures are counted", 2, || weir.metric(&failed("first_byte_timeout")));
}

#[test]
fn a_unix_socket_is_served_and_its_peers_are_trusted_by_their_word() {
    for (trusted, client) in [(&[][..], "127.0.0.1"), (&["--trusted-proxies", "unix"], "192.0.2.1, 127.0.0.1")] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("weir.sock");
        std::fs::write(directory.path().join("limits.yaml"), WIDE).unwrap();
        let proxy = format!("unix:{}", path.display());
        let mut command = binary::command(&["serve", "--upstream", "echo", "--workers", "2"]);
        command.args(["--proxy", &proxy, "--admin", "127.0.0.1:0"]).args(trusted).current_dir(directory.path());
        let _process = Process::start(command.stderr(Stdio::null()));
        let mut stream = eventually("the socket takes connections", || UnixStream::connect(&path));
        let request = "GET / HTTP/1.1\r\nhost: a\r\nx-forwarded-for: 192.0.2.1\r\nconnection: close\r\n\r\n";
        stream.write_all(request.as_bytes()).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        assert!(text.contains(&format!("[\"x-forwarded-for\",\"{client}\"]")), "{text}");
    }
}
