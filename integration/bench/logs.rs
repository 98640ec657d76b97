//! The lines per second that one thread reads and parses: combined, compressed and not, and our own JSON.
//!
//! Each file has 1,000,000 lines (1,000 as a test). The best of three runs counts. Reading and parsing take turns on one
//! thread, which a simulation does on several.

#![expect(clippy::unwrap_used, clippy::print_stderr, reason = "a benchmark stops where it cannot go on, and reports")]

use std::fmt::Write as _;
use std::fs;
use std::hint::black_box;
use std::io::Write as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use flate2::Compression;
use flate2::write::GzEncoder;
use weir::logs::input::Blocks;

fn main() {
    let measuring = std::env::args().any(|argument| argument == "--bench");
    let lines = if measuring { 1_000_000 } else { 1_000 };
    let folder = tempfile::tempdir().unwrap();
    let (combined, json) = (combined(lines), json(lines));
    let mut encoder = GzEncoder::new(Vec::new(), Compression::new(6));
    encoder.write_all(combined.as_bytes()).unwrap();
    let compressed = encoder.finish().unwrap();
    for (name, bytes) in [("combined", combined.as_bytes()), ("combined.gz", &compressed), ("json", json.as_bytes())] {
        let path = folder.path().join(name);
        fs::write(&path, bytes).unwrap();
        let best = (0..3).map(|_| read(&path, lines)).min_by_key(|(read, parsed)| *read + *parsed).unwrap();
        let per_line = |span: Duration| span.as_nanos() / u128::from(lines);
        let per_second = f64::from(lines) / (best.0 + best.1).as_secs_f64() / 1e6;
        eprintln!(
            "{name:12} {per_second:.2} million lines per second: {} ns per line to read, {} ns to parse ({} bytes per line)",
            per_line(best.0),
            per_line(best.1),
            bytes.len() as u64 / u64::from(lines),
        );
    }
}

/// The time to read blocks, and to parse their lines.
fn read(path: &PathBuf, lines: u32) -> (Duration, Duration) {
    let mut blocks = Blocks::open(std::slice::from_ref(path), None).unwrap();
    let format = blocks.files()[0].format.clone();
    let mut parser = format.parser();
    let (mut reading, mut parsing, mut count) = (Duration::ZERO, Duration::ZERO, 0);
    loop {
        let start = Instant::now();
        let Some(block) = blocks.next() else { break };
        let block = block.unwrap();
        let read = Instant::now();
        for (_, line) in block.lines() {
            black_box(parser.parse(line).unwrap());
            count += 1;
        }
        reading += read - start;
        parsing += read.elapsed();
    }
    assert_eq!(count, lines);
    (reading, parsing)
}

const AGENT: &str =
    "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/130.0.0.0 Safari/537.36";

fn combined(lines: u32) -> String {
    let mut text = String::new();
    for number in 0..lines {
        // A thousand requests per second.
        let (second, minute) = (number / 1_000 % 60, number / 60_000 % 60);
        let (high, low) = (number / 251 % 251, number % 251);
        writeln!(
            text,
            "10.1.{high}.{low} - - [21/Nov/2026:04:{minute:02}:{second:02} +0000] \"GET /v1/items/{number}?page=2 HTTP/1.1\" \
             200 1234 \"https://shop.example/cart\" \"{AGENT}\""
        )
        .unwrap();
    }
    text
}

fn json(lines: u32) -> String {
    let mut text = String::new();
    for number in 0..lines {
        let (second, minute) = (number / 1_000 % 60, number / 60_000 % 60);
        let (high, low) = (number / 251 % 251, number % 251);
        writeln!(
            text,
            "{{\"time\":\"2026-11-21T04:{minute:02}:{second:02}.{:06}Z\",\"client\":\"10.1.{high}.{low}\",\"method\":\"GET\",\
             \"target\":\"/v1/items/{number}?page=2\",\"protocol\":\"HTTP/1.1\",\"host\":\"shop.example\",\"status\":200,\
             \"bytes\":1234,\"duration_ms\":1.234,\"user_agent\":\"{AGENT}\",\"upstream\":\"127.0.0.1:3000\",\
             \"upstream_ms\":1.007,\"attempts\":1,\"verdict\":\"allowed\",\"limit\":\"PerClient\",\"remaining\":19}}",
            number % 1_000 * 1_000
        )
        .unwrap();
    }
    text
}
