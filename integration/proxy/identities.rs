//! Ids and costs that clients spell in odd ways: what an upstream may accept is never uncharged. It counts for the id that the
//! upstream reads, or it is malformed.

use std::collections::HashMap;

use serde_json::{Value, json};

use crate::support::server::{Setup, Weir};
use crate::support::upstream::{Upstream, ok};
use crate::support::wire::{Message, Wire};

/// Buckets of a thousand that never refill. What is malformed is denied, so that a test sees it.
const RULES: &str = "
limits:
  PerKey: { match: { path: /key }, by: credentials, burst: 1000, malformed: deny }
  PerSession: { match: { path: /cookie }, by: { cookie: sid }, burst: 1000, malformed: deny }
  PerQuery: { match: { path: /query }, by: { query: api_key }, burst: 1000, malformed: deny }
  PerHeader: { match: { path: /header }, by: { header: x-key }, burst: 1000, malformed: deny }
  PerSegment: { match: { path: '/segment/{id}' }, by: { path: id }, burst: 1000, malformed: deny }
  PerHost: { match: { path: /host }, by: host, burst: 1000, malformed: deny }
  PerId: { match: { path: /by }, by: { body: /n }, burst: 1000, malformed: deny }
  Asked: { match: { path: /cost }, by: global, burst: 1000000, cost: { body: /n, default: 50 } }
  Lenient: { match: { path: /lenient }, by: global, burst: 1000000, cost: { body: /n, default: 50, malformed: default } }
  Strict: { match: { path: /strict }, by: global, burst: 1000000, cost: { body: /n, missing: deny } }
";

/// The effect of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Read {
    /// It is charged to the bucket of this id.
    Id(&'static str),
    /// It is not charged.
    Nothing,
    /// It is denied.
    Malformed,
}

use Read::{Id, Malformed, Nothing};

fn start() -> (Upstream, Weir) {
    let upstream = Upstream::answering(|_| ok("done"));
    let weir = Setup { check: true, ..Setup::new(RULES) }.start(&format!("http://{}", upstream.address));
    (upstream, weir)
}

/// The status, 429 for a denial over gRPC as well, and the tokens left, if the answer of an allowed request says so.
fn seen(answer: &Message) -> (u16, Option<u64>) {
    let is_denied = answer.status() == 429 || answer.header("grpc-status") == Some("8");
    let left = answer.header("ratelimit").and_then(|header| header.split(";r=").nth(1));
    let left = left.filter(|_| !is_denied).map(|left| left.parse().unwrap());
    (if is_denied { 429 } else { answer.status() }, left)
}

/// The charges of each id so far.
#[derive(Default)]
struct Charges(HashMap<&'static str, u64>);

impl Charges {
    #[track_caller]
    fn check(&mut self, answer: &Message, expected: Read, what: &str) {
        let wanted = match expected {
            Id(id) => {
                let charges = self.0.entry(id).or_default();
                *charges += 1;
                (200, Some(1000 - *charges))
            }
            Nothing => (200, None),
            Malformed => (429, None),
        };
        assert_eq!(seen(answer), wanted, "{what}");
    }
}

/// Sends header lines as they are.
fn send(client: &mut Wire, target: &str, lines: &[&[u8]]) -> Message {
    let mut head = format!("GET {target} HTTP/1.1\r\n").into_bytes();
    if lines.iter().all(|line| !line.to_ascii_lowercase().starts_with(b"host:")) {
        head.extend_from_slice(b"host: a\r\n");
    }
    for line in lines {
        head.extend_from_slice(line);
        head.extend_from_slice(b"\r\n");
    }
    head.extend_from_slice(b"\r\n");
    client.send(head);
    client.response()
}

/// Asks the check listener about a request with these lines.
fn ask(client: &mut Wire, target: &str, lines: &[&str]) -> Message {
    let mut headers: HashMap<&str, Vec<&str>> = HashMap::new();
    for line in lines {
        let (name, value) = line.split_once(':').unwrap();
        headers.entry(name).or_default().push(value);
    }
    let request = json!({ "url": format!("http://a{target}"), "ip": "192.0.2.1", "headers": headers });
    let body = json!({ "request": request }).to_string();
    client.send(format!(
        "POST /json HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    ));
    client.response()
}

/// Sends each row through the proxy, and, if it is text, through the check listener.
#[track_caller]
fn check(target: &str, rows: &[(&[&[u8]], Read)]) {
    let (_upstream, weir) = start();
    let (mut client, mut asking) = (weir.connect(), weir.connect_check());
    let mut charges = Charges::default();
    for (lines, expected) in rows {
        let shown: Vec<_> = lines.iter().map(|line| String::from_utf8_lossy(line)).collect();
        charges.check(&send(&mut client, target, lines), *expected, &format!("proxy: {shown:?}"));
        let texts: Result<Vec<&str>, _> = lines.iter().map(|line| std::str::from_utf8(line)).collect();
        if let Ok(texts) = texts {
            let answer = ask(&mut asking, target, &texts);
            let told: Value = serde_json::from_str(answer.text()).unwrap();
            let found = match (told["allowed"] == true, told["limits"].as_array().map(Vec::len)) {
                (false, _) => Malformed,
                (true, Some(1)) => *expected,
                (true, _) => Nothing,
            };
            assert_eq!(found, *expected, "check: {shown:?}: {told}");
            if let Id(id) = expected {
                *charges.0.entry(id).or_default() += 1;
            }
        }
    }
}

#[test]
fn credentials_have_one_id_in_every_spelling() {
    check(
        "/key",
        &[
            (&[b"authorization: Bearer sk-1"], Id("sk-1")),
            (&[b"AUTHORIZATION:Bearer sk-1"], Id("sk-1")),
            (&[b"authorization: bearer sk-1"], Id("sk-1")),
            (&[b"authorization: bEaReR sk-1"], Id("sk-1")),
            (&[b"authorization: Bearer\tsk-1"], Id("sk-1")),
            (&[b"authorization: Bearer    sk-1  \t"], Id("sk-1")),
            (&[b"authorization: Bearer\xa0sk-1"], Id("sk-1")),
            (&[b"authorization: sk-1"], Id("sk-1")),
            (&[b"authorization: Bearer sk-1", b"authorization: bearer  sk-1"], Id("sk-1")),
            (&[b"authorization: Bearer SK-1"], Id("SK-1")),
            (&[b"authorization: Bearer sk-2"], Id("sk-2")),
            (&[b"authorization: Basic YTpi"], Id("a:b")),
            (&[b"authorization: basic YTpi=="], Id("a:b")),
            (&[b"authorization: Basic YT~pi"], Id("a:b")),
            (&[b"authorization: Bearer sk-1", b"authorization: Bearer sk-2"], Malformed),
            (&[b"authorization: Basic YTpi", b"authorization: Bearer sk-1"], Malformed),
            (&[b"authorization: Basic YTpi, Bearer sk-1"], Malformed),
            (&[b"authorization: Bearer sk-1 x"], Malformed),
            (&[b"authorization: Bearer sk-1;x=1"], Malformed),
            (&[b"authorization: Bearer token=sk-1"], Malformed),
            (&[b"authorization: S1 sk-1"], Id("s1 sk-1")),
            (&[b"authorization: Bearer sk-1\xe9"], Malformed),
            (&[b"authorization: Bearer \"sk-1\""], Malformed),
            (&[], Nothing),
            (&[b"authorization: "], Nothing),
            (&[b"authorization: Bearer"], Nothing),
        ],
    );
}

#[test]
fn cookies_have_one_id_in_every_spelling() {
    check(
        "/cookie",
        &[
            (&[b"cookie: sid=abc"], Id("abc")),
            (&[b"cookie: sid=%61bc"], Id("abc")),
            (&[b"cookie: sid=%61%62%63"], Id("abc")),
            (&[b"cookie: sid=\"abc\""], Id("abc")),
            (&[b"cookie: sid=\"%61bc\""], Id("abc")),
            (&[b"cookie: a=1;   sid =  abc  ; b=2"], Id("abc")),
            (&[b"cookie: SID=abc"], Id("abc")),
            (&[b"cookie: %73id=abc"], Id("abc")),
            (&[b"cookie: sid=abc; sid=%61bc", b"cookie: sid=\"abc\""], Id("abc")),
            (&[b"cookie: sid=ABC"], Id("ABC")),
            (&[b"cookie: sid=s%3Aabc.d%2Be"], Id("s:abc.d+e")),
            (&[b"cookie: sid=s:abc.d+e"], Id("s:abc.d+e")),
            (&[b"cookie: sid=abc; sid=abd"], Malformed),
            (&[b"cookie: sid=abc", b"cookie: sid="], Malformed),
            (&[b"cookie: sid=abc%"], Malformed),
            (&[b"cookie: sid=%6xbc"], Malformed),
            (&[b"cookie: sid=%e9"], Id("e9")),
            (&[b"cookie: sid=\"abc"], Malformed),
            (&[b"cookie: sid=\"\\141bc\""], Malformed),
            (&[b"cookie: sid[]=abc"], Malformed),
            (&[b"cookie: sid=abc\xa0"], Id("abc")),
            (&[b"cookie: sid=abc\x85; a=1"], Id("abc")),
            (&[b"cookie: sid=abc\xc2\xa0"], Id("abc")),
            (&[b"cookie: \xa0sid=abc"], Id("abc")),
            (&[b"cookie: \xc2\xa0sid=abc"], Id("abc")),
            (&[b"cookie: sid\xa0=abc"], Id("abc")),
            (&[b"cookie: sid=abc%20"], Id("abc")),
            (&[b"cookie: sid=\"abc  \""], Id("abc")),
            (&[b"cookie: sid=abc x1"], Malformed),
            (&[b"cookie: x=1 sid=abc"], Malformed),
            (&[b"cookie: x=\"a;b\" sid=abc"], Malformed),
            (&[b"cookie: x=1 y=2; sid=abc"], Id("abc")),
            (&[b"cookie: x=1 xsid=abc"], Nothing),
            (&[b"cookie: xsid=abc"], Nothing),
            (&[b"cookie: sid="], Nothing),
        ],
    );
}

#[test]
fn headers_have_one_id_whatever_stands_around_them() {
    check(
        "/header",
        &[
            (&[b"x-key: k"], Id("k")),
            (&[b"X-KEY:\t k \t"], Id("k")),
            (&[b"x-key: k\xa0"], Id("k")),
            (&["x-key: k\u{a0}".as_bytes()], Id("k")),
            (&[b"x-key: k", b"x-key:  k"], Id("k")),
            (&[b"x-key: K"], Id("K")),
            (&[b"x-key: k", b"x-key: l"], Malformed),
            (&[b"x-key: k", b"x-key:"], Malformed),
            (&[b"x-key:"], Nothing),
            (&[], Nothing),
        ],
    );
}

#[test]
fn query_parameters_have_one_id_in_every_spelling() {
    let (_upstream, weir) = start();
    let mut client = weir.connect();
    let mut charges = Charges::default();
    for (query, expected) in [
        ("api_key=a+b", Id("a b")),
        ("api_key=a%20b", Id("a b")),
        ("api_key=%61%20b", Id("a b")),
        ("API_KEY=a+b", Id("a b")),
        ("api%5Fkey=a+b", Id("a b")),
        ("api.key=a+b", Id("a b")),
        ("x=1&api_key=a+b&api_key=%61+b", Id("a b")),
        ("api_key=a%2Bb", Id("a+b")),
        ("api_key=a&api_key=b", Malformed),
        ("api_key=a&API.KEY=b", Malformed),
        ("api_key=a%", Malformed),
        ("api_key=%zz", Malformed),
        ("api_key=%e9", Id("e9")),
        ("api_key[]=a", Malformed),
        ("api_key%5b0%5d=a", Malformed),
        ("x=1;api_key=a", Malformed),
        ("api_key=a;x=1", Malformed),
        ("api_key=a+b%20", Id("a b")),
        ("api_key=+a+b%A0", Id("a b")),
        ("%20api_key=a+b", Id("a b")),
        ("+api_key=a+b", Id("a b")),
        ("api_key%00=a+b", Id("a b")),
        ("api_key%00x1=a+b", Id("a b")),
        ("api[key=a+b", Id("a b")),
        ("api%5Bkey=a+b", Id("a b")),
        ("[api_key]=a", Malformed),
        ("%5Bapi_key%5D=a", Malformed),
        ("api_key]=a", Malformed),
        ("api[key]=a", Nothing),
        ("[api_keys]=a", Nothing),
        ("apikey=a", Nothing),
        ("api_keys=a", Nothing),
        ("api_key=", Nothing),
        ("api_key", Nothing),
    ] {
        charges.check(&send(&mut client, &format!("/query?{query}"), &[]), expected, query);
    }
}

#[test]
fn path_parameters_have_one_id_whatever_stands_around_them() {
    let (_upstream, weir) = start();
    let mut client = weir.connect();
    let mut charges = Charges::default();
    for (segment, expected) in [
        ("v", Id("v")),
        ("%76", Id("v")),
        ("v%20", Id("v")),
        ("%20%20v%C2%A0", Id("v")),
        ("v%A0", Id("v")),
        ("v%20w", Id("v w")),
        ("V", Id("V")),
        ("%20", Nothing),
    ] {
        charges.check(&send(&mut client, &format!("/segment/{segment}"), &[]), expected, segment);
    }
}

#[test]
fn hosts_have_one_id_in_every_spelling() {
    let (_upstream, weir) = start();
    let mut client = weir.connect();
    let mut charges = Charges::default();
    for host in ["a.example", "A.Example", "a.example.", "a.example:80", "A.EXAMPLE.:00080", "a.example:"] {
        charges.check(&send(&mut client, "/host", &[format!("host: {host}").as_bytes()]), Id("a.example"), host);
    }
}

/// A body, and its value as an id and as a cost.
struct Row {
    headers: &'static str,
    body: Vec<u8>,
    n: Found,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    /// 7.
    Seven,
    /// An id that is not valid as a cost.
    Text(&'static str),
    Missing,
    Unreadable,
}

fn row(headers: &'static str, body: impl AsRef<[u8]>, n: Found) -> Row {
    Row { headers, body: body.as_ref().to_vec(), n }
}

const JSON: &str = "content-type: application/json\r\n";

#[rustfmt::skip]
fn rows() -> Vec<Row> {
    use Found::{Missing, Seven, Text, Unreadable};
    let plain = r#"{"n":7}"#;
    let mut rows = vec![
        // Types and codings.
        row(JSON, plain, Seven),
        row("content-type: APPLICATION/JSON; charset=utf-8\r\n", plain, Seven),
        row("content-type: application/vnd.api+json\r\n", plain, Seven),
        row("content-type: text/plain\r\n", plain, Seven),
        row("content-type: text/json\r\n", plain, Seven),
        row("content-type: application/x-www-form-urlencoded\r\n", plain, Seven),
        row("content-type: application/octet-stream\r\n", plain, Seven),
        row("content-type: application/x-ndjson\r\n", plain, Seven),
        row("content-type: application/json\r\ncontent-type: text/plain\r\n", plain, Seven),
        row("content-type: multipart/form-data; boundary=x\r\n", plain, Seven),
        row("content-type: text/event-stream\r\n", plain, Seven),
        row("content-type: \r\n", plain, Seven),
        row("", plain, Seven),
        row("content-type: application/json\r\ncontent-encoding: identity\r\n", plain, Seven),
        row("content-type: application/json\r\ncontent-encoding: utf-8\r\n", plain, Unreadable),
        row("content-type: application/json\r\ncontent-encoding: gzip\r\n", plain, Unreadable),
        row("content-type: application/json\r\ncontent-encoding: identity\r\ncontent-encoding: br\r\n", plain, Unreadable),
        row("content-type: application/grpc\r\n", plain, Unreadable),
        // What stands around the document.
        row(JSON, format!("{}{plain}", " ".repeat(60_000)), Seven),
        row(JSON, format!("{}{plain}", " ".repeat(66_000)), Unreadable),
        row(JSON, format!("\r\n\t {plain} \r\n"), Seven),
        row(JSON, format!("\u{feff}{plain}"), Seven),
        row(JSON, format!("{plain} x"), Unreadable),
        row(JSON, format!("{plain}{plain}"), Unreadable),
        row(JSON, format!("{plain}\0"), Unreadable),
        row(JSON, format!("\u{c}{plain}"), Unreadable),
        row(JSON, format!("//\n{plain}"), Unreadable),
        row(JSON, format!("[{plain}]"), Missing),
        row(JSON, plain.encode_utf16().flat_map(u16::to_le_bytes).collect::<Vec<_>>(), Unreadable),
        row(JSON, r#"{"n":7"#, Unreadable),
        row(JSON, "n=7", Unreadable),
        row(JSON, "7", Unreadable),
        row(JSON, "\"7\"", Unreadable),
        row(JSON, "<n>7</n>", Unreadable),
        row(JSON, " \r\n", Unreadable),
        // Keys.
        row(JSON, r#"{"N":7}"#, Seven),
        row(JSON, r#"{"\u006e":7}"#, Seven),
        row(JSON, r#"{"n":7,"n":7}"#, Unreadable),
        row(JSON, r#"{"n":7,"n":1}"#, Unreadable),
        row(JSON, r#"{"n":1,"N":7}"#, Unreadable),
        row(JSON, r#"{"n":null,"n":7}"#, Unreadable),
        row(JSON, r#"{"m":{"n":1},"n":7}"#, Seven),
        row(JSON, r#"{"m":7}"#, Missing),
        row(JSON, "{}", Missing),
        row(JSON, "{'n':7}", Unreadable),
        row(JSON, "{n:7}", Unreadable),
        row(JSON, r#"{"n":7,}"#, Unreadable),
        // Values.
        row(JSON, r#"{"n":"7"}"#, Seven),
        row(JSON, r#"{"n":7.0}"#, Seven),
        row(JSON, r#"{"n":70e-1}"#, Seven),
        row(JSON, r#"{"n":0.7E+1}"#, Seven),
        row(JSON, r#"{"n":7.5}"#, Text("7.5")),
        row(JSON, r#"{"n":7.50}"#, Text("7.5")),
        row(JSON, r#"{"n":-7}"#, Text("-7")),
        row(JSON, r#"{"n":18446744073709551623}"#, Text("18446744073709551623")),
        row(JSON, r#"{"n":1e400}"#, Text("1e400")),
        row(JSON, r#"{"n":true}"#, Text("true")),
        row(JSON, r#"{"n":"x"}"#, Text("x")),
        row(JSON, r#"{"n":null}"#, Missing),
        row(JSON, r#"{"n":""}"#, Missing),
        row(JSON, r#"{"n":NaN}"#, Unreadable),
        row(JSON, r#"{"n":Infinity}"#, Unreadable),
        row(JSON, r#"{"n":+7}"#, Unreadable),
        row(JSON, r#"{"n":07}"#, Unreadable),
        row(JSON, r#"{"n":0x7}"#, Unreadable),
        row(JSON, r#"{"n":.7}"#, Unreadable),
        row(JSON, r#"{"n":[7]}"#, Unreadable),
        row(JSON, r#"{"n":{"a":7}}"#, Unreadable),
        row(JSON, format!(r#"{{"n":"{}"}}"#, "7".repeat(2000)), Unreadable),
        row(JSON, "{\"n\":\"\\ud800\"}", Unreadable),
        row(JSON, format!(r#"{{"d":{}{},"n":7}}"#, "[".repeat(100), "]".repeat(100)), Seven),
        row(JSON, format!(r#"{{"d":{}{},"n":7}}"#, "[".repeat(200), "]".repeat(200)), Unreadable),
        row(JSON, "", Missing),
    ];
    rows.push(row(JSON, [&br#"{"d":""#[..], b"\xff", br#"","n":7}"#].concat(), Seven));
    rows
}

/// Sends a body with its length or in chunks.
fn post(client: &mut Wire, path: &str, row: &Row, in_chunks: bool) -> Message {
    let Row { headers, body, .. } = row;
    let head = format!("POST {path} HTTP/1.1\r\nhost: a\r\n{headers}");
    if in_chunks {
        client.send(format!("{head}transfer-encoding: chunked\r\n\r\n"));
        for chunk in body.chunks(body.len().div_ceil(3).max(1)) {
            client.send([format!("{:x}\r\n", chunk.len()).as_bytes(), chunk, b"\r\n"].concat());
        }
        client.send("0\r\n\r\n");
    } else {
        client.send(format!("{head}content-length: {}\r\n\r\n", body.len()));
        client.send(body);
    }
    client.response()
}

#[test]
fn no_body_hides_an_id_or_a_cost() {
    let (upstream, weir) = start();
    let mut charges = Charges::default();
    let mut spent: HashMap<&str, u64> = HashMap::new();
    let mut costs = |path: &'static str, cost: Option<u64>| {
        let spent = spent.entry(path).or_default();
        *spent += cost.unwrap_or(0);
        cost.map_or((429, None), |_| (200, Some(1_000_000 - *spent)))
    };
    for (row, in_chunks) in rows().iter().flat_map(|row| [(row, false), (row, true)]) {
        let shown: String = String::from_utf8_lossy(&row.body).chars().take(60).collect();
        let shown = format!("{} {shown:?}, {in_chunks}", row.headers);
        let id = match row.n {
            Found::Seven => Id("7"),
            Found::Text(text) => Id(text),
            Found::Missing => Nothing,
            Found::Unreadable => Malformed,
        };
        let ask = |path: &str| {
            // A denied request's connection may be closed.
            let answer = post(&mut weir.connect(), path, row, in_chunks);
            if seen(&answer).0 == 200 {
                let sent = upstream.requests().pop().unwrap();
                assert!(sent.body == row.body, "{path} is not forwarded as it came: {shown}");
            }
            answer
        };
        charges.check(&ask("/by"), id, &shown);
        let (cost, lenient, strict) = match row.n {
            Found::Seven => (Some(7), 7, Some(7)),
            Found::Missing => (Some(50), 50, None),
            Found::Text(_) | Found::Unreadable => (None, 50, None),
        };
        for (path, cost) in [("/cost", cost), ("/lenient", Some(lenient)), ("/strict", strict)] {
            let answer = ask(path);
            assert_eq!(seen(&answer), costs(path, cost), "{path} {shown}");
        }
    }
}
