//! Faults that only a server alone can have.

use std::time::Duration;

use super::any_master::{self, LINES, USER, set};
use super::fault::{Fault, Requests, Servers, Stage};
use crate::support::injector::Injector;
use crate::support::process::Process;
use crate::support::redis::{RedisConfig, RedisServer};

/// Keeps a server busy for half a second or so. Newer servers stop the clock for a script, so it counts.
const SLOW_SCRIPT: &str = "for i = 1, 120000000 do end";

struct Single {
    server: RedisServer,
    injector: Injector,
    /// Another user of the server.
    tenant: Option<Process>,
}

impl Single {
    fn start() -> Self {
        let config = RedisConfig { lines: LINES.map(str::to_owned).to_vec(), ..RedisConfig::default() };
        let server = RedisServer::start(&config);
        Self { injector: Injector::to(&server.address()), server, tenant: None }
    }

    fn run_slow_script(&mut self) {
        self.tenant = Some(self.server.background_cli(&["EVAL", SLOW_SCRIPT, "0"]));
    }

    fn await_slow_script(&mut self) {
        self.tenant.take().expect("the script was started").wait();
    }
}

impl Servers for Single {
    fn store(&self) -> String {
        format!("redis://{USER}{}", self.injector.address)
    }

    fn master(&mut self) -> &mut RedisServer {
        &mut self.server
    }

    fn injector(&self) -> &Injector {
        &self.injector
    }
}

const FAULTS: [Fault<Single>; 4] = [
    Fault {
        lasts: Duration::ZERO,
        requests: Requests::SomeUndecided,
        ..Fault::new("a slow script of another user", Single::run_slow_script, Single::await_slow_script)
    },
    Fault {
        lasts: Duration::ZERO,
        requests: Requests::SomeUndecided,
        ..Fault::new(
            "a slow script, and the server says BUSY",
            |single| {
                set(&single.server, "lua-time-limit", "50");
                single.run_slow_script();
            },
            |single| {
                single.await_slow_script();
                set(&single.server, "lua-time-limit", "5000");
            },
        )
    },
    Fault::new(
        "`CLIENT PAUSE WRITE`",
        |single| drop(single.server.cli(&["CLIENT", "PAUSE", "10000", "WRITE"])),
        |single| drop(single.server.cli(&["CLIENT", "UNPAUSE"])),
    ),
    Fault::new(
        "demoted to a replica",
        |single| drop(single.server.cli(&["REPLICAOF", "127.0.0.1", "1"])),
        |single| drop(single.server.cli(&["REPLICAOF", "NO", "ONE"])),
    ),
];

#[test]
fn limits_hold_on_a_server() {
    let faults: Vec<_> = any_master::faults().into_iter().chain(FAULTS).collect();
    Stage::survive("server", Single::start(), &faults);
}
