//! The limit of file descriptors.

use std::num::NonZeroU32;

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

/// Returns how many connections, or concurrent HTTP/2 requests, one address may have, so that a few clients cannot take all
/// descriptors: a quarter of what fits, up to `most`.
pub fn share_of_one_address(fit: usize, most: NonZeroU32) -> NonZeroU32 {
    let share = u32::try_from(fit / 4).unwrap_or(u32::MAX);
    NonZeroU32::new(share).unwrap_or(NonZeroU32::MIN).min(most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_a_quarter_of_what_fits() {
        let most = NonZeroU32::new(1_024).unwrap();
        for (fit, share) in
            [(0, 1), (1, 1), (7, 1), (8, 2), (418, 104), (4_095, 1_023), (4_096, 1_024), (usize::MAX, 1_024)]
        {
            assert_eq!(share_of_one_address(fit, most).get(), share, "{fit}");
        }
    }

    #[test]
    fn a_connection_takes_two_descriptors() {
        for (limit, connections) in [(0, 1), (64, 1), (1_024, 480), (u64::MAX, 9_223_372_036_854_775_775)] {
            assert_eq!(connections_within(limit), connections, "{limit}");
        }
    }
}
