//! Faults of a single server.

use std::time::Duration;

use super::fault::{Buckets, Fault, Requests, Servers, Stage};
use crate::support::process::Process;
use crate::support::redis::{RedisConfig, RedisServer};

const SHORT: Duration = Duration::from_millis(700);

/// Keeps a server busy for half a second or so. Newer servers stop the clock for a script, so it counts.
const SLOW_SCRIPT: &str = "for i = 1, 120000000 do end";

pub(super) struct Single {
    server: RedisServer,
    /// Another user of the server.
    tenant: Option<Process>,
}

impl Single {
    /// A server that loses nothing when it is killed, and a user for the gateways.
    pub(super) fn start() -> Self {
        let lines = ["appendonly yes", "appendfsync always", "user weir on >secret ~* &* +@all"];
        let config = RedisConfig { lines: lines.map(str::to_owned).to_vec(), ..RedisConfig::default() };
        Self { server: RedisServer::start(&config), tenant: None }
    }

    fn run_slow_script(&mut self) {
        self.tenant = Some(self.server.background_cli(&["EVAL", SLOW_SCRIPT, "0"]));
    }

    fn await_slow_script(&mut self) {
        self.tenant.take().expect("the script was started").wait();
    }

    fn set(&self, name: &str, value: &str) {
        self.server.cli(&["CONFIG", "SET", name, value]);
    }

    fn set_user(&self, rules: &[&str]) {
        self.server.cli(&[&["ACL", "SETUSER", "weir"], rules].concat());
    }
}

impl Servers for Single {
    fn store(&self) -> String {
        format!("redis://weir:secret@{}", self.server.address())
    }
}

pub(super) const FAULTS: [Fault<Single>; 14] = [
    Fault {
        name: "frozen (SIGSTOP)",
        begin: |single| single.server.freeze(),
        lasts: SHORT,
        end: |single| single.server.thaw(),
        requests: Requests::Undecided,
        buckets: Buckets::Kept,
    },
    Fault {
        name: "killed, restarted with its append-only file",
        begin: |single| single.server.kill(),
        lasts: SHORT,
        end: |single| single.server.restart(),
        requests: Requests::Undecided,
        buckets: Buckets::Kept,
    },
    Fault {
        name: "killed, restarted empty",
        begin: |single| single.server.kill(),
        lasts: SHORT,
        end: |single| single.server.restart_empty(),
        requests: Requests::Undecided,
        buckets: Buckets::Lost,
    },
    Fault {
        name: "FLUSHALL",
        begin: |single| drop(single.server.cli(&["FLUSHALL"])),
        lasts: Duration::ZERO,
        end: |_| (),
        requests: Requests::Decided,
        buckets: Buckets::Lost,
    },
    Fault {
        name: "out of memory (maxmemory)",
        begin: |single| {
            single.set("maxmemory-policy", "noeviction");
            single.set("maxmemory", "1");
        },
        lasts: SHORT,
        end: |single| single.set("maxmemory", "0"),
        requests: Requests::Undecided,
        buckets: Buckets::Kept,
    },
    Fault {
        name: "a slow script of another user",
        begin: Single::run_slow_script,
        lasts: Duration::ZERO,
        end: Single::await_slow_script,
        requests: Requests::Undecided,
        buckets: Buckets::Kept,
    },
    Fault {
        name: "a slow script, and the server says BUSY",
        begin: |single| {
            single.set("lua-time-limit", "50");
            single.run_slow_script();
        },
        lasts: Duration::ZERO,
        end: |single| {
            single.await_slow_script();
            single.set("lua-time-limit", "5000");
        },
        requests: Requests::Undecided,
        buckets: Buckets::Kept,
    },
    Fault {
        name: "SCRIPT FLUSH",
        begin: |single| drop(single.server.cli(&["SCRIPT", "FLUSH"])),
        lasts: Duration::ZERO,
        end: |_| (),
        requests: Requests::Decided,
        buckets: Buckets::Kept,
    },
    Fault {
        name: "CLIENT PAUSE",
        begin: |single| drop(single.server.cli(&["CLIENT", "PAUSE", "700"])),
        lasts: Duration::ZERO,
        // It is paused as well.
        end: |single| drop(single.server.cli(&["PING"])),
        requests: Requests::Undecided,
        buckets: Buckets::Kept,
    },
    Fault {
        name: "CLIENT PAUSE WRITE",
        begin: |single| drop(single.server.cli(&["CLIENT", "PAUSE", "10000", "WRITE"])),
        lasts: SHORT,
        end: |single| drop(single.server.cli(&["CLIENT", "UNPAUSE"])),
        requests: Requests::Undecided,
        buckets: Buckets::Kept,
    },
    Fault {
        name: "CLIENT KILL TYPE normal",
        begin: |single| drop(single.server.cli(&["CLIENT", "KILL", "TYPE", "normal"])),
        lasts: Duration::ZERO,
        end: |_| (),
        requests: Requests::Decided,
        buckets: Buckets::Kept,
    },
    Fault {
        name: "another password, and connections are closed",
        begin: |single| {
            single.set_user(&["resetpass", ">other"]);
            single.server.cli(&["CLIENT", "KILL", "USER", "weir"]);
        },
        lasts: SHORT,
        end: |single| single.set_user(&["resetpass", ">secret"]),
        requests: Requests::Undecided,
        buckets: Buckets::Kept,
    },
    Fault {
        name: "the right to run scripts is taken away",
        begin: |single| single.set_user(&["-evalsha", "-eval"]),
        lasts: SHORT,
        end: |single| single.set_user(&["+@all"]),
        requests: Requests::Undecided,
        buckets: Buckets::Kept,
    },
    Fault {
        name: "demoted to a replica",
        begin: |single| drop(single.server.cli(&["REPLICAOF", "127.0.0.1", "1"])),
        lasts: SHORT,
        end: |single| drop(single.server.cli(&["REPLICAOF", "NO", "ONE"])),
        requests: Requests::Undecided,
        buckets: Buckets::Kept,
    },
];

#[test]
fn limits_hold_through_the_faults_of_a_server() {
    Stage::new(Single::start(), SHORT / 2).survive_all(&FAULTS);
}
