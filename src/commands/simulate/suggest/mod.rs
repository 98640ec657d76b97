//! `weir suggest`: numbers for limits from access logs, as a candidate, tests and the text of a pull request.

use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64};

use self::proposal::{Proposal, Refused, propose, raise};
use super::super::exit::{ExitCode, Failure};
use super::super::log_flags::{LogArgs, parse_share};
use super::super::rules_flags::RulesArgs;
use super::left_out;
use super::progress::watched;
use crate::engine::algorithms::micros::Micros;
use crate::engine::limit::fingerprint::Fingerprinter;
use crate::engine::limit::rules::Rules;
use crate::simulation::report::Report;
use crate::simulation::suggestion::Goal;
use crate::simulation::{self, Options};

mod markdown;
mod proposal;
mod tests_of;

/// The share of ids that may be denied if no share is given, in millionths.
const DEFAULT_SHARE: u64 = 1_000;

/// Limits whose numbers change can give each other more requests. So often the logs are decided again until the numbers are right.
const MOST_ROUNDS: usize = 10;

/// Suggests numbers for limits from access logs: a candidate, tests and the text of a pull request
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    logs: LogArgs,

    #[command(flatten)]
    rules: RulesArgs,

    /// A limit to suggest numbers for, instead of all that the logs cover; repeatable
    #[arg(long, value_name = "NAME")]
    limit: Vec<String>,

    /// Deny at most this share of a limit's requests, such as `0.1%`
    #[arg(long, value_name = "SHARE", value_parser = parse_share)]
    deny_at_most: Option<u64>,

    /// Deny at most this share of a limit's ids, such as `0.1%` [default: 0.1% without --deny-at-most]
    #[arg(long, value_name = "SHARE", value_parser = parse_share)]
    deny_at_most_ids: Option<u64>,
}

/// The contents of the document.
struct Suggested<'r> {
    goal: Goal,
    /// The logs decided by the rules as they are, and with all proposals in force.
    before: &'r Report,
    after: &'r Report,
    proposals: &'r [Proposal],
    refused: &'r [Refused],
    /// By proposal: its tests in YAML, or the reason why it has no tests.
    tests: Vec<Result<String, &'static str>>,
}

/// Prints a document in Markdown.
pub fn run(args: &Args, out: &mut dyn Write, err: &mut dyn Write) -> Result<ExitCode, Failure> {
    if let Some(pipe) = args.logs.files().find(|path| is_pipe(path)) {
        let name = pipe.display();
        return Err(Failure::usage(format!("{name}: the logs are read twice, which a pipe cannot be; name a file")));
    }
    let goal = match (args.deny_at_most, args.deny_at_most_ids) {
        (None, None) => Goal { requests: None, ids: Some(DEFAULT_SHARE) },
        (requests, ids) => Goal { requests, ids },
    };
    let rules = args.rules.load(Fingerprinter::new((0, 0)), Micros(0), err)?;
    for name in &args.limit {
        rules.find(name).map_err(|error| Failure::usage(format!("--limit {error}")))?;
    }
    let before = args.simulate(goal, &[], err)?;
    left_out::write_examples(&before, false, err)?;
    let (mut proposals, mut refused) = propose(&rules, &before, &args.limit);
    let (mut after, mut rounds) = (None, 0);
    while after.is_none() && !proposals.is_empty() {
        if rounds == MOST_ROUNDS {
            return Err(Failure::bad_input("these limits give each other requests; name one at a time with --limit"));
        }
        rounds += 1;
        let report = args.simulate(goal, &proposals, &mut std::io::sink())?;
        let are_kept = raise(&mut proposals, &mut refused, &report, goal);
        after = are_kept.then_some(report);
    }
    let after = after.as_ref().unwrap_or(&before);
    refused.sort_by_key(|refused| refused.limit);
    let tests = proposals.iter().map(|proposal| args.tests(proposal, &proposals, &rules)).collect::<Result<_, _>>()?;
    let suggested = Suggested { goal, before: &before, after, proposals: &proposals, refused: &refused, tests };
    out.write_all(markdown::render(&suggested, &args.logs.names(), &args.rules.name()).as_bytes())?;
    match left_out::doubt(&before).filter(|_| !args.logs.allow_unread) {
        Some(doubt) => Err(Failure::bad_input(doubt)),
        None => Ok(ExitCode::Success),
    }
}

impl Args {
    /// Decides the logs with the numbers of proposals in place of those of their limits.
    fn simulate(&self, goal: Goal, proposals: &[Proposal], err: &mut dyn Write) -> Result<Report, Failure> {
        let blocks = self.logs.open()?;
        LogArgs::write_notes(&blocks, err)?;
        let rules = self.rules.load(Fingerprinter::new((0, 0)), LogArgs::effective_from(&blocks), err)?;
        let rules = with_numbers(rules, proposals);
        let (lines, stop) = (AtomicU64::new(0), AtomicBool::new(false));
        let options = Options { goal, ..self.logs.options(&lines, &stop) };
        let (progress, size) = (blocks.progress(), blocks.files().iter().map(|file| file.size).sum());
        let report = watched(&progress, size, &lines, || simulation::run(blocks, rules, None, &options, None));
        super::nothing_read(&report).map_or(Ok(report), |error| Err(Failure::bad_input(error)))
    }

    /// The tests of a proposal, which pass when all proposals are in force.
    fn tests(
        &self,
        proposal: &Proposal,
        all: &[Proposal],
        rules: &Rules,
    ) -> Result<Result<String, &'static str>, Failure> {
        let Some(limit) = rules.limit(proposal.limit) else { return Ok(Err("the limit is gone")) };
        let text = match tests_of::tests(limit, proposal.number) {
            Ok(text) => text,
            Err(why) => return Ok(Err(why)),
        };
        let rules = self.rules.load(Fingerprinter::new((0, 0)), Micros(0), &mut std::io::sink())?;
        let passes = super::super::test::passes(&format!("tests:\n{text}"), with_numbers(rules, all))?;
        Ok(if passes {
            Ok(text)
        } else {
            Err("such a test does not pass, for example because another limit denies its requests first")
        })
    }
}

fn with_numbers(rules: Rules, proposals: &[Proposal]) -> Rules {
    rules.with_numbers(proposals.iter().map(|proposal| (proposal.limit, proposal.numbers.clone())))
}

fn is_pipe(path: &Path) -> bool {
    path == Path::new("-") || path.metadata().is_ok_and(|found| !found.is_file() && !found.is_dir())
}
