//! Samples of each server's log, and lines of any bytes.

use std::fs;
use std::path::PathBuf;

use proptest::prelude::*;

use super::LogEntry;
use super::format::{Format, GivenFormat};
use super::input::Blocks;

/// The samples, the format that they show, and the requests that the servers rejected.
const SAMPLES: [(&str, &str, usize); 13] = [
    ("nginx-combined", "combined", 2),
    ("nginx-json", "json", 3),
    ("apache-combined", "combined", 2),
    ("apache-common", "common", 2),
    ("apache-vhost", "vhost_combined", 2),
    ("apache-own", OWN, 2),
    ("caddy", "caddy", 0),
    ("envoy-text", "envoy", 2),
    ("envoy-json", "envoy-json", 2),
    ("traefik-text-by-source", "traefik", 0),
    ("traefik-json-by-source", "traefik-json", 0),
    ("weir-json", "weir", 3),
    ("weir-combined", "combined", 2),
];

const OWN: &str = r#"%a %{usec}t %D \"%r\" %>s \"%{Host}i\" \"%{X-Api-Key}i\""#;

fn sample(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/integration/cases/logs")).join(format!("{name}.log"))
}

/// Calls `check` for each entry of a sample, which must be readable whole.
fn entries(name: &str, format: Option<&GivenFormat>, mut check: impl FnMut(&LogEntry<'_>)) -> Format {
    let mut blocks = Blocks::open(&[sample(name)], format).unwrap();
    let format = (*blocks.files()[0].format).clone();
    let mut parser = format.parser();
    for block in blocks.by_ref() {
        for (number, line) in block.unwrap().lines() {
            let entry = parser.parse(line).unwrap_or_else(|error| panic!("{name}:{number}: {error}"));
            check(&entry.unwrap_or_else(|| panic!("{name}:{number}: no request")));
        }
    }
    format
}

#[test]
fn every_line_of_every_servers_log_is_read() {
    for (name, expected_format, expected_rejected) in SAMPLES {
        let given = (expected_format == OWN).then(|| Format::named(OWN).unwrap());
        let (mut targets, mut hosts, mut clients, mut keys, mut rejected) = (vec![], vec![], vec![], vec![], 0);
        let format = entries(name, given.as_ref(), |entry| {
            assert!(entry.at.0 > 1_795_000_000_000_000 && entry.at.0 < 1_796_000_000_000_000, "{name}: {entry:?}");
            rejected += usize::from(entry.is_rejected);
            targets.extend(entry.target.as_deref().map(str::to_owned));
            hosts.extend(entry.host.as_deref().map(str::to_owned));
            clients.extend(entry.client);
            keys.extend(entry.headers.iter().filter(|(name, _)| name == "x-api-key").map(|(_, key)| key.to_vec()));
        });
        assert_eq!((format.name(), rejected), (expected_format, expected_rejected), "{name}");
        let told = format.told();
        for number in 0..20 {
            let place = targets.iter().position(|target| *target == format!("/v1/items/{number}?page={number}"));
            let place = place.unwrap_or_else(|| panic!("{name}: item {number} in {targets:?}"));
            assert!(targets.contains(&format!("/search?q=term-{number}")), "{name}: {number}");
            if told.client {
                assert_eq!(clients[place].is_ipv6(), number % 5 == 0, "{name}: {number}");
            }
            if told.header("x-api-key") {
                assert_eq!(keys[place], format!("key-{}", number % 4).as_bytes(), "{name}");
            }
        }
        for target in ["/caf%C3%A9%20%22x%22?q=%F0%9F%98%80&r=a+b", "//v1/./items/../items/3/", "/v1/orders"] {
            assert!(targets.iter().any(|found| found == target), "{name}: {target} in {targets:?}");
        }
        assert!(targets.iter().any(|target| target.ends_with("&k199=v199")), "{name}");
        assert_eq!(hosts.iter().any(|host| host == "shop.example"), told.host, "{name}");
        if told.header("x-api-key") {
            assert!(keys.contains(&b"a\"b\\c".to_vec()), "{name}: {keys:?}");
        }
    }
}

#[test]
fn bytes_that_are_no_text_are_read_as_the_proxy_reads_them() {
    let mut agents = vec![];
    entries("nginx-combined", None, |entry| {
        agents.extend(entry.headers.iter().filter(|(name, _)| name == "user-agent").map(|(_, value)| value.to_vec()));
    });
    assert!(
        agents.contains(&b"by\xe9te".to_vec()) && agents.contains(&"Mozilla/5.0 (X11; \"quoted\" \\ back) é".into())
    );
}

#[test]
fn a_broken_line_is_one_broken_line() {
    for (name, expected_format, _) in SAMPLES {
        let given = (expected_format == OWN).then(|| Format::named(OWN).unwrap());
        let format = entries(name, given.as_ref(), |_| {});
        let text = fs::read(sample(name)).unwrap();
        let mut parser = format.parser();
        let line = text.split(|byte| *byte == b'\n').next().unwrap();
        for broken in [&line[..line.len() / 3], b"\xff\0garbage", &line[40..]] {
            let error = parser.parse(broken).unwrap_err();
            assert!(error.to_string().starts_with("expected "), "{name}: {error}");
        }
        assert!(parser.parse(line).is_ok(), "{name}");
    }
}

/// A line of a format without a sample, in the shape of its documentation, and its content: the arrival and the duration in
/// milliseconds, the client, the request and the status.
const DOCUMENTED: [(&str, &str, &str); 12] = [
    (
        "haproxy",
        r#"192.0.2.7:33317 [21/Nov/2026:04:00:06.655] http-in static/srv1 10/0/30/69/109 200 2750 - - ---- 1/1/1/1/0 0/0 {a.example} {} "GET /a?b=c HTTP/1.1""#,
        "6655 Some(109) 192.0.2.7 GET None /a?b=c 200",
    ),
    (
        "haproxy",
        r#"192.0.2.7:34549 [21/Nov/2026:04:00:06.106] http-in http-in/<NOSRV> -1/-1/-1/-1/+50001 408 +2750 - - cR-- 2/2/2/0/+2 0/0 "GET / HTTP/1.1""#,
        "6106 Some(50001) 192.0.2.7 GET None / 408",
    ),
    (
        "istio",
        r#"[2026-11-21T04:00:06.789Z] "GET /a?b=c HTTP/1.1" 200 - via_upstream - "-" 0 5 12 10 "198.51.100.3" "curl/8" "id-1" "a.example" "10.0.0.3:80" outbound|80||a.default 10.0.0.2:4 10.0.0.3:80 192.0.2.7:5 outbound_.80 default"#,
        "6789 Some(12) 192.0.2.7 GET a.example /a?b=c 200",
    ),
    (
        "aws-alb",
        r#"https 2026-11-21T04:00:07.186641Z app/my-lb/50dc6c495c0c9188 192.0.2.7:2817 10.0.0.1:80 0.086 0.048 0.037 200 200 0 57 "GET https://a.example:443/a?b=c HTTP/1.1" "curl/7.46.0" ECDHE TLSv1.2 arn:aws:tg/73e2 "Root=1-58337281" "a.example" "arn:aws:acm:certificate/1" 1 2026-11-21T04:00:06.364000Z "authenticate,forward" "-" "-" "10.0.0.1:80" "200" "-" "-" TID_1"#,
        "6364 Some(822) 192.0.2.7 GET a.example:443 /a?b=c 200",
    ),
    (
        "apisix",
        r#"192.0.2.7 - - [21/Nov/2026:04:00:06 +0000] a.example "GET /a?b=c HTTP/1.1" 200 12 0.500 "-" "curl/8" 10.0.0.1:80 200 0.004 "http://a.example/a""#,
        "5500 Some(500) 192.0.2.7 GET a.example /a?b=c 200",
    ),
    (
        "ingress-nginx",
        r#"192.0.2.7 - - [21/Nov/2026:04:00:06 +0000] "GET /a?b=c HTTP/1.1" 200 12 "-" "curl/8" 78 0.500 [default-a-80] [] 10.0.0.1:80 12 0.5 200 0f1e"#,
        "5500 Some(500) 192.0.2.7 GET None /a?b=c 200",
    ),
    (
        "w3c",
        "#Software: Microsoft Internet Information Services 10.0\n#Fields: date time s-ip cs-method cs-uri-stem cs-uri-query s-port cs-username c-ip cs(User-Agent) sc-status sc-substatus sc-win32-status time-taken\n2026-11-21 04:00:06 10.0.0.1 GET /a b=c 443 - 192.0.2.7 Mozilla/5.0+(X11) 200 0 0 471",
        "5529 Some(471) 192.0.2.7 GET None /a?b=c 200",
    ),
    (
        "w3c",
        "#Version: 1.0\n#Fields: date time x-edge-location sc-bytes c-ip cs-method cs(Host) cs-uri-stem sc-status cs(Referer) cs(User-Agent) cs-uri-query cs(Cookie) x-edge-result-type x-edge-request-id x-host-header cs-protocol cs-bytes time-taken x-forwarded-for\n2026-11-21\t04:00:06\tFRA50-C1\t393\t192.0.2.7\tGET\td1.cloudfront.net\t/a\t200\t-\tcurl/8\tb=c\t-\tHit\tid==\ta.example\thttps\t23\t0.250\t-",
        "5750 Some(250) 192.0.2.7 GET a.example /a?b=c 200",
    ),
    (
        "cloudflare",
        r#"{"ClientIP":"192.0.2.7","ClientRequestHost":"a.example","ClientRequestMethod":"GET","ClientRequestURI":"/a?b=c","EdgeEndTimestamp":1795233606900000000,"EdgeResponseBytes":69045,"EdgeResponseStatus":200,"EdgeStartTimestamp":1795233606789000000,"RayID":"3a6050bcbe121a87"}"#,
        "6789 Some(111) 192.0.2.7 GET a.example /a?b=c 200",
    ),
    (
        "gcp-load-balancer",
        r#"{"httpRequest":{"latency":"0.350s","remoteIp":"192.0.2.7","requestMethod":"GET","requestSize":"90","requestUrl":"https://a.example/a?b=c","status":200,"userAgent":"curl/8"},"insertId":"1","jsonPayload":{"statusDetails":"response_sent_by_backend"},"timestamp":"2026-11-21T04:00:06.789Z","receiveTimestamp":"2026-11-21T04:00:08Z"}"#,
        "6789 Some(350) 192.0.2.7 GET a.example /a?b=c 200",
    ),
    (
        "azure-front-door",
        r#"{"time":"2026-11-21T04:00:06.5000000Z","resourceId":"/S/1","category":"FrontDoorAccessLog","operationName":"Microsoft.Cdn/Profiles/AccessLog/Write","properties":{"trackingReference":"0","httpMethod":"GET","httpVersion":"2.0","requestUri":"https://a.example:443/a?b=c","clientIp":"192.0.2.7","clientPort":"5","socketIp":"192.0.2.7","timeTaken":"0.250","httpStatusCode":"200","userAgent":"curl/8"}}"#,
        "6250 Some(250) 192.0.2.7 GET a.example:443 /a?b=c 200",
    ),
    (
        "kong",
        r#"{"started_at":1795233606789,"client_ip":"192.0.2.7","latencies":{"proxy":1,"kong":2,"request":12},"request":{"method":"GET","uri":"/a?b=c","url":"https://a.example/a?b=c","headers":{"host":"a.example","x-api-key":["k"],"authorization":"REDACTED"}},"response":{"status":200,"size":5,"headers":{"server":"x"}},"upstream_uri":"/a"}"#,
        "6789 Some(12) 192.0.2.7 GET a.example /a?b=c 200",
    ),
];

#[test]
fn documented_lines_are_read() {
    for (name, log, expected) in DOCUMENTED {
        let lines = || log.lines().map(str::as_bytes);
        let format = Format::detect(lines()).unwrap_or_else(|| panic!("{name}"));
        assert_eq!(format.name(), name, "{log}");
        let mut parser = format.parser();
        let mut entries =
            lines().filter_map(|line| parser.parse(line).unwrap_or_else(|error| panic!("{name}: {error}")));
        let entry = entries.next().unwrap_or_else(|| panic!("{name}"));
        let millis = (entry.at.0 - 1_795_233_600_000_000) / 1_000;
        let text = |text: &Option<std::borrow::Cow<'_, str>>| text.as_deref().unwrap_or("None").to_owned();
        let (method, host, target) = (text(&entry.method), text(&entry.host), text(&entry.target));
        let took = entry.took.map(|took| took.0 / 1_000);
        let (client, status) = (entry.client.unwrap(), entry.status.unwrap());
        assert_eq!(format!("{millis} {took:?} {client} {method} {host} {target} {status}"), expected, "{name}");
        let told = format.told();
        assert!(told.client && told.is_arrival && told.took && told.path, "{name}: {told:?}");
    }
    let kong = DOCUMENTED[11].1.as_bytes();
    let format = Format::detect([kong].into_iter()).unwrap();
    let entry = format.parser().parse(kong).unwrap().unwrap();
    assert_eq!(
        entry.headers.iter().map(|(name, value)| (&**name, &**value)).collect::<Vec<_>>(),
        [("x-api-key", &b"k"[..])]
    );
    assert!(format.told().header("x-api-key") && !format.told().header("authorization") && format.told().host);
}

proptest! {
    #[test]
    fn no_line_makes_a_parser_panic(
        sample_place in 0..SAMPLES.len(),
        cut in any::<prop::sample::Index>(),
        noise in prop::collection::vec(prop_oneof![any::<u8>(), Just(b'"'), Just(b'\\'), Just(b'{'), Just(b'[')], 0..40),
    ) {
        let (name, expected_format, _) = SAMPLES[sample_place];
        let given = (expected_format == OWN).then(|| Format::named(OWN).unwrap());
        let text = fs::read(sample(name)).unwrap();
        let line = text.split(|byte| *byte == b'\n').nth(20).unwrap();
        let at = cut.index(line.len());
        let lines = [&noise[..], &[&line[..at], &noise].concat(), &[&line[..at], &noise, &line[at..]].concat()];
        let all = || text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).take(5);
        let format = given.map_or_else(|| Format::detect(all()), |given| given.of_log(all()).ok()).unwrap();
        let mut parser = format.parser();
        for line in lines {
            let _ = parser.parse(line);
        }
        let _ = Format::detect(lines.iter().copied());
        let _ = Format::named(&String::from_utf8_lossy(&noise));
    }
}
