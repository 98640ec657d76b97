//! Blocks, live overrides and resets of limits: the same cases for each kind.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use weir::store::redis::TAG_NAMES;

use super::{ask, done, each_store, serve, spend};
use crate::support::cluster::RedisCluster;
use crate::support::redis::{RedisConfig, RedisServer};
use crate::support::weir::Weir;
use crate::support::{becomes, eventually};

/// `LIMIT` and `SPAN` stand for a limit and a duration. The id is `a{b}:c`.
struct Kind {
    /// The label of the metric.
    name: &'static str,
    /// The name of the notes in Redis.
    notes: &'static str,
    /// The request that posts it. DELETE removes it, if it can end.
    method: &'static str,
    path: &'static str,
    body: &'static str,
    member: &'static str,
    /// The text of the note, but for times.
    note: &'static str,
    /// Counts those that can end.
    gauge: Option<&'static str>,
}

const KINDS: [Kind; 3] = [
    Kind {
        name: "block",
        notes: "blocked",
        method: "PUT",
        path: "/buckets/LIMIT:a%7Bb%7D:c/block",
        body: r#"{"for": "SPAN", "reason": "scraping"}"#,
        member: "LIMIT:a%7Bb%7D%3Ac",
        note: r#"{"bucket": "LIMIT:a{b}:c", "reason": "scraping", "by": "127.0.0.1"}"#,
        gauge: Some("weir_blocks"),
    },
    Kind {
        name: "override",
        notes: "overrides",
        method: "PUT",
        path: "/overrides/LIMIT:a%7Bb%7D:c",
        body: r#"{"for": "SPAN", "comment": "scraping", "deny": true}"#,
        member: "LIMIT:a{b}:c",
        note: r#"{"override": "LIMIT:a{b}:c", "comment": "scraping", "by": "127.0.0.1", "numbers": {"deny": true}}"#,
        gauge: Some("weir_live_overrides"),
    },
    Kind {
        name: "reset",
        notes: "resets",
        method: "POST",
        path: "/limits/LIMIT/reset",
        body: "",
        member: "LIMIT",
        note: r#"{"limit": "LIMIT", "by": "127.0.0.1"}"#,
        gauge: None,
    },
];

impl Kind {
    fn ask(&self, weir: &Weir, limit: &str) -> (u16, Value) {
        ask(weir, self.method, &self.path.replace("LIMIT", limit), &self.body.replace("SPAN", "1h"))
    }

    #[track_caller]
    fn post(&self, weir: &Weir, limit: &str, span: &str) {
        done(weir, self.method, &self.path.replace("LIMIT", limit), &self.body.replace("SPAN", span));
    }

    fn remove(&self, weir: &Weir, limit: &str) -> u16 {
        ask(weir, "DELETE", &self.path.replace("LIMIT", limit), "").0
    }

    /// Returns whether it holds in a process, given one that has it. A process without the reset counts in another bucket.
    fn holds(&self, weir: &Weir, limit: &str, known: &Weir) -> bool {
        match self.gauge {
            Some(_) => !passes(weir, limit),
            None => (0..2).all(|_| passes(known, limit) && left(known, limit) == left(weir, limit)),
        }
    }

    #[track_caller]
    fn until_it_holds(&self, weirs: &[&Weir], limit: &str, known: &Weir) {
        for weir in weirs {
            becomes(self.name, true, || self.holds(weir, limit, known));
        }
    }

    /// The number of them in a process.
    fn count(&self, weir: &Weir) -> u64 {
        weir.metric(self.gauge.unwrap())
    }

    fn unread(&self, weir: &Weir) -> u64 {
        weir.metric(&format!("weir_shared_notes_unread{{kind=\"{}\"}}", self.name))
    }

    fn keys(&self) -> [String; 2] {
        ["", "-notes"].map(|end| format!("weir:{{0}}:!{}{end}", self.notes))
    }

    /// Waits until the server has as many, and their version.
    #[track_caller]
    fn until_stored(&self, redis: &RedisServer, count: u64) {
        becomes(self.name, count + 1, || redis.cli(&["ZCARD", &self.keys()[0]]).parse().unwrap());
    }
}

/// Spends with a request that has the id.
fn passes(weir: &Weir, limit: &str) -> bool {
    spend(weir, &format!("/{}", limit.to_lowercase()), &[("x-id", "a{b}:c")])
}

fn left(weir: &Weir, limit: &str) -> Value {
    done(weir, "GET", &format!("/buckets/{limit}:a%7Bb%7D:c"), "")["windows"][0]["remaining"].clone()
}

/// A server, and gateways at it.
fn gateways<const COUNT: usize>() -> (RedisServer, [Weir; COUNT]) {
    let redis = RedisServer::plain();
    let weirs = std::array::from_fn(|_| serve(&["--store", &redis.url()]));
    (redis, weirs)
}

#[test]
fn an_idle_gateway_asks_for_versions_and_reads_what_has_changed() {
    let (redis, [weir]) = gateways();
    // The first look reads what there is.
    becomes("the first look", true, || redis.calls("zscore") > 6);
    redis.cli(&["CONFIG", "RESETSTAT"]);
    let begun = Instant::now();
    becomes("two further looks", true, || redis.calls("zscore") >= 6);
    assert!(begun.elapsed() > Duration::from_secs(3), "it asks often: {:?}", begun.elapsed());
    assert_eq!(redis.calls("eval"), 0);
    // As a version of Weir that knows no more than the script does.
    let [blocks, notes] = KINDS[0].keys();
    let member = KINDS[0].member.replace("LIMIT", "Wide");
    let script = ["--eval", "lua/blocks.lua", &blocks, &notes, ",", "block", "10", "60000000", &member, "{}"];
    assert_eq!(redis.cli(&script), "1");
    KINDS[0].until_it_holds(&[&weir], "Wide", &weir);
}

#[test]
fn a_user_who_lacks_the_rights_is_told_them_once() {
    let rights = "~weir:{0}:* +evalsha +eval +get +set +del +pttl +pexpire +persist +time +ping";
    let user = format!("user weir on >secret resetchannels -@all {rights}");
    let redis = RedisServer::start(&RedisConfig { lines: vec![user], ..RedisConfig::default() });
    let weir = serve(&["--store", &format!("redis://weir:secret@{}", redis.address())]);
    weir.until_logged("resets need: `ACL SETUSER weir +zscore +zrange");
    redis.cli(&["CONFIG", "RESETSTAT"]);
    becomes("two more looks", true, || {
        let statistics = redis.cli(&["INFO", "commandstats"]);
        let line = statistics.lines().find_map(|line| line.strip_prefix("cmdstat_zscore:")).unwrap_or_default();
        let rejected = line.split(',').find_map(|field| field.strip_prefix("rejected_calls="));
        rejected.is_some_and(|rejected| rejected.parse::<u64>().unwrap() >= 6)
    });
    assert_eq!(weir.log().matches("cannot ask the store for new blocks").count(), 1, "{}", weir.log());
    assert!(passes(&weir, "Wide"), "limits need no more");
}

#[test]
fn a_move_of_their_hash_slot_is_followed_without_a_word() {
    let cluster = RedisCluster::start(3, 0);
    let weir = serve(&["--store", &cluster.url()]);
    KINDS[0].post(&weir, "Wide", "1h");
    // It may have had to wait for the operator's connection.
    let before = weir.log().lines().count();
    let hash_slot = cluster.hash_slot(&format!("weir:{{{}}}:!blocked", TAG_NAMES[0]));
    for _ in 0..3 {
        let to = (cluster.owner(hash_slot) + 1) % 3;
        cluster.nodes[to].cli(&["CONFIG", "RESETSTAT"]);
        cluster.move_slot(hash_slot, to);
        becomes("the new node is asked", true, || cluster.nodes[to].calls("zscore") >= 6);
    }
    assert_eq!(KINDS[0].count(&weir), 1);
    let told: Vec<String> = weir
        .log()
        .lines()
        .skip(before)
        .filter(|line| line.contains("\"WARN\"") && !line.contains("file descriptors"))
        .map(str::to_owned)
        .collect();
    assert_eq!(told, Vec::<String>::new());
}

/// The old master of their keys answers all the time, with the map that it had. One user may ask a node for its state, and one may
/// not.
#[test]
fn it_reaches_gateways_while_the_node_that_has_it_is_cut_off_from_its_cluster() {
    let rights = "~weir:* +evalsha +eval +get +set +del +pttl +pexpire +persist +time +ping +asking +cluster|slots \
                  +zscore +zrange +zrangebyscore +zcard +zadd +zrem +hget +hgetall +hset +hdel";
    let users = [("asking", "+cluster|info"), ("counting", "")];
    let user = |(name, more)| format!("user {name} on >secret resetchannels -@all {rights} {more}");
    let config = RedisConfig { lines: users.map(user).to_vec(), ..RedisConfig::default() };
    let mut cluster = RedisCluster::divisible(&config, 3, 1);
    let weirs = users.map(|(name, _)| {
        let url = cluster.url().replace("://", &format!("://{name}:secret@"));
        let weir = serve(&["--store", &url]);
        weir.until_connected();
        weir
    });
    let [asking, counting] = &weirs;
    let master = cluster.owner(cluster.hash_slot(&format!("weir:{{{}}}:!blocked", TAG_NAMES[0])));
    cluster.isolate(Some(master));
    cluster.until_master(master + 3);
    cluster.until_whole();
    for (kind, [from, to]) in KINDS.iter().zip([[asking, counting], [counting, asking], [asking, counting]]) {
        eventually(kind.name, || match kind.ask(from, "Wide") {
            (200, _) => Ok(()),
            other => Err(other),
        });
        kind.until_it_holds(&[from, to], "Wide", from);
        if kind.gauge.is_some() {
            assert_eq!(kind.remove(to, "Wide"), 200, "{}", kind.name);
            becomes(kind.name, 0, || kind.count(from));
        }
    }
    assert!(cluster.nodes[master].cli(&["CLUSTER", "INFO"]).contains("cluster_state:fail"));
    counting.until_logged("give the user `+cluster|info`");
    assert!(!asking.log().contains("+cluster|info"), "{}", asking.log());
}

#[test]
fn it_holds_at_once_until_it_is_removed_or_ends() {
    each_store(|store, name| {
        let weir = serve(store);
        for kind in &KINDS {
            assert!((0..3).all(|_| passes(&weir, "Wide")), "{} {name}", kind.name);
            // The second one replaces the first.
            kind.post(&weir, "Wide", "2h");
            kind.post(&weir, "Wide", "1h");
            if kind.gauge.is_none() {
                assert_eq!(left(&weir, "Wide"), 1_000_000, "{name}");
                continue;
            }
            // On every worker.
            assert!((0..6).all(|_| !passes(&weir, "Wide")), "{} {name}", kind.name);
            assert!(spend(&weir, "/wide", &[("x-id", "a")]), "another id passes");
            assert_eq!((kind.count(&weir), kind.remove(&weir, "Wide")), (1, 200), "{} {name}", kind.name);
            assert!((0..6).all(|_| passes(&weir, "Wide")), "{} {name}", kind.name);
            assert_eq!((kind.count(&weir), kind.remove(&weir, "Wide")), (0, 404), "{} {name}", kind.name);
            kind.post(&weir, "Wide", "5s");
            assert!(!passes(&weir, "Wide"), "{} {name}", kind.name);
            becomes("it is over", true, || passes(&weir, "Wide"));
            becomes("it is forgotten", 0, || kind.count(&weir));
        }
    });
}

#[test]
fn one_gateway_posts_for_all_and_for_those_that_come_later() {
    let (redis, [one, other]) = gateways();
    for kind in &KINDS {
        assert!(passes(&one, "Wide") && passes(&other, "Wide"));
        kind.post(&one, "Wide", "1h");
        assert!(kind.holds(&one, "Wide", &one), "{}", kind.name);
        let later = serve(&["--store", &redis.url()]);
        kind.until_it_holds(&[&other, &later], "Wide", &one);
        let ([set, notes], note) = (kind.keys(), kind.note.replace("LIMIT", "Wide"));
        let text = redis.cli(&["HGET", &notes, &kind.member.replace("LIMIT", "Wide")]);
        let (note, text) =
            (serde_json::from_str::<Value>(&note).unwrap(), serde_json::from_str::<Value>(&text).unwrap());
        for (member, value) in note.as_object().unwrap() {
            assert_eq!(&text[member], value, "{text}");
        }
        let ttl: i64 = redis.cli(&["TTL", &set]).parse().unwrap();
        if kind.gauge.is_none() {
            assert!(ttl > 366 * 86_400, "{ttl}");
            continue;
        }
        assert!((3_500..=3_660).contains(&ttl), "its version is kept as long: {ttl}");
        assert_eq!(kind.remove(&later, "Wide"), 200);
        assert!(passes(&later, "Wide"));
        for weir in [&one, &other] {
            becomes("it is removed", true, || passes(weir, "Wide"));
        }
        assert_eq!(redis.cli(&["ZRANGE", &set, "0", "-1"]), "!version");
        assert_eq!(redis.cli(&["EXISTS", &notes]), "0");
    }
}

#[test]
fn it_holds_without_a_store_which_gets_it_back() {
    for kind in &KINDS {
        let (mut redis, [weir]) = gateways();
        kind.post(&weir, "Wide", "1h");
        redis.kill();
        becomes("the store is away", 0, || weir.metric("weir_store_connections"));
        assert_eq!(kind.ask(&weir, "Even").0, 503, "{}", kind.name);
        assert_eq!(passes(&weir, "Wide"), kind.gauge.is_none(), "{}", kind.name);
        assert!(passes(&weir, "Log"), "`on_store_error: allow`");
        redis.restart();
        kind.until_stored(&redis, 1);
        weir.until_connected();
        assert!(kind.holds(&weir, "Wide", &weir), "{}", kind.name);
    }
}

#[test]
fn a_store_that_has_lost_them_gets_them_back_from_those_who_know() {
    for kind in &KINDS {
        let (mut redis, [one, other]) = gateways();
        kind.post(&one, "Even", "1h");
        kind.post(&one, "Wide", "1h");
        kind.until_it_holds(&[&other], "Wide", &one);
        redis.kill();
        redis.restart();
        kind.until_stored(&redis, 2);
        redis.cli(&["FLUSHALL"]);
        kind.until_stored(&redis, 2);
        redis.cli(&["DEL", &kind.keys()[0]]);
        kind.until_stored(&redis, 2);
        one.until_connected();
        other.until_connected();
        let later = serve(&["--store", &redis.url()]);
        let all = [&one, &other, &later];
        kind.until_it_holds(&all, "Wide", &one);

        // One that is posted in a store without data does not drop the others.
        redis.cli(&["FLUSHALL"]);
        kind.post(&one, "Log", "1h");
        kind.until_stored(&redis, 3);
        kind.until_it_holds(&all, "Wide", &one);
        if kind.gauge.is_none() {
            continue;
        }
        // A process that was absent when one was removed does not write it back, even if it was the last one.
        for (count, limit) in [(2, "Wide"), (1, "Even"), (0, "Log")] {
            other.signal("STOP");
            assert_eq!(kind.remove(&one, limit), 200, "{}", kind.name);
            other.signal("CONT");
            for weir in all {
                becomes("it is removed", true, || passes(weir, limit));
            }
            kind.until_stored(&redis, count);
        }
        redis.cli(&["FLUSHALL"]);
        kind.post(&other, "Even", "1h");
        kind.until_stored(&redis, 1);
    }
}

/// Notes are read in pages, so that Redis keeps answering.
#[test]
fn ten_thousand_are_read_whole_and_no_more_are_taken() {
    let (redis, [weir, other]) = gateways();
    let end = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_micros() + 3_600_000_000;
    for kind in &KINDS {
        let [set, notes] = kind.keys();
        let (mut ends, mut texts) = (vec!["ZADD".to_owned(), set], vec!["HSET".to_owned(), notes]);
        let known = [kind.member.replace("LIMIT", "Wide")];
        for member in (0..9_999).map(|place| format!("Wide:{place}")).chain(known) {
            ends.extend([end.to_string(), member.clone()]);
            let note = json!({ "override": member, "numbers": { "deny": true }, "generation": 1 }).to_string();
            texts.extend([member, note]);
        }
        for words in [ends, texts] {
            redis.cli(&words.iter().map(String::as_str).collect::<Vec<_>>());
        }
        // In place of one that is there.
        kind.post(&weir, "Wide", "1h");
        let (status, answer) = kind.ask(&weir, "Even");
        assert_eq!(status, 409, "{}: {answer}", kind.name);
        assert_eq!(
            answer["detail"].as_str().map(|text| text.ends_with("s, which is the maximum")),
            Some(true),
            "{answer}"
        );
        if kind.gauge.is_some() {
            for weir in [&weir, &other] {
                becomes("all of them are known", 10_000, || kind.count(weir));
                assert!(!spend(weir, "/wide", &[("x-id", "9998")]) && spend(weir, "/wide", &[("x-id", "9999")]));
            }
            assert_eq!(kind.remove(&weir, "Wide"), 200, "{}", kind.name);
            kind.post(&weir, "Even", "1h");
        }
        kind.until_stored(&redis, 10_000);
        assert_eq!(kind.unread(&weir), 0, "{}", kind.name);
    }
}

/// The key and the end are all that a block needs. Of the others, what cannot be read is counted and told.
#[test]
fn what_cannot_be_read_has_no_effect_and_is_told() {
    let (redis, [weir]) = gateways();
    for (kind, (text, unread)) in KINDS.iter().zip([("scraping", 0), ("deny", 1), (r#"{"limit": "Even"}"#, 1)]) {
        let ([set, notes], member, name) = (kind.keys(), kind.member.replace("LIMIT", "Even"), kind.name);
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/lua/blocks.lua");
        redis.cli(&["--eval", script, &set, &notes, ",", "block", "10000", "3600000000", &member, text]);
        kind.post(&weir, "Wide", "1h");
        becomes(name, unread, || kind.unread(&weir));
        assert_eq!(passes(&weir, "Even"), unread == 1, "{name}");
        if unread == 1 {
            weir.until_logged(&format!(
                "the store has {name}s that cannot be read and have no effect here, such as `{member}`"
            ));
        } else {
            assert_eq!(kind.remove(&weir, "Even"), 200, "{name}");
        }
    }
}
