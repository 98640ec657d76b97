//! Hand-over to a new process, and sockets from systemd: no connection fails and no request is lost.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use crate::support::binary;
use crate::support::process::{Process, finish, kill};
use crate::support::server::WIDE;
use crate::support::weir::Weir;
use crate::support::wire::Wire;
use crate::support::{PATIENCE, becomes, eventually};

/// Runs the binary as `weir` in the rules' directory, where a test can replace it.
fn linked(flags: &[&str]) -> Weir {
    Weir::launch(WIDE, |directory| {
        let link = directory.join("weir");
        symlink(binary::PATH, &link).unwrap();
        let mut command = Command::new(link);
        command.args(Weir::arguments(flags));
        command
    })
}

/// Replaces the binary of [`linked`] with a script.
fn replace(weir: &Weir, script: &str) {
    let (link, file) = (weir.directory().join("weir"), weir.directory().join("script"));
    std::fs::write(&file, format!("#!/bin/sh\n{script}\n")).unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::rename(&file, &link).unwrap();
}

/// Sends one request on a new connection.
fn ask(address: SocketAddr) -> Result<(), String> {
    let mut stream = TcpStream::connect(address).map_err(|error| format!("connect: {error}"))?;
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").map_err(|error| format!("{error}"))?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).map_err(|error| format!("read: {error}"))?;
    let answer = String::from_utf8_lossy(&answer);
    if answer.starts_with("HTTP/1.1 200 ") { Ok(()) } else { Err(format!("instead of 200: {answer}")) }
}

/// Sends requests on several threads during `work`, on new and on kept connections. None may fail.
#[track_caller]
pub(crate) fn under_load(address: SocketAddr, work: impl FnOnce(&AtomicUsize)) {
    let (done, answered) = (AtomicBool::new(false), AtomicUsize::new(0));
    let failures: Vec<String> = thread::scope(|scope| {
        let client = || {
            let mut failures = Vec::new();
            while !done.load(Ordering::Relaxed) {
                match ask(address) {
                    Ok(()) => drop(answered.fetch_add(1, Ordering::Relaxed)),
                    Err(failure) => failures.push(failure),
                }
            }
            failures
        };
        let kept = || {
            while !done.load(Ordering::Relaxed) {
                let mut wire = Wire::connect(address);
                // After a `close`, the client connects again.
                while !done.load(Ordering::Relaxed) {
                    let response = wire.get("/");
                    assert_eq!(response.status(), 200);
                    answered.fetch_add(1, Ordering::Relaxed);
                    if response.header("connection") == Some("close") {
                        break;
                    }
                }
            }
            Vec::new()
        };
        let mut clients: Vec<_> = (0..3).map(|_| scope.spawn(client)).collect();
        clients.extend((0..2).map(|_| scope.spawn(kept)));
        let end = End(&done);
        work(&answered);
        drop(end);
        clients.into_iter().flat_map(|client| client.join().unwrap()).collect()
    });
    assert!(failures.is_empty(), "{} of {answered:?} failed: {:?}", failures.len(), failures.first());
}

/// Ends the load even if `work` panics; the threads would wait forever otherwise.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Waits for more answered requests.
pub(crate) fn until_more(answered: &AtomicUsize, more: usize) {
    let wanted = answered.load(Ordering::Relaxed) + more;
    eventually("requests are answered", || match answered.load(Ordering::Relaxed) {
        count if count >= wanted => Ok(()),
        count => Err(count),
    });
}

#[test]
fn no_request_is_lost_when_processes_take_over_with_other_numbers_of_workers() {
    let mut weir = Weir::serve_with(WIDE, &["--config", "weir.yaml"], |_, directory| {
        std::fs::write(directory.join("weir.yaml"), "workers: 3\n").unwrap();
    });
    under_load(weir.proxy, |answered| {
        for workers in [1, 4, 2] {
            until_more(answered, 100);
            let config = weir.directory().join("weir.yaml");
            std::fs::write(config, format!("workers: {workers}\n")).unwrap();
            let successor = weir.hand_over();
            until_more(answered, 100);
            assert_eq!(weir.admin("/readyz").status(), 200, "the admin listener is the new process'");
            weir.until_logged(&format!("\"workers\":{workers}}}"));
            assert!(kill("0", successor));
        }
        assert_eq!(weir.wait().code(), Some(0), "the first process has drained and ended");
    });
    let last = weir.successors()[2];
    assert!(kill("TERM", last));
    eventually("the port is free", || match TcpStream::connect(weir.proxy) {
        Ok(_) => Err(weir.log()),
        Err(_) => Ok(()),
    });
}

#[test]
fn what_runs_is_finished_by_the_process_that_began_it() {
    let mut weir = linked(&["--workers", "1"]);
    let mut busy = weir.connect();
    busy.send("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\nx");
    becomes("the request is under way", 1, || weir.metric("weir_http_requests_in_flight"));
    weir.hand_over();
    assert_eq!(weir.metric("weir_http_requests_in_flight"), 0, "these are the new process' metrics");
    busy.send("y");
    let response = busy.response();
    assert_eq!((response.status(), response.header("connection")), (200, Some("close")));
    drop(busy);
    assert_eq!(weir.wait().code(), Some(0));
    assert_eq!(weir.get("/", &[]).status(), 200);
}

#[test]
fn an_admin_connection_that_is_kept_does_not_say_that_the_old_process_drains() {
    let weir = linked(&["--workers", "1"]);
    let mut probe = Wire::connect(weir.admin);
    assert_eq!(probe.get("/readyz").status(), 200);
    weir.hand_over();
    probe.expect_end();
    assert_eq!(weir.admin("/readyz").status(), 200);
}

/// Asks for a hand-over that must fail for this reason, and checks that the process continues.
#[track_caller]
fn check_failure(weir: &Weir, reason: &str) {
    weir.signal("USR2");
    weir.until_logged(reason);
    weir.until_logged("this process goes on");
    under_load(weir.proxy, |answered| until_more(answered, 20));
    assert_eq!(weir.admin("/readyz").status(), 200);
}

#[test]
fn a_new_process_that_does_not_start_changes_nothing() {
    let weir = linked(&["--workers", "1"]);
    std::fs::write(weir.limits_file(), "limits: { L: { by: global, burst: 0 } }").unwrap();
    check_failure(&weir, "exit status: 1");
    std::fs::write(weir.limits_file(), WIDE).unwrap();
    replace(&weir, "exit 7");
    check_failure(&weir, "exit status: 7");
    std::fs::remove_file(weir.directory().join("weir")).unwrap();
    check_failure(&weir, "it cannot be started: No such file or directory");
    // A working binary at the same path.
    symlink(binary::PATH, weir.directory().join("weir")).unwrap();
    weir.hand_over();
    assert_eq!(weir.get("/", &[]).status(), 200);
}

#[test]
fn the_binary_that_is_now_at_the_path_takes_over() {
    let weir = linked(&["--workers", "1"]);
    replace(&weir, &format!("touch started; exec {} \"$@\"", binary::PATH));
    weir.hand_over();
    assert!(weir.directory().join("started").exists());
    assert_eq!(weir.get("/", &[]).status(), 200);
}

#[test]
fn a_second_wish_starts_no_second_process_and_the_end_waits_for_none() {
    let mut weir = linked(&["--workers", "1"]);
    replace(&weir, "echo $$ > started; exec sleep 60");
    weir.signal("USR2");
    let started = weir.directory().join("started");
    let successor: u32 =
        eventually("the new process is there", || std::fs::read_to_string(&started).unwrap_or_default().trim().parse());
    weir.signal("USR2");
    weir.until_logged("a new process is already starting");
    assert_eq!(weir.get("/", &[]).status(), 200);
    weir.signal("TERM");
    assert_eq!(weir.wait().code(), Some(0));
    assert!(!kill("0", successor), "the new process that was not ready has outlived the old one");
}

#[test]
fn a_unix_socket_is_handed_over_like_any_other() {
    // `Weir` expects TCP, so it cannot start this one.
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("weir.sock");
    let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let admin = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = admin.local_addr().unwrap();
    std::fs::write(directory.path().join("limits.yaml"), WIDE).unwrap();
    let mut command = activated(&["--workers", "2"], "proxy:admin", vec![listener.into(), admin.into()]);
    let process = Process::start(command.current_dir(directory.path()).stderr(Stdio::null()));
    drop(command);
    eventually("it serves", || match TcpStream::connect(address) {
        Ok(_) => Ok(()),
        Err(error) => Err(error),
    });
    let mut stream = std::os::unix::net::UnixStream::connect(&socket).unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    drop(process);
}

/// A command with systemd's socket activation.
fn activated(flags: &[&str], names: &str, descriptors: Vec<OwnedFd>) -> Command {
    binary::with_sockets(&binary::command(&Weir::arguments(flags)), names, descriptors)
}

fn bound() -> (OwnedFd, SocketAddr) {
    // A blocking socket, as systemd's are.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    (listener.into(), address)
}

#[test]
fn sockets_of_systemd_are_taken_and_handed_on() {
    let (descriptors, mut addresses): (Vec<_>, Vec<_>) = [bound(), bound(), bound()].into_iter().unzip();
    let admin = addresses.pop().unwrap();
    // The connection waits until the process accepts.
    let early = thread::spawn({
        let address = addresses[1];
        move || ask(address)
    });
    let supervisor = tempfile::tempdir().unwrap();
    let notify = supervisor.path().join("notify");
    let states = UnixDatagram::bind(&notify).unwrap();
    states.set_read_timeout(Some(PATIENCE)).unwrap();
    let weir = Weir::launch(WIDE, |_| {
        let mut command = activated(&["--workers", "2"], "proxy:proxy:admin", descriptors);
        command.env("NOTIFY_SOCKET", &notify);
        command
    });
    let state = || {
        let mut state = [0; 64];
        let length = states.recv(&mut state).unwrap();
        String::from_utf8_lossy(&state[..length]).into_owned()
    };
    assert_eq!(early.join().unwrap(), Ok(()));
    assert_eq!((weir.proxy, weir.admin), (addresses[0], admin));
    assert_eq!(state(), "READY=1");
    let successor = weir.hand_over();
    assert_eq!(state(), format!("MAINPID={successor}"));
    for address in addresses {
        under_load(address, |answered| until_more(answered, 20));
    }
    assert_eq!(weir.admin("/readyz").status(), 200);
}

#[test]
fn sockets_for_another_process_are_not_taken() {
    let (descriptor, address) = bound();
    let weir = Weir::launch(WIDE, |_| {
        // `env` replaces the variable that names the process itself.
        let mut other = Command::new("env");
        other.args(["LISTEN_PID=1", binary::PATH]).args(Weir::arguments(&[]));
        binary::with_sockets(&other, "proxy", vec![descriptor])
    });
    assert_ne!(weir.proxy, address);
}

#[test]
fn sockets_that_are_no_good_are_an_error_at_the_start() {
    let connected = || {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        OwnedFd::from(TcpStream::connect(listener.local_addr().unwrap()).unwrap())
    };
    let file = || OwnedFd::from(std::fs::File::open(Path::new("/dev/null")).unwrap());
    for (names, descriptor, part) in [
        ("weir.socket", bound().0, "FileDescriptorName=proxy"),
        ("proxy:admin", bound().0, "LISTEN_FDS says 1 and LISTEN_FDNAMES has 2 names"),
        ("proxy", connected(), "does not listen"),
        ("proxy", file(), "neither TCP nor a unix stream socket"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("limits.yaml"), WIDE).unwrap();
        let serve = finish(activated(&[], names, vec![descriptor]).current_dir(folder.path()));
        assert_eq!(serve.code, Some(3), "{}", serve.err);
        assert!(serve.err.contains(part), "{}", serve.err);
    }
}
