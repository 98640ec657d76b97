//! The units in `systemd/`: systemd's own checks, and their command lines, run as systemd runs them.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Command;

use socket2::{Domain, Socket, Type};

use crate::support::binary;
use crate::support::process::finish;
use crate::support::programs::repository;
use crate::support::server::WIDE;
use crate::support::weir::Weir;
use crate::support::wire::Wire;
use crate::support::{PATIENCE, eventually};

/// The threshold for `systemd-analyze security` in tenths: 0 is safest, 100 is no protection.
const EXPOSURE: &str = "--threshold=13";

fn unit(name: &str) -> String {
    fs::read_to_string(repository().join("systemd").join(name)).unwrap()
}

/// All values of a key in order.
fn values<'a>(unit: &'a str, key: &str) -> Vec<&'a str> {
    unit.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix('=')).collect()
}

#[track_caller]
fn value<'a>(unit: &'a str, key: &str) -> &'a str {
    let [value] = values(unit, key)[..] else { panic!("{key} does not come once in\n{unit}") };
    value
}

/// Writes the units into a directory, with this machine's binary.
fn units(directory: &Path, change: impl Fn(String) -> String) -> [PathBuf; 2] {
    ["weir.service", "weir.socket"].map(|name| {
        let path = directory.join(name);
        fs::write(&path, change(unit(name).replace("/usr/bin/weir", binary::PATH))).unwrap();
        path
    })
}

fn analyze(words: &[&str], units: &[PathBuf]) -> (bool, String) {
    let finished = finish(Command::new("systemd-analyze").args(words).args(units));
    (finished.code == Some(0), finished.text())
}

#[test]
fn systemd_finds_nothing_wrong_with_the_units() {
    let folder = tempfile::tempdir().unwrap();
    let verify = ["verify", "--man=no"];
    assert_eq!(analyze(&verify, &units(folder.path(), |text| text)), (true, String::new()));
    // It would report a mistake.
    let (_, said) = analyze(&verify, &units(folder.path(), |text| text.replace("ProtectHome=", "ProtectHouse=")));
    assert!(said.contains("'ProtectHouse'"), "{said}");
}

#[test]
fn the_service_is_exposed_to_little() {
    let folder = tempfile::tempdir().unwrap();
    let security = ["security", "--offline=true", "--no-pager", EXPOSURE];
    let [service, _] = units(folder.path(), |text| text);
    let (passed, said) = analyze(&security, &[service]);
    assert!(passed, "{said}");
    let [service, _] = units(folder.path(), |text| text.replace("PrivateUsers=yes\n", ""));
    assert!(!analyze(&security, &[service]).0, "the threshold is too high to notice anything");
}

/// A command line of the service, with a directory in place of `/etc/weir`.
fn command(line: &str, directory: &Path, main: u32) -> Command {
    let line = line.replace("/etc/weir", directory.to_str().unwrap()).replace("${MAINPID}", &main.to_string());
    let line = line.replace("$MAINPID", &main.to_string()).replace("/usr/bin/weir", binary::PATH);
    let mut words = line.split(' ');
    let mut command = Command::new(words.next().unwrap());
    command.args(words).current_dir(directory);
    command
}

/// Writes the sample configuration with free ports, and the rules next to it.
fn configure(directory: &Path) {
    let mut text = unit("weir.yaml");
    for (from, to) in [
        ("http://127.0.0.1:3000", "echo"),
        ("0.0.0.0:8080", "127.0.0.1:0"),
        ("admin: 127.0.0.1:9090", "admin: 127.0.0.1:0"),
    ] {
        assert_eq!(text.matches(from).count(), 1, "{from}");
        text = text.replace(from, to);
    }
    fs::write(directory.join("weir.yaml"), text).unwrap();
}

/// The socket that systemd listens on.
struct Supervisor(UnixDatagram);

impl Supervisor {
    fn at(path: &Path) -> Self {
        let states = UnixDatagram::bind(path).unwrap();
        states.set_read_timeout(Some(PATIENCE)).unwrap();
        Self(states)
    }

    fn next(&self) -> String {
        let mut state = [0; 64];
        let length = self.0.recv(&mut state).unwrap();
        String::from_utf8_lossy(&state[..length]).into_owned()
    }
}

#[test]
fn the_service_starts_reloads_hands_over_and_stops_as_its_unit_says() {
    let service = unit("weir.service");
    assert_eq!((value(&service, "Type"), value(&service, "WorkingDirectory")), ("notify", "/etc/weir"));
    let folder = tempfile::tempdir().unwrap();
    let notify = folder.path().join("notify");
    let supervisor = Supervisor::at(&notify);
    let mut weir = Weir::launch(WIDE, |directory| {
        configure(directory);
        let mut command = command(value(&service, "ExecStart"), directory, 0);
        command.env("NOTIFY_SOCKET", &notify);
        command
    });
    assert_eq!(supervisor.next(), "READY=1");
    assert_eq!(weir.get("/", &[]).status(), 200);

    let run_all = |key: &str, main| {
        let mut lines = values(&service, key).into_iter();
        lines.all(|line| finish(&mut command(line, weir.directory(), main)).code == Some(0))
    };
    fs::write(weir.limits_file(), WIDE.replace("Wide", "Wider")).unwrap();
    assert!(run_all("ExecReload", weir.id()));
    eventually("the new rules are in force", || match weir.get("/", &[]) {
        answer if answer.header("ratelimit").is_some_and(|left| left.starts_with("\"Wider\"")) => Ok(()),
        answer => Err(answer),
    });
    fs::write(weir.limits_file(), "limits: { L: { burst: 0 } }").unwrap();
    assert!(!run_all("ExecReload", weir.id()), "a broken file is rejected");
    fs::write(weir.limits_file(), WIDE).unwrap();

    let successor = weir.hand_over();
    assert_eq!(supervisor.next(), format!("MAINPID={successor}"));
    assert!(run_all("ExecStop", successor), "the stop waits for the successor, which is not its child");
    assert_eq!(supervisor.next(), "STOPPING=1");
    assert!(TcpStream::connect(weir.proxy).is_err());
    assert_eq!(weir.wait().code(), Some(0));
}

#[test]
fn the_service_takes_the_socket_of_its_socket_unit() {
    let socket = unit("weir.socket");
    let both = Socket::new(Domain::IPV6, Type::STREAM, None).unwrap();
    both.set_only_v6(value(&socket, "BindIPv6Only") != "both").unwrap();
    both.set_reuse_port(value(&socket, "ReusePort") == "yes").unwrap();
    both.bind(&"[::]:0".parse::<SocketAddr>().unwrap().into()).unwrap();
    both.listen(value(&socket, "Backlog").parse().unwrap()).unwrap();
    let port = both.local_addr().unwrap().as_socket().unwrap().port();
    let weir = Weir::launch("limits: { Each: { by: ip, burst: 1000 } }", |directory| {
        configure(directory);
        // systemd names the process that it starts for the socket.
        let service = command(value(&unit("weir.service"), "ExecStart"), directory, 0);
        binary::with_sockets(&service, value(&socket, "FileDescriptorName"), vec![both.into()])
    });
    assert_eq!(weir.proxy.port(), port);
    let mut left = Vec::new();
    for address in [format!("127.0.0.1:{port}"), format!("[::1]:{port}")] {
        let answer = Wire::connect(address.parse().unwrap()).get("/");
        left.push(answer.header("ratelimit").unwrap_or_default().to_owned());
    }
    assert_eq!(left, ["\"Each\";r=999", "\"Each\";r=999"], "they are two clients");
}
