//! Real redis-server processes, on ports that the system picks.

use std::fs;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use tempfile::TempDir;

use super::eventually;

/// Another process may take the port between our looking for it and Redis' binding it.
const ATTEMPTS: usize = 5;

/// What kind of server.
#[derive(Clone, Debug, Default)]
pub(crate) struct RedisConfig {
    /// Whether it speaks TLS, and then to clients with a certificate of its authority only.
    pub(crate) tls: bool,
    /// The password of the default user.
    pub(crate) password: Option<String>,
    /// Whether it is a Sentinel, which watches nothing.
    pub(crate) sentinel: bool,
    /// Whether its certificate is signed by itself and marked as an authority's.
    pub(crate) own_authority: bool,
    /// Lines of redis.conf, such as `user weir on >secret ~weir:* +@all`.
    pub(crate) lines: Vec<String>,
}

/// A server in a directory of its own. It is killed when this is dropped.
pub(crate) struct RedisServer {
    config: RedisConfig,
    directory: TempDir,
    port: u16,
    child: Child,
}

impl RedisServer {
    /// Starts a server and waits until it takes connections.
    pub(crate) fn start(config: &RedisConfig) -> Self {
        let server = (0..ATTEMPTS).find_map(|_| Self::listen(config.clone(), free_port()));
        server.unwrap_or_else(|| panic!("redis-server did not start {ATTEMPTS} times with {config:?}"))
    }

    /// A plain server.
    pub(crate) fn plain() -> Self {
        Self::start(&RedisConfig::default())
    }

    /// A plain server on this port.
    pub(crate) fn on_port(port: u16) -> Self {
        let server = Self::listen(RedisConfig::default(), port);
        server.unwrap_or_else(|| panic!("redis-server did not start on port {port}"))
    }

    fn listen(config: RedisConfig, port: u16) -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        if config.tls {
            write_certificates(directory.path());
        }
        if config.own_authority {
            let authority = directory.path().join("ca.pem");
            fs::copy(&authority, directory.path().join("server.pem")).unwrap();
            fs::copy(directory.path().join("ca.key"), directory.path().join("server.key")).unwrap();
        }
        let mut child = spawn(&config, directory.path(), port);
        takes_connections(&mut child, port).then_some(Self { config, directory, port, child })
    }

    /// `127.0.0.1:port`.
    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// The URL of the default user.
    pub(crate) fn url(&self) -> String {
        let scheme = if self.config.tls { "rediss" } else { "redis" };
        let password = self.config.password.as_ref().map(|password| format!(":{password}@")).unwrap_or_default();
        format!("{scheme}://{password}{}", self.address())
    }

    /// The certificate of the authority that signed the server's and the client's, in PEM.
    pub(crate) fn ca_file(&self) -> PathBuf {
        self.directory.path().join("ca.pem")
    }

    /// The client's certificate, in PEM.
    pub(crate) fn client_cert_file(&self) -> PathBuf {
        self.directory.path().join("client.pem")
    }

    /// The client's key, in PEM.
    pub(crate) fn client_key_file(&self) -> PathBuf {
        self.directory.path().join("client.key")
    }

    /// Runs redis-cli as the default user and gives what it prints.
    #[track_caller]
    pub(crate) fn cli(&self, arguments: &[&str]) -> String {
        let mut command = Command::new("redis-cli");
        command.args(["-p", &self.port.to_string()]);
        if let Some(password) = &self.config.password {
            command.args(["--no-auth-warning", "-a", password]);
        }
        if self.config.tls {
            command.arg("--tls").arg("--cacert").arg(self.ca_file());
            command.arg("--cert").arg(self.client_cert_file()).arg("--key").arg(self.client_key_file());
        }
        let Output { status, stdout, stderr } = command.args(arguments).output().expect("redis-cli is installed");
        let text = String::from_utf8(stdout).unwrap();
        assert!(status.success(), "redis-cli {arguments:?}: {text}{}", String::from_utf8_lossy(&stderr));
        text.trim_end().to_owned()
    }

    /// How often a command was called since the last `CONFIG RESETSTAT`, by clients and by scripts.
    pub(crate) fn calls(&self, command: &str) -> u64 {
        let statistics = self.cli(&["INFO", "commandstats"]);
        let start = format!("cmdstat_{command}:calls=");
        let line = statistics.lines().find_map(|line| line.strip_prefix(start.as_str()));
        line.map_or(0, |rest| rest.split(',').next().unwrap().parse().unwrap())
    }

    /// Ends the server as a crash would.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Stops the process where it stands: connections stay open, nothing is answered.
    pub(crate) fn freeze(&self) {
        self.signal("STOP");
        eventually("the server is stopped", || if self.state() == 'T' { Ok(()) } else { Err(self.state()) });
    }

    /// Lets a frozen server go on.
    pub(crate) fn thaw(&self) {
        self.signal("CONT");
        eventually("the server goes on", || if self.state() == 'T' { Err('T') } else { Ok(()) });
    }

    /// Starts another kind of server on the same port.
    pub(crate) fn restart_with(&mut self, config: RedisConfig) {
        self.config = config;
        self.restart();
    }

    /// Starts the server again, empty, on the same port.
    pub(crate) fn restart(&mut self) {
        self.kill();
        // The port is ours and was in use until now, so the only obstacle is a kernel that has not freed it yet.
        eventually("redis-server starts again", || {
            self.child = spawn(&self.config, self.directory.path(), self.port);
            if takes_connections(&mut self.child, self.port) { Ok(()) } else { Err(self.port) }
        });
    }

    fn signal(&self, name: &str) {
        let kill = format!("kill -{name} {}", self.child.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success(), "{kill}");
    }

    /// The process state of proc(5), such as R, S and T.
    fn state(&self) -> char {
        let text = fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        text.rsplit_once(") ").unwrap().1.chars().next().unwrap()
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        // SIGKILL ends a frozen process as well.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A port that nobody listens on.
pub(crate) fn free_port() -> u16 {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port()
}

fn spawn(config: &RedisConfig, directory: &Path, port: u16) -> Child {
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
    let mut command = Command::new("redis-server");
    command.arg(&file);
    if config.sentinel {
        command.arg("--sentinel");
    }
    command.current_dir(directory).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().expect("redis-server is installed")
}

fn takes_connections(child: &mut Child, port: u16) -> bool {
    eventually("redis-server listens or ends", || {
        if child.try_wait().unwrap().is_some() {
            return Ok(false);
        }
        TcpStream::connect((Ipv4Addr::LOCALHOST, port)).map(|_| true)
    })
}

/// An authority, a certificate for 127.0.0.1 and one for a client, as PEM files.
fn write_certificates(directory: &Path) {
    let mut authority = CertificateParams::new([]).unwrap();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    // rcgen gives all the same name; OpenSSL takes a certificate whose issuer is its subject for a self-signed one.
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
