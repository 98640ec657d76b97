//! A change that gives tokens to an id which was just denied lets its next request pass.

use super::{LIMITS, done, each_store, serve, spend};
use crate::support::weir::Weir;

const CLIENT: [(&str, &str); 2] = [("x-id", "7"), ("x-zone", "eu")];

/// Spends until both workers have denied the client.
fn exhaust(weir: &Weir, path: &str) {
    let mut denials = 0;
    while denials < 20 {
        denials = if spend(weir, path, &CLIENT) { 0 } else { denials + 1 };
    }
}

#[test]
fn a_client_passes_at_once_after_an_operators_change() {
    each_store(|store, name| {
        let weir = serve(store);
        let buckets = [
            ("/even", "Even:7"),
            ("/windows", "Windows:7"),
            ("/log", "Log:7"),
            ("/sliding", "Sliding:7"),
            ("/fixed", "Fixed"),
            ("/rates", "Rates:7:eu"),
        ];
        for (path, bucket) in buckets {
            let changes = [
                ("POST", format!("/buckets/{bucket}/reset"), ""),
                ("POST", format!("/buckets/{bucket}/refund"), r#"{"cost": 1}"#),
                ("PUT", format!("/buckets/{bucket}"), r#"{"remaining": 1}"#),
                ("POST", format!("/limits/{}/reset", bucket.split(':').next().unwrap()), ""),
            ];
            for (method, change, body) in changes {
                exhaust(&weir, path);
                done(&weir, method, &change, body);
                assert!(spend(&weir, path, &CLIENT), "{name}: {method} {change}");
            }
        }
        exhaust(&weir, "/even");
        done(&weir, "PUT", "/overrides/Even:7", r#"{"burst": 1000, "count": 1, "period": "1h"}"#);
        assert!(spend(&weir, "/even", &CLIENT), "{name}: an override");
        done(&weir, "DELETE", "/overrides/Even:7", "");
        exhaust(&weir, "/even");
        weir.reload(
            &LIMITS.replace("burst: 10, count: 1, period: 1h }\n  W", "burst: 500, count: 1, period: 1h }\n  W"),
        );
        assert!(spend(&weir, "/even", &CLIENT), "{name}: a reload");
    });
}
