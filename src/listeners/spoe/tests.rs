//! Conversations with the listener, frame by frame.

use std::str;
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::time::sleep;

use super::connection::next;
use super::data::Reader;
use super::frame::MAX_FRAME;
use super::frame::tests::{disconnect, frame, hello, notify};
use super::*;
use crate::engine::algorithms::micros::Micros;
use crate::engine::algorithms::numbers::Numbers;
use crate::engine::limit::allowance::Allowance;
use crate::engine::limit::fingerprint::Fingerprinter;
use crate::engine::limit::rules::Rules;
use crate::engine::limit::{Cost, Limit};
use crate::engine::request::part::{Part, TypedPart};
use crate::engine::request::value_type::ValueType;
use crate::limiter::Shared;
use crate::store::Store;
use crate::store::memory::MemoryStore;
use crate::telemetry::metrics::Metrics;

/// Three requests for each address, ever; a cost that is asked for is taken.
fn spoe(timeouts: SpoeTimeouts) -> Rc<Spoe> {
    let limit = Limit {
        by: vec![TypedPart::new(Part::Ip { ipv6_prefix: 64 }, ValueType::Address)],
        allowance: Allowance::Windows([Numbers::fixed(3).unwrap()].into()),
        cost: Cost::Part(Part::Query("cost".into())),
        ..Limit::new("PerAddress")
    };
    let rules = Rules::new(vec![limit], Fingerprinter::new((1, 2)), Micros(0), Vec::new());
    let store = || MemoryStore::new(1_000);
    let shared = Shared::new(rules, Arc::new(Metrics::new().unwrap()), store());
    let limiter = Rc::new(Limiter::new(Arc::new(shared), Store::Memory(Arc::new(store()))));
    let options = SpoeOptions { timeouts, ..SpoeOptions::sample() };
    Spoe::new(limiter, &options)
}

/// A NOTIFY of a request from an address.
fn ask(frame: u64, source: &str, target: &str) -> Vec<u8> {
    let text = |text: &'static str| Data::Text(text.as_bytes());
    let target = Data::Text(target.as_bytes());
    notify(7, frame, "check", &[("method", text("GET")), ("src", Data::Text(source.as_bytes())), ("uri", target)])
}

fn framed(bodies: &[Vec<u8>]) -> Vec<u8> {
    let length = |body: &Vec<u8>| u32::try_from(body.len()).unwrap().to_be_bytes();
    bodies.iter().flat_map(|body| [&length(body)[..], body].concat()).collect()
}

/// A frame of ours in words: `HELLO version=2.0 ...`, `ACK stream frame variable=value ...`, `DISCONNECT ...`.
fn words(body: &[u8]) -> String {
    let mut reader = Reader::new(body);
    let kind = reader.byte().unwrap();
    assert_eq!(u32::from_be_bytes(reader.array().unwrap()), 1, "no fragment");
    let ids = [reader.integer().unwrap(), reader.integer().unwrap()];
    let mut words = match kind {
        101 => "HELLO".to_owned(),
        102 => "DISCONNECT".to_owned(),
        103 => format!("ACK {} {}", ids[0], ids[1]),
        _ => panic!("{kind}"),
    };
    while !reader.is_empty() {
        if kind == 103 {
            assert_eq!(reader.array(), Ok([1, 3, 2]), "a variable of the transaction is set");
        }
        let name = str::from_utf8(reader.string().unwrap()).unwrap();
        let value = match reader.data().unwrap() {
            Data::Text(text) => str::from_utf8(text).unwrap().to_owned(),
            Data::Bool(value) => value.to_string(),
            Data::Unsigned(value) => value.to_string(),
            other => panic!("{other:?}"),
        };
        words = format!("{words} {name}={value}");
    }
    words
}

/// The other end of a connection.
struct Peer {
    stream: DuplexStream,
    input: Vec<u8>,
}

impl Peer {
    async fn send(&mut self, bodies: &[Vec<u8>]) {
        self.stream.write_all(&framed(bodies)).await.unwrap();
    }

    /// The next frame in words; `closed` at the end.
    async fn next(&mut self) -> String {
        loop {
            if let Some((body, length)) = next(&self.input, MAX_FRAME).unwrap() {
                let words = words(body);
                self.input.drain(..length);
                return words;
            }
            if self.stream.read_buf(&mut self.input).await.unwrap() == 0 {
                return "closed".to_owned();
            }
        }
    }

    /// The frames until the end.
    async fn rest(&mut self) -> Vec<String> {
        let mut all = Vec::new();
        loop {
            match self.next().await {
                end if end == "closed" => return all,
                frame => all.push(frame),
            }
        }
    }
}

/// Lets a peer talk to the listener.
async fn converse(spoe: &Spoe, drain: &CancellationToken, talk: impl AsyncFnOnce(Peer)) {
    let (ours, theirs) = duplex(64 * 1024);
    let peer = Peer { stream: theirs, input: Vec::new() };
    let connection = Connection::new(spoe, ours, [127, 0, 0, 1].into());
    tokio::join!(connection.serve(drain), talk(peer));
}

/// Sends some frames and expects these answers, which begin so, and then the end.
#[track_caller]
fn check(bodies: &[Vec<u8>], expected: &[&str]) {
    check_with(&spoe(SpoeTimeouts::default()), &framed(bodies), expected);
}

#[track_caller]
fn check_with(spoe: &Spoe, bytes: &[u8], expected: &[&str]) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut found = Vec::new();
    let drain = CancellationToken::new();
    runtime.block_on(converse(spoe, &drain, async |mut peer| {
        peer.stream.write_all(bytes).await.unwrap();
        found = peer.rest().await;
    }));
    let fits = |(found, expected): (&String, &&str)| found.starts_with(expected);
    assert!(found.len() == expected.len() && found.iter().zip(expected).all(fits), "{found:#?}");
}

const HELLO: &str = "HELLO version=2.0 max-frame-size=16380 capabilities=pipelining";

#[test]
fn questions_are_answered_in_variables() {
    let ask = |frame, target| ask(frame, "192.0.2.7", target);
    check(
        &[hello(&[]), ask(1, "/"), ask(2, "/?cost=2"), ask(300, "/"), ask(4, "/?cost=x"), ask(5, "/%"), disconnect(0)],
        &[
            HELLO,
            "ACK 7 1 deny=false ratelimit_policy=\"PerAddress\";q=3 ratelimit=\"PerAddress\";r=2",
            "ACK 7 2 deny=false ratelimit_policy=\"PerAddress\";q=3 ratelimit=\"PerAddress\";r=0",
            "ACK 7 300 deny=true status=429 content_type=application/problem+json cache_control=no-store \
             ratelimit_policy=\"PerAddress\";q=3 ratelimit=\"PerAddress\";r=0 body={\"type\":\"https://iana.org/",
            "ACK 7 4 deny=true status=429 content_type=application/problem+json cache_control=no-store body=",
            "ACK 7 5 deny=true status=400 content_type=application/problem+json body=",
            "DISCONNECT status-code=0 message=normal",
        ],
    );
}

#[test]
fn a_message_of_another_name_gets_an_empty_answer() {
    let other = notify(7, 1, "other", &[("", Data::Null)]);
    check(&[hello(&[]), other, disconnect(2)], &[HELLO, "ACK 7 1", "DISCONNECT status-code=0"]);
}

#[test]
fn a_health_check_is_told_that_all_is_well() {
    let expected = "HELLO version=2.0 max-frame-size=16380 capabilities=";
    check(&[hello(&[("healthcheck", Data::Bool(true)), ("capabilities", Data::Text(b""))])], &[expected]);
}

#[test]
fn an_answer_fits_into_what_was_agreed() {
    let small = hello(&[("max-frame-size", Data::Unsigned(256))]);
    let asked = ask(1, "192.0.2.7", "/?cost=4");
    let hello = "HELLO version=2.0 max-frame-size=256";
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let drain = CancellationToken::new();
    runtime.block_on(converse(&spoe(SpoeTimeouts::default()), &drain, async |mut peer| {
        peer.send(&[small, asked, disconnect(0)]).await;
        assert!(peer.next().await.starts_with(hello));
        let ack = peer.next().await;
        assert!(ack.contains("deny=true status=429") && !ack.contains("body="), "{ack}");
        assert_eq!(peer.rest().await.len(), 1);
    }));
}

#[test]
fn what_is_no_frame_ends_the_connection_with_the_reason() {
    let ask = || ask(1, "192.0.2.7", "/");
    let fragment = frame(3, 0, 7, 1, b"");
    for (bodies, expected) in [
        (vec![ask()], vec!["DISCONNECT status-code=4 message=invalid frame received"]),
        (vec![hello(&[("supported-versions", Data::Null)])], vec!["DISCONNECT status-code=5"]),
        (vec![hello(&[]), hello(&[])], vec![HELLO, "DISCONNECT status-code=4"]),
        // What came before it is answered.
        (vec![hello(&[]), ask(), fragment, ask()], vec![HELLO, "ACK 7 1 deny=false", "DISCONNECT status-code=10"]),
        (vec![hello(&[]), ask(), vec![], ask()], vec![HELLO, "ACK 7 1 deny=false", "DISCONNECT status-code=4"]),
        (vec![hello(&[]), vec![3; 16_381]], vec![HELLO, "DISCONNECT status-code=3"]),
        (vec![hello(&[]), disconnect(0), ask()], vec![HELLO, "DISCONNECT status-code=0"]),
    ] {
        check(&bodies, &expected);
    }
    let spoe = spoe(SpoeTimeouts::default());
    check_with(&spoe, b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n", &["DISCONNECT status-code=3"]);
    let metrics = spoe.limiter.shared().metrics().render().unwrap();
    assert!(str::from_utf8(&metrics).unwrap().contains("weir_spoe_disconnects_total{reason=\"too_big\"} 1"));
}

#[test]
fn what_does_not_come_in_time_is_not_waited_for() {
    let long = Duration::from_mins(10);
    let soon = Duration::from_millis(20);
    let hello = framed(&[hello(&[])]);
    let begun = [&hello[..], &framed(&[ask(1, "192.0.2.7", "/")])[..20]].concat();
    for (timeouts, bytes, expected) in [
        (SpoeTimeouts { hello: soon, frame: long, idle: long }, &b""[..], &["DISCONNECT status-code=2"][..]),
        (SpoeTimeouts { hello: long, frame: soon, idle: long }, &hello[..20], &["DISCONNECT status-code=2"]),
        (SpoeTimeouts { hello: long, frame: long, idle: soon }, &hello, &[HELLO, "DISCONNECT status-code=2"]),
        (SpoeTimeouts { hello: long, frame: soon, idle: long }, &begun, &[HELLO, "DISCONNECT status-code=2"]),
    ] {
        check_with(&spoe(timeouts), bytes, expected);
    }
}

#[tokio::test]
async fn many_questions_at_once_are_all_answered_in_their_order() {
    let spoe = spoe(SpoeTimeouts::default());
    converse(&spoe, &CancellationToken::new(), async |mut peer| {
        peer.send(&[hello(&[])]).await;
        assert_eq!(peer.next().await, HELLO);
        let all: Vec<_> = (0..200).map(|frame| ask(frame, &format!("192.0.2.{frame}"), "/")).collect();
        peer.send(&all).await;
        for frame in 0..200 {
            let answer = peer.next().await;
            assert!(answer.starts_with(&format!("ACK 7 {frame} deny=false")), "{answer}");
        }
        peer.send(&[disconnect(0)]).await;
        assert_eq!(peer.rest().await, ["DISCONNECT status-code=0 message=normal"]);
    })
    .await;
}

#[tokio::test]
async fn at_the_end_what_has_begun_is_answered() {
    let (spoe, drain) = (spoe(SpoeTimeouts::default()), CancellationToken::new());
    converse(&spoe, &drain, async |mut peer| {
        let asked = framed(&[ask(1, "192.0.2.7", "/")]);
        peer.send(&[hello(&[])]).await;
        assert_eq!(peer.next().await, HELLO);
        peer.stream.write_all(&asked[..20]).await.unwrap();
        // The listener has read that when it has had a turn.
        tokio::task::yield_now().await;
        drain.cancel();
        tokio::task::yield_now().await;
        peer.stream.write_all(&asked[20..]).await.unwrap();
        assert!(peer.next().await.starts_with("ACK 7 1 deny=false"));
        assert_eq!(peer.rest().await, ["DISCONNECT status-code=0 message=normal"]);
    })
    .await;
}

#[tokio::test]
async fn a_farewell_waits_no_longer_than_it_takes() {
    let spoe = spoe(SpoeTimeouts::default());
    converse(&spoe, &CancellationToken::new(), async |mut peer| {
        peer.send(&[hello(&[("supported-versions", Data::Null)])]).await;
        assert_eq!(peer.rest().await.len(), 1);
        // It does not close, and the listener ends all the same, or this test would not.
        sleep(Duration::from_millis(1_100)).await;
    })
    .await;
}

/// The bytes that `HAProxy` 2.6 sends.
#[test]
fn frames_of_haproxy_are_read() {
    let hello = b"\x01\0\0\0\x01\0\0\x12supported-versions\x08\x032.0\x0emax-frame-size\x03\xfc\xf0\x06\
        \x0ccapabilities\x08\x10pipelining,async\x09engine-id\x08\x24fa09fd23-2a27-4280-8652-039e7f29cc9b";
    let health = b"\x01\0\0\0\x01\0\0\x12supported-versions\x08\x032.0\x0emax-frame-size\x03\xfc\xf0\x06\
        \x0ccapabilities\x08\0\x0bhealthcheck\x11";
    let asked = b"\x03\0\0\0\x01\xfa\x81\x22\x01\x05check\x05\x06method\x08\x03GET\x04path\x08\x05/v1/a\
        \x05query\x08\x03b=c\x03src\x06\x7f\0\0\x01\x07headers\x09?\x04host\x0e127.0.0.1:8100\
        \x0auser-agent\x0bcurl/7.88.1\x06accept\x03*/*\x04x-id\x017\0\0";
    check(&[health.to_vec()], &["HELLO version=2.0 max-frame-size=16380 capabilities="]);
    let answers = [HELLO, "ACK 71946 1 deny=false", "DISCONNECT status-code=0"];
    check(&[hello.to_vec(), asked.to_vec(), disconnect(2)], &answers);
}
