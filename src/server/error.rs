//! Why a server could not start.

use std::io;

use super::ListenAddress;

/// The server could not start.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    #[error("cannot listen on {address} ({listener}): {error}")]
    Bind {
        /// The label of its kind.
        listener: &'static str,
        address: ListenAddress,
        #[source]
        error: io::Error,
    },
    #[error("cannot use the inherited sockets: {0}")]
    Inherited(String),
    /// A thread, a runtime or a signal handler could not be created.
    #[error("cannot start the server: {0}")]
    System(#[from] io::Error),
    /// A signal came while the process was taking over.
    #[error("stopped before the listeners opened")]
    Stopped,
    #[error("cannot start a worker: {0}")]
    Worker(String),
}
