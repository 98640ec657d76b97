//! Upstreams that tests script.

use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};

use parking_lot::Mutex;

use super::wire::{Message, Wire};

pub(crate) struct Upstream {
    pub(crate) address: SocketAddr,
    accepted: Arc<AtomicUsize>,
    closing: Arc<AtomicBool>,
    requests: Arc<Mutex<Vec<Message>>>,
}

impl Upstream {
    /// Serves each connection with `serve`, which gets the number of earlier connections.
    pub(crate) fn start(serve: impl Fn(&mut Wire, usize) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let upstream = Self { address, accepted: Arc::default(), closing: Arc::default(), requests: Arc::default() };
        let (accepted, closing, serve) = (upstream.accepted.clone(), upstream.closing.clone(), Arc::new(serve));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if closing.load(Ordering::Relaxed) {
                    return;
                }
                let number = accepted.fetch_add(1, Ordering::Relaxed);
                let (serve, mut wire) = (serve.clone(), Wire::new(stream.unwrap()));
                std::thread::spawn(move || serve(&mut wire, number));
            }
        });
        upstream
    }

    /// Answers every request with `answer` and remembers the request.
    pub(crate) fn answering(answer: impl Fn(&Message) -> String + Send + Sync + 'static) -> Self {
        let requests: Arc<Mutex<Vec<Message>>> = Arc::default();
        let seen = requests.clone();
        let mut upstream = Self::start(move |wire, _| {
            while let Some(request) = wire.request() {
                let text = answer(&request);
                seen.lock().push(request);
                wire.send(text);
            }
        });
        upstream.requests = requests;
        upstream
    }

    /// Answers every request with 200 and this text.
    pub(crate) fn saying(text: &'static str) -> Self {
        Self::answering(move |_| ok(text))
    }

    /// Ends each connection after one answer, if `answer` has one for a connection of this number, without notice. The receiver is
    /// told once the end has reached the proxy's socket.
    pub(crate) fn closing(
        answer: impl Fn(usize) -> Option<String> + Send + Sync + 'static,
    ) -> (Self, mpsc::Receiver<()>) {
        let (told, ended) = mpsc::channel();
        let upstream = Self::start(move |wire, number| {
            wire.request();
            if let Some(answer) = answer(number) {
                wire.send(answer);
            }
            let _ = wire.stream.shutdown(Shutdown::Both);
            let _ = told.send(());
        });
        (upstream, ended)
    }

    /// The number of accepted connections.
    pub(crate) fn accepted(&self) -> usize {
        self.accepted.load(Ordering::Relaxed)
    }

    /// The requests that [`Self::answering`] answered.
    pub(crate) fn requests(&self) -> Vec<Message> {
        self.requests.lock().clone()
    }
}

/// A 200 with this body.
pub(crate) fn ok(body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.closing.store(true, Ordering::Relaxed);
        // Wakes the accepting thread.
        drop(TcpStream::connect(self.address));
    }
}
