//! `weir test`: runs tests beside the rules, and scenarios, against a store with a simulated clock.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use anstyle::Style;
use clap::builder::Resettable;
use tokio::task::LocalSet;

use self::denials_seen::{DenialsSeen, denying};
pub(super) use self::output::Tally;
use self::output::{Format, Results, TestFailure, TestResult};
use self::runner::{Runner, StoreSource};
use self::scenario::Player;
use self::suite::Suite;
use super::client_limit_flags::InspectionArgs;
use super::colors::Palette;
use super::exit::{ExitCode, Failure};
use super::print::joined;
use super::rules_flags::RulesArgs;
use super::runtime::block_on;
use super::store_flags::StoreArgs;
use crate::clock::Clock;
use crate::config::{self, Files, Problem, Source, Sources, directory, rule_tests};
use crate::engine::limit::rules::Rules;

mod asking;
mod buckets;
mod comparison;
mod denials_seen;
mod output;
mod runner;
mod scenario;
mod step_answer;
mod suite;
mod unread;
mod watch;

/// Scenarios and tests are about answers, not about time: a busy machine must not cause timeouts.
const STORE_TIMEOUT: Duration = Duration::from_mins(1);

/// Runs the tests beside the rules, with their own clock, and prints what differs from the expected answers
#[derive(clap::Args, Debug)]
// A variable that is meant for `weir serve` must not make tests write to the buckets of gateways, nor put limits in shadow.
#[command(mut_arg("store", |store| store.env(Resettable::Reset)))]
#[command(mut_arg("shadow", |shadow| shadow.env(Resettable::Reset).hide(true)))]
pub struct Args {
    /// Rules files with `tests`, directories of them, files of tests that name their rules in `limits`, and scenarios in JSON Lines [default: the
    /// rules of `weir serve`]
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,

    /// Run only the tests whose name contains this text
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,

    /// Format of the results
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    format: Format,

    /// Exit with 1 unless tests see each limit deny, or in shadow, see what it would deny
    #[arg(long, conflicts_with = "filter")]
    require_denials: bool,

    /// Run the tests again whenever a file changes, until Ctrl-C
    #[arg(long)]
    watch: bool,

    #[command(flatten)]
    inspection: InspectionArgs,

    #[command(flatten)]
    rules: RulesArgs,

    #[command(flatten)]
    store: StoreArgs,

    /// A YAML file of flags, as for `weir serve`
    #[arg(long, value_name = "FILE", env = "WEIR_CONFIG")]
    config: Option<PathBuf>,
}

impl Args {
    /// Returns the files with tests.
    fn named<'a>(&'a self, files: &'a Files) -> Result<Vec<&'a Path>, Failure> {
        match (self.files.as_slice(), &files.limits) {
            ([], Some(limits)) => Ok(vec![limits]),
            ([], None) => Err(Failure::usage("there is no rules file; name a file with tests")),
            (named, _) => Ok(named.iter().map(PathBuf::as_path).collect()),
        }
    }
}

/// Runs the tests of all files. Prints the first difference of each that fails, and `N passed, N failed` last.
pub fn run(args: &Args, out: &mut dyn Write, err: &mut dyn Write) -> Result<ExitCode, Failure> {
    let source = StoreSource::of(&args.store, STORE_TIMEOUT).map_err(Failure::usage)?;
    let files = args.rules.fetched_files(err)?;
    if args.watch {
        return watch::run(args, &files, &source, out, err);
    }
    run_once(args, &files, &source, out)
}

fn run_once(args: &Args, files: &Files, stores: &StoreSource<'_>, out: &mut dyn Write) -> Result<ExitCode, Failure> {
    block_on(LocalSet::new().run_until(run_all(args, files, stores, out))).map_err(Failure::could_not_start)?
}

/// The result of the tests in a rules file.
#[derive(Debug, Default)]
pub(super) struct TestedFile {
    /// `None` if the file has no tests.
    pub(super) tally: Option<Tally>,
    /// The names of the limits that the tests have not seen deny; empty unless all have passed.
    pub(super) unseen: Vec<String>,
    /// Each test that failed.
    pub(super) failures: Vec<Problem>,
}

/// Runs the tests in a rules file in memory, and prints what differs. Beside limits that do not work in memory, none is run.
pub(super) fn run_in_memory(sources: &Sources, out: &mut dyn Write, palette: Palette) -> Result<TestedFile, Failure> {
    let files = sources.limits.iter().chain(sources.teams.iter().map(|file| &file.source));
    let suites = files.map(|source| Suite::within(source, sources)).collect::<Result<Vec<_>, _>>()?;
    let tests = suites.iter().map(|suite| suite.tests.len()).sum();
    if tests == 0 {
        return Ok(TestedFile::default());
    }
    if suites.iter().any(|suite| suite.needs_redis) {
        let tally = Some(Tally { not_run: tests, ..Tally::default() });
        return Ok(TestedFile { tally, ..TestedFile::default() });
    }
    let stores = StoreSource::memory();
    let (mut seen, mut results) = (DenialsSeen::default(), Results::new(out, palette, Format::Text));
    for suite in suites {
        let ran = block_on(LocalSet::new().run_until(run_suite(suite, None, &stores, &mut results, &mut seen)));
        ran.map_err(Failure::could_not_start)??;
    }
    let tally = results.tally();
    let unseen = if tally.failed == 0 { seen.unseen() } else { Vec::new() };
    Ok(TestedFile { tally: Some(tally), unseen, failures: results.failures() })
}

/// Returns whether the tests of a text pass in memory with these rules.
pub(super) fn passes(tests: &str, rules: Rules) -> Result<bool, Failure> {
    let source = Source { name: "tests".to_owned(), text: tests.to_owned() };
    let tests = rule_tests::tests(&source, None, &rules)?;
    let suite = Suite { name: source.name.clone(), rules_name: source.name, tests, rules, needs_redis: false };
    let (stores, mut seen, mut sink) = (StoreSource::memory(), DenialsSeen::default(), std::io::sink());
    let mut results = Results::new(&mut sink, Palette::default(), Format::Text);
    let ran = block_on(LocalSet::new().run_until(run_suite(suite, None, &stores, &mut results, &mut seen)));
    ran.map_err(Failure::could_not_start)??;
    Ok(results.tally().failed == 0)
}

async fn run_all(
    args: &Args,
    files: &Files,
    stores: &StoreSource<'_>,
    out: &mut dyn Write,
) -> Result<ExitCode, Failure> {
    let named = args.named(files)?;
    let filter = args.filter.as_deref();
    let (mut has_tests, mut empty) = (false, Vec::new());
    let (mut player, mut seen) = (None, DenialsSeen::default());
    let palette = if args.format == Format::Text { Palette::out() } else { Palette::default() };
    let mut results = Results::new(out, palette, args.format);
    for (path, files) in &expanded(&named, files)? {
        let source = config::read_rules(path)?;
        let mut has_none = source.text.trim().is_empty();
        if is_scenarios(path, &source.text) {
            let player = match &mut player {
                Some(player) => player,
                none => none.insert(player_of(&args.store).await?),
            };
            play_all(player, &source, filter, &mut results).await?;
        } else {
            let suite = Suite::read(&source, files)?.inspecting(args.inspection.bytes());
            has_none = suite.tests.is_empty();
            run_suite(suite, filter, stores, &mut results, &mut seen).await?;
        }
        has_tests |= !has_none;
        if has_none {
            empty.push(path.display().to_string());
        }
    }
    let of_files = || joined(named.iter().map(|path| path.display()), ", ");
    let tally = results.tally();
    if !has_tests {
        return Err(Failure::bad_input(format!("{} has no tests; add them under `tests:`", of_files())));
    }
    if let (Some(filter), Tally { passed: 0, failed: 0, .. }) = (filter, tally) {
        return Err(Failure::bad_input(format!("no test in {} has `{filter}` in its name", of_files())));
    }
    if args.require_denials && seen.is_empty() {
        return Err(Failure::bad_input("`--require-denials` needs tests of rules; scenarios have limits of their own"));
    }
    // A test that fails ends before its last steps.
    let tells_unseen = tally.failed == 0 && filter.is_none();
    if results.is_for_people() {
        for path in &empty {
            writeln!(results.out, "{path} has no tests")?;
        }
        if tells_unseen {
            seen.print(results.out)?;
        }
        summarize(tally, results.out)?;
    } else {
        results.print(&if tells_unseen { seen.told() } else { Vec::new() })?;
    }
    let is_enough = !args.require_denials || seen.is_whole();
    if tally.failed == 0 && !is_enough && args.format == Format::Junit {
        // The document has no place for it.
        let told = joined(seen.told().iter().map(|(file, sentence)| format!("{file}: {sentence}")), "; ");
        let without = joined(&empty, ", ");
        let told = if without.is_empty() { told } else { format!("{told}; no tests in {without}") };
        return Err(Failure::bad_input(format!("--require-denials: {}", told.trim_start_matches("; "))));
    }
    Ok(if tally.failed == 0 && is_enough { ExitCode::Success } else { ExitCode::BadInput })
}

/// Returns the files with tests, those of directories included, and for each the files of the rules.
fn expanded(named: &[&Path], files: &Files) -> Result<Vec<(PathBuf, Files)>, Problem> {
    let mut all = Vec::new();
    for path in named {
        for file in directory::expand(&[path.to_path_buf()])? {
            let limits = if file == *path { files.limits.clone() } else { Some(path.to_path_buf()) };
            all.push((file, Files { limits, ..files.clone() }));
        }
    }
    Ok(all)
}

fn summarize(Tally { passed, failed, .. }: Tally, out: &mut dyn Write) -> io::Result<()> {
    let Palette { good, bad, .. } = Palette::out();
    let (good, bad) = if failed == 0 { (good, Style::new()) } else { (Style::new(), bad) };
    writeln!(out, "{good}{passed} passed{good:#}, {bad}{failed} failed{bad:#}")
}

/// Returns true if a file has scenarios, one JSON object per line.
fn is_scenarios(path: &Path, text: &str) -> bool {
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("jsonl" | "ndjson") => true,
        Some("yaml" | "yml") => false,
        _ => text.trim_start().starts_with('{'),
    }
}

async fn run_suite(
    suite: Suite,
    filter: Option<&str>,
    stores: &StoreSource<'_>,
    results: &mut Results<'_>,
    seen: &mut DenialsSeen,
) -> Result<(), Failure> {
    let Suite { name: file, rules_name, tests, rules, needs_redis } = suite;
    let names = denying(&rules);
    let mut runner = Runner::new(rules, needs_redis, stores).map_err(Failure::could_not_start)?;
    for test in tests.into_iter().filter(|test| filter.is_none_or(|filter| test.name.contains(filter))) {
        let start = Instant::now();
        let difference = runner.play(&test).await.map_err(Failure::could_not_start)?;
        let failure = difference.map(|difference| difference.failure(results.palette));
        let (took, file) = (start.elapsed(), file.clone());
        results.add(TestResult { file, name: test.name, took, failure })?;
    }
    seen.add(&rules_name, names, runner.seen());
    Ok(())
}

async fn player_of(args: &StoreArgs) -> Result<Player, Failure> {
    let clock = Arc::new(AtomicU64::new(0));
    let plan = args.plan(Clock::Set(Arc::clone(&clock)), Some(STORE_TIMEOUT)).map_err(Failure::usage)?;
    Player::connect(plan.open(), clock).await.map_err(Failure::could_not_start)
}

async fn play_all(
    player: &mut Player,
    source: &Source,
    filter: Option<&str>,
    results: &mut Results<'_>,
) -> Result<(), Failure> {
    for (line, text) in (1..).zip(source.text.lines()).filter(|(_, text)| !text.trim().is_empty()) {
        let start = Instant::now();
        if let Some((name, played)) = player.play_line(text, filter).await {
            let failure = played.err().map(|details| TestFailure { line, details });
            let (took, file) = (start.elapsed(), source.name.clone());
            results.add(TestResult { file, name, took, failure })?;
        }
    }
    Ok(())
}
