//! A start with a management server: signals while it waits for the first configuration, and mistakes in flags.

use std::io::{BufRead, BufReader, Read};
use std::process::{ChildStderr, Stdio};

use super::management_server::ManagementServer;
use crate::support::binary;
use crate::support::process::{Process, finish};
use crate::support::weir::Weir;

/// Starts a process whose server is silent, and waits until it follows it.
fn waiting(server: &ManagementServer) -> (Process, BufReader<ChildStderr>) {
    let url = server.url();
    let mut command = binary::command(&Weir::arguments(&["--xds-server", &url]));
    let mut process = Process::start(command.stderr(Stdio::piped()));
    let mut log = BufReader::new(process.child.stderr.take().unwrap());
    until(&mut log, "following the management server");
    (process, log)
}

#[track_caller]
fn until(log: &mut impl BufRead, text: &str) {
    let mut read = String::new();
    while !read.contains(text) {
        assert!(log.read_line(&mut read).unwrap() > 0, "{read}");
    }
}

#[test]
fn a_signal_to_stop_ends_the_wait() {
    let server = ManagementServer::start();
    for name in ["TERM", "INT"] {
        let (mut process, mut log) = waiting(&server);
        process.signal(name);
        assert!(process.wait().success());
        let mut rest = String::new();
        log.read_to_string(&mut rest).unwrap();
        assert!(rest.contains("stopped before the listeners opened") && !rest.contains("listening"), "{rest}");
    }
}

#[test]
fn other_signals_do_not_end_a_start() {
    let server = ManagementServer::start();
    let (mut process, mut log) = waiting(&server);
    for name in ["HUP", "USR1", "USR2"] {
        process.signal(name);
    }
    until(&mut log, "ignoring SIGUSR2: this process is starting");
    until(&mut log, "listening");
    // From then on they mean what they always do.
    process.signal("TERM");
    assert!(process.wait().success());
}

#[test]
fn mistakes_in_flags_are_told_without_the_secrets_in_them() {
    let cases: [(&[&str], &str); 5] = [
        (&["--xds-server", "http://ann:s3cret@a"], "write `http://HOST:PORT`"),
        (&["--xds-server", "s3cret"], "write `http://HOST:PORT`"),
        (&["--xds-server", "http://a", "--xds-header", "authorization s3cret"], "write `name: value`"),
        (&["--xds-server", "http://a", "--xds-header", "a: s3cret\u{1}"], "the value of `a` has characters"),
        (&["--xds-server", "http://a", "--xds-header", "a-bin: s3cret!"], "the value of `a-bin` is not base64"),
    ];
    for (flags, expected) in cases {
        let finished = finish(&mut binary::command(&Weir::arguments(flags)));
        assert_eq!(finished.code, Some(1), "{flags:?}: {}", finished.text());
        assert!(finished.err.contains(expected) && !finished.text().contains("s3cret"), "{}", finished.text());
    }
}
