//! TLS to clients: certificates by host, verification of clients, and reloads.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use arc_swap::ArcSwap;
use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::{Ticketer, default_provider};
use rustls::pki_types::CertificateDer;
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{ClientHello, NoServerSessionStorage, ProducesTickets, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{HandshakeKind, ProtocolVersion, ServerConfig, SignatureScheme};
use tokio_rustls::{TlsAcceptor, TlsStream};

use super::certificate::{Certificate, wildcard_of};
use super::files::{FileContent, FileError, LoadedCertificate, NamedFile, WatchedFiles, error_in_all, load, pair};
use super::{ALPN, HTTP_2, KeyPairFiles};
use crate::http::transport::Stream;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientAuth {
    /// The handshake fails without one.
    Require,
    /// A certificate is verified, and clients without one are served.
    Request,
}

/// The protocols that a listener offers by ALPN.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Alpn {
    /// HTTP/2 and HTTP/1.1.
    #[default]
    Http,
    /// HTTP/1.1 alone.
    Http1,
    /// HTTP/2 alone, also with clients that do not use ALPN.
    Http2,
    /// The protocol has no name in ALPN.
    None,
}

impl Alpn {
    fn protocols(self) -> Vec<Vec<u8>> {
        let protocols = match self {
            Self::Http => &ALPN[..],
            Self::Http1 => &ALPN[1..],
            Self::Http2 => &ALPN[..1],
            Self::None => &[],
        };
        protocols.iter().map(|protocol| protocol.to_vec()).collect()
    }
}

/// The flags that name the files, for messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerTlsFlags {
    pub certificate: &'static str,
    pub key: &'static str,
    pub client_ca: &'static str,
}

impl Default for ServerTlsFlags {
    /// Those of the proxy.
    fn default() -> Self {
        Self { certificate: "--tls-cert", key: "--tls-key", client_ca: "--tls-client-ca" }
    }
}

/// Options for TLS to clients.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerTlsOptions {
    pub flags: ServerTlsFlags,
    pub alpn: Alpn,
    /// The first one is used for clients that name no host, or one without a certificate.
    pub certificates: Vec<KeyPairFiles>,
    /// Authorities for client certificates in PEM, and whether a certificate is required. Without it, clients are not
    /// asked for one.
    pub client_ca: Option<(PathBuf, ClientAuth)>,
}

/// TLS to clients, shared by all workers.
#[derive(Debug)]
pub struct ServerTls {
    current: ArcSwap<CurrentConfig>,
    alpn: Alpn,
}

/// The configuration of new connections.
struct CurrentConfig {
    acceptor: TlsAcceptor,
    certificates: Arc<Certificates>,
}

/// Reloads the files when they change. It blocks, so it needs its own thread.
pub struct ServerTlsReloader {
    tls: Arc<ServerTls>,
    files: WatchedFiles,
    maker: ConfigMaker,
}

impl ServerTls {
    pub fn load(options: &ServerTlsOptions) -> Result<(Arc<Self>, ServerTlsReloader), FileError> {
        let mut files = Vec::with_capacity(2 * options.certificates.len() + 1);
        let flags = options.flags;
        files.extend(options.certificates.iter().flat_map(|files| pair(files, [flags.certificate, flags.key])));
        let client_ca = options.client_ca.as_ref();
        files.extend(client_ca.map(|(path, _)| NamedFile { flag: flags.client_ca, path: path.clone() }));
        let mut maker = ConfigMaker {
            flag: flags.certificate,
            alpn: options.alpn,
            pairs: options.certificates.len(),
            client_auth: client_ca.map(|(_, client_auth)| *client_auth),
            tickets: None,
        };
        let (files, current) = WatchedFiles::load(files, |contents| maker.make(contents))?;
        current.report();
        let tls = Arc::new(Self { current: ArcSwap::from_pointee(current), alpn: options.alpn });
        Ok((tls.clone(), ServerTlsReloader { tls, files, maker }))
    }

    /// Performs the handshake of a new connection. The caller gives it a deadline.
    pub(crate) async fn accept(&self, stream: Stream) -> io::Result<(Stream, TlsInfo)> {
        let current = self.current.load_full();
        let stream = current.acceptor.accept(stream).await?;
        let (_, connection) = stream.get_ref();
        let subject = connection.peer_certificates().and_then(<[_]>::first).and_then(|own| Certificate::parse(own));
        let info = TlsInfo {
            server_name: connection.server_name().map(str::to_owned),
            subject: subject.map(|certificate| certificate.subject).filter(|subject| !subject.is_empty()),
            protocol: match connection.protocol_version() {
                Some(ProtocolVersion::TLSv1_2) => "TLSv1.2",
                _ => "TLSv1.3",
            },
            is_http2: match connection.alpn_protocol() {
                Some(protocol) => protocol == HTTP_2,
                None => self.alpn == Alpn::Http2,
            },
            is_resumed: connection.handshake_kind() == Some(HandshakeKind::Resumed),
            certificates: Arc::clone(&current.certificates),
        };
        Ok((Stream::Tls(Box::new(TlsStream::Server(stream))), info))
    }
}

impl ServerTlsReloader {
    /// Reloads the files if they have changed. `is_asked` is true after a request such as SIGHUP.
    ///
    /// A broken file changes nothing and is logged once. Open connections keep what they have. Returns whether the
    /// files were valid, or the error; `None` if nothing has changed.
    pub fn reload(&mut self, is_asked: bool) -> Option<Result<(), FileError>> {
        match self.files.poll(is_asked, |contents| self.maker.make(contents))? {
            Ok(current) => {
                current.report();
                self.tls.current.store(Arc::new(current));
                Some(Ok(()))
            }
            Err(error) => {
                tracing::error!("cannot use the new certificates, keeping the previous ones: {error}");
                Some(Err(error))
            }
        }
    }

    /// Returns when the first certificate in use expires, in seconds since the Unix epoch.
    pub fn expiry(&self) -> Option<i64> {
        self.tls.current.load().certificates.all.iter().map(|certificate| certificate.says.not_after).min()
    }
}

impl CurrentConfig {
    /// Logs the certificates and warnings about them.
    fn report(&self) {
        let now = SystemTime::now();
        for certificate in &self.certificates.all {
            let file = certificate.file.path.display();
            let (flag, hosts) = (certificate.file.flag, certificate.says.names());
            tracing::info!(flag, %file, hosts, "certificate in use");
            if let Some(warning) = certificate.warning(now) {
                tracing::warn!("{warning}");
            }
        }
    }
}

impl fmt::Debug for CurrentConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CurrentConfig").field("certificates", &self.certificates).finish_non_exhaustive()
    }
}

/// Builds the configuration of new connections from the files.
struct ConfigMaker {
    /// The flag of the first certificate.
    flag: &'static str,
    alpn: Alpn,
    /// The number of certificate and key pairs, which come first in the files.
    pairs: usize,
    /// The use of the client authorities' file, which follows them, if any.
    client_auth: Option<ClientAuth>,
    tickets: Option<Tickets>,
}

/// The keys of session tickets, and the authorities that verified the sessions' clients.
///
/// rustls rotates the keys every six hours. New certificates keep them, so that clients can resume. New authorities do
/// not, because resuming clients are not verified again.
struct Tickets {
    ticketer: Arc<dyn ProducesTickets>,
    authorities: Vec<CertificateDer<'static>>,
}

impl ConfigMaker {
    fn make(&mut self, contents: &[FileContent]) -> Result<CurrentConfig, FileError> {
        let provider = CryptoProvider::get_default().cloned().unwrap_or_else(|| Arc::new(default_provider()));
        let (pairs, client_ca) = contents.split_at(2 * self.pairs);
        let all = pairs.chunks_exact(2).map(|pair| load(&pair[0], &pair[1], &provider));
        let certificates = Arc::new(Certificates::new(all.collect::<Result<_, _>>()?));
        let flag = self.flag;
        let unusable = |error: rustls::Error| {
            error_in_all(contents, flag, format!("cannot use these certificates for TLS: {error}"))
        };
        let config = ServerConfig::builder_with_provider(Arc::clone(&provider));
        let config = config.with_safe_default_protocol_versions().map_err(unusable)?;
        let authorities = client_ca.first().zip(self.client_auth);
        let config = match authorities {
            None => config.with_no_client_auth(),
            Some((content, client_auth)) => config.with_client_cert_verifier(verifier(content, client_auth, provider)?),
        };
        let mut config = config.with_cert_resolver(certificates.clone());
        config.alpn_protocols = self.alpn.protocols();
        config.ticketer = self.ticketer(authorities.map(|(content, _)| content)).map_err(unusable)?;
        // Tickets are stored by clients and work with every worker. A session cache would be a lock for all of them.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        Ok(CurrentConfig { acceptor: TlsAcceptor::from(Arc::new(config)), certificates })
    }

    fn ticketer(&mut self, client_ca: Option<&FileContent>) -> Result<Arc<dyn ProducesTickets>, rustls::Error> {
        let authorities = client_ca.and_then(|content| content.certificates().ok()).unwrap_or_default();
        if let Some(tickets) = &self.tickets
            && tickets.authorities == authorities
        {
            return Ok(Arc::clone(&tickets.ticketer));
        }
        let ticketer = Ticketer::new()?;
        self.tickets = Some(Tickets { ticketer: Arc::clone(&ticketer), authorities });
        Ok(ticketer)
    }
}

fn verifier(
    content: &FileContent,
    client_auth: ClientAuth,
    provider: Arc<CryptoProvider>,
) -> Result<Arc<dyn ClientCertVerifier>, FileError> {
    let verifier = WebPkiClientVerifier::builder_with_provider(content.roots()?, provider);
    let verifier = match client_auth {
        ClientAuth::Require => verifier,
        ClientAuth::Request => verifier.allow_unauthenticated(),
    };
    verifier.build().map_err(|error| content.file.error(format!("cannot verify clients with it: {error}")))
}

/// All certificates by host.
#[derive(Debug)]
struct Certificates {
    all: Vec<LoadedCertificate>,
    /// Indexes into `all` by [`Certificate::hosts`]. There may be several, with different kinds of keys.
    hosts: HashMap<String, Vec<usize>>,
}

impl Certificates {
    fn new(all: Vec<LoadedCertificate>) -> Self {
        let mut hosts: HashMap<_, Vec<_>> = HashMap::new();
        for (index, certificate) in all.iter().enumerate() {
            for host in &certificate.says.hosts {
                hosts.entry(host.clone()).or_default().push(index);
            }
        }
        Self { all, hosts }
    }

    /// Returns the certificates for a host, most preferred first; the first certificate of all if none matches.
    fn for_host(&self, name: Option<&str>) -> impl Iterator<Item = &LoadedCertificate> {
        self.indexes(name).iter().filter_map(|index| self.all.get(*index))
    }

    fn indexes(&self, name: Option<&str>) -> &[usize] {
        let name = name.map(|name| name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase());
        let indexes = name.and_then(|name| self.hosts.get(&name).or_else(|| self.hosts.get(wildcard_of(&name)?)));
        indexes.map_or(&[0], Vec::as_slice)
    }

    fn choose(&self, name: Option<&str>, schemes: &[SignatureScheme]) -> Option<&LoadedCertificate> {
        let fits = |certificate: &&LoadedCertificate| certificate.certified.key.choose_scheme(schemes).is_some();
        self.for_host(name).find(fits).or_else(|| self.for_host(name).next())
    }
}

impl ResolvesServerCert for Certificates {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let chosen = self.choose(hello.server_name(), hello.signature_schemes())?;
        Some(Arc::clone(&chosen.certified))
    }
}

/// The result of a handshake.
#[derive(Clone, Debug)]
pub struct TlsInfo {
    /// The host that the client named (RFC 6066 section 3).
    pub server_name: Option<String>,
    /// The subject of the client's verified certificate, as RFC 4514 text: `CN=client 1,O=Acme`.
    pub subject: Option<String>,
    /// `TLSv1.2` or `TLSv1.3`.
    pub protocol: &'static str,
    /// True if HTTP/2 was agreed on.
    pub is_http2: bool,
    /// True if the client resumed a session by its ticket.
    pub is_resumed: bool,
    certificates: Arc<Certificates>,
}

impl TlsInfo {
    /// Returns whether requests for a host, in lower case without port and brackets, may use this connection. Others
    /// get a 421 (RFC 9110 section 15.5.20): another certificate may be for the host, and other requirements may apply
    /// to its clients.
    ///
    /// A client that named no host is not misdirected, nor is one that would have got the same certificate for this host.
    pub fn covers(&self, host: &str) -> bool {
        let Some(name) = self.server_name.as_deref() else { return true };
        let (shown, for_host) = (self.certificates.indexes(Some(name)), self.certificates.indexes(Some(host)));
        shown.iter().any(|index| for_host.contains(index))
            || self.certificates.for_host(Some(name)).any(|certificate| certificate.says.covers(host))
    }
}
