//! Redis servers on TCP ports, alone or as a cluster of masters.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};
use tempfile::TempDir;

/// Starting and joining take a second or two.
const PATIENCE: Duration = Duration::from_secs(20);

/// The servers are killed when this is dropped.
pub(crate) struct Nodes {
    children: Vec<Child>,
    ports: Vec<u16>,
    directories: Vec<TempDir>,
    /// Keeps the ports from other processes.
    held: Vec<Socket>,
}

impl Nodes {
    /// A server for itself, or masters that share the hash slots evenly.
    pub(crate) fn start(count: usize) -> Self {
        let mut nodes = Self { children: Vec::new(), ports: Vec::new(), directories: Vec::new(), held: Vec::new() };
        for _ in 0..count {
            let [port, bus_port] = [(); 2].map(|()| {
                let (held, port) = free_port();
                nodes.held.push(held);
                port
            });
            let directory = tempfile::tempdir().unwrap();
            let mut command = Command::new("redis-server");
            command.args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--port", &port.to_string()]);
            if count > 1 {
                command.args(["--cluster-enabled", "yes", "--cluster-port", &bus_port.to_string()]);
            }
            let child =
                command.current_dir(&directory).stdout(Stdio::null()).spawn().expect("redis-server is installed");
            nodes.children.push(child);
            nodes.ports.push(port);
            nodes.directories.push(directory);
        }
        for port in &nodes.ports {
            until("the server answers", || cli(*port, &["PING"]).starts_with("PONG"));
        }
        if count > 1 {
            let addresses = nodes.addresses();
            let mut create = vec!["--cluster", "create"];
            create.extend(addresses.iter().map(String::as_str));
            create.push("--cluster-yes");
            cli(nodes.ports[0], &create);
            for port in &nodes.ports {
                until("the cluster takes calls", || cli(*port, &["CLUSTER", "INFO"]).contains("cluster_state:ok"));
            }
        }
        nodes
    }

    fn addresses(&self) -> Vec<String> {
        self.ports.iter().map(|port| format!("127.0.0.1:{port}")).collect()
    }

    pub(crate) fn url(&self) -> String {
        let scheme = if self.ports.len() > 1 { "redis+cluster" } else { "redis" };
        format!("{scheme}://{}", self.addresses().join(","))
    }

    pub(crate) fn pids(&self) -> Vec<String> {
        self.children.iter().map(|child| child.id().to_string()).collect()
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A port that the system assigns to nobody else while the socket is bound. A server with `SO_REUSEADDR` can bind it.
fn free_port() -> (Socket, u16) {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.set_reuse_address(true).unwrap();
    socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).unwrap();
    let port = socket.local_addr().unwrap().as_socket().unwrap().port();
    (socket, port)
}

fn cli(port: u16, arguments: &[&str]) -> String {
    let output = Command::new("redis-cli").arg("-p").arg(port.to_string()).args(arguments).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
