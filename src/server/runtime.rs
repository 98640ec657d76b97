//! The runtime of each thread.

use std::io;

use tokio::runtime::{Builder, LocalOptions, LocalRuntime};

/// Threads per runtime that resolve upstreams' names. With tokio's default, a hanging resolver could occupy 512.
const MAX_BLOCKING_THREADS: usize = 8;

/// Builds a runtime whose tasks stay on this thread, so they share state without locks.
pub(super) fn build_runtime() -> io::Result<LocalRuntime> {
    let mut builder = Builder::new_current_thread();
    builder.enable_all().max_blocking_threads(MAX_BLOCKING_THREADS).build_local(LocalOptions::default())
}
