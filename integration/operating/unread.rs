//! Live overrides in the store that a gateway cannot use are counted and logged until somebody corrects them.

use serde_json::json;

use super::{LIMITS, TOKEN, done, serve, spend};
use crate::support::becomes;
use crate::support::redis::RedisServer;
use crate::support::weir::Weir;

/// Writes the note of an override as another gateway would.
fn note(redis: &RedisServer, member: &str, text: &str) {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/lua/blocks.lua");
    let keys = ["--eval", script, "weir:{0}:!overrides", "weir:{0}:!overrides-notes", ","];
    assert_eq!(redis.cli(&[&keys[..], &["block", "10000", "3600000000", member, text]].concat()), "1");
}

fn unread(weir: &Weir) -> u64 {
    weir.metric("weir_shared_notes_unread{kind=\"override\"}")
}

#[test]
fn overrides_that_cannot_be_used_are_counted_and_told() {
    let redis = RedisServer::plain();
    let weir = serve(&["--store", &redis.url()]);
    let good = |bucket: &str| json!({ "override": bucket, "numbers": { "deny": true } }).to_string();
    note(&redis, "Wide:7:0", &good("Wide:7:0"));
    // No JSON, no override, another name of the id, and one of a limit that is not here.
    note(&redis, "Wide:8", "deny");
    note(&redis, "Wide:9", "{\"override\": \"Wide:9\"}");
    note(&redis, "Wide:7%3A0", &good("Wide:7%3A0"));
    note(&redis, "Gone:7", &good("Gone:7"));
    becomes("two cannot be read", 2, || unread(&weir));
    becomes("two have no effect", 2, || weir.metric("weir_live_overrides_inert"));
    // Five notes and their version.
    assert_eq!((weir.metric("weir_live_overrides"), redis.cli(&["ZCARD", "weir:{0}:!overrides"])), (1, "6".into()));
    assert!(!spend(&weir, "/wide", &[("x-id", "7:0")]) && spend(&weir, "/wide", &[("x-id", "8")]));
    weir.until_logged("the store has overrides that cannot be read and have no effect here, such as `Wide:8`");
    weir.until_logged("the live override of Gone:7 does not apply: unknown limit `Gone`");
    weir.until_logged("does not apply: the same id has the live override of Wide:");
    let listed = done(&weir, "GET", "/overrides?source=live", "");
    assert_eq!(listed["overrides"].as_array().unwrap().len(), 3, "{listed}");
    // They are told once, however often the store is asked.
    let logged = weir.log().matches("does not apply").count();
    note(&redis, "Wide:8", &good("Wide:8"));
    becomes("one is corrected", 1, || unread(&weir));
    becomes("it denies", 2, || weir.metric("weir_live_overrides"));
    assert_eq!(weir.log().matches("does not apply").count(), logged);
}

/// Two gateways at one store need not have the same rules.
#[test]
fn a_gateway_with_other_rules_says_which_override_it_has_no_use_for() {
    let redis = RedisServer::plain();
    let url = redis.url();
    let one = serve(&["--store", &url]);
    let flags = ["--admin-token", TOKEN, "--store", &url];
    let other = Weir::serve(&LIMITS.replace("  Wide:", "  Broad:"), &flags);
    done(&one, "PUT", "/overrides/Wide:7", r#"{"deny": true}"#);
    becomes("it is in force here", 1, || one.metric("weir_live_overrides"));
    becomes("it has no effect there", 1, || other.metric("weir_live_overrides_inert"));
    other.until_logged("the live override of Wide:7 does not apply: unknown limit `Wide`");
}
