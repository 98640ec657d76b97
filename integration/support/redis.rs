//! redis-server processes on free ports.
//!
//! `WEIR_TEST_REDIS_SERVER=PATH` runs another server in its place, such as those that `integration/install.sh` unpacks.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use tempfile::TempDir;

use super::eventually;
use super::process::{Process, on_free_port, succeed};
use super::programs::unpacked;

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
pub(crate) struct RedisConfig {
    /// Requires TLS with a client certificate of its authority.
    pub(crate) tls: bool,
    /// The password of the default user.
    pub(crate) password: Option<String>,
    /// Runs as a Sentinel that monitors nothing.
    pub(crate) sentinel: bool,
    /// Its certificate is self-signed and marked as an authority's.
    pub(crate) own_authority: bool,
    /// One of [`OTHER_SERVERS`], instead of the usual one.
    pub(crate) other: Option<&'static str>,
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

    pub(crate) fn on_port(port: u16) -> Self {
        let server = Self::listen(RedisConfig::default(), SocketAddr::from(([127, 0, 0, 1], port)));
        server.unwrap_or_else(|| panic!("redis-server did not start on port {port}"))
    }

    fn listen(config: RedisConfig, address: SocketAddr) -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        if config.tls {
            write_certificates(directory.path());
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
        let mut command = Command::new("redis-cli");
        command.args(["-p", &self.address.port().to_string()]);
        if let Some(password) = &self.config.password {
            command.args(["--no-auth-warning", "-a", password]);
        }
        if self.config.tls {
            command.arg("--tls").arg("--cacert").arg(self.ca_file());
            command.arg("--cert").arg(self.client_cert_file()).arg("--key").arg(self.client_key_file());
        }
        succeed(command.args(arguments)).trim_end().to_owned()
    }

    /// The calls of a command by clients and scripts since the last `CONFIG RESETSTAT`.
    pub(crate) fn calls(&self, command: &str) -> u64 {
        let statistics = self.cli(&["INFO", "commandstats"]);
        let start = format!("cmdstat_{command}:calls=");
        let line = statistics.lines().find_map(|line| line.strip_prefix(start.as_str()));
        line.map_or(0, |rest| rest.split(',').next().unwrap().parse().unwrap())
    }

    /// Kills the server.
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

    /// Restarts with no data on the same port.
    pub(crate) fn restart(&mut self) {
        self.kill();
        // The kernel may not have freed the port yet.
        self.process = eventually("redis-server starts again", || {
            listen(&self.config, self.directory.path(), self.address).ok_or(self.address)
        });
    }

    /// The process state of proc(5), such as R, S or T.
    fn state(&self) -> char {
        let text = fs::read_to_string(format!("/proc/{}/stat", self.process.id())).unwrap();
        text.rsplit_once(") ").unwrap().1.chars().next().unwrap()
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
        lines.push(format!("port 0\ntls-port {port}\ntls-auth-clients yes"));
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
    command.current_dir(directory).stdout(Stdio::null()).stderr(Stdio::null());
    Process::listening(&mut command, address)
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
