//! `weir simulate`: which clients limits would have denied, by the requests of an access log.

use std::io::Write;
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::thread::available_parallelism;

use self::lists::ListArgs;
use self::names::Names;
use self::progress::watched;
use super::client_flags::TrustArgs;
use super::exit::{ExitCode, Failure};
use super::print::joined;
use super::rules_flags::RulesArgs;
use super::store_flags::parse_at_least_one;
use super::values::one_of;
use crate::clock::Clock;
use crate::config;
use crate::engine::algorithms::micros::Micros;
use crate::engine::limit::fingerprint::Fingerprinter;
use crate::logs::format::Format;
use crate::logs::input::Blocks;
use crate::simulation::impact::DeniedSink;
use crate::simulation::report::LeftOut;
use crate::simulation::suggestion::Goal;
use crate::simulation::{self, Options};
use crate::store::memory::DEFAULT_MAX_KEYS;

mod chart;
mod curves;
mod figures;
mod html;
mod impact;
mod json;
mod left_out;
mod lists;
mod names;
mod progress;
mod text;

/// Numbers take effect this long before the first line of a log, because requests arrive before their lines are written.
const BEFORE: Micros = Micros(24 * 3_600 * 1_000_000);

/// Shows which clients limits would have denied, by the requests of access logs
#[derive(clap::Args, Debug)]
pub struct Args {
    /// An access log, compressed with gzip or zstd or not, or a directory of them; `-` reads standard input; several are
    /// merged by time
    #[arg(required = true, value_name = "LOG")]
    logs: Vec<PathBuf>,

    /// The format of the logs, if it cannot be detected: a name, such as `combined`, or as nginx, Apache, Envoy or HAProxy write it
    #[arg(long, value_name = "FORMAT")]
    log_format: Option<String>,

    #[command(flatten)]
    trust: TrustArgs,

    #[command(flatten)]
    rules: RulesArgs,

    /// Another rules file to decide the same requests with. `--overrides` apply to both
    #[arg(long, value_name = "FILE")]
    against: Option<PathBuf>,

    /// Find the smallest numbers that deny at most this share of a limit's requests, such as `0.1%`
    #[arg(long, value_name = "SHARE", value_parser = parse_share)]
    deny_at_most: Option<u64>,

    /// Find the smallest numbers that deny at most this share of a limit's ids, such as `0.1%`
    #[arg(long, value_name = "SHARE", value_parser = parse_share)]
    deny_at_most_ids: Option<u64>,

    /// Show how much each limit would deny with other numbers; always in HTML
    #[arg(long)]
    curve: bool,

    /// Show ids as they are, instead of a hash with a key that changes with every run
    #[arg(long)]
    show_ids: bool,

    /// Succeed even if more than 1% of the lines could not be read, lack what a limit reads or came too late, or no limit
    /// decided a request
    #[arg(long)]
    allow_unread: bool,

    /// Fail if less than this share of the lines was decided, such as `99%`
    #[arg(long, value_name = "SHARE", value_parser = parse_share)]
    require_coverage: Option<u64>,

    /// The most denied ids to show for each limit
    #[arg(long, value_name = "N", default_value_t = 5)]
    top: usize,

    #[command(flatten)]
    lists: ListArgs,

    /// The format of the output
    #[arg(long, value_name = "FORMAT", default_value = "text", value_parser = one_of(&[
        ("text", "For people", OutputFormat::Text),
        ("json", "For programs", OutputFormat::Json),
        ("html", "One page with charts, for a browser; it loads nothing", OutputFormat::Html),
    ]))]
    format: OutputFormat,

    /// Maximum number of buckets in memory, as for `weir serve`, and of ids that are counted exactly
    #[arg(long, value_name = "N", env = "WEIR_MAX_KEYS", default_value_t = DEFAULT_MAX_KEYS, value_parser = parse_at_least_one)]
    max_keys: usize,

    /// Threads that parse lines [default: the number of cores less one]
    #[arg(long, value_name = "N", value_parser = parse_at_least_one)]
    threads: Option<usize>,

    /// A YAML file of flags, as for `weir serve`
    #[arg(long, value_name = "FILE", env = "WEIR_CONFIG")]
    config: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OutputFormat {
    Text,
    Json,
    Html,
}

impl Args {
    /// The files and directories that it reads.
    fn read(&self) -> Vec<PathBuf> {
        let config::Files { limits, overrides, envoy_ratelimit, .. } = self.rules.files();
        let rules = limits.into_iter().chain(overrides).chain(envoy_ratelimit);
        let given = self.logs.iter().chain(&self.against).chain(&self.config).cloned();
        rules.chain(given).collect()
    }
}

/// The names of the rules files.
struct Files {
    here: String,
    there: String,
}

/// Decides the requests of the logs and prints what the limits do.
pub fn run(args: &Args, out: &mut dyn Write, err: &mut dyn Write) -> Result<ExitCode, Failure> {
    let format = args.log_format.as_deref().map(Format::named).transpose();
    let format = format.map_err(|error| Failure::usage(format!("--log-format: {error}")))?;
    let blocks = Blocks::open(&args.logs, format.as_ref()).map_err(Failure::bad_input)?;
    let starts = blocks.files().iter().filter_map(|file| file.first).min();
    let effective_from = starts.unwrap_or_else(|| Clock::machine().now()).before(BEFORE);
    // Ids are fingerprinted with a known key, so that the same log always gives the same report.
    let fingerprinter = Fingerprinter::new((0, 0));
    let rules = args.rules.load(fingerprinter, effective_from, err)?;
    let other = args.against.as_ref().map(|path| args.rules.load_instead(path, fingerprinter, effective_from, err));
    let other = other.transpose()?;
    let goal = Goal { requests: args.deny_at_most, ids: args.deny_at_most_ids };
    let lines = AtomicU64::new(0);
    let options = Options {
        threads: args.threads.unwrap_or_else(default_threads),
        max_keys: args.max_keys,
        goal,
        has_curves: args.curve || args.format == OutputFormat::Html,
        top: args.top,
        trusted: args.trust.trusted_proxies(),
        lists_impact: args.lists.lists_impact(),
        lines: &lines,
    };
    for file in blocks.files().iter().filter(|file| file.wrapping.names().next().is_some()) {
        writeln!(err, "note: {}: lines are read out of {}", file.name, joined(file.wrapping.names(), ", "))?;
    }
    for file in blocks.files() {
        for note in file.format.notes() {
            writeln!(err, "note: {}: {note}", file.name)?;
        }
    }
    let (progress, size) = (blocks.progress(), blocks.files().iter().map(|file| file.size).sum());
    let names = Names::new(args.show_ids);
    let mut lists = args.lists.open(args.read())?;
    let report = {
        let mut sink = lists.sink(&names);
        let sink = sink.as_mut().map(|sink| sink as &mut DeniedSink<'_>);
        watched(&progress, size, &lines, || simulation::run(blocks, rules, other, &options, sink))
    };
    left_out::write_examples(&report, args.show_ids, err)?;
    let counts = report.lines;
    if counts.lines == counts.left_out(LeftOut::Unreadable) {
        let found = if counts.lines == 0 { "the logs have no lines" } else { "no line could be read" };
        return Err(Failure::bad_input(format!("{found}; see --log-format")));
    }
    let customers = lists.finish(&report, &names, err)?;
    let files = Files {
        here: args.rules.name(),
        there: args.against.as_ref().map(|path| path.display().to_string()).unwrap_or_default(),
    };
    let text = match args.format {
        OutputFormat::Text => text::render(&report, &names, &customers, &files, &goal),
        OutputFormat::Json => format!("{}\n", json::render(&report, &names, &customers, args.top)),
        OutputFormat::Html => html::render(&report, &names, &customers, &files, &goal),
    };
    out.write_all(text.as_bytes())?;
    let too_little = args.require_coverage.and_then(|required| left_out::too_little(&report, required));
    match too_little.or_else(|| left_out::doubt(&report).filter(|_| !args.allow_unread)) {
        Some(doubt) => Err(Failure::bad_input(doubt)),
        None => Ok(ExitCode::Success),
    }
}

fn default_threads() -> usize {
    available_parallelism().map_or(1, |cores| cores.get().saturating_sub(1).max(1))
}

/// Parses a share such as `0.1%` to millionths.
fn parse_share(text: &str) -> Result<u64, String> {
    let wrong = || "expected a share from 0% to 100% with at most 4 decimals, such as `0.1%`".to_owned();
    let number = text.strip_suffix('%').ok_or_else(wrong)?;
    let (whole, decimals) = number.split_once('.').unwrap_or((number, "0"));
    let is_number = |digits: &str| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number(whole) || !is_number(decimals) || decimals.len() > 4 || whole.len() > 3 {
        return Err(wrong());
    }
    let millionths = format!("{whole}{decimals:0<4}").parse().map_err(|_| wrong())?;
    if millionths <= 1_000_000 { Ok(millionths) } else { Err(wrong()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_percentages() {
        for (text, expected) in [("0.1%", 1_000), ("100%", 1_000_000), ("0%", 0), ("12.3456%", 123_456)] {
            assert_eq!(parse_share(text), Ok(expected), "{text}");
        }
        for text in ["0.1", "%", ".1%", "1.%", "100.1%", "-1%", "0.00001%", "1e1%"] {
            assert!(parse_share(text).is_err(), "{text}");
        }
    }
}
