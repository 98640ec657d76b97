//! The limit of file descriptors.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors for anything but connections of clients and to upstreams: sockets, runtimes, stores, logs, rules files.
const SPARE: u64 = 64;

/// Raises the limit to the maximum and returns it. The default of 1024 is for programs that use `select`.
pub fn raise_limit() -> u64 {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let raised = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    // `None` is no limit.
    let limit = if raised.is_ok() { maximum } else { current };
    limit.unwrap_or(u64::MAX)
}

/// Returns how many client connections fit, if each also has a connection to an upstream.
pub fn connections_within(limit: u64) -> usize {
    usize::try_from(limit.saturating_sub(SPARE) / 2).unwrap_or(usize::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_takes_two_descriptors() {
        for (limit, connections) in [(0, 1), (64, 1), (1_024, 480), (u64::MAX, 9_223_372_036_854_775_775)] {
            assert_eq!(connections_within(limit), connections, "{limit}");
        }
    }
}
