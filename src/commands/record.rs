//! `weir record`: a sample of what the rules of a running Weir see, for `weir simulate`.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use http::StatusCode;
use serde_json::{Value, json};

use super::admin_client_flags::{AdminClientArgs, failure};
use super::exit::{ExitCode, Failure};
use super::runtime::block_on;
use super::values::parse_duration;

/// For the start and the end of a recording.
const GRACE: Duration = Duration::from_secs(30);

/// The longest line, in bytes. A request's head is shorter.
const MAX_LINE: usize = 4 * 1024 * 1024;

/// Records a sample of what the rules of a running Weir see, with hashed ids, for `weir simulate`
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Duration of the recording, at most 24h
    #[arg(long = "for", value_name = "DURATION", value_parser = parse_duration)]
    span: Duration,

    /// The size at which to stop
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = parse_size)]
    max_size: u64,

    /// Record all requests of this share of the clients
    #[arg(long, value_name = "PERCENT", default_value = "100%")]
    share: String,

    /// The file to write; standard output if it is not given
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,

    #[command(flatten)]
    listener: AdminClientArgs,
}

/// Asks the admin listener for a recording and writes its lines.
pub fn run(args: &Args, out: &mut dyn Write, err: &mut dyn Write) -> Result<ExitCode, Failure> {
    let client = args.listener.client()?;
    let mut file;
    let output: &mut dyn Write = match &args.output {
        None => out,
        Some(path) => {
            let wrong = |error: io::Error| Failure::bad_input(format!("--output `{}`: {error}", path.display()));
            file = BufWriter::new(File::create(path).map_err(wrong)?);
            &mut file
        }
    };
    let body = json!({
        "for": format!("{}us", args.span.as_micros()),
        "max_bytes": args.max_size,
        "share": args.share,
    });
    let mut recording = Recording::new(args.span, output, err);
    let answer = block_on(client.record(&body, args.span.saturating_add(GRACE), |piece| recording.take(&piece)));
    let answer = answer.map_err(Failure::could_not_start)?;
    let ended = recording.finish()?;
    let page = answer.map_err(Failure::could_not_start)?;
    if page.status != StatusCode::OK {
        let problem: Value = serde_json::from_slice(&page.body).unwrap_or_default();
        return Err(failure(page.status, &problem));
    }
    let Some(last) = ended else {
        return Err(Failure::could_not_start(
            "the recording was cut off: the process stopped, or the connection broke",
        ));
    };
    writeln!(err, "{}", summary(&last))?;
    Ok(ExitCode::Success)
}

/// The lines that have come.
struct Recording<'a> {
    started: Instant,
    span: Duration,
    /// A line that has not ended.
    rest: BytesMut,
    output: &'a mut dyn Write,
    err: &'a mut dyn Write,
    shows_progress: bool,
    last: Option<Value>,
}

impl<'a> Recording<'a> {
    fn new(span: Duration, output: &'a mut dyn Write, err: &'a mut dyn Write) -> Self {
        let shows_progress = io::stderr().is_terminal();
        Self { started: Instant::now(), span, rest: BytesMut::new(), output, err, shows_progress, last: None }
    }

    /// Writes whole lines, except those that tell how far the recording is.
    fn take(&mut self, piece: &[u8]) -> io::Result<()> {
        self.rest.extend_from_slice(piece);
        while let Some(end) = memchr::memchr(b'\n', &self.rest) {
            let line = self.rest.split_to(end + 1);
            if line.starts_with(b"{\"so_far\"") {
                self.show(&line)?;
                continue;
            }
            if let Some(warning) = uncertain(&line) {
                writeln!(self.err, "{warning}")?;
            }
            if [&b"{\"counts\""[..], b"{\"ended\""].iter().any(|start| line.starts_with(start)) {
                self.last = serde_json::from_slice(&line).ok();
            }
            self.output.write_all(&line)?;
        }
        if self.rest.len() > MAX_LINE {
            return Err(io::Error::other("a line is too long; this is not an admin listener"));
        }
        Ok(())
    }

    fn show(&mut self, line: &[u8]) -> io::Result<()> {
        let so_far: Value = serde_json::from_slice(line).unwrap_or_default();
        let left = self.span.saturating_sub(self.started.elapsed()).as_secs();
        let (kept, dropped) = (&so_far["so_far"]["kept"], &so_far["so_far"]["dropped"]);
        if self.shows_progress {
            write!(self.err, "\r{kept} requests kept, {dropped} dropped, {left} s left \x1b[K")?;
            self.err.flush()?;
        }
        Ok(())
    }

    fn finish(self) -> io::Result<Option<Value>> {
        if self.shows_progress {
            write!(self.err, "\r\x1b[K")?;
        }
        self.output.flush()?;
        Ok(self.last)
    }
}

/// A warning about the first line.
fn uncertain(line: &[u8]) -> Option<String> {
    memchr::memmem::find(line, b"\"weir_recording\"")?;
    let head: Value = serde_json::from_slice(line).ok()?;
    let names: Vec<&str> = head["uncertain"].as_array()?.iter().filter_map(Value::as_str).collect();
    let names = names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    (!names.is_empty()).then(|| {
        format!(
            "warning: {names}: recorded as hashes, although rules search the values; their limits are simulated wrongly"
        )
    })
}

fn summary(last: &Value) -> String {
    let counts = &last["counts"];
    let number = |key: &str| counts[key].as_u64().unwrap_or(0);
    let mut text = format!("{} requests recorded", number("kept"));
    for (key, what) in [
        ("dropped", "dropped: more than could be sent"),
        ("outside_the_share", "outside the share"),
        ("without_a_request", "calls that name their limits, not recorded"),
    ] {
        if number(key) > 0 {
            let _ = write!(text, ", {} {what}", number(key));
        }
    }
    if last["ended"] == "size" {
        text.push_str("; ended at --max-size");
    }
    text
}

/// Parses a size in bytes, with a unit of 1024 bytes or more.
pub(super) fn parse_size(text: &str) -> Result<u64, String> {
    let number = text.trim_end_matches(|last: char| last.is_ascii_alphabetic());
    let unit = match &text[number.len()..] {
        "" | "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        _ => return Err("expected a size such as 64MiB, in B, KiB, MiB or GiB".to_owned()),
    };
    let size = number.parse::<u64>().ok().and_then(|number| number.checked_mul(unit)).filter(|size| *size > 0);
    size.ok_or_else(|| "expected a size such as 64MiB".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        for (text, expected) in [
            ("64MiB", Some(64 << 20)),
            ("1B", Some(1)),
            ("10", Some(10)),
            ("1GiB", Some(1 << 30)),
            ("0", None),
            ("1MB", None),
            ("x", None),
        ] {
            assert_eq!(parse_size(text).ok(), expected, "{text}");
        }
    }
}
