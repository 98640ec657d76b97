//! A fault every ten seconds, for `WEIR_SOAK_SECONDS` on each kind of store: all that holds after one fault holds after many,
//! and memory does not grow.

use std::time::{Duration, Instant};

use super::cluster::{self, Nodes};
use super::fault::{Fault, Servers, Stage};
use super::sentinel::{self, Watched};
use super::single::{self, Single};

/// The default of `WEIR_SOAK_SECONDS`.
const SECONDS: u64 = 40;

/// The load before each fault and after it. A fault takes two seconds or so.
const CALM: Duration = Duration::from_secs(4);

/// The most that a gateway may grow, in KiB. What a connection or a bucket leaves behind at each fault would be less than that in a
/// short run; a long one prints what it measures.
const GROWTH: u64 = 16 * 1_024;

fn soak<S: Servers>(name: &str, servers: S, faults: &[Fault<S>]) {
    let seconds = std::env::var("WEIR_SOAK_SECONDS").map_or(SECONDS, |text| text.parse().expect("a number of seconds"));
    let (started, duration) = (Instant::now(), Duration::from_secs(seconds));
    let mut stage = Stage::new(servers, CALM);
    let first = stage.gateways.resident();
    for fault in faults.iter().cycle().take_while(|_| started.elapsed() < duration) {
        stage.survive(fault);
        println!("{name}: {:?} KiB after {:?}", stage.gateways.resident(), started.elapsed());
    }
    let last = stage.gateways.resident();
    println!("{name}: from {first:?} to {last:?} KiB in {:?}", started.elapsed());
    assert!(
        first.iter().zip(&last).all(|(first, last)| *last < first + GROWTH),
        "{name}: from {first:?} to {last:?} KiB"
    );
}

#[test]
fn a_server_that_fails_again_and_again() {
    soak("server", Single::start(), &single::FAULTS);
}

#[test]
fn sentinels_that_fail_over_again_and_again() {
    soak("sentinel", Watched::start(), &sentinel::FAULTS);
}

#[test]
fn a_cluster_that_fails_again_and_again() {
    soak("cluster", Nodes::start(), &cluster::FAULTS);
}
