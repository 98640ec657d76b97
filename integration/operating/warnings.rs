//! Warnings of ids that have used most of what a limit allows: once over all gateways, in the metrics, the log and by webhook.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use aws_lc_rs::hmac;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

use super::listeners::{ALL, at_listener};
use super::{TOKEN, done, each_store};
use crate::support::redis::RedisServer;
use crate::support::upstream::{Upstream, ok};
use crate::support::weir::Weir;
use crate::support::wire::Message;
use crate::support::{becomes, eventually};

const LIMITS: &str = "\
limits:
  PerKey: { match: { path: /keys }, by: { header: x-id }, algorithm: fixed_window, count: 10, period: 10h, warn_at: [80%, 100%] }
  Rates:
    match: { path: /rates }
    by: { header: x-id }
    rates: [{ count: 4, period: 10h }, { count: 5, period: 100d }]
    warn_at: 80%
  Watched: { match: { path: /watched }, by: global, burst: 1, mode: shadow, warn_at: 100% }
  Short: { match: { path: /short }, by: { header: x-id }, algorithm: fixed_window, count: 1, period: 1s, warn_at: 100% }
  Silent: { match: { path: /silent }, by: { header: x-id }, burst: 1 }
";

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

fn accepted() -> Upstream {
    Upstream::answering(|_| ok(""))
}

fn serve(receiver: &Upstream, store: &[&str]) -> Weir {
    let url = format!("http://{}/hook?of=weir", receiver.address);
    let flags = ["--webhook", &url, "--webhook-secret-file", "secret", "--log-ids", "clear"];
    let prepare = |_: &mut _, directory: &Path| fs::write(directory.join("secret"), SECRET).unwrap();
    let weir = Weir::serve_with(LIMITS, &[&flags[..], store].concat(), prepare);
    weir.until_connected();
    weir
}

fn get(weir: &Weir, path: &str, id: &str) -> u16 {
    weir.get(path, &[("x-id", id)]).status()
}

/// The value of a metric; 0 if it has not been counted yet.
fn counted(weir: &Weir, name: &str) -> u64 {
    let page = weir.admin("/metrics");
    let value = |line: &str| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok();
    page.text().lines().find_map(value).unwrap_or_default()
}

fn near(weir: &Weir, limit: &str) -> u64 {
    counted(weir, &format!("weir_near_limit_total{{limit=\"{limit}\"}}"))
}

fn warned(weir: &Weir, limit: &str) -> u64 {
    counted(weir, &format!("weir_warnings_total{{limit=\"{limit}\",result=\"warned\"}}"))
}

fn webhooks(weir: &Weir, result: &str) -> u64 {
    let page = weir.admin("/metrics");
    let of_result =
        |line: &&str| line.starts_with("weir_webhooks_total{") && line.contains(&format!("result=\"{result}\""));
    let count = |line: &str| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap();
    page.text().lines().filter(of_result).map(count).sum()
}

/// Checks the signature of a webhook as receivers do, and returns its data.
fn read(webhook: &Message) -> Value {
    assert_eq!(webhook.start, "POST /hook?of=weir HTTP/1.1");
    let header = |name: &str| webhook.header(name).unwrap_or_else(|| panic!("no {name}")).to_owned();
    let signed = [header("webhook-id"), header("webhook-timestamp"), webhook.text().to_owned()].join(".");
    let secret = BASE64_STANDARD.decode(SECRET.strip_prefix("whsec_").unwrap()).unwrap();
    let signature = header("webhook-signature");
    let signature = BASE64_STANDARD.decode(signature.strip_prefix("v1,").unwrap()).unwrap();
    hmac::verify(&hmac::Key::new(hmac::HMAC_SHA256, &secret), signed.as_bytes(), &signature).unwrap();
    assert_eq!(header("content-type"), "application/json");
    let value: Value = serde_json::from_str(webhook.text()).unwrap();
    assert_eq!(value["type"], "limit.warning");
    value["data"].clone()
}

/// The buckets and shares of the webhooks so far, in the order of their coming.
fn told(receiver: &Upstream) -> Vec<(String, u64)> {
    let of = |data: Value| (data["bucket"].as_str().unwrap().to_owned(), data["warn_at_percent"].as_u64().unwrap());
    receiver.requests().iter().map(read).map(of).collect()
}

#[test]
fn an_id_is_told_once_at_each_share() {
    each_store(|store, _| {
        let receiver = accepted();
        let weir = serve(&receiver, store);
        let pass = |count: usize, id: &str| {
            for _ in 0..count {
                assert_eq!(get(&weir, "/keys", id), 200);
            }
        };
        pass(7, "a");
        pass(7, "b");
        assert_eq!((near(&weir, "PerKey"), warned(&weir, "PerKey")), (0, 0));
        pass(1, "a");
        becomes("a webhook", 1, || webhooks(&weir, "delivered"));
        assert_eq!(told(&receiver), [("PerKey:a".to_owned(), 80)]);
        pass(1, "a");
        assert_eq!((near(&weir, "PerKey"), warned(&weir, "PerKey")), (2, 1));
        pass(1, "a");
        assert_eq!([0; 5].map(|_| get(&weir, "/keys", "a")), [429; 5]);
        becomes("a second webhook", 2, || webhooks(&weir, "delivered"));
        assert_eq!((near(&weir, "PerKey"), warned(&weir, "PerKey")), (3, 2), "denials are not near");
        let last = read(receiver.requests().last().unwrap());
        let resets = last["resets_at"].as_str().unwrap().to_owned();
        let expected = json!({
            "limit": "PerKey", "id": "a", "bucket": "PerKey:a", "warn_at_percent": 100, "capacity": 10, "remaining": 0,
            "allows": "burst 10, 10 per window of 10h", "enforced": true, "resets_at": resets,
        });
        assert_eq!(last, expected);
        weir.until_logged(r#""an id has used 80% of what the limit allows","limit":"PerKey","id":"a""#);
        weir.until_logged(r#""an id has used 100% of what the limit allows","limit":"PerKey","id":"a""#);
        assert_eq!(get(&weir, "/silent", "a"), 200);
        assert_eq!((near(&weir, "Silent"), warned(&weir, "Silent")), (0, 0));
    });
}

#[test]
fn each_window_warns_and_a_limit_in_shadow_says_so() {
    each_store(|store, _| {
        let receiver = accepted();
        let weir = serve(&receiver, store);
        assert_eq!([0; 4].map(|_| get(&weir, "/rates", "a")), [200; 4]);
        becomes("each window", 2, || webhooks(&weir, "delivered"));
        let requests = receiver.requests();
        let capacities = requests.iter().map(read).map(|data| data["capacity"].as_u64().unwrap());
        let mut capacities: Vec<u64> = capacities.collect();
        capacities.sort_unstable();
        assert_eq!(capacities, [4, 5]);
        assert_eq!(near(&weir, "Rates"), 1, "a request is counted once");
        assert_eq!([0; 3].map(|_| get(&weir, "/watched", "a")), [200; 3]);
        becomes("the limit in shadow", 3, || webhooks(&weir, "delivered"));
        let data = read(receiver.requests().last().unwrap());
        assert_eq!((&data["bucket"], &data["id"], &data["enforced"]), (&json!("Watched"), &json!(""), &json!(false)));
    });
}

#[test]
fn a_new_window_warns_again() {
    each_store(|store, _| {
        let receiver = accepted();
        let weir = serve(&receiver, store);
        eventually("three windows", || {
            get(&weir, "/short", "a");
            let count = webhooks(&weir, "delivered");
            if count >= 3 { Ok(()) } else { Err(count) }
        });
        assert!(near(&weir, "Short") >= 3);
    });
}

#[test]
fn of_several_gateways_one_warns() {
    let redis = RedisServer::plain();
    let url = redis.url();
    let receiver = accepted();
    let gateways = [0, 1].map(|_| serve(&receiver, &["--store", &url]));
    let mut turns = gateways.iter().cycle();
    for id in 0..20 {
        for _ in 0..12 {
            get(turns.next().unwrap(), "/keys", &id.to_string());
        }
    }
    let all = |count: fn(&Weir, &str) -> u64| gateways.iter().map(|weir| count(weir, "PerKey")).sum::<u64>();
    becomes("each id at both shares", 40, || receiver.requests().len());
    assert_eq!((all(near), all(warned)), (60, 40));
    let mut told = told(&receiver);
    told.sort();
    told.dedup();
    assert_eq!(told.len(), 40);
}

#[tokio::test]
async fn every_listener_warns() {
    const EACH: &str = "\
limits:
  PerClient: { by: ip, burst: 1, warn_at: 100% }
  PerUser: { match: { domain: api }, by: { descriptor: user }, burst: 1, warn_at: 100% }
";
    for listener in ALL {
        let flags = ["--check", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--trusted-proxies", "127.0.0.1/32"];
        let weir = Weir::serve(EACH, &flags);
        assert_eq!(at_listener(&weir, listener).await.status, 200, "{listener}");
        let limit = if listener == "rate limit service" { "PerUser" } else { "PerClient" };
        becomes(listener, 1, || warned(&weir, limit));
        assert_eq!(near(&weir, limit), 1, "{listener}");
    }
}

#[test]
fn a_webhook_is_sent_again_until_it_is_accepted_and_the_last_ones_before_the_end() {
    let tries = AtomicUsize::new(0);
    let receiver = Upstream::answering(move |_| match tries.fetch_add(1, Ordering::Relaxed) {
        0 => "HTTP/1.1 503 Busy\r\ncontent-length: 0\r\n\r\n".to_owned(),
        _ => ok("thanks"),
    });
    let mut weir = serve(&receiver, &[]);
    for _ in 0..8 {
        assert_eq!(get(&weir, "/keys", "a"), 200, "nobody waits for the receiver");
    }
    eventually("a first try", || if receiver.requests().is_empty() { Err(()) } else { Ok(()) });
    for _ in 0..8 {
        assert_eq!(get(&weir, "/keys", "b"), 200);
    }
    weir.signal("TERM");
    assert!(weir.wait().success());
    let mut ids: Vec<String> =
        receiver.requests().iter().map(|webhook| webhook.header("webhook-id").unwrap().to_owned()).collect();
    ids.sort();
    ids.dedup();
    assert_eq!((receiver.requests().len(), ids.len()), (3, 2), "the first is sent twice with one id");
    let mut told = told(&receiver);
    told.sort();
    let [a, b] = ["PerKey:a", "PerKey:b"].map(|bucket| (bucket.to_owned(), 80));
    assert_eq!(told, [a.clone(), a, b]);
}

/// What is noted of warnings takes no bucket's place: new ids have their own while there is room for them.
#[test]
fn warnings_deny_no_new_id() {
    let receiver = accepted();
    let weir = serve(&receiver, &["--max-keys", "2000"]);
    for id in 0..300 {
        for _ in 0..10 {
            assert_eq!(get(&weir, "/keys", &id.to_string()), 200, "{id}");
        }
    }
    becomes("each id at both shares", 600, || warned(&weir, "PerKey"));
    assert_eq!((0..300).filter(|id| get(&weir, "/keys", &format!("new-{id}")) == 200).count(), 300);
    assert_eq!(weir.metric("weir_keys"), 600);
}

#[test]
fn a_bucket_that_is_reset_warns_again() {
    each_store(|store, _| {
        let receiver = Upstream::answering(|_| ok(&"long".repeat(50_000)));
        let weir = serve(&receiver, &[&["--admin-token", TOKEN], store].concat());
        for times in 1..=3 {
            assert_eq!([0; 10].map(|_| get(&weir, "/keys", "a")), [200; 10], "{times}");
            becomes("both shares", 2 * times, || webhooks(&weir, "delivered"));
            done(&weir, "POST", "/buckets/PerKey:a/reset", "");
        }
        assert_eq!(receiver.requests().len(), 6, "a long response is as good as a short one");
    });
}

#[test]
fn flags_that_cannot_work_are_explained() {
    let directory = tempfile::tempdir().unwrap();
    let limits = directory.path().join("limits.yaml");
    fs::write(&limits, LIMITS).unwrap();
    fs::write(directory.path().join("short"), "x").unwrap();
    let run = |flags: &[&str]| {
        let start = ["serve", "--dry-run", "--upstream", "echo", "--limits", "limits.yaml"];
        crate::support::binary::run_in(directory.path(), &[&start[..], flags].concat()).err
    };
    for (flags, why) in [
        (&["--webhook", "http://a/"][..], "--webhook-secret-file"),
        (&["--webhook-secret-file", "short"], "--webhook"),
        (&["--webhook", "a", "--webhook-secret-file", "short"], "it must begin with `https://` or `http://`"),
        (&["--webhook", "http://a/", "--webhook-secret-file", "none"], "--webhook-secret-file none: No such file"),
        (&["--webhook", "http://a/", "--webhook-secret-file", "short"], "the secret has fewer than 16 bytes"),
    ] {
        let error = run(flags);
        assert!(error.contains(why), "{flags:?}: {error}");
    }
}
