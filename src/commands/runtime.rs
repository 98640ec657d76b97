//! The runtime of commands that call another process.

use std::io;

/// Runs a call to its end.
pub(super) fn block_on<T>(call: impl Future<Output = T>) -> io::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let result = runtime.block_on(call);
    // Does not wait for a pending name lookup.
    runtime.shutdown_background();
    Ok(result)
}
