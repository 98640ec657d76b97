//! The dashboard and the alerts for processes under load, some with faults.

use std::collections::BTreeSet;
use std::fs;
use std::net::TcpStream;
use std::path::Path;
use std::time::{Duration, SystemTime};

use rcgen::{CertificateParams, KeyPair};
use regex::Regex;

use super::load::{Loaded, RULES};
use super::prometheus::Prometheus;
use super::{alerts, dashboard, names};
use crate::support::eventually;
use crate::support::process::free_port;
use crate::support::programs::installed;
use crate::support::redis::RedisServer;
use crate::support::upstream::Upstream;
use crate::support::weir::Weir;

/// Longer than the 200 ms that a caller of `ext_authz` waits, shorter than what costs Redis its connection.
const SLOW_MILLIS: &str = "230";

/// Writes a certificate that expires in some days, and its key.
fn write_certificate(directory: &Path, days: u64) -> [String; 2] {
    let mut params = CertificateParams::new(["localhost".to_owned()]).unwrap();
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    params.not_after = rcgen::date_time_ymd(1970, 1, 1) + now + Duration::from_hours(24 * days);
    let key = KeyPair::generate().unwrap();
    let (certificate, key) = (params.self_signed(&key).unwrap().pem(), key.serialize_pem());
    [("certificate.pem", certificate), ("key.pem", key)].map(|(name, text)| {
        let path = directory.join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    })
}

#[test]
fn every_panel_has_data_of_processes_under_load() {
    let (redis, upstream, files) = (RedisServer::plain(), Upstream::saying("hello"), tempfile::tempdir().unwrap());
    let upstream = format!("http://{}", upstream.address);
    let [certificate, key] = write_certificate(files.path(), 90);
    let mut redis_backed = Loaded::serve(&["--store", &redis.url(), "--upstream", &upstream]);
    let mut in_memory = Loaded::serve(&["--workers", "1"]);
    let with_tls = Weir::serve(RULES, &["--workers", "1", "--tls-cert", &certificate, "--tls-key", &key]);
    let jobs =
        [("weir-redis", redis_backed.weir.admin), ("weir-memory", in_memory.weir.admin), ("weir-tls", with_tls.admin)];
    let prometheus = Prometheus::start(&jobs, &alerts::impatient());
    let pages = redis_backed.page() + &in_memory.page() + with_tls.admin("/metrics").text();
    for mention in dashboard::mentions() {
        names::check(&mention, &pages);
    }
    for query in dashboard::queries() {
        names::check(&query.expression, &pages);
        let what = format!("{} # {}", query.expression, query.panel);
        prometheus.has_data(&what, || {
            redis_backed.round();
            in_memory.round();
        });
    }
    // After the start has settled, no alert fires. On a busy machine decisions are late indeed.
    eventually("no alert fires", || match prometheus.firing() {
        firing if firing.iter().all(|(name, _)| name == "WeirDecisionsLate") => Ok(()),
        firing => Err(firing),
    });
}

/// Alerts that no fault here causes: nothing panics, exhausts the memory or loses a report that nobody waits for, and one needs a day
/// of data. Their expressions must have data.
const ONLY_COMPARED: [&str; 4] =
    ["WeirMemoryNearLimit", "WeirPanicked", "WeirDenialsUnusual", "WeirStoreReportsDropped"];

/// The alerts that have fired, each with its job.
struct Watch {
    prometheus: Prometheus,
    fired: BTreeSet<String>,
}

impl Watch {
    /// Repeats a cause until the alert fires.
    #[track_caller]
    fn fires(&mut self, alert: &str, job: &str, mut cause: impl FnMut()) {
        eventually(alert, || {
            cause();
            let firing = self.prometheus.firing();
            if firing.iter().any(|(name, of)| name == alert && of == job) { Ok(()) } else { Err(firing) }
        });
        self.fired.insert(alert.to_owned());
    }

    #[track_caller]
    fn ends(&self, alert: &str) {
        eventually(alert, || match self.prometheus.firing() {
            firing if firing.iter().all(|(name, _)| name != alert) => Ok(()),
            firing => Err(firing),
        });
    }
}

#[test]
fn alerts_fire_on_real_faults() {
    let (mut redis, files) = (RedisServer::plain(), tempfile::tempdir().unwrap());
    let [certificate, key] = write_certificate(files.path(), 5);
    let gone = format!("http://127.0.0.1:{}", free_port());
    let mut limited = Loaded::serve(&["--store", &redis.url()]);
    let well = Weir::serve(RULES, &["--workers", "1"]);
    let small = Weir::serve(
        "limits: { Ids: { by: { header: x-id }, burst: 5, review_by: 2020-01-31 } }",
        &["--workers", "1", "--max-keys", "16", "--max-connections", "2", "--access-log", "/dev/full"],
    );
    let url = redis.url();
    let store = ["--workers", "1", "--store", &url, "--store-queue", "1"];
    let crowded = Weir::serve("limits: { Wide: { by: global, burst: 1000000 } }", &store);
    let flags = ["--workers", "1", "--upstream", &gone, "--tls-cert", &certificate, "--tls-key", &key];
    let cut_off = Weir::serve("limits: {}", &flags);
    let jobs = [
        ("weir-limited", limited.weir.admin),
        ("weir-well", well.admin),
        ("weir-small", small.admin),
        ("weir-crowded", crowded.admin),
        ("weir-cut-off", cut_off.admin),
    ];
    let mut watch = Watch { prometheus: Prometheus::start(&jobs, &alerts::impatient()), fired: BTreeSet::new() };

    // Redis answers late, then not at all, then again.
    for listener in ["rate_limit", "check"] {
        let late = format!("ALERTS{{alertname=\"WeirDecisionsLate\", alertstate=\"firing\", listener=\"{listener}\"}}");
        watch.prometheus.has_data(&late, || {
            redis.cli(&["CLIENT", "PAUSE", SLOW_MILLIS]);
            if listener == "check" { limited.check() } else { limited.limit() }
        });
    }
    watch.fires("WeirDecisionsLate", "weir-limited", || {});
    redis.kill();
    for alert in ["WeirStoreUnavailable", "WeirFailsOpen", "WeirFailsClosed"] {
        watch.fires(alert, "weir-limited", || limited.round());
    }
    assert_eq!(limited.weir.metric("weir_keys"), 1, "the bucket that is kept here while Redis is away");
    redis.restart();
    watch.ends("WeirStoreUnavailable");

    // More requests than may wait.
    watch.fires("WeirOverloaded", "weir-crowded", || {
        redis.cli(&["CLIENT", "PAUSE", "100"]);
        let mut clients: Vec<_> = (0..4).map(|_| crowded.connect()).collect();
        for client in &mut clients {
            client.send("GET / HTTP/1.1\r\nhost: a.example\r\n\r\n");
        }
        for mut client in clients {
            client.response();
        }
    });

    // The rules break and are repaired.
    fs::write(limited.weir.limits_file(), "limits: { Broken: { count: much } }").unwrap();
    limited.weir.signal("HUP");
    watch.fires("WeirReloadFailed", "weir-limited", || {});
    fs::write(limited.weir.limits_file(), RULES).unwrap();
    limited.weir.signal("HUP");
    watch.ends("WeirReloadFailed");

    // No room for buckets, log lines or connections.
    let mut ids = 0;
    let mut newcomers = || {
        ids += 1;
        small.get("/", &[("x-id", &ids.to_string())]);
    };
    for alert in ["WeirKeysNearLimit", "WeirKeysOverflow", "WeirAccessLogDropped"] {
        watch.fires(alert, "weir-small", &mut newcomers);
    }
    watch.fires("WeirConnectionsRejected", "weir-small", || {
        let crowd: Vec<_> = (0..6).map(|_| TcpStream::connect(small.proxy).unwrap()).collect();
        drop(crowd);
    });

    watch.fires("WeirReviewDue", "weir-small", || {});

    // The upstream is gone, and the certificate expires soon.
    watch.fires("WeirCertificateExpires", "weir-cut-off", || {});
    let page = format!("https://{}/", cut_off.proxy);
    watch.fires("WeirUpstreamFails", "weir-cut-off", || {
        installed("curl", &["-sk", "-m", "10", "-o", "/dev/null", &page]);
    });

    // Unless a busy machine has kept it from being scraped.
    eventually("no alert fires for the healthy process", || match watch.prometheus.firing() {
        firing if firing.iter().all(|(_, job)| job != "weir-well") => Ok(()),
        firing => Err(firing),
    });
    let pages: String = [&limited.weir, &well, &small, &crowded, &cut_off]
        .map(|weir| weir.admin("/metrics").text().to_owned())
        .concat();
    let comparison = Regex::new(" ([<>]=?|==) ").unwrap();
    for rule in watch.prometheus.rules() {
        let (name, query) = (rule["name"].as_str().unwrap(), rule["query"].as_str().unwrap());
        names::check(query, &pages);
        if ONLY_COMPARED.contains(&name) {
            // With `bool` a comparison returns 0 or 1 and drops no series.
            let compared = comparison.replace(query, " $1 bool ").into_owned();
            assert_ne!(compared, query);
            watch.prometheus.has_data(&compared, || limited.round());
            watch.fired.insert(name.to_owned());
        }
    }

    // One process ends, then all.
    drop(small);
    watch.fires("WeirInstanceDown", "weir-small", || {});
    drop((limited, well, crowded, cut_off));
    watch.fires("WeirDown", "", || {});
    let all: BTreeSet<_> =
        watch.prometheus.rules().iter().map(|rule| rule["name"].as_str().unwrap().to_owned()).collect();
    assert_eq!(watch.fired, all);
}
