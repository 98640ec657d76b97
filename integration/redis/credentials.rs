//! Passwords in a file that change while gateways run: no request goes without its decision.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tempfile::TempDir;

use crate::support::binary::{command, run};
use crate::support::cluster::RedisCluster;
use crate::support::process::succeed;
use crate::support::redis::{RedisConfig, RedisServer};
use crate::support::sentinel::{SentinelConfig, SentinelGroup};
use crate::support::weir::Weir;
use crate::support::{becomes, eventually};

/// The bucket of an id never refills, so the rest of it counts the decisions.
const BURST: u64 = 1_000_000;

const LIMITS: &str = "limits: { Ids: { by: { header: x-id }, burst: 1000000, on_store_error: deny } }";

/// Enough ids for each node of a cluster.
const IDS: usize = 8;

/// Must not be percent-encoded in the file.
const FIRST: &str = "s%3@:0";

const CLIENTS: usize = 4;

/// A password in a volume of Kubernetes: `password` -> `..data/password`, where `..data` is replaced.
struct Secret {
    directory: TempDir,
}

impl Secret {
    fn new(password: &str) -> Self {
        let secret = Self { directory: tempfile::tempdir().unwrap() };
        secret.swap(password);
        symlink("..data/password", secret.path()).unwrap();
        secret
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("password")
    }

    fn swap(&self, password: &str) {
        let root: &Path = self.directory.path();
        let version = format!("..{password}");
        fs::create_dir(root.join(&version)).unwrap();
        fs::write(root.join(&version).join("password"), format!("{password}\n")).unwrap();
        symlink(&version, root.join("..data_tmp")).unwrap();
        fs::rename(root.join("..data_tmp"), root.join("..data")).unwrap();
    }
}

fn with_user(password: &str) -> RedisConfig {
    let user = format!("user weir on >{password} resetchannels ~weir:* +@all");
    RedisConfig { lines: vec![user], ..RedisConfig::default() }
}

/// Sends requests one after the other until `is_over`. Each holds the lock, so that none is under way while connections are
/// closed: its reply would be lost.
fn load(weir: &Weir, client: usize, is_over: &AtomicBool, closing: &RwLock<()>, sent: &[AtomicU64]) {
    let mut wire = weir.connect();
    for id in (0..IDS).cycle().skip(client) {
        if is_over.load(Ordering::Relaxed) {
            return;
        }
        let turn = closing.read().unwrap();
        let answer = wire.get_with("/", &[("x-id", &id.to_string())]);
        drop(turn);
        assert_eq!(answer.status(), 200, "{}", answer.text());
        sent[id].fetch_add(1, Ordering::Relaxed);
    }
}

/// Changes the password five times while requests come, on the servers and in the file, and closes all connections each time.
fn survives_rotations(store: &str, servers: &[RedisServer]) {
    let secret = Secret::new(FIRST);
    let path = secret.path();
    let flags = ["--store-user", "weir", "--store-password-file", path.to_str().unwrap()];
    let flags = [&["--store", store, "--workers", "2", "--log-format", "json"], &flags[..]].concat();
    let weir = Weir::serve(LIMITS, &flags);
    weir.until_connected();
    let (is_over, closing) = (AtomicBool::new(false), RwLock::new(()));
    let sent: Vec<AtomicU64> = (0..IDS).map(|_| AtomicU64::new(0)).collect();
    std::thread::scope(|scope| {
        // Dropped by a failed assertion as well, so that the clients end.
        let over = Over(&is_over);
        for client in 0..CLIENTS {
            let (weir, is_over, closing, sent) = (&weir, &is_over, &closing, &sent);
            scope.spawn(move || load(weir, client, is_over, closing, sent));
        }
        for number in 1..=5 {
            let password = format!("s%3@:{number}");
            let on_servers = || set_password(servers, &password);
            if number % 2 == 1 {
                secret.swap(&password);
                becomes("the servers reject the file's password", true, || is_rejected(&weir));
                let before = logged_in(servers);
                cut(servers, &closing, || {
                    eventually("new connections have the last one", || {
                        let now = logged_in(servers);
                        if now.iter().zip(&before).all(|(now, before)| now >= before) { Ok(()) } else { Err(now) }
                    });
                    eventually("all workers are connected", || connected(&weir));
                });
                on_servers();
            } else {
                on_servers();
                cut(servers, &closing, || {
                    becomes("no worker is connected", 0, || weir.metric("weir_store_connections"));
                });
                secret.swap(&password);
            }
            eventually("the servers know the file's password", || connected(&weir));
            becomes("it is not rejected any more", false, || is_rejected(&weir));
            let before = total(&sent);
            eventually("requests go on", || if total(&sent) > before + 100 { Ok(()) } else { Err(total(&sent)) });
        }
        drop(over);
    });
    for (id, sent) in sent.iter().enumerate() {
        let answer = weir.get("/", &[("x-id", &id.to_string())]);
        let left = BURST - sent.load(Ordering::Relaxed) - 1;
        assert!(answer.header("ratelimit").unwrap().contains(&format!("r={left}")), "{:?}", answer.header("ratelimit"));
    }
    let log = weir.log();
    assert_eq!(log.matches("the server rejects the password").count(), 3, "{log}");
    assert!(!log.contains("s%3@"), "{log}");
}

struct Over<'o>(&'o AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn total(sent: &[AtomicU64]) -> u64 {
    sent.iter().map(|sent| sent.load(Ordering::Relaxed)).sum()
}

fn set_password(servers: &[RedisServer], password: &str) {
    for server in servers {
        assert_eq!(server.cli(&["ACL", "SETUSER", "weir", "resetpass", &format!(">{password}")]), "OK");
    }
}

/// The connections of gateways to each server.
fn logged_in(servers: &[RedisServer]) -> Vec<usize> {
    servers.iter().map(|server| server.cli(&["CLIENT", "LIST"]).matches(" user=weir ").count()).collect()
}

/// Closes the connections while no request is under way.
fn cut(servers: &[RedisServer], closing: &RwLock<()>, seen: impl Fn()) {
    let _turn = closing.write().unwrap();
    for server in servers {
        server.cli(&["CLIENT", "KILL", "USER", "weir"]);
    }
    seen();
}

fn connected(weir: &Weir) -> Result<(), String> {
    let text = weir.admin("/readyz").text().to_owned();
    if text.contains("\"store\":\"up\"") { Ok(()) } else { Err(text) }
}

fn is_rejected(weir: &Weir) -> bool {
    weir.admin("/readyz").text().contains("rejects the password in --store-password-file")
}

#[test]
fn rotations_of_the_password_of_a_server_lose_no_decision() {
    let server = RedisServer::start(&with_user(FIRST));
    survives_rotations(&format!("redis://{}", server.address()), &[server]);
}

#[test]
fn rotations_of_the_password_of_a_master_with_sentinels_lose_no_decision() {
    let config = SentinelConfig { servers: with_user(FIRST), ..SentinelConfig::default() };
    let group = SentinelGroup::start(&config);
    survives_rotations(&group.url(), &group.servers);
}

#[test]
fn rotations_of_the_password_of_a_cluster_lose_no_decision() {
    let cluster = RedisCluster::start_with(&with_user(FIRST), 3, 0);
    survives_rotations(&cluster.url(), &cluster.nodes);
}

/// Both commands ignore a gateway's store, and must accept the flags that belong to it.
#[test]
fn rules_are_checked_and_tested_with_the_file_and_the_variables_of_a_gateway_on_redis() {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(directory.path().join(name), text).unwrap();
    let rules = "limits: { A: { by: ip, count: 1, period: 1s } }\ntests: { t: [{ get: /, expect: allow }] }\n";
    write("limits.yaml", rules);
    write("password", "secret");
    let flags = "limits: limits.yaml\nstore: rediss://127.0.0.1:1\nstore-user: weir\nstore-password-file: password\n\
                 store-ca-file: ca.pem\n";
    write("weir.yaml", flags);
    let variables = [("WEIR_STORE", "rediss://127.0.0.1:1"), ("WEIR_STORE_CA_FILE", "ca.pem")];
    for command_name in ["check", "test"] {
        let mut by_file = command(&[command_name, "--config", "weir.yaml"]);
        let mut by_variables = command(&[command_name, "limits.yaml"]);
        by_variables.envs(variables);
        for program in [&mut by_file, &mut by_variables] {
            succeed(program.current_dir(directory.path()));
        }
    }
}

#[test]
fn a_file_and_a_user_that_cannot_be_used_are_named_at_the_start() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("password");
    let file = path.to_str().unwrap();
    let check = |flags: &[&str], expected: &str| {
        for command in ["check", "serve"] {
            let upstream: &[&str] = if command == "serve" { &["--upstream", "echo"] } else { &[] };
            let finished = run(&[&[command], upstream, flags].concat());
            assert!(finished.text().contains(expected), "{expected} is not in\n{}", finished.text());
            assert!(!finished.text().contains("secret"), "{}", finished.text());
            assert_eq!(finished.code, Some(2), "{}", finished.text());
        }
    };
    let plain = ["--store", "redis://127.0.0.1:1", "--store-password-file", file];
    check(&plain, "password`: No such file");
    fs::write(&path, "\n").unwrap();
    check(&plain, "password`: is empty");
    fs::write(&path, "a".repeat(20_000)).unwrap();
    check(&plain, "password`: is longer than 16384 bytes");
    fs::write(&path, "secret").unwrap();
    check(
        &plain[..2].iter().chain(&["--store-user", "weir"]).copied().collect::<Vec<_>>(),
        "needs --store-password-file",
    );
    let given = ["--store", "memory", "--store-password-file", file];
    for (command, flags) in [
        (&["serve", "--upstream", "echo"][..], &given[..]),
        (&["check"], &given),
        (&["check"], &given[2..]),
        (&["test"], &["--store-user=weir"]),
    ] {
        let finished = run(&[command, flags].concat());
        let expected = "is for Redis: add `--store redis://host:port`";
        assert!(finished.code == Some(2) && finished.text().contains(expected), "{command:?} {}", finished.text());
    }
    for url in ["redis://:secret@h", "redis+cluster://weir:secret@h", "redis+sentinel://weir:secret@h/main"] {
        check(&["--store", url, "--store-password-file", file], "remove what is before the `@`");
    }
}

#[test]
fn check_logs_in_with_the_file() {
    let server = RedisServer::start(&with_user(FIRST));
    let secret = Secret::new(FIRST);
    let path = secret.path();
    let url = format!("redis://{}", server.address());
    let flags = ["check", "--store-timeout", "1m", "--store", &url, "--store-user", "weir", "--store-password-file"];
    let flags = [&flags[..], &[path.to_str().unwrap()]].concat();
    let finished = run(&flags);
    assert_eq!(finished.code, Some(0), "{}", finished.text());
    assert!(finished.text().contains("user `weir` may call all"), "{}", finished.text());
    secret.swap("other");
    let finished = run(&flags);
    assert_eq!(finished.code, Some(1), "{}", finished.text());
    assert!(finished.text().contains("rejects the user or password"), "{}", finished.text());
}
