//! Both sides of TLS against each other.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, IsCa, KeyPair};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use super::super::Stream;
use super::*;

mod mistakes;

/// An authority, and the directory with all that it has signed.
struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    directory: TempDir,
}

impl Authority {
    fn new(name: &str) -> Self {
        let mut params = CertificateParams::new([]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("ca.pem"), issuer.pem()).unwrap();
        Self { issuer, directory }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn ca(&self) -> PathBuf {
        self.path("ca.pem")
    }

    /// Signs a certificate for these hosts, whose subject has this common name.
    fn sign(&self, name: &str, hosts: &[&str]) -> KeyPairFiles {
        self.sign_with(name, hosts, |_| {})
    }

    fn sign_with(&self, name: &str, hosts: &[&str], change: impl FnOnce(&mut CertificateParams)) -> KeyPairFiles {
        let hosts: Vec<_> = hosts.iter().map(ToString::to_string).collect();
        let mut params = CertificateParams::new(hosts).unwrap();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        let files =
            KeyPairFiles { certificate: self.path(&format!("{name}.pem")), key: self.path(&format!("{name}.key")) };
        fs::write(&files.certificate, params.signed_by(&key, &self.issuer).unwrap().pem()).unwrap();
        fs::write(&files.key, key.serialize_pem()).unwrap();
        files
    }
}

fn server(certificates: &[KeyPairFiles], client_ca: Option<(PathBuf, ClientAuth)>) -> Arc<ServerTls> {
    let options = ServerTlsOptions { certificates: certificates.to_vec(), client_ca, ..ServerTlsOptions::default() };
    ServerTls::load(&options).unwrap().0
}

fn connector(authority: &Authority, change: impl FnOnce(&mut ConnectorOptions)) -> Connector {
    let mut options = ConnectorOptions { ca: Some(authority.ca()), ..ConnectorOptions::default() };
    change(&mut options);
    Connector::load(&options).unwrap().0
}

/// Connects one to the other and sends a byte each way. What each side learned, or what the client made of it.
async fn meet(server: &ServerTls, connector: &Connector, host: &str) -> Result<(TlsInfo, bool), String> {
    let (one, other) = UnixStream::pair().unwrap();
    let serving = async {
        let (mut stream, info) = server.accept(Stream::Unix(other)).await?;
        stream.write_all(b"!").await?;
        stream.read_u8().await?;
        std::io::Result::Ok(info)
    };
    let asking = async {
        let (mut stream, is_http2) = connector.connect(host, Stream::Unix(one), true).await?;
        // The server verifies the client after the client's last word of the handshake, so its refusal is read.
        stream.read_u8().await?;
        stream.write_all(b"?").await?;
        std::io::Result::Ok(is_http2)
    };
    let (served, asked) = tokio::join!(serving, asking);
    let asked = asked.map_err(|error| error.to_string())?;
    Ok((served.map_err(|error| error.to_string())?, asked))
}

#[tokio::test]
async fn a_client_is_shown_the_certificate_for_the_host_that_it_names() {
    let authority = Authority::new("authority");
    let certificates = [
        authority.sign("first", &["example.com", "192.0.2.1"]),
        authority.sign("wild", &["*.example.com"]),
        authority.sign("exact", &["a.example.com", "b.example.net"]),
    ];
    let server = server(&certificates, None);
    let connector = connector(&authority, |_| {});
    // A client accepts only a certificate that is for the host, so that it connects shows that it was the right one.
    for (host, covered, uncovered) in [
        // A host without a certificate gets the first one.
        ("example.com", &["example.com", "other.example"][..], &["a.example.com"][..]),
        ("a.example.com", &["b.example.net"], &["c.example.com", "other.example"]),
        ("b.example.net", &["a.example.com"], &["example.com"]),
        ("C.example.com", &["d.example.com"], &["example.com"]),
        // A client that connects to an address names no host.
        ("192.0.2.1", &["192.0.2.1", "b.example.net", "other.example"], &[]),
    ] {
        let (info, _) = meet(&server, &connector, host).await.unwrap();
        assert!(covered.iter().all(|other| info.covers(other)), "{host} {covered:?}");
        assert!(!uncovered.iter().any(|other| info.covers(other)), "{host} {uncovered:?}");
    }
    let error = meet(&server, &connector, "other.example").await.unwrap_err();
    assert!(error.contains("not valid for name \"other.example\""), "{error}");
}

#[tokio::test]
async fn one_certificate_alone_is_for_every_request() {
    let authority = Authority::new("authority");
    let server = server(&[authority.sign("only", &["a.example"])], None);
    let (info, is_http2) = meet(&server, &connector(&authority, |_| {}), "a.example").await.unwrap();
    assert!(info.covers("b.example"));
    assert_eq!(
        (info.server_name.as_deref(), info.protocol, info.subject.as_deref()),
        (Some("a.example"), "TLSv1.3", None)
    );
    assert!(is_http2 && info.is_http2);
}

#[tokio::test]
async fn an_upstream_must_be_who_it_should_be() {
    let (authority, other) = (Authority::new("authority"), Authority::new("other"));
    let server = server(&[authority.sign("upstream", &["up.example", "127.0.0.1", "::1"])], None);
    for host in ["up.example", "127.0.0.1", "::1", "[::1]"] {
        meet(&server, &connector(&authority, |_| {}), host).await.unwrap();
    }
    let refused = |connector, host: &'static str| {
        let server = Arc::clone(&server);
        async move { meet(&server, &connector, host).await.unwrap_err() }
    };
    let error = refused(connector(&authority, |_| {}), "else.example").await;
    assert!(error.contains("not valid for name"), "{error}");
    let error = refused(connector(&other, |_| {}), "up.example").await;
    assert!(error.contains("UnknownIssuer"), "{error}");
    let error = refused(connector(&authority, |options| options.ca = None), "up.example").await;
    assert!(error.contains("UnknownIssuer"), "{error}");
    let named = |name: &str| {
        let name = Some(name.to_owned());
        connector(&authority, |options| options.server_name = name)
    };
    meet(&server, &named("up.example"), "else.example").await.unwrap();
    let error = refused(named("else.example"), "up.example").await;
    assert!(error.contains("not valid for name \"else.example\""), "{error}");
    let error = refused(connector(&authority, |_| {}), "a b").await;
    assert!(error.contains("`a b` is not a valid host for a certificate"), "{error}");
}

#[tokio::test]
async fn a_client_shows_who_it_is() {
    let (authority, other) = (Authority::new("authority"), Authority::new("other"));
    let own = authority.sign("upstream", &["up.example"]);
    let required = server(std::slice::from_ref(&own), Some((authority.ca(), ClientAuth::Require)));
    let requested = server(&[own], Some((authority.ca(), ClientAuth::Request)));
    let client = |certificate: Option<KeyPairFiles>| connector(&authority, |options| options.certificate = certificate);
    let known = client(Some(authority.sign_with("client 1", &[], |params| {
        params.distinguished_name.push(DnType::OrganizationName, "Acme, Inc.");
    })));
    for server in [&required, &requested] {
        let (info, _) = meet(server, &known, "up.example").await.unwrap();
        assert_eq!(info.subject.as_deref(), Some("O=Acme\\, Inc.,CN=client 1"));
        // It comes back with a ticket, which must still say who it is.
        let (info, _) = meet(server, &known, "up.example").await.unwrap();
        assert!(info.is_resumed);
        assert_eq!(info.subject.as_deref(), Some("O=Acme\\, Inc.,CN=client 1"));
    }
    let error = meet(&required, &client(None), "up.example").await.unwrap_err();
    assert!(error.contains("CertificateRequired"), "{error}");
    let (info, _) = meet(&requested, &client(None), "up.example").await.unwrap();
    assert_eq!(info.subject, None);
    let stranger = client(Some(other.sign("stranger", &[])));
    for server in [&required, &requested] {
        let error = meet(server, &stranger, "up.example").await.unwrap_err();
        assert!(error.contains("UnknownCA"), "{error}");
    }
}

#[tokio::test]
async fn new_files_are_for_new_connections() {
    let authority = Authority::new("authority");
    let files = authority.sign("server", &["a.example"]);
    let options = ServerTlsOptions { certificates: vec![files.clone()], ..ServerTlsOptions::default() };
    let (server, mut reloader) = ServerTls::load(&options).unwrap();
    // Each a new one: who comes back with a ticket is not shown the certificate again.
    let new = || connector(&authority, |_| {});
    assert_eq!((reloader.reload(false), reloader.reload(true)), (None, None));
    meet(&server, &new(), "a.example").await.unwrap();

    let key = fs::read(&files.key).unwrap();
    authority.sign("server", &["b.example"]);
    let new_key = fs::read(&files.key).unwrap();
    // Halfway: the certificate is new and the key is not yet. Nothing is said at the first sight of it.
    fs::write(&files.key, &key).unwrap();
    assert_eq!(reloader.reload(false), None);
    meet(&server, &new(), "a.example").await.unwrap();
    fs::write(&files.key, &new_key).unwrap();
    assert_eq!(reloader.reload(false), Some(Ok(())));
    meet(&server, &new(), "b.example").await.unwrap();
    meet(&server, &new(), "a.example").await.unwrap_err();

    // What stays broken is said once, at the second look; what somebody asks for is said at once.
    fs::write(&files.key, &key).unwrap();
    for expected in [None, Some(true), None] {
        assert_eq!(reloader.reload(false).map(|reloaded| reloaded.is_err()), expected);
    }
    fs::remove_file(&files.certificate).unwrap();
    assert!(matches!(reloader.reload(true), Some(Err(_))));
    meet(&server, &new(), "b.example").await.unwrap();
    authority.sign("server", &["a.example"]);
    assert_eq!(reloader.reload(false), Some(Ok(())));
    meet(&server, &new(), "a.example").await.unwrap();
}

#[tokio::test]
async fn who_was_verified_by_authorities_of_before_is_verified_again() {
    let (authority, other) = (Authority::new("authority"), Authority::new("other"));
    let certificates = vec![authority.sign("server", &["a.example"])];
    let clients = authority.path("clients.pem");
    fs::copy(authority.ca(), &clients).unwrap();
    let options = ServerTlsOptions {
        certificates,
        client_ca: Some((clients.clone(), ClientAuth::Require)),
        ..ServerTlsOptions::default()
    };
    let (server, mut reloader) = ServerTls::load(&options).unwrap();
    let own = authority.sign("client", &[]);
    let connector = connector(&authority, |options| options.certificate = Some(own));
    meet(&server, &connector, "a.example").await.unwrap();
    authority.sign("server", &["a.example"]);
    reloader.reload(true);
    assert!(meet(&server, &connector, "a.example").await.unwrap().0.is_resumed, "a new certificate keeps the tickets");
    fs::copy(other.ca(), &clients).unwrap();
    reloader.reload(true);
    let error = meet(&server, &connector, "a.example").await.unwrap_err();
    assert!(error.contains("UnknownCA"), "{error}");
}

#[tokio::test]
async fn the_certificate_shown_to_upstreams_is_replaced_too() {
    let authority = Authority::new("authority");
    let server = server(&[authority.sign("server", &["a.example"])], Some((authority.ca(), ClientAuth::Require)));
    let certificate = authority.sign("one", &[]);
    let options = ConnectorOptions {
        ca: Some(authority.ca()),
        certificate: Some(certificate.clone()),
        ..ConnectorOptions::default()
    };
    let (connector, mut reloader) = Connector::load(&options).unwrap();
    let (info, _) = meet(&server, &connector, "a.example").await.unwrap();
    assert_eq!(info.subject.as_deref(), Some("CN=one"));
    let two = authority.sign("two", &[]);
    fs::copy(two.certificate, &certificate.certificate).unwrap();
    fs::copy(two.key, &certificate.key).unwrap();
    reloader.reload(true);
    let (info, _) = meet(&server, &connector, "a.example").await.unwrap();
    assert_eq!(info.subject.as_deref(), Some("CN=two"));
}
