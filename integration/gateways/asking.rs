//! Asks as a client does and checks the answers against the table.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use serde_json::Value;
use socket2::{Domain, Socket, Type};

use super::Chain;
use super::table::{Policy, Row, Step};
use crate::support::upstream::Upstream;
use crate::support::wire::{Message, Wire};

/// The seconds by which a time may be shorter than in the table, because the bucket refills meanwhile. The next token
/// takes a minute.
const FILLING: u64 = 45;

/// The client's identity.
#[derive(Clone, Copy)]
pub(super) struct Asked {
    /// The address that it connects from.
    pub(super) from: IpAddr,
    /// The load balancer's claim.
    pub(super) forwarded_for: Option<&'static str>,
}

impl Asked {
    pub(super) fn get(self, gateway: SocketAddr) -> Message {
        self.get_of(gateway, "www.example.com")
    }

    pub(super) fn get_of(self, gateway: SocketAddr, host: &str) -> Message {
        self.ask(gateway, &format!("GET / HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n"), false)
    }

    fn step(self, gateway: SocketAddr, step: &Step) -> Message {
        let mut head = format!("{} {} HTTP/1.1\r\nhost: {}\r\n", step.method, step.target, step.host);
        for (name, value) in
            step.headers.iter().copied().chain(self.forwarded_for.map(|value| ("x-forwarded-for", value)))
        {
            head.extend([name, ": ", value, "\r\n"]);
        }
        if !step.body.is_empty() {
            head.extend(["content-length: ", &step.body.len().to_string(), "\r\n"]);
        }
        head += "connection: close\r\n\r\n";
        self.ask(gateway, &(head + step.body), step.method == "HEAD")
    }

    /// Posts JSON, with one more header.
    pub(super) fn post(self, gateway: SocketAddr, path: &str, header: &str, body: &str) -> Message {
        let length = body.len();
        let head = format!("POST {path} HTTP/1.1\r\nhost: www.example.com\r\n{header}\r\nconnection: close\r\n");
        let kind = "content-type: application/json\r\naccept: application/json, text/event-stream\r\n";
        self.ask(gateway, &format!("{head}{kind}content-length: {length}\r\n\r\n{body}"), false)
    }

    fn ask(self, gateway: SocketAddr, request: &str, is_head: bool) -> Message {
        let socket = Socket::new(Domain::for_address(gateway), Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::new(self.from, 0).into()).unwrap();
        socket.connect(&gateway.into()).unwrap();
        let mut wire = Wire::new(socket.into());
        wire.send(request);
        if is_head { wire.head().unwrap() } else { wire.response() }
    }
}

/// Asks the rows' questions and checks each answer and the application's request.
#[track_caller]
pub(super) fn check_rows(chain: &Chain, application: &Upstream, rows: &[Row], asked: impl Fn(&Row) -> Asked) {
    let instead = chain.gateway.exceptions.rows;
    for row in rows.iter().map(|row| instead.iter().find(|other| other.what == row.what).unwrap_or(row)) {
        for (number, step) in row.steps.iter().enumerate() {
            let what = format!("{}, step {}", row.what, number + 1);
            let before = application.requests().len();
            let answer = asked(row).step(chain.address(), step);
            check_told(&what, chain, step, &answer);
            let forwarded = &application.requests()[before..];
            if step.told.status != 200 {
                assert!(forwarded.is_empty(), "{what}: the application got {forwarded:?}");
                continue;
            }
            let [request] = forwarded else { panic!("{what}: the application got {forwarded:?}") };
            let exceptions = chain.gateway.exceptions.forwards.iter();
            let target =
                exceptions.copied().find(|(sent, _)| *sent == step.target).map_or(step.target, |(_, seen)| seen);
            assert_eq!(request.start, format!("{} {target} HTTP/1.1", step.method), "{what}");
            assert_eq!(request.text(), step.body, "{what}");
            let expected =
                if step.method == "HEAD" { String::new() } else { format!("{} {}", request.start, step.body) };
            assert_eq!(answer.text(), expected, "{what}");
        }
    }
}

#[track_caller]
fn check_told(what: &str, chain: &Chain, step: &Step, answer: &Message) {
    let told = &step.told;
    let what = format!("{what}: {told:?}, but {answer:#?}\n{}", answer.text());
    assert_eq!(answer.status(), told.status, "{what}");
    let is_deny = told.status == 429 && told.policies.is_empty();
    let expected = if is_deny { chain.gateway.exceptions.policies_of_deny } else { told.policies };
    assert_eq!(policies(answer), expected.iter().map(described).collect(), "{what}");
    let left = members(answer, "ratelimit", ["r", "t"]);
    assert_eq!(left.len(), told.left.len(), "{what}");
    for (name, remaining, seconds) in told.left {
        let (given, reset) = left.get(*name).copied().unwrap_or_else(|| panic!("{name} is missing: {what}"));
        assert_eq!(given, *remaining, "{name}: {what}");
        check_seconds(reset, *seconds, &what);
    }
    let retry_after = answer.header("retry-after").map(|value| value.parse::<u64>().unwrap());
    assert_eq!(retry_after.is_some(), told.retry_after.is_some(), "{what}");
    if let (Some(given), Some(expected)) = (retry_after, told.retry_after) {
        check_seconds(given, expected, &what);
    }
    if told.status == 429 {
        check_denial(&what, chain, step, answer);
    }
}

#[track_caller]
fn check_denial(what: &str, chain: &Chain, step: &Step, answer: &Message) {
    let is_bare = chain.gateway.exceptions.bare_head && step.method == "HEAD";
    assert_eq!(answer.header("content-type"), (!is_bare).then_some("application/problem+json"), "{what}");
    assert_eq!(answer.header("cache-control"), Some("no-store"), "{what}");
    if step.method == "HEAD" {
        return;
    }
    if let Some(own) = chain.gateway.exceptions.denial {
        assert_eq!(answer.text(), own, "{what}");
        return;
    }
    let problem: Value = serde_json::from_str(answer.text()).unwrap();
    assert_eq!(problem["status"], 429, "{what}");
    assert_eq!(problem["violated-policies"], serde_json::json!(step.told.violated), "{what}");
}

#[track_caller]
fn check_seconds(given: u64, expected: u64, what: &str) {
    assert!((expected.saturating_sub(FILLING).max(1)..=expected).contains(&given), "{given}, not {expected}: {what}");
}

fn described((name, quota, window): &Policy) -> (String, (u64, u64)) {
    ((*name).to_owned(), (*quota, *window))
}

fn policies(answer: &Message) -> BTreeMap<String, (u64, u64)> {
    members(answer, "ratelimit-policy", ["q", "w"])
}

/// The members of a list with two integers each, from all its lines, read by another parser.
#[track_caller]
fn members(answer: &Message, header: &str, keys: [&str; 2]) -> BTreeMap<String, (u64, u64)> {
    let text = answer.all(header).join(", ");
    if text.is_empty() {
        return BTreeMap::new();
    }
    let list: sfv::List = sfv::Parser::new(&text).parse().unwrap_or_else(|error| panic!("{header}: {text}: {error}"));
    let members = list.iter().map(|entry| {
        let sfv::ListEntry::Item(item) = entry else { panic!("{header}: {text}") };
        let name = item.bare_item.as_string().unwrap().as_str().to_owned();
        let number = |key: &str| {
            let integer = item.params.get(key).and_then(sfv::BareItem::as_integer);
            u64::try_from(i64::from(integer.unwrap_or_else(|| panic!("{header}: {text}")))).unwrap()
        };
        (name, (number(keys[0]), number(keys[1])))
    });
    members.collect()
}
