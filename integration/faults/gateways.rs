//! Three gateways on one store, in front of an upstream that counts the requests in flight.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::limits;
use crate::support::upstream::{Upstream, ok};
use crate::support::weir::Weir;

const GATEWAYS: usize = 3;

/// The time for which the upstream holds a request of the limit `Concurrency`.
const HOLD: Duration = Duration::from_millis(100);

/// Counters of all gateways together, by name and labels.
pub(super) type Counters = BTreeMap<String, u64>;

pub(super) struct Gateways {
    pub(super) all: Vec<Weir>,
    in_flight: Arc<Mutex<BTreeMap<String, InFlight>>>,
    _upstream: Upstream,
}

#[derive(Default)]
struct InFlight {
    now: u64,
    most: u64,
}

impl Gateways {
    pub(super) fn start(store: &str) -> Self {
        let in_flight: Arc<Mutex<BTreeMap<String, InFlight>>> = Arc::default();
        let seen = Arc::clone(&in_flight);
        let upstream = Upstream::start(move |wire, _| {
            while let Some(request) = wire.request() {
                let id = request.header("x-id").unwrap().to_owned();
                {
                    let mut seen = seen.lock();
                    let held = seen.entry(id.clone()).or_default();
                    held.now += 1;
                    held.most = held.most.max(held.now);
                }
                std::thread::sleep(HOLD);
                seen.lock().get_mut(&id).unwrap().now -= 1;
                wire.send(ok(""));
            }
        });
        let slow = format!("/Concurrency=http://{}", upstream.address);
        let flags =
            ["--workers", "2", "--upstream", "echo", "--upstream", &slow, "--store", store, "--store-timeout", "20ms"];
        let rules = limits::rules();
        let all = (0..GATEWAYS).map(|_| Weir::serve(&rules, &flags)).collect();
        Self { all, in_flight, _upstream: upstream }
    }

    /// The most requests in flight for one id since the last call.
    pub(super) fn most_in_flight(&self) -> u64 {
        let mut all = self.in_flight.lock();
        all.values_mut().map(|held| std::mem::replace(&mut held.most, held.now)).max().unwrap_or(0)
    }

    pub(super) fn counters(&self) -> Counters {
        let mut sums = Counters::new();
        for weir in &self.all {
            let page = weir.admin("/metrics");
            let lines = page.text().lines().filter_map(|line| line.rsplit_once(' '));
            for (name, value) in lines.filter(|(name, _)| !name.starts_with('#')) {
                if let Ok(value) = value.parse::<u64>() {
                    *sums.entry(name.to_owned()).or_default() += value;
                }
            }
        }
        sums
    }

    /// Resident memory of each gateway, in KiB.
    pub(super) fn resident(&self) -> Vec<u64> {
        self.all.iter().map(Weir::resident).collect()
    }
}
