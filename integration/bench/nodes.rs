//! Redis servers on TCP ports, alone or as a cluster of masters.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// Starting and joining take a second or two.
const PATIENCE: Duration = Duration::from_secs(20);

/// The servers are killed when this is dropped.
pub(crate) struct Nodes {
    children: Vec<Child>,
    ports: Vec<u16>,
    directories: Vec<TempDir>,
}

impl Nodes {
    /// A server for itself, or masters that share the hash slots evenly.
    pub(crate) fn start(count: usize) -> Self {
        let mut nodes = Self { children: Vec::new(), ports: Vec::new(), directories: Vec::new() };
        for [port, bus_port] in free_ports(count) {
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

/// Pairs of ports that the system picked, all held until the last is known, so that they differ.
fn free_ports(count: usize) -> Vec<[u16; 2]> {
    let held: Vec<[TcpListener; 2]> =
        (0..count).map(|_| [(); 2].map(|()| TcpListener::bind(("127.0.0.1", 0)).unwrap())).collect();
    held.iter().map(|pair| pair.each_ref().map(|listener| listener.local_addr().unwrap().port())).collect()
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
