//! TLS, users, passwords, and their errors.

use weir::clock::Clock;
use weir::engine::algorithms::charge::Mode;
use weir::engine::algorithms::numbers::Numbers;
use weir::store::redis::{RedisOptions, RedisStore};
use weir::store::{Fault, StoreError};

use super::{charge, connected, decide, fixed, last_error, options, resumes, spend};
use crate::support::process::free_port;
use crate::support::redis::{RedisConfig, RedisServer};
use crate::support::{eventually, eventually_async};

pub(super) fn install_provider() {
    // A second test in this process finds the first one's provider.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
}

/// Asserts that no connection is made, and the reason in the status.
pub(super) async fn stays_down(options: &RedisOptions, reason: &str) {
    let store = RedisStore::connect(&options.target().unwrap());
    let text = eventually_async(reason, async || last_error(&store, reason)).await;
    assert!(!text.contains("secret"), "{text}");
    assert_eq!(spend(&store).await, Err(StoreError::Down));
    assert!(!store.health().connected);
    assert!(!store.health().breaker_open);
}

#[tokio::test]
async fn tls_with_an_authority_and_a_client_certificate() {
    install_provider();
    let server = RedisServer::start(&RedisConfig { tls: true, ..RedisConfig::default() });
    let ours = RedisOptions {
        ca_file: Some(server.ca_file()),
        cert_file: Some(server.client_cert_file()),
        key_file: Some(server.client_key_file()),
        ..options(&server.url())
    };
    spend(&*connected(&ours).await).await.unwrap();
    let anonymous = RedisOptions { cert_file: None, key_file: None, ..ours.clone() };
    stays_down(&anonymous, "set --store-cert-file and --store-key-file").await;
    let public = RedisOptions { ca_file: None, ..ours };
    stays_down(&public, "UnknownIssuer: set --store-ca-file to the authority that signed it").await;
    stays_down(&options(&format!("redis://{}", server.address())), "use `rediss://` if it expects TLS").await;
    let plain = RedisServer::plain();
    let tls = options(&format!("rediss://{}", plain.address()));
    stays_down(&tls, "use `redis://` for plain text").await;
}

#[tokio::test]
async fn the_certificate_of_an_authority_is_no_servers() {
    install_provider();
    let config = RedisConfig { tls: true, own_authority: true, ..RedisConfig::default() };
    let server = RedisServer::start(&config);
    let ours = RedisOptions { ca_file: Some(server.ca_file()), ..options(&server.url()) };
    stays_down(&ours, "is marked as a certificate authority's").await;
}

#[tokio::test]
async fn a_server_behind_a_socket_in_the_file_system() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("redis.sock");
    let line = format!("unixsocket {}", path.display());
    let _server = RedisServer::start(&RedisConfig { lines: vec![line], ..RedisConfig::default() });
    spend(&*connected(&options(&format!("unix://{}", path.display()))).await).await.unwrap();
    stays_down(&options("unix:///none/redis.sock"), "/none/redis.sock: No such file").await;
}

#[tokio::test]
async fn a_sentinel_is_told_from_a_server() {
    let server = RedisServer::start(&RedisConfig { sentinel: true, ..RedisConfig::default() });
    stays_down(&options(&server.url()), "this is a Sentinel").await;
}

#[tokio::test]
async fn a_replica_is_told_before_anything_is_decided() {
    let server = RedisServer::plain();
    server.cli(&["REPLICAOF", "127.0.0.1", &free_port().to_string()]);
    stays_down(&options(&server.url()), "this server is a read-only replica: use its master").await;
}

/// A limit with other keys names the one that keeps ours.
#[tokio::test]
async fn a_node_of_a_cluster_that_keeps_other_keys_is_told() {
    let config = RedisConfig {
        lines: ["cluster-enabled yes", "cluster-require-full-coverage no"].map(String::from).to_vec(),
        ..RedisConfig::default()
    };
    let (ours, other) = (RedisServer::start(&config), RedisServer::start(&config));
    assert_eq!(ours.cli(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]), "OK");
    let port = ours.address().rsplit(':').next().unwrap().to_owned();
    assert_eq!(other.cli(&["CLUSTER", "MEET", "127.0.0.1", &port]), "OK");
    let right = format!("write the store as `redis+cluster://{}`", ours.address());
    stays_down(&options(&other.url()), &right).await;
    spend(&*connected(&options(&ours.url())).await).await.unwrap();

    // Although it has the hash slot of all keys.
    ours.cli(&["CLUSTER", "DELSLOTS", "0"]);
    eventually("the other node takes a hash slot", || {
        other.cli(&["CLUSTER", "DELSLOTS", "0"]);
        let answer = other.cli(&["CLUSTER", "ADDSLOTS", "0"]);
        if answer == "OK" { Ok(()) } else { Err(answer) }
    });
    eventually("both know it", || {
        let info = ours.cli(&["CLUSTER", "INFO"]);
        if info.contains("cluster_size:2") { Ok(()) } else { Err(info) }
    });
    let right = "this server is a node of a cluster of 2 masters: write the store as";
    stays_down(&options(&ours.url()), &format!("{right} `redis+cluster://{}`", ours.address())).await;
}

#[tokio::test]
async fn a_server_that_is_no_cluster_is_told_from_one() {
    let server = RedisServer::plain();
    let url = format!("redis+cluster://{}", server.address());
    stays_down(&options(&url), "cluster support disabled: write `redis://` for a single server").await;
}

#[tokio::test]
async fn the_list_of_clients_has_the_name() {
    let server = RedisServer::plain();
    let _store = connected(&options(&server.url())).await;
    let clients = server.cli(&["CLIENT", "LIST"]);
    assert!(clients.contains(" name=weir"), "{clients}");
}

#[tokio::test]
async fn keys_begin_with_the_prefix() {
    let rights = "~shop.eu:{0}:* +evalsha +eval +get +set +del +pttl +pexpire +persist +time +ping";
    let user = format!("user weir on >secret resetchannels -@all {rights}");
    let server = RedisServer::start(&RedisConfig { lines: vec![user], ..RedisConfig::default() });
    let url = format!("redis://weir:secret@{}", server.address());
    let store = connected(&RedisOptions { prefix: "shop.eu".into(), ..options(&url) }).await;
    spend(&store).await.unwrap();
    assert_eq!(server.cli(&["KEYS", "*"]), "shop.eu:{0}:A:1");
    server.cli(&["ACL", "SETUSER", "weir", "-evalsha"]);
    let _ = spend(&store).await;
    let missing = format!("give the user the permissions `{rights}`");
    eventually_async("the status says what is missing", async || last_error(&store, &missing)).await;
}

#[tokio::test]
async fn a_user_with_just_enough_rights_a_password_and_a_database() {
    let rights = "~weir:{0}:* +evalsha +eval +get +set +del +pttl +pexpire +persist +time +ping";
    let user = format!("user weir on >s%ecret@1 resetchannels -@all {rights} +select");
    let server = RedisServer::start(&RedisConfig { lines: vec![user], ..RedisConfig::default() });
    let url = format!("redis://weir:s%25ecret%401@{}/3", server.address());
    let store = connected(&options(&url)).await;
    spend(&store).await.unwrap();
    assert_eq!((server.cli(&["-n", "3", "DBSIZE"]), server.cli(&["DBSIZE"])), ("1".into(), "0".into()));
    // Slower rules keep the key for longer, or forever.
    for (nanoseconds, left) in [(10_000_000_000, 9), (1_000_000_000_000, 8)] {
        let numbers = Numbers::new(10, 10, nanoseconds).unwrap();
        let taken = decide(&store, &[charge("B:1", numbers, 1, Mode::Spend)]).await.unwrap()[0];
        assert_eq!(taken.remaining, left);
    }
    decide(&store, &[charge("B:1", fixed(10), 1, Mode::Spend)]).await.unwrap();
    assert_eq!(server.cli(&["-n", "3", "PTTL", "weir:{0}:B:1"]), "-1");

    server.cli(&["ACL", "SETUSER", "weir", "-evalsha"]);
    let Err(StoreError::Failed(text)) = spend(&store).await else { panic!("evalsha is not allowed") };
    assert!(text.starts_with("NOPERM "), "{text}");
    let missing = format!("give the user the permissions `{rights}`");
    eventually_async("the status says what is missing", async || last_error(&store, &missing)).await;
    assert_eq!((store.health().connected, store.health().fault), (false, Some(Fault::Permission)));
    server.cli(&["ACL", "SETUSER", "weir", "+evalsha"]);
    resumes(&store).await;
    assert_eq!(store.health().fault, None);
}

#[tokio::test]
async fn a_wrong_password_is_named_and_the_right_one_may_come_later() {
    let server = RedisServer::start(&RedisConfig { password: Some("other".into()), ..RedisConfig::default() });
    let url = format!("redis://:secret@{}", server.address());
    stays_down(&options(&url), "the server rejects the user or password").await;
    stays_down(&options(&format!("redis://{}", server.address())), "NOAUTH").await;
    let store = RedisStore::connect(&options(&url).target().unwrap());
    assert_eq!(server.cli(&["CONFIG", "SET", "requirepass", "secret"]), "OK");
    resumes(&store).await;
    assert_eq!(store.health().last_error, None);
}

#[test]
fn a_url_that_is_none_says_what_would_be_right() {
    #[track_caller]
    fn check(url: &str, expected: &str) {
        let error = RedisOptions::new(url, Clock::machine()).target().err();
        let error = error.unwrap_or_else(|| format!("{url} was taken"));
        assert!(error.contains(expected), "{error}");
        assert!(!error.contains("secret"), "{error}");
    }
    check("memcached://h", "invalid store `memcached://h`: write `memory`, `redis://host:port/db`");
    check("unix:/run/redis.sock", "write a unix socket with three slashes and its full path: `unix:///run/redis.sock`");
    check("unix:redis.sock", "`unix:///redis.sock`");
    check("/run/redis.sock", "`unix:///run/redis.sock`");
    check("localhost:6379", "write `memory`, `redis://host:port/db`");
    check(
        "redis+sentinel://:secret@h:26379",
        "invalid store `redis+sentinel://***@h:26379`: the master's name is missing",
    );
    check("redis+sentinel://h/", "write `redis+sentinel://user:password@host:port,host:port/master-name/db`");
    check("redis+sentinel://h/my%20master", "the master's name `my%20master` may contain only letters");
    check("redis+sentinel://h/main/cache", "the database `cache` is not a number");
    check("redis+sentinel://:sec/secret@h/main", "percent-encode special characters");
    check(
        "redis+sentinel://h,/main",
        "the host is missing; write `redis+sentinel://user:password@host:port,host:port/master-name/db`",
    );
    check("redis+sentinel://h/main?password=secret", "after `?` write `sentinel_user=..&sentinel_password=..`");
    check("redis+sentinel://h/main?sentinel_user=u", "`sentinel_user` needs `sentinel_password`");
    check("redis+sentinel://h/main?sentinel_password=secret@1", "invalid store `redis+sentinel://***`: ");
    check("redis+cluster://h:1,h:port", "expected `redis+cluster://user:password@host:port,host:port`");
    check("redis+cluster://::1", "expected `redis+cluster://user:password@host:port,host:port`");
    check("redis+cluster://weir@h", "the user has no password");
    check("redis+cluster://h/2", "a cluster has only database 0, not `2`");
    check("redis+cluster://h?password=secret", "unexpected `?`");
    check("rediss+cluster://h#insecure", "unexpected `#`");
    check("redis://", "the host is missing");
    check("redis://h:port", "expected `redis://user:password@host:port/db`");
    check("redis://:sec/secret@h", "percent-encode special characters");
    check("redis://weir@h", "the user has no password");
    check("redis://h/cache", "the database `cache` is not a number");
    check("redis://h/0?password=secret", "invalid store `redis://h/0?***`: unexpected `?`");
    check("rediss://h#insecure", "unexpected `#`");
}

#[test]
fn files_that_are_none_say_which_and_why() {
    install_provider();
    let directory = tempfile::tempdir().unwrap();
    let empty = directory.path().join("empty.pem");
    std::fs::write(&empty, "").unwrap();
    let tls = RedisOptions::new("rediss://h", Clock::machine());
    let check = |options: RedisOptions, expected: &str| {
        let error = options.target().err().unwrap_or_else(|| "taken".into());
        assert!(error.contains(expected), "{error}");
    };
    let file = Some(empty.clone());
    check(RedisOptions { ca_file: file.clone(), ..tls.clone() }, "empty.pem`: has no PEM certificate");
    check(
        RedisOptions { ca_file: Some("/none.pem".into()), ..tls.clone() },
        "--store-ca-file `/none.pem`: No such file",
    );
    check(
        RedisOptions { cert_file: file.clone(), ..tls.clone() },
        "--store-cert-file and --store-key-file must be given together",
    );
    let plain = RedisOptions::new("redis://h", Clock::machine());
    check(RedisOptions { ca_file: file, ..plain.clone() }, "--store-ca-file needs TLS: write the store as `rediss://`");
    for prefix in ["", "a{b}", "a*", "a b", "012345678901234567890123456789012"] {
        let named = RedisOptions { prefix: prefix.into(), ..plain.clone() };
        check(named, "--store-prefix must be 1 to 32 letters, digits, `_`, `.`, `:` or `-`");
    }
    let hurried = RedisOptions { timeout: std::time::Duration::ZERO, ..plain };
    check(hurried, "--store-timeout must be longer than 0");
}
