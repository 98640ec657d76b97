//! A TCP fault injector between a client and a server: it passes bytes on, late, slowly, twice or not at all.
//!
//! Servers that speak to each other through injectors connect from [`PEERS`], and pass whatever the trouble is.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, Weak};
use std::time::{Duration, Instant};

use socket2::SockRef;

use super::bus::relay;

/// The lines of a server's configuration that let it pass.
pub(crate) const PEERS: [&str; 2] = ["bind-source-addr 127.0.1.1", "protected-mode no"];

/// The fault of the connections, those that exist and those to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    None,
    /// Replies come this much later.
    Delay(Duration),
    /// Replies come at this many bytes per second.
    Throttle(u32),
    /// Nothing passes in either direction. It does later: nothing is lost.
    Stall,
    /// Replies are dropped.
    Drop,
    /// The next reply is dropped.
    DropOnce,
    /// The next reply comes twice.
    DoubleOnce,
    /// Half of the next reply comes, then a reset.
    ResetOnce,
    /// Each connection is reset when its next reply has come half.
    Reset,
    /// Each client is told that the stream has ended, while its requests are still taken and lost.
    HalfClose,
}

/// Bytes that wait for their time. The reader stops at this many pieces.
const PIECES: usize = 256;
const PIECE: usize = 16 * 1024;
/// The number of times per second that bytes pass a [`Trouble::Throttle`].
const TICKS: u32 = 100;

/// Passes on to one server, once it knows which. The threads end with their connections.
pub(crate) struct Injector {
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    server: OnceLock<String>,
    trouble: Mutex<Trouble>,
    changed: Condvar,
    connections: Mutex<Vec<Weak<Connection>>>,
}

/// Both ends. The kernel sends a reset when the last descriptor is closed, so only the threads own these.
struct Connection {
    client: TcpStream,
    server: TcpStream,
    /// Ends by a reset, so nothing must announce its end before.
    reset: AtomicBool,
}

impl Injector {
    pub(crate) fn to(server: &str) -> Self {
        let injector = Self::new();
        injector.lead_to(server);
        injector
    }

    /// For a server that has yet to be started.
    pub(crate) fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            server: OnceLock::new(),
            trouble: Mutex::new(Trouble::None),
            changed: Condvar::new(),
            connections: Mutex::default(),
        });
        let injector = Self { address, shared: Arc::clone(&shared) };
        std::thread::spawn(move || {
            for client in listener.incoming() {
                // A client whose server is gone sees the end of its connection.
                if let (Ok(client), Some(server)) = (client, shared.server.get())
                    && let Ok(server) = TcpStream::connect(server)
                {
                    shared.serve(client, server);
                }
            }
        });
        injector
    }

    pub(crate) fn lead_to(&self, server: &str) {
        self.shared.server.set(server.to_owned()).expect("it leads to one server");
    }

    pub(crate) fn set(&self, trouble: Trouble) {
        *self.shared.trouble() = trouble;
        self.shared.changed.notify_all();
        if trouble == Trouble::HalfClose {
            for connection in self.shared.connections.lock().unwrap().iter().filter_map(Weak::upgrade) {
                let _ = connection.client.shutdown(Shutdown::Write);
            }
        }
    }

    /// Returns whether a trouble that happens once has happened.
    pub(crate) fn is_done(&self) -> bool {
        *self.shared.trouble() == Trouble::None
    }

    /// Closes all connections.
    pub(crate) fn cut(&self) {
        for connection in self.shared.connections.lock().unwrap().drain(..).filter_map(|it| it.upgrade()) {
            connection.close();
        }
    }
}

impl Drop for Injector {
    fn drop(&mut self) {
        // The threads of a stalled connection would wait for a change.
        self.set(Trouble::None);
        self.cut();
    }
}

impl Shared {
    fn trouble(&self) -> MutexGuard<'_, Trouble> {
        self.trouble.lock().unwrap()
    }

    /// Waits while nothing may pass; returns the trouble then.
    fn unless_stalled(&self) -> Trouble {
        *self.changed.wait_while(self.trouble(), |trouble| *trouble == Trouble::Stall).unwrap()
    }

    fn serve(self: &Arc<Self>, client: TcpStream, server: TcpStream) {
        for stream in [&client, &server] {
            stream.set_nodelay(true).unwrap();
        }
        if client.peer_addr().is_ok_and(|peer| peer.ip() != Ipv4Addr::LOCALHOST) {
            relay(&client, &server);
            return;
        }
        let connection = Arc::new(Connection { client, server, reset: AtomicBool::new(false) });
        let mut connections = self.connections.lock().unwrap();
        connections.retain(|connection| connection.strong_count() > 0);
        connections.push(Arc::downgrade(&connection));
        drop(connections);
        if *self.trouble() == Trouble::HalfClose {
            let _ = connection.client.shutdown(Shutdown::Write);
        }
        let waiting = Arc::new(Waiting::default());
        for pass in [pass_requests, read_replies, write_replies] {
            let (shared, connection, waiting) = (Arc::clone(self), Arc::clone(&connection), Arc::clone(&waiting));
            std::thread::spawn(move || {
                pass(&shared, &connection, &waiting);
                waiting.close();
            });
        }
    }

    /// Writes slowly until the trouble is another one.
    fn write_throttled(&self, mut client: &TcpStream, bytes: &[u8], rate: u32) -> std::io::Result<()> {
        let per_tick = usize::try_from(rate / TICKS).unwrap().max(1);
        let mut written = 0;
        while written < bytes.len() && *self.trouble() == Trouble::Throttle(rate) {
            let end = bytes.len().min(written + per_tick);
            client.write_all(&bytes[written..end])?;
            written = end;
            std::thread::sleep(Duration::from_secs(1) / TICKS);
        }
        client.write_all(&bytes[written..])
    }

    /// Takes the trouble away if it is this one, which happens once.
    fn take(&self, once: Trouble) {
        let mut trouble = self.trouble();
        if *trouble == once {
            *trouble = Trouble::None;
        }
    }
}

impl Connection {
    fn close(&self) {
        let how = if self.reset.load(Ordering::SeqCst) { Shutdown::Read } else { Shutdown::Both };
        for stream in [&self.client, &self.server] {
            let _ = stream.shutdown(how);
        }
    }

    fn reset(&self) {
        for stream in [&self.client, &self.server] {
            let _ = SockRef::from(stream).set_linger(Some(Duration::ZERO));
        }
        self.reset.store(true, Ordering::SeqCst);
        self.close();
    }
}

/// Replies between the thread that reads them and the one that writes them.
#[derive(Default)]
struct Waiting {
    state: Mutex<Pieces>,
    changed: Condvar,
}

#[derive(Default)]
struct Pieces {
    /// With the time when they came.
    all: VecDeque<(Instant, Vec<u8>)>,
    closed: bool,
}

impl Waiting {
    /// Waits for room; false if the connection has ended.
    fn push(&self, read_at: Instant, bytes: Vec<u8>) -> bool {
        let full = |pieces: &mut Pieces| !pieces.closed && pieces.all.len() >= PIECES;
        let mut state = self.changed.wait_while(self.state.lock().unwrap(), full).unwrap();
        state.all.push_back((read_at, bytes));
        self.changed.notify_all();
        !state.closed
    }

    /// Waits for the next piece; `None` at the end.
    fn pop(&self) -> Option<(Instant, Vec<u8>)> {
        let empty = |pieces: &mut Pieces| !pieces.closed && pieces.all.is_empty();
        let mut state = self.changed.wait_while(self.state.lock().unwrap(), empty).unwrap();
        self.changed.notify_all();
        state.all.pop_front()
    }

    fn close(&self) {
        self.state.lock().unwrap().closed = true;
        self.changed.notify_all();
    }
}

fn pass_requests(shared: &Shared, connection: &Connection, _: &Waiting) {
    let mut piece = vec![0; PIECE];
    while let Ok(length @ 1..) = (&connection.client).read(&mut piece) {
        let lost = shared.unless_stalled() == Trouble::HalfClose;
        if !lost && (&connection.server).write_all(&piece[..length]).is_err() {
            break;
        }
    }
    connection.close();
}

fn read_replies(_: &Shared, connection: &Connection, waiting: &Waiting) {
    let mut piece = vec![0; PIECE];
    while let Ok(length @ 1..) = (&connection.server).read(&mut piece) {
        if !waiting.push(Instant::now(), piece[..length].to_vec()) {
            break;
        }
    }
}

fn write_replies(shared: &Shared, connection: &Connection, waiting: &Waiting) {
    let mut client = &connection.client;
    while let Some((read_at, bytes)) = waiting.pop() {
        let trouble = shared.unless_stalled();
        let written = match trouble {
            Trouble::None | Trouble::Stall => client.write_all(&bytes),
            Trouble::Delay(delay) => {
                std::thread::sleep((read_at + delay).saturating_duration_since(Instant::now()));
                client.write_all(&bytes)
            }
            Trouble::Throttle(rate) => shared.write_throttled(client, &bytes, rate),
            Trouble::Drop | Trouble::DropOnce | Trouble::HalfClose => Ok(()),
            Trouble::DoubleOnce => client.write_all(&[&*bytes, &*bytes].concat()),
            Trouble::Reset | Trouble::ResetOnce => {
                let _ = client.write_all(&bytes[..bytes.len() / 2]);
                connection.reset();
                Ok(())
            }
        };
        if matches!(trouble, Trouble::DropOnce | Trouble::DoubleOnce | Trouble::ResetOnce) {
            shared.take(trouble);
        }
        if written.is_err() || connection.reset.load(Ordering::SeqCst) {
            break;
        }
    }
    connection.close();
}
