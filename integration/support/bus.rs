//! The bus of a cluster behind switches, so that a node can be cut off from the others while clients still reach it.
//!
//! Each node announces the port of a switch as that of its bus, and connects to the others' from an address of its own. So a switch
//! knows both ends of a link.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;

use parking_lot::Mutex;

/// The switches of a cluster. Their threads end with their links, or with the process.
pub(crate) struct Bus {
    /// The address of each node's switch.
    switches: Vec<SocketAddr>,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    /// The port of each node's bus.
    ports: Vec<u16>,
    isolated: Option<usize>,
    links: Vec<Link>,
}

/// A connection from one node to another.
struct Link {
    ends: [usize; 2],
    sockets: [TcpStream; 2],
}

impl Bus {
    pub(crate) fn start(nodes: usize) -> Self {
        let state = Arc::new(Mutex::new(State { ports: vec![0; nodes], ..State::default() }));
        let switch = |node| {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let (address, state) = (listener.local_addr().unwrap(), Arc::clone(&state));
            std::thread::spawn(move || {
                for socket in listener.incoming().flatten() {
                    connect(&socket, node, &state);
                }
            });
            address
        };
        Self { switches: (0..nodes).map(switch).collect(), state }
    }

    /// The lines of a node's configuration.
    pub(crate) fn lines(&self, node: usize) -> [String; 4] {
        [
            "cluster-announce-ip 127.0.0.1".to_owned(),
            format!("cluster-announce-bus-port {}", self.port(node)),
            format!("bind-source-addr {}", source(node)),
            // Replicas connect to their masters from that address as well.
            "protected-mode no".to_owned(),
        ]
    }

    /// The port that a node announces.
    pub(crate) fn port(&self, node: usize) -> u16 {
        self.switches[node].port()
    }

    /// Tells the switch of a node the port of its bus.
    pub(crate) fn lead_to(&self, node: usize, port: u16) {
        self.state.lock().ports[node] = port;
    }

    /// Cuts a node off from all others, and no other one.
    pub(crate) fn isolate(&self, node: Option<usize>) {
        let mut state = self.state.lock();
        state.isolated = node;
        let (cut, kept) = state.links.drain(..).partition(|link| node.is_some_and(|node| link.ends.contains(&node)));
        state.links = kept;
        let cut: Vec<Link> = cut;
        for socket in cut.iter().flat_map(|link| &link.sockets) {
            let _ = socket.shutdown(Shutdown::Both);
        }
    }
}

/// The address that a node connects from.
fn source(node: usize) -> IpAddr {
    Ipv4Addr::new(127, 0, 1, 1 + u8::try_from(node).unwrap()).into()
}

/// Passes on a connection to the bus of `to`.
fn connect(from: &TcpStream, to: usize, state: &Mutex<State>) {
    let Ok(peer) = from.peer_addr() else { return };
    let mut state = state.lock();
    let caller = (0..state.ports.len()).find(|node| source(*node) == peer.ip()).expect("only nodes use the bus");
    if state.isolated.is_some_and(|node| [caller, to].contains(&node)) {
        return;
    }
    let Ok(onward) = TcpStream::connect(("127.0.0.1", state.ports[to])) else { return };
    let sockets = [from.try_clone().unwrap(), onward.try_clone().unwrap()];
    state.links.push(Link { ends: [caller, to], sockets });
    relay(from, &onward);
}

/// Passes on in both directions until one end closes.
pub(super) fn relay(one: &TcpStream, other: &TcpStream) {
    for (source, sink) in [(one, other), (other, one)] {
        let (source, sink) = (source.try_clone().unwrap(), sink.try_clone().unwrap());
        std::thread::spawn(move || pass(source, sink));
    }
}

fn pass(mut source: TcpStream, mut sink: TcpStream) {
    let mut piece = [0; 16 * 1024];
    while let Ok(length @ 1..) = source.read(&mut piece) {
        if sink.write_all(&piece[..length]).is_err() {
            break;
        }
    }
    for socket in [source, sink] {
        let _ = socket.shutdown(Shutdown::Both);
    }
}
