//! `weir check`: validates rules files, runs the tests in them, and prints every problem. With `--store`, it does the same for a store.

use std::io::Write;
use std::path::PathBuf;

use clap::builder::Resettable;

use super::exit::{ExitCode, Failure};
use super::print::{counted, joined};
use super::runtime::block_on;
use super::store_flags::StoreArgs;
use super::test::{self, Tally};
use crate::clock::Clock;
use crate::config::{self, Files, Report};
use crate::engine::rules::fingerprint::Fingerprinter;
use crate::engine::rules::rule_set::Rules;
use crate::store::StorePlan;
use crate::store::redis::inspection::inspect;

mod findings;
mod store;
mod tags;

/// Validates rules files and shows every mistake; with --store, looks at the servers as well and says what to change there
#[derive(Debug, clap::Args)]
// A variable that is meant for `weir serve` must not make a check of files depend on a server.
#[command(mut_arg("store", |store| store.env(Resettable::Reset)))]
pub struct Args {
    /// Rules files, each validated separately
    #[arg(required_unless_present_any = ["envoy_ratelimit_config", "store"], value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// A file of overrides, read with each of the rules files; repeatable
    #[arg(long, value_name = "FILE")]
    pub overrides: Vec<PathBuf>,
    /// A configuration file of envoyproxy/ratelimit, or a directory of them, read with each of the rules files, or alone if
    /// there are none; repeatable
    #[arg(long, value_name = "PATH")]
    pub envoy_ratelimit_config: Vec<PathBuf>,

    #[command(flatten)]
    store: StoreArgs,
}

/// Prints summaries of valid files and the facts about the store to `out`, and problems to `err`. Returns
/// [`ExitCode::BadInput`] if any file has an error, or if Weir cannot work with the store.
pub fn run(args: &Args, out: &mut dyn Write, err: &mut dyn Write) -> Result<ExitCode, Failure> {
    let plan = args.store.plan(Clock::machine(), None).map_err(Failure::usage)?;
    let mut exit = ExitCode::Success;
    let has_rules = !args.files.is_empty() || !args.envoy_ratelimit_config.is_empty();
    let mut algorithms = has_rules.then(Vec::new);
    let files: Vec<_> = match (args.files.as_slice(), has_rules) {
        ([], true) => vec![None],
        (files, _) => files.iter().cloned().map(Some).collect(),
    };
    for limits in files {
        let (overrides, envoy_ratelimit) = (args.overrides.clone(), args.envoy_ratelimit_config.clone());
        match check(&Files { limits, overrides, envoy_ratelimit }, err)? {
            Some((summary, rules)) => {
                writeln!(out, "{summary}")?;
                if plan.is_cluster() {
                    write!(out, "{}", tags::notes(&rules))?;
                }
                if let Some(algorithms) = &mut algorithms {
                    algorithms.extend(algorithms_of(&rules));
                }
            }
            None => exit = ExitCode::BadInput,
        }
    }
    if let StorePlan::Redis(target) = plan {
        let found = block_on(inspect(&target)).map_err(Failure::could_not_start)?;
        let expected = findings::Expected { algorithms, timeout: target.timeout() };
        if store::report(&found, &expected, out, err)? != ExitCode::Success {
            exit = ExitCode::BadInput;
        }
    }
    Ok(exit)
}

fn algorithms_of(rules: &Rules) -> impl Iterator<Item = &'static str> {
    rules.limits().iter().map(|limit| limit.algorithm.name())
}

/// Prints the problems of the files, and the tests that fail. Returns a summary and the rules if none is an error.
fn check(files: &Files, err: &mut dyn Write) -> Result<Option<(String, Rules)>, Failure> {
    let sources = match files.read() {
        Ok(sources) => sources,
        Err(problem) => {
            write!(err, "{}", Report::of(problem))?;
            return Ok(None);
        }
    };
    let named = sources.limits.as_ref().map_or(sources.envoy_ratelimit.as_slice(), std::slice::from_ref);
    let name = joined(named.iter().map(|source| &source.name), ", ");
    // These rules serve no requests, so the hash needs no secret.
    let loaded = config::load(&sources, Fingerprinter::new((0, 0)), Clock::machine().now());
    write!(err, "{}", loaded.report)?;
    let Some(rules) = loaded.rules else {
        writeln!(err, "{name}: {}", counted(loaded.report.errors, "error"))?;
        return Ok(None);
    };
    let tests = match test::run_in_memory(files, err) {
        Ok(None) => String::new(),
        Ok(Some(Tally { passed, failed: 0 })) => format!(", {}", counted(passed, "test")),
        Ok(Some(Tally { passed, failed })) => {
            writeln!(err, "{name}: {failed} of {} failed", counted(passed + failed, "test"))?;
            return Ok(None);
        }
        // Mistakes in a test are errors like others.
        Err(Failure::Message(ExitCode::BadInput, problems)) => {
            write!(err, "{problems}")?;
            return Ok(None);
        }
        Err(failure) => return Err(failure),
    };
    let overrides = rules.limits().iter().map(|limit| limit.overrides.len()).sum();
    let (limits, overrides) = (counted(rules.limits().len(), "limit"), counted(overrides, "override"));
    let warnings = match loaded.report.warnings {
        0 => String::new(),
        warnings => format!(", {}", counted(warnings, "warning")),
    };
    Ok(Some((format!("{name}: ok, {limits}, {overrides}{tests}{warnings}"), rules)))
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use clap::Parser;

    use super::*;

    const RULES: &str =
        "limits:\n  A: { count: 10, period: 1s }\noverrides:\n  A:10.0.0.1: { count: 20, period: 1s }\n";

    #[derive(clap::Parser)]
    struct Command {
        #[command(flatten)]
        args: Args,
    }

    fn args(files: &[PathBuf]) -> Args {
        let files = files.iter().map(|file| file.as_os_str());
        Command::parse_from([OsStr::new("check"), OsStr::new("--store=memory")].into_iter().chain(files)).args
    }

    /// Checks files with these texts and compares the exit code, and parts of both outputs.
    #[track_caller]
    fn case(rules: &str, overrides: Option<&str>, exit: ExitCode, out_part: &str, err_part: &str) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("limits.yaml");
        std::fs::write(&path, rules).unwrap();
        let mut args = args(&[path]);
        if let Some(text) = overrides {
            let path = directory.path().join("overrides.yaml");
            std::fs::write(&path, text).unwrap();
            args.overrides.push(path);
        }
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
        assert!(String::from_utf8(err).unwrap().contains("cannot be read"));
    }
}
