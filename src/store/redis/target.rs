//! A checked address of a store.

use std::time::Duration;

use super::credentials::Credentials;
use super::stream::Address;
use super::tls::Tls;
use super::url::SentinelLogin;
use crate::clock::Clock;

/// A store with checked options. Each worker connects on its own.
#[derive(Clone)]
pub struct StoreTarget {
    pub(super) topology: Topology,
    /// The settings for all servers, if the URL asks for TLS.
    pub(super) tls: Option<Tls>,
    pub(super) credentials: Credentials,
    pub(super) timeout: Duration,
    pub(super) queue: usize,
    pub(super) clock: Clock,
    /// The URL without its secrets.
    pub(super) shown: String,
    /// The beginning of all keys.
    pub(super) prefix: String,
}

/// The servers that the user named.
#[derive(Clone)]
pub(super) enum Topology {
    Single(Address),
    /// Some nodes of a cluster; the others are learnt from them.
    Cluster(Vec<Address>),
    /// A node of a cluster, and a tag that it has.
    Node(Address, u8),
    /// The Sentinels that know the address of the master with this name.
    Sentinel {
        sentinels: Vec<Address>,
        master: String,
        login: SentinelLogin,
    },
}

impl StoreTarget {
    /// The maximum duration of a decision.
    pub const fn timeout(&self) -> Duration {
        self.timeout
    }

    /// True if the keys are spread over the nodes of a cluster.
    pub const fn is_cluster(&self) -> bool {
        matches!(self.topology, Topology::Cluster(_))
    }

    /// True for a node of a cluster, which may hand keys over to another one.
    pub(super) const fn is_node(&self) -> bool {
        matches!(self.topology, Topology::Node(..))
    }

    /// The target of a cluster's node at this place, which has this tag.
    pub(super) fn node(&self, host: &str, port: u16, tag: u8) -> Result<Self, String> {
        let address = Address::tcp(host.to_owned(), port, self.tls.as_ref())?;
        let shown = address.to_string();
        Ok(Self { topology: Topology::Node(address, tag), shown, ..self.clone() })
    }

    /// The nodes that the URL of a cluster names.
    pub(super) fn seeds(&self) -> &[Address] {
        match &self.topology {
            Topology::Cluster(addresses) => addresses,
            _ => &[],
        }
    }
}
