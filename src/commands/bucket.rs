//! `weir bucket`: shows and changes the buckets of a running Weir, through its admin listener.

use std::fmt::Write as _;
use std::io::Write;

use http::{Method, StatusCode};
use serde_json::{Value, json};

use super::admin_client_flags::{AdminClientArgs, failure};
use super::exit::{ExitCode, Failure};
use super::print::{detail, in_parentheses};
use super::runtime::block_on;
use super::values::checked_duration;
use crate::listeners::admin::client::{JsonPage, bucket_path, segment_path};
use crate::message::lossless::shown;

/// Shows and changes the buckets of a running Weir
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    action: Action,

    #[command(flatten)]
    listener: AdminClientArgs,

    /// Print the admin listener's JSON response
    #[arg(long, global = true)]
    json: bool,
}

#[derive(clap::Subcommand, Debug)]
enum Action {
    /// Show an id's bucket
    Get(Bucket),
    /// Set what remains in a bucket
    Set {
        #[command(flatten)]
        bucket: Bucket,
        /// Tokens, at most the bucket's size; with several windows, in each of them
        #[arg(long, value_name = "N")]
        remaining: u64,
    },
    /// Fill a bucket, or all buckets of a limit
    Reset {
        #[command(flatten)]
        bucket: Bucket,
        /// Fill the buckets of all ids; the name is a limit's, without an id
        #[arg(long)]
        all: bool,
    },
    /// Give tokens back
    Refund {
        #[command(flatten)]
        bucket: Bucket,
        /// Tokens to give back
        #[arg(long, value_name = "N")]
        cost: u64,
    },
    /// Deny an id, or all ids that start with it, for some time
    Block {
        #[command(flatten)]
        bucket: Bucket,
        /// Duration from now
        #[arg(long = "for", value_name = "DURATION", value_parser = checked_duration)]
        span: String,
        /// Reason, for operators; clients do not see it
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
    },
    /// Unblock an id
    Unblock(Bucket),
    /// List blocked ids
    Blocks,
}

#[derive(clap::Args, Debug)]
struct Bucket {
    /// The limit and the id, as in the keys of overrides; only the name if the limit is `by: global`
    #[arg(value_name = "NAME:ID")]
    name: String,
}

/// Calls the admin listener and prints its response.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<ExitCode, Failure> {
    let client = args.listener.client()?;
    let (method, path, body) = args.action.request();
    let answer = block_on(client.ask(method, &path, body.as_ref())).map_err(Failure::could_not_start)?;
    let JsonPage { status, body } = answer.map_err(Failure::could_not_start)?;
    if args.json {
        writeln!(out, "{body}")?;
    } else if status != StatusCode::OK {
        // The error is printed below.
    } else if let Some(limit) = body["reset"]["limit"].as_str() {
        writeln!(out, "all buckets of {limit} are full")?;
    } else if let Some(blocks) = body["blocks"].as_array() {
        write!(out, "{}", describe_blocks(blocks))?;
    } else {
        write!(out, "{}", describe(&body))?;
    }
    if status == StatusCode::OK { Ok(ExitCode::Success) } else { Err(failure(status, &body)) }
}

impl Action {
    /// The request to the admin listener.
    fn request(&self) -> (Method, String, Option<Value>) {
        let (method, bucket, below, body) = match self {
            Self::Get(bucket) => (Method::GET, bucket, "", None),
            Self::Set { bucket, remaining } => (Method::PUT, bucket, "", Some(json!({ "remaining": remaining }))),
            Self::Reset { bucket, all: true } => {
                return (Method::POST, segment_path("/limits/", &bucket.name, "/reset"), None);
            }
            Self::Reset { bucket, all: false } => (Method::POST, bucket, "/reset", None),
            Self::Refund { bucket, cost } => (Method::POST, bucket, "/refund", Some(json!({ "cost": cost }))),
            Self::Block { bucket, span, reason } => {
                (Method::PUT, bucket, "/block", Some(json!({ "for": span, "reason": reason })))
            }
            Self::Unblock(bucket) => (Method::DELETE, bucket, "/block", None),
            Self::Blocks => return (Method::GET, "/blocks".to_owned(), None),
        };
        (method, bucket_path(&bucket.name, below), body)
    }
}

/// A bucket's state, for people.
fn describe(state: &Value) -> String {
    let text = |value: &Value| shown(value.as_str().unwrap_or_default()).into_owned();
    let mut page = format!("{}\n", text(&state["bucket"]));
    match (text(&state["mode"]).as_str(), state["enforced"].as_bool()) {
        ("enforce", Some(true)) => {}
        ("enforce", _) => detail(&mut page, "mode", "shadow for this id"),
        (mode, _) => detail(&mut page, "mode", mode),
    }
    match state["allows"].as_str() {
        Some("unlimited") => detail(&mut page, "allows", "everything (unlimited)"),
        Some("deny") => detail(&mut page, "allows", "nothing (`deny: true`)"),
        Some("nothing") => detail(&mut page, "allows", "not limited, the limit has no numbers for it"),
        Some("windows") if state["windows"].as_array().is_some_and(Vec::is_empty) => {
            detail(&mut page, "covers", "all ids that start with it");
        }
        _ => {}
    }
    if let Some(place) = state["given_by"]["place"].as_str() {
        let comment = in_parentheses(state["given_by"]["comment"].as_str().map(shown).as_deref());
        let which = if place == "live" { "the live override".to_owned() } else { format!("the override at {place}") };
        detail(&mut page, "given by", which + &comment);
    }
    if state["blocked"].is_object() {
        let block = &state["blocked"];
        let is_own = block["bucket"] == state["bucket"];
        let by = if is_own { String::new() } else { format!(", as {}", text(&block["bucket"])) };
        detail(&mut page, "blocked", describe_block(block) + &by);
    }
    let all = |key: &str| state[key].as_array().into_iter().flatten();
    if let Some(delay) = all("windows").filter_map(|window| window["delay_ms"].as_u64()).max() {
        detail(&mut page, "waiting", format_args!("requests wait for their turn; one more would wait {}", span(delay)));
    }
    let own = all("windows").map(|window| (window, String::new()));
    let unnamed = all("candidate").map(|window| (window, "candidate: ".to_owned()));
    let named = state["candidates"].as_object().into_iter().flatten().flat_map(|(name, windows)| {
        let mark = format!("candidate {}: ", shown(name));
        windows.as_array().into_iter().flatten().map(move |window| (window, mark.clone()))
    });
    let rows = own.chain(unnamed).chain(named).map(|(window, mark)| {
        let number = |key: &str| window[key].as_u64().unwrap_or(0).to_string();
        [
            format!("{mark}{}, {}", text(&window["algorithm"]), text(&window["allows"])),
            number("remaining"),
            number("used"),
            when(&window["retry_after_ms"]),
            when(&window["reset_after_ms"]),
        ]
    });
    page + &table(&["allows", "remaining", "used", "fits", "full"], rows.collect())
}

fn describe_blocks(blocks: &[Value]) -> String {
    if blocks.is_empty() {
        return "nothing is blocked\n".to_owned();
    }
    let bucket = |block: &Value| shown(block["bucket"].as_str().unwrap_or_default()).into_owned();
    let widest = blocks.iter().map(|block| bucket(block).chars().count()).max().unwrap_or(0);
    let lines = blocks.iter().map(|block| format!("{:<widest$}  {}", bucket(block), describe_block(block)));
    lines.collect::<Vec<_>>().join("\n") + "\n"
}

/// `until 2026-11-21T06:00:00Z, 59m 3s left, by alice: scraping`
fn describe_block(block: &Value) -> String {
    let text = |key: &str| shown(block[key].as_str().unwrap_or_default());
    let after = |before: &str, key: &str| {
        if text(key).is_empty() { String::new() } else { format!("{before}{}", text(key)) }
    };
    let left = span(block["left_ms"].as_u64().unwrap_or(0));
    format!("until {}, {left} left{}{}", text("until"), after(", by ", "by"), after(": ", "reason"))
}

fn when(milliseconds: &Value) -> String {
    match milliseconds.as_u64() {
        None => "never".to_owned(),
        Some(0) => "now".to_owned(),
        Some(milliseconds) => format!("in {}", span(milliseconds)),
    }
}

/// A duration in its two largest units, rounded up: `3h 20m`, `1.500s`.
fn span(milliseconds: u64) -> String {
    const UNITS: [(u64, &str); 4] = [(86_400, "d"), (3_600, "h"), (60, "m"), (1, "s")];
    if milliseconds < 10_000 {
        return format!("{}.{:03}s", milliseconds / 1_000, milliseconds % 1_000);
    }
    let mut rest = milliseconds.div_ceil(1_000);
    let mut parts = Vec::new();
    for (unit, name) in UNITS {
        if rest >= unit && parts.len() < 2 {
            parts.push(format!("{}{name}", rest / unit));
        }
        rest %= unit;
    }
    parts.join(" ")
}

/// A table with headings, the first column left-aligned and the others right-aligned.
fn table<const N: usize>(heads: &[&str; N], rows: Vec<[String; N]>) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let lines: Vec<_> = [heads.map(str::to_owned)].into_iter().chain(rows).collect();
    let widths: Vec<usize> =
        (0..N).map(|column| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0)).collect();
    let mut text = String::new();
    for line in &lines {
        for (column, (cell, width)) in line.iter().zip(&widths).enumerate() {
            let _ = if column == 0 { write!(text, "  {cell:<width$}") } else { write!(text, "  {cell:>width$}") };
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_is_described_for_people() {
        let window = |limit: u64, remaining: u64, retry: Option<u64>, reset: u64| {
            json!({"algorithm": "gcra", "allows": format!("burst {limit}, 20 per 1s"), "limit": limit, "remaining": remaining,
                "used": limit - remaining, "retry_after_ms": retry, "reset_after_ms": reset})
        };
        let blocked = json!({"bucket": "L:a", "until": "2026-11-21T06:00:00Z", "left_ms": 3_540_500, "reason": "scraping", "by": "alice"});
        let state = json!({
            "bucket": "L:a:b", "mode": "enforce", "enforced": true, "allows": "windows",
            "given_by": {"place": "limits.yaml:28", "comment": "a partner"},
            "blocked": blocked,
            "windows": [window(20, 0, Some(1_500), 20_000), window(1_000, 900, None, 0)],
        });
        let expected = "\
L:a:b
  given by  the override at limits.yaml:28 (a partner)
  blocked   until 2026-11-21T06:00:00Z, 59m 1s left, by alice: scraping, as L:a
  allows                       remaining  used       fits    full
  gcra, burst 20, 20 per 1s            0    20  in 1.500s  in 20s
  gcra, burst 1000, 20 per 1s        900   100      never     now
";
        assert_eq!(describe(&state), expected);
        let waiting = json!({"algorithm": "gcra", "allows": "burst 1, 1 per 1s", "limit": 1, "remaining": 0, "used": 1,
            "retry_after_ms": 5_000, "reset_after_ms": 6_000, "delay_ms": 5_000});
        let waiting =
            json!({"bucket": "L:\x1b", "mode": "enforce", "enforced": true, "allows": "windows", "windows": [waiting]});
        let expected = "\
L:%1B
  waiting   requests wait for their turn; one more would wait 5.000s
  allows                   remaining  used       fits       full
  gcra, burst 1, 1 per 1s          0     1  in 5.000s  in 6.000s
";
        assert_eq!(describe(&waiting), expected);
        let shadow = json!({"bucket": "L", "mode": "enforce", "enforced": false, "allows": "unlimited", "windows": []});
        assert_eq!(describe(&shadow), "L\n  mode      shadow for this id\n  allows    everything (unlimited)\n");
        let first = json!({"bucket": "L:a", "mode": "shadow", "enforced": false, "allows": "windows", "windows": []});
        assert_eq!(describe(&first), "L:a\n  mode      shadow\n  covers    all ids that start with it\n");
        assert_eq!(describe_blocks(&[]), "nothing is blocked\n");
        assert_eq!(describe_blocks(&[blocked]), "L:a  until 2026-11-21T06:00:00Z, 59m 1s left, by alice: scraping\n");
    }

    #[test]
    fn spans_have_two_units() {
        for (milliseconds, expected) in [
            (1, "0.001s"),
            (9_999, "9.999s"),
            (10_001, "11s"),
            (3_600_000, "1h"),
            (12_060_000, "3h 21m"),
            (90_061_000, "1d 1h"),
        ] {
            assert_eq!(span(milliseconds), expected);
        }
    }
}
