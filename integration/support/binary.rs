//! The binary `weir` and its commands that end.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Command;

use command_fds::{CommandFdExt, FdMapping};

use super::process::{Finished, finish};
use super::programs::repository;
use super::weir::Weir;

pub(crate) const PATH: &str = env!("CARGO_BIN_EXE_weir");

pub(crate) fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(PATH);
    command.args(arguments);
    command
}

/// Runs the binary in the root of the repository.
#[track_caller]
pub(crate) fn run(arguments: &[&str]) -> Finished {
    run_in(repository(), arguments)
}

/// Runs the binary in a directory.
#[track_caller]
pub(crate) fn run_in(directory: &Path, arguments: &[&str]) -> Finished {
    finish(command(arguments).current_dir(directory))
}

/// Runs a `weir serve` with these rules that must not start.
#[track_caller]
pub(crate) fn fails_to_serve(limits: &str, flags: &[&str]) -> Finished {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("limits.yaml"), limits).unwrap();
    run_in(directory.path(), &Weir::arguments(flags))
}

/// A command with systemd's socket activation: descriptors from 3 on, and the process' own id in a variable.
pub(crate) fn with_sockets(command: &Command, names: &str, sockets: Vec<OwnedFd>) -> Command {
    let mut started = Command::new("sh");
    started.args(["-c", "LISTEN_PID=$$ exec \"$@\"", "sh"]).arg(command.get_program()).args(command.get_args());
    started.env("LISTEN_FDS", sockets.len().to_string()).env("LISTEN_FDNAMES", names);
    let mappings = (3..).zip(sockets).map(|(child_fd, parent_fd)| FdMapping { parent_fd, child_fd });
    started.fd_mappings(mappings.collect()).unwrap();
    started
}
