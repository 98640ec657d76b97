//! Directories of rules files, as Kubernetes mounts them: whose mistake is whose, and who owns what.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::binary::{run, run_in};
use crate::support::eventually;
use crate::support::redis::RedisServer;
use crate::support::weir::Weir;
use crate::support::wire::Wire;

type Texts<'t> = &'t [(&'t str, &'t str)];

const BASE: (&str, &str) = ("base.yaml", "limits: { PerAddress: { by: ip, burst: 1000 } }");
const ORDERS: (&str, &str) =
    ("payments.yaml", "limits: { Orders: { match: { path: /orders }, by: { header: x-account }, burst: 2 } }");
const QUERIES: (&str, &str) =
    ("search.yaml", "limits: { Queries: { match: { path: /search }, by: global, burst: 1 } }");
const BROKEN: (&str, &str) = ("payments.yaml", "limits:\n  Orders: { burst: 0 }\n");
const MORE_QUERIES: (&str, &str) =
    ("search.yaml", "limits: { Queries: { match: { path: /search }, by: global, burst: 3 } }");

/// A volume of a `ConfigMap`: the files are links into `..data`, a link to the directory of a version, which is replaced at once.
struct Volume {
    directory: TempDir,
    version: usize,
}

impl Volume {
    fn new(texts: Texts<'_>) -> Self {
        let mut volume = Self { directory: tempfile::tempdir().unwrap(), version: 0 };
        volume.set(texts);
        volume
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    fn set(&mut self, texts: Texts<'_>) {
        self.version += 1;
        let at = |name: &str| self.path().join(name);
        let version = format!("..2026_{}", self.version);
        fs::create_dir(at(&version)).unwrap();
        for (name, text) in texts {
            fs::write(at(&version).join(name), text).unwrap();
        }
        symlink(&version, at("..data_tmp")).unwrap();
        fs::rename(at("..data_tmp"), at("..data")).unwrap();
        for (name, _) in texts {
            if fs::symlink_metadata(at(name)).is_err() {
                symlink(Path::new("..data").join(name), at(name)).unwrap();
            }
        }
        let links: Vec<PathBuf> = fs::read_dir(self.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
        for link in links.iter().filter(|path| !path.exists()) {
            fs::remove_file(link).unwrap();
        }
    }
}

/// Runs a test with one gateway in memory, and with two that share a Redis.
fn each_store(texts: Texts<'_>, test: impl Fn(&mut Volume, &[Weir])) {
    let redis = RedisServer::plain();
    for (store, gateways) in [("memory", 1), (redis.url().as_str(), 2)] {
        let mut volume = Volume::new(texts);
        let limits = volume.path().to_str().unwrap().to_owned();
        let serve = |_| {
            let weir = Weir::serve("", &["--limits", &limits, "--store", store]);
            weir.until_connected();
            weir
        };
        let gateways: Vec<Weir> = (0..gateways).map(serve).collect();
        test(&mut volume, &gateways);
    }
}

/// Waits until the gateway has looked at files of which these are broken, or not.
fn until_seen(weir: &Weir, expected: &[(&str, u64)]) {
    weir.signal("HUP");
    eventually("the files were read", || {
        let page = weir.admin("/metrics");
        let lines = page.text().lines().filter_map(|line| line.strip_prefix("weir_config_file_broken{owner=\""));
        let found: Vec<String> = lines.map(str::to_owned).collect();
        let expected: Vec<String> = expected.iter().map(|(owner, is)| format!("{owner}\"}} {is}")).collect();
        if found == expected { Ok(()) } else { Err((found, weir.log())) }
    });
}

fn ready(weir: &Weir) -> Value {
    serde_json::from_str(weir.admin("/readyz").text()).unwrap()
}

/// The burst of a limit, and its owner.
fn limit(weir: &Weir, name: &str) -> (Value, Value) {
    let text = weir.admin(&format!("/limits/{}", name.replace('/', "%2F"))).text().to_owned();
    let found: Value = serde_json::from_str(&text).unwrap();
    (found["windows"][0]["burst"].clone(), found["owner"].clone())
}

fn order(weir: &Weir, account: &str) -> u16 {
    weir.get("/orders", &[("x-account", account)]).status()
}

#[test]
fn a_broken_file_keeps_its_last_good_version_and_takes_no_other_down() {
    each_store(&[BASE, ORDERS, QUERIES], |volume, gateways| {
        let (first, last) = (&gateways[0], &gateways[gateways.len() - 1]);
        assert_eq!([order(first, "a"), order(last, "a"), order(first, "a"), order(last, "a")], [200, 200, 429, 429]);

        volume.set(&[BASE, BROKEN, MORE_QUERIES]);
        for weir in gateways {
            until_seen(weir, &[("base", 0), ("payments", 1), ("search", 0)]);
            assert_eq!(limit(weir, "search/Queries"), (json!(3), json!("search")));
            assert_eq!(limit(weir, "payments/Orders"), (json!(2), json!("payments")));
            assert_eq!([order(weir, "a"), order(weir, &weir.id().to_string())], [429, 200]);
            let ready = ready(weir);
            let error = ready["config_error"].as_str().unwrap();
            assert_eq!((&ready["status"], &ready["config"]), (&json!("degraded"), &json!("error")));
            assert!(error.contains("burst must be at least 1"), "{error}");
            assert!(error.contains("payments.yaml:2:20") && !error.contains("search"), "{error}");
            assert_eq!(weir.metric("weir_config_last_reload_successful"), 0);
        }

        volume.set(&[BASE, ("payments.yaml", &ORDERS.1.replace("burst: 2", "burst: 4")), MORE_QUERIES]);
        for weir in gateways {
            until_seen(weir, &[("base", 0), ("payments", 0), ("search", 0)]);
            assert_eq!((&ready(weir)["status"], limit(weir, "payments/Orders").0), (&json!("ready"), json!(4)));
            assert_eq!(weir.metric("weir_config_last_reload_successful"), 1);
        }
        // What was used stays used.
        assert_eq!([0; 3].map(|_| order(last, "a")), [200, 200, 429]);
    });
}

/// The file that has changed gives way, not the ones that fit it no more, and not those of others.
#[test]
fn a_change_that_overrides_do_not_fit_is_a_mistake_of_its_team() {
    let mut volume = Volume::new(&[BASE, ORDERS, QUERIES]);
    let given = tempfile::tempdir().unwrap();
    let overrides = given.path().join("overrides.yaml");
    fs::write(&overrides, "payments/Orders:vip: { burst: 3 }").unwrap();
    let [rules, overrides] = [volume.path(), &overrides].map(|path| path.to_str().unwrap().to_owned());
    let weir = Weir::serve("", &["--limits", &rules, "--overrides", &overrides]);
    for other in [
        ORDERS.1.replace("{ header: x-account }", "{ header: x-account, as: integer }"),
        ORDERS.1.replace("by: { header: x-account }", "by: global"),
        format!("{}\noverrides: {{ Orders:vip: {{ burst: 9 }} }}", ORDERS.1),
    ] {
        volume.set(&[BASE, ("payments.yaml", &other), MORE_QUERIES]);
        until_seen(&weir, &[("base", 0), ("payments", 1), ("search", 0)]);
        assert_eq!([limit(&weir, "search/Queries").0, limit(&weir, "payments/Orders").0], [3, 2], "{other}");
        weir.until_logged("\"owners\":\"payments\"");
        assert!(ready(&weir)["config_error"].as_str().unwrap().contains("overrides.yaml:1:1"), "{other}");
        volume.set(&[BASE, ("payments.yaml", &ORDERS.1.replace("burst: 2", "burst: 4")), QUERIES]);
        until_seen(&weir, &[("base", 0), ("payments", 0), ("search", 0)]);
        assert_eq!([limit(&weir, "search/Queries").0, limit(&weir, "payments/Orders").0], [1, 4], "{other}");
        volume.set(&[BASE, ORDERS, QUERIES]);
        until_seen(&weir, &[("base", 0), ("payments", 0), ("search", 0)]);
    }
}

#[test]
fn a_broken_base_keeps_its_last_good_version_too() {
    each_store(&[BASE, ORDERS], |volume, gateways| {
        volume.set(&[("base.yaml", "limits: ["), ("payments.yaml", &ORDERS.1.replace("burst: 2", "burst: 4"))]);
        for weir in gateways {
            until_seen(weir, &[("base", 1), ("payments", 0)]);
            assert_eq!((limit(weir, "PerAddress").0, limit(weir, "payments/Orders").0), (json!(1000), json!(4)));
        }
    });
}

#[test]
fn files_come_and_go_with_their_limits() {
    each_store(&[BASE, ORDERS], |volume, gateways| {
        // A new file without a good version is left out.
        volume.set(&[BASE, ORDERS, ("search.yaml", "limits: { Queries: { burst: x } }")]);
        for weir in gateways {
            until_seen(weir, &[("base", 0), ("payments", 0), ("search", 1)]);
            assert_eq!([0; 2].map(|_| weir.get("/search", &[]).status()), [200, 200]);
        }
        volume.set(&[BASE, ORDERS, QUERIES]);
        for weir in gateways {
            until_seen(weir, &[("base", 0), ("payments", 0), ("search", 0)]);
        }
        assert_eq!([0; 2].map(|_| gateways[0].get("/search", &[]).status()), [200, 429]);
        let owner = "weir_limit_owner{limit=\"search/Queries\",owner=\"search\"}";
        assert_eq!(gateways[0].metric(owner), 1);

        volume.set(&[BASE, ORDERS]);
        for weir in gateways {
            until_seen(weir, &[("base", 0), ("payments", 0)]);
            weir.until_logged("the file of this owner is gone, and its limits with it");
            assert_eq!(weir.get("/search", &[]).status(), 200);
            assert!(!weir.admin("/metrics").text().contains("search/Queries"));
        }
    });
}

#[test]
fn the_owner_is_told_wherever_a_limit_is() {
    let volume = Volume::new(&[BASE, ORDERS, QUERIES]);
    let limits = volume.path().to_str().unwrap();
    let weir = Weir::serve("", &["--limits", limits]);
    assert_eq!([order(&weir, "a"), order(&weir, "a"), order(&weir, "a")], [200, 200, 429]);
    let denied = weir.get("/orders", &[("x-account", "a")]);
    assert_eq!(denied.header("ratelimit"), Some("\"payments/Orders\";r=0"));
    for (name, labels) in [
        ("weir_limit_owner", "limit=\"payments/Orders\",owner=\"payments\""),
        ("weir_limit_owner", "limit=\"search/Queries\",owner=\"search\""),
    ] {
        assert_eq!(weir.metric(&format!("{name}{{{labels}}}")), 1);
    }
    assert_eq!(weir.metric("weir_decisions_total{limit=\"payments/Orders\",result=\"denied\"}"), 2);
    let owners = |limits: &Value| -> Vec<(String, Value)> {
        let each = limits.as_array().unwrap().iter();
        each.filter(|limit| limit["name"] != "(request)")
            .map(|limit| (limit["name"].as_str().unwrap().to_owned(), limit["owner"].clone()))
            .collect()
    };
    let expected =
        [("PerAddress", Value::Null), ("payments/Orders", "payments".into()), ("search/Queries", "search".into())]
            .map(|(name, owner)| (name.to_owned(), owner));
    let live: Value = serde_json::from_str(weir.admin("/live").text()).unwrap();
    assert_eq!(owners(&live["limits"]), expected);
    let question = json!({ "method": "GET", "url": "http://a/orders", "ip": "192.0.2.7" }).to_string();
    let mut wire = Wire::connect(weir.admin);
    wire.send(format!(
        "POST /explain HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n{question}",
        question.len()
    ));
    let explained: Value = serde_json::from_str(wire.response().text()).unwrap();
    assert_eq!(owners(&explained["limits"]), expected);

    let explained = run(&[
        "explain",
        "--limits",
        limits,
        "GET",
        "http://a/orders",
        "--header",
        "x-account: a",
        "--ip",
        "192.0.2.7",
    ]);
    assert!(explained.out.contains("payments/Orders: applies\n  owner     payments\n"), "{}", explained.out);
    let other = Volume::new(&[BASE, ("payments.yaml", &ORDERS.1.replace("burst: 2", "burst: 4")), QUERIES]);
    let diff = run(&["diff", limits, other.path().to_str().unwrap()]);
    assert!(diff.out.contains("payments/Orders") && !diff.out.contains("search/Queries:"), "{}", diff.out);
}

#[test]
fn commands_read_a_directory_and_tell_the_file_of_a_mistake() {
    let tests = "tests: { one: [{ get: /orders, headers: { x-account: a }, repeat: 3, expect: { denied: 1, limit: Orders } }] }";
    let tested = format!("{}\n{tests}\n", ORDERS.1);
    let volume = Volume::new(&[BASE, ("payments.yaml", &tested), QUERIES]);
    let directory = volume.path();
    let checked = run_in(directory, &["check", "."]);
    assert!(checked.code == Some(0) && checked.out.starts_with(".: ok, 3 limits, 0 overrides, 1 test"), "{checked:?}");
    let ran = run_in(directory, &["test", "."]);
    assert!(ran.code == Some(0) && ran.out.contains("1 passed, 0 failed"), "{ran:?}");
    let alone = run_in(directory, &["test", "payments.yaml"]);
    assert!(alone.code == Some(0) && alone.out.contains("1 passed, 0 failed"), "{alone:?}");

    let volume = Volume::new(&[BASE, BROKEN, QUERIES]);
    let limits = volume.path().to_str().unwrap();
    let checked = run(&["check", limits]);
    assert!(checked.code == Some(1) && checked.err.contains(&format!("{limits}/payments.yaml:2:20")), "{checked:?}");
    let served = run(&Weir::arguments(&["--limits", limits]));
    assert!(served.code == Some(1) && served.err.contains(&format!("{limits}/payments.yaml:2:20")), "{served:?}");
}
