//! Paths that some servers read as ones outside the route.

use super::{mirror, weir};
use crate::support::frames::{END_HEADERS, END_STREAM, Frames, HEADERS, frame, request};

const ROUTES: &str = "  /pub: { upstream: http://UPSTREAM, strip-prefix: true, add-prefix: /internal/pub }\n  \
                      /kept: { upstream: http://UPSTREAM, add-prefix: /internal }\n  \
                      /bare: { upstream: http://UPSTREAM, strip-prefix: true }\n  \
                      /same: { upstream: http://UPSTREAM }\n";

#[test]
fn a_path_that_a_server_could_read_as_one_outside_its_route_is_rejected() {
    let upstream = mirror();
    let weir = weir(&upstream, ROUTES, &[]);
    for rest in [
        "/..%2fadmin",
        "/..%2Fadmin?x",
        "/%2e%2e%2fadmin",
        "/x/%2e./..%2fadmin",
        "/x%2f..%2f..%2fadmin",
        "/x/..%2f..%2fadmin",
        "/..%5cadmin",
        "/x%5C..%5C..",
        "/%2f..",
        "/..;/x",
        "/..;a=b/x",
        "/..%3Bx",
        "/x/..;/..;",
        "/x;a%2F..%2F..",
    ] {
        for route in ["/pub", "/kept", "/bare"] {
            let answer = weir.get(&format!("{route}{rest}"), &[]);
            assert_eq!(answer.status(), 400, "{route}{rest}: {}", answer.text());
            assert!(answer.text().contains("must not lead out of its route"), "{}", answer.text());
        }
        // The paths of this route stay as they are, whatever servers make of them.
        assert_eq!(weir.get(&format!("/same{rest}"), &[]).text(), format!("none a.example /same{rest}"));
    }
    let mut http2 = Frames::connect(weir.proxy);
    http2.send(frame(HEADERS, END_STREAM | END_HEADERS, 1, &request("GET", "/pub/..%2fadmin", &[])));
    assert_eq!(http2.stream(1)[0].status(), 400);
    assert_eq!(weir.metric("weir_decisions_total{limit=\"Wide\",result=\"allowed\"}"), 14, "only those of `/same`");
}

#[test]
fn paths_that_stay_in_their_route_keep_their_spelling() {
    let upstream = mirror();
    let weir = weir(&upstream, ROUTES, &[]);
    for rest in [
        "/a%2Fb",
        "/a%2f..%2fb",
        "/a/..;/b",
        "/a;v=1/../b",
        "/a/b%5C..",
        "/a..%2fb",
        "/...%2fb",
        "/.%2fb",
        "//a;x//%3B",
        "/a?x=/..%2f",
    ] {
        for (route, sent) in [("/pub", "/internal/pub"), ("/kept", "/internal/kept"), ("/bare", "")] {
            let answer = weir.get(&format!("{route}{rest}"), &[]);
            assert_eq!(answer.text(), format!("none a.example {sent}{rest}"));
        }
    }
    // Where it helps, they are normalised, as the rules have seen them.
    for (given, sent) in [("/x/../kept/y", "/internal/kept/y"), ("/kept/;a/../x", "/internal/kept/x")] {
        assert_eq!(weir.get(given, &[]).text(), format!("none a.example {sent}"));
    }
}
