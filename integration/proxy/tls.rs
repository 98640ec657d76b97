//! TLS on the proxy, with real clients.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::symlink;
use std::process::Command;
use std::sync::Arc;

use rcgen::DnType;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, HandshakeKind, RootCertStore, StreamOwned};

use super::failed;
use crate::support::binary;
use crate::support::certificates::Authority;
use crate::support::process::finish;
use crate::support::programs::installed;
use crate::support::server::WIDE;
use crate::support::weir::Weir;
use crate::support::{PATIENCE, becomes, eventually};

fn client(authority: &Authority, certificate: Option<&str>) -> Arc<ClientConfig> {
    authority.client(certificate, &[])
}

struct Tls(StreamOwned<ClientConnection, TcpStream>);

impl Tls {
    fn connect(weir: &Weir, config: &Arc<ClientConfig>, host: &str) -> Self {
        let stream = TcpStream::connect(weir.proxy).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let name = ServerName::try_from(host.to_owned()).unwrap();
        Self(StreamOwned::new(ClientConnection::new(config.clone(), name).unwrap(), stream))
    }

    /// Sends a request for this host and returns the status and the rest.
    fn get(&mut self, host: &str) -> std::io::Result<(u16, String)> {
        self.0.write_all(format!("GET / HTTP/1.1\r\nhost: {host}\r\n\r\n").as_bytes())?;
        let mut text = String::new();
        let body = |text: &str| {
            let (head, body) = text.split_once("\r\n\r\n")?;
            let length = head.split("\r\n").find_map(|line| line.strip_prefix("content-length: "))?;
            (body.len() >= length.parse().unwrap()).then(|| body.to_owned())
        };
        let mut piece = [0; 4096];
        loop {
            if let Some(body) = body(&text) {
                return Ok((text[9..12].parse().unwrap(), body));
            }
            let count = self.0.read(&mut piece)?;
            assert!(count > 0, "the connection ended in {text:?}");
            text.push_str(std::str::from_utf8(&piece[..count]).unwrap());
        }
    }
}

fn serve(authority: &Authority, names: &[&str], limits: &str, more: &[&str]) -> Weir {
    let pairs = names.iter().flat_map(|name| {
        let [certificate, key] = ["pem", "key"].map(|kind| authority.file(&format!("{name}.{kind}")));
        ["--tls-cert".to_owned(), certificate, "--tls-key".to_owned(), key]
    });
    let flags: Vec<String> = pairs.chain(more.iter().map(ToString::to_string)).collect();
    Weir::serve(limits, &flags.iter().map(String::as_str).collect::<Vec<_>>())
}

#[test]
fn each_host_has_its_certificate_and_requests_for_others_are_misdirected() {
    let authority = Authority::new();
    authority.sign("one", &["one.example", "127.0.0.1"]);
    authority.sign("two", &["*.two.example"]);
    let weir = serve(&authority, &["one", "two"], WIDE, &[]);
    let config = client(&authority, None);
    for (name, host, status) in [
        ("one.example", "one.example", 200),
        ("one.example", "one.example:8443", 200),
        ("a.two.example", "a.two.example", 200),
        ("a.two.example", "B.two.example", 200),
        ("127.0.0.1", "127.0.0.1", 200),
        ("one.example", "a.two.example", 421),
        ("a.two.example", "one.example", 421),
        // A client that connects to an address names no host, so it is not misdirected.
        ("127.0.0.1", "a.two.example", 200),
        ("127.0.0.1", "none.example", 200),
        // A host without a certificate gets the first one.
        ("one.example", "none.example", 200),
        ("a.two.example", "none.example", 421),
    ] {
        let (found, body) = Tls::connect(&weir, &config, name).get(host).unwrap();
        assert_eq!(found, status, "{name} {host}: {body}");
        assert!(status != 200 || body.contains("[\"x-forwarded-proto\",\"https\"]"), "{body}");
    }
}

#[test]
fn new_files_are_taken_and_connections_stay() {
    let authority = Authority::new();
    authority.sign("own", &["old.example"]);
    let weir = serve(&authority, &["own"], WIDE, &[]);
    let fresh = |name: &str| Tls::connect(&weir, &client(&authority, None), name).get(name);
    let mut open = Tls::connect(&weir, &client(&authority, None), "old.example");
    assert_eq!(open.get("old.example").unwrap().0, 200);
    authority.sign("own", &["new.example"]);
    weir.signal("HUP");
    eventually("the new certificate is shown", || fresh("new.example"));
    fresh("old.example").unwrap_err();
    assert_eq!(open.get("old.example").unwrap().0, 200);
    assert_eq!(weir.metric("weir_tls_reloads_total{result=\"success\"}"), 1);

    fs::write(authority.path("own.pem"), "broken").unwrap();
    weir.signal("HUP");
    becomes("the failure is counted", 1, || weir.metric("weir_tls_reloads_total{result=\"failure\"}"));
    weir.until_logged("no certificate in the file");
    fresh("new.example").unwrap();
    assert_eq!(open.get("old.example").unwrap().0, 200);
}

#[test]
fn a_kubernetes_volume_is_followed_without_a_signal() {
    // `tls.crt` -> `..data/tls.crt`, and `..data` is replaced, as the kubelet does.
    let authority = Authority::new();
    for version in ["1", "2"] {
        authority.sign(version, &[&format!("v{version}.example")]);
        fs::create_dir(authority.path(&format!("..{version}"))).unwrap();
        for (from, to) in [("pem", "tls.crt"), ("key", "tls.key")] {
            fs::rename(authority.path(&format!("{version}.{from}")), authority.path(&format!("..{version}/{to}")))
                .unwrap();
        }
    }
    symlink("..1", authority.path("..data")).unwrap();
    symlink("..data/tls.crt", authority.path("tls.pem")).unwrap();
    symlink("..data/tls.key", authority.path("tls.key")).unwrap();
    let weir = serve(&authority, &["tls"], WIDE, &[]);
    let fresh = |name: &str| Tls::connect(&weir, &client(&authority, None), name).get(name);
    fresh("v1.example").unwrap();
    symlink("..2", authority.path("..data_tmp")).unwrap();
    fs::rename(authority.path("..data_tmp"), authority.path("..data")).unwrap();
    eventually("the new certificate is shown", || fresh("v2.example"));
    assert_eq!(weir.metric("weir_tls_reloads_total{result=\"failure\"}"), 0);
}

#[test]
fn sessions_are_resumed_by_any_worker() {
    let authority = Authority::new();
    authority.sign("own", &["a.example"]);
    let weir = serve(&authority, &["own"], WIDE, &["--workers", "2"]);
    for versions in [&[&rustls::version::TLS13], &[&rustls::version::TLS12]] {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider).with_protocol_versions(versions).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(authority.path("ca.pem")).unwrap()).unwrap();
        let config = Arc::new(config.with_root_certificates(roots).with_no_client_auth());
        // All sixteen connections go to one worker only once in 32,768 runs.
        for number in 0..16 {
            let mut client = Tls::connect(&weir, &config, "a.example");
            assert_eq!(client.get("a.example").unwrap().0, 200);
            let kind = client.0.conn.handshake_kind().unwrap();
            assert_eq!(kind == HandshakeKind::Resumed, number > 0, "connection {number}: {kind:?}");
        }
    }
    assert_eq!(weir.metric("weir_tls_handshakes_total{kind=\"resumed\",listener=\"proxy\"}"), 30);
    assert_eq!(weir.metric("weir_tls_handshakes_total{kind=\"full\",listener=\"proxy\"}"), 2);
}

const PER_CLIENT: &str = "limits: { PerClient: { by: { tls: subject }, burst: 1, count: 1, period: 1h } }\n\
    overrides: { \"PerClient:CN=rich,O=Acme\": { unlimited: true } }";

#[test]
fn the_subject_of_a_certificate_is_an_id() {
    let authority = Authority::new();
    for name in ["own", "poor", "other", "rich"] {
        authority.sign(name, &["a.example"]);
    }
    let ca = authority.file("ca.pem");
    let weir = serve(&authority, &["own"], PER_CLIENT, &["--tls-client-ca", &ca, "--tls-client-auth", "request"]);
    for (name, expected) in [
        (Some("poor"), [200, 429]),
        (Some("other"), [200, 429]),
        (Some("rich"), [200, 200]),
        // Without a certificate the request lacks the id.
        (None, [200, 200]),
    ] {
        let statuses = expected.map(|_| {
            // On new connections each: the bucket is the client's.
            Tls::connect(&weir, &client(&authority, name), "a.example").get("a.example").unwrap().0
        });
        assert_eq!(statuses, expected, "{name:?}");
    }
}

#[test]
fn subjects_read_as_those_of_openssl() {
    let authority = Authority::new();
    authority.sign("own", &["a.example"]);
    authority.sign_with("client", &[], |subject| {
        subject.push(DnType::CountryName, "DE");
        subject.push(DnType::OrganizationalUnitName, " #1, \"x\" + <y>; \\ = ü\t ");
        for (attribute, text) in [
            (&[2, 5, 4, 5][..], "4711"),
            (&[2, 5, 4, 9], "Street 1"),
            (&[0, 9, 2342, 19_200_300, 100, 1, 1], "user"),
            (&[1, 2, 840, 113_549, 1, 9, 1], "a@b.example"),
            (&[1, 3, 6, 1, 4, 1, 99_999, 1], "of nobody"),
        ] {
            subject.push(DnType::CustomDnType(attribute.to_vec()), text);
        }
    });
    // Text beyond ASCII is not escaped, which RFC 4514 allows and OpenSSL does without `esc_msb`.
    let file = authority.file("client.pem");
    let text = installed("openssl", &["x509", "-noout", "-subject", "-nameopt", "RFC2253,-esc_msb", "-in", &file]);
    let subject = text.trim_end().strip_prefix("subject=").unwrap();
    assert!(subject.contains("a@b.example") && subject.contains("ü"), "{subject}");
    // Only this id passes.
    let id = serde_json::to_string(&format!("PerClient:{subject}")).unwrap();
    let limits = format!(
        "limits: {{ PerClient: {{ by: {{ tls: subject }}, deny: true }} }}\noverrides: {{ {id}: {{ unlimited: true }} }}"
    );
    let weir = serve(&authority, &["own"], &limits, &["--tls-client-ca", &authority.file("ca.pem")]);
    let client = client(&authority, Some("client"));
    let (status, body) = Tls::connect(&weir, &client, "a.example").get("a.example").unwrap();
    assert_eq!(status, 200, "{subject}: {body}");
}

#[test]
fn a_client_without_a_certificate_is_rejected_where_one_is_required() {
    let (authority, others) = (Authority::new(), Authority::new());
    authority.sign("own", &["a.example"]);
    authority.sign("known", &[]);
    others.sign("stranger", &[]);
    let weir = serve(&authority, &["own"], WIDE, &["--tls-client-ca", &authority.file("ca.pem")]);
    let known = client(&authority, Some("known"));
    assert_eq!(Tls::connect(&weir, &known, "a.example").get("a.example").unwrap().0, 200);
    let error = Tls::connect(&weir, &client(&authority, None), "a.example").get("a.example").unwrap_err();
    assert!(error.to_string().contains("CertificateRequired"), "{error}");
    for kind in ["pem", "key"] {
        fs::copy(others.path(&format!("stranger.{kind}")), authority.path(&format!("stranger.{kind}"))).unwrap();
    }
    let error = Tls::connect(&weir, &client(&authority, Some("stranger")), "a.example").get("a.example").unwrap_err();
    assert!(error.to_string().contains("UnknownCA"), "{error}");
    becomes("the failures are counted", 2, || weir.metric(&failed("tls_handshake")));
}

#[test]
fn a_handshake_has_a_deadline() {
    let authority = Authority::new();
    authority.sign("own", &["a.example"]);
    let weir = serve(&authority, &["own"], WIDE, &["--tls-handshake-timeout", "100ms"]);
    let mut wire = weir.connect();
    // The beginning of a record that never completes.
    wire.send([22, 3, 1, 1, 0, 1]);
    wire.expect_end();
    becomes("the failures are counted", 1, || weir.metric(&failed("tls_handshake_timeout")));
}

#[test]
fn plain_http_is_told_that_the_port_speaks_tls() {
    let authority = Authority::new();
    authority.sign("own", &["a.example"]);
    let weir = serve(&authority, &["own"], WIDE, &[]);
    let mut wire = weir.connect();
    let response = wire.get("/");
    assert_eq!((response.status(), response.text()), (400, "this port requires TLS: use https:// instead of http://"));
    wire.expect_end();
    let mut wire = weir.connect();
    wire.send([0x80, 0x2e, 1, 0, 2]);
    becomes("the failures are counted", 1, || weir.metric(&failed("tls_handshake")));
    becomes("the failures are counted", 1, || weir.metric(&failed("plain_http")));
}

/// The output of `openssl s_client`.
fn s_client(weir: &Weir, arguments: &[&str]) -> String {
    finish(Command::new("openssl").args(["s_client", "-connect", &weir.proxy.to_string()]).args(arguments)).text()
}

#[test]
fn openssl_agrees_on_versions_and_protocols() {
    let authority = Authority::new();
    authority.sign("own", &["a.example"]);
    let weir = serve(&authority, &["own"], WIDE, &[]);
    let ca = authority.file("ca.pem");
    for (arguments, expected) in [
        (&["-tls1_3", "-alpn", "h2,http/1.1"][..], &["TLSv1.3", "ALPN protocol: h2", "Verify return code: 0"][..]),
        (&["-tls1_2", "-alpn", "http/1.1"], &["TLSv1.2", "ALPN protocol: http/1.1", "Verify return code: 0"]),
        (&["-tls1_2"], &["No ALPN negotiated"]),
        (&["-alpn", "spdy/3"], &["no application protocol"]),
        (&["-tls1_1", "-cipher", "ALL:@SECLEVEL=0"], &["no peer certificate available"]),
    ] {
        let arguments = [arguments, &["-servername", "a.example", "-CAfile", &ca]].concat();
        let text = s_client(&weir, &arguments);
        for part in expected {
            assert!(text.contains(part), "{part} is not in what {arguments:?} printed:\n{text}");
        }
    }
}

#[test]
fn files_that_are_wrong_keep_it_from_starting() {
    let authority = Authority::new();
    authority.sign("own", &["a.example"]);
    authority.sign("other", &["a.example"]);
    fs::write(authority.path("limits.yaml"), WIDE).unwrap();
    for (flags, code, message) in [
        (&["--tls-cert", "own.pem"][..], 2, "error: --tls-cert needs --tls-key"),
        (&["--tls-cert", "no.pem", "--tls-key", "own.key"], 1, "error: --tls-cert no.pem: No such file"),
        (&["--tls-cert", "own.pem", "--tls-key", "other.key"], 1, "error: --tls-key other.key: the key does not match"),
        (&["--tls-client-ca", "ca.pem"], 2, "--tls-cert"),
    ] {
        let serve = binary::run_in(&authority.path(""), &Weir::arguments(flags));
        assert!(serve.code == Some(code) && serve.err.contains(message), "{flags:?}: {serve:?}");
    }
}
