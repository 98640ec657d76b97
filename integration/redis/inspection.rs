//! `weir check --store` on real servers.

use std::net::TcpListener;

use crate::support::binary::run;
use crate::support::cluster::RedisCluster;
use crate::support::eventually;
use crate::support::process::{Finished, free_port};
use crate::support::redis::{RedisConfig, RedisServer};
use crate::support::sentinel::{SentinelConfig, SentinelGroup};

/// The rights that limits without further algorithms need.
pub(super) const RIGHTS: &str = "~weir:{0}:* +evalsha +eval +get +set +del +pttl +pexpire +persist +time +ping";

/// Runs `weir check --store` and checks the exit code and parts of the output.
#[track_caller]
fn check(url: &str, files: &[&str], code: i32, parts: &[&str]) -> String {
    // Decisions of a busy machine are slow, which is a problem of its own.
    let store = ["check", "--store-timeout", "1m", "--store", url];
    let Finished { code: ended, out, err } = run(&[&store, files].concat());
    let text = format!("{out}{err}");
    assert_eq!(ended, Some(code), "{text}");
    for part in parts {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
    text
}

/// A server with a user `weir` who has these rights, and that user's URL.
pub(super) fn with_user(rights: &str, config: RedisConfig) -> (RedisServer, String) {
    let user = format!("user weir on >secret resetchannels -@all {rights}");
    let server = RedisServer::start(&RedisConfig { lines: vec![user], ..config });
    let url = format!("redis://weir:secret@{}", server.address());
    (server, url)
}

#[test]
fn a_good_server_has_facts_and_no_problems_and_nothing_is_left_there() {
    let server = RedisServer::plain();
    let first = format!("{}\n  server    ", server.address());
    let parts = [
        &first,
        "master without replicas\n  memory    ",
        "no maxmemory\n  restart   loses all charges",
        "  rights    user `default` may call all that limits and blocks need\n  clock     0.",
        "give or take 0.",
        "\n  ping      0.",
        "\ndecisions\n  time      ",
    ];
    let text = check(&server.url(), &["limits.yaml"], 0, &parts);
    assert!(text.starts_with("limits.yaml: ok, "), "{text}");
    assert!(text.ends_with(&format!("redis://{}: ok\n", server.address())), "{text}");
    assert_eq!(server.cli(&["DBSIZE"]), "0");
}

#[test]
fn a_server_that_drops_any_key_resets_limits() {
    let server = RedisServer::plain();
    server.cli(&["CONFIG", "SET", "maxmemory", "100mb"]);
    server.cli(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    let parts = ["used of 100.0 MiB", "warning: ", "`allkeys-lru`", "volatile-ttl", ": ok, 1 warning\n"];
    check(&server.url(), &[], 0, &parts);
}

#[test]
fn a_user_is_told_the_rights_that_the_rules_need() {
    let directory = tempfile::tempdir().unwrap();
    let [plain, slots] = [("plain", "gcra"), ("slots", "concurrency")].map(|(name, algorithm)| {
        let path = directory.path().join(format!("{name}.yaml"));
        let numbers = if algorithm == "gcra" { "count: 1, period: 1s" } else { "count: 1" };
        std::fs::write(&path, format!("limits:\n  A: {{ algorithm: {algorithm}, {numbers} }}\n")).unwrap();
        path.to_str().unwrap().to_owned()
    });
    let (server, url) = with_user(RIGHTS, RedisConfig::default());
    let unknown = "server    unknown, as user `weir` may not call INFO";
    check(&url, &[&plain], 0, &[unknown, "`weir bucket block` needs: `ACL SETUSER weir +hdel +hget "]);
    let polling =
        "may not call CLIENT|TRACKING, which lets idle gateways poll less often: `ACL SETUSER weir +client|tracking`";
    check(&url, &[&plain], 0, &[polling]);
    let missing = "error: 127.0.0.1:";
    let zadd = "which limits with `algorithm: concurrency` need: `ACL SETUSER weir +zadd +zcount +zrange ";
    check(&url, &[&slots], 1, &[missing, zadd]);
    check(&url, &[], 0, &["warning: 127.0.0.1:", zadd, "`algorithm: queue` need"]);

    server.cli(&["ACL", "SETUSER", "weir", "-evalsha", "-pttl"]);
    let text = check(&url, &[&plain], 1, &["may not call EVALSHA, PTTL, which every limit needs"]);
    assert!(text.contains("`ACL SETUSER weir +evalsha +pttl`"), "{text}");
    server.cli(&["ACL", "SETUSER", "weir", "-del", "+evalsha"]);
    check(&url, &[&plain], 1, &["may not call PTTL, DEL, which every limit needs"]);
    assert_eq!(server.cli(&["EXISTS", "weir:{0}:!trial"]), "0");
    server.cli(&["ACL", "SETUSER", "weir", "+del", "+pttl", "resetkeys", "~other:*"]);
    check(&url, &[&plain], 1, &["has no access to the keys: `ACL SETUSER weir ~weir:{0}:*`"]);
    assert!(!text.contains("secret"), "{text}");
}

#[test]
fn servers_that_do_not_decide_are_told() {
    let replica = RedisServer::plain();
    replica.cli(&["REPLICAOF", "127.0.0.1", &free_port().to_string()]);
    check(&replica.url(), &[], 1, &["error: this server is a read-only replica: use its master", "  server    "]);
    let sentinel = RedisServer::start(&RedisConfig { sentinel: true, ..RedisConfig::default() });
    check(&sentinel.url(), &[], 1, &["error: this is a Sentinel"]);
    let locked = RedisServer::start(&RedisConfig { password: Some("other".into()), ..RedisConfig::default() });
    check(&format!("redis://{}", locked.address()), &[], 1, &["error: NOAUTH", "put the password into the URL"]);
    let text = check(&format!("redis://127.0.0.1:{}", free_port()), &[], 1, &["error: Connection refused"]);
    assert_eq!(text.matches("refused").count(), 1, "{text}");
    // Takes connections and never replies.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://{}", silent.local_addr().unwrap());
    check(&url, &[], 1, &["error: no connection within 1s"]);
    let finished = run(&["check", "--store", "redis://"]);
    assert_eq!(finished.code, Some(2), "{}", finished.text());
}

#[test]
fn each_node_of_a_cluster_has_facts() {
    let cluster = RedisCluster::start(3, 0);
    let parts = [
        "master without replicas",
        "  cluster   ok, 16384 hash slots, 3 nodes\n",
        "may call all that limits and blocks need",
        "\ndecisions\n  time      ",
        ": no replica: while this node is down",
        ": ok, 3 warnings\n",
    ];
    let text = check(&cluster.url(), &[], 0, &parts);
    for node in &cluster.nodes {
        assert!(text.contains(&format!("{}\n  server    ", node.address())), "{text}");
        assert_eq!(node.cli(&["DBSIZE"]), "0");
    }
    // A node that is addressed as a single server: some have the keys' hash slot.
    check(&cluster.nodes[0].url(), &[], 1, &["error: ", "`redis+cluster://"]);
    cluster.nodes[1].cli(&["CLUSTER", "DELSLOTSRANGE", "6000", "6999"]);
    let text = check(&cluster.url(), &[], 1, &["15384 of 16384 hash slots have a node: assign the other 1000"]);
    assert!(!text.contains(": ok"), "{text}");
}

#[test]
fn a_master_is_found_by_its_sentinels() {
    let mut group = SentinelGroup::plain();
    let master = format!("  master    {}\n", group.servers[0].address());
    let parts = [&master, "master with 1 replica", "\ndecisions\n  time      "];
    let text = check(&group.url(), &[], 0, &parts);
    assert_eq!(text.matches(&master).count(), 3, "{text}");
    let other = group.url().replace("/main", "/other");
    check(&other, &[], 1, &["it watches no master `other`; it watches `main`"]);
    for sentinel in &mut group.sentinels[1..] {
        sentinel.kill();
    }
    eventually("the last Sentinel misses the others", || {
        let answer = group.sentinels[0].cli(&["SENTINEL", "CKQUORUM", SentinelGroup::NAME]);
        if answer.starts_with("NOQUORUM") { Ok(()) } else { Err(answer) }
    });
    let parts = ["Connection refused", "the master cannot be replaced: NOQUORUM", ": ok, 3 warnings\n"];
    check(&group.url(), &[], 0, &parts);
}

/// The password in the URL is also for Sentinels, but they may have none.
#[test]
fn sentinels_without_the_password_of_the_master_are_asked_as_a_gateway_asks_them() {
    let servers = RedisConfig { password: Some("secret".into()), ..RedisConfig::default() };
    let group = SentinelGroup::start(&SentinelConfig { servers, ..SentinelConfig::default() });
    let master = format!("  master    {}\n", group.servers[0].address());
    let text = check(&group.url().replace("://", "://:secret@"), &[], 0, &["master with 1 replica"]);
    assert_eq!(text.matches(&master).count(), 3, "{text}");
}
