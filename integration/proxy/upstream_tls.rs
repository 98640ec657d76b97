//! Upstreams over TLS: which certificates the proxy accepts.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair, date_time_ymd};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use weir::http::{Connector, ConnectorOptions, Routes, UpstreamOptions};

use crate::support::certificates::Authority;
use crate::support::server::{Setup, WIDE, Weir};
use crate::support::upstream::ok;
use crate::support::wire::Message;

/// A server with a certificate of its own authority.
pub(super) struct TlsUpstream {
    pub(super) address: SocketAddr,
    pub(super) authority: Authority,
}

impl TlsUpstream {
    /// Answers in HTTP/1.1 with the name from SNI, and with the hosts of the request as headers.
    pub(super) fn start(names: &[&str]) -> Self {
        Self::choosing(names, &[])
    }

    /// Like [`Self::start`], with the client's first protocol among these.
    fn choosing(names: &[&str], protocols: &[&str]) -> Self {
        let authority = Authority::new();
        let config = server_config(&authority, names);
        Self::serving(authority, config, protocols)
    }

    fn serving(authority: Authority, mut config: ServerConfig, protocols: &[&str]) -> Self {
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
        let config = Arc::new(config);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let connection = ServerConnection::new(config.clone()).unwrap();
                let mut stream = StreamOwned::new(connection, stream.unwrap());
                std::thread::spawn(move || {
                    while let Some(head) = read_head(&mut stream) {
                        let name = stream.conn.server_name().unwrap_or("nobody").to_owned();
                        let header = |name: &str| {
                            head.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().to_owned()
                        };
                        let (host, forwarded) = (header("host: "), header("x-forwarded-host: "));
                        let seen = format!("\r\nx-seen-host: {host}\r\nx-seen-forwarded-host: {forwarded}\r\n");
                        let answer = ok(&name).replacen("\r\n", &seen, 1);
                        if stream.write_all(answer.as_bytes()).is_err() {
                            return;
                        }
                    }
                });
            }
        });
        Self { address, authority }
    }

    fn ca(&self) -> PathBuf {
        self.authority.path("ca.pem")
    }

    fn port(&self) -> u16 {
        self.address.port()
    }
}

/// The configuration of a server with a certificate for these names.
pub(super) fn server_config(authority: &Authority, names: &[&str]) -> ServerConfig {
    authority.sign("upstream", names);
    config_of(authority, "upstream")
}

/// The configuration of a server with this certificate.
fn config_of(authority: &Authority, name: &str) -> ServerConfig {
    let certificate = CertificateDer::from_pem_file(authority.path(&format!("{name}.pem"))).unwrap();
    let key = PrivateKeyDer::from_pem_file(authority.path(&format!("{name}.key"))).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .unwrap()
}

/// Reads a head; `None` at the end of the stream.
fn read_head(stream: &mut impl Read) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).ok()?;
        head.extend(byte);
    }
    Some(String::from_utf8(head).unwrap())
}

/// A proxy in front of this server that trusts this authority.
pub(super) fn weir(url: &str, ca: Option<&Path>, server_name: Option<&str>) -> Weir {
    let options = ConnectorOptions {
        ca: ca.map(Path::to_path_buf),
        server_name: server_name.map(str::to_owned),
        ..ConnectorOptions::default()
    };
    let (connector, _) = Connector::load(&options).unwrap();
    let upstream = UpstreamOptions { tls: Some(connector), ..UpstreamOptions::new(Routes::parse(&[url]).unwrap()) };
    Setup::new(WIDE).start_with(upstream)
}

#[track_caller]
fn check_rejected(weir: &Weir, response: &Message) {
    assert_eq!(response.status(), 502, "{}", response.text());
    assert!(response.text().contains("cannot be reached"), "{}", response.text());
    assert!(weir.metric("weir_upstream_errors_total{reason=\"connect\"}") >= 1);
}

#[test]
fn a_certificate_for_the_name_by_the_authority_is_believed() {
    let upstream = TlsUpstream::start(&["localhost"]);
    let weir = weir(&format!("https://localhost:{}", upstream.port()), Some(&upstream.ca()), None);
    let mut client = weir.connect();
    for _ in 0..3 {
        assert_eq!(client.get("/").text(), "localhost");
    }
}

#[test]
fn an_address_is_a_name_too() {
    let upstream = TlsUpstream::start(&["127.0.0.1"]);
    let weir = weir(&format!("https://{}", upstream.address), Some(&upstream.ca()), None);
    // RFC 6066 section 3: addresses have no SNI.
    assert_eq!(weir.connect().get("/").text(), "nobody");
}

#[test]
fn a_certificate_for_another_name_is_rejected() {
    let upstream = TlsUpstream::start(&["api.example.com"]);
    let weir = weir(&format!("https://localhost:{}", upstream.port()), Some(&upstream.ca()), None);
    check_rejected(&weir, &weir.connect().get("/"));
}

#[test]
fn the_name_that_is_wanted_can_be_given() {
    let upstream = TlsUpstream::start(&["api.example.com"]);
    let url = format!("https://{}", upstream.address);
    let weir = weir(&url, Some(&upstream.ca()), Some("api.example.com"));
    assert_eq!(weir.connect().get("/").text(), "api.example.com");
}

#[test]
fn a_certificate_of_another_authority_is_rejected() {
    let (upstream, other) = (TlsUpstream::start(&["localhost"]), TlsUpstream::start(&["localhost"]));
    for ca in [None, Some(other.ca())] {
        let weir = weir(&format!("https://localhost:{}", upstream.port()), ca.as_deref(), None);
        check_rejected(&weir, &weir.connect().get("/"));
    }
}

#[test]
fn an_upstream_without_tls_is_rejected() {
    let upstream = crate::support::upstream::Upstream::start(|wire, _| {
        wire.send("HTTP/1.1 400 Bad Request\r\n\r\n");
    });
    let weir = weir(&format!("https://{}", upstream.address), None, None);
    check_rejected(&weir, &weir.connect().get("/"));
}

#[test]
fn an_upgrade_is_never_asked_for_in_http2() {
    let upstream = TlsUpstream::choosing(&["localhost"], &["h2", "http/1.1"]);
    let weir = weir(&format!("https://localhost:{}", upstream.port()), Some(&upstream.ca()), None);
    let upgrade = [("connection", "upgrade"), ("upgrade", "websocket")];
    assert_eq!(weir.connect().get_with("/", &upgrade).text(), "localhost");
}

/// A certificate as `openssl req -x509` makes it: signed by itself, and an authority.
fn sign_itself(authority: &Authority, name: &str, valid_until: i32) {
    let mut params = CertificateParams::new(["localhost".to_owned()]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.not_after = date_time_ymd(valid_until, 1, 1);
    let key = KeyPair::generate().unwrap();
    std::fs::write(authority.path(&format!("{name}.pem")), params.self_signed(&key).unwrap().pem()).unwrap();
    std::fs::write(authority.path(&format!("{name}.key")), key.serialize_pem()).unwrap();
}

#[test]
fn a_certificate_that_is_its_own_authority_is_believed_if_it_is_listed() {
    let authority = Authority::new();
    for (name, valid_until) in [("own", 2100), ("other", 2100), ("old", 2020)] {
        sign_itself(&authority, name, valid_until);
    }
    for (shown, listed, url_host, is_believed) in [
        ("own", "own", "localhost", true),
        ("own", "other", "localhost", false),
        ("own", "own", "127.0.0.1", false),
        ("old", "old", "localhost", false),
    ] {
        let config = config_of(&authority, shown);
        let upstream = TlsUpstream::serving(Authority::new(), config, &[]);
        let url = format!("https://{url_host}:{}", upstream.port());
        let weir = weir(&url, Some(&authority.path(&format!("{listed}.pem"))), None);
        let response = weir.connect().get("/");
        if is_believed {
            assert_eq!(response.text(), "localhost", "{shown} {listed} {url_host}");
        } else {
            check_rejected(&weir, &response);
        }
    }
}
