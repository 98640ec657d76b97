//! `weir simulate`: what limits would have done to the requests of a log.

mod against;
mod agreement;
mod coverage;
mod curves;
mod formats;
mod lacking;
mod lists;
mod model;
mod newcomer;
mod page;
mod public;
mod responses;
mod rows;
mod stopped;
mod suggest;
mod unread;
mod wrapped;

use std::path::Path;

use crate::support::binary::run_in;
use crate::support::process::Finished;

/// A directory with rules and a log.
fn directory(limits: &str, log: &(impl AsRef<[u8]> + ?Sized)) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("limits.yaml"), limits).unwrap();
    std::fs::write(directory.path().join("access.log"), log).unwrap();
    directory
}

/// The report behind its first lines: the share of lines that were decided, and what the log's instants do not tell.
#[track_caller]
fn behind_coverage(report: &str) -> &str {
    let (coverage, rest) = report.split_once('\n').unwrap();
    assert!(coverage.ends_with(" decided"), "{report}");
    if rest.starts_with("the log has ") { rest.split_once('\n').unwrap().1 } else { rest }
}

fn simulate(directory: &Path, flags: &[&str]) -> Finished {
    run_in(directory, &[&["simulate", "access.log"], flags].concat())
}
