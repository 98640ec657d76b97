//! The facts about the servers of a store, as `weir check --store` prints them.

use std::fmt::Write as _;
use std::time::Duration;

use crate::commands::print::{counted, detail, joined};
use crate::store::redis::inspection::facts::{Info, Inspection, RoundTrips, Server, ServerFacts};

/// The facts, as lines of text.
pub(super) fn facts(found: &Inspection) -> String {
    let mut text = String::new();
    for sentinel in &found.sentinels {
        if let Ok(watch) = &sentinel.answer {
            let _ = writeln!(text, "Sentinel {}\n  master    {}", sentinel.address, watch.master);
        }
    }
    for server in &found.servers {
        if let Ok(facts) = &server.facts {
            let _ = writeln!(text, "{}", server.address);
            push_server(&mut text, found, server, facts);
        }
    }
    if let Some(taken) = found.decisions {
        let _ = writeln!(text, "decisions\n  time      {}", shown(taken));
    }
    text
}

fn push_server(text: &mut String, found: &Inspection, server: &Server, facts: &ServerFacts) {
    match &facts.info {
        Some(info) => {
            detail(text, "server", format!("{} {}, {}", info.product, info.version, role(info)));
            detail(text, "memory", memory(info));
            detail(text, "restart", restart(info, facts));
        }
        None => detail(text, "server", format!("unknown, as user `{}` may not call INFO", facts.user)),
    }
    if let Some(cluster) = facts.cluster.as_ref().filter(|_| found.is_cluster) {
        let nodes = found.servers.len();
        detail(text, "cluster", format!("{}, {} hash slots, {nodes} nodes", cluster.state, cluster.assigned_slots));
    }
    match &facts.rights {
        Some(missing) if missing.keys.is_none() && missing.by_purpose.is_empty() => {
            detail(text, "rights", format!("user `{}` may call all that limits and blocks need", facts.user));
        }
        Some(_) => detail(text, "rights", format!("user `{}` lacks some", facts.user)),
        None if server.is_spare => {}
        None => detail(text, "rights", "unknown"),
    }
    if let Some(clock) = facts.clock {
        let (offset, within) = (millis(clock.micros.unsigned_abs()), millis(clock.within));
        let direction = if clock.micros < 0 { "behind" } else { "ahead of" };
        detail(text, "clock", format!("{offset} ms {direction} this machine's, give or take {within} ms"));
    }
    if let Some(pings) = facts.pings {
        detail(text, "ping", shown(pings));
    }
}

fn role(info: &Info) -> String {
    match info.replicas {
        None => "replica".into(),
        Some(0) => "master without replicas".into(),
        Some(replicas) => {
            format!("master with {}", counted(usize::try_from(replicas).unwrap_or(usize::MAX), "replica"))
        }
    }
}

fn memory(info: &Info) -> String {
    let used = mebibytes(info.used_memory);
    match info.maxmemory {
        0 => format!("{used} MiB used, no maxmemory"),
        most => format!("{used} MiB used of {} MiB, maxmemory-policy {}", mebibytes(most), info.policy),
    }
}

/// The charges that a restart of the server loses.
fn restart(info: &Info, facts: &ServerFacts) -> String {
    if info.has_append_only_file {
        return match facts.appendfsync.as_deref() {
            Some("always") => "loses nothing: the append-only file is written at once".into(),
            Some("everysec") => "loses up to 1 s of charges: the append-only file is written every second".into(),
            Some("no") => "loses the charges that the system has not written yet, up to 30 s on Linux".into(),
            _ => "keeps what is in the append-only file".into(),
        };
    }
    match facts.save.as_deref() {
        Some("") => "loses all charges: no persistence".into(),
        Some(points) => format!("loses the charges since the last snapshot (save {points})"),
        None => "loses the charges since the last snapshot, if there are snapshots".into(),
    }
}

fn shown(taken: RoundTrips) -> String {
    let millis_of = |duration: Duration| millis(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX));
    let parts = [(taken.p50, "p50"), (taken.p99, "p99")];
    joined(parts.map(|(duration, name)| format!("{} ms ({name})", millis_of(duration))), ", ")
}

/// Milliseconds with two digits after the point.
fn millis(micros: u64) -> String {
    format!("{}.{:02}", micros / 1_000, micros % 1_000 / 10)
}

/// Mebibytes with one digit after the point.
fn mebibytes(bytes: u64) -> String {
    const MEBIBYTE: u64 = 1 << 20;
    format!("{}.{}", bytes / MEBIBYTE, bytes % MEBIBYTE * 10 / MEBIBYTE)
}
