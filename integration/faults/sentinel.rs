//! Failovers of servers that Sentinels watch. The clocks of the two differ by seconds.

use std::time::Duration;

use super::any_master::{self, LINES, USER};
use super::fault::{Buckets, Fault, SHORT, Servers, Stage};
use crate::support::injector::Injector;
use crate::support::redis::{RedisConfig, RedisServer};
use crate::support::sentinel::{SentinelConfig, SentinelGroup};

/// A master that is silent for longer is replaced: not in a short fault, however busy the machine is.
const DOWN_AFTER: u32 = 1_000;

struct Watched {
    group: SentinelGroup,
    master: usize,
}

impl Watched {
    fn start() -> Self {
        let with = |lines: &[&str]| RedisConfig {
            lines: lines.iter().map(|line| (*line).to_owned()).collect(),
            ..RedisConfig::default()
        };
        let config = SentinelConfig {
            servers: with(&LINES),
            sentinels: with(&LINES[2..]),
            // Whole seconds, so that the windows of both clocks begin together.
            replica_clock_offset: Some(3),
            down_after: DOWN_AFTER,
            injected: true,
            ..SentinelConfig::default()
        };
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
        self.group.url().replacen("://", &format!("://{USER}"), 1)
    }

    fn heal(&mut self, _hash_slot: Option<u16>) {
        for server in self.group.servers.iter_mut().chain(&mut self.group.sentinels) {
            if !server.is_running() {
                server.restart();
            }
        }
        self.group.until_whole();
        self.master = self.group.master();
    }

    fn replaced(&self) -> Buckets {
        if self.group.master() == self.master { Buckets::Kept } else { Buckets::Replaced }
    }

    fn master(&mut self) -> &mut RedisServer {
        &mut self.group.servers[self.master]
    }

    fn injector(&self) -> &Injector {
        &self.group.injectors[self.master]
    }
}

const FAULTS: [Fault<Watched>; 4] = [
    Fault {
        lasts: Duration::ZERO,
        buckets: Buckets::Replaced,
        ..Fault::new("the master is killed", |watched| watched.master().kill(), Watched::until_replaced)
    },
    Fault {
        lasts: Duration::ZERO,
        buckets: Buckets::Replaced,
        ..Fault::new(
            "the master is frozen, then thawed beside the new one",
            |watched| watched.master().freeze(),
            |watched| {
                let old = watched.master;
                watched.until_replaced();
                watched.group.servers[old].thaw();
            },
        )
    },
    Fault {
        buckets: Buckets::Replaced,
        ..Fault::unnoticed("`SENTINEL FAILOVER`", |watched| watched.master = watched.group.fail_over())
    },
    Fault {
        lasts: SHORT,
        ..Fault::unnoticed("two of three Sentinels are killed", |watched| {
            for sentinel in &mut watched.group.sentinels[..2] {
                sentinel.kill();
            }
        })
    },
];

#[test]
fn limits_hold_under_sentinels() {
    let faults: Vec<_> = any_master::faults().into_iter().chain(FAULTS).collect();
    Stage::survive("Sentinel", Watched::start(), &faults);
}
