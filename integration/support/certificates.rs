//! Certificates in PEM, generated for each test.

use std::fs;
use std::path::PathBuf;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, IsCa, KeyPair};
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
