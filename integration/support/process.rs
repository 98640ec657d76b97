//! Runs other programs to their end, or until a test is over.

use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};

use super::eventually;

/// The timeout of [`finish`]: enough for the image's build while other tests run.
const RUN: Duration = Duration::from_mins(15);

/// A server may need another port as well, which is taken.
const ATTEMPTS: usize = 5;

const INSTALL: &str = "run `integration/install.sh`";

/// A program's exit code and output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finished {
    /// `None` after a signal.
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Finished {
    /// Standard output, then standard error.
    pub(crate) fn text(&self) -> String {
        format!("{}{}", self.out, self.err)
    }
}

/// Runs a program to its end.
#[track_caller]
pub(crate) fn finish(command: &mut Command) -> Finished {
    let mut process = Process::start(command.stdout(Stdio::piped()).stderr(Stdio::piped()));
    // Two threads read, so that a full pipe does not stop the program.
    let [out, err] = [gather(process.child.stdout.take()), gather(process.child.stderr.take())];
    let started = Instant::now();
    let status = loop {
        if let Some(status) = process.child.try_wait().unwrap() {
            break status;
        }
        if started.elapsed() > RUN {
            drop(process);
            panic!("{command:?} did not end within {RUN:?}: {}{}", out.join().unwrap(), err.join().unwrap());
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    Finished { code: status.code(), out: out.join().unwrap(), err: err.join().unwrap() }
}

/// Runs a program that must succeed and returns its standard output.
#[track_caller]
pub(crate) fn succeed(command: &mut Command) -> String {
    let finished = finish(command);
    assert_eq!(finished.code, Some(0), "{command:?}: {}", finished.text());
    finished.out
}

fn gather(stream: Option<impl Read + Send + 'static>) -> JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = stream.unwrap().read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// A running program. It is killed when this is dropped.
pub(crate) struct Process {
    pub(crate) child: Child,
}

impl Process {
    #[track_caller]
    pub(crate) fn start(command: &mut Command) -> Self {
        let child = command.stdin(Stdio::null()).spawn();
        Self { child: child.unwrap_or_else(|error| panic!("{command:?}: {error}; {INSTALL}")) }
    }

    /// Starts a program that reads what the test writes.
    #[track_caller]
    pub(crate) fn fed(command: &mut Command) -> (Self, ChildStdin) {
        let child = command.stdin(Stdio::piped()).spawn();
        let mut child = child.unwrap_or_else(|error| panic!("{command:?}: {error}; {INSTALL}"));
        let input = child.stdin.take().unwrap();
        (Self { child }, input)
    }

    /// Starts a server and waits until it listens; `None` if it ended instead.
    #[track_caller]
    pub(crate) fn listening(command: &mut Command, address: SocketAddr) -> Option<Self> {
        let mut server = Self::start(command);
        let is_listening = eventually("the server listens", || {
            let has_ended = server.child.try_wait().unwrap().is_some();
            if has_ended { Ok(false) } else { TcpStream::connect(address).map(|_| true) }
        });
        is_listening.then_some(server)
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits for the process to end by itself.
    #[track_caller]
    pub(crate) fn wait(&mut self) -> ExitStatus {
        eventually("the process ends", || self.child.try_wait().unwrap().ok_or("it runs"))
    }

    /// Sends SIGKILL, which ends a stopped process as well.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Sends a signal, such as `HUP`.
    #[track_caller]
    pub(crate) fn signal(&self, name: &str) {
        assert!(kill(name, self.id()), "{name}");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Sends a signal to a process; false if it does not exist.
pub(crate) fn kill(signal: &str, process: u32) -> bool {
    let kill = format!("kill -{signal} {process} 2>/dev/null");
    finish(Command::new("sh").args(["-c", &kill])).code == Some(0)
}

/// Starts a server on a free port, and on another one if it ends before it listens.
#[track_caller]
pub(crate) fn on_free_port<S>(name: &str, start: impl Fn(SocketAddr) -> Option<S>) -> S {
    let server = (0..ATTEMPTS).find_map(|_| start((Ipv4Addr::LOCALHOST, free_port()).into()));
    server.unwrap_or_else(|| panic!("{name} did not start {ATTEMPTS} times"))
}

/// A port on loopback that nothing listens on, and that the system assigns to nobody else until this process ends: it
/// stays bound to a socket that does not listen. A server with `SO_REUSEADDR` can bind and leave it, again and again;
/// clients are refused meanwhile.
pub(crate) fn free_port() -> u16 {
    static HELD: Mutex<Vec<Socket>> = Mutex::new(Vec::new());
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.set_reuse_address(true).unwrap();
    socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).unwrap();
    let port = socket.local_addr().unwrap().as_socket().unwrap().port();
    HELD.lock().unwrap().push(socket);
    port
}
