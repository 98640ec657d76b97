//! Connection options, as given by the user.

use std::path::PathBuf;
use std::time::Duration;

use super::credentials::Credentials;
use super::stream::Address;
use super::target::{StoreTarget, Topology};
use super::tls;
use super::url::{HostPort, Servers, StoreUrl, redacted};
use crate::clock::Clock;

/// The default for the requests of one worker that may wait for Redis: as many as a Redis that does nothing else decides in 100 ms.
/// They take some 2 MiB.
pub const DEFAULT_QUEUE: usize = 8_192;

/// The default for the beginning of all keys.
pub const DEFAULT_PREFIX: &str = "weir";

/// The longest prefix: it is in each key of each call.
const LONGEST_PREFIX: usize = 32;

/// The options for a Redis, as given by the user.
///
/// `docs/redis.md` lists the permissions that a user of Redis' ACL needs.
#[derive(Clone)]
pub struct RedisOptions {
    /// `redis://[[user]:password@]host[:port][/db]`, `redis+cluster://host:port,host:port`,
    /// `redis+sentinel://host:port,host:port/master-name[/db]`; the same with `rediss` for TLS; `unix:///path`.
    pub url: String,
    /// The user, if the URL has no credentials; needs `password_file`.
    pub user: Option<String>,
    /// The file with the password, if the URL has no credentials. It is read again for each connection, and when it changes, open
    /// connections log in again.
    pub password_file: Option<PathBuf>,
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
    /// The beginning of all keys: 1 to 32 of `A-Z a-z 0-9 _ . : -`.
    pub prefix: String,
    /// The clock to decide by.
    pub clock: Clock,
}

impl RedisOptions {
    /// Options for a URL, with defaults for the rest.
    pub fn new(url: impl Into<String>, clock: Clock) -> Self {
        let (timeout, queue) = (Duration::from_millis(20), DEFAULT_QUEUE);
        let prefix = DEFAULT_PREFIX.to_owned();
        Self {
            url: url.into(),
            user: None,
            password_file: None,
            ca_file: None,
            cert_file: None,
            key_file: None,
            timeout,
            queue,
            prefix,
            clock,
        }
    }

    /// Checks the options and reads the files; connects to nothing.
    ///
    /// A `rediss` URL needs rustls' process-wide provider: call `CryptoProvider::install_default` before.
    pub fn target(&self) -> Result<StoreTarget, String> {
        if self.timeout.is_zero() {
            return Err("--store-timeout must be longer than 0".into());
        }
        check_prefix(&self.prefix)?;
        let shown = redacted(&self.url);
        let invalid = |reason: String| format!("invalid store `{shown}`: {reason}");
        let StoreUrl { servers, has_tls, login } = StoreUrl::parse(&self.url).map_err(invalid)?;
        let login = login.set_lib_name("weir", env!("CARGO_PKG_VERSION"));
        let credentials =
            Credentials::new(login, self.user.as_deref(), self.password_file.as_deref()).map_err(invalid)?;
        let tls = if has_tls { Some(tls::load(self)?) } else { None };
        if tls.is_none() {
            tls::reject_files(self)?;
        }
        let addresses = |hosts: Vec<HostPort>| {
            hosts.into_iter().map(|(host, port)| Address::tcp(host, port, tls.as_ref())).collect::<Result<Vec<_>, _>>()
        };
        let topology = match servers {
            Servers::Socket(path) => Topology::Single(Address::Unix(path)),
            Servers::Single((host, port)) => Topology::Single(Address::tcp(host, port, tls.as_ref()).map_err(invalid)?),
            Servers::Cluster(hosts) => Topology::Cluster(addresses(hosts).map_err(invalid)?),
            Servers::Sentinels { sentinels, master, login } => {
                Topology::Sentinel { sentinels: addresses(sentinels).map_err(invalid)?, master, login }
            }
        };
        let (timeout, queue, clock) = (self.timeout, self.queue, self.clock.clone());
        Ok(StoreTarget { topology, tls, credentials, timeout, queue, clock, shown, prefix: self.prefix.clone() })
    }
}

/// Braces would make a hash tag, and glob characters a wrong ACL rule.
fn check_prefix(prefix: &str) -> Result<(), String> {
    let is_valid = prefix.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.:-".contains(&byte));
    if is_valid && (1..=LONGEST_PREFIX).contains(&prefix.len()) {
        return Ok(());
    }
    Err(format!("--store-prefix must be 1 to {LONGEST_PREFIX} letters, digits, `_`, `.`, `:` or `-`, not `{prefix}`"))
}
