//! The cost of a connection and its requests: allocations, and the memory of an idle one.
//!
//! Each request of a connection goes through a real socket to a listener on this thread. Clients and upstreams have
//! threads of their own, whose allocations are not counted.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use bytes::Bytes;
use prost::Message;
use tokio::runtime::{Builder, LocalOptions, LocalRuntime};
use tokio::sync::Notify;

use super::grpc::messages::MapEntry;
use super::grpc::messages::authorization::{
    Address, AttributeContext, AttributeRequest, CheckRequest, HttpRequest, Peer, SocketAddress,
};
use super::grpc::messages::rate_limit::{RateLimitDescriptor, RateLimitRequest};
use super::grpc::{AddressSources, ConnectionAge, EnvoyLimits};
use super::proxy::AddedHeaders;
use super::*;
use crate::clock::Clock;
use crate::engine::algorithms::micros::Micros;
use crate::engine::algorithms::numbers::Numbers;
use crate::engine::answer::headers::Generations;
use crate::engine::limit::Limit;
use crate::engine::limit::allowance::Allowance;
use crate::engine::limit::fingerprint::Fingerprinter;
use crate::engine::limit::rules::Rules;
use crate::engine::request::part::{Part, TypedPart};
use crate::engine::request::value_type::ValueType;
use crate::http::{
    AcceptOptions, Admission, ConnectionLimits, HttpLimits, HttpOptions, Routes, Timeouts, UpstreamOptions, serve,
};
use crate::limiter::Shared;
use crate::message::client_address::TrustedProxies;
use crate::message::client_headers::ClientHeaders;
use crate::store::Store;
use crate::store::memory::MemoryStore;
use crate::telemetry::metrics::Metrics;

/// The time in which an idle connection gives back what it does not need.
const PATIENCE: Duration = Duration::from_secs(20);

/// Counts the allocations for each request of a connection: the difference between two connections of different lengths.
/// `talk` sends so many requests on a connection, one after the other.
fn allocations_per_request(options: &ListenerOptions, burst: u64, talk: fn(TcpStream, u32)) -> u64 {
    const MORE: u32 = 200;
    let runtime = runtime();
    let listener = runtime.block_on(async { Listener::new(limiter(burst), options) });
    let run = |requests| {
        let socket = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = socket.local_addr().unwrap();
        let client = thread::spawn(move || talk(TcpStream::connect(address).unwrap(), requests));
        let (stream, peer) = socket.accept().unwrap();
        stream.set_nonblocking(true).unwrap();
        let connection = async {
            let stream = Stream::Tcp(tokio::net::TcpStream::from_std(stream).unwrap());
            serve(listener.clone().open(stream, peer.ip(), CancellationToken::new())).await;
        };
        let counted = allocation_counter::measure(|| runtime.block_on(connection));
        client.join().unwrap();
        counted.count_total
    };
    // What the first requests allocate is kept for all others.
    run(20);
    let (few, many) = (run(20), run(20 + MORE));
    // Rounded, because the replies to denied requests change every second.
    (many - few + u64::from(MORE) / 2) / u64::from(MORE)
}

fn runtime() -> LocalRuntime {
    Builder::new_current_thread().enable_all().build_local(LocalOptions::default()).unwrap()
}

/// A limiter with a limit of requests, by address, and one of descriptors.
fn limiter(burst: u64) -> Rc<Limiter> {
    let allowance = || Allowance::Windows([Numbers::new(burst, 1, 1_000_000_000).unwrap()].into());
    let requests = Limit { allowance: allowance(), ..Limit::new("Requests") };
    let address = TypedPart::new(Part::Descriptor("remote_address".into()), ValueType::Text);
    let descriptors = Limit { allowance: allowance(), by: vec![address], ..Limit::new("Descriptors") };
    let rules = Rules::new(vec![requests, descriptors], Fingerprinter::new((1, 2)), Micros(0), Vec::new());
    let store = || MemoryStore::new(10);
    let shared = Arc::new(Shared::new(rules, Arc::new(Metrics::new().unwrap()), store()));
    Rc::new(Limiter::new(shared, Store::Memory(Arc::new(store()))))
}

fn front() -> FrontendOptions {
    let http = HttpOptions {
        accept: AcceptOptions::default(),
        trusted_proxies: TrustedProxies::default(),
        client_headers: ClientHeaders::default(),
        timeouts: Timeouts::default(),
        limits: HttpLimits::default(),
        admission: Admission::new(ConnectionLimits::default()),
    };
    let generations = Generations::default();
    FrontendOptions { http, clock: Clock::machine(), generations, access_log: None, traces: None }
}

/// A proxy of a server at this address.
fn proxy(upstream: SocketAddr) -> ListenerOptions {
    let upstream = UpstreamOptions::new(Routes::parse(&[format!("http://{upstream}")]).unwrap());
    ListenerOptions::Proxy(ProxyOptions {
        front: front(),
        upstream,
        added: AddedHeaders::default(),
        redirect_port: None,
    })
}

/// A server of one connection that answers every request.
fn upstream() -> (SocketAddr, JoinHandle<()>) {
    let socket = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = socket.local_addr().unwrap();
    let serve = move || {
        let (mut stream, _) = socket.accept().unwrap();
        while read_to(&mut stream, b"\r\n\r\n") {
            let answer = b"HTTP/1.1 200 OK\r\nServer: one\r\nDate: Mon, 01 Jan 2024 00:00:00 GMT\r\n\
                Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{}";
            stream.write_all(answer).unwrap();
        }
    };
    (address, thread::spawn(serve))
}

/// Reads what ends with these bytes; false at the end of the connection.
fn read_to(stream: &mut TcpStream, end: &[u8]) -> bool {
    let (mut buffer, mut length) = ([0; 4096], 0);
    while !buffer[..length].ends_with(end) {
        match stream.read(&mut buffer[length..]).unwrap() {
            0 => return false,
            count => length += count,
        }
    }
    true
}

/// Sends requests over HTTP/1.1. All answers end with a brace, those of the upstream and those to denied requests.
fn talk_http1(mut stream: TcpStream, requests: u32) {
    for _ in 0..requests {
        let request =
            b"GET /orders/7?a=b HTTP/1.1\r\nHost: api.example.com\r\nUser-Agent: curl/8\r\nAccept: */*\r\n\r\n";
        stream.write_all(request).unwrap();
        assert!(read_to(&mut stream, b"}"));
    }
}

/// The gRPC listener.
fn grpc() -> ListenerOptions {
    ListenerOptions::Grpc(EnvoyOptions {
        front: front(),
        address_sources: AddressSources::default(),
        connection_age: ConnectionAge::default(),
        limits: EnvoyLimits::default(),
        readiness: Arc::default(),
    })
}

/// Asks the rate limit service about one descriptor, again and again.
fn talk_rate_limit(stream: TcpStream, requests: u32) {
    let entry = RateLimitDescriptor {
        entries: vec![MapEntry { key: "remote_address".into(), value: "192.0.2.1".into() }],
        ..RateLimitDescriptor::default()
    };
    let call = RateLimitRequest { domain: "api".into(), descriptors: vec![entry], hits_addend: 0 };
    talk_grpc(stream, requests, "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit", &call);
}

/// Asks for the authorization of a request with nine headers, again and again.
fn talk_authorization(stream: TcpStream, requests: u32) {
    let names = ["user-agent", "accept", "accept-language", "accept-encoding", "cookie", "referer"];
    let names = names.into_iter().chain(["x-request-id", "x-forwarded-proto", "x-account-id", ":authority"]);
    let http = HttpRequest {
        method: "GET".into(),
        path: "/v1/things?x=1".into(),
        host: "api.example.com".into(),
        headers: names.map(|name| MapEntry { key: name.into(), value: "some value".into() }).collect(),
        header_map: None,
    };
    let address = Some(Address { socket_address: Some(SocketAddress { address: "192.0.2.1".into() }) });
    let attributes = AttributeContext {
        source: Some(Peer { address, ..Peer::default() }),
        request: Some(AttributeRequest { http: Some(http) }),
        context_extensions: Vec::new(),
    };
    let call = CheckRequest { attributes: Some(attributes) };
    talk_grpc(stream, requests, "envoy.service.auth.v3.Authorization/Check", &call);
}

/// Sends a call, again and again.
fn talk_grpc(stream: TcpStream, requests: u32, method: &str, message: &impl Message) {
    let message = message.encode_to_vec();
    let call = Bytes::from([&[0][..], &u32::try_from(message.len()).unwrap().to_be_bytes(), &message].concat());
    Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
        stream.set_nonblocking(true).unwrap();
        let stream = tokio::net::TcpStream::from_std(stream).unwrap();
        let (mut client, connection) = h2::client::handshake(stream).await.unwrap();
        let calls = async {
            for _ in 0..requests {
                let request = ::http::Request::post(format!("http://weir/{method}"));
                let request = request.header("content-type", "application/grpc").body(()).unwrap();
                let (answer, mut body) = client.send_request(request, false).unwrap();
                body.send_data(call.clone(), true).unwrap();
                let mut answer = answer.await.unwrap().into_body();
                while let Some(data) = answer.data().await {
                    answer.flow_control().release_capacity(data.unwrap().len()).unwrap();
                }
                let trailers = answer.trailers().await.unwrap().unwrap();
                assert_eq!(trailers["grpc-status"], "0");
            }
            drop(client);
        };
        let (ended, ()) = tokio::join!(connection, calls);
        ended.unwrap();
    });
}

#[track_caller]
fn check_grpc(talk: fn(TcpStream, u32), most: u64) {
    let allocations = allocations_per_request(&grpc(), 1_000_000, talk);
    assert!(allocations <= most, "{allocations} allocations for each decision");
}

/// Six of them are the maps of headers that the HTTP/2 library takes and gives.
#[test]
fn decisions_over_grpc_allocate_little() {
    check_grpc(talk_rate_limit, 16);
}

#[test]
fn authorizations_over_grpc_allocate_little() {
    check_grpc(talk_authorization, 16);
}

#[track_caller]
fn check_http1(burst: u64, most: u64) {
    let (address, upstream) = upstream();
    let allocations = allocations_per_request(&proxy(address), burst, talk_http1);
    upstream.join().unwrap();
    assert!(allocations <= most, "{allocations} allocations for each request");
}

#[test]
fn requests_over_http1_allocate_little() {
    check_http1(1_000_000, 3);
}

#[test]
fn denied_requests_over_http1_allocate_little() {
    check_http1(1, 3);
}

/// Expects a connection to hold `most` bytes on the heap in the end, its task included, while it is idle after its requests.
/// `talk` returns when it has its answers, and what keeps the connection open.
#[track_caller]
fn check_idle<C: Send + 'static>(options: &ListenerOptions, talk: fn(TcpStream, u32) -> C, most: i64) {
    let runtime = runtime();
    let listener = runtime.block_on(async { Listener::new(limiter(1_000_000), options) });
    let run = |most| {
        let socket = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = socket.local_addr().unwrap();
        // Kept until all is measured: whether this thread or the client's frees it last would be in the count.
        let answered = Arc::new(Notify::new());
        let tell = answered.clone();
        let (measured, is_measured) = std::sync::mpsc::channel::<()>();
        let client = thread::spawn(move || {
            let _open = talk(TcpStream::connect(address).unwrap(), 3);
            tell.notify_one();
            is_measured.recv().unwrap_err();
        });
        let (stream, peer) = socket.accept().unwrap();
        stream.set_nonblocking(true).unwrap();
        let mut task = None;
        let served = allocation_counter::measure(|| {
            runtime.block_on(async {
                let stream = Stream::Tcp(tokio::net::TcpStream::from_std(stream).unwrap());
                let opening = listener.clone().open(stream, peer.ip(), CancellationToken::new());
                task = Some(tokio::task::spawn_local(serve(opening)));
                answered.notified().await;
            });
        });
        let (start, mut held) = (Instant::now(), served.bytes_current);
        while held > most && start.elapsed() < PATIENCE {
            let waited = allocation_counter::measure(|| {
                runtime.block_on(async { tokio::time::sleep(Duration::from_millis(5)).await });
            });
            held += waited.bytes_current;
        }
        drop(measured);
        client.join().unwrap();
        runtime.block_on(task.unwrap()).unwrap();
        held
    };
    // What the first connections allocate is kept for all others.
    run(i64::MAX);
    run(i64::MAX);
    let held = run(most);
    assert!(held <= most, "{held} bytes");
}

#[test]
fn an_idle_connection_over_http1_holds_little() {
    let (address, upstream) = upstream();
    let talk = |stream: TcpStream, requests| {
        let open = stream.try_clone().unwrap();
        talk_http1(stream, requests);
        open
    };
    check_idle(&proxy(address), talk, 2_300);
    upstream.join().unwrap();
}

/// Sends requests at once over HTTP/2. The library holds 28 KiB of buffers for each connection.
#[test]
fn an_idle_connection_over_http2_holds_nothing_of_its_streams() {
    let talk = |stream: TcpStream, requests| {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let client = runtime.block_on(async {
            stream.set_nonblocking(true).unwrap();
            let stream = tokio::net::TcpStream::from_std(stream).unwrap();
            let (mut client, connection) = h2::client::handshake(stream).await.unwrap();
            tokio::spawn(connection);
            let request = ::http::Request::get("http://weir/").body(()).unwrap();
            let asked: Vec<_> = (0..requests).map(|_| client.send_request(request.clone(), true).unwrap().0).collect();
            for answer in asked {
                let mut body = answer.await.unwrap().into_body();
                while body.data().await.is_some() {}
            }
            client
        });
        (runtime, client)
    };
    check_idle(&grpc(), talk, 45_000);
}
