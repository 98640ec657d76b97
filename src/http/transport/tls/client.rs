//! TLS to upstreams.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::ServerName;
use rustls::sign::SingleCertAndKey;
use rustls::{ClientConfig, RootCertStore};
use tokio_rustls::{TlsConnector, TlsStream};

use super::authority::AuthorityVerifier;
use super::files::{FileContent, FileError, NamedFile, WatchedFiles, error_in_all, load, pair};
use super::{ALPN, HTTP_2, KeyPairFiles};
use crate::http::transport::Stream;

/// The flags that the options are from, for messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectorFlags {
    pub ca: &'static str,
    pub certificate: &'static str,
    pub key: &'static str,
    pub server_name: &'static str,
}

impl Default for ConnectorFlags {
    /// Those for upstreams.
    fn default() -> Self {
        Self {
            ca: "--upstream-ca",
            certificate: "--upstream-cert",
            key: "--upstream-key",
            server_name: "--upstream-server-name",
        }
    }
}

/// Options for TLS to upstreams.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConnectorOptions {
    pub flags: ConnectorFlags,
    /// Authorities for upstream certificates in PEM; defaults to the public ones.
    pub ca: Option<PathBuf>,
    /// The host that upstream certificates must be valid for; defaults to the one in the upstream's URL.
    pub server_name: Option<String>,
    /// The certificate for upstreams that ask for one.
    pub certificate: Option<KeyPairFiles>,
}

/// An error in the options.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectorError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error("{flag} `{name}` is not a valid host name; write one such as api.example.com")]
    ServerName { flag: &'static str, name: String },
}

/// TLS to upstreams, shared by all workers.
#[derive(Clone)]
pub struct Connector {
    current: Arc<ArcSwap<ClientConfig>>,
    server_name: Option<ServerName<'static>>,
}

/// Reloads the files when they change. It blocks, so it needs its own thread.
pub struct ConnectorReloader {
    current: Arc<ArcSwap<ClientConfig>>,
    files: WatchedFiles,
    has_ca: bool,
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connector").field("server_name", &self.server_name).finish_non_exhaustive()
    }
}

impl Connector {
    pub fn load(options: &ConnectorOptions) -> Result<(Self, ConnectorReloader), ConnectorError> {
        let flags = options.flags;
        let invalid = |name: &str| ConnectorError::ServerName { flag: flags.server_name, name: name.to_owned() };
        let server_name = options.server_name.as_deref().map(|name| server_name(name).ok_or_else(|| invalid(name)));
        let server_name = server_name.transpose()?;
        let mut named = Vec::new();
        named.extend(options.ca.clone().map(|path| NamedFile { flag: flags.ca, path }));
        named.extend(options.certificate.iter().flat_map(|files| pair(files, [flags.certificate, flags.key])));
        let has_ca = options.ca.is_some();
        let (files, config) = WatchedFiles::load(named, |contents| make(contents, has_ca))?;
        let current = Arc::new(ArcSwap::from_pointee(config));
        Ok((Self { current: Arc::clone(&current), server_name }, ConnectorReloader { current, files, has_ca }))
    }

    /// Performs the handshake of a new connection. The upstream's certificate must be valid for `host`, a name or an
    /// address, unless the options name another. HTTP/2 is offered only with `offers_http2`; returns whether it was
    /// agreed on. The caller gives it a deadline.
    pub async fn connect(&self, host: &str, stream: Stream, offers_http2: bool) -> io::Result<(Stream, bool)> {
        let name = self.server_name.clone().or_else(|| server_name(host));
        let name = name.ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidInput, format!("`{host}` is not a valid host for a certificate"))
        })?;
        let connector = TlsConnector::from(self.current.load_full());
        let offered = if offers_http2 { &ALPN[..] } else { &ALPN[1..] };
        let offered = offered.iter().map(|protocol| protocol.to_vec()).collect();
        let stream = connector.with_alpn(offered).connect(name, stream).await?;
        let is_http2 = stream.get_ref().1.alpn_protocol() == Some(HTTP_2);
        Ok((Stream::Tls(Box::new(TlsStream::Client(stream))), is_http2))
    }
}

impl ConnectorReloader {
    /// Reloads the files if they have changed; see [`super::ServerTlsReloader::reload`].
    pub fn reload(&mut self, is_asked: bool) {
        match self.files.poll(is_asked, |contents| make(contents, self.has_ca)) {
            None => {}
            Some(Ok(config)) => {
                self.current.store(Arc::new(config));
                tracing::info!("new certificates are in use for upstreams");
            }
            Some(Err(error)) => {
                tracing::error!("cannot use the new certificates for upstreams, keeping the previous ones: {error}");
            }
        }
    }
}

/// Parses a host's name, or its address with or without brackets.
fn server_name(host: &str) -> Option<ServerName<'static>> {
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    ServerName::try_from(host.to_owned()).ok()
}

/// Builds the configuration from the files: the authorities if `has_ca`, then a certificate and key if there are more.
fn make(contents: &[FileContent], has_ca: bool) -> Result<ClientConfig, FileError> {
    let provider = CryptoProvider::get_default().cloned().unwrap_or_else(|| Arc::new(default_provider()));
    let (ca, certificate) = contents.split_at(usize::from(has_ca));
    let config = ClientConfig::builder_with_provider(Arc::clone(&provider)).with_safe_default_protocol_versions();
    let unusable = |error| error_in_all(contents, "--upstream-ca", format!("cannot set up TLS: {error}"));
    let config = config.map_err(unusable)?;
    let config = match ca {
        [ca, ..] => {
            let verifier = AuthorityVerifier::new(ca, &provider)?;
            config.dangerous().with_custom_certificate_verifier(Arc::new(verifier))
        }
        [] => config.with_root_certificates(RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() }),
    };
    Ok(match certificate {
        [certificate, key, ..] => {
            let loaded = load(certificate, key, &provider)?;
            config.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(loaded.certified)))
        }
        _ => config.with_no_client_auth(),
    })
}
