//! `weir simulate`: which clients limits would have denied, by the requests of an access log.

use std::io::Write;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64};

use self::lists::ListArgs;
use self::names::Names;
use self::progress::{stoppable, watched};
use super::exit::{ExitCode, Failure};
use super::log_flags::{LogArgs, parse_share};
use super::rules_flags::RulesArgs;
use super::values::one_of;
use crate::config;
use crate::engine::limit::fingerprint::Fingerprinter;
use crate::simulation::impact::DeniedSink;
use crate::simulation::report::{LeftOut, Report};
use crate::simulation::suggestion::Goal;
use crate::simulation::{self, Options};

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
pub mod suggest;
mod text;

/// Shows which clients limits would have denied, by the requests of access logs
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    logs: LogArgs,

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
        let input = self.logs.files().filter(|path| path.as_os_str() == "-").map(|_| PathBuf::from("/dev/stdin"));
        rules.chain(self.logs.read().chain(&self.against).cloned()).chain(input).collect()
    }
}

/// The names of the rules files.
struct Files {
    here: String,
    there: String,
}

/// Decides the requests of the logs and prints what the limits do.
pub fn run(args: &Args, out: &mut dyn Write, err: &mut dyn Write) -> Result<ExitCode, Failure> {
    let blocks = args.logs.open()?;
    let effective_from = LogArgs::effective_from(&blocks);
    // Ids are fingerprinted with a known key, so that the same log always gives the same report.
    let fingerprinter = Fingerprinter::new((0, 0));
    let rules = args.rules.load(fingerprinter, effective_from, err)?;
    let other = args.against.as_ref().map(|path| args.rules.load_instead(path, fingerprinter, effective_from, err));
    let other = other.transpose()?;
    let goal = Goal { requests: args.deny_at_most, ids: args.deny_at_most_ids };
    let (lines, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let options = Options {
        goal,
        has_curves: args.curve || args.format == OutputFormat::Html,
        top: args.top,
        lists_impact: args.lists.lists_impact(),
        ..args.logs.options(&lines, &stop)
    };
    LogArgs::write_notes(&blocks, err)?;
    let (progress, size) = (blocks.progress(), blocks.files().iter().map(|file| file.size).sum());
    let names = Names::new(args.show_ids);
    let mut lists = args.lists.open(args.read())?;
    let report = {
        let mut sink = lists.sink(&names);
        let sink = sink.as_mut().map(|sink| sink as &mut DeniedSink<'_>);
        let work = || simulation::run(blocks, rules, other, &options, sink);
        stoppable(&stop, || watched(&progress, size, &lines, work))?
    };
    left_out::write_examples(&report, args.show_ids, err)?;
    if let Some(error) = nothing_read(&report) {
        return Err(Failure::bad_input(error));
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
    match too_little.or_else(|| left_out::doubt(&report).filter(|_| !args.logs.allow_unread)) {
        Some(doubt) => Err(Failure::bad_input(doubt)),
        None => Ok(ExitCode::Success),
    }
}

/// Why there is no report; `None` if there is one.
fn nothing_read(report: &Report) -> Option<String> {
    let counts = report.lines;
    let found = if counts.lines == 0 { "the logs have no lines" } else { "no line could be read" };
    (counts.lines == counts.left_out(LeftOut::Unreadable)).then(|| format!("{found}; see --log-format"))
}
