//! The file of the routes: what it may say, and what is said of its mistakes.

use crate::support::binary;
use crate::support::process::Finished;

/// Runs a command with this `--config` file.
#[track_caller]
fn dry_run(command: &[&str], text: &str) -> Finished {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("weir.yaml"), text).unwrap();
    std::fs::write(directory.path().join("limits.yaml"), "limits: { One: { count: 1, period: 1s } }").unwrap();
    binary::run_in(directory.path(), &[command, &["--config", "weir.yaml"]].concat())
}

const SERVE: &[&str] = &["serve", "--dry-run"];

#[test]
fn a_route_with_every_key_is_right() {
    let text = "routes:\n  a.example/v1:\n    upstream: [http://10.0.0.1:3000, unix:/run/app.sock]\n    host: upstream\n    \
                strip-prefix: true\n    add-prefix: /api\n    connect-timeout: 1s\n    upstream-try-timeout: 2s\n    \
                response-timeout: 3s\n    upstream-body-timeout: 4s\n    upstream-connections: 5\n    buffer-requests: 64KiB\n    max-body-bytes: 6\n    \
                health-check: /up?full\n    health-interval: 7s\n    health-timeout: 8s\n    health-threshold: 9/9\n    \
                request-headers: { remove: [a, b], set: { c: d }, add: { e: f } }\n    response-headers: { remove: a }\n";
    let run = dry_run(SERVE, text);
    assert_eq!((run.code, run.err.as_str()), (Some(0), ""), "{}", run.out);
}

#[test]
fn mistakes_say_where_and_what_would_be_right() {
    for (routes, at, part) in [
        ("/a: echo", "echo", "must be a map, found a single value"),
        ("/a: { upstrem: echo }", "upstrem", "did you mean `upstream`?"),
        ("/a: { strip-prefix: true }", "{", "needs `upstream`"),
        ("/a: { upstream: a }", "a }", "write `http://a`"),
        ("/a: { upstream: [echo, http://b/c] }", "http", "leave out `/c`"),
        ("/a: { upstream: http://a, host: 'a b' }", "http", "`a b`"),
        ("/a: { upstream: [] }", "[]", "`upstream` names no server"),
        ("http://a/b: { upstream: echo }", "http", "write `a/b`"),
        ("/a%zz: { upstream: echo }", "/a", "`%` must begin an escape"),
        ("/a%2: { upstream: echo }", "/a", "`%` must begin an escape"),
        ("a/b%00: { upstream: echo }", "a", "control characters"),
        ("/a/../b: { upstream: echo }", "/a", "write `/b`"),
        ("/a/%2e: { upstream: echo }", "/a", "write `/a`"),
        ("/a//b/: { upstream: echo }", "/a", "write `/a/b`"),
        ("/a: { upstream: echo, add-prefix: /x%zz }", "/x", "`%` must begin an escape"),
        ("/a: { upstream: echo, add-prefix: /x/.. }", "/x", "write `/`"),
        ("/a: { upstream: echo, add-prefix: //x }", "//", "write `/x`"),
        ("a:80: { upstream: echo }", "a:80", "write a"),
        ("/a/*: { upstream: echo }", "/a/*", "write `/a`"),
        ("{ /a: { upstream: echo }, /a/: { upstream: echo } }", "/a/", "another route for `/a/`"),
        ("{ /a: { upstream: echo }, /a: { upstream: http://b } }", "/a: { upstream: http", "duplicate key"),
        ("/a: { upstream: echo, strip-prefix: yes }", "yes", "write `true`"),
        ("/a: { upstream: echo, add-prefix: v1 }", "v1", "write `/v1`"),
        ("/a: { upstream: echo, add-prefix: '/v1?x' }", "'/v1", "`?` is not allowed"),
        ("/a: { upstream: echo, response-timeout: 5 }", "5", "no unit"),
        ("/a: { upstream: echo, response-timeout: 0s }", "0s", "longer than 0"),
        ("/a: { upstream: echo, upstream-connections: 0 }", "0", "from 1 to 28000"),
        ("/a: { upstream: echo, buffer-requests: 2MiB }", "2MiB", "at most 1MiB"),
        ("/a: { upstream: echo, max-body-bytes: 1MB }", "1MB", "write digits only"),
        ("/a: { upstream: echo, health-check: up }", "up }", "write `/up`"),
        ("/a: { upstream: echo, health-interval: 1s }", "health", "needs `health-check`"),
        ("/a: { upstream: echo, request-headers: { set: { connection: x } } }", "connection", "cannot be changed"),
        ("/a: { upstream: echo, response-headers: { remove: [a, Transfer-Encoding] } }", "Tr", "cannot be changed"),
        ("/a: { upstream: echo, response-headers: { add: { ratelimit: x } } }", "ratelimit", "cannot be changed"),
        ("/a: { upstream: echo, request-headers: { set: { Host: x } } }", "Host", "write `host: NAME`"),
        ("/a: { upstream: echo, request-headers: { remove: Via } }", "Via", "cannot be changed"),
        ("/a: { upstream: echo, response-headers: { set: { Trailer: x } } }", "Tr", "cannot be changed"),
        ("/a: { upstream: echo, request-headers: { set: { X: 1, x: 2 } } }", "x: 2", "`x` is set twice"),
        ("/a: { upstream: echo, request-headers: { set: { 'a b': x } } }", "'a b'", "not the name of a header"),
        ("/a: { upstream: echo, request-headers: { set: { a: \"x\\ny\" } } }", "\"x", "on one line"),
        ("/a: { upstream: echo, request-headers: { replace: { a: x } } }", "replace", "unknown key `replace`"),
        ("[]", "[]", "must be a map, found a list"),
    ] {
        let text = format!("routes:\n  {routes}\n");
        let place = format!("weir.yaml:2:{}\n", routes.find(at).unwrap() + 3);
        let run = dry_run(SERVE, &text);
        assert_eq!(run.code, Some(2), "{text}{}", run.out);
        assert!(run.err.contains(&place) && run.err.contains(part), "{place}{}", run.err);
        assert_eq!(run.err.matches("error: ").count(), 1, "{text}{}", run.err);
        // `weir check` finds them, too.
        assert_eq!(dry_run(&["check"], &text).err, run.err);
    }
}

#[test]
fn all_mistakes_come_at_once() {
    let run = dry_run(SERVE, "routes:\n  /a: { upstream: b, add-prefix: c }\n  d:1: { upstream: echo }\nworker: 2\n");
    assert_eq!((run.code, run.err.matches("error: ").count()), (Some(2), 4), "{}", run.err);
}

#[test]
fn a_route_of_a_flag_is_not_repeated() {
    let run = dry_run(&["serve", "--dry-run", "--upstream", "/a=echo"], "routes:\n  /a/: { upstream: echo }\n");
    assert!(run.code == Some(2) && run.err.contains("weir.yaml:2:3: there is another route for `/a/`"), "{}", run.err);
}

/// Both keys are in the file here.
#[test]
fn upstream_and_routes_are_checked_together() {
    let upstreams: Vec<_> = (0..255).map(|number| format!("/{number}=echo")).collect();
    let many = format!("upstream: [{}]\n", upstreams.join(", "));
    for (text, part) in [
        ("routes:\n  /a/: { upstream: echo }\nupstream: [echo, /a=echo /b=echo]\n", Some("weir.yaml:2:3")),
        ("upstream: /b=echo,/a=echo\nroutes:\n  /a/: { upstream: echo }\n", Some("another route for `/a/`")),
        ("upstream: ftp://a\nroutes: {}\n", Some("ftp://a")),
        ("upstream: /a=echo\nroutes:\n  /b: { upstream: echo }\n", None),
        (&format!("{many}routes:\n  /a: {{ upstream: echo }}\n"), None),
        (
            &format!("{many}routes:\n  /a: {{ upstream: echo }}\n  /b: {{ upstream: echo }}\n"),
            Some("more than 256 routes"),
        ),
    ] {
        for command in [SERVE, &["check"]] {
            let run = dry_run(command, text);
            assert_eq!(run.code != Some(0), part.is_some(), "{command:?} {text}{}{}", run.out, run.err);
            assert!(part.is_none_or(|part| run.err.contains(part)), "{command:?} {text}{}", run.err);
        }
    }
}

#[test]
fn there_are_at_most_256_routes() {
    for (count, expected) in [(256, 0), (257, 2)] {
        let routes: Vec<_> = (0..count).map(|number| format!("  /{number}: {{ upstream: echo }}")).collect();
        let run = dry_run(SERVE, &format!("routes:\n{}\n", routes.join("\n")));
        assert_eq!(run.code, Some(expected), "{}", run.err);
        assert!(
            expected == 0 || run.err.contains("weir.yaml:258:3") && run.err.contains("more than 256 routes"),
            "{}",
            run.err
        );
    }
}
