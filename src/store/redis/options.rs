//! Connection options: the URL and the files for TLS.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo, RedisConnectionInfo};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};

use super::stream::Address;
use crate::clock::Clock;

/// The default for the requests of one worker that may wait for Redis: as many as a Redis that does nothing else decides in 100 ms.
/// They take some 2 MiB.
pub const DEFAULT_QUEUE: usize = 8_192;

/// TCP probes an idle connection after this long. The owner's PING comes sooner; this covers a stalled owner.
pub(super) const KEEPALIVE: Duration = Duration::from_secs(15);

/// A peer that acknowledges nothing for this long is gone (`TCP_USER_TIMEOUT`); the kernel's default is 15 minutes.
pub(super) const USER_TIMEOUT: Duration = Duration::from_secs(5);

/// The options for a Redis, as given by the user.
///
/// An ACL user needs `~weir:{0}:* +evalsha +eval +get +set +del +pttl +pexpire +persist +time +ping`, and `+select` for a
/// database other than 0; `+hello` lets Weir recognize a replica or a Sentinel before the first error. Blocked ids also need
/// `+zscore +zrange +zrangebyscore +zcard +zadd +zrem +hget +hgetall +hset +hdel`, sliding logs `+llen +lindex +lrange +rpush
/// +ltrim`, requests in flight `+zadd +zrem +zscore +zcount +zrange +zremrangebyscore`, queues `@list @stream`, and user
/// scripts the commands that they call.
#[derive(Clone)]
pub struct RedisOptions {
    /// `redis://[[user]:password@]host[:port][/db]`, `rediss://` for TLS, `unix:///path`.
    pub url: String,
    /// The authorities (PEM) of the server's certificate; defaults to the public ones.
    pub ca_file: Option<PathBuf>,
    /// The client's certificates (PEM); needs `key_file`.
    pub cert_file: Option<PathBuf>,
    /// The client's private key (PEM).
    pub key_file: Option<PathBuf>,
    /// How long a decision may take.
    pub timeout: Duration,
    /// Requests that may wait for their decisions.
    pub queue: usize,
    /// The clock to decide by.
    pub clock: Clock,
}

/// A checked address. Each worker connects on its own.
#[derive(Clone)]
pub struct Target {
    pub(super) address: Address,
    pub(super) login: RedisConnectionInfo,
    pub(super) timeout: Duration,
    pub(super) queue: usize,
    pub(super) clock: Clock,
    /// The URL without its secrets.
    pub(super) shown: String,
}

impl RedisOptions {
    /// Options for a URL, with defaults for the rest.
    pub fn new(url: impl Into<String>, clock: Clock) -> Self {
        let (timeout, queue) = (Duration::from_millis(20), DEFAULT_QUEUE);
        Self { url: url.into(), ca_file: None, cert_file: None, key_file: None, timeout, queue, clock }
    }

    /// Checks the options and reads the files; connects to nothing.
    ///
    /// A `rediss` URL needs rustls' process-wide provider: call `CryptoProvider::install_default` before.
    pub fn target(&self) -> Result<Target, String> {
        if self.timeout.is_zero() {
            return Err("--store-timeout must be longer than 0".into());
        }
        let shown = redacted(&self.url);
        let info = parse(&self.url).map_err(|reason| format!("invalid store `{shown}`: {reason}"))?;
        let address = self.address(info.addr())?;
        let login = info.redis_settings().clone().set_lib_name("weir", env!("CARGO_PKG_VERSION"));
        Ok(Target { address, login, timeout: self.timeout, queue: self.queue, clock: self.clock.clone(), shown })
    }

    fn address(&self, address: &ConnectionAddr) -> Result<Address, String> {
        if let ConnectionAddr::TcpTls { host, port, .. } = address {
            // Without a provider rustls panics while building the configuration.
            CryptoProvider::get_default().ok_or("TLS needs a cryptography provider, and none is installed")?;
            let name = ServerName::try_from(host.clone()).map_err(|_| format!("`{host}` is not a valid host name"))?;
            let tls = Some((Arc::new(self.tls()?), name));
            return Ok(Address::Tcp { host: host.clone(), port: *port, tls });
        }
        for (option, file) in [("ca", &self.ca_file), ("cert", &self.cert_file), ("key", &self.key_file)] {
            if file.is_some() {
                return Err(format!("--store-{option}-file needs TLS: write the store as `rediss://`"));
            }
        }
        match address {
            ConnectionAddr::Unix(path) => Ok(Address::Unix(path.clone())),
            ConnectionAddr::Tcp(host, port) => Ok(Address::Tcp { host: host.clone(), port: *port, tls: None }),
            other => Err(format!("invalid store `{}`: `{other}` is not supported", redacted(&self.url))),
        }
    }

    fn tls(&self) -> Result<ClientConfig, String> {
        let mut roots = RootCertStore::empty();
        match &self.ca_file {
            None => roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned()),
            Some(path) => {
                for certificate in certificates("ca", path)? {
                    roots.add(certificate).map_err(|error| unusable("ca", path, error))?;
                }
            }
        }
        let config = ClientConfig::builder().with_root_certificates(roots);
        match (&self.cert_file, &self.key_file) {
            (None, None) => Ok(config.with_no_client_auth()),
            (Some(cert), Some(key)) => config
                .with_client_auth_cert(certificates("cert", cert)?, private_key(key)?)
                .map_err(|error| format!("--store-cert-file and --store-key-file cannot be used: {error}")),
            _ => Err("--store-cert-file and --store-key-file must be given together".into()),
        }
    }
}

/// Returns the URL with everything hidden that may be a secret, even if the URL is invalid.
fn redacted(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").map_or(("", url), |(scheme, rest)| (scheme, rest));
    let separator = if scheme.is_empty() { "" } else { "://" };
    // The last `@`, because one inside a password that is not percent-encoded must not reveal the rest of it.
    let (credentials, place) = rest.rsplit_once('@').map_or(("", rest), |(_, place)| ("***@", place));
    let (place, query) = place.split_once('?').map_or((place, ""), |(place, _)| (place, "?***"));
    format!("{scheme}{separator}{credentials}{place}{query}")
}

fn parse(url: &str) -> Result<ConnectionInfo, String> {
    let scheme = url.split_once("://").map_or("", |(scheme, _)| scheme);
    let unix = match scheme {
        "redis" | "rediss" => false,
        "unix" | "redis+unix" => true,
        "redis+sentinel" | "redis+cluster" => {
            return Err(format!("`{scheme}://` is not in this version; give one server as `redis://host:port`"));
        }
        _ if url.starts_with("unix:") || url.starts_with('/') => {
            let path = url.trim_start_matches("unix:").trim_start_matches('/');
            return Err(format!("write a unix socket with three slashes and its full path: `unix:///{path}`"));
        }
        _ => {
            let forms =
                "`memory`, `redis://host:port/db`, `rediss://host:port/db` for TLS, or `unix:///path` for a socket";
            return Err(format!("write {forms}"));
        }
    };
    let parsed = redis::parse_redis_url(url).ok_or(
        "expected `redis://user:password@host:port/db`; percent-encode special characters in the user and the password, \
         `@` as `%40`",
    )?;
    if parsed.fragment().is_some() {
        return Err("unexpected `#`; name your own certificate with --store-ca-file".into());
    }
    if !unix && parsed.query().is_some() {
        return Err("unexpected `?`; write user, password and database as `redis://user:password@host:port/db`".into());
    }
    if !unix && parsed.host_str().unwrap_or_default().is_empty() {
        return Err("the host is missing, as in `redis://127.0.0.1:6379`".into());
    }
    if !parsed.username().is_empty() && parsed.password().is_none() {
        return Err("the user has no password; write a password without a user as `redis://:password@host`".into());
    }
    let database = if unix {
        parsed.query_pairs().find(|(name, _)| name == "db").map_or_else(String::new, |(_, db)| db.into_owned())
    } else {
        parsed.path().trim_start_matches('/').to_owned()
    };
    if !database.is_empty() && database.parse::<u32>().is_err() {
        return Err(format!("the database `{database}` is not a number, as the 2 in `redis://127.0.0.1:6379/2`"));
    }
    parsed.into_connection_info().map_err(|error| error.to_string())
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
