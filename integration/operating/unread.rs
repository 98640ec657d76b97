//! Changes in the store that a gateway cannot use are counted and logged until somebody corrects them.

use serde_json::json;

use super::{LIMITS, TOKEN, ask, serve, spend};
use crate::support::redis::RedisServer;
use crate::support::weir::Weir;
use crate::support::{becomes, eventually};

/// Writes a note as another gateway would, into the keys that end so.
fn note(redis: &RedisServer, key: &str, member: &str, text: &str) {
    let [set, notes] = [format!("weir:{{0}}:!{key}"), format!("weir:{{0}}:!{key}-notes")];
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/lua/blocks.lua");
    let words = ["--eval", script, &set, &notes, ",", "block", "10000", "3600000000", member, text];
    assert_eq!(redis.cli(&words), "1");
}

/// The members of a set of notes, without its version.
fn read(redis: &RedisServer, key: &str) -> u64 {
    redis.cli(&["ZCARD", &format!("weir:{{0}}:!{key}")]).parse::<u64>().unwrap() - 1
}

fn unread(weir: &Weir, kind: &str) -> u64 {
    weir.metric(&format!("weir_shared_notes_unread{{kind=\"{kind}\"}}"))
}

#[test]
fn overrides_that_cannot_be_used_are_counted_and_told() {
    let redis = RedisServer::plain();
    let store = ["--store", &redis.url()];
    let weir = serve(&store);
    let good = |bucket: &str| json!({ "override": bucket, "numbers": { "deny": true } }).to_string();
    note(&redis, "overrides", "Wide:7:0", &good("Wide:7:0"));
    // No JSON, no override, another name of the id, and one of a limit that is not here.
    note(&redis, "overrides", "Wide:8", "deny");
    note(&redis, "overrides", "Wide:9", "{\"override\": \"Wide:9\"}");
    note(&redis, "overrides", "Wide:7%3A0", &good("Wide:7%3A0"));
    note(&redis, "overrides", "Gone:7", &good("Gone:7"));
    becomes("two cannot be read", 2, || unread(&weir, "override"));
    becomes("two have no effect", 2, || weir.metric("weir_live_overrides_inert"));
    assert_eq!((weir.metric("weir_live_overrides"), read(&redis, "overrides")), (1, 1 + 2 + 2), "used + told = read");
    assert!(!spend(&weir, "/wide", &[("x-id", "7:0")]) && spend(&weir, "/wide", &[("x-id", "8")]));
    weir.until_logged("the store has overrides that cannot be read and have no effect here, such as `Wide:8`");
    weir.until_logged("the live override of Gone:7 does not apply: unknown limit `Gone`");
    weir.until_logged("does not apply: the same id has the live override of Wide:");
    let listed = ask(&weir, "GET", "/overrides?source=live", "").1;
    assert_eq!(listed["overrides"].as_array().unwrap().len(), 3, "{listed}");
    // They are told once, however often the store is asked.
    let logged = weir.log().matches("does not apply").count();
    note(&redis, "overrides", "Wide:8", &good("Wide:8"));
    becomes("one is corrected", 1, || unread(&weir, "override"));
    becomes("it denies", 2, || weir.metric("weir_live_overrides"));
    assert_eq!(weir.log().matches("does not apply").count(), logged);
}

#[test]
fn resets_that_cannot_be_read_are_counted_and_told() {
    let redis = RedisServer::plain();
    let weir = serve(&["--store", &redis.url()]);
    note(&redis, "resets", "Even", "{\"limit\": \"Even\"}");
    note(&redis, "resets", "Wide", "{\"generation\": 1795233606000, \"limit\": \"Wide\"}");
    becomes("one cannot be read", 1, || unread(&weir, "reset"));
    assert_eq!(read(&redis, "resets"), 2);
    weir.until_logged("the store has resets that cannot be read and have no effect here, such as `Even`");
}

/// The key and the end are all that a block needs.
#[test]
fn a_block_holds_whatever_its_note_says() {
    let redis = RedisServer::plain();
    let weir = serve(&["--store", &redis.url()]);
    note(&redis, "blocked", "Wide:7", "scraping");
    becomes("it is known", 1, || weir.metric("weir_blocks"));
    assert!(!spend(&weir, "/wide", &[("x-id", "7")]));
    assert_eq!((unread(&weir, "block"), read(&redis, "blocked")), (0, 1));
}

/// Two gateways at one store need not have the same rules.
#[test]
fn a_gateway_with_other_rules_says_which_override_it_has_no_use_for() {
    let redis = RedisServer::plain();
    let url = redis.url();
    let one = serve(&["--store", &url]);
    let flags = ["--admin-token", TOKEN, "--store", &url];
    let other = Weir::serve(&LIMITS.replace("  Wide:", "  Broad:"), &flags);
    eventually("the store is there", || match ask(&one, "PUT", "/overrides/Wide:7", r#"{"deny": true}"#) {
        (200, _) => Ok(()),
        answer => Err(answer),
    });
    becomes("it is in force here", 1, || one.metric("weir_live_overrides"));
    becomes("it has no effect there", 1, || other.metric("weir_live_overrides_inert"));
    other.until_logged("the live override of Wide:7 does not apply: unknown limit `Wide`");
}
