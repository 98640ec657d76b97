//! Whatever keeps the store from deciding shows: in `/readyz`, in a metric that has an alert, and on the page that says what to do.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use weir::store::Fault;

use crate::support::cluster::RedisCluster;
use crate::support::eventually;
use crate::support::injector::{Injector, Trouble};
use crate::support::process::free_port;
use crate::support::programs::repository;
use crate::support::redis::{RedisConfig, RedisServer};
use crate::support::saying::SayingServer;
use crate::support::weir::Weir;

const RULES: &str = "limits: { Ids: { by: { header: x-id }, burst: 1000000, on_store_error: deny } }";

/// Long enough for a server that is well on a busy machine.
const TIMEOUT: Duration = Duration::from_millis(100);

/// Asks a gateway until no decision is made and its pages say why.
#[track_caller]
fn check(weir: &Weir, fault: Fault, text: &str) {
    let label = Fault::LABELS[fault as usize];
    let runbook = std::fs::read_to_string(repository().join("docs/runbook.md")).unwrap();
    assert!(runbook.contains(&format!("\n| `{label}` |")), "the runbook does not name `{label}`");
    eventually(text, || {
        let statuses: Vec<u16> = (0..8).map(|id| weir.get("/", &[("x-id", &id.to_string())]).status()).collect();
        let ready = weir.admin("/readyz").text().to_owned();
        let unusable = weir.metric(&format!("weir_store_unusable{{reason=\"{label}\"}}"));
        let is_told = ready.contains(text) && ready.contains("\"degraded\"") && !ready.contains("\"store\":\"up\"");
        if is_told && unusable == 1 && statuses.contains(&503) { Ok(()) } else { Err((statuses, ready, unusable)) }
    });
}

fn gateway(store: &str) -> Weir {
    Weir::serve(RULES, &["--store", store, "--store-timeout", "100ms", "--workers", "1"])
}

#[test]
fn an_error_in_place_of_every_decision_shows() {
    for (scheme, error, fault, text) in [
        ("redis", "LOADING Redis is loading the dataset in memory", Fault::Loading, "LOADING"),
        ("redis", "BUSY Redis is busy running a script. You can only call SCRIPT KILL", Fault::Failing, "BUSY"),
        ("redis", "NOREPLICAS Not enough good replicas to write.", Fault::Failing, "NOREPLICAS"),
        ("redis", "MISCONF Redis is configured to save RDB snapshots, but", Fault::Failing, "MISCONF"),
        ("redis", "OOM command not allowed when used memory > 'maxmemory'.", Fault::Failing, "OOM"),
        ("redis", "MASTERDOWN Link with MASTER is down", Fault::Replica, "MASTERDOWN"),
        ("redis", "READONLY You can't write against a read only replica.", Fault::Replica, "READONLY"),
        ("redis", "NOAUTH Authentication required.", Fault::Authentication, "NOAUTH"),
        ("redis", "NOPERM this user has no permissions to run the 'evalsha' command", Fault::Permission, "NOPERM"),
        ("redis", "ERR unknown command 'EVALSHA', with args", Fault::Permission, "undo `rename-command`"),
        ("redis", "ERR max number of clients reached", Fault::Unreachable, "raise `maxclients`"),
        ("redis", "CLUSTERDOWN Hash slot not served", Fault::Cluster, "CLUSTERDOWN"),
        ("redis+cluster", "CLUSTERDOWN Hash slot not served", Fault::Cluster, "no master serves these keys now"),
        ("redis+cluster", "TRYAGAIN Multiple keys request during rehashing of slot", Fault::Cluster, "TRYAGAIN"),
        ("redis+cluster", "MOVED 3999 SELF", Fault::Cluster, "the nodes do not agree on who has the keys"),
        ("redis+cluster", "ASK 3999 SELF", Fault::Cluster, "the nodes do not agree on who has the keys"),
        ("redis+cluster", "MOVED 3999 :nowhere", Fault::Cluster, "a node of the cluster named another one `:nowhere`"),
        ("redis+cluster", "LOADING Redis is loading the dataset in memory", Fault::Loading, "LOADING"),
        ("redis+cluster", "OOM command not allowed when used memory > 'maxmemory'.", Fault::Failing, "OOM"),
    ] {
        let server = SayingServer::start(error);
        check(&gateway(&format!("{scheme}://{}", server.address)), fault, text);
    }
}

#[test]
fn a_server_that_cannot_decide_shows() {
    let config = |line: &str| RedisConfig { lines: vec![line.to_owned()], ..RedisConfig::default() };
    let user = |rights| format!("user default on nopass resetchannels -@all ~weir:{{0}}:* {rights}");
    let limits = "+evalsha +eval +get +set +del +pttl +pexpire +persist +time +ping +config";
    for (config, fault, text) in [
        (config("min-replicas-to-write 1"), Fault::Failing, "NOREPLICAS"),
        (config("maxmemory 1"), Fault::Failing, "OOM"),
        (config("rename-command EVALSHA \"\""), Fault::Permission, "undo `rename-command`"),
        (config("rename-command EVAL \"\""), Fault::Permission, "undo `rename-command`"),
        (config(&user(&limits.replace("+eval ", ""))), Fault::Permission, "NOPERM"),
        (config(&user(&limits.replace("+set ", ""))), Fault::Permission, "give the user the permissions"),
        (config("replicaof 127.0.0.1 1\nreplica-serve-stale-data no"), Fault::Replica, "replica"),
        (RedisConfig { sentinel: true, ..RedisConfig::default() }, Fault::Sentinel, "this is a Sentinel"),
        (RedisConfig { password: Some("other".into()), ..RedisConfig::default() }, Fault::Authentication, "NOAUTH"),
    ] {
        let server = RedisServer::start(&config);
        check(&gateway(&format!("redis://{}", server.address())), fault, text);
    }
    let server = RedisServer::plain();
    check(&gateway(&format!("rediss://{}", server.address())), Fault::Tls, "use `redis://`");
    let full = RedisServer::start(&config("maxclients 1"));
    let _other = eventually("another client is there", || {
        let mut other = TcpStream::connect(full.address()).unwrap();
        let mut reply = [0; 7];
        other.write_all(b"PING\r\n").and_then(|()| other.read_exact(&mut reply)).map_err(|error| error.to_string())?;
        if &reply == b"+PONG\r\n" { Ok(other) } else { Err(String::from_utf8_lossy(&reply).into_owned()) }
    });
    check(&gateway(&full.url()), Fault::Unreachable, "raise `maxclients`");
    check(&gateway(&format!("redis://127.0.0.1:{}", free_port())), Fault::Unreachable, "refused");
}

#[test]
fn a_server_that_answers_too_late_or_not_at_all_shows() {
    let server = RedisServer::plain();
    let injector = Injector::to(&server.address());
    let weir = gateway(&format!("redis://{}", injector.address));
    weir.until_connected();
    injector.set(Trouble::Delay(TIMEOUT * 3 / 2));
    check(&weir, Fault::Late, "answers take longer than the timeout of 100ms");
    injector.set(Trouble::Stall);
    check(&weir, Fault::Silent, "within");
    injector.set(Trouble::None);
    weir.until_connected();
}

#[test]
fn a_cluster_that_cannot_decide_shows() {
    let mut cluster = RedisCluster::divisible(&RedisConfig::default(), 3, 0);
    let weir = gateway(&cluster.url());
    weir.until_connected();
    cluster.isolate(Some(1));
    check(&weir, Fault::Cluster, "CLUSTERDOWN");
    cluster.isolate(None);
    cluster.until_whole();
    eventually("it decides again", || {
        for id in 0..32 {
            weir.get("/", &[("x-id", &id.to_string())]);
        }
        let ready = weir.admin("/readyz").text().to_owned();
        if ready.contains("\"store\":\"up\"") { Ok(()) } else { Err(ready) }
    });
    for node in &cluster.nodes {
        node.cli(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]);
        node.cli(&["CLUSTER", "DELSLOTSRANGE", "0", "5460"]);
    }
    check(&weir, Fault::Cluster, "some hash slots have no node");
}
