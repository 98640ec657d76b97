//! The state of a store, for `/readyz` and the metrics.

/// The state of a worker's store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// True if the store can be asked: memory always, Redis while a connection answers.
    pub connected: bool,
    /// True if nothing is sent because the server was silent.
    pub breaker_open: bool,
    /// Why there is no connection, or [`Fault::Failing`] if every answer is an error.
    pub fault: Option<Fault>,
    /// The fault as text, with a hint.
    pub last_error: Option<String>,
    /// Values that were not buckets and counted as full ones, since the start.
    pub corrupt_values: u64,
    /// Decisions made from leases, since the start.
    pub leased_decisions: u64,
    /// Tokens left in leases.
    pub leased_tokens: u64,
}

/// Why a store cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// No connection: nobody listens, or it was cut.
    Unreachable,
    /// The server accepts the connection and does not answer.
    Silent,
    /// The TLS handshake failed.
    Tls,
    Authentication,
    /// The user lacks permissions.
    Permission,
    Replica,
    /// Another node of the cluster has the keys, or none has.
    Cluster,
    /// The server is a Sentinel, or the Sentinels do not know the master.
    Sentinel,
    /// The server is loading its data.
    Loading,
    /// The server answers every decision with an error.
    Failing,
}

impl Fault {
    /// The labels `reason` of `weir_store_unusable`, in the order of the variants.
    pub const LABELS: [&str; 10] = [
        "unreachable",
        "silent",
        "tls",
        "authentication",
        "permission",
        "replica",
        "cluster",
        "sentinel",
        "loading",
        "failing",
    ];
}
