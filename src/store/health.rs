//! The state of a store, for `/readyz` and the metrics.

/// The state of a worker's store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// True if the store can be asked: memory always, Redis while a connection answers.
    pub connected: bool,
    /// True if nothing is sent because the server was silent.
    pub breaker_open: bool,
    /// Why there is no connection, or what is wrong with the last answers.
    pub fault: Option<Fault>,
    /// The fault as text, with a hint.
    pub last_error: Option<String>,
    /// Values that were not buckets and counted as full ones, since the start.
    pub corrupt_values: u64,
    /// Refunds that were not made, of what requests had taken whose client has left or that another node's limit denied.
    pub lost_refunds: u64,
    /// Decisions made from leases, since the start.
    pub leased_decisions: u64,
    /// Tokens left in leases.
    pub leased_tokens: u64,
}

label! {
    /// Why a store cannot be used: the label `reason` of `weir_store_unusable`.
    pub enum Fault {
        /// No connection: nobody listens, or it was cut.
        Unreachable = "unreachable",
        /// The server accepts the connection and does not answer.
        Silent = "silent",
        /// The TLS handshake failed.
        Tls = "tls",
        Authentication = "authentication",
        /// The user lacks permissions.
        Permission = "permission",
        Replica = "replica",
        /// Another node of the cluster has the keys, or none has.
        Cluster = "cluster",
        /// The server is a Sentinel, or the Sentinels do not know the master.
        Sentinel = "sentinel",
        /// The server is loading its data.
        Loading = "loading",
        /// The server answers every decision with an error.
        Failing = "failing",
        /// The server answers, and every time after the timeout.
        Late = "late",
    }
}
