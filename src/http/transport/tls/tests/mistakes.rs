//! Files with mistakes, and what is said of them.

use std::fs;
use std::path::Path;

use rcgen::{CertificateParams, date_time_ymd};

use super::super::files::{WatchedFiles, load, pair};
use super::super::{ClientAuth, Connector, ConnectorOptions, KeyPairFiles, ServerTls, ServerTlsOptions};
use super::Authority;

#[test]
fn certificates_that_clients_refuse_are_shown_with_a_warning() {
    let authority = Authority::new("authority");
    let now = std::time::SystemTime::now();
    let warning = |hosts: &[&str], change: fn(&mut CertificateParams)| {
        let pair = pair(&authority.sign_with("a", hosts, change), ["--tls-cert", "--tls-key"]);
        let provider = rustls::crypto::aws_lc_rs::default_provider();
        let loaded = WatchedFiles::load(pair.to_vec(), |contents| load(&contents[0], &contents[1], &provider));
        loaded.unwrap().1.warning(now).map(|warning| warning.to_string())
    };
    assert_eq!(warning(&["a.example"], |_| {}), None);
    let expired: fn(&mut CertificateParams) = |params| params.not_after = date_time_ymd(2020, 1, 1);
    for (hosts, change, expected) in [
        (&["a.example"][..], expired, "has expired;"),
        (&["a.example"], |params| params.not_before = date_time_ymd(3000, 1, 1), "is not valid yet;"),
        (&[], |_| {}, "names no host: it has no subjectAltName;"),
    ] {
        let warning = warning(hosts, change).unwrap();
        assert!(warning.starts_with("--tls-cert ") && warning.contains(expected), "{warning}");
    }
}

/// What is wrong with these files, without the directory.
#[track_caller]
fn check(directory: &Path, certificates: &[(&str, &str)], client_ca: Option<&str>, expected: &str) {
    let pair = |(certificate, key): &(&str, &str)| KeyPairFiles {
        certificate: directory.join(certificate),
        key: directory.join(key),
    };
    let options = ServerTlsOptions {
        certificates: certificates.iter().map(pair).collect(),
        client_ca: client_ca.map(|path| (directory.join(path), ClientAuth::Require)),
        ..ServerTlsOptions::default()
    };
    let error = match ServerTls::load(&options) {
        Ok(_) => "fine".to_owned(),
        Err(error) => error.to_string().replace(&format!("{}/", directory.display()), ""),
    };
    assert_eq!(error, expected);
}

#[test]
fn mistakes_in_files_are_named() {
    let authority = Authority::new("authority");
    let directory = authority.directory.path();
    let (a, b) = (authority.sign("a", &["a.example"]), authority.sign("b", &["b.example"]));
    authority.sign_with("old", &["old.example"], |params| params.not_after = date_time_ymd(2020, 1, 1));
    let read = |path: &Path| fs::read_to_string(path).unwrap();
    let write = |name: &str, text: &str| fs::write(directory.join(name), text).unwrap();
    let certificate = read(&a.certificate);
    write("chain.pem", &[read(&authority.ca()), certificate.clone()].concat());
    write("both.pem", &[certificate.clone(), read(&a.key)].concat());
    write("text.pem", "no PEM at all");
    write("empty.pem", "");
    write("cut.pem", &certificate[..certificate.len() - 30]);
    write("base64.pem", &certificate.replacen("MII", "M!I", 1));
    write("der.pem", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
    write("encrypted.key", "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n");
    write("bad.key", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n");
    write("long.pem", &"x".repeat(1024 * 1024 + 1));
    for (pairs, client_ca, expected) in [
        (&[("a.pem", "a.key"), ("b.pem", "b.key")][..], Some("ca.pem"), "fine"),
        (&[("both.pem", "both.pem")], None, "fine"),
        // It is served, with a warning: a clock that is wrong must not keep a proxy from starting.
        (&[("old.pem", "old.key")], None, "fine"),
        (&[("none.pem", "a.key")], None, "--tls-cert none.pem: No such file or directory (os error 2)"),
        (&[("a.pem", "none.key")], None, "--tls-key none.key: No such file or directory (os error 2)"),
        (&[("a.pem", "a.key")], Some("none.pem"), "--tls-client-ca none.pem: No such file or directory (os error 2)"),
        (&[("", "a.key")], None, "--tls-cert : Is a directory (os error 21)"),
        (
            &[("text.pem", "a.key")],
            None,
            "--tls-cert text.pem: no certificate in the file; expected PEM with a line `-----BEGIN CERTIFICATE-----`",
        ),
        (
            &[("a.key", "a.pem")],
            None,
            "--tls-cert a.key: no certificate in the file; it contains a private key; are the two files swapped?",
        ),
        (
            &[("a.pem", "a.pem")],
            None,
            "--tls-key a.pem: no private key in the file; it contains a certificate; are the two files swapped?",
        ),
        (
            &[("a.pem", "empty.pem")],
            None,
            "--tls-key empty.pem: no private key in the file; expected PEM with a line `-----BEGIN PRIVATE KEY-----`",
        ),
        (
            &[("a.pem", "encrypted.key")],
            None,
            "--tls-key encrypted.key: the key is encrypted, and nobody could type its password here; decrypt it with `openssl pkey`",
        ),
        (
            &[("a.pem", "bad.key")],
            None,
            "--tls-key bad.key: the private key cannot be used: unexpected error: failed to parse private key as RSA, ECDSA, or EdDSA",
        ),
        (&[("cut.pem", "a.key")], None, "--tls-cert cut.pem: incomplete file: `-----END CERTIFICATE-----` is missing"),
        (&[("base64.pem", "a.key")], None, "--tls-cert base64.pem: invalid base64 between the BEGIN and END lines"),
        (&[("der.pem", "a.key")], None, "--tls-cert der.pem: the first certificate in the file is invalid"),
        (&[("long.pem", "a.key")], None, "--tls-cert long.pem: the file is longer than 1 MiB; expected PEM"),
        (
            &[("chain.pem", "a.key")],
            None,
            "--tls-cert chain.pem: the key in a.key belongs to certificate 2; put that certificate first, followed by its chain",
        ),
        (
            &[("a.pem", "a.key"), ("b.pem", "a.key")],
            None,
            "--tls-key a.key: the key does not match the certificate in b.pem; give the keys in the order of the certificates",
        ),
        (
            &[("a.pem", "a.key")],
            Some("a.key"),
            "--tls-client-ca a.key: no certificate in the file; it contains a private key; are the two files swapped?",
        ),
        (
            &[("a.pem", "a.key")],
            Some("der.pem"),
            "--tls-client-ca der.pem: certificate 1 is not a valid authority: invalid peer certificate: BadEncoding",
        ),
    ] {
        check(directory, pairs, client_ca, expected);
    }
    assert_eq!(b.key, directory.join("b.key"));
}

#[test]
fn mistakes_towards_upstreams_are_named() {
    let authority = Authority::new("authority");
    let message = |options: &ConnectorOptions| Connector::load(options).err().map(|error| error.to_string());
    assert_eq!(message(&ConnectorOptions::default()), None);
    let server_name = Some("a b".to_owned());
    assert_eq!(
        message(&ConnectorOptions { server_name, ..ConnectorOptions::default() }).as_deref(),
        Some("--upstream-server-name `a b` is not a valid host name; write one such as api.example.com")
    );
    let ca = Some(authority.path("none.pem"));
    let error = message(&ConnectorOptions { ca, ..ConnectorOptions::default() }).unwrap();
    assert!(error.starts_with("--upstream-ca ") && error.contains("No such file"), "{error}");
}

#[test]
fn the_first_expiry_of_all_is_shown() {
    let authority = Authority::new("authority");
    let until = |name: &str, year| {
        authority.sign_with(name, &["a.example"], |params| params.not_after = date_time_ymd(year, 1, 1))
    };
    let certificates = vec![until("one", 2100), until("two", 2050), until("three", 2200)];
    let (_, reloader) = ServerTls::load(&ServerTlsOptions { certificates, ..ServerTlsOptions::default() }).unwrap();
    assert_eq!(reloader.expiry(), Some(2_524_608_000));
}
