//! `weir test --watch`: runs the tests again whenever one of their files changes.

use std::io::Write;
use std::thread;
use std::time::Duration;

use jiff::Zoned;

use super::output::Format;
use super::runner::StoreSource;
use super::suite::tested_files;
use super::{Args, is_scenarios, run_once};
use crate::commands::colors;
use crate::commands::exit::{ExitCode, Failure};
use crate::config::{self, Change, Files, PollMode, Watcher};

/// Short enough to feel immediate, and long enough to cost nothing.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Runs the tests until the process is ended. A mistake in a file is printed and does not end the watch.
pub(super) fn run(
    args: &Args,
    files: &Files,
    stores: &StoreSource<'_>,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> Result<ExitCode, Failure> {
    if args.format != Format::Text {
        return Err(Failure::usage("`--watch` prints for people: remove `--format`"));
    }
    loop {
        // Before the run, so that the next poll sees a change meanwhile.
        let mut watchers = watchers(args, files)?;
        match run_once(args, files, stores, out) {
            Err(Failure::Message(ExitCode::BadInput, mistakes)) => write!(err, "{}", colors::of_failure(&mistakes))?,
            Err(failure) => return Err(failure),
            Ok(_) => {}
        }
        writeln!(out, "waiting for changes; press Ctrl-C to stop")?;
        out.flush()?;
        while !watchers.iter_mut().any(|watcher| has_changed(watcher, PollMode::IfTouched)) {
            thread::sleep(POLL_INTERVAL);
        }
        writeln!(out, "\n{}: files have changed", Zoned::now().strftime("%H:%M:%S"))?;
    }
}

/// Returns watchers of the files as they are now: those with tests, and the rules that they are about.
fn watchers(args: &Args, files: &Files) -> Result<Vec<Watcher>, Failure> {
    let mut watchers = Vec::new();
    for path in args.named(files)? {
        watchers.push(Watcher::new(Files { limits: Some(path.to_owned()), ..Files::default() }));
        let source = config::read_rules(path).ok().filter(|source| !is_scenarios(path, &source.text));
        let tested = source.and_then(|source| tested_files(&source, files).ok());
        watchers.extend(tested.map(Watcher::new));
    }
    for watcher in &mut watchers {
        has_changed(watcher, PollMode::Always);
    }
    Ok(watchers)
}

fn has_changed(watcher: &mut Watcher, mode: PollMode) -> bool {
    !matches!(watcher.poll(mode), Change::Same)
}
