//! How many file descriptors the process may have.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// What is not for connections of clients and to upstreams: sockets, runtimes, stores, logs, and the files of the rules.
const SPARE: u64 = 64;

/// Raises the limit to what the system allows at most, and returns it. Systems begin with 1024 for the sake of programs
/// that use `select`, which could not cope with more; tokio can.
pub fn raise_limit() -> u64 {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let raised = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    // `None` is no limit.
    let limit = if raised.is_ok() { maximum } else { current };
    limit.unwrap_or(u64::MAX)
}

/// How many clients' connections fit in so many descriptors, if each has one to an upstream as well.
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
