//! A checked address of a store.

use std::time::Duration;

use redis::RedisConnectionInfo;

use super::stream::Address;
use super::tls::Tls;
use super::url::SentinelLogin;
use crate::clock::Clock;

/// A store with checked options. Each worker connects on its own.
#[derive(Clone)]
pub struct Target {
    pub(super) topology: Topology,
    /// The settings for all servers, if the URL asks for TLS.
    pub(super) tls: Option<Tls>,
    /// User, password and database for the servers that decide.
    pub(super) login: RedisConnectionInfo,
    pub(super) timeout: Duration,
    pub(super) queue: usize,
    pub(super) clock: Clock,
    /// The URL without its secrets.
    pub(super) shown: String,
}

/// The servers that the user named.
#[derive(Clone)]
pub(super) enum Topology {
    Single(Address),
    /// Some nodes of a cluster; the others are learnt from them.
    Cluster(Vec<Address>),
    /// The Sentinels that know the address of the master with this name.
    Sentinel {
        sentinels: Vec<Address>,
        master: String,
        login: SentinelLogin,
    },
}

impl Target {
    /// True if the keys are spread over the nodes of a cluster.
    pub const fn is_cluster(&self) -> bool {
        matches!(self.topology, Topology::Cluster(_))
    }
}
