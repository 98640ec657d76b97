//! `weir health`, as probes run it.

use std::net::TcpListener;

use crate::support::binary;
use crate::support::eventually;
use crate::support::process::{Finished, finish, free_port};
use crate::support::redis::RedisServer;
use crate::support::server::WIDE;
use crate::support::weir::Weir;

/// Runs `weir health` in this environment.
fn run(arguments: &[&str], environment: &[(&str, &str)]) -> Finished {
    finish(binary::command(&["health"]).args(arguments).envs(environment.iter().copied()))
}

#[track_caller]
fn becomes(words: &[&str], code: i32, part: &str) {
    eventually(part, || match run(words, &[]) {
        found if found.code == Some(code) && found.text().contains(part) => Ok(()),
        other => Err(other),
    });
}

#[test]
fn it_says_how_a_process_is_from_its_start_to_its_end() {
    let mut redis = RedisServer::plain();
    let mut weir = Weir::serve(WIDE, &["--store", &redis.url(), "--drain-delay", "10m"]);
    let admin = format!("http://{}", weir.admin);
    let ask = ["--admin", admin.as_str(), "--timeout", "10s"];
    becomes(&ask, 0, "ready\n");
    redis.kill();
    becomes(&ask, 0, "degraded; the store is down: ");
    redis.restart();
    becomes(&ask, 0, "ready\n");
    std::fs::write(weir.limits_file(), "limits: { L: { by: global, burst: 0 } }").unwrap();
    becomes(&ask, 0, "degraded; the rules on disk are broken; running the previous ones: ");
    weir.signal("TERM");
    becomes(&ask, 1, "error: not ready: draining");
    becomes(&[&ask[..], &["--live"]].concat(), 0, "alive\n");
    weir.signal("TERM");
    assert_eq!(weir.wait().code(), Some(0));
    becomes(&ask, 1, "error: cannot reach the admin listener at 127.0.0.1:");
}

#[test]
fn it_finds_the_admin_listener_as_the_process_did() {
    let weir = Weir::serve(WIDE, &[]);
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("weir.yaml");
    std::fs::write(&config, format!("upstream: echo\nadmin: {}\n", weir.admin)).unwrap();
    let (admin, config) = (weir.admin.to_string(), config.to_str().unwrap());
    let everywhere = format!("0.0.0.0:{}", weir.admin.port());
    for (words, environment) in [
        (&["--admin", &admin][..], &[][..]),
        (&[], &[("WEIR_ADMIN", admin.as_str())]),
        (&[], &[("WEIR_ADMIN", everywhere.as_str())]),
        (&["--config", config], &[]),
        (&[], &[("WEIR_CONFIG", config)]),
    ] {
        let words = [words, &["--timeout", "10s"]].concat();
        let ready = Finished { code: Some(0), out: "ready\n".into(), err: String::new() };
        assert_eq!(run(&words, environment), ready, "{words:?} {environment:?}");
    }
}

#[test]
fn what_is_no_admin_listener_is_not_well() {
    let weir = Weir::serve(WIDE, &[]);
    // The system accepts connections for it; nothing answers.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let (proxy, silent) = (weir.proxy.to_string(), silent.local_addr().unwrap().to_string());
    let nobody = format!("127.0.0.1:{}", free_port());
    for (words, code, part) in [
        (
            &["--admin", &proxy, "--timeout", "10s"][..],
            1,
            "error: not an admin listener: unexpected response with 200 OK",
        ),
        (
            &["--admin", &proxy, "--timeout", "10s", "--live"],
            1,
            "error: not an admin listener: unexpected response with 200 OK",
        ),
        (&["--admin", &silent, "--timeout", "50ms"], 1, ": no answer within 50ms\n"),
        (&["--admin", &nobody, "--timeout", "10s"], 1, "connection refused (is `weir serve` running? see `--admin`)\n"),
        (&["--admin", "ftp://a"], 2, "only http:// and https:// are supported"),
        (&["--admin", "a:b"], 2, "invalid admin address"),
        (&["--timeout", "0s"], 2, "must be longer than 0"),
        (&["now"], 2, "unexpected argument 'now'"),
    ] {
        let Finished { code: found, out, err } = run(words, &[]);
        assert!(found == Some(code) && out.is_empty() && err.contains(part), "{words:?}: {found:?} {out}{err}");
        assert!(code == 2 || err.lines().count() == 1, "more than a line: {err}");
    }
}
