//! TLS, users and passwords, and what is wrong with them.

use weir::store::redis::{Breaker, RedisOptions, RedisOptionsError, RedisStore};
use weir::store::{Clock, StoreError};

use super::{connected, last_error, options, resumes, spend};
use crate::support::eventually_async;
use crate::support::redis::{RedisConfig, RedisServer};

fn install_provider() {
    // The second test in this process finds the first one's provider.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
}

/// Asserts that no connection comes about, and what the status says of it.
async fn stays_down(options: &RedisOptions, reason: &str) {
    let store = RedisStore::connect(&options.target().unwrap());
    let text = eventually_async(reason, async || last_error(&store, reason)).await;
    assert!(!text.contains("secret"), "{text}");
    assert_eq!(spend(&store).await, Err(StoreError::Down));
    assert!(!store.status().connected);
    assert_eq!(store.status().breaker, Breaker::Closed);
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
    stays_down(&anonymous, "CertificateRequired").await;
    let public = RedisOptions { ca_file: None, ..ours };
    stays_down(&public, "UnknownIssuer").await;
}

#[tokio::test]
async fn a_user_with_just_enough_rights_a_password_and_a_database() {
    let rights =
        "user weir on >s%ecret@1 ~weir:{0}:* resetchannels -@all +evalsha +eval +get +set +del +time +ping +select";
    let server = RedisServer::start(&RedisConfig { lines: vec![rights.into()], ..RedisConfig::default() });
    let url = format!("redis://weir:s%25ecret%401@{}/3", server.address());
    let store = connected(&options(&url)).await;
    spend(&store).await.unwrap();
    assert_eq!((server.cli(&["-n", "3", "DBSIZE"]), server.cli(&["DBSIZE"])), ("1".into(), "0".into()));

    server.cli(&["ACL", "SETUSER", "weir", "-evalsha"]);
    let Err(StoreError::Refused(text)) = spend(&store).await else { panic!("evalsha is not allowed") };
    assert!(text.starts_with("NOPERM "), "{text}");
    assert!(store.status().connected, "another connection would have no more rights");
    server.cli(&["ACL", "SETUSER", "weir", "+evalsha"]);
    spend(&store).await.unwrap();
}

#[tokio::test]
async fn a_wrong_password_is_named_and_the_right_one_may_come_later() {
    let server = RedisServer::start(&RedisConfig { password: Some("other".into()), ..RedisConfig::default() });
    let url = format!("redis://:secret@{}", server.address());
    stays_down(&options(&url), "the server refuses the user or password").await;
    stays_down(&options(&format!("redis://{}", server.address())), "NOAUTH").await;
    let store = RedisStore::connect(&options(&url).target().unwrap());
    assert_eq!(server.cli(&["CONFIG", "SET", "requirepass", "secret"]), "OK");
    resumes(&store).await;
    assert_eq!(store.status().last_error, None);
}

#[test]
fn a_url_that_is_none_says_what_would_be_right() {
    #[track_caller]
    fn check(url: &str, expected: &str) {
        let error = RedisOptions::new(url, Clock::own()).target().err().map(|error| error.to_string());
        let error = error.unwrap_or_else(|| format!("{url} was taken"));
        assert!(error.contains(expected), "{error}");
        assert!(!error.contains("secret"), "{error}");
    }
    check("memcached://h", "`memcached://h` is no store: write `memory`, `redis://host:port/db`");
    check("localhost:6379", "write `memory`, `redis://host:port/db`");
    check("redis+sentinel://:secret@h:26379/main", "`redis+sentinel://***@h:26379/main` is no store: ");
    check("redis+cluster://h", "`redis+cluster://` is not in this version; give one server as `redis://host:port`");
    check("redis://", "the host is missing");
    check("redis://h:port", "it cannot be read as");
    check("redis://:sec/secret@h", "percent-encoded");
    check("redis://weir@h", "the user has no password");
    check("redis://h/cache", "the database `cache` is no number");
    check("redis://h/0?password=secret", "`redis://h/0?***` is no store: nothing may follow `?`");
    check("rediss://h#insecure", "nothing may follow `#`");
}

#[test]
fn files_that_are_none_say_which_and_why() {
    install_provider();
    let directory = tempfile::tempdir().unwrap();
    let empty = directory.path().join("empty.pem");
    std::fs::write(&empty, "").unwrap();
    let tls = RedisOptions::new("rediss://h", Clock::own());
    let check = |options: RedisOptions, expected: &str| {
        let error = options.target().err().map_or_else(|| "taken".into(), |error| error.to_string());
        assert!(error.contains(expected), "{error}");
    };
    let file = Some(empty.clone());
    check(RedisOptions { ca_file: file.clone(), ..tls.clone() }, "empty.pem`: holds no certificate in PEM");
    check(
        RedisOptions { ca_file: Some("/none.pem".into()), ..tls.clone() },
        "--store-ca-file `/none.pem`: No such file",
    );
    check(
        RedisOptions { cert_file: file.clone(), ..tls.clone() },
        "--store-cert-file and --store-key-file come together",
    );
    let plain = RedisOptions::new("redis://h", Clock::own());
    check(RedisOptions { ca_file: file, ..plain.clone() }, "--store-ca-file needs TLS: write the store as `rediss://`");
    let hurried = RedisOptions { timeout: std::time::Duration::ZERO, ..plain };
    assert_eq!(hurried.target().err(), Some(RedisOptionsError::Timeout));
}
