//! The state of a store, for `/readyz` and the metrics.

/// The state of a worker's store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    /// True if the store can be asked: always in memory, and with a connection that answers in Redis.
    pub connected: bool,
    /// Open after the server was silent.
    pub breaker: Breaker,
    /// Why there is no connection, or [`Fault::Failing`] if every answer is an error.
    pub fault: Option<Fault>,
    /// The fault as text, with a hint.
    pub last_error: Option<String>,
    /// Values that were not a bucket and counted as full buckets, since the start.
    pub corrupt_values: u64,
}

/// Stops requests to a server that does not answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Breaker {
    /// Requests are sent if there is a connection.
    #[default]
    Closed,
    /// The server was silent; nothing is sent until it answers on a new connection.
    Open,
}

/// Why a store cannot be used: the label `reason` of `weir_store_unusable`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// There is no connection: nobody listens, or the connection was cut.
    Unreachable,
    /// The server takes the connection and does not answer.
    Silent,
    /// There is no agreement about TLS.
    Tls,
    /// The server wants another user or password.
    Authentication,
    /// The user lacks rights.
    Permission,
    /// The server is a replica.
    Replica,
    /// The server is a node of a cluster that keeps other keys.
    Cluster,
    /// The server is a Sentinel.
    Sentinel,
    /// The server reads its data.
    Loading,
    /// The server is there and answers every decision with an error.
    Failing,
}

impl Fault {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::Unreachable,
        Self::Silent,
        Self::Tls,
        Self::Authentication,
        Self::Permission,
        Self::Replica,
        Self::Cluster,
        Self::Sentinel,
        Self::Loading,
        Self::Failing,
    ];

    /// Its name in metrics.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Unreachable => "unreachable",
            Self::Silent => "silent",
            Self::Tls => "tls",
            Self::Authentication => "authentication",
            Self::Permission => "permission",
            Self::Replica => "replica",
            Self::Cluster => "cluster",
            Self::Sentinel => "sentinel",
            Self::Loading => "loading",
            Self::Failing => "failing",
        }
    }
}
