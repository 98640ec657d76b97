//! `weir check`: validates rules files, runs the tests in them, and prints every problem. With `--store`, it does the same for a
//! store.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::builder::Resettable;

use self::findings::{Expected, Finding, findings};
use self::output::{Checked, Format};
use super::colors::Palette;
use super::exit::{ExitCode, Failure};
use super::print::joined;
use super::rules_flags::RulesArgs;
use super::runtime::block_on;
use super::store_flags::StoreArgs;
use super::test;
use crate::clock::Clock;
use crate::config::{self, Files, Problem, Report, Severity, Sources};
use crate::engine::limit::fingerprint::Fingerprinter;
use crate::engine::limit::rules::Rules;
use crate::store::StorePlan;
use crate::store::redis::inspection::facts::Inspection;
use crate::store::redis::inspection::inspect;

mod findings;
mod output;
mod store;
mod tags;

/// Stands for standard input.
const INPUT: &str = "-";

/// Validates rules files, shows every mistake, and warns of limits that do not do what they are for; with --store, looks at the
/// servers as well and says what to change there
#[derive(Debug, clap::Args)]
// A variable that is meant for `weir serve` must not make a check of files depend on a server.
#[command(mut_arg("store", |store| store.env(Resettable::Reset)), mut_arg("shadow", |shadow| shadow.hide(true)))]
pub struct Args {
    /// Rules files and directories of them, each validated separately, or `-` for standard input; without one, those that `weir serve` would read
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,

    /// Format of the problems
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    format: Format,

    /// Exit with 1 on warnings, too
    #[arg(long)]
    strict: bool,

    /// The `--config` file of `weir serve`, for the names of the rules files
    #[arg(long, value_name = "FILE", env = "WEIR_CONFIG")]
    config: Option<PathBuf>,

    #[command(flatten)]
    rules: RulesArgs,

    #[command(flatten)]
    store: StoreArgs,
}

/// Prints summaries of valid files and the facts about the store to `out`, and problems to `err`; with a format for programs,
/// everything to `out`. Returns [`ExitCode::BadInput`] if any file has an error, or if Weir cannot work with the store.
pub fn run(args: &Args, out: &mut dyn Write, err: &mut dyn Write) -> Result<ExitCode, Failure> {
    let plan = args.store.plan(Clock::machine(), None).map_err(Failure::usage)?;
    let all = args.all_files(matches!(plan, StorePlan::Redis(_)), err)?;
    let mut algorithms = (!all.is_empty()).then(Vec::new);
    let is_text = args.format == Format::Text;
    let mut checked = Vec::new();
    for files in all {
        let palette = if is_text { Palette::err() } else { Palette::default() };
        let (result, rules) = check(&files, palette)?;
        if is_text {
            result.print(args.strict, out, err)?;
        }
        if let Some(rules) = rules {
            if plan.is_cluster() && is_text {
                write!(out, "{}", tags::notes(&rules))?;
            }
            if let Some(algorithms) = &mut algorithms {
                algorithms.extend(algorithms_of(&rules));
            }
        }
        checked.push(result);
    }
    if let StorePlan::Redis(target) = plan {
        let found = block_on(inspect(&target)).map_err(Failure::could_not_start)?;
        let result = of_store(&found, &Expected { algorithms, timeout: target.timeout() });
        if is_text {
            write!(out, "{}", store::facts(&found))?;
            result.print_store(args.strict, out, err)?;
        }
        checked.push(result);
    }
    output::print(args.format, &checked, out)?;
    let passes = checked.iter().all(|checked| checked.passes(args.strict));
    Ok(if passes { ExitCode::Success } else { ExitCode::BadInput })
}

impl Args {
    /// Returns the files to validate, each with the overrides. A store alone is looked at without files.
    fn all_files(&self, has_store: bool, err: &mut dyn Write) -> Result<Vec<Files>, Failure> {
        if self.files.iter().filter(|file| *file == Path::new(INPUT)).count() > 1 {
            return Err(Failure::usage("`-` is given twice, but standard input can be read only once"));
        }
        if self.files.is_empty() {
            let is_alone = has_store && !self.rules.are_given();
            return if is_alone { Ok(Vec::new()) } else { Ok(vec![self.rules.fetched_files(err)?]) };
        }
        self.rules.warn_of_unread_limits(&self.files, err)?;
        let files = self.rules.fetched_files(err)?;
        Ok(self.files.iter().map(|file| Files { limits: Some(file.clone()), ..files.clone() }).collect())
    }
}

fn algorithms_of(rules: &Rules) -> impl Iterator<Item = &'static str> {
    rules.limits().iter().map(|limit| limit.algorithm.name())
}

/// Reads and compiles the files with all lints, and runs their tests. There are rules if no problem is an error.
fn check(files: &Files, palette: Palette) -> Result<(Checked, Option<Rules>), Failure> {
    let sources = match read(files) {
        Ok(sources) => sources,
        Err(problem) => {
            let name = problem.file.clone();
            return Ok((Checked { name, report: Report::of(problem), ..Checked::default() }, None));
        }
    };
    let name = match sources.rules_name() {
        name if name.is_empty() => joined(sources.envoy_ratelimit.iter().map(|source| &source.name), ", "),
        name => name,
    };
    let mut differences = Vec::new();
    let tested = test::run_in_memory(&sources, &mut differences, palette);
    let untested = tested.as_ref().map_or(&[][..], |tested| tested.unseen.as_slice());
    // These rules serve no requests, so the hash needs no secret.
    let loaded = config::check(&sources, Fingerprinter::new((0, 0)), Clock::machine().now(), untested);
    let mut checked = Checked { name, report: loaded.report, not_compared: loaded.not_compared, ..Checked::default() };
    let Some(rules) = loaded.rules else { return Ok((checked, None)) };
    let overrides = rules.limits().iter().map(|limit| limit.overrides.len()).sum();
    checked.counts = Some((rules.limits().len(), overrides));
    match tested {
        Ok(tested) => checked.add_tests(tested, String::from_utf8_lossy(&differences).into_owned()),
        // Mistakes in a test are errors like others.
        Err(Failure::Message(ExitCode::BadInput, mistakes)) => {
            checked.failure = Some(("the tests have mistakes".to_owned(), mistakes));
        }
        Err(failure) => return Err(failure),
    }
    let is_sound = checked.failure.is_none();
    Ok((checked, is_sound.then_some(rules)))
}

fn read(files: &Files) -> Result<Sources, Problem> {
    match &files.limits {
        Some(limits) if limits == Path::new(INPUT) => files.read_with_limits(io::stdin().lock()),
        _ => files.read(),
    }
}

/// Returns the problems of a store as those of a file.
fn of_store(found: &Inspection, expected: &Expected) -> Checked {
    let problem = |Finding { severity, text }| Problem { severity, ..Problem::of_file(&found.url, text, "") };
    let problems: Vec<Problem> = findings(found, expected).into_iter().map(problem).collect();
    let errors = problems.iter().filter(|problem| problem.severity == Severity::Error).count();
    let warnings = problems.len() - errors;
    let report = Report { problems, errors, warnings };
    Checked { name: found.url.clone(), report, ..Checked::default() }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use clap::Parser;

    use super::*;

    const RULES: &str =
        "limits:\n  A: { by: ip/64, count: 10, period: 1s }\noverrides:\n  A:10.0.0.1: { count: 20, period: 1s }\n";

    #[derive(clap::Parser)]
    struct Command {
        #[command(flatten)]
        args: Args,
    }

    fn args(flags: &[OsString]) -> Args {
        Command::parse_from(["check".into(), "--store=memory".into()].iter().chain(flags)).args
    }

    /// Checks files with these texts and compares the exit code, and parts of both outputs.
    #[track_caller]
    fn case(rules: &str, overrides: Option<&str>, exit: ExitCode, out_part: &str, err_part: &str) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("limits.yaml");
        std::fs::write(&path, rules).unwrap();
        let mut flags = vec![path.into_os_string()];
        if let Some(text) = overrides {
            let path = directory.path().join("overrides.yaml");
            std::fs::write(&path, text).unwrap();
            flags.extend(["--overrides".into(), path.into_os_string()]);
        }
        let args = args(&flags);
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let code = run(&args, &mut out, &mut err).unwrap();
        let (out, err) = (String::from_utf8(out).unwrap(), String::from_utf8(err).unwrap());
        assert_eq!(code, exit, "{out}{err}");
        assert!(out.contains(out_part) && err.contains(err_part), "{out}\n{err}");
    }

    #[test]
    fn good_files_are_counted_and_bad_ones_explained() {
        case(RULES, None, ExitCode::Success, "limits.yaml: ok, 1 limit, 1 override\n", "");
        case(RULES, Some("A:10.0.0.2: { deny: true }"), ExitCode::Success, "1 limit, 2 overrides\n", "");
        case("limits: {}", None, ExitCode::Success, "0 limits, 0 overrides, 1 warning", "warning: there are no limits");
        case("limits: []", None, ExitCode::BadInput, "", "limits.yaml: 1 error\n");
        case(RULES, Some("A:10.0.0.1: { deny: true }"), ExitCode::BadInput, "", "overrides.yaml:1:1");
    }

    #[test]
    fn missing_files_are_errors() {
        let mut err = Vec::new();
        assert_eq!(
            run(&args(&["/nonexistent/limits.yaml".into()]), &mut Vec::new(), &mut err).unwrap(),
            ExitCode::BadInput
        );
        assert!(String::from_utf8(err).unwrap().contains("`weir init /nonexistent/limits.yaml` writes a first one"));
    }
}
