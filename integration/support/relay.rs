//! A relay in front of a server that loses or doubles its replies, as a bad network does.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};

/// The treatment of the server's next bytes.
#[derive(Clone, Copy, Debug)]
#[repr(u8)]
pub(crate) enum Fate {
    Pass,
    /// Drops them, then passes.
    LoseOnce,
    /// Sends them twice, then passes.
    DoubleOnce,
    /// Drops them and everything after them.
    Lose,
}

pub(crate) struct Relay {
    pub(crate) address: SocketAddr,
    fate: Arc<AtomicU8>,
    clients: Arc<Mutex<Vec<TcpStream>>>,
}

impl Relay {
    /// Relays to this address. The threads end with the connections.
    pub(crate) fn to(server: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (fate, clients) = (Arc::new(AtomicU8::new(Fate::Pass as u8)), Arc::default());
        let relay = Self { address, fate: Arc::clone(&fate), clients: Arc::clone(&clients) };
        let server = server.to_owned();
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let (client, server) = (client.unwrap(), TcpStream::connect(&server).unwrap());
                for stream in [&client, &server] {
                    stream.set_nodelay(true).unwrap();
                }
                clients.lock().unwrap().push(client.try_clone().unwrap());
                let (from, to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                std::thread::spawn(move || copy(from, to, &AtomicU8::new(Fate::Pass as u8)));
                let fate = Arc::clone(&fate);
                std::thread::spawn(move || copy(server, client, &fate));
            }
        });
        relay
    }

    pub(crate) fn set(&self, fate: Fate) {
        self.fate.store(fate as u8, Ordering::SeqCst);
    }

    /// Returns whether the bytes to drop or to double have come.
    pub(crate) fn is_done(&self) -> bool {
        self.fate.load(Ordering::SeqCst) == Fate::Pass as u8
    }

    /// Closes all connections.
    pub(crate) fn cut(&self) {
        for client in self.clients.lock().unwrap().drain(..) {
            let _ = client.shutdown(Shutdown::Both);
        }
    }
}

fn copy(mut from: TcpStream, mut to: TcpStream, fate: &AtomicU8) {
    const LOSE_ONCE: u8 = Fate::LoseOnce as u8;
    const DOUBLE_ONCE: u8 = Fate::DoubleOnce as u8;
    const LOSE: u8 = Fate::Lose as u8;
    let mut piece = [0; 16 * 1024];
    while let Ok(length @ 1..) = from.read(&mut piece) {
        let times = match fate.load(Ordering::SeqCst) {
            LOSE => 0,
            once @ (LOSE_ONCE | DOUBLE_ONCE) => {
                fate.store(Fate::Pass as u8, Ordering::SeqCst);
                if once == DOUBLE_ONCE { 2 } else { 0 }
            }
            _ => 1,
        };
        for _ in 0..times {
            if to.write_all(&piece[..length]).is_err() {
                return;
            }
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}
