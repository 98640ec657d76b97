//! The SPOE listener in a process, and a peer written for the tests. `gateways` has `HAProxy` itself.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;

use crate::support::redis::RedisServer;
use crate::support::weir::Weir;
use crate::support::{PATIENCE, becomes};

const RULES: &str = "limits:\n  PerAddress: { by: ip, burst: 3, count: 3, period: 1h }\n";

const HELLO: u8 = 101;
const DISCONNECT: u8 = 102;
const ACK: u8 = 103;

fn serve(flags: &[&str]) -> (Weir, SocketAddr) {
    serve_rules(RULES, flags)
}

fn serve_rules(rules: &str, flags: &[&str]) -> (Weir, SocketAddr) {
    let weir = Weir::serve(rules, &[&["--spoe", "127.0.0.1:0"], flags].concat());
    let address = weir.listener("spoe");
    (weir, address)
}

/// Bytes after their length, which must fit into one byte.
pub(crate) fn string(bytes: &[u8]) -> Vec<u8> {
    [&[u8::try_from(bytes.len()).unwrap()], bytes].concat()
}

pub(crate) fn frame(kind: u8, numbers: [u8; 2], payload: &[u8]) -> Vec<u8> {
    let body = [&[kind, 0, 0, 0, 1][..], &numbers, payload].concat();
    [&u32::try_from(body.len()).unwrap().to_be_bytes()[..], &body].concat()
}

/// `HAProxy`'s HELLO for frames of up to 16380 bytes.
pub(crate) fn hello() -> Vec<u8> {
    let text = |name: &[u8], value: &[u8]| [string(name), vec![8], string(value)].concat();
    let max_frame = [string(b"max-frame-size"), vec![3, 0xfc, 0xf0, 0x06]].concat();
    let items = [text(b"supported-versions", b"2.0"), max_frame, text(b"capabilities", b"pipelining")];
    frame(1, [0, 0], &items.concat())
}

/// A question about a request of 192.0.2.`client`, with the number `id`.
pub(crate) fn ask(id: u8, client: u8) -> Vec<u8> {
    let source = [string(b"src"), vec![6, 192, 0, 2, client]].concat();
    question(id, &source)
}

/// A question about a GET request with one more argument.
pub(crate) fn question(id: u8, argument: &[u8]) -> Vec<u8> {
    let method = [string(b"method"), vec![8], string(b"GET")].concat();
    frame(3, [7, id], &[&string(b"check")[..], &[2], &method, argument].concat())
}

/// `HAProxy`'s end of a connection.
pub(crate) struct Peer<S> {
    stream: S,
    input: Vec<u8>,
}

impl Peer<TcpStream> {
    pub(crate) fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self { stream, input: Vec::new() }
    }
}

impl<S: Read + Write> Peer<S> {
    /// Sends bytes. The listener may have closed the connection.
    pub(crate) fn send(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }

    /// The kind, the two numbers and the rest of the next frame; `None` at the end.
    #[track_caller]
    fn next(&mut self) -> Option<(u8, [u8; 2], Vec<u8>)> {
        loop {
            if let Some((length, rest)) = self.input.split_first_chunk::<4>() {
                let length = u32::from_be_bytes(*length) as usize;
                if let Some(body) = rest.get(..length) {
                    let found = (body[0], [body[5], body[6]], body[7..].to_vec());
                    self.input.drain(..4 + length);
                    return Some(found);
                }
            }
            let mut piece = [0; 4096];
            match self.stream.read(&mut piece) {
                Ok(0) => return None,
                Ok(length) => self.input.extend(&piece[..length]),
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("nothing came: {error}"),
            }
        }
    }

    /// Exchanges the HELLOs.
    #[track_caller]
    pub(crate) fn greet(&mut self) {
        self.send(&hello());
        assert!(matches!(self.next(), Some((HELLO, [0, 0], _))));
    }

    /// The number of the next answered question, and whether it denies.
    #[track_caller]
    pub(crate) fn answer(&mut self) -> (u8, bool) {
        let Some((ACK, [7, id], variables)) = self.next() else { panic!("no answer") };
        let deny = variables.strip_prefix(b"\x01\x03\x02\x04deny").unwrap();
        (id, deny[0] == 0x11)
    }

    /// The status of the disconnect, which is the last frame.
    #[track_caller]
    fn farewell(&mut self) -> u8 {
        let Some((DISCONNECT, [0, 0], items)) = self.next() else { panic!("no farewell") };
        assert!(self.next().is_none());
        items.strip_prefix(b"\x0bstatus-code\x03").unwrap()[0]
    }
}

#[test]
fn what_comes_together_is_one_call_to_redis() {
    let redis = RedisServer::plain();
    let (weir, address) = serve(&["--store", &redis.url(), "--workers", "1"]);
    // The worker and the admin thread have tested their connections, which counts as calls.
    becomes("both have made a call", 2, || redis.calls("evalsha"));
    becomes("the store is connected", 1, || weir.metric("weir_store_connections"));
    let mut peer = Peer::connect(address);
    peer.greet();
    peer.send(&ask(0, 1));
    assert_eq!(peer.answer(), (0, false));
    redis.cli(&["CONFIG", "RESETSTAT"]);
    peer.send(&(1..=40).flat_map(|id| ask(id, id % 10)).collect::<Vec<_>>());
    let answers: Vec<_> = (0..40).map(|_| peer.answer()).collect();
    // Three of each address pass, and one has asked before.
    let expected: Vec<_> = (1..=40).map(|id| (id, id > 30 || id == 21)).collect();
    assert_eq!(answers, expected);
    assert_eq!(redis.calls("evalsha"), 1);
}

#[test]
fn an_argument_of_another_name_is_an_entry_that_limits_go_by() {
    let rules =
        "limits:\n  PerTenant: { match: { descriptor: { tenant: 'a*' } }, by: { descriptor: tenant }, burst: 1 }\n";
    let (_weir, address) = serve_rules(rules, &[]);
    let mut peer = Peer::connect(address);
    peer.greet();
    for (id, tenant, denied) in [(1, "acme", false), (2, "acme", true), (3, "apex", false), (4, "bolt", false)] {
        peer.send(&question(id, &[string(b"tenant"), vec![8], string(tenant.as_bytes())].concat()));
        assert_eq!(peer.answer(), (id, denied), "{tenant}");
    }
    // The question does not say that the client is a tenant with an `a`, so no limit matches.
    peer.send(&ask(5, 1));
    assert_eq!(peer.answer(), (5, false));
}

#[test]
fn a_unix_socket_serves_as_well() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("spoe.sock");
    let _weir = Weir::serve(RULES, &["--spoe", &format!("unix:{}", path.display())]);
    let mut peer = Peer { stream: UnixStream::connect(&path).unwrap(), input: Vec::new() };
    peer.greet();
    peer.send(&ask(1, 1));
    assert_eq!(peer.answer(), (1, false));
}

#[test]
fn at_the_end_what_was_asked_is_answered() {
    let (mut weir, address) = serve(&[]);
    let mut peer = Peer::connect(address);
    peer.greet();
    let asked = ask(1, 1);
    peer.send(&asked[..20]);
    weir.signal("TERM");
    weir.until_logged("draining");
    peer.send(&asked[20..]);
    assert_eq!((peer.answer(), peer.farewell()), ((1, false), 0));
    assert!(weir.wait().success());
}

#[test]
fn a_connection_that_breaks_the_rules_costs_nothing_but_itself() {
    let (weir, address) = serve(&["--workers", "1"]);
    let mut good = Peer::connect(address);
    good.greet();
    let long = [&0xffff_u32.to_be_bytes()[..], &vec![3; 0xffff]].concat();
    let many_arguments = frame(3, [7, 1], &[string(b"check"), vec![255], vec![0; 510]].concat());
    let broken: [(&[u8], Option<u8>); 6] = [
        (b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n", Some(3)),
        (&long, Some(3)),
        (&[0; 64], Some(4)),
        (&[&hello()[..], &[0xff; 4096]].concat(), None),
        (&[&hello()[..], &many_arguments, &frame(3, [7, 2], b"\x05check\xff")].concat(), None),
        (&hello()[..30], None),
    ];
    let mut resident = 0;
    for turn in 0..200 {
        for (bytes, status) in broken {
            let mut peer = Peer::connect(address);
            peer.send(bytes);
            if let Some(status) = status {
                assert_eq!(peer.farewell(), status);
            } else {
                let _ = peer.stream.shutdown(Shutdown::Write);
                while peer.next().is_some() {}
            }
        }
        if turn == 50 {
            resident = weir.resident();
        }
    }
    assert!(weir.resident() < resident + 4 * 1024, "{} KiB, and {resident} before", weir.resident());
    assert_eq!(weir.metric("weir_panics_total"), 0);
    assert_eq!(weir.metric("weir_spoe_disconnects_total{reason=\"too_big\"}"), 600);
    good.send(&ask(1, 1));
    assert_eq!(good.answer(), (1, false));
}
