//! Changes that routes make to requests and responses.

use std::process::Command;

use super::{mirror, weir};
use crate::support::process::succeed;
use crate::support::upstream::{Upstream, ok};

/// The cases of nginx's `location /a/ { proxy_pass http://upstream/; }` and Caddy's `handle_path /a/*`; and of a URI after the address.
#[test]
fn prefixes_are_stripped_and_added_and_the_rest_stays_as_it_was_sent() {
    let upstream = mirror();
    let routes = "  /a: { upstream: http://UPSTREAM, strip-prefix: true }\n  \
                  /b/c: { upstream: http://UPSTREAM, strip-prefix: true, add-prefix: /v2/ }\n  \
                  /: { upstream: http://UPSTREAM, add-prefix: /site }\n";
    let weir = weir(&upstream, routes, &["--workers", "1"]);
    let mut client = weir.connect();
    for (given, seen) in [
        ("/a", "/"),
        ("/a?x=1", "/?x=1"),
        ("/a/", "/"),
        ("/a/b%20c/%2F?q=/a/%20", "/b%20c/%2F?q=/a/%20"),
        ("//%61/x%22y", "/x%22y"),
        ("/a/../a/x", "/x"),
        ("/a/x/../y", "/x/../y"),
        ("/b/c", "/v2"),
        ("/b/c/", "/v2/"),
        ("/b/c//d?", "/v2//d?"),
        ("/b/cd", "/site/b/cd"),
        ("/", "/site/"),
        ("/../admin", "/site/admin"),
        ("http://a.example/a/x?y", "/x?y"),
    ] {
        assert_eq!(client.get(given).text(), format!("none a.example {seen}"), "{given}");
    }
    // HTTP/2 alike.
    let url = format!("http://{}/a/b%20c?x", weir.proxy);
    let answer = succeed(Command::new("curl").args(["-sS", "--http2-prior-knowledge", &url]));
    assert_eq!(answer, format!("none {} /b%20c?x", weir.proxy));
}

#[test]
fn headers_are_removed_set_and_added_in_both_directions() {
    let upstream = Upstream::answering(|request| {
        let seen = format!(
            "{:?} {:?} {:?} {:?}",
            request.all("x-secret"),
            request.all("x-env"),
            request.all("accept"),
            request.all("x-forwarded-proto")
        );
        ok(&seen).replacen("\r\n", "\r\nServer: app/1\r\nX-Powered-By: app\r\nVary: origin\r\n", 1)
    });
    let routes = "  /a:\n    upstream: http://UPSTREAM\n    \
                  request-headers: { remove: X-Secret, set: { X-Env: prod, x-forwarded-proto: https }, add: { accept: text/x } }\n    \
                  response-headers: { remove: [x-powered-by], set: { server: weir, strict-transport-security: max-age=1 }, add: { Vary: x } }\n  \
                  /b: { upstream: http://UPSTREAM }\n";
    let weir = weir(&upstream, routes, &[]);
    let headers = [("x-secret", "1"), ("X-SECRET", "2"), ("x-env", "test"), ("x-env", "dev"), ("accept", "*/*")];
    let changed = weir.get("/a", &headers);
    assert_eq!(changed.text(), r#"[] ["prod"] ["*/*", "text/x"] ["https"]"#);
    assert_eq!((changed.header("server"), changed.all("vary")), (Some("weir"), vec!["origin", "x"]));
    assert_eq!(
        (changed.header("x-powered-by"), changed.header("strict-transport-security")),
        (None, Some("max-age=1"))
    );
    let plain = weir.get("/b", &headers);
    assert_eq!(plain.text(), r#"["1", "2"] ["test", "dev"] ["*/*"] ["http"]"#);
    assert_eq!((plain.header("server"), plain.header("x-powered-by")), (Some("app/1"), Some("app")));
}

/// A route does not change the replies of Weir.
#[test]
fn replies_of_our_own_are_not_the_routes() {
    let upstream = mirror();
    let routes = "  /a: { upstream: http://127.0.0.1:1, response-headers: { set: { x-a: 1, content-type: text/x } } }\n  \
                  /b: { upstream: http://UPSTREAM }\n";
    let weir = weir(&upstream, routes, &[]);
    let failed = weir.get("/a", &[]);
    assert_eq!((failed.status(), failed.header("x-a")), (502, None));
    assert_eq!(failed.header("content-type"), Some("application/problem+json"));
}
