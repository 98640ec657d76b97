//! `weir test`: runs tests beside the rules, and scenarios, against a store with a simulated clock.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use anstyle::Style;
use clap::builder::Resettable;
use tokio::task::LocalSet;

use self::denials_seen::{DenialsSeen, denying};
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
use crate::config::{self, Files, Source, Sources};

mod asking;
mod buckets;
mod comparison;
mod denials_seen;
mod runner;
mod scenario;
mod step_answer;
mod suite;
mod unread;

/// Scenarios and tests are about answers, not about time: a busy machine must not cause timeouts.
const STORE_TIMEOUT: Duration = Duration::from_mins(1);

/// Runs the tests beside the rules, with their own clock, and prints what differs from the expected answers
#[derive(clap::Args, Debug)]
// A variable that is meant for `weir serve` must not make tests write to the buckets of gateways, nor put limits in shadow.
#[command(mut_arg("store", |store| store.env(Resettable::Reset)))]
#[command(mut_arg("shadow", |shadow| shadow.env(Resettable::Reset).hide(true)))]
pub struct Args {
    /// Rules files with `tests`, files of tests that name their rules in `limits`, and scenarios in JSON Lines [default: the
    /// rules of `weir serve`]
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,

    /// Run only the tests whose name contains this text
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,

    /// Exit with 1 unless tests see each limit deny, or in shadow, see what it would deny
    #[arg(long, conflicts_with = "filter")]
    require_denials: bool,

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

/// The numbers of tests that passed and failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    pub(super) passed: usize,
    pub(super) failed: usize,
    /// Those that need a store which was not given.
    pub(super) not_run: usize,
}

/// Runs the tests of all files. Prints the first difference of each that fails, and `N passed, N failed` last.
pub fn run(args: &Args, out: &mut dyn Write, err: &mut dyn Write) -> Result<ExitCode, Failure> {
    let source = StoreSource::of(&args.store, STORE_TIMEOUT).map_err(Failure::usage)?;
    let files = args.rules.fetched_files(err)?;
    block_on(LocalSet::new().run_until(run_all(args, &files, &source, out))).map_err(Failure::could_not_start)?
}

/// The result of the tests in a rules file.
#[derive(Debug, Default)]
pub(super) struct TestedFile {
    /// `None` if the file has no tests.
    pub(super) tally: Option<Tally>,
    /// The names of the limits that the tests have not seen deny; empty unless all have passed.
    pub(super) unseen: Vec<String>,
}

/// Runs the tests in a rules file in memory, and prints what differs. Beside limits that do not work in memory, none is run.
pub(super) fn run_in_memory(sources: &Sources, out: &mut dyn Write, palette: Palette) -> Result<TestedFile, Failure> {
    let Some(limits) = &sources.limits else { return Ok(TestedFile::default()) };
    let suite = Suite::within(limits, sources)?;
    if suite.tests.is_empty() {
        return Ok(TestedFile::default());
    }
    if suite.needs_redis {
        let tally = Some(Tally { not_run: suite.tests.len(), ..Tally::default() });
        return Ok(TestedFile { tally, ..TestedFile::default() });
    }
    let stores = StoreSource::memory();
    let mut seen = DenialsSeen::default();
    let ran = block_on(LocalSet::new().run_until(run_suite(suite, None, &stores, (out, palette), &mut seen)));
    let tally = ran.map_err(Failure::could_not_start)??;
    let unseen = if tally.failed == 0 { seen.unseen() } else { Vec::new() };
    Ok(TestedFile { tally: Some(tally), unseen })
}

async fn run_all(
    args: &Args,
    files: &Files,
    stores: &StoreSource<'_>,
    out: &mut dyn Write,
) -> Result<ExitCode, Failure> {
    let named: Vec<&Path> = match (args.files.as_slice(), &files.limits) {
        ([], Some(limits)) => vec![limits],
        ([], None) => return Err(Failure::usage("there is no rules file; name a file with tests")),
        (named, _) => named.iter().map(PathBuf::as_path).collect(),
    };
    let filter = args.filter.as_deref();
    let (mut tally, mut has_tests, mut empty) = (Tally::default(), false, Vec::new());
    let (mut player, mut seen) = (None, DenialsSeen::default());
    for path in &named {
        let source = config::read_rules(path)?;
        let mut has_none = source.text.trim().is_empty();
        let found = if is_scenarios(path, &source.text) {
            let player = match &mut player {
                Some(player) => player,
                none => none.insert(player_of(&args.store).await?),
            };
            play_all(player, &source, filter, out).await?
        } else {
            let suite = Suite::read(&source, files)?.inspecting(args.inspection.bytes());
            has_none = suite.tests.is_empty();
            run_suite(suite, filter, stores, (out, Palette::out()), &mut seen).await?
        };
        has_tests |= !has_none;
        if has_none {
            empty.push(path.display().to_string());
        }
        tally.passed += found.passed;
        tally.failed += found.failed;
    }
    let of_files = || joined(named.iter().map(|path| path.display()), ", ");
    if !has_tests {
        return Err(Failure::bad_input(format!("{} has no tests; add them under `tests:`", of_files())));
    }
    if let (Some(filter), Tally { passed: 0, failed: 0, .. }) = (filter, tally) {
        return Err(Failure::bad_input(format!("no test in {} has `{filter}` in its name", of_files())));
    }
    if args.require_denials && seen.is_empty() {
        return Err(Failure::bad_input("`--require-denials` needs tests of rules; scenarios have limits of their own"));
    }
    for path in empty {
        writeln!(out, "{path} has no tests")?;
    }
    let Tally { passed, failed, .. } = tally;
    if failed == 0 && filter.is_none() {
        // A test that fails ends before its last steps.
        seen.print(out)?;
    }
    let Palette { good, bad, .. } = Palette::out();
    let (good, bad) = if failed == 0 { (good, Style::new()) } else { (Style::new(), bad) };
    writeln!(out, "{good}{passed} passed{good:#}, {bad}{failed} failed{bad:#}")?;
    let is_enough = !args.require_denials || seen.is_whole();
    Ok(if failed == 0 && is_enough { ExitCode::Success } else { ExitCode::BadInput })
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
    (out, palette): (&mut dyn Write, Palette),
    seen: &mut DenialsSeen,
) -> Result<Tally, Failure> {
    let Suite { name, rules_name, tests, rules, needs_redis } = suite;
    let names = denying(&rules);
    let mut runner = Runner::new(rules, needs_redis, stores).map_err(Failure::could_not_start)?;
    let mut tally = Tally::default();
    for test in tests.iter().filter(|test| filter.is_none_or(|filter| test.name.contains(filter))) {
        match runner.play(test).await.map_err(Failure::could_not_start)? {
            None => tally.passed += 1,
            Some(difference) => {
                tally.failed += 1;
                write!(out, "{}", difference.shown(&name, &test.name, palette))?;
            }
        }
    }
    seen.add(&rules_name, names, runner.seen());
    Ok(tally)
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
    out: &mut dyn Write,
) -> Result<Tally, Failure> {
    let mut tally = Tally::default();
    for (number, line) in (1..).zip(source.text.lines()).filter(|(_, line)| !line.trim().is_empty()) {
        match player.play_line(line, filter).await {
            None => {}
            Some(Ok(())) => tally.passed += 1,
            Some(Err(difference)) => {
                tally.failed += 1;
                writeln!(out, "{}:{number}: {difference}", source.name)?;
            }
        }
    }
    Ok(tally)
}
