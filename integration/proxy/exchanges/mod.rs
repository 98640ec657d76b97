//! Random exchanges through the proxy as users start it. A request reaches its upstream byte for byte or visibly cut off, and
//! so does its response, with all protocols, sizes and ends of bodies, even if one side leaves midway.
//!
//! Both ends draw an exchange from its number, which is in the request's path and comes back with the response.

mod client;
mod http1;
mod http2;
mod plan;
mod upstream;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::BytesMut;
use parking_lot::Mutex;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Builder;
use tokio::task::JoinSet;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use self::http1::Io;
use self::plan::{Course, Plan, RULES, Side};
use super::upstream_tls::server_config;
use crate::support::certificates::Authority;
use crate::support::weir::Weir;

/// Exchanges for each pair of a client's and an upstream's side: 2,000 in all.
const ROUNDS: u64 = 125;

/// Clients of each side at a time.
const CLIENTS: u64 = 4;

/// Failures that are shown.
const ENOUGH: usize = 10;

/// A body as it was received.
#[derive(Debug)]
struct Received {
    body: BytesMut,
    trailers: Vec<(String, String)>,
    end: End,
}

/// The end of a body.
#[derive(Debug, PartialEq, Eq)]
enum End {
    Whole,
    /// The other end broke off.
    Cut(String),
    /// The other end closed the connection.
    Closed,
    /// This end wants no more.
    Left,
    /// The other end does not speak HTTP.
    Malformed(String),
}

/// A response as its client received it.
#[derive(Debug)]
struct Answer {
    status: Option<u16>,
    /// The number of the exchange that the upstream answered. The proxy's own answers have none.
    mark: Option<String>,
    received: Received,
}

impl Answer {
    fn none(end: End) -> Self {
        Self { status: None, mark: None, received: Received { body: BytesMut::new(), trailers: Vec::new(), end } }
    }
}

/// Shared by all clients and upstreams.
struct World {
    seed: u64,
    /// The proxies, without and with TLS.
    plain: SocketAddr,
    tls: SocketAddr,
    /// The clients' configurations for TLS, with HTTP/1 and with HTTP/2.
    configs: [Arc<ClientConfig>; 2],
    /// The number of times that each request came.
    begun: Mutex<HashMap<u64, usize>>,
    /// Connections of HTTP/1 to upstreams.
    accepted: AtomicUsize,
    failures: Mutex<Vec<String>>,
}

impl World {
    fn plan(&self, number: u64) -> Plan {
        Plan::of(self.seed, number)
    }

    fn fail(&self, failure: String) {
        self.failures.lock().push(failure);
    }

    /// Returns whether there is no need to go on.
    fn has_failed(&self) -> bool {
        self.failures.lock().len() >= ENOUGH
    }

    /// Returns the plan of a request that came to an upstream; `None` if nobody sent it.
    fn begin(&self, side: Side, method: &str, path: &str) -> Option<Plan> {
        let plan = Plan::number_in(path).map(|number| self.plan(number));
        let known = plan.filter(|plan| (plan.upstream, plan.method) == (side, method) && plan.path() == path);
        let Some(plan) = known else {
            self.fail(format!("nobody sent this to {}: {method} {path}", side.name()));
            return None;
        };
        let mut begun = self.begun.lock();
        let times = begun.entry(plan.number).or_default();
        *times += 1;
        if *times > 1 && plan.method == "POST" {
            self.fail(format!("it came {times} times: {plan:?}"));
        }
        Some(plan)
    }

    /// Checks a request's body at the upstream.
    fn check_request(&self, plan: &Plan, received: &Received) {
        // An upstream that has answered needs no more of it.
        let may_end_early = plan.course != Course::Ordinary;
        let trailers = plan.forwarded_trailers();
        self.check(plan, "request", &plan.request.bytes, &trailers, may_end_early, received);
    }

    fn check_response(&self, plan: &Plan, Answer { status, mark, received }: &Answer) {
        let upstream_leaves = matches!(
            plan.course,
            Course::UpstreamLeavesUpload(_) | Course::UpstreamLeavesDownload(_) | Course::Early { reads_on: false }
        );
        let is_own = mark.as_ref() == Some(&plan.number.to_string()) && *status == Some(plan.status);
        let is_failure = mark.is_none() && upstream_leaves;
        if !is_own && !is_failure {
            self.fail(format!("answered by {status:?} of {mark:?}, {received:?}, in {plan:?}"));
        }
        if is_own {
            let (body, trailers) = (plan.expected_response(), plan.expected_trailers());
            self.check(plan, "response", &body, &trailers, upstream_leaves, received);
        }
    }

    fn check(
        &self,
        plan: &Plan,
        what: &str,
        expected: &[u8],
        trailers: &[(String, String)],
        may_end_early: bool,
        Received { body, trailers: given, end }: &Received,
    ) {
        let fail = |error: String| self.fail(format!("the {what} {error}: {plan:?}"));
        if !expected.starts_with(body) {
            let same = expected.iter().zip(body).take_while(|(expected, given)| expected == given).count();
            return fail(format!("differs after {same} of {} bytes ({} came)", expected.len(), body.len()));
        }
        match end {
            End::Whole if body.len() < expected.len() => {
                fail(format!("ends after {} of {} bytes", body.len(), expected.len()));
            }
            End::Whole if given != trailers => fail(format!("has the trailers {given:?}, not {trailers:?}")),
            End::Malformed(error) => fail(format!("is malformed: {error}")),
            End::Cut(_) | End::Closed if !may_end_early => {
                fail(format!("was cut off after {} bytes ({end:?})", body.len()));
            }
            _ => {}
        }
    }

    /// Opens a connection to the proxy.
    async fn connect(&self, side: Side) -> Box<dyn Io> {
        let stream = TcpStream::connect(if side.is_tls { self.tls } else { self.plain }).await.unwrap();
        stream.set_nodelay(true).unwrap();
        if !side.is_tls {
            return Box::new(stream);
        }
        let config = self.configs[usize::from(side.is_http2)].clone();
        let name = ServerName::try_from("a.example").unwrap();
        Box::new(TlsConnector::from(config).connect(name, stream).await.unwrap())
    }

    async fn accept(self: Arc<Self>, side: Side, listener: TcpListener, tls: Option<TlsAcceptor>) {
        while let Ok((stream, _)) = listener.accept().await {
            let (world, tls) = (self.clone(), tls.clone());
            tokio::spawn(async move {
                stream.set_nodelay(true).unwrap();
                let Some(tls) = tls else { return world.serve(side, side.is_http2, stream).await };
                if let Ok(stream) = tls.accept(stream).await {
                    // For an upgrade, the proxy does not offer HTTP/2.
                    let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
                    world.serve(side, is_http2, stream).await;
                }
            });
        }
    }

    async fn serve(self: Arc<Self>, side: Side, is_http2: bool, stream: impl Io) {
        if is_http2 {
            return upstream::serve_http2(self, side, stream).await;
        }
        self.accepted.fetch_add(1, Ordering::Relaxed);
        upstream::serve_http1(self, side, stream).await;
    }
}

/// The seed of an earlier run, or another one.
fn seed() -> u64 {
    std::env::var("WEIR_EXCHANGES_SEED").map_or_else(|_| rand::random(), |seed| seed.parse().unwrap())
}

#[test]
fn every_body_arrives_whole_or_visibly_cut_off() {
    let (seed, authority) = (seed(), Authority::new());
    authority.sign("weir", &["a.example"]);
    let mut config = server_config(&authority, &["localhost"]);
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let listeners = Side::ALL.map(|side| (side, runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap()));
    let upstreams = listeners.each_ref().map(|(side, listener)| {
        let server = match (side.is_tls, side.is_http2) {
            (true, _) => "https://localhost",
            (false, true) => "h2c://127.0.0.1",
            (false, false) => "http://127.0.0.1",
        };
        format!("/{}={server}:{}", side.name(), listener.local_addr().unwrap().port())
    });
    let ca = authority.file("ca.pem");
    // A busy machine may take its time for the handshakes of all clients.
    let mut flags = vec!["--workers", "1", "--connect-timeout", "20s", "--upstream-ca", &ca];
    flags.extend(upstreams.iter().flat_map(|upstream| ["--upstream", upstream]));
    let plain = Weir::serve(RULES, &flags);
    let (certificate, key) = (authority.file("weir.pem"), authority.file("weir.key"));
    flags.extend(["--tls-cert", &certificate, "--tls-key", &key]);
    let tls = Weir::serve(RULES, &flags);
    let world = Arc::new(World {
        seed,
        plain: plain.proxy,
        tls: tls.proxy,
        configs: [&["http/1.1"], &["h2"]].map(|protocols| authority.client(None, protocols)),
        begun: Mutex::default(),
        accepted: AtomicUsize::new(0),
        failures: Mutex::default(),
    });
    runtime.block_on(async {
        for (side, listener) in listeners {
            let protocols: &[&[u8]] = if side.is_http2 { &[b"h2", b"http/1.1"] } else { &[b"http/1.1"] };
            config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
            let tls = side.is_tls.then(|| TlsAcceptor::from(Arc::new(config.clone())));
            tokio::spawn(world.clone().accept(side, listener, tls));
        }
        let mut clients = JoinSet::new();
        for client in 0..CLIENTS {
            for (place, side) in (0..).zip(Side::ALL) {
                let rounds = (client..ROUNDS).step_by(usize::try_from(CLIENTS).unwrap());
                let numbers = rounds.flat_map(|round| (0..4).map(move |upstream| (round * 4 + upstream) * 4 + place));
                if side.is_http2 {
                    clients.spawn(client::over_http2(world.clone(), side, numbers.collect()));
                } else {
                    clients.spawn(client::over_http1(world.clone(), side, numbers.collect()));
                }
            }
        }
        clients.join_all().await;
    });
    for weir in [plain, tls] {
        assert!(!weir.log().contains("panicked"), "{}", weir.log());
    }
    let failures = world.failures.lock();
    let first: Vec<_> = failures.iter().take(ENOUGH).map(|failure| format!("\n{failure:.600}")).collect();
    assert!(failures.is_empty(), "{} with WEIR_EXCHANGES_SEED={seed}:{}", failures.len(), first.concat());
    let (exchanges, accepted) = (world.begun.lock().len(), world.accepted.load(Ordering::Relaxed));
    assert!(accepted < exchanges / 3, "{accepted} connections for {exchanges} exchanges: few were used again");
}
