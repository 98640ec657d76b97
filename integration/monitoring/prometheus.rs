//! A real Prometheus on a free port, and promtool.

use std::fmt::Write as _;
use std::fs;
use std::net::SocketAddr;
use std::process::Stdio;

use serde_json::Value;
use tempfile::TempDir;

use crate::support::eventually;
use crate::support::process::{Process, on_free_port, succeed};
use crate::support::programs::prometheus;
use crate::support::wire::Wire;

/// A server that scrapes once and evaluates twice per second. It is killed when this is dropped.
pub(super) struct Prometheus {
    address: SocketAddr,
    _process: Process,
    _directory: TempDir,
}

impl Prometheus {
    /// Scrapes the admin listeners of these jobs and evaluates these rules.
    pub(super) fn start(jobs: &[(&str, SocketAddr)], rules: &str) -> Self {
        on_free_port("prometheus", |address| Self::listen(jobs, rules, address))
    }

    fn listen(jobs: &[(&str, SocketAddr)], rules: &str, address: SocketAddr) -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        let file = |name: &str| directory.path().join(name);
        let mut configuration = "global: { scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 500ms }\n\
                                 rule_files: [rules.yaml]\nscrape_configs:\n"
            .to_owned();
        for (job, address) in jobs {
            writeln!(configuration, "- {{ job_name: {job}, static_configs: [{{ targets: [\"{address}\"] }}] }}")
                .unwrap();
        }
        fs::write(file("prometheus.yaml"), configuration).unwrap();
        fs::write(file("rules.yaml"), rules).unwrap();
        let mut command = prometheus("prometheus");
        command
            .arg(format!("--config.file={}", file("prometheus.yaml").display()))
            .arg(format!("--storage.tsdb.path={}", file("data").display()))
            .arg(format!("--web.listen-address={address}"))
            .current_dir(directory.path())
            .stdout(Stdio::null())
            .stderr(fs::File::create(file("log")).unwrap());
        let process = Process::listening(&mut command, address)?;
        eventually("prometheus is ready", || match Wire::connect(address).get("/-/ready").status() {
            200 => Ok(()),
            _ => Err(fs::read_to_string(file("log")).unwrap()),
        });
        Some(Self { address, _process: process, _directory: directory })
    }

    /// The current series of a query, with labels and value.
    #[track_caller]
    pub(super) fn query(&self, query: &str) -> Vec<(Value, f64)> {
        let result = self.ask(&format!("/api/v1/query?query={}", encoded(query)))["result"].take();
        let Value::Array(series) = result else { panic!("{query} gives no vector: {result}") };
        let value = |series: &Value| series["value"][1].as_str().unwrap().parse().unwrap();
        series.into_iter().map(|mut series| (series["metric"].take(), value(&series))).collect()
    }

    /// Repeats a query until it has a finite value, with `before` before each attempt.
    #[track_caller]
    pub(super) fn has_data(&self, query: &str, mut before: impl FnMut()) {
        eventually(query, || {
            before();
            let series = self.query(query);
            if series.iter().any(|(_, value)| value.is_finite()) { Ok(()) } else { Err(series) }
        });
    }

    /// The loaded rules.
    #[track_caller]
    pub(super) fn rules(&self) -> Vec<Value> {
        let mut groups = self.ask("/api/v1/rules")["groups"].take();
        let groups = groups.as_array_mut().unwrap();
        groups.iter_mut().flat_map(|group| group["rules"].as_array().unwrap().clone()).collect()
    }

    /// The firing alerts, each with its name and its job, which may be empty.
    #[track_caller]
    pub(super) fn firing(&self) -> Vec<(String, String)> {
        let alerts = self.ask("/api/v1/alerts")["alerts"].take();
        let text = |alert: &Value, label: &str| alert["labels"][label].as_str().unwrap_or_default().to_owned();
        let firing = alerts.as_array().unwrap().iter().filter(|alert| alert["state"] == "firing");
        firing.map(|alert| (text(alert, "alertname"), text(alert, "job"))).collect()
    }

    #[track_caller]
    fn ask(&self, path: &str) -> Value {
        let answer = Wire::connect(self.address).get(path);
        let mut answer: Value = serde_json::from_slice(&answer.body).unwrap();
        assert_eq!(answer["status"], "success", "{path}: {answer}");
        answer["data"].take()
    }
}

/// Runs `promtool`, which must succeed, and returns its output.
#[track_caller]
pub(super) fn promtool(arguments: &[&str]) -> String {
    succeed(prometheus("promtool").args(arguments))
}

/// A query, percent-encoded.
fn encoded(query: &str) -> String {
    query.bytes().fold(String::new(), |mut text, byte| {
        write!(text, "%{byte:02X}").unwrap();
        text
    })
}
