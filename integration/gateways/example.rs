//! An example of `integration/examples` in its gateway, unchanged but for ports and a test's changes.

use std::ffi::OsString;
use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;

use tempfile::TempDir;

use crate::support::process::{Process, on_free_port};
use crate::support::programs::{Program, repository};

/// A text in an example and its replacement. It must occur once.
pub(super) type Change = (&'static str, &'static str);

/// The ports in a test. The examples have 8000 (gateway), 3000 (application), 9001 (gRPC), 9002 (HTTP check) and 9003
/// (SPOE).
#[derive(Clone, Copy, Debug)]
pub(super) struct Ports {
    pub(super) application: u16,
    /// The listener that the gateway asks.
    pub(super) listener: u16,
}

/// A running gateway. It is killed when this is dropped. A failed test shows its log.
pub(super) struct Example {
    pub(super) address: SocketAddr,
    directory: TempDir,
    _process: Process,
}

pub(super) fn examples() -> PathBuf {
    repository().join("integration/examples")
}

/// An example's file: name and text.
type File = (OsString, String);

/// Applies changes, each of which must be possible.
#[track_caller]
fn change(files: &mut [File], changes: &[Change]) {
    for (from, to) in changes {
        let places: usize = files.iter().map(|(_, text)| text.matches(from).count()).sum();
        assert_eq!(places, 1, "`{from}` must be there once in:\n{files:?}");
        for (_, text) in &mut *files {
            *text = text.replacen(from, to, 1);
        }
    }
}

impl Example {
    /// Starts the example and waits until it listens.
    #[track_caller]
    pub(super) fn start(program: Program, directory: &str, changes: &[Change], ports: Ports) -> Self {
        on_free_port(&format!("{program:?} with {directory} and {changes:?}"), |address| {
            Self::listen(program, directory, changes, ports, address)
        })
    }

    #[track_caller]
    fn listen(program: Program, example: &str, changes: &[Change], ports: Ports, address: SocketAddr) -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().to_str().unwrap();
        let files = fs::read_dir(examples().join(example)).unwrap().map(Result::unwrap);
        let files = files.filter(|file| file.file_name() != "README.md");
        let mut files: Vec<File> =
            files.map(|file| (file.file_name(), fs::read_to_string(file.path()).unwrap())).collect();
        change(&mut files, changes);
        change(&mut files, surroundings(program));
        for (name, text) in files {
            let text = text.replace("$directory", path);
            fs::write(directory.path().join(name), move_ports(&text, address.port(), ports)).unwrap();
        }
        let log = fs::File::create(directory.path().join("log")).unwrap();
        let mut command = program.command(&directory.path().join(file(program)));
        command.stdout(log.try_clone().unwrap()).stderr(log);
        let process = Process::listening(&mut command, address);
        if process.is_none() {
            show_log(&directory);
        }
        Some(Self { address, directory, _process: process? })
    }
}

impl Drop for Example {
    fn drop(&mut self) {
        if std::thread::panicking() {
            show_log(&self.directory);
        }
    }
}

#[expect(clippy::print_stderr, reason = "a failed test shows the logs of its programs")]
fn show_log(directory: &TempDir) {
    eprintln!("the gateway's log:\n{}", fs::read_to_string(directory.path().join("log")).unwrap_or_default());
}

/// The example's main file.
fn file(program: Program) -> &'static str {
    match program {
        Program::Envoy => "envoy.yaml",
        Program::Nginx => "nginx.conf",
        Program::Haproxy => "haproxy.cfg",
        Program::Caddy => "Caddyfile",
    }
}

/// Keeps the gateway on loopback and in its directory.
fn surroundings(program: Program) -> &'static [Change] {
    match program {
        Program::Envoy => &[("address: 0.0.0.0, port_value: 8000", "address: 127.0.0.1, port_value: 8000")],
        Program::Nginx => &[
            ("        listen 8000", "        listen 127.0.0.1:8000"),
            // Without a master there is only one process to kill.
            ("events {}", "daemon off; master_process off; pid $directory/pid; error_log stderr; events {}"),
            (
                "http {\n",
                "http {\naccess_log off; client_body_temp_path $directory/body; proxy_temp_path $directory/proxy; \
                 fastcgi_temp_path $directory/fastcgi; uwsgi_temp_path $directory/uwsgi; \
                 scgi_temp_path $directory/scgi;\n",
            ),
        ],
        Program::Haproxy => &[("bind :8000", "bind 127.0.0.1:8000")],
        Program::Caddy => &[("\tservers {", "\tadmin off\n\tservers {"), (":8000 {", ":8000 {\n\tbind 127.0.0.1")],
    }
}

/// Replaces the example's ports where they stand as words.
fn move_ports(text: &str, gateway: u16, ports: Ports) -> String {
    let moves = [
        (8000, gateway),
        (3000, ports.application),
        (9001, ports.listener),
        (9002, ports.listener),
        (9003, ports.listener),
    ];
    let mut moved = String::new();
    let mut rest = text;
    while let Some(start) = rest.find(|character: char| character.is_ascii_digit()) {
        let digits =
            rest[start..].split(|character: char| !character.is_ascii_alphanumeric()).next().unwrap_or_default();
        moved.push_str(&rest[..start]);
        match moves.iter().find(|(port, _)| port.to_string() == digits) {
            Some((_, port)) => moved.push_str(&port.to_string()),
            None => moved.push_str(digits),
        }
        rest = &rest[start + digits.len()..];
    }
    moved + rest
}
