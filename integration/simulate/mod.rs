//! `weir simulate`: what limits would have done to the requests of a log.

mod against;
mod agreement;
mod formats;
mod lacking;
mod page;
mod rows;
mod unread;

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

fn simulate(directory: &Path, flags: &[&str]) -> Finished {
    run_in(directory, &[&["simulate", "access.log"], flags].concat())
}
