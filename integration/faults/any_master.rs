//! Faults of a server and of the network to it, which can happen to each kind of store. Other servers do not notice.

use std::time::Duration;

use super::fault::{Buckets, Fault, Requests, Servers};
use crate::support::injector::Trouble;
use crate::support::redis::RedisServer;

/// The user of the gateways. All servers have these lines: they lose nothing when they are killed.
pub(super) const USER: &str = "weir:secret@";
pub(super) const LINES: [&str; 3] = ["appendonly yes", "appendfsync no", "user weir on >secret ~* &* +@all"];

pub(super) fn set(server: &RedisServer, name: &str, value: &str) {
    server.cli(&["CONFIG", "SET", name, value]);
}

fn set_user(server: &RedisServer, rules: &[&str]) {
    server.cli(&[&["ACL", "SETUSER", "weir"], rules].concat());
}

pub(super) fn faults<S: Servers>() -> Vec<Fault<S>> {
    let mut faults = vec![
        Fault { requests: Requests::Decided, ..Fault::new("nothing", |_| (), |_| ()) },
        // Few enough and too many to be taken for overload, and a crowd.
        Fault {
            floods: &[20, 30, 200],
            lasts: Duration::ZERO,
            requests: Requests::Decided,
            ..Fault::new("240, 360, then 2,400 requests at once", |_| (), |_| ())
        },
    ];
    faults.extend(of_server());
    faults.extend(of_network());
    faults
}

fn of_server<S: Servers>() -> [Fault<S>; 10] {
    [
        Fault::new("frozen", |it| it.master().freeze(), |it| it.master().thaw()),
        Fault::new("killed, restarted with its append-only file", |it| it.master().kill(), |it| it.master().restart()),
        Fault {
            buckets: Buckets::Lost,
            ..Fault::new("killed, restarted empty", |it| it.master().kill(), |it| it.master().restart_empty())
        },
        Fault { buckets: Buckets::Lost, ..Fault::unnoticed("`FLUSHALL`", |it| drop(it.master().cli(&["FLUSHALL"]))) },
        Fault::new(
            "out of memory",
            |it| {
                set(it.master(), "maxmemory-policy", "noeviction");
                set(it.master(), "maxmemory", "1");
            },
            |it| set(it.master(), "maxmemory", "0"),
        ),
        Fault::unnoticed("`SCRIPT FLUSH`", |it| drop(it.master().cli(&["SCRIPT", "FLUSH"]))),
        Fault {
            lasts: Duration::ZERO,
            requests: Requests::SomeUndecided,
            ..Fault::new(
                "`CLIENT PAUSE`",
                |it| drop(it.master().cli(&["CLIENT", "PAUSE", "400"])),
                // It is paused as well.
                |it| drop(it.master().cli(&["PING"])),
            )
        },
        Fault::unnoticed("`CLIENT KILL TYPE normal`", |it| {
            drop(it.master().cli(&["CLIENT", "KILL", "TYPE", "normal"]));
        }),
        Fault::new(
            "another password, and connections are closed",
            |it| {
                set_user(it.master(), &["resetpass", ">other"]);
                it.master().cli(&["CLIENT", "KILL", "USER", "weir"]);
            },
            |it| set_user(it.master(), &["resetpass", ">secret"]),
        ),
        Fault::new(
            "the right to run scripts is taken away",
            |it| set_user(it.master(), &["-evalsha", "-eval"]),
            |it| set_user(it.master(), &["+@all"]),
        ),
    ]
}

/// Nothing is lost but replies, whatever happens.
fn of_network<S: Servers>() -> [Fault<S>; 9] {
    let fault = |name, begin| Fault::new(name, begin, |it: &mut S| it.injector().set(Trouble::None));
    let decided = |fault| Fault { requests: Requests::Decided, ..fault };
    [
        decided(fault("replies 5 ms later", |it| it.injector().set(Trouble::Delay(Duration::from_millis(5))))),
        fault("replies 200 ms later", |it| it.injector().set(Trouble::Delay(Duration::from_millis(200)))),
        fault("300 bytes per second", |it| it.injector().set(Trouble::Throttle(300))),
        fault("nothing passes", |it| it.injector().set(Trouble::Stall)),
        fault("replies are lost", |it| it.injector().set(Trouble::Drop)),
        decided(fault("a reset in a reply", |it| it.injector().set(Trouble::ResetOnce))),
        fault("a reset in each first reply", |it| it.injector().set(Trouble::Reset)),
        fault("connections are half closed", |it| it.injector().set(Trouble::HalfClose)),
        decided(fault("connections are closed once", |it| it.injector().cut())),
    ]
}
