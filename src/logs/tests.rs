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
        let format = given.map_or_else(|| Format::detect(all()), |given| Some(given.of_log(all()))).unwrap();
        let mut parser = format.parser();
        for line in lines {
            let _ = parser.parse(line);
        }
        let _ = Format::detect(lines.iter().copied());
        let _ = Format::named(&String::from_utf8_lossy(&noise));
    }
}
