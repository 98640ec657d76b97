//! Certificates in PEM, generated for each test.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, IsCa, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use tempfile::TempDir;

/// An authority and the directory with its certificates.
pub(crate) struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    directory: TempDir,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::new([]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        // Authorities need distinct names.
        let directory = tempfile::tempdir().unwrap();
        params.distinguished_name.push(DnType::CommonName, directory.path().to_str().unwrap());
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        fs::write(directory.path().join("ca.pem"), issuer.pem()).unwrap();
        Self { issuer, directory }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// [`Self::path`] as text, for a flag.
    pub(crate) fn file(&self, name: &str) -> String {
        self.path(name).into_os_string().into_string().unwrap()
    }

    /// A client that trusts this authority, with the certificate of this name, if any, and these protocols of ALPN.
    pub(crate) fn client(&self, certificate: Option<&str>, alpn: &[&str]) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(self.path("ca.pem")).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let config = config.with_root_certificates(roots);
        let mut config = match certificate {
            None => config.with_no_client_auth(),
            Some(name) => {
                let own = CertificateDer::from_pem_file(self.path(&format!("{name}.pem"))).unwrap();
                let key = PrivateKeyDer::from_pem_file(self.path(&format!("{name}.key"))).unwrap();
                config.with_client_auth_cert(vec![own], key).unwrap()
            }
        };
        config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
        Arc::new(config)
    }

    /// Writes `NAME.pem` and `NAME.key` for these hosts; the subject is `CN=NAME,O=Acme`.
    pub(crate) fn sign(&self, name: &str, hosts: &[&str]) {
        self.sign_with(name, hosts, |_| {});
    }

    /// Like [`Self::sign`], with more attributes in the subject.
    pub(crate) fn sign_with(&self, name: &str, hosts: &[&str], more: impl FnOnce(&mut DistinguishedName)) {
        let mut params = CertificateParams::new(hosts.iter().map(ToString::to_string).collect::<Vec<_>>()).unwrap();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, "Acme");
        params.distinguished_name.push(DnType::CommonName, name);
        more(&mut params.distinguished_name);
        let key = KeyPair::generate().unwrap();
        fs::write(self.path(&format!("{name}.pem")), params.signed_by(&key, &self.issuer).unwrap().pem()).unwrap();
        fs::write(self.path(&format!("{name}.key")), key.serialize_pem()).unwrap();
    }
}
