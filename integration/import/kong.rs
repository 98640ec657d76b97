//! `weir import kong`: of several instances of a plugin, one counts a request, as in Kong.

use serde_json::json;

use super::{Listener, check, written};

#[test]
fn plugins_of_kong_are_written_as_expected_and_pass_check() {
    let (out, err) = check(&["import", "kong", "kong.yaml"], 0);
    written("kong", &["kong.yaml"], "kong.expected.yaml", err.trim_end());
    assert!(err.ends_with("34 settings about limits: 28 converted, 6 commented on\n"), "{err}");
    assert!(!out.contains("untested-limit"), "{out}");
    check(&["check", "--strict", "kong.expected.yaml"], 0);
}

#[test]
fn the_most_specific_instance_counts_a_request() {
    let (rules, _) = check(&["import", "kong", "kong.yaml"], 0);
    // Each row: how many of these requests are allowed before one is denied, and by which limit.
    for (method, url, consumer, header, allowed, limit) in [
        // The service's own, by consumer; without one by address.
        ("GET", "http://shop.example/orders/7", "cleo", "", 5, "orders.rate-limiting"),
        ("GET", "http://shop.example/orders/7", "", "", 5, "orders.rate-limiting-2"),
        // A consumer's beats the service's, but not one on the route for that consumer.
        ("GET", "http://shop.example/orders/7", "ada", "", 100, "ada.rate-limiting"),
        ("GET", "http://shop.example/orders/7", "ben", "", 1, "orders.ben.rate-limiting"),
        // A route's beats the service's; its path counts for all together, other paths by address.
        ("POST", "http://shop.example/orders/checkout/now", "cleo", "", 2, "checkout.rate-limiting"),
        ("POST", "http://shop.example/orders/checkout", "", "", 2, "checkout.rate-limiting-2"),
        ("POST", "http://shop.example/orders/checkout", "ada", "", 100, "ada.rate-limiting"),
        // Another method takes another route.
        ("GET", "http://shop.example/orders/checkout", "", "", 5, "orders.rate-limiting-2"),
        // The least of several windows.
        ("GET", "http://any.example/v2/files", "", "x-device: dev-1", 2, "files.rate-limiting-advanced"),
        ("GET", "http://any.example/status", "", "", 2, "status.rate-limiting"),
        // The global one holds for routes whose service has none, but not for who has an own one.
        ("GET", "http://any.example/files/archive", "cleo", "x-tape: two", 3, "rate-limiting-2"),
        ("GET", "http://any.example/files/archive", "ada", "x-tape: two", 4, "archive.rate-limiting-advanced"),
    ] {
        // Limits are in shadow mode where they count consumers of a group that the file does not name.
        let mut listener = Listener::serve(&rules.replace("    mode: shadow\n", ""));
        let named = [Some(("x-consumer-username", consumer)).filter(|_| !consumer.is_empty()), header.split_once(": ")];
        let headers: serde_json::Map<_, _> =
            named.into_iter().flatten().map(|(name, value)| (name.to_owned(), json!(value))).collect();
        let request = json!({ "request": { "method": method, "url": url, "headers": headers, "ip": "192.0.2.7" } });
        for number in 1..=allowed + 1 {
            let answer = listener.call(0, &request);
            assert_eq!(answer["allowed"], number <= allowed, "{number} of {request}: {answer}");
            if number > allowed {
                assert_eq!(answer["binding"], limit, "{request}: {answer}");
            }
        }
    }
}

#[test]
fn a_global_limit_by_service_has_one_bucket_for_each() {
    let (_, err) = check(&["import", "kong", "kong-services.json"], 0);
    assert!(err.starts_with("2 limits, 0 overrides, 0 comments"), "{err}");
    let mut listener = Listener::open(&["kong", "kong-services.json"]);
    for (path, is_allowed) in [
        ("/one", true),
        ("/three", true),
        ("/two", true),
        ("/one", false),
        ("/three", false),
        ("/two", true),
        ("/two", false),
    ] {
        let answer =
            listener.call(0, &json!({ "request": { "url": format!("http://any.example{path}"), "ip": "192.0.2.7" } }));
        assert_eq!(answer["allowed"], is_allowed, "{path}: {answer}");
    }
}
