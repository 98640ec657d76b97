//! The files for TLS.

use std::fmt;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

use super::options::RedisOptions;

/// The TLS settings for all servers of a store.
pub(super) type Tls = Arc<ClientConfig>;

/// Reads the files. Fails if rustls has no process-wide provider.
pub(super) fn load(options: &RedisOptions) -> Result<Tls, String> {
    // Without a provider rustls panics while building the configuration.
    CryptoProvider::get_default().ok_or("TLS needs a cryptography provider, and none is installed")?;
    let mut roots = RootCertStore::empty();
    match &options.ca_file {
        None => roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned()),
        Some(path) => {
            for certificate in certificates("ca", path)? {
                roots.add(certificate).map_err(|error| unusable("ca", path, error))?;
            }
        }
    }
    let config = ClientConfig::builder().with_root_certificates(roots);
    let config = match (&options.cert_file, &options.key_file) {
        (None, None) => config.with_no_client_auth(),
        (Some(cert), Some(key)) => config
            .with_client_auth_cert(certificates("cert", cert)?, private_key(key)?)
            .map_err(|error| format!("--store-cert-file and --store-key-file cannot be used: {error}"))?,
        _ => return Err("--store-cert-file and --store-key-file must be given together".into()),
    };
    Ok(Arc::new(config))
}

/// Fails if there are files for TLS and a URL without TLS.
pub(super) fn reject_files(options: &RedisOptions) -> Result<(), String> {
    for (option, file) in [("ca", &options.ca_file), ("cert", &options.cert_file), ("key", &options.key_file)] {
        if file.is_some() {
            return Err(format!("--store-{option}-file needs TLS: write the store as `rediss://`"));
        }
    }
    Ok(())
}

fn certificates(option: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let bytes = fs::read(path).map_err(|error| unusable(option, path, error))?;
    let found = CertificateDer::pem_slice_iter(&bytes).collect::<Result<Vec<_>, _>>();
    let found = found.map_err(|error| unusable(option, path, error))?;
    if found.is_empty() {
        let reason = "has no PEM certificate, which begins with `-----BEGIN CERTIFICATE-----`";
        return Err(unusable(option, path, reason));
    }
    Ok(found)
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, String> {
    let bytes = fs::read(path).map_err(|error| unusable("key", path, error))?;
    PrivateKeyDer::from_pem_slice(&bytes)
        .map_err(|error| unusable("key", path, format!("has no PEM private key: {error}")))
}

fn unusable(option: &'static str, path: &Path, reason: impl fmt::Display) -> String {
    format!("--store-{option}-file `{}`: {reason}", path.display())
}
