//! The dashboard and the alerts of `helm/weir` and their metrics, on a real Prometheus that scrapes real processes.

mod alerts;
mod dashboard;
mod live;
mod load;
mod names;
mod prometheus;
mod series;

use std::path::{Path, PathBuf};

fn chart(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("helm/weir").join(path)
}

fn read(path: &str) -> String {
    std::fs::read_to_string(chart(path)).unwrap()
}
