//! redis-server processes on free ports.
//!
//! `WEIR_TEST_REDIS_SERVER=PATH` runs another server in its place, such as those that `integration/install.sh` unpacks.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use tempfile::TempDir;

use super::eventually;
use super::process::{Process, finish, free_port, on_free_port, succeed};
use super::programs::{repository, unpacked};

/// The store's timeout in tests that are not about it: no policy decides because the machine is busy.
pub(crate) const STORE_TIMEOUT: Duration = Duration::from_mins(1);

/// The servers that `integration/install.sh` unpacks.
pub(crate) const OTHER_SERVERS: [&str; 3] = ["redis-6.2", "redis-8.2", "valkey-9.1"];

/// The path of one of them.
#[track_caller]
pub(crate) fn other_server(name: &str) -> PathBuf {
    unpacked(&format!("test-servers/{name}"))
}

/// The server that the tests run unless they name another.
pub(crate) fn program() -> PathBuf {
    std::env::var_os("WEIR_TEST_REDIS_SERVER").map_or_else(|| "redis-server".into(), PathBuf::from)
}

#[derive(Clone, Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "lines of redis.conf")]
pub(crate) struct RedisConfig {
    /// Requires TLS with a client certificate of its authority.
    pub(crate) tls: bool,
    /// The password of the default user.
    pub(crate) password: Option<String>,
    /// Runs as a Sentinel, which monitors what `lines` say.
    pub(crate) sentinel: bool,
    /// Runs as a node of a cluster.
    pub(crate) cluster: bool,
    /// Its certificate is self-signed and marked as an authority's.
    pub(crate) own_authority: bool,
    /// One of [`OTHER_SERVERS`], instead of the usual one.
    pub(crate) other: Option<&'static str>,
    /// Seconds that the server's clock is ahead.
    pub(crate) clock_offset: Option<i64>,
    /// The directory of another server whose certificates are used.
    pub(crate) certificates: Option<PathBuf>,
    /// Lines of redis.conf, such as `user weir on >secret ~weir:{0}:* +@all`.
    pub(crate) lines: Vec<String>,
}

/// A server in its own directory. It is killed when this is dropped.
pub(crate) struct RedisServer {
    config: RedisConfig,
    directory: TempDir,
    address: SocketAddr,
    process: Process,
}

impl RedisServer {
    pub(crate) fn start(config: &RedisConfig) -> Self {
        on_free_port("redis-server", |address| Self::listen(config.clone(), address))
    }

    pub(crate) fn plain() -> Self {
        Self::start(&RedisConfig::default())
    }

    /// Servers with the same configuration. With TLS, they have the same certificates.
    pub(crate) fn several(config: &RedisConfig, count: usize) -> Vec<Self> {
        let mut config = config.clone();
        let mut servers: Vec<Self> = Vec::new();
        for _ in 0..count {
            let server = Self::start(&config);
            if config.tls && config.certificates.is_none() {
                config.certificates = Some(server.directory().to_owned());
            }
            servers.push(server);
        }
        servers
    }

    pub(crate) fn on_port(port: u16) -> Self {
        let server = Self::listen(RedisConfig::default(), SocketAddr::from(([127, 0, 0, 1], port)));
        server.unwrap_or_else(|| panic!("redis-server did not start on port {port}"))
    }

    fn listen(mut config: RedisConfig, address: SocketAddr) -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        match &config.certificates {
            Some(other) => copy_certificates(other, directory.path()),
            None if config.tls => write_certificates(directory.path()),
            None => {}
        }
        if config.cluster {
            // The default is the port plus 10000, which most free ports leave no room for.
            config.lines.push(format!("cluster-enabled yes\ncluster-port {}", free_port()));
        }
        if config.own_authority {
            let authority = directory.path().join("ca.pem");
            fs::copy(&authority, directory.path().join("server.pem")).unwrap();
            fs::copy(directory.path().join("ca.key"), directory.path().join("server.key")).unwrap();
        }
        let process = listen(&config, directory.path(), address)?;
        Some(Self { config, directory, address, process })
    }

    /// `127.0.0.1:port`.
    pub(crate) fn address(&self) -> String {
        self.address.to_string()
    }

    pub(crate) fn port(&self) -> u16 {
        self.address.port()
    }

    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// The URL of the default user.
    pub(crate) fn url(&self) -> String {
        let scheme = if self.config.tls { "rediss" } else { "redis" };
        let password = self.config.password.as_ref().map(|password| format!(":{password}@")).unwrap_or_default();
        format!("{scheme}://{password}{}", self.address())
    }

    /// The PEM file of the authority that signed the server's and the client's certificates.
    pub(crate) fn ca_file(&self) -> PathBuf {
        self.directory.path().join("ca.pem")
    }

    pub(crate) fn client_cert_file(&self) -> PathBuf {
        self.directory.path().join("client.pem")
    }

    pub(crate) fn client_key_file(&self) -> PathBuf {
        self.directory.path().join("client.key")
    }

    /// Runs redis-cli as the default user and returns its output.
    #[track_caller]
    pub(crate) fn cli(&self, arguments: &[&str]) -> String {
        succeed(&mut self.cli_command(arguments)).trim_end().to_owned()
    }

    /// Like [`Self::cli`]; `None` if the server is gone or frozen.
    pub(crate) fn try_cli(&self, arguments: &[&str]) -> Option<String> {
        if !self.is_running() {
            return None;
        }
        let finished = finish(&mut self.cli_command(arguments));
        (finished.code == Some(0)).then(|| finished.out.trim_end().to_owned())
    }

    /// Starts redis-cli, which goes on in the background.
    pub(crate) fn background_cli(&self, arguments: &[&str]) -> Process {
        Process::start(self.cli_command(arguments).stdout(Stdio::null()))
    }

    fn cli_command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("redis-cli");
        command.args(["-p", &self.address.port().to_string()]);
        if let Some(password) = &self.config.password {
            command.args(["--no-auth-warning", "-a", password]);
        }
        if self.config.tls {
            command.arg("--tls").arg("--cacert").arg(self.ca_file());
            command.arg("--cert").arg(self.client_cert_file()).arg("--key").arg(self.client_key_file());
        }
        command.args(arguments);
        command
    }

    /// A field of `INFO`, such as `role`.
    pub(crate) fn info(&self, section: &str, field: &str) -> Option<String> {
        self.try_cli(&["INFO", section])?.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            (name == field).then(|| value.trim().to_owned())
        })
    }

    /// The calls of a command by clients and scripts since the last `CONFIG RESETSTAT`.
    pub(crate) fn calls(&self, command: &str) -> u64 {
        let statistics = self.cli(&["INFO", "commandstats"]);
        let start = format!("cmdstat_{command}:calls=");
        let line = statistics.lines().find_map(|line| line.strip_prefix(start.as_str()));
        line.map_or(0, |rest| rest.split(',').next().unwrap().parse().unwrap())
    }

    /// Sends SIGKILL, which ends a frozen server as well.
    pub(crate) fn kill(&mut self) {
        self.process.kill();
    }

    /// Stops the process: connections stay open and nothing is answered.
    pub(crate) fn freeze(&self) {
        self.process.signal("STOP");
        eventually("the server is stopped", || if self.state() == 'T' { Ok(()) } else { Err(self.state()) });
    }

    /// Resumes a frozen server.
    pub(crate) fn thaw(&self) {
        self.process.signal("CONT");
        eventually("the server goes on", || if self.state() == 'T' { Err('T') } else { Ok(()) });
    }

    /// Restarts with another configuration on the same port.
    pub(crate) fn restart_with(&mut self, config: RedisConfig) {
        self.config = config;
        self.restart();
    }

    /// Restarts on the same port, with no data unless `lines` turn the append-only file on.
    pub(crate) fn restart(&mut self) {
        self.kill();
        // The kernel may not have freed the port yet.
        self.process = eventually("redis-server starts again", || {
            listen(&self.config, self.directory.path(), self.address).ok_or(self.address)
        });
    }

    /// Restarts on the same port after the append-only file was lost.
    pub(crate) fn restart_empty(&mut self) {
        self.kill();
        let file = self.directory.path().join("appendonlydir");
        if file.exists() {
            fs::remove_dir_all(file).unwrap();
        }
        self.restart();
    }

    /// Returns whether the process exists and is not frozen. redis-cli waits for a frozen server without end.
    pub(crate) fn is_running(&self) -> bool {
        !['T', 'Z'].contains(&self.state())
    }

    /// The role of `INFO`, `master` or `slave`; `None` if the server is gone or frozen.
    pub(crate) fn role(&self) -> Option<String> {
        self.info("replication", "role")
    }

    /// Returns an error with the state of the link to the master if this is a replica that is not in sync.
    pub(crate) fn in_sync(&self) -> Result<(), String> {
        if self.role().as_deref() == Some("master") {
            return Ok(());
        }
        match self.info("replication", "master_link_status") {
            Some(status) if status == "up" => Ok(()),
            status => Err(format!("{}: {status:?}", self.address())),
        }
    }

    pub(crate) fn password(&self) -> Option<&str> {
        self.config.password.as_deref()
    }

    /// The process state of proc(5), such as R, S or T; Z if it has ended.
    fn state(&self) -> char {
        let text = fs::read_to_string(format!("/proc/{}/stat", self.process.id())).unwrap_or_default();
        text.rsplit_once(") ").map_or('Z', |(_, fields)| fields.chars().next().unwrap())
    }
}

fn listen(config: &RedisConfig, directory: &Path, address: SocketAddr) -> Option<Process> {
    let port = address.port();
    let mut lines: Vec<String> = ["bind 127.0.0.1", "logfile log"].map(String::from).to_vec();
    if !config.sentinel {
        lines.extend(["save \"\"", "appendonly no"].map(String::from));
    }
    lines.push(format!("dir {}", directory.display()));
    if config.tls {
        lines.push(format!("port 0\ntls-port {port}\ntls-auth-clients yes\ntls-replication yes"));
        lines.push("tls-ca-cert-file ca.pem\ntls-cert-file server.pem\ntls-key-file server.key".into());
    } else {
        lines.push(format!("port {port}"));
    }
    lines.extend(config.password.iter().map(|password| format!("requirepass {password}")));
    lines.extend(config.lines.iter().cloned());
    let file = directory.join("redis.conf");
    fs::write(&file, lines.join("\n") + "\n").unwrap();
    let mut command = Command::new(config.other.map_or_else(program, other_server));
    command.arg(&file);
    if config.sentinel {
        command.arg("--sentinel");
    }
    if let Some(offset) = config.clock_offset {
        let (source, library) =
            (repository().join("integration/support/clock_offset.c"), directory.join("clock_offset.so"));
        succeed(Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(source));
        command.env("LD_PRELOAD", library).env("CLOCK_OFFSET", offset.to_string());
    }
    command.current_dir(directory).stdout(Stdio::null()).stderr(Stdio::null());
    Process::listening(&mut command, address)
}

fn copy_certificates(from: &Path, to: &Path) {
    for file in ["ca.pem", "ca.key", "server.pem", "server.key", "client.pem", "client.key"] {
        fs::copy(from.join(file), to.join(file)).unwrap();
    }
}

/// Writes PEM files of an authority, a certificate for 127.0.0.1 and one for a client.
fn write_certificates(directory: &Path) {
    let mut authority = CertificateParams::new([]).unwrap();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    // rcgen gives all certificates one name, and OpenSSL takes one whose issuer is its subject for self-signed.
    authority.distinguished_name.push(DnType::CommonName, "the authority of a test");
    let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate().unwrap()).unwrap();
    fs::write(directory.join("ca.pem"), authority.pem()).unwrap();
    fs::write(directory.join("ca.key"), authority.key().serialize_pem()).unwrap();
    for (name, subject) in [("server", "127.0.0.1"), ("client", "weir")] {
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new([subject.to_owned()]).unwrap().signed_by(&key, &authority).unwrap();
        fs::write(directory.join(format!("{name}.pem")), certificate.pem()).unwrap();
        fs::write(directory.join(format!("{name}.key")), key.serialize_pem()).unwrap();
    }
}
