//! Failovers of servers that Sentinels watch. The clocks of the two differ by seconds.

use std::time::Duration;

use super::fault::{Buckets, Fault, Requests, Servers, Stage};
use crate::support::sentinel::{SentinelConfig, SentinelGroup};

const CALM: Duration = Duration::from_millis(400);

pub(super) struct Watched {
    group: SentinelGroup,
    master: usize,
}

impl Watched {
    pub(super) fn start() -> Self {
        // Whole seconds, so that the windows of both clocks begin together.
        let config = SentinelConfig { replica_clock_offset: Some(3), ..SentinelConfig::default() };
        let group = SentinelGroup::start(&config);
        let seconds =
            |server: usize| -> u64 { group.servers[server].cli(&["TIME"]).lines().next().unwrap().parse().unwrap() };
        assert!(seconds(1) > seconds(0) + 1);
        Self { group, master: 0 }
    }

    fn until_replaced(&mut self) {
        self.master = self.group.until_replaced(self.master);
    }
}

impl Servers for Watched {
    fn store(&self) -> String {
        self.group.url()
    }

    fn heal(&mut self) {
        for server in self.group.servers.iter_mut().chain(&mut self.group.sentinels) {
            if !server.is_running() {
                server.restart();
            }
        }
        self.group.until_whole();
        self.master = self.group.master();
    }
}

pub(super) const FAULTS: [Fault<Watched>; 4] = [
    Fault {
        name: "Sentinel: the master is killed",
        begin: |watched| watched.group.servers[watched.master].kill(),
        lasts: Duration::ZERO,
        end: Watched::until_replaced,
        requests: Requests::Undecided,
        buckets: Buckets::Replaced,
    },
    Fault {
        name: "Sentinel: the master is frozen, then thawed beside the new one",
        begin: |watched| watched.group.servers[watched.master].freeze(),
        lasts: Duration::ZERO,
        end: |watched| {
            let old = watched.master;
            watched.until_replaced();
            watched.group.servers[old].thaw();
        },
        requests: Requests::Undecided,
        buckets: Buckets::Replaced,
    },
    Fault {
        name: "Sentinel: SENTINEL FAILOVER",
        begin: |watched| watched.master = watched.group.fail_over(),
        lasts: Duration::ZERO,
        end: |_| (),
        requests: Requests::Decided,
        buckets: Buckets::Replaced,
    },
    Fault {
        name: "Sentinel: two of three Sentinels are killed",
        begin: |watched| {
            for sentinel in &mut watched.group.sentinels[..2] {
                sentinel.kill();
            }
        },
        lasts: CALM,
        end: |_| (),
        requests: Requests::Decided,
        buckets: Buckets::Kept,
    },
];

#[test]
fn limits_hold_through_failovers_by_sentinels() {
    Stage::new(Watched::start(), CALM).survive_all(&FAULTS);
}
