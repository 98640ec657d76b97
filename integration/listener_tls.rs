//! TLS on the listeners for gateways and operators, with clients of every kind that they reject.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};

use crate::support::binary;
use crate::support::certificates::Authority;
use crate::support::weir::Weir;
use crate::support::wire::Wire;
use crate::support::{PATIENCE, becomes, eventually};

/// Each listener, with its protocols of ALPN.
const LISTENERS: [(&str, &[&str]); 4] =
    [("grpc", &["h2"]), ("check", &["http/1.1"]), ("spoe", &[]), ("admin", &["http/1.1"])];

const BY_SUBJECT: &str = "limits: { PerClient: { by: { tls: subject }, burst: 1, count: 1, period: 1h } }";

/// An authority with certificates `weir`, `client`, and `stranger`, which another authority has signed.
fn authority() -> Authority {
    let (authority, others) = (Authority::new(), Authority::new());
    authority.sign("weir", &["weir.example"]);
    authority.sign("client", &[]);
    others.sign("stranger", &[]);
    for kind in ["pem", "key"] {
        fs::copy(others.path(&format!("stranger.{kind}")), authority.path(&format!("stranger.{kind}"))).unwrap();
    }
    authority
}

/// The flags that open all listeners, and those of TLS for some of them.
fn flags(authority: &Authority, with_tls: &[&str], with_ca: bool) -> Vec<String> {
    let mut flags: Vec<String> =
        ["grpc", "check", "spoe"].iter().flat_map(|name| [format!("--{name}"), "127.0.0.1:0".to_owned()]).collect();
    for name in with_tls {
        flags.extend([format!("--{name}-tls-cert"), authority.file("weir.pem")]);
        flags.extend([format!("--{name}-tls-key"), authority.file("weir.key")]);
        if with_ca {
            flags.extend([format!("--{name}-tls-client-ca"), authority.file("ca.pem")]);
        }
    }
    flags
}

fn serve(flags: &[String], more: &[&str]) -> Weir {
    let flags: Vec<&str> = flags.iter().map(String::as_str).chain(more.iter().copied()).collect();
    Weir::serve(BY_SUBJECT, &flags)
}

fn connect(address: SocketAddr, config: &Arc<ClientConfig>) -> StreamOwned<ClientConnection, TcpStream> {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let name = ServerName::try_from("weir.example").unwrap();
    StreamOwned::new(ClientConnection::new(config.clone(), name).unwrap(), stream)
}

/// Sends bytes and returns the first that come back.
fn say(address: SocketAddr, config: &Arc<ClientConfig>, bytes: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut stream = connect(address, config);
    stream.write_all(bytes)?;
    let mut answer = vec![0; 1024];
    let count = stream.read(&mut answer)?;
    answer.truncate(count);
    Ok(answer)
}

/// The first words of a client of a listener, and the beginning of the answer.
fn words(listener: &str) -> (Vec<u8>, &'static [u8]) {
    match listener {
        // HTTP/2's preface and empty settings; the answer is a frame of settings.
        "grpc" => (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec(), b"\0\0"),
        "spoe" => (crate::spoe::hello(), b"\0\0\0"),
        "check" => (b"GET / HTTP/1.1\r\nhost: a\r\n\r\n".to_vec(), b"HTTP/1.1 "),
        _ => (b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n".to_vec(), b"HTTP/1.1 200 "),
    }
}

/// A metric of a listener with mTLS.
fn scrape(weir: &Weir, authority: &Authority, series: &str) -> u64 {
    let request = b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    let mut stream = connect(weir.admin, &authority.client(Some("client"), &["http/1.1"]));
    stream.write_all(request).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let value = text.lines().find_map(|line| line.strip_prefix(series)?.trim().parse().ok());
    value.unwrap_or_else(|| panic!("no {series} in {text}"))
}

#[test]
fn each_listener_serves_its_peers_and_no_strangers() {
    let authority = authority();
    let weir = serve(&flags(&authority, &LISTENERS.map(|(name, _)| name), true), &[]);
    for (name, alpn) in LISTENERS {
        let address = weir.listener(name);
        let (sent, expected) = words(name);
        let answer = say(address, &authority.client(Some("client"), alpn), &sent).unwrap();
        assert!(answer.starts_with(expected), "{name}: {answer:?}");
        for (certificate, alert) in [(None, "CertificateRequired"), (Some("stranger"), "UnknownCA")] {
            let error = say(address, &authority.client(certificate, alpn), &sent).unwrap_err();
            assert!(error.to_string().contains(alert), "{name}: {error}");
        }
        // A gateway that negotiates nothing is served too.
        let answer = say(address, &authority.client(Some("client"), &[]), &sent).unwrap();
        assert!(answer.starts_with(expected), "{name}: {answer:?}");
        let handshakes = format!("weir_tls_handshakes_total{{kind=\"full\",listener=\"{name}\"}}");
        assert!(scrape(&weir, &authority, &handshakes) >= 2, "{name}");
    }
    let failed = "weir_http_connections_failed_total{reason=\"tls_handshake\"}";
    becomes("the failures are counted", 8, || scrape(&weir, &authority, failed));
    // No listener for HTTP/2 alone takes HTTP/1.1, nor the other way around.
    for (name, alpn) in [("grpc", "http/1.1"), ("admin", "h2")] {
        let error = say(weir.listener(name), &authority.client(Some("client"), &[alpn]), b"x").unwrap_err();
        assert!(error.to_string().contains("NoApplicationProtocol"), "{name}: {error}");
    }
}

#[test]
fn the_wrong_kind_of_port_is_told_apart_at_once() {
    let authority = authority();
    let failed = |reason: &str| format!("weir_http_connections_failed_total{{reason=\"{reason}\"}}");
    let weir = serve(&flags(&authority, &[], false), &[]);
    for (name, alpn) in LISTENERS {
        let error = say(weir.listener(name), &authority.client(None, alpn), b"x").unwrap_err();
        assert!(!error.to_string().contains("timed out"), "{name}: {error}");
    }
    becomes("each is counted", 4, || weir.metric(&failed("tls_on_plain_port")));
    weir.until_logged("add --spoe-tls-cert");

    let weir = serve(&flags(&authority, &["grpc", "check", "spoe"], false), &[]);
    for name in ["grpc", "check", "spoe"] {
        let mut wire = Wire::connect(weir.listener(name));
        wire.send(&words(name).0);
        if name == "spoe" {
            // An alert of TLS.
            assert_eq!(wire.exactly(1), [21]);
        } else {
            assert!(wire.response().text().contains("this port requires TLS"), "{name}");
        }
    }
    becomes("plain HTTP is counted", 2, || weir.metric(&failed("plain_http")));
    becomes("and other bytes", 1, || weir.metric(&failed("tls_handshake")));
}

#[test]
fn a_gateways_certificate_is_not_its_clients() {
    let authority = authority();
    let log = authority.file("access.log");
    let weir = serve(&flags(&authority, &["check"], true), &["--access-log", &log]);
    let call = b"GET /nginx HTTP/1.1\r\nhost: a\r\nx-original-method: GET\r\nx-original-uri: /orders\r\n\
        x-original-host: a.example\r\nx-real-ip: 192.0.2.1\r\n\r\n";
    for _ in 0..3 {
        let answer = say(weir.listener("check"), &authority.client(Some("client"), &[]), call).unwrap();
        let answer = String::from_utf8(answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    }
    let log = eventually("the requests are logged", || match fs::read_to_string(&log).unwrap_or_default() {
        text if text.lines().count() == 3 => Ok(text),
        text => Err(text),
    });
    assert!(!log.contains("CN="), "{log}");
}

#[test]
fn a_new_certificate_is_taken_without_a_failed_request() {
    let authority = authority();
    let weir = serve(&flags(&authority, &["check", "grpc"], true), &[]);
    let address = weir.listener("check");
    let get = |config: &Arc<ClientConfig>| say(address, config, &words("check").0);
    let config = authority.client(Some("client"), &[]);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Each request on a new connection.
        let load = scope.spawn(|| {
            let mut count = 0;
            while !is_over.load(Ordering::Relaxed) {
                assert!(get(&config).unwrap().starts_with(b"HTTP/1.1 "));
                count += 1;
            }
            count
        });
        authority.sign("weir", &["weir.example", "new.example"]);
        weir.signal("HUP");
        let reloads = |result: &str| weir.metric(&format!("weir_tls_reloads_total{{result=\"{result}\"}}"));
        becomes("both listeners have it", 2, || reloads("success"));
        fs::write(authority.path("weir.pem"), "broken").unwrap();
        weir.signal("HUP");
        becomes("both listeners keep the previous one", 2, || reloads("failure"));
        let ready = eventually("it is told", || match weir.admin("/readyz").text().to_owned() {
            text if text.contains("certificate_error") => Ok(text),
            text => Err(text),
        });
        assert!(ready.contains("degraded") && ready.contains("--check-tls-cert"), "{ready}");
        authority.sign("weir", &["weir.example"]);
        weir.signal("HUP");
        becomes("both have the next one", 4, || reloads("success"));
        assert!(!weir.admin("/readyz").text().contains("certificate_error"));
        is_over.store(true, Ordering::Relaxed);
        assert!(load.join().unwrap() > 0);
    });
    weir.hand_over();
    assert!(get(&config).unwrap().starts_with(b"HTTP/1.1 "), "after a hand-over");
}

#[test]
fn operators_commands_use_tls() {
    let authority = authority();
    let mut flags = flags(&authority, &["admin"], true);
    flags.extend(["--admin-token".to_owned(), "0123456789abcdef".to_owned()]);
    let weir = serve(&flags, &[]);
    let url = format!("https://{}", weir.admin);
    let address = weir.admin.to_string();
    let (ca, certificate, key) = (authority.file("ca.pem"), authority.file("client.pem"), authority.file("client.key"));
    let server = ["--admin-ca", &ca, "--admin-server-name", "weir.example"];
    let own = ["--admin-cert", &certificate, "--admin-key", &key];
    let all = [server, own].concat();
    let token = ["--admin-token", "0123456789abcdef"];
    for (arguments, code, expected) in [
        ([&["health", "--admin", &url][..], &all].concat(), 0, "ready"),
        ([&["health", "--admin", &address], &all[..]].concat(), 0, "ready"),
        ([&["bucket", "blocks", "--admin", &url], &all[..], &token].concat(), 0, ""),
        ([&["override", "list", "--admin", &url], &all[..]].concat(), 0, ""),
        ([&["health", "--admin", &url], &server[..]].concat(), 1, "CertificateRequired"),
        ([&["health", "--admin", &url], &own[..]].concat(), 1, "UnknownIssuer"),
        ([&["health", "--admin", &url, "--admin-ca", &ca], &own[..]].concat(), 1, "certificate not valid for name"),
        (["health", "--admin", &address].to_vec(), 1, "write `--admin https://"),
        (["override", "list", "--admin", &address].to_vec(), 3, "write `https://`"),
        ([&["health", "--admin", &format!("http://{address}")], &server[..]].concat(), 2, "certificates need https://"),
        (["health", "--admin", &url, "--admin-ca", "/none"].to_vec(), 2, "--admin-ca /none: No such file"),
    ] {
        let finished = binary::run(&arguments);
        assert!(finished.code == Some(code) && finished.text().contains(expected), "{arguments:?}: {finished:?}");
    }
}

#[test]
fn plaintext_that_others_can_reach_is_said_once() {
    let weir = Weir::serve(BY_SUBJECT, &["--check", "127.0.0.1:0", "--grpc", "127.0.0.1:0"]);
    assert!(!weir.log().contains("without TLS"), "{}", weir.log());
    let authority = authority();
    let (certificate, key) = (authority.file("weir.pem"), authority.file("weir.key"));
    let spoe = ["--spoe", "0.0.0.0:0", "--spoe-tls-cert", &certificate, "--spoe-tls-key", &key];
    let weir = Weir::serve(BY_SUBJECT, &[&["--check", "0.0.0.0:0", "--grpc", "127.0.0.1:0"], &spoe[..]].concat());
    weir.until_logged("other machines can reach these listeners without TLS");
    assert!(weir.log().contains("\"listeners\":\"check\""), "{}", weir.log());
}
