//! The facts about a store, as plain data.

use std::time::Duration;

/// A store and its servers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inspection {
    /// The URL without its secrets.
    pub url: String,
    /// True for a `redis+cluster` URL.
    pub is_cluster: bool,
    /// Why decisions get no answer; `None` if they get one.
    pub fault: Option<String>,
    /// The time from a request to its decision, if there are decisions.
    pub decisions: Option<RoundTrips>,
    /// Those of the URL.
    pub sentinels: Vec<Sentinel>,
    /// The server, or all nodes of the cluster.
    pub servers: Vec<Server>,
}

/// A Sentinel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sentinel {
    pub address: String,
    /// Its answer about the master, or the reason for having none.
    pub answer: Result<Watch, String>,
}

/// A master, as a Sentinel describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Watch {
    /// `host:port`.
    pub master: String,
    /// Why the Sentinels could not replace the master now.
    pub no_failover: Option<String>,
}

/// A server that decides, or a replica of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    pub address: String,
    /// True for a replica in a cluster, which decides nothing until it is promoted.
    pub is_spare: bool,
    /// The error says why there is no connection.
    pub facts: Result<ServerFacts, String>,
}

/// The facts about a server. Those that the user has no right to ask for are `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerFacts {
    pub info: Option<Info>,
    /// The settings `save`, `appendfsync` and `stop-writes-on-bgsave-error`.
    pub save: Option<String>,
    pub appendfsync: Option<String>,
    pub stops_writes: Option<bool>,
    pub cluster: Option<ClusterState>,
    /// The ACL user.
    pub user: String,
    /// `None` if it could not be found out, as on a replica.
    pub rights: Option<MissingRights>,
    pub clock: Option<ClockOffset>,
    /// The time from a `PING` to its reply.
    pub pings: Option<RoundTrips>,
}

/// The reply to `INFO`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Info {
    /// `Redis` or `Valkey`.
    pub product: &'static str,
    pub version: String,
    /// True if it is a node of a cluster, whatever the URL says.
    pub is_node: bool,
    /// `None` if this server is a replica itself.
    pub replicas: Option<u64>,
    /// In bytes.
    pub used_memory: u64,
    /// In bytes; 0 for no bound.
    pub maxmemory: u64,
    pub policy: String,
    /// Since the server's start.
    pub evicted_keys: u64,
    pub has_append_only_file: bool,
    /// False if the last snapshot or the last write to the append-only file failed.
    pub persistence_works: bool,
}

/// The reply to `CLUSTER INFO`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterState {
    /// `ok` or `fail`.
    pub state: String,
    /// At most 16,384.
    pub assigned_slots: u64,
}

/// The rights that a user lacks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MissingRights {
    /// The pattern of the keys, if they are out of reach.
    pub keys: Option<String>,
    pub by_purpose: Vec<(Purpose, Vec<&'static str>)>,
}

impl MissingRights {
    /// Adds commands, if there are any.
    pub(super) fn with(mut self, purpose: Purpose, commands: Vec<&'static str>) -> Self {
        if !commands.is_empty() {
            self.by_purpose.push((purpose, commands));
        }
        self
    }
}

/// A use of commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Every limit.
    Limits,
    /// Limits with this algorithm.
    Algorithm(&'static str),
    /// `weir bucket block`.
    Blocks,
    /// Notifications of changes, so that idle processes poll less often.
    Notifications,
}

/// A server's clock, compared with this machine's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockOffset {
    /// The time by which it is ahead, in microseconds; negative if it is behind.
    pub micros: i64,
    /// The largest error of the comparison, in microseconds.
    pub within: u64,
}

/// The durations of calls, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoundTrips {
    pub p50: Duration,
    pub p99: Duration,
}
