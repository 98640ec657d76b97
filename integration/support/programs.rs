//! Programs that are not ours: Python's of `integration/clients`, nginx, and what a test runs once.
//!
//! Nothing is skipped where one is missing: the test fails and says how to install it.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use super::eventually;
use super::redis::free_port;

/// How long a program that a test runs may take: longer than any needs on a busy machine.
const PATIENCE: Duration = Duration::from_mins(2);

/// Another process may take the port between our looking for it and nginx' binding it.
const ATTEMPTS: usize = 5;

const INSTALL: &str = "run `integration/install.sh`";

/// The root of the repository.
pub(crate) fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The Python that has the packages of `integration/clients/requirements.txt`.
fn python(program: &str) -> Command {
    let python = repository().join("target/test-venv/bin/python");
    assert!(python.is_file(), "{} is missing; {INSTALL}", python.display());
    let mut command = Command::new(python);
    command.arg(repository().join("integration/clients").join(program));
    command
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

    /// What it has said since it listens.
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

/// Runs a client of `integration/clients` to its end and returns the JSON that it printed last.
#[track_caller]
pub(crate) fn client(program: &str, arguments: &[&str]) -> Value {
    let output = run(python(program).args(arguments));
    let line = output.lines().last().unwrap_or_default();
    serde_json::from_str(line).unwrap_or_else(|error| panic!("{program} {arguments:?}: {error}: {output}"))
}

/// Runs a program that is installed to its end and returns what it printed.
#[track_caller]
pub(crate) fn installed(program: &str, arguments: &[&str]) -> String {
    run(Command::new(program).args(arguments))
}

/// As [`installed`], a program that comes with the packages of `integration/clients/requirements.txt`; it is run in the root
/// of the repository.
#[track_caller]
pub(crate) fn packaged(program: &str, arguments: &[&str]) -> String {
    let path = repository().join("target/test-venv/bin").join(program);
    assert!(path.is_file(), "{} is missing; {INSTALL}", path.display());
    run(Command::new(path).args(arguments).current_dir(repository()))
}

#[track_caller]
fn run(command: &mut Command) -> String {
    let mut child = start(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()));
    let (output, errors) = (gather(child.stdout.take().unwrap()), gather(child.stderr.take().unwrap()));
    let started = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if started.elapsed() > PATIENCE {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("{command:?} did not end within {PATIENCE:?}: {}{}", output.join().unwrap(), errors.join().unwrap());
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    let (output, errors) = (output.join().unwrap(), errors.join().unwrap());
    assert!(status.success(), "{command:?}: {status}\n{output}{errors}");
    output
}

#[track_caller]
fn start(command: &mut Command) -> Child {
    command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}; {INSTALL}"))
}

/// Reads to the end beside us, so that the program never waits for a reader.
fn gather(mut stream: impl Read + Send + 'static) -> JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// A real nginx in a directory of its own. It is killed when this is dropped.
pub(crate) struct Nginx {
    pub(crate) address: SocketAddr,
    directory: TempDir,
    child: Child,
}

impl Nginx {
    /// Serves these `location` blocks; `$directory` in them is a directory that ends with the server.
    #[track_caller]
    pub(crate) fn serving(locations: &str) -> Self {
        let server = (0..ATTEMPTS).find_map(|_| Self::listen(locations, free_port()));
        server.unwrap_or_else(|| panic!("nginx did not start {ATTEMPTS} times with {locations}"))
    }

    fn listen(locations: &str, port: u16) -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().display();
        let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|kind| format!("{kind}_temp_path {path}/{kind}; "))
            .concat();
        let locations = locations.replace("$directory", &path.to_string());
        // Without a master there is one process, which is the one that is killed.
        let configuration = format!(
            "daemon off; master_process off; pid {path}/pid; error_log {path}/error.log; \
             events {{ worker_connections 1024; }} \
             http {{ log_format requests '$request'; access_log {path}/requests requests; {temporary} \
             server {{ listen 127.0.0.1:{port}; client_max_body_size 0; {locations} }} }}"
        );
        let file = directory.path().join("nginx.conf");
        fs::write(&file, configuration).unwrap();
        let mut child = start(Command::new(nginx()).arg("-p").arg(directory.path()).arg("-c").arg(&file));
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let ended = eventually("nginx listens", || {
            if child.try_wait().unwrap().is_some() {
                return Ok(true);
            }
            TcpStream::connect(address).map(|_| false)
        });
        (!ended).then_some(Self { address, directory, child })
    }

    /// The request lines that it has answered.
    pub(crate) fn requests(&self) -> Vec<String> {
        let log = fs::read_to_string(self.directory.path().join("requests")).unwrap();
        log.lines().map(str::to_owned).collect()
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Debian has its servers in /usr/sbin, which is not on everybody's PATH.
fn nginx() -> PathBuf {
    let place = Path::new("/usr/sbin/nginx");
    if place.is_file() { place.to_owned() } else { "nginx".into() }
}
