//! `weir import apisix`: of several instances of a plugin, one counts a request, and global rules count besides, as in APISIX.

use serde_json::json;

use super::{Listener, check, written};

#[test]
fn plugins_of_apisix_are_written_as_expected_and_pass_check() {
    let (out, err) = check(&["import", "apisix", "apisix.yaml"], 0);
    written("apisix", &["apisix.yaml"], "apisix.expected.yaml", err.trim_end());
    assert!(err.ends_with("52 settings about limits: 40 converted, 12 commented on\n"), "{err}");
    assert!(!out.contains("untested-limit"), "{out}");
    check(&["check", "--strict", "apisix.expected.yaml"], 0);
}

#[test]
fn one_instance_of_a_plugin_counts_a_request() {
    // Each row: how many of these requests are allowed before one is denied, and by which limit.
    for (method, url, headers, ip, allowed, limit) in [
        // Two routes share a counter by key, or by address where the key is missing.
        ("GET", "http://any.example/market/a", "x-api-key: one", "192.0.2.7", 4, "route.market.limit-count"),
        ("GET", "http://any.example/rates/a", "", "192.0.2.7", 4, "route.market.limit-count-2"),
        // A plugin config beats the service; a service's holds for its hosts.
        ("GET", "http://orders.example/carts-old", "", "192.0.2.7", 3, "plugin_config.thirty.limit-count"),
        ("GET", "http://eu.orders.example/market/a", "x-api-key: one", "192.0.2.7", 5, "service.orders.limit-count"),
        // A consumer's beats all of these.
        (
            "GET",
            "http://any.example/rates/a",
            "x-consumer-username: shop-7",
            "192.0.2.7",
            8,
            "consumer.shop-7.limit-count",
        ),
        // Conditions on headers and networks; of the key, what is there.
        ("GET", "http://any.example/items", "x-beta: yes", "10.1.2.3", 2, "route.beta.limit-count-2"),
        ("GET", "http://any.example/items", "x-beta: yes", "192.0.2.7", 60, "route.items.limit-count"),
        ("GET", "http://any.example/items-new", "", "192.0.2.7", 60, "route.items.limit-count"),
        ("GET", "http://any.example/pages/a?page=1", "", "192.0.2.7", 4, "route.pages.limit-req"),
        // A global rule counts besides.
        ("GET", "http://any.example/other", "", "192.0.2.7", 101, "global_rule.all.limit-req"),
    ] {
        let mut listener = Listener::imported(&["apisix", "apisix.yaml"]);
        let named: serde_json::Map<_, _> =
            headers.split_once(": ").into_iter().map(|(name, value)| (name.to_owned(), json!(value))).collect();
        let request = json!({ "request": { "method": method, "url": url, "headers": named, "ip": ip } });
        for number in 1..=allowed + 1 {
            let answer = listener.call(0, &request);
            assert_eq!(answer["allowed"], number <= allowed, "{number} of {request}: {answer}");
            if number > allowed {
                assert_eq!(answer["binding"], limit, "{request}: {answer}");
            }
        }
    }
}
